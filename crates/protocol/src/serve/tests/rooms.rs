//! Room for what is held on devices that have little of it: segments whose data and parity lie across each other, messages that come in
//! any order but that of their stream.

use super::super::parity_log::{Admission, Overwrite, Overwrites, UpdateWindow, held_bytes};
use super::rng;
use crate::Time;
use rand_core::Rng;
use std::collections::{BTreeMap, VecDeque};

const DEVICES: usize = 3;
const SEGMENTS: usize = 4;
/// Data chunks of a segment, and parity chunks.
const K: usize = 2;
const M: usize = 2;
const GRANULE: u64 = 4096;
/// Three of the largest.
const ROOM: u64 = 12 * GRANULE + 2048;
const GRANULES_MAX: u64 = 4;
const UPDATES: u64 = 12;

fn record_length(granules: u64) -> usize {
    (24 + granules * (4 + GRANULE)) as usize
}

/// What `steadfast_disk` keeps of it.
#[derive(Default)]
struct Device {
    held: u64,
    reserved: u64,
    /// Parity chunks that found no room without a reservation.
    waiting: Vec<usize>,
}

impl Device {
    fn reserve(&mut self, least: u64, bytes: u64) -> u64 {
        let bytes = bytes.min(ROOM.saturating_sub(self.held + self.reserved));
        let kept = if bytes < least || !self.waiting.is_empty() { 0 } else { bytes };
        self.reserved += kept;
        kept
    }

    fn hold(&mut self, bytes: u64, reserved: u64) -> bool {
        let fits = self.held + self.reserved - reserved + bytes <= ROOM;
        if fits {
            self.held += bytes;
            self.reserved -= reserved;
        }
        fits
    }
}

#[derive(Clone, Copy)]
enum Push {
    Reserve { least: u64, bytes: u64 },
    GiveBack(u64),
    Difference { version: u64, bytes: u64 },
    Committed(u64),
}

#[derive(Clone, Copy)]
enum Event {
    Reserved(u64),
    Acked(u64),
}

struct Data {
    device: usize,
    window: UpdateWindow,
    granules: BTreeMap<u64, u64>,
    /// Bytes of what is not committed, by version.
    kept: BTreeMap<u64, u64>,
    acked: [u64; M],
    staged: u64,
    committed: u64,
}

struct Parity {
    device: usize,
    overwrites: Overwrites,
    held: VecDeque<(u64, u64)>,
    next: u64,
}

struct World {
    devices: Vec<Device>,
    /// By segment and chunk.
    data: Vec<Data>,
    parity: Vec<Parity>,
    /// By data chunk and parity chunk of its segment.
    pushes: Vec<[VecDeque<Push>; M]>,
    events: Vec<[VecDeque<Event>; M]>,
    now: Time,
}

impl World {
    fn new(draw: &mut impl FnMut(u64) -> u64, reserves: bool) -> Self {
        let mut device = || draw(DEVICES as u64) as usize;
        let data = (0..SEGMENTS * K).map(|_| {
            let mut window = UpdateWindow::new(Time(0), M as u16, []).with_seed(device() as u64 * 77 + 5);
            for parity in 0..M as u16 {
                window.connected(parity, 1 << 20);
                if reserves {
                    window.asks_in_place(parity);
                    window.answered(parity);
                }
            }
            let (granules, kept) = Default::default();
            Data { device: device(), window, granules, kept, acked: [0; M], staged: 0, committed: 0 }
        });
        let data = data.collect();
        let parity = (0..SEGMENTS * M).map(|_| Parity {
            device: device(),
            overwrites: Overwrites::new(if reserves { ROOM / 2 } else { u64::MAX }, []),
            held: VecDeque::new(),
            next: 1,
        });
        Self {
            parity: parity.collect(),
            data,
            devices: (0..DEVICES).map(|_| Device::default()).collect(),
            pushes: (0..SEGMENTS * K).map(|_| Default::default()).collect(),
            events: (0..SEGMENTS * K).map(|_| Default::default()).collect(),
            now: Time(0),
        }
    }

    fn admit(&mut self, number: usize) {
        let (data, pushes) = (&mut self.data[number], &mut self.pushes[number]);
        while let Some(admission) = data.window.poll() {
            match admission {
                Admission::Reserve { parity, least, bytes } => {
                    pushes[usize::from(parity)].push_back(Push::Reserve { least, bytes });
                }
                Admission::GiveBack { parity, bytes } => {
                    pushes[usize::from(parity)].push_back(Push::GiveBack(bytes));
                }
                Admission::Update { request } => {
                    let length = record_length(data.granules[&request]);
                    let bytes = held_bytes(length);
                    if !self.devices[data.device].hold(bytes, 0) {
                        data.window.again(request);
                        return;
                    }
                    data.staged += 1;
                    data.window.staged(request, data.staged, length);
                    data.kept.insert(data.staged, bytes);
                    for pushes in pushes.iter_mut() {
                        pushes.push_back(Push::Difference { version: data.staged, bytes });
                    }
                }
                Admission::TooLarge { .. } => panic!("it fits the window"),
            }
        }
    }

