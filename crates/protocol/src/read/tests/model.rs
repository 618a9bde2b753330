//! Whole reads against modelled devices: a rate, a round trip, a fate, and the node's side of credit.

use super::super::*;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

const BLOCK: u32 = 64 << 10;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    Well,
    Silent,
    FailsAfter(u32),
    /// Sends all that it holds, and no end.
    FailsAtTheEnd,
    CorruptsEvery(u32),
}

pub(super) struct Node {
    pub(super) holds: IndexRanges,
    pub(super) rate: f64,
    /// One way.
    pub(super) delay_ns: u64,
    pub(super) fate: Fate,
    /// Whether its blocks lie in the other order.
    pub(super) backwards: bool,
    queue: VecDeque<BlockIndex>,
    credit: u64,
    free_at: u64,
    sent: u32,
    open: bool,
    generation: u32,
    cancelled_at: Option<u64>,
}

impl Node {
    pub(super) fn new(holds: IndexRanges, rate: f64, delay_ns: u64, fate: Fate) -> Self {
        let queue = VecDeque::new();
        let (credit, free_at, sent, open, generation, cancelled_at) = (0, 0, 0, false, 0, None);
        let backwards = false;
        Self {
            holds,
            rate,
            delay_ns,
            fate,
            backwards,
            queue,
            credit,
            free_at,
            sent,
            open,
            generation,
            cancelled_at,
        }
    }
}

#[derive(Debug)]
enum Event {
    AtNode(u128, u32, ToNode),
    AtReader(u128, u32, Input),
}

#[derive(Debug)]
enum ToNode {
    Open(Want, u32),
    Grant(u32),
    Finish,
    Cancel,
}

pub(super) struct Run {
    pub(super) outcome: Result<ReadDone, ReadError>,
    pub(super) counts: ReadDone,
    pub(super) ended_ns: u64,
    in_flight_max: u64,
}

