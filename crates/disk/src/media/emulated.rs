//! A medium that behaves like a slower, stalled, faulty or full one.
//!
//! It wraps any medium, does the real I/O, and then holds the calling thread until the model's *absolute* time:
//! an operation starts when it was queued or when the one before ended, whichever is later (the busy
//! horizon), and ends a model's duration after that. So the time that the real I/O, a flush or a late wake-up
//! took is hidden inside the model's time instead of being added to it. An operation whose real I/O ends
//! after its model time is an overrun; overruns are counted, and more than 1 % of them make a measurement void.
//!
//! A spec with a drive asks [`crate::model::Drive`], the very code that simulations use, when an operation ends;
//! its time 0 is the moment the model was drawn.
//!
//! Flush, allocate, prepare and trim take no model time (a stalled or failing model still stops a flush).
//! [`EmulationControl`] redraws the model at run time: that wakes a sleeping or stalled operation at
//! once and resets the horizon. Nothing above can tell the difference: it is a [`Medium`].

use std::{
    io::{self, IoSlice},
    ops::Range,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;

use super::{Counters, EmulationSpec, Medium, MediumError};
use crate::model::Drive;

/// How well the emulation kept its times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EmulationReport {
    /// Operations that had a model time.
    pub operations: u64,
    /// Those whose real I/O ended after it.
    pub overruns: u64,
}

struct State {
    spec: EmulationSpec,
    /// Grows with every redraw; a waiting operation that sees it change stops waiting.
    generation: u64,
    random: Pcg64,
    /// When the model's disk becomes idle.
    horizon: Option<Instant>,
    /// When the request served next entered its queue.
    queued_at: Option<Instant>,
    /// Where the last operation ended: continuing there needs no positioning.
    head: u64,
    /// The modelled disk, where there is one, and when its clock stood at 0.
    drive: Option<(Drive, Instant)>,
    report: EmulationReport,
    /// Operations that sleep or stall now.
    waiting: usize,
}

struct Shared {
    state: Mutex<State>,
    redrawn: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the model of an [`EmulatedMedium`] while it is used. Cheap to clone.
#[derive(Clone)]
pub struct EmulationControl(Arc<Shared>);

impl EmulationControl {
    /// Puts a new model in place, wakes whatever sleeps or stalls under the old one, and forgets its horizon.
    pub fn redraw(&self, spec: EmulationSpec) {
        let mut state = self.0.state();
        state.spec = spec;
        state.random = Pcg64::seed_from_u64(spec.seed);
        state.generation += 1;
        state.horizon = None;
        state.drive = at_rest(&spec);
        state.queued_at = None;
        state.report = EmulationReport::default();
        self.0.redrawn.notify_all();
    }

    /// The model in force.
    pub fn spec(&self) -> EmulationSpec {
        self.0.state().spec
    }

    /// How well the model in force was kept since it was drawn.
    pub fn report(&self) -> EmulationReport {
        self.0.state().report
    }

    /// How many operations sleep or stall under the model now.
    pub fn waiting(&self) -> usize {
        self.0.state().waiting
    }
}

/// Any medium, under a model.
pub struct EmulatedMedium<M: ?Sized> {
    shared: Arc<Shared>,
    below: Arc<M>,
}

#[derive(Clone, Copy)]
enum Direction {
    Read,
    Write,
}

impl<M: Medium + ?Sized> EmulatedMedium<M> {
    /// Puts `below` under the model `spec`.
    pub fn new(below: Arc<M>, spec: EmulationSpec) -> EmulatedMedium<M> {
        let state = State {
            spec,
            generation: 0,
            random: Pcg64::seed_from_u64(spec.seed),
            horizon: None,
            queued_at: None,
            head: 0,
            drive: at_rest(&spec),
            report: EmulationReport::default(),
            waiting: 0,
        };
        EmulatedMedium {
            shared: Arc::new(Shared { state: Mutex::new(state), redrawn: Condvar::new() }),
            below,
        }
    }

    /// The handle that redraws the model.
    pub fn control(&self) -> EmulationControl {
        EmulationControl(self.shared.clone())
    }

    /// Waits while the model stalls, then lets it fail the operation where it wants to.
    fn enter(&self, offset: u64) -> Result<MutexGuard<'_, State>, MediumError> {
        let mut state = self.shared.state();
        while state.spec.stalled {
            state.waiting += 1;
            state = self.shared.redrawn.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
        if state.spec.error_rate > 0.0 && unit(&mut state.random) < state.spec.error_rate {
            return Err(MediumError::Io { kind: io::ErrorKind::Other, offset });
        }
        Ok(state)
    }

