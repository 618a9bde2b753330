//! Reads of chunks against the model: drawn shapes, speeds and bad days.

use super::{
    super::*,
    model::{Fate, Node, Run, run, seed},
};
use crate::layout::ParityGeometry;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};

const BLOCK: u32 = 64 << 10;

/// What a decoder of rows says to the core: blocks beyond k of a row bring it no nearer.
struct ByRows<C> {
    core: C,
    shape: ParityGeometry,
    came: BTreeSet<BlockIndex>,
}

impl<C: ReadCore> ReadCore for ByRows<C> {
    fn handle(&mut self, now: Time, input: Input) {
        let input = match input {
            Input::Block { device, index, .. } => {
                self.came.insert(index);
                let held = |row: u32| {
                    self.came.iter().filter(|index| *index % self.shape.blocks == row).count() as u32
                };
                let rank: u32 = (0..self.shape.blocks).map(|row| held(row).min(self.shape.data)).sum();
                Input::Block { device, index, missing: self.shape.originals() - rank }
            }
            other => other,
        };
        self.core.handle(now, input);
    }

    fn poll(&mut self) -> Option<Action> {
        self.core.poll()
    }

    fn wake_at(&self) -> Option<Time> {
        self.core.wake_at()
    }

    fn counts(&self) -> ReadDone {
        self.core.counts()
    }
}

/// Device n holds chunk n, and is so fast, MB/s, and known for that, or for less or more where days are bad.
struct Case {
    shape: ParityGeometry,
    devices: Vec<(f64, Fate)>,
    known: Vec<f64>,
    /// These were late a moment ago, and so much caution was learned.
    late: Late,
    /// One way.
    delay_ns: u64,
}

impl Case {
    fn of(devices: [(f64, Fate); 6]) -> Self {
        let shape = ParityGeometry { chunks: 6, data: 4, blocks: 16, block_bytes: BLOCK };
        Self {
            shape,
            devices: devices.into(),
            known: vec![100.0; 6],
            late: Late::default(),
            delay_ns: 500_000,
        }
    }

    fn holds(&self, n: usize) -> IndexRanges {
        IndexRanges::from(self.shape.blocks_of(n as u32))
    }

    fn plan(&self, all: bool) -> ReadPlan {
        let source = |n: usize| Source {
            device: DeviceId(n as u128),
            blocks: self.holds(n),
            read_bytes_per_s: (self.known[n] * 1e6) as u64,
            queue_length: 0,
        };
        ReadPlan {
            sources: (0..self.devices.len()).map(source).collect(),
            originals: self.shape.originals(),
            extra_blocks: 0,
            block_bytes: BLOCK,
            rule: if all { RequestRule::All } else { RequestRule::ADAPTIVE },
            patience: PATIENCE,
            round_trip: Some(Duration::from_nanos(2 * self.delay_ns)),
            payload_bytes_max: crate::message::PAYLOAD_BYTES_MAX,
            decoding: None,
            races: true,
            waits: true,
            late: self.late.clone(),
        }
    }

    /// Reads all of it, or the first originals; as chunks, or by asking for everything.
    fn read(&self, wanted: u32, all: bool) -> Run {
        let plan = self.plan(all);
        let nodes: BTreeMap<u128, Node> = self
            .devices
            .iter()
            .enumerate()
            .map(|(n, (rate, fate))| (n as u128, Node::new(self.holds(n), rate * 1e6, self.delay_ns, *fate)))
            .collect();
        let (shape, came) = (self.shape, BTreeSet::new());
        if all {
            let core = Speculative::new(Time(0), plan.clone());
            return run(&plan, ByRows { core, shape, came }, nodes);
        }
        let wanted = IndexRanges::from(0..wanted);
        let core = Ranged::of_chunks(Time(0), plan.clone(), wanted, shape.data);
        run(&plan, ByRows { core, shape, came }, nodes)
    }

    fn draw(random: &mut Pcg64Mcg, bad: bool) -> Self {
        let (data, parity) = (2 + random.next_u32() % 5, 1 + random.next_u32() % 3);
        let shape = ParityGeometry {
            chunks: data + parity,
            data,
            blocks: 1 + random.next_u32() % 24,
            block_bytes: BLOCK,
        };
        let mut devices: Vec<(f64, Fate)> =
            (0..shape.chunks).map(|_| (1.0 + f64::from(random.next_u32() % 120), Fate::Well)).collect();
        for _ in 0..if bad { parity } else { 0 } {
            let fate = match random.next_u32() % 4 {
                0 => Fate::Silent,
                1 => Fate::CorruptsEvery(2 + random.next_u32() % 5),
                _ => Fate::FailsAfter(random.next_u32() % 12),
            };
            devices[(random.next_u32() % shape.chunks) as usize].1 = fate;
        }
        let known =
            |rate: f64| rate * if bad { [0.0, 0.3, 1.0, 3.0][random.next_u32() as usize % 4] } else { 1.0 };
        let known = devices.iter().map(|(rate, _)| *rate).map(known).collect();
        let mut late = Late::default();
        if bad {
            late.factor <<= random.next_u32() % 4;
            let some =
                (0..random.next_u32() % 4).map(|_| DeviceId((random.next_u32() % shape.chunks).into()));
            late.devices.extend(some);
        }
        Self { shape, devices, known, late, delay_ns: 500_000 }
    }
}

