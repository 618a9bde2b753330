//! Many readers of the same devices at once: the readers' cores and the storage servers' own ([`ReadStream`]) in one
//! model of devices that serve first come, first served, as `lab run requests` measures it on real processes.

use super::super::*;
use crate::serve::{ReadAction, ReadInput, ReadResult, ReadStream};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, VecDeque};

const BLOCK: u32 = 64 << 10;
/// Slices that a node keeps for a stream.
const SLICES: usize = 4;
/// K of the object that the other reader gets.
const SMALL: u32 = 64;

/// Names a stream: reader, device, how often the reader opened it.
type Key = (usize, u128, u32);

enum Event {
    /// A message reached the node.
    Opened(Key, Want, u32),
    Told(Key, ReadInput),
    /// The device has read a slice.
    Read(Key, u64),
    /// The reader hears.
    Slice(Key, BlockIndex),
    Ended(Key),
    Begin(usize),
}

struct Device {
    rate: f64,
    waiting: VecDeque<(Key, u64, BlockIndex)>,
    serving: bool,
    sent_blocks: u64,
}

struct Reader {
    core: Box<dyn ReadCore + Send>,
    plan: ReadPlan,
    /// Blocks that it has; of a code that needs `overhead` more than K.
    have: u32,
    overhead: u32,
    began: u64,
    took: Option<u64>,
    generations: BTreeMap<u128, u32>,
    /// Reads again as soon as it is done, while others do.
    again: bool,
    rounds: Vec<u64>,
}

/// What a crowd took.
struct Crowd {
    /// Milliseconds.
    latencies: Vec<f64>,
    others: Vec<f64>,
    /// Share of what was needed that devices sent beyond.
    vain: f64,
}

struct Scene {
    rates: Vec<f64>,
    expected: Vec<f64>,
    readers: usize,
    originals: u32,
    rule: RequestRule,
    /// One way.
    delay_ns: u64,
    seed: u64,
}

struct Model {
    now: u64,
    sequence: u64,
    events: BTreeMap<(u64, u64), Event>,
    devices: BTreeMap<u128, Device>,
    readers: Vec<Reader>,
    streams: BTreeMap<Key, (ReadStream, BTreeMap<u64, BlockIndex>)>,
    delay_ns: u64,
    rng: Pcg64Mcg,
}

fn plan(scene: &Scene, originals: u32, rule: RequestRule) -> ReadPlan {
    let devices = scene.rates.len() as u32;
    let holds = |n: u32| (0..2 * originals).filter(|index| index % devices == n).collect::<IndexRanges>();
    let source = |n: u32| Source {
        device: DeviceId(n.into()),
        blocks: holds(n),
        read_bytes_per_s: scene.expected[n as usize] as u64,
        queue_length: 0,
    };
    ReadPlan {
        sources: (0..devices).map(source).collect(),
        originals,
        extra_blocks: 2,
        block_bytes: BLOCK,
        rule,
        patience: Duration::from_secs(1000),
        round_trip: Some(Duration::from_nanos(2 * scene.delay_ns)),
        payload_bytes_max: crate::message::PAYLOAD_BYTES_MAX,
        // As of 32 MiB: a read that would rather have originals does not keep fast devices idle for them.
        decoding: Some(Decoding {
            alone: Duration::from_micros(2500),
            first: Duration::from_micros(2500),
            each: Duration::from_micros(13),
        }),
        races: true,
        waits: true,
        late: Late::default(),
    }
}

fn core(now: u64, plan: &ReadPlan) -> Box<dyn ReadCore + Send> {
    match plan.rule {
        RequestRule::Adaptive { .. } => Box::new(Adaptive::new(Time(now), plan.clone())),
        _ => Box::new(Speculative::new(Time(now), plan.clone())),
    }
}

impl Model {
    fn after(&mut self, span: u64, event: Event) {
        self.sequence += 1;
        self.events.insert((self.now + span, self.sequence), event);
    }