    fn timed(
        &self,
        direction: Direction,
        offset: u64,
        len: usize,
        real: impl FnOnce() -> Result<(), MediumError>,
    ) -> Result<(), MediumError> {
        let mut state = self.enter(offset)?;
        let generation = state.generation;
        let queued_at = state.queued_at.take();
        let deadline = state.spec.has_timing().then(|| {
            let now = Instant::now();
            let arrived = queued_at.map_or(now, |at| at.min(now));
            if let Some((drive, zero)) = &mut state.drive {
                let write = matches!(direction, Direction::Write);
                let arrived_ns = arrived.saturating_duration_since(*zero).as_nanos() as u64;
                let end_ns = drive.transfer(arrived_ns, offset, len as u64, write);
                return *zero + Duration::from_nanos(end_ns.min(arrived_ns.saturating_add(DAY_NS)));
            }
            let duration = state.duration(direction, offset, len);
            let start = state.horizon.map_or(arrived, |h| h.max(arrived));
            let end = start + duration;
            state.horizon = Some(end);
            end
        });
        state.head = offset.saturating_add(len as u64);
        drop(state);

        let outcome = real();

        let Some(deadline) = deadline else { return outcome };
        let mut state = self.shared.state();
        if state.generation != generation {
            return outcome;
        }
        let mut now = Instant::now();
        state.report.operations += 1;
        if now > deadline {
            state.report.overruns += 1;
        }
        while now < deadline && state.generation == generation {
            let wait = deadline - now;
            state.waiting += 1;
            state = self.shared.redrawn.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
            state.waiting -= 1;
            now = Instant::now();
        }
        outcome
    }
}

impl State {
    fn duration(&mut self, direction: Direction, offset: u64, len: usize) -> Duration {
        let rate = match direction {
            Direction::Read => self.spec.read_bytes_per_s,
            Direction::Write => self.spec.write_bytes_per_s,
        };
        let mut seconds = rate.map_or(0.0, |rate| len as f64 / rate);
        if offset != self.head {
            seconds += self.spec.latency_ns as f64 * 1e-9;
        }
        if self.spec.jitter > 0.0 {
            seconds *= 1.0 + self.spec.jitter * (2.0 * unit(&mut self.random) - 1.0);
        }
        Duration::from_secs_f64(seconds.clamp(0.0, DAY_NS as f64 * 1e-9))
    }
}

/// [`Medium::positions`]: a latency counts that is longer than it takes to pass over so many bytes.
const PASSED_BYTES: f64 = (128 << 10) as f64;
/// And than any of flash.
const DEAR_NS: u64 = 1_000_000;

/// Longer than a day takes no operation: beyond any use, and far from overflowing an instant.
const DAY_NS: u64 = 86_400_000_000_000;

/// The spec's drive, its clock at 0 now.
fn at_rest(spec: &EmulationSpec) -> Option<(Drive, Instant)> {
    spec.drive.map(|drive| (drive.drive(), Instant::now()))
}

/// Evenly from 0 (included) to 1 (excluded).
fn unit(random: &mut Pcg64) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

impl<M: Medium + ?Sized> Medium for EmulatedMedium<M> {
    fn capacity(&self) -> u64 {
        self.below.capacity()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.timed(Direction::Read, offset, buf.len(), || self.below.read_at(offset, buf))
    }

    fn probe(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        self.timed(Direction::Read, offset, buf.len(), || self.below.probe(offset, buf))
    }

    /// Of what is below: the time that is modelled is that of operations, however soon it has them.
    fn prefetch(&self, range: Range<u64>) {
        self.below.prefetch(range);
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        self.timed(Direction::Write, offset, buf.len(), || self.below.write_at(offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        let len = bufs.iter().map(|b| b.len()).sum();
        self.timed(Direction::Write, offset, len, || self.below.write_vectored_at(offset, bufs))
    }

    fn flush(&self) -> Result<(), MediumError> {
        drop(self.enter(0)?);
        self.below.flush()
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), MediumError> {
        if self.shared.state().spec.full {
            return Err(MediumError::Full);
        }
        self.below.allocate(range)
    }

    fn guarantee(&self, range: Range<u64>) -> Result<(), MediumError> {
        if self.shared.state().spec.full {
            return Err(MediumError::Full);
        }
        self.below.guarantee(range)
    }

    fn fill_holes(&self, range: Range<u64>) -> Result<u64, MediumError> {
        self.below.fill_holes(range)
    }

    fn prepare(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.below.prepare(range)
    }

    fn trim(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.below.trim(range)
    }

    fn positions(&self) -> bool {
        let spec = self.shared.state().spec;
        if let Some(rotational) = spec.rotational {
            return rotational;
        }
        if !spec.has_timing() {
            return self.below.positions();
        }
        let passing_s = spec.read_bytes_per_s.map_or(0.0, |rate| PASSED_BYTES / rate);
        spec.drive.is_some() || spec.latency_ns as f64 * 1e-9 > passing_s && spec.latency_ns >= DEAR_NS
    }

    fn counters(&self) -> Counters {
        self.below.counters()
    }

    fn describe(&self) -> String {
        self.below.describe()
    }

    fn note_queued(&self, at: Instant) {
        self.shared.state().queued_at = Some(at);
    }
}