pub(super) fn run(plan: &ReadPlan, mut core: impl ReadCore, mut nodes: BTreeMap<u128, Node>) -> Run {
    let mut events: BTreeMap<(u64, u64), Event> = BTreeMap::new();
    let mut sequence = 0u64;
    let mut now = 0u64;
    let mut have: BTreeSet<BlockIndex> = BTreeSet::new();
    let mut in_flight: BTreeMap<u128, u64> = BTreeMap::new();
    let mut run =
        Run { outcome: Ok(ReadDone::default()), counts: ReadDone::default(), ended_ns: 0, in_flight_max: 0 };
    let mut over = false;
    let replicated = core::any::type_name_of_val(&core).ends_with("Replicas");
    loop {
        while let Some(action) = core.poll() {
            assert!(!over, "an action after the last: {action:?}");
            let (id, message) = match action {
                Action::Open { device, want, credit_bytes } => {
                    let node = nodes.get_mut(&device.0).unwrap();
                    assert!(!node.open, "two streams at one device");
                    (node.open, node.generation) = (true, node.generation + 1);
                    in_flight.insert(device.0, credit_bytes.into());
                    sequence += 1;
                    let opened = Event::AtReader(device.0, node.generation, Input::Opened { device });
                    events.insert((now, sequence), opened);
                    (device.0, ToNode::Open(want, credit_bytes))
                }
                Action::Grant { device, bytes } => {
                    *in_flight.get_mut(&device.0).unwrap() += u64::from(bytes);
                    (device.0, ToNode::Grant(bytes))
                }
                Action::Finish { device } => (device.0, ToNode::Finish),
                Action::Cancel { device } => (device.0, ToNode::Cancel),
                Action::Done(done) => {
                    (over, run.outcome, run.ended_ns) = (true, Ok(done), now);
                    continue;
                }
                Action::Failed(error) => {
                    (over, run.outcome, run.ended_ns) = (true, Err(error), now);
                    continue;
                }
            };
            sequence += 1;
            let node = &nodes[&id];
            events.insert((now + node.delay_ns, sequence), Event::AtNode(id, node.generation, message));
        }
        run.in_flight_max = run.in_flight_max.max(in_flight.values().sum());
        let wake = core.wake_at();
        let next = events.keys().next().copied();
        match (next, wake) {
            (None, None) => break,
            (Some((at, _)), Some(wake)) if wake.0 < at => {
                now = now.max(wake.0);
                core.handle(Time(now), Input::Tick);
                continue;
            }
            (None, Some(wake)) => {
                now = now.max(wake.0);
                core.handle(Time(now), Input::Tick);
                continue;
            }
            (Some((at, _)), _) => now = at,
        }
        let (_, event) = events.pop_first().unwrap();
        match event {
            Event::AtReader(id, generation, input) => {
                if nodes[&id].generation != generation {
                    continue;
                }
                if let Input::Slice { bytes, .. } = input {
                    let left = in_flight.get_mut(&id).unwrap();
                    *left = left.checked_sub(bytes.into()).expect("more arrived than was granted");
                }
                if matches!(input, Input::Ended { .. } | Input::Failed { .. }) {
                    nodes.get_mut(&id).unwrap().open = false;
                    in_flight.insert(id, 0);
                }
                let input = match input {
                    Input::Block { device, index, .. } => {
                        // Copies are of original i mod K; coded blocks are all different.
                        have.insert(if replicated { index % plan.originals } else { index });
                        let missing = plan.originals.saturating_sub(have.len() as u32);
                        Input::Block { device, index, missing }
                    }
                    other => other,
                };
                core.handle(Time(now), input);
            }
            Event::AtNode(id, generation, message) => {
                let node = nodes.get_mut(&id).unwrap();
                if generation != node.generation {
                    continue;
                }
                match message {
                    ToNode::Open(want, credit) => {
                        node.queue = match want {
                            Want::All => node.holds.iter().collect(),
                            Want::Blocks(blocks) => blocks.iter().collect(),
                        };
                        if node.backwards {
                            node.queue = node.queue.drain(..).rev().collect();
                        }
                        node.credit = credit.into();
                    }
                    ToNode::Grant(bytes) => node.credit += u64::from(bytes),
                    ToNode::Finish | ToNode::Cancel => {
                        node.queue.clear();
                        if matches!(message, ToNode::Cancel) {
                            node.cancelled_at = Some(now);
                        }
                        // What is under way on the medium is still sent; what waits behind it is not.
                        let one = (f64::from(BLOCK) / node.rate * 1e9) as u64;
                        let last = now + node.delay_ns + one;
                        events.retain(|&(at, _), event| {
                            !matches!(event, Event::AtReader(of, ..) if *of == id && at > last)
                        });
                        node.free_at = node.free_at.min(now + one);
                        if node.fate != Fate::Silent {
                            sequence += 1;
                            let ended = Input::Ended { device: DeviceId(id) };
                            events.insert((last + 1, sequence), Event::AtReader(id, generation, ended));
                        }
                        continue;
                    }
                }
                serve(id, node, now, &mut sequence, &mut events);
            }
        }
    }
    run.counts = core.counts();
    run
}

fn serve(id: u128, node: &mut Node, now: u64, sequence: &mut u64, events: &mut BTreeMap<(u64, u64), Event>) {
    let device = DeviceId(id);
    if node.fate == Fate::Silent || node.queue.is_empty() {
        return;
    }
    let mut post = |at: u64, input: Input| {
        *sequence += 1;
        events.insert((at, *sequence), Event::AtReader(id, node.generation, input));
    };
    node.free_at = node.free_at.max(now);
    while node.credit >= u64::from(BLOCK) {
        let Some(index) = node.queue.pop_front() else { break };
        if matches!(node.fate, Fate::FailsAfter(count) if node.sent >= count) {
            node.queue.clear();
            let cause = Cause::Unreachable("gone".to_owned());
            post(node.free_at + node.delay_ns, Input::Failed { device, cause });
            return;
        }
        node.credit -= u64::from(BLOCK);
        node.free_at += (f64::from(BLOCK) / node.rate * 1e9) as u64;
        node.sent += 1;
        let at = node.free_at + node.delay_ns;
        post(at, Input::Slice { device, index, bytes: BLOCK });
        match node.fate {
            Fate::CorruptsEvery(every) if node.sent.is_multiple_of(every) => {
                post(at, Input::Corrupt { device, index })
            }
            _ => post(at, Input::Block { device, index, missing: 0 }),
        }
    }
    if node.queue.is_empty() {
        let end = match node.fate {
            Fate::FailsAtTheEnd if node.sent >= node.holds.count() => {
                Input::Failed { device, cause: Cause::Unreachable("gone".to_owned()) }
            }
            _ => Input::Ended { device },
        };
        post(node.free_at + node.delay_ns, end);
    }
}