    fn begin(&mut self, reader: usize) {
        let now = self.now;
        let overhead = self.rng.next_u32() % 4;
        let one = &mut self.readers[reader];
        one.core = core(now, &one.plan);
        // What is still on its way to the read before is nobody's.
        one.generations.values_mut().for_each(|generation| *generation += 1);
        (one.began, one.have, one.overhead) = (now, 0, overhead);
        self.act(reader);
    }

    /// Carries out what a reader's core asks.
    fn act(&mut self, reader: usize) {
        while let Some(action) = self.readers[reader].core.poll() {
            let delay = self.delay_ns;
            let one = &mut self.readers[reader];
            let key = |one: &Reader, device: DeviceId| (reader, device.0, one.generations[&device.0]);
            match action {
                Action::Open { device, want, credit_bytes } => {
                    *one.generations.entry(device.0).or_default() += 1;
                    one.core.handle(Time(self.now), Input::Opened { device });
                    let key = key(one, device);
                    self.after(delay, Event::Opened(key, want, credit_bytes));
                }
                Action::Grant { device, bytes } => {
                    let key = key(one, device);
                    self.after(delay, Event::Told(key, ReadInput::Credit(bytes)));
                }
                Action::Finish { device } => {
                    let key = key(one, device);
                    self.after(delay, Event::Told(key, ReadInput::Finish));
                }
                Action::Cancel { device } => {
                    let key = key(one, device);
                    self.after(delay, Event::Told(key, ReadInput::Cancel));
                }
                Action::Done(_) => {
                    let took = self.now - one.began;
                    one.took = Some(took);
                    one.rounds.push(took);
                }
                Action::Failed(error) => panic!("{error}"),
            }
        }
        // When its last actions are on their way: its streams of before are forgotten, their names are other ones.
        let again = self.readers[reader].again && self.readers[reader].took.take().is_some();
        if again && self.readers.iter().any(|other| !other.again && other.took.is_none()) {
            self.after(1, Event::Begin(reader));
        }
    }

    fn step_stream(&mut self, key: Key) {
        loop {
            let Some((stream, slices)) = self.streams.get_mut(&key) else { return };
            let Some(action) = stream.poll() else { break };
            let delay = self.delay_ns;
            match action {
                ReadAction::Read { slice, index, .. } => {
                    slices.insert(slice, index);
                    self.devices.get_mut(&key.1).unwrap().waiting.push_back((key, slice, index));
                }
                ReadAction::Send { slice, index, .. } => {
                    stream.handle(Time(self.now), ReadInput::Sent { slice });
                    self.devices.get_mut(&key.1).unwrap().sent_blocks += 1;
                    self.after(delay, Event::Slice(key, index));
                }
                ReadAction::Discard { .. } => {}
                ReadAction::Withdraw => {
                    let waiting = &mut self.devices.get_mut(&key.1).unwrap().waiting;
                    let withdrawn: Vec<u64> =
                        waiting.iter().filter(|(of, ..)| *of == key).map(|&(_, slice, _)| slice).collect();
                    waiting.retain(|(of, ..)| *of != key);
                    for slice in withdrawn {
                        let input = ReadInput::ReadDone { slice, result: ReadResult::Withdrawn };
                        stream.handle(Time(self.now), input);
                    }
                }
                ReadAction::End(_) => {
                    self.after(delay, Event::Ended(key));
                    self.streams.remove(&key);
                }
                ReadAction::Fail(fault) => panic!("{fault:?}"),
            }
        }
        self.serve(key.1);
    }

    fn serve(&mut self, id: u128) {
        let device = self.devices.get_mut(&id).unwrap();
        if device.serving {
            return;
        }
        if let Some((key, slice, _)) = device.waiting.pop_front() {
            device.serving = true;
            // Service times of real devices are not all the same.
            let jitter = 0.9 + 0.2 * f64::from(self.rng.next_u32()) / f64::from(u32::MAX);
            let span = (f64::from(BLOCK) / device.rate * 1e9 * jitter) as u64;
            self.after(span, Event::Read(key, slice));
        }
    }