#[test]
fn as_many_bad_devices_as_there_is_parity_never_end_a_read() {
    let base = seed();
    for number in 0..400u64 {
        let mut random = Pcg64Mcg::new(u128::from(base.wrapping_add(number)) * 2 + 1);
        let case = Case::draw(&mut random, true);
        let wanted = 1 + random.next_u32() % case.shape.originals();
        for wanted in [wanted, case.shape.originals()] {
            let run = case.read(wanted, false);
            assert!(
                run.outcome.is_ok(),
                "case {number}, {wanted} of {:?}, {:?}: {:?}",
                case.shape,
                case.devices,
                run.outcome
            );
        }
    }
}

/// The same draws always: the bound is of these, not of the worst that there could be.
#[test]
fn slow_devices_cost_a_read_little_beside_asking_for_everything() {
    let base = 20_261_120u64;
    let mut worst: f64 = 0.0;
    for number in 0..400u64 {
        let mut random = Pcg64Mcg::new(u128::from(base.wrapping_add(number)) * 2 + 1);
        let case = Case::draw(&mut random, false);
        let (ours, all) = (case.read(case.shape.originals(), false), case.read(0, true));
        let ratio = ours.ended_ns as f64 / (all.ended_ns as f64 + 5e6);
        if ratio > worst {
            worst = ratio;
            println!(
                "case {number}: {ratio:.2}, {} of {} ms, {:?} known for {:?}",
                ours.ended_ns / 1_000_000,
                all.ended_ns / 1_000_000,
                case.devices,
                case.known
            );
        }
    }
    assert!(worst < 4.0, "{worst}");
}

/// Milliseconds, and what came beyond K.
fn took(devices: [(f64, Fate); 6]) -> (u64, u32) {
    took_over(500_000, devices)
}

fn took_over(delay_ns: u64, devices: [(f64, Fate); 6]) -> (u64, u32) {
    let case = Case { delay_ns, ..Case::of(devices) };
    let run = case.read(case.shape.originals(), false);
    assert!(run.outcome.is_ok(), "{:?}", run.outcome);
    (run.ended_ns / 1_000_000, run.counts.received_blocks - case.shape.originals())
}

/// 16 blocks of 64 KiB are 16 ms at 65 MB/s.
#[test]
fn two_slow_chunks_do_not_excuse_each_other_nor_a_dead_stand_in() {
    let (fast, slow, dead) = ((65.5, Fate::Well), (6.5, Fate::Well), (65.5, Fate::Silent));
    assert_eq!(took([fast; 6]), (17, 0));
    let (ms, beyond) = took([fast, fast, slow, slow, fast, fast]);
    assert!(ms < 80 && beyond <= 16, "{ms} {beyond}");
    // Over a longer way neither is silent for longer than an answer takes.
    let (ms, beyond) = took_over(5_000_000, [fast, fast, slow, (6.0, Fate::Well), fast, fast]);
    assert!(ms < 130 && beyond <= 24, "{ms} {beyond}");
    // A block of the third takes 66 ms, which says nothing of others.
    let (ms, beyond) = took([fast, fast, (1.0, Fate::Well), slow, fast, fast]);
    assert!(ms < 90 && beyond <= 16, "{ms} {beyond}");
    let (ms, beyond) = took([fast, fast, fast, slow, dead, fast]);
    assert!(ms < 110 && beyond <= 16, "{ms} {beyond}");
}

#[test]
fn a_row_that_nobody_can_give_any_more_is_told_soon() {
    let (well, breaks, corrupts) =
        ((65.5, Fate::Well), (65.5, Fate::FailsAfter(8)), (65.5, Fate::CorruptsEvery(1)));
    let run = Case::of([well, well, breaks, well, corrupts, corrupts]).read(64, false);
    let Err(error) = run.outcome else { panic!("nobody can give rows 8 to 15") };
    assert!(matches!(error, ReadError::NotEnough { .. }), "{error:?}");
    // A server that restarts is waited for: three seconds.
    assert!(run.ended_ns < 3_500_000_000, "told after {} ms", run.ended_ns / 1_000_000);
}

/// What other reads learn meanwhile counts at once: three data devices have sent all, the fourth a part, and then nothing.
#[test]
fn how_late_is_late_changes_while_a_read_goes_on() {
    let case = Case::of([(100.0, Fate::Well); 6]);
    let shape = case.shape;
    let asks = |core: &mut Ranged| {
        core::iter::from_fn(|| core.poll()).filter(|action| matches!(action, Action::Open { .. })).count() > 0
    };
    let begun = || {
        let mut core = Ranged::of_chunks(Time(0), case.plan(false), IndexRanges::from(0..64), shape.data);
        assert!(asks(&mut core));
        let (mut now, mut missing) = (Time(0), shape.originals());
        for row in 0..shape.blocks {
            for chunk in (0..4).filter(|&chunk| chunk < 3 || row < 4) {
                let (device, index) = (DeviceId(u128::from(chunk)), chunk * shape.blocks + row);
                (now, missing) = (now + Duration::from_micros(200), missing - 1);
                core.handle(now, Input::Slice { device, index, bytes: BLOCK });
                core.handle(now, Input::Block { device, index, missing });
            }
        }
        assert!(!asks(&mut core), "nobody is late yet");
        (core, now)
    };
    let (mut core, now) = begun();
    let at = core.wake_at().expect("silence makes it late");
    core.heed(now, 16);
    let later = core.wake_at().expect("in the end that does too");
    assert!(later.since(now) > 4 * at.since(now), "{at:?}, {later:?}");
    core.handle(at, Input::Tick);
    assert!(!asks(&mut core), "what it knew at the beginning counts no more");
    // Known again to be worth it: it has been silent for as long as that by now.
    core.heed(at, 2);
    assert!(asks(&mut core));
    let (mut core, now) = begun();
    core.heed(now, 2);
    core.handle(at, Input::Tick);
    assert!(asks(&mut core));
}
