//! One access of one scheme, in a world of its own.

use super::{
    draw::Draw,
    parameters::{Access, Parameters},
    scheme::Scheme,
};
use anyhow::{Context, Result, anyhow, ensure};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use steadfast_codes::rateless::Code;
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId, Time, Version,
    layout::{CodeSpec, GRANULE_BYTES, Holder, SegmentLayout, Share},
    read::{self, ReadPlan},
    write::{Given, Target, WriteDone, WriteSpec},
};
use steadfast_sim::{Link, Outcome, ReadAccess, Setup, World, WriteAccess};

const SEGMENT: SegmentId = SegmentId(1);
const VERSION: Version = Version(1);
/// No access is given up while a disk of half a megabyte per second reads or writes a block of 64 MiB.
const PATIENCE: Duration = Duration::from_secs(600);

/// What one access took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds.
    pub latency: f64,
    /// Bytes sent beyond the object's, as a share of it (§6.2.3).
    pub io_overhead: f64,
    /// Bytes read from media or written to them beyond the object's, as a share of it.
    pub medium_overhead: f64,
    /// Events of the simulation.
    pub events: u64,
    /// The hash of its trace.
    pub hash: u64,
}

/// Runs access `number` of `scheme` under `seed`.
///
/// # Errors
/// When there is no code for it, or it fails: nothing fails in these experiments.
pub fn run(parameters: &Parameters, scheme: Scheme, seed: u64, number: u32) -> Result<Sample> {
    let parameters = &scheme.parameters(parameters);
    let draw = Draw::new(parameters, seed, number, 0);
    let (spec, code) = scheme.code(parameters, draw.code_seed)?;
    match parameters.access {
        Access::Read => {
            let shares = scheme.balanced(parameters)?.into_iter().zip(&draw.disks);
            let holders = shares.map(|(blocks, disk)| {
                Share { device: DeviceId(disk.number.into()), blocks }.stored(SEGMENT, VERSION)
            });
            fetch(parameters, scheme, &draw, spec, code, holders.collect())
        }
        Access::Write => Ok(store(parameters, scheme, &draw, code)?.1),
        Access::Reread => {
            let (done, _) = store(parameters, scheme, &draw, code.clone())?;
            let holders = done.holders.into_iter().map(|share| share.stored(SEGMENT, VERSION)).collect();
            let changed = Draw { code_seed: draw.code_seed, ..Draw::new(parameters, seed, number, 1) };
            fetch(parameters, scheme, &changed, spec, code, holders)
        }
    }
}

/// The disks of a draw under their servers, and a client.
fn world(parameters: &Parameters, draw: &Draw) -> (World, u32) {
    let link = Link::of_round_trip(Duration::from_secs_f64(parameters.round_trip_ms / 1e3));
    let mut world = World::new(Setup { seed: draw.seed, link, keep_trace: false });
    for _ in 0..parameters.disks_of.div_ceil(parameters.disks_per_node) {
        world.add_node();
    }
    for disk in &draw.disks {
        let node = disk.number / parameters.disks_per_node;
        world.add_device(node, DeviceId(disk.number.into()), disk.medium());
    }
    let client = world.add_client();
    (world, client)
}

fn fetch(
    parameters: &Parameters,
    scheme: Scheme,
    draw: &Draw,
    spec: CodeSpec,
    code: Code,
    holders: Vec<Holder>,
) -> Result<Sample> {
    let layout = SegmentLayout {
        segment: SEGMENT,
        version: VERSION,
        epoch: Epoch(1),
        length: parameters.object_bytes(),
        code: spec,
        block_bytes: parameters.block_bytes(),
        granule_bytes: GRANULE_BYTES,
        holders: holders.into_iter().filter(|holder| holder.count() > 0).collect(),
    };
    let (mut world, client) = world(parameters, draw);
    world.preload(&layout, draw.seed);
    // The disks have just been drawn: nobody has seen them.
    let mut plan = ReadPlan::new(&layout, scheme.rule(), code.expected_extra(), |_| (0, 0));
    plan.round_trip = Some(Duration::from_secs_f64(parameters.round_trip_ms / 1e3));
    plan.patience = PATIENCE;
    let (kept, policy) = (layout.clone(), scheme.policy(parameters));
    let core = Box::new(move |now: Time| read::whole(now, plan, &kept, &policy));
    let opening = Duration::from_secs_f64(parameters.opening_ms / 1e3);
    let decoding =
        Duration::from_secs_f64(f64::from(parameters.block_bytes()) / parameters.decode_mb_per_s / 1e6);
    let access = ReadAccess { layout, code, contents: draw.seed, core, opening, decoding };
    let id = world.read(client, Time(0), access);
    world.run();
    let outcome = world.outcome(id);
    match &outcome.read {
        Some(Ok(_)) => {}
        Some(Err(error)) => return Err(anyhow!("{}: {error}", scheme.name())),
        None => return Err(anyhow!("{}: the read never ended", scheme.name())),
    }
    ensure!(outcome.wrong_blocks == 0, "{}: wrong bytes", scheme.name());
    sample(parameters, &world, outcome, outcome.medium_bytes)
}

fn store(parameters: &Parameters, scheme: Scheme, draw: &Draw, code: Code) -> Result<(WriteDone, Sample)> {
    let (mut world, client) = world(parameters, draw);
    let (write, rule) = scheme.writing(parameters);
    let target = |(domain, disk): (usize, &super::draw::Disk)| Target {
        device: DeviceId(disk.number.into()),
        domain: domain as u32,
        write_bytes_per_s: 0,
    };
    let spec = WriteSpec {
        scheme: write,
        code,
        block_bytes: parameters.block_bytes(),
        rule,
        domains: parameters.disks,
        devices: draw.disks.iter().enumerate().map(target).collect(),
        spares: Vec::new(),
        patience: PATIENCE,
        seed: draw.seed,
        given: Given::default(),
    };
    let access = WriteAccess {
        spec,
        segment: SEGMENT,
        version: VERSION,
        granule_bytes: GRANULE_BYTES,
        contents: draw.seed,
        opening: Duration::from_secs_f64(parameters.opening_ms / 1e3),
    };
    let id = world.write(client, Time(0), access);
    world.run();
    let outcome = world.outcome(id);
    let done = match &outcome.written {
        Some(Ok(stored)) => stored.done.clone(),
        Some(Err(error)) => return Err(anyhow!("{}: {error}", scheme.name())),
        None => return Err(anyhow!("{}: the write never ended", scheme.name())),
    };
    let written = draw.disks.iter().map(|disk| world.done(DeviceId(disk.number.into())).written_bytes).sum();
    let sample = sample(parameters, &world, outcome, written)?;
    Ok((done, sample))
}

fn sample(parameters: &Parameters, world: &World, outcome: &Outcome, medium_bytes: u64) -> Result<Sample> {
    let object = parameters.object_bytes() as f64;
    let beyond = |bytes: u64| bytes as f64 / object - 1.0;
    Ok(Sample {
        latency: outcome.latency().context("it has ended")?.as_secs_f64(),
        io_overhead: beyond(outcome.sent_bytes),
        medium_overhead: beyond(medium_bytes),
        events: world.events(),
        hash: world.trace().hash(),
    })
}
