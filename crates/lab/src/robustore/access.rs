//! One access of one scheme, in a world of its own.

use super::{
    draw::{Disk, Draw},
    parameters::{Access, Parameters},
    scheme::Scheme,
};
use anyhow::{Context, Result, anyhow};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use steadfast_codes::rateless::Code;
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId, Time, Version,
    layout::{CodeSpec, GRANULE_BYTES, Holder, SegmentLayout, Share},
    read::{self, ReadPlan, RequestRule},
    write::{Given, Target, WriteDone, WriteSpec},
};
use steadfast_sim::{AccessId, Link, Outcome, ReadAccess, Setup, World, WriteAccess};

const SEGMENT: SegmentId = SegmentId(1);
pub(super) const VERSION: Version = Version(1);
/// No access is given up while a disk of half a megabyte per second reads or writes a block of 64 MiB.
const PATIENCE: Duration = Duration::from_secs(600);

/// What one access took.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds.
    pub latency: f64,
    /// Bytes sent beyond the object's, as a share of it (§6.2.3).
    pub io_overhead: f64,
    /// Bytes read from media or written to them beyond the object's, as a share of it: below 0 where caches gave more.
    pub medium_overhead: f64,
    /// Bytes that caches gave, as a share of the object's.
    #[serde(default)]
    pub cached: f64,
    /// Events of the simulation.
    pub events: u64,
    /// Requests that its disks modelled, those of background loads included.
    #[serde(default)]
    pub requests: u64,
    /// The hash of its trace.
    pub hash: u64,
}

/// What is done with a run beside running it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    /// The trace keeps its records.
    pub keep_trace: bool,
    /// One byte of this message changes on the way, the first being 1.
    pub flip: Option<u64>,
}

/// Runs access `number` of `scheme` under `seed`.
///
/// # Errors
/// When there is no code for it, or it fails: nothing fails in these experiments.
pub fn run(parameters: &Parameters, scheme: Scheme, seed: u64, number: u32) -> Result<Sample> {
    let parameters = &scheme.parameters(parameters);
    let (world, id) = watched(parameters, scheme, seed, number, Watch::default())?;
    if parameters.access == Access::Write {
        return Ok(stored(parameters, scheme, &world, id)?.1);
    }
    let outcome = succeeded(&world, id, scheme)?;
    sample(parameters, &world, outcome, outcome.medium_bytes)
}

/// The same, and what is left of it: the world, and the access's name there.
///
/// # Errors
/// When there is no code for it, or the write before a read fails.
pub fn watched(
    parameters: &Parameters,
    scheme: Scheme,
    seed: u64,
    number: u32,
    watch: Watch,
) -> Result<(World, AccessId)> {
    let draw = Draw::new(parameters, seed, number, 0);
    let (spec, code) = scheme.code(parameters, draw.code_seed)?;
    match parameters.access {
        Access::Read => {
            let holders = holders(parameters, scheme, &draw, SEGMENT)?;
            Ok(fetch(parameters, scheme, &draw, spec, code, holders, watch))
        }
        Access::Write => Ok(store(parameters, scheme, &draw, code, watch)),
        Access::Reread => {
            let (world, id) = store(parameters, scheme, &draw, code.clone(), Watch::default());
            let (done, _) = stored(parameters, scheme, &world, id)?;
            let holders = done.holders.into_iter().map(|share| share.stored(SEGMENT, VERSION)).collect();
            let changed = Draw { code_seed: draw.code_seed, ..Draw::new(parameters, seed, number, 1) };
            Ok(fetch(parameters, scheme, &changed, spec, code, holders, watch))
        }
    }
}

/// Who holds what of an object that lies evenly on a draw's disks.
///
/// # Errors
/// When there are fewer blocks than disks could be given.
pub(super) fn holders(
    parameters: &Parameters,
    scheme: Scheme,
    draw: &Draw,
    segment: SegmentId,
) -> Result<Vec<Holder>> {
    let shares = scheme.balanced(parameters)?.into_iter().zip(&draw.disks);
    let holder =
        |(blocks, disk): (_, &Disk)| Share { device: disk.device(), blocks }.stored(segment, VERSION);
    Ok(shares.map(holder).collect())
}

/// An object where it lies.
pub(super) fn layout(
    parameters: &Parameters,
    segment: SegmentId,
    code: CodeSpec,
    holders: Vec<Holder>,
) -> SegmentLayout {
    SegmentLayout {
        segment,
        version: VERSION,
        epoch: Epoch(1),
        length: parameters.object_bytes(),
        code,
        block_bytes: parameters.block_bytes(),
        granule_bytes: GRANULE_BYTES,
        holders: holders.into_iter().filter(|holder| holder.count() > 0).collect(),
    }
}

