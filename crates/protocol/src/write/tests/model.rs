//! A model of devices behind a round trip: each writes what it was sent at its own rate and confirms after a flush.
//! It checks on the way that no index is pushed twice (a wanted one, or one of a chunk, not twice to one device), none that exists is pushed,
//! and no credit is exceeded.

use super::*;
use crate::durability::Need;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use steadfast_codes::rateless::Kind;

pub(super) const MS: u64 = 1_000_000;

/// How a modelled device behaves.
#[derive(Clone, Copy, Debug)]
pub(super) struct Disk {
    pub(super) domain: u32,
    /// Bytes per second; 0 for a stalled one.
    pub(super) rate: u64,
    /// It reports itself full after so many blocks.
    pub(super) room: Option<u32>,
    /// It says nothing more once it has stored so many blocks.
    pub(super) stalls_after: Option<u32>,
    /// Once it has stored so many, each takes it longer than the one before by such a share.
    pub(super) fades: Option<(u32, f64)>,
    /// Its connection is lost then, in ns.
    pub(super) dies_at: Option<u64>,
    /// It refuses OPEN until then, in ns.
    pub(super) refuses_until: u64,
}

pub(super) fn disk(domain: u32, rate_mb: f64) -> Disk {
    let rate = (rate_mb * 1e6) as u64;
    Disk { domain, rate, room: None, stalls_after: None, fades: None, dies_at: None, refuses_until: 0 }
}

/// What all devices of a model have in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Common {
    pub(super) rtt_ns: u64,
    /// After what was written, before it is confirmed.
    pub(super) flush_ns: u64,
    /// Blocks written before each flush, or all that wait when they are fewer.
    pub(super) group: usize,
    pub(super) credit_bytes: u64,
}

impl Default for Common {
    fn default() -> Self {
        Self { rtt_ns: MS, flush_ns: 0, group: 1, credit_bytes: 4 << 20 }
    }
}

#[derive(Debug)]
enum Event {
    AtNode(usize, Arrival),
    Written(usize, u64, Vec<u32>),
    ToCore(Input),
    Tick,
}

#[derive(Debug)]
enum Arrival {
    Open,
    Block(u32),
    Close,
    Death,
}

#[derive(Default)]
struct Host {
    queue: VecDeque<u32>,
    busy: bool,
    open: bool,
    gone: bool,
    /// Counts openings: a write of an earlier one is not confirmed.
    round: u64,
    credit: u64,
    stored: u32,
}

pub(super) struct Outcome {
    pub(super) result: Result<WriteDone, WriteError>,
    pub(super) at: f64,
    /// Blocks written or on their way when it ended, beyond those of the layout.
    pub(super) pushed: u32,
    /// Those pushed after the core said that all it takes is on its way.
    pub(super) pushed_ending: u32,
    /// When it said so first, in seconds; infinite where it never did.
    pub(super) ending_at: f64,
    /// Devices opened.
    pub(super) opened: u32,
    pub(super) trace: u64,
}

pub(super) fn spec(
    code: (Kind, u32),
    block_bytes: u32,
    rule: Rule,
    disks: &[Disk],
    used: usize,
) -> WriteSpec {
    let code = match code.0 {
        Kind::Lt { .. } => {
            Code::checked(code.0, code.1, 7, (f64::from(code.1) * (1.0 + rule.redundancy)) as u32)
        }
        _ => Code::new(code.0, code.1, 7),
    }
    .unwrap();
    let targets: Vec<Target> = disks
        .iter()
        .enumerate()
        .map(|(position, disk)| Target {
            device: DeviceId(position as u128),
            domain: disk.domain,
            write_bytes_per_s: 0,
        })
        .collect();
    WriteSpec {
        scheme: if code.end().is_some() {
            Scheme::Parity
        } else if code.kind() != Kind::Replicated {
            Scheme::Rateless
        } else if code.k() == 1 {
            Scheme::Replicated
        } else {
            Scheme::Striped
        },
        code,
        block_bytes,
        rule,
        domains: disks.iter().map(|disk| disk.domain + 1).max().unwrap(),
        devices: targets[..used].to_vec(),
        spares: targets[used..].to_vec(),
        patience: PATIENCE,
        seed: 1,
        given: Given::default(),
        fewer: None,
    }
}