    fn is_current(&self, key: Key) -> bool {
        self.readers[key.0].generations.get(&key.1) == Some(&key.2)
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Begin(reader) => self.begin(reader),
            Event::Opened(key, want, credit) => {
                let holds = self.readers[key.0].plan.sources[key.1 as usize].blocks.clone();
                let blocks = match want {
                    Want::All => holds,
                    Want::Blocks(blocks) => blocks,
                };
                let stream = ReadStream::new(blocks.iter().collect(), BLOCK, BLOCK, SLICES, credit);
                self.streams.insert(key, (stream, BTreeMap::new()));
                self.step_stream(key);
            }
            Event::Told(key, input) => {
                if let Some((stream, _)) = self.streams.get_mut(&key) {
                    stream.handle(Time(self.now), input);
                    self.step_stream(key);
                }
            }
            Event::Read(key, slice) => {
                self.devices.get_mut(&key.1).unwrap().serving = false;
                if let Some((stream, _)) = self.streams.get_mut(&key) {
                    let input = ReadInput::ReadDone { slice, result: ReadResult::Good };
                    stream.handle(Time(self.now), input);
                    self.step_stream(key);
                }
                self.serve(key.1);
            }
            Event::Slice(key, index) => {
                if !self.is_current(key) {
                    return;
                }
                let (now, device) = (Time(self.now), DeviceId(key.1));
                let one = &mut self.readers[key.0];
                one.have += 1;
                // The last few before the end bring nothing.
                let (k, overhead) = (one.plan.originals, one.overhead);
                let missing = match one.have {
                    have if have < k => k - have,
                    have => u32::from(have < k + overhead),
                };
                let missing = missing.max(u32::from(one.have < k + overhead));
                one.core.handle(now, Input::Slice { device, index, bytes: BLOCK });
                one.core.handle(now, Input::Block { device, index, missing });
                self.act(key.0);
            }
            Event::Ended(key) => {
                if self.is_current(key) {
                    let input = Input::Ended { device: DeviceId(key.1) };
                    self.readers[key.0].core.handle(Time(self.now), input);
                    self.act(key.0);
                }
            }
        }
    }

    fn run(&mut self) {
        for reader in 0..self.readers.len() {
            self.begin(reader);
        }
        loop {
            let wakes = self.readers.iter().enumerate();
            let wake = wakes.filter_map(|(reader, one)| Some((one.core.wake_at()?.0, reader))).min();
            let next = self.events.keys().next().map(|key| key.0);
            match (next, wake) {
                (None, None) => return,
                (next, Some((at, reader))) if next.is_none_or(|next| at < next) => {
                    self.now = self.now.max(at);
                    self.readers[reader].core.handle(Time(self.now), Input::Tick);
                    self.act(reader);
                }
                _ => {
                    let ((at, _), event) = self.events.pop_first().unwrap();
                    self.now = at;
                    self.handle(event);
                }
            }
        }
    }
}