/// The read of an object by someone who has `seen` its disks' speeds, in bytes per second; 0 where not.
pub(super) fn reading(
    parameters: &Parameters,
    scheme: Scheme,
    rule: RequestRule,
    layout: &SegmentLayout,
    code: Code,
    contents: u64,
    seen: impl Fn(DeviceId) -> u64,
) -> ReadAccess {
    let mut plan = ReadPlan::new(layout, rule, || code.expected_extra(), |device| (seen(device), 0));
    plan.round_trip = Some(Duration::from_secs_f64(parameters.round_trip_ms / 1e3));
    plan.patience = PATIENCE;
    plan.payload_bytes_max = parameters.payload_bytes_max();
    plan.races = parameters.races;
    let (kept, policy) = (layout.clone(), scheme.policy(parameters));
    let core = Box::new(move |now: Time| read::whole(now, plan, &kept, &policy));
    let opening = Duration::from_secs_f64(parameters.opening_ms / 1e3);
    let decoding =
        Duration::from_secs_f64(f64::from(parameters.block_bytes()) / parameters.decode_mb_per_s / 1e6);
    ReadAccess { layout: layout.clone(), code, contents, core, opening, decoding }
}

/// What a world under these parameters begins with.
pub(super) fn setup(parameters: &Parameters, seed: u64) -> Setup {
    let link = Link::of_round_trip(Duration::from_secs_f64(parameters.round_trip_ms / 1e3));
    Setup { payload_bytes_max: parameters.payload_bytes_max(), ..Setup::new(seed, link) }
}

/// The disks of a draw under their servers, and a client.
pub(super) fn world(parameters: &Parameters, draw: &Draw, watch: Watch) -> (World, u32) {
    let mut world = World::new(Setup { keep_trace: watch.keep_trace, ..setup(parameters, draw.seed) });
    if let Some(number) = watch.flip {
        world.flip(number);
    }
    for _ in 0..parameters.disks_of.div_ceil(parameters.disks_per_node) {
        world.add_node();
    }
    for disk in &draw.disks {
        let node = disk.number / parameters.disks_per_node;
        world.add_device(node, disk.device(), disk.medium());
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
    watch: Watch,
) -> (World, AccessId) {
    let layout = layout(parameters, SEGMENT, spec, holders);
    let (mut world, client) = world(parameters, draw, watch);
    world.preload(&layout, draw.seed);
    let disk = |device| draw.disks.iter().find(|disk| disk.device() == device);
    let seen = |device| disk(device).filter(|_| parameters.seen).map_or(0, Disk::read_bytes_per_s);
    let access = reading(parameters, scheme, scheme.rule(), &layout, code, draw.seed, seen);
    let id = world.read(client, Time(0), access);
    world.run();
    (world, id)
}

/// What became of a read that has to succeed.
pub(super) fn succeeded(world: &World, access: AccessId, scheme: Scheme) -> Result<&Outcome> {
    let outcome = world.outcome(access);
    match &outcome.read {
        Some(Ok(_)) => {}
        Some(Err(error)) => return Err(anyhow!("{}: {error}", scheme.name())),
        None => return Err(anyhow!("{}: the read never ended", scheme.name())),
    }
    Ok(outcome)
}

fn store(
    parameters: &Parameters,
    scheme: Scheme,
    draw: &Draw,
    code: Code,
    watch: Watch,
) -> (World, AccessId) {
    let (mut world, client) = world(parameters, draw, watch);
    let (write, rule) = scheme.writing(parameters);
    let target = |(domain, disk): (usize, &super::draw::Disk)| Target {
        device: disk.device(),
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
        fewer: None,
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
    (world, id)
}

/// What became of a write that has to succeed.
fn stored(
    parameters: &Parameters,
    scheme: Scheme,
    world: &World,
    id: AccessId,
) -> Result<(WriteDone, Sample)> {
    let outcome = world.outcome(id);
    let done = match &outcome.written {
        Some(Ok(stored)) => stored.done.clone(),
        Some(Err(error)) => return Err(anyhow!("{}: {error}", scheme.name())),
        None => return Err(anyhow!("{}: the write never ended", scheme.name())),
    };
    let written = world.devices().map(|device| world.done(device).written_bytes).sum();
    let sample = sample(parameters, world, outcome, written)?;
    Ok((done, sample))
}

pub(super) fn sample(
    parameters: &Parameters,
    world: &World,
    outcome: &Outcome,
    medium_bytes: u64,
) -> Result<Sample> {
    let object = parameters.object_bytes() as f64;
    let beyond = |bytes: u64| bytes as f64 / object - 1.0;
    Ok(Sample {
        latency: outcome.latency().context("it has ended")?.as_secs_f64(),
        io_overhead: beyond(outcome.sent_bytes),
        medium_overhead: beyond(medium_bytes),
        cached: 0.0,
        events: world.events(),
        requests: world.modelled_requests(),
        hash: world.trace().hash(),
    })
}

#[cfg(test)]
mod tests {
    use super::{super::parameters, *};

    /// Bytes that this process has had in memory at most.
    fn peak_bytes() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    /// Ten thousand modelled disks, each with blocks of an object that is read from all of them.
    #[test]
    fn ten_thousand_disks_take_little_memory() {
        let disks = parameters::find("robustore/disks").unwrap().unwrap();
        let many =
            Parameters { disks: 10_000, disks_of: 10_000, block_kib: 256, ..disks.points[0].1.clone() };
        many.check().unwrap();
        for scheme in [Scheme::ReplicatedSpeculative, Scheme::RatelessB] {
            let sample = run(&many, scheme, 1, 0).unwrap();
            println!("{}: {sample:?}, at most {} MB in memory", scheme.name(), peak_bytes() / 1_000_000);
            assert!(sample.requests > 10_000);
        }
        assert!(peak_bytes() < 4 << 30, "{} bytes", peak_bytes());
    }
}