    fn push(&mut self, number: usize, to: usize, push: Push) {
        let (segment, chunk) = (number / K, (number % K) as u16);
        let parity = &mut self.parity[segment * M + to];
        let device = &mut self.devices[parity.device];
        match push {
            Push::Reserve { least, bytes } => {
                let bytes = parity.overwrites.reserve(chunk, least, bytes);
                let kept = if bytes == 0 { 0 } else { device.reserve(least, bytes) };
                parity.overwrites.give_back(chunk, bytes - kept);
                self.events[number][to].push_back(Event::Reserved(kept));
            }
            Push::GiveBack(bytes) => device.reserved -= parity.overwrites.give_back(chunk, bytes),
            Push::Difference { version, bytes } => {
                let reserved = false;
                parity.overwrites.ask(Overwrite { chunk, version, bytes, reply: 0, reserved });
            }
            Push::Committed(through) => {
                if let Some(last) = parity.overwrites.release(chunk, through) {
                    while let Some((_, bytes)) = parity.held.pop_front_if(|(number, _)| *number <= last) {
                        device.held -= bytes;
                    }
                }
            }
        }
        self.overwrite(segment * M + to);
    }

    fn overwrite(&mut self, number: usize) {
        let (segment, from) = (number / M, number % M);
        let parity = &mut self.parity[number];
        let device = &mut self.devices[parity.device];
        while let Some(Overwrite { chunk, version, bytes, reserved, .. }) = parity.overwrites.start() {
            device.waiting.retain(|waiting| *waiting != number);
            if device.hold(bytes, if reserved { bytes } else { 0 }) {
                parity.overwrites.placed(parity.next);
                parity.held.push_back((parity.next, bytes));
                parity.next += 1;
                self.events[segment * K + usize::from(chunk)][from].push_back(Event::Acked(version));
            } else {
                assert!(!reserved, "what was reserved is not there");
                parity.overwrites.not_placed();
                device.waiting.push(number);
            }
        }
    }

    fn event(&mut self, number: usize, from: usize, event: Event) {
        let data = &mut self.data[number];
        match event {
            Event::Reserved(bytes) => data.window.reserved(from as u16, bytes),
            Event::Acked(version) => data.acked[from] = version,
        }
        let committed = *data.acked.iter().min().expect("some");
        if committed > data.committed {
            data.committed = committed;
            let kept = data.kept.split_off(&(committed + 1));
            let released: u64 = std::mem::replace(&mut data.kept, kept).into_values().sum();
            self.devices[data.device].held -= released;
            data.window.released(committed);
            self.pushes[number].iter_mut().for_each(|pushes| pushes.push_back(Push::Committed(committed)));
        }
        self.admit(number);
    }

    /// Whether all updates were made, of so many steps at most.
    fn run(&mut self, draw: &mut impl FnMut(u64) -> u64) -> bool {
        for number in 0..self.data.len() {
            for request in 1..=UPDATES {
                let granules = 1 + draw(GRANULES_MAX);
                self.data[number].granules.insert(request, granules);
                self.data[number].window.ask(request, 0, granules * GRANULE);
            }
            self.admit(number);
        }
        for _ in 0..200_000 {
            if self.data.iter().all(|data| data.committed == UPDATES) {
                return true;
            }
            let (number, at) = (draw((SEGMENTS * K) as u64) as usize, draw(M as u64) as usize);
            match draw(16) {
                0 => {
                    self.tick(number);
                }
                1 => {
                    let parity = draw((SEGMENTS * M) as u64) as usize;
                    self.parity[parity].overwrites.again();
                    self.overwrite(parity);
                }
                2..=8 => {
                    if let Some(push) = self.pushes[number][at].pop_front() {
                        self.push(number, at, push);
                    }
                }
                _ => {
                    if let Some(event) = self.events[number][at].pop_front() {
                        self.event(number, at, event);
                    }
                }
            }
        }
        false
    }
}

impl World {
    /// Time passes for all, and a data chunk hears of it.
    fn tick(&mut self, number: usize) {
        self.now = self.now + core::time::Duration::from_millis(20);
        self.data[number].window.tick(self.now);
        self.admit(number);
    }
}

/// The world of a case, and whether all was made.
fn ran(case: u64, reserves: bool) -> (World, bool) {
    let mut random = rng(case);
    let mut draw = |bound: u64| random.next_u64() % bound;
    let mut world = World::new(&mut draw, reserves);
    let done = world.run(&mut draw);
    (world, done)
}

#[test]
fn all_updates_are_made_wherever_segments_lie_and_whatever_comes_late() {
    for case in 0..60 {
        let (mut world, done) = ran(case, true);
        assert!(done, "case {case}: some wait for each other");
        // What nobody needs any more is given back.
        for number in 0..world.data.len() {
            (0..40).for_each(|_| {
                for at in 0..M {
                    while let Some(push) = world.pushes[number][at].pop_front() {
                        world.push(number, at, push);
                    }
                    while let Some(event) = world.events[number][at].pop_front() {
                        world.event(number, at, event);
                    }
                }
                world.tick(number);
            });
        }
        for device in &world.devices {
            assert_eq!((device.held, device.reserved, device.waiting.len()), (0, 0, 0), "case {case}");
        }
    }
}

#[test]
fn without_reservations_they_wait_for_each_other() {
    let stuck = (0..10).filter(|&case| !ran(case, false).1).count();
    assert!(stuck > 0, "the world has room enough for all: it shows nothing");
}