/// N blocks dealt in turn to devices of drawn speeds (0.5 to 120 MB/s) and fates.
fn cluster(rng: &mut Pcg64Mcg, originals: u32, stored: u32) -> (Vec<Source>, BTreeMap<u128, Node>) {
    let devices = 2 + rng.next_u32() % 10;
    let mut sources = Vec::new();
    let mut nodes = BTreeMap::new();
    for n in 0..devices {
        let blocks: IndexRanges = (0..stored).filter(|index| index % devices == n).collect();
        let rate = 0.5e6 + f64::from(rng.next_u32() % 120) * 1e6;
        let fate = match rng.next_u32() % 12 {
            0 => Fate::Silent,
            1 => Fate::FailsAfter(rng.next_u32() % 8),
            2 => Fate::CorruptsEvery(2 + rng.next_u32() % 5),
            3 => Fate::FailsAtTheEnd,
            _ => Fate::Well,
        };
        let known = if rng.next_u32().is_multiple_of(3) { 0 } else { rate as u64 };
        let source = Source { device: DeviceId(n.into()), blocks, read_bytes_per_s: known, queue_length: 0 };
        let delay_ns = 50_000 + u64::from(rng.next_u32() % 20) * 1_000_000;
        nodes.insert(n.into(), Node::new(source.blocks.clone(), rate, delay_ns, fate));
        sources.push(source);
    }
    assert!(originals <= stored);
    (sources, nodes)
}