fn run(scene: &Scene) -> Crowd {
    let holds = plan(scene, scene.originals, scene.rule);
    let devices = holds.sources.iter().zip(&scene.rates).map(|(source, &rate)| {
        (source.device.0, Device { rate, waiting: VecDeque::new(), serving: false, sent_blocks: 0 })
    });
    let reader = |plan: ReadPlan, again: bool| Reader {
        core: core(0, &plan),
        plan,
        have: 0,
        overhead: 0,
        began: 0,
        took: None,
        generations: BTreeMap::new(),
        again,
        rounds: Vec::new(),
    };
    let mut readers: Vec<Reader> = (0..scene.readers).map(|_| reader(holds.clone(), false)).collect();
    // One more gets a small object again and again, asking for its K.
    readers.push(reader(plan(scene, SMALL, RequestRule::KPlus(0)), true));
    let mut model = Model {
        now: 0,
        sequence: 0,
        events: BTreeMap::new(),
        devices: devices.collect(),
        readers,
        streams: BTreeMap::new(),
        delay_ns: scene.delay_ns,
        rng: Pcg64Mcg::new(scene.seed.into()),
    };
    model.run();
    let millis = |rounds: &[u64]| rounds.iter().map(|&took| took as f64 / 1e6).collect::<Vec<f64>>();
    let (others, readers): (Vec<&Reader>, Vec<&Reader>) = model.readers.iter().partition(|one| one.again);
    let needed: f64 =
        model.readers.iter().map(|one| (one.rounds.len() as u32 * (one.plan.originals)) as f64).sum();
    let sent: u64 = model.devices.values().map(|device| device.sent_blocks).sum();
    Crowd {
        latencies: readers.iter().flat_map(|one| millis(&one.rounds)).collect(),
        others: others.iter().flat_map(|one| millis(&one.rounds)).collect(),
        vain: sent as f64 / needed - 1.0,
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn deviation(values: &[f64]) -> f64 {
    let middle = mean(values);
    mean(&values.iter().map(|value| (value - middle).powi(2)).collect::<Vec<f64>>()).sqrt()
}

/// What one rule gave in all rounds of a case.
#[derive(Default)]
struct Seen {
    latencies: Vec<f64>,
    others: Vec<f64>,
    vain: Vec<f64>,
}

impl Seen {
    fn last(&self) -> f64 {
        self.latencies.iter().copied().fold(0.0, f64::max)
    }
}

/// Sixteen readers are served fairly when they end together: no reader later than the last of those that ask for all,
/// whose mean is lower only where some of them happen to be served before the others, which their spread shows.
#[test]
fn many_readers_end_together_and_no_later_than_when_all_ask_for_all() {
    const RATES: [f64; 8] = [8e6, 12e6, 16e6, 20e6, 25e6, 30e6, 36e6, 45e6];
    for delay_ns in [500_000, 50_000_000] {
        for readers in [1usize, 4, 16] {
            let mut seen: [Seen; 2] = Default::default();
            for seed in 0..8u64 {
                for (rule, seen) in [RequestRule::All, RequestRule::ADAPTIVE].into_iter().zip(&mut seen) {
                    let turned = |by: u64| (0..8).map(|n| RATES[((n + 3 * by) % 8) as usize]).collect();
                    let (rates, expected) = (turned(seed), turned(seed + 1));
                    let originals = 512;
                    let crowd = run(&Scene { rates, expected, readers, originals, rule, delay_ns, seed });
                    seen.latencies.extend(crowd.latencies);
                    seen.others.extend(crowd.others);
                    seen.vain.push(crowd.vain);
                }
            }
            let case = format!("{} ms, {readers} readers", 2 * delay_ns / 1_000_000);
            for (name, seen) in ["all", "adaptive"].iter().zip(&seen) {
                println!(
                    "{case}, {name}: {:.0} ms, s.d. {:.0}, last {:.0}; others {:.0} ms; {:.4} in vain",
                    mean(&seen.latencies),
                    deviation(&seen.latencies),
                    seen.last(),
                    mean(&seen.others),
                    mean(&seen.vain),
                );
            }
            let [all, adaptive] = seen;
            assert!(adaptive.last() <= 1.03 * all.last(), "{case}");
            if delay_ns < 1_000_000 {
                assert!(deviation(&adaptive.latencies) < deviation(&all.latencies), "{case}");
                assert!(mean(&adaptive.latencies) <= 1.07 * mean(&all.latencies), "{case}");
            } else {
                // Where a grant travels long, windows of "all" leave devices idle.
                assert!(mean(&adaptive.latencies) <= 1.03 * mean(&all.latencies), "{case}");
            }
            // What the small reads waste, which ask for K and for more when they are late, is the same in both.
            let most = if readers == 1 { 0.07 } else { 0.01 };
            assert!(mean(&adaptive.vain) <= mean(&all.vain) + most, "{case}");
        }
    }
}