/// Runs a write core against the model to its end.
pub(super) fn run(spec: WriteSpec, disks: &[Disk], common: Common) -> Outcome {
    let block = u64::from(spec.block_bytes);
    let given = spec.given.clone();
    let wanted: BTreeSet<u32> = given.wanted.iter().flat_map(|(_, blocks)| blocks.iter()).collect();
    let exists = |index| given.existing.iter().any(|existing| existing.blocks.contains(index));
    let chunks = spec.scheme == Scheme::Parity;
    let mut core = Writer::new(spec, Time(0));
    let mut hosts: Vec<Host> = disks.iter().map(|_| Host::default()).collect();
    let mut events: BTreeMap<(u64, u64), Event> = BTreeMap::new();
    let (mut order, mut now, mut pushed, mut opened, mut trace) = (0u64, 0u64, 0, 0, 0u64);
    let (mut ending, mut pushed_ending, mut ending_at) = (false, 0, f64::INFINITY);
    let (mut seen, mut minted) = (BTreeSet::new(), BTreeSet::new());
    let mut ticks = BTreeSet::new();
    let half = common.rtt_ns / 2;
    macro_rules! after {
        ($delay:expr, $event:expr) => {{
            order += 1;
            events.insert((now + $delay, order), $event);
        }};
    }
    for (position, disk) in disks.iter().enumerate() {
        if let Some(at) = disk.dies_at {
            after!(at, Event::AtNode(position, Arrival::Death));
        }
    }
    loop {
        while let Some(action) = core.poll() {
            match action {
                Action::Open { device, .. } => {
                    opened += 1;
                    after!(half, Event::AtNode(device.0 as usize, Arrival::Open));
                }
                Action::Push { device, indices } => {
                    let host = &mut hosts[device.0 as usize];
                    let bytes = u64::from(indices.end - indices.start) * block;
                    assert!(bytes <= host.credit, "credit exceeded on {device}");
                    host.credit -= bytes;
                    for index in indices {
                        assert!(seen.insert((device, index)), "index {index} pushed twice to {device}");
                        assert!(!exists(index), "index {index} exists");
                        // A chunk goes to a spare as a whole.
                        if !chunks && !wanted.contains(&index) {
                            assert!(minted.insert(index), "index {index} pushed twice");
                            assert!(index >= given.first_new_index);
                        }
                        pushed += 1;
                        pushed_ending += u32::from(ending);
                        trace = trace.wrapping_mul(31).wrapping_add(u64::from(index) ^ device.0 as u64 ^ now);
                        after!(half, Event::AtNode(device.0 as usize, Arrival::Block(index)));
                    }
                }
                Action::Cancel { device } | Action::Finish { device } => {
                    after!(half, Event::AtNode(device.0 as usize, Arrival::Close));
                }
                over @ (Action::Done(_) | Action::Failed(_)) => {
                    let result = match over {
                        Action::Done(done) => Ok(done),
                        Action::Failed(error) => Err(error),
                        _ => unreachable!("one of the two"),
                    };
                    let at = now as f64 / 1e9;
                    return Outcome { result, at, pushed, pushed_ending, ending_at, opened, trace };
                }
            }
        }
        if core.ending() && !ending {
            (ending, ending_at) = (true, now as f64 / 1e9);
        }
        let wake = core.wake_at().expect("a core that is not over wakes").0.max(now + 1);
        if ticks.insert(wake) {
            order += 1;
            events.insert((wake, order), Event::Tick);
        }
        let ((at, _), event) = events.pop_first().expect("there is always a tick");
        now = at;
        match event {
            Event::Tick => {
                if core.wake_at().is_some_and(|wake| wake.0 <= now) {
                    core.handle(Time(now), Input::Tick);
                }
            }
            Event::ToCore(input) => {
                if let Input::Credit { device, bytes } = input {
                    hosts[device.0 as usize].credit += bytes;
                }
                core.handle(Time(now), input);
            }
            Event::AtNode(position, arrival) => {
                let device = DeviceId(position as u128);
                let (host, disk) = (&mut hosts[position], disks[position]);
                match arrival {
                    Arrival::Open if host.gone => {
                        after!(
                            half,
                            Event::ToCore(Input::Failed { device, cause: FailureKind::Unreachable })
                        );
                    }
                    Arrival::Open if now < disk.refuses_until => {
                        let retry_after = Duration::from_nanos(disk.refuses_until - now);
                        let cause = FailureKind::Refused { retry_after };
                        after!(half, Event::ToCore(Input::Failed { device, cause }));
                    }
                    Arrival::Open => {
                        host.open = true;
                        after!(half, Event::ToCore(Input::Opened { device }));
                        after!(half, Event::ToCore(Input::Credit { device, bytes: common.credit_bytes }));
                    }
                    Arrival::Block(index) => {
                        if host.open {
                            host.queue.push_back(index);
                        }
                    }
                    Arrival::Close => host.open = false,
                    Arrival::Death => {
                        host.gone = true;
                        host.round += 1;
                        if std::mem::replace(&mut host.open, false) {
                            let cause = FailureKind::Unreachable;
                            after!(half, Event::ToCore(Input::Failed { device, cause }));
                        }
                    }
                }
            }
            Event::Written(position, round, blocks) => {
                let (host, disk) = (&mut hosts[position], disks[position]);
                host.busy = false;
                if round == host.round && host.open {
                    let device = DeviceId(position as u128);
                    let room = disk.room.map_or(u32::MAX, |room| room - host.stored);
                    let fits: Vec<u32> = blocks.iter().copied().take(room as usize).collect();
                    host.stored += fits.len() as u32;
                    let bytes = block * fits.len() as u64;
                    if !fits.is_empty() {
                        let confirmed = Input::Confirmed { device, blocks: fits.iter().copied().collect() };
                        after!(half, Event::ToCore(confirmed));
                        after!(half, Event::ToCore(Input::Credit { device, bytes }));
                    }
                    if fits.len() < blocks.len() {
                        host.open = false;
                        after!(half, Event::ToCore(Input::Failed { device, cause: FailureKind::Full }));
                    }
                }
            }
        }
        for (position, host) in hosts.iter_mut().enumerate() {
            let rate = disks[position].rate;
            let stalls = disks[position].stalls_after.is_some_and(|blocks| host.stored >= blocks);
            if host.open && !host.busy && rate > 0 && !stalls && !host.queue.is_empty() {
                let take = host.queue.len().min(common.group);
                let blocks: Vec<u32> = host.queue.drain(..take).collect();
                let slower = disks[position].fades.map_or(1.0, |(after, share)| {
                    (1.0 + share).powi(host.stored.saturating_sub(after).min(500) as i32)
                });
                let span = (blocks.len() as u64 * block) as f64 * slower / rate as f64 * 1e9;
                host.busy = true;
                after!(span as u64 + common.flush_ns, Event::Written(position, host.round, blocks));
            }
        }
    }
}