#[allow(clippy::disallowed_methods, reason = "a test takes its seed from outside")]
pub(super) fn seed() -> u64 {
    let seed = std::env::var("STEADFAST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_120);
    println!("STEADFAST_SEED={seed}");
    seed
}

/// Blocks that can arrive in the end, whatever the reader does.
fn obtainable(nodes: &BTreeMap<u128, Node>) -> u32 {
    let well = nodes.values().filter(|node| matches!(node.fate, Fate::Well | Fate::FailsAtTheEnd));
    well.map(|node| node.holds.count()).sum()
}

#[test]
fn reads_end_as_they_must_and_stay_within_their_credit() {
    let base = seed();
    let (mut succeeded, mut failed) = (0, 0);
    for case in 0..400u64 {
        let mut rng = Pcg64Mcg::new(u128::from(base.wrapping_add(case)) * 2 + 1);
        let originals = 8 + rng.next_u32() % 200;
        let stored = originals + rng.next_u32() % (2 * originals);
        let (sources, nodes) = cluster(&mut rng, originals, stored);
        let rule = match case % 3 {
            0 => RequestRule::All,
            1 => RequestRule::KPlus(rng.next_u32() % 4),
            _ => RequestRule::ADAPTIVE,
        };
        let patience = PATIENCE;
        let decoding = Decoding {
            alone: Duration::from_millis(5),
            first: Duration::from_millis(5),
            each: Duration::from_micros(13),
        };
        let plan = ReadPlan {
            sources,
            originals,
            extra_blocks: 0,
            block_bytes: BLOCK,
            rule,
            patience,
            // Known: devices nobody knows are granted more than is needed, and told to finish.
            round_trip: (case % 2 == 0).then_some(Duration::from_millis(20)),
            payload_bytes_max: crate::message::PAYLOAD_BYTES_MAX,
            decoding: (case % 5 < 3).then_some(decoding),
            races: true,
            waits: true,
            late: Late::default(),
        };
        let must = obtainable(&nodes) >= originals;
        let devices = nodes.len() as u64;
        let object = u64::from(originals) * u64::from(BLOCK);
        let run = match rule {
            RequestRule::Adaptive { .. } => run(&plan, Adaptive::new(Time(0), plan.clone()), nodes),
            _ => run(&plan, Speculative::new(Time(0), plan.clone()), nodes),
        };
        let adaptive = matches!(rule, RequestRule::Adaptive { .. });
        let bound = (object / 16).max(devices * 2 * u64::from(BLOCK)) + devices * u64::from(BLOCK) * 2;
        assert!(
            run.in_flight_max <= bound || adaptive,
            "case {case}: {} of {bound} on the way",
            run.in_flight_max
        );
        match &run.outcome {
            Ok(done) => {
                succeeded += 1;
                assert_eq!(done.useful_blocks, originals, "case {case}");
                // Waste is what was on the way at the end, and what arrived damaged.
                let wasted =
                    run.counts.received_bytes - object - u64::from(done.corrupt_blocks) * u64::from(BLOCK);
                let hedged = rule != RequestRule::All;
                assert!(wasted <= bound || hedged, "case {case}: {wasted} wasted, bound {bound}");
            }
            Err(error) => {
                failed += 1;
                assert!(!must, "case {case}: {error}");
            }
        }
    }
    assert!(succeeded > 200 && failed > 5, "the draw covers both ends: {succeeded} and {failed}");
}

/// K plus two asks 2 blocks more than needed of equal devices; all asks for everything and cancels.
#[test]
fn k_plus_wastes_less_and_is_no_slower_where_speeds_are_known() {
    let node = |holds: IndexRanges, rate| Node::new(holds, rate, 100_000, Fate::Well);
    let go = |rule, slow: f64| {
        let rates = [100e6, 100e6, 100e6, 100e6, 100e6, slow];
        let holds = |n: u32| (0..1536).filter(|index| index % 6 == n).collect::<IndexRanges>();
        let sources = (0..6u32)
            .map(|n| Source {
                device: DeviceId(n.into()),
                blocks: holds(n),
                read_bytes_per_s: rates[n as usize] as u64,
                queue_length: 0,
            })
            .collect();
        let nodes = (0..6u32).map(|n| (u128::from(n), node(holds(n), rates[n as usize]))).collect();
        let plan = ReadPlan {
            sources,
            originals: 1024,
            extra_blocks: 0,
            block_bytes: BLOCK,
            rule,
            patience: PATIENCE,
            round_trip: None,
            payload_bytes_max: crate::message::PAYLOAD_BYTES_MAX,
            decoding: None,
            races: true,
            waits: true,
            late: Late::default(),
        };
        let run = run(&plan, Speculative::new(Time(0), plan.clone()), nodes);
        (run.ended_ns as f64 / 1e6, run.counts, run.outcome.is_ok())
    };
    // 67.1 MB from six of 100 MB/s take 112 ms, with one at 10 MB/s 132 ms (traps, the arithmetic).
    for (slow, ideal_ms) in [(100e6, 112.0), (10e6, 132.0)] {
        for rule in [RequestRule::All, RequestRule::KPlus(2)] {
            let (ms, counts, well) = go(rule, slow);
            assert!(well && ms < ideal_ms * 1.05, "{rule:?} {slow}: {ms} ms");
            let wasted = counts.received_bytes as f64 / (1024.0 * f64::from(BLOCK)) - 1.0;
            let most = if rule == RequestRule::All { 1.0 / 16.0 } else { 0.01 };
            assert!(wasted <= most, "{rule:?} {slow}: {wasted} wasted");
        }
    }
}

/// A WAN of 100 ms round trip: the window grows until the devices are busy, without a constant in milliseconds.
#[test]
fn windows_grow_with_the_round_trip() {
    let stored = 512u32;
    let holds = |n: u32| (0..stored).filter(|index| index % 2 == n).collect::<IndexRanges>();
    let mut window = crate::window::Window::new(128 << 10, 256 << 10, 64 << 20);
    assert!(holds(0).count() == 256 && window.bytes() == 256 << 10);
    window.delayed(Duration::from_millis(100));
    window.passed(Time(0), 0);
    let mut now = 0;
    for _ in 0..12 {
        // What a window allows in a round trip, up to 100 MB/s.
        let bytes = window.bytes();
        now += (100e6f64).max(bytes as f64 * 10.0) as u64;
        window.passed(Time(now), bytes);
    }
    // Twice 100 MB/s times 100 ms.
    let target = 20e6;
    assert!((window.bytes() as f64 - target).abs() < target * 0.1, "{}", window.bytes());
}

/// A ranged read that is held to its word: at the end it has the range, or enough for a decode.
struct Watched {
    core: Ranged,
    wanted: IndexRanges,
    missing: u32,
}

impl Watched {
    fn new(plan: &ReadPlan, wanted: IndexRanges) -> Self {
        let core = Ranged::new(Time(0), plan.clone(), wanted.clone());
        Self { core, wanted, missing: plan.originals }
    }
}

impl ReadCore for Watched {
    fn handle(&mut self, now: Time, input: Input) {
        if let Input::Block { index, missing, .. } = input {
            self.wanted.remove(index);
            self.missing = missing;
        }
        self.core.handle(now, input);
    }

    fn poll(&mut self) -> Option<Action> {
        let action = self.core.poll();
        let done = matches!(action, Some(Action::Done(_)));
        assert!(!done || self.wanted.is_empty() || self.missing == 0, "{} are missing", self.wanted);
        action
    }

    fn wake_at(&self) -> Option<Time> {
        self.core.wake_at()
    }

    fn counts(&self) -> ReadDone {
        self.core.counts()
    }
}

#[test]
fn ranges_come_whenever_they_or_a_decode_can() {
    let base = seed();
    let (mut direct, mut decoded, mut failed) = (0, 0, 0);
    for case in 0..400u64 {
        let mut rng = Pcg64Mcg::new(u128::from(base.wrapping_add(case)) * 2 + 1);
        let originals = 8 + rng.next_u32() % 200;
        let stored = originals + rng.next_u32() % (2 * originals);
        let (sources, nodes) = cluster(&mut rng, originals, stored);
        let first = rng.next_u32() % originals;
        let wanted = IndexRanges::from(first..first + 1 + rng.next_u32() % (originals - first));
        let plan = ReadPlan { sources, originals, ..plan_of(vec![]) };
        let well = |index| nodes.values().any(|n| n.fate == Fate::Well && n.holds.contains(index));
        let must = obtainable(&nodes) >= originals || wanted.iter().all(well);
        let run = run(&plan, Watched::new(&plan, wanted.clone()), nodes);
        match &run.outcome {
            Ok(done) if done.requested_blocks <= wanted.count() => direct += 1,
            Ok(_) => decoded += 1,
            Err(error) => {
                failed += 1;
                assert!(!must, "case {case}: {error}");
            }
        }
    }
    assert!(
        direct > 100 && decoded > 50 && failed > 5,
        "{direct} direct, {decoded} decoded, {failed} failed"
    );
}

/// From 1 ms to 100 ms round trip and from 1 MB/s to 1 GB/s: nothing is read in vain while all is well, and a device
/// that stalls or crawls costs at most three times what a decode does.
#[test]
fn a_range_falls_back_by_what_it_costs_at_any_scale() {
    const K: u32 = 512;
    let holds = |n: u32| (0..K * 3 / 2).filter(|index| index % 6 == n).collect::<IndexRanges>();
    // Originals of devices 0 and 1.
    let wanted: IndexRanges = (0..24).filter(|index| index % 6 < 2).collect();
    for (delay_ns, rate) in [(500_000, 1e6), (500_000, 1e9), (50_000_000, 1e6), (50_000_000, 1e9)] {
        let source = |n: u32| Source {
            device: DeviceId(n.into()),
            blocks: holds(n),
            read_bytes_per_s: rate as u64,
            queue_length: 0,
        };
        let plan = ReadPlan { originals: K, ..plan_of((0..6).map(source).collect()) };
        let nodes = |fate, pace| {
            let node = |n: u32| {
                let (fate, rate) = if n == 1 { (fate, pace) } else { (Fate::Well, rate) };
                (u128::from(n), Node::new(holds(n), rate, delay_ns, fate))
            };
            (0..6).map(node).collect::<BTreeMap<u128, Node>>()
        };
        let go = |fate, pace| {
            let run = run(&plan, Watched::new(&plan, wanted.clone()), nodes(fate, pace));
            assert!(run.outcome.is_ok());
            run
        };
        let well = go(Fate::Well, rate);
        assert_eq!(well.counts.received_blocks, wanted.count(), "{delay_ns} ns, {rate} B/s");
        // What the whole segment takes without device 1.
        let decode = run(&plan, Speculative::new(Time(0), plan.clone()), nodes(Fate::Silent, rate)).ended_ns;
        for (fate, pace) in [(Fate::Silent, rate), (Fate::Well, rate / 1e4)] {
            let ended = go(fate, pace).ended_ns;
            // The round trip of the range's other part is seen before anything is judged.
            let most = 3 * (decode + well.ended_ns);
            assert!(ended <= most, "{delay_ns} ns, {rate} B/s, {fate:?}: {ended} of {most}");
        }
    }
}

fn plan_of(sources: Vec<Source>) -> ReadPlan {
    let rule = RequestRule::All;
    let (patience, round_trip) = (PATIENCE, None);
    let payload_bytes_max = crate::message::PAYLOAD_BYTES_MAX;
    ReadPlan {
        sources,
        originals: 1,
        extra_blocks: 0,
        block_bytes: BLOCK,
        rule,
        patience,
        round_trip,
        payload_bytes_max,
        decoding: None,
        races: true,
        waits: true,
        late: Late::default(),
    }
}