/// Seconds in which a fluid of blocks at the disks' rates meets the counting rule, nothing else counted.
pub(super) fn fluid_seconds(disks: &[Disk], need: Need, block_bytes: u32) -> f64 {
    let domains = disks.iter().map(|disk| disk.domain as usize + 1).max().unwrap();
    let met = |seconds: f64| {
        let mut loads = vec![0.0; domains];
        for disk in disks {
            loads[disk.domain as usize] += disk.rate as f64 * seconds / f64::from(block_bytes);
        }
        need.missing(&loads) == (0.0, 0.0)
    };
    let (mut early, mut late) = (0.0, 1e6);
    for _ in 0..80 {
        let middle = 0.5 * (early + late);
        if met(middle) { late = middle } else { early = middle }
    }
    late
}

/// Every loss pattern of f domains decodes: asked of the code directly, pattern by pattern, without the judge.
pub(super) fn survives_everything(code: &Code, rule: Rule, done: &WriteDone, disks: &[Disk]) {
    let placed = placed(done, disks);
    assert_eq!(done.stored_blocks as usize, placed.len());
    all_patterns_decode(code, rule, &placed, disks);
}

/// The blocks that a write placed, each with its failure domain.
pub(super) fn placed(done: &WriteDone, disks: &[Disk]) -> Vec<(u32, u32)> {
    let domain = |device: DeviceId| disks[device.0 as usize].domain;
    let of =
        |holder: &Share| holder.blocks.iter().map(|index| (domain(holder.device), index)).collect::<Vec<_>>();
    done.holders.iter().flat_map(of).collect()
}

/// As [`survives_everything`], of blocks by failure domain.
pub(super) fn all_patterns_decode(code: &Code, rule: Rule, placed: &[(u32, u32)], disks: &[Disk]) {
    let distinct: BTreeSet<u32> = placed.iter().map(|&(_, index)| index).collect();
    assert_eq!(distinct.len(), placed.len(), "an index is listed twice");
    if code.kind() != Kind::Replicated {
        assert!(placed.len() as f64 >= (1.0 + rule.redundancy) * f64::from(code.k()) - 1e-6);
    }
    let domains: u32 = disks.iter().map(|disk| disk.domain + 1).max().unwrap();
    let f = rule.tolerate.min(domains);
    let mut patterns = 0;
    for mask in 0u32..1 << domains {
        if mask.count_ones() == f {
            patterns += 1;
            let mut left =
                placed.iter().filter(|(domain, _)| mask >> domain & 1 == 0).map(|&(_, index)| index);
            assert!(code.decodes(&mut left), "the loss of domains {mask:b} is fatal");
        }
    }
    assert!(patterns > 0);
}

/// Numbers of a test from one seed.
pub(super) struct Draw(Pcg64Mcg);

impl Draw {
    pub(super) fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::new(u128::from(seed) << 64 | 0x1234_5678_9abc_def1))
    }

    pub(super) fn below(&mut self, limit: u64) -> u64 {
        self.0.next_u64() % limit
    }

    pub(super) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(super) fn rate_mb(&mut self, least: f64, most: f64) -> f64 {
        let unit = self.below(1 << 30) as f64 / f64::from(1 << 30);
        least * (most / least).powf(unit)
    }
}
