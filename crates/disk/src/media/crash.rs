//! A medium that remembers: every write, trim and flush in order, so that a test can build each image that
//! a power loss at each point may leave.
//!
//! The model: everything before the last flush that returned is there; of what came after it *any subset* may
//! be there, each write torn into 512-byte sectors that survive independently, later writes on top of earlier
//! ones. A trim counts as a write of zeros.

use std::{
    io::{self, IoSlice},
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{CounterCell, Counters, Medium, MediumError, check_range, check_span};

/// Writes are torn at this size.
pub const SECTOR_BYTES: usize = 512;

/// One thing that happened to the medium.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Bytes were written.
    Write {
        /// Where.
        offset: u64,
        /// What.
        data: Vec<u8>,
    },
    /// A range was zeroed by a trim or a preparation.
    Zero {
        /// Where.
        range: Range<u64>,
    },
    /// Everything before became durable.
    Flush,
}

impl Event {
    /// How many pieces of it can survive on their own.
    pub fn sectors(&self) -> usize {
        let (start, end) = self.span();
        if start == end { 0 } else { end.div_ceil(SECTOR_BYTES) - start / SECTOR_BYTES }
    }

    fn span(&self) -> (usize, usize) {
        match self {
            Event::Write { offset, data } => (*offset as usize, *offset as usize + data.len()),
            Event::Zero { range } => (range.start as usize, range.end as usize),
            Event::Flush => (0, 0),
        }
    }

    fn apply(&self, image: &mut [u8], mut survives: impl FnMut(usize) -> bool) {
        let (start, end) = self.span();
        for piece in 0..self.sectors() {
            if !survives(piece) {
                continue;
            }
            let sector = start / SECTOR_BYTES + piece;
            let from = (sector * SECTOR_BYTES).max(start);
            let to = ((sector + 1) * SECTOR_BYTES).min(end);
            match self {
                Event::Write { data, .. } => image[from..to].copy_from_slice(&data[from - start..to - start]),
                Event::Zero { .. } => image[from..to].fill(0),
                Event::Flush => {}
            }
        }
    }
}

struct State {
    base: Vec<u8>,
    now: Vec<u8>,
    events: Vec<Event>,
    failing_flushes: bool,
    failing_reads: bool,
    failing_writes: bool,
    positions: bool,
}

/// Memory with a log of all that changed it.
pub struct CrashMedium {
    state: Mutex<State>,
    capacity: u64,
    counters: CounterCell,
}

impl CrashMedium {
    /// A medium of zeros with an empty log.
    pub fn new(capacity: u64) -> CrashMedium {
        CrashMedium::from_image(vec![0; usize::try_from(capacity).expect("fits the address space")])
    }

    /// A medium whose durable content is `image`, with an empty log.
    pub fn from_image(image: Vec<u8>) -> CrashMedium {
        CrashMedium {
            capacity: image.len() as u64,
            state: Mutex::new(State {
                base: image.clone(),
                now: image,
                events: Vec::new(),
                failing_flushes: false,
                failing_reads: false,
                failing_writes: false,
                positions: true,
            }),
            counters: CounterCell::default(),
        }
    }

    /// What happened so far. A crash point is a number of events: `0..=events().len()`.
    pub fn events(&self) -> Vec<Event> {
        self.state().events.clone()
    }

    /// Number of events so far.
    pub fn len(&self) -> usize {
        self.state().events.len()
    }

    /// Whether nothing has happened yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The present content, as a reader sees it.
    pub fn image(&self) -> Vec<u8> {
        self.state().now.clone()
    }

    /// Lets every later flush fail (or succeed again).
    pub fn fail_flushes(&self, fail: bool) {
        self.state().failing_flushes = fail;
    }

    /// Lets every later read fail (or succeed again).
    pub fn fail_reads(&self, fail: bool) {
        self.state().failing_reads = fail;
    }

    /// Lets every later write fail (or succeed again).
    pub fn fail_writes(&self, fail: bool) {
        self.state().failing_writes = fail;
    }

    /// Whether it says that it positions; it does until told otherwise.
    pub fn set_positions(&self, positions: bool) {
        self.state().positions = positions;
    }

    /// The events of `0..at` that no flush has made durable, by number.
    pub fn unflushed(&self, at: usize) -> Range<usize> {
        let state = self.state();
        let flushed = state.events[..at].iter().rposition(|e| *e == Event::Flush).map_or(0, |f| f + 1);
        flushed..at
    }

    /// The image after a power loss that followed event `at - 1`: all that was flushed, and of the rest those
    /// sectors for which `survives(event, sector of the event)` holds.
    pub fn crash_image(&self, at: usize, mut survives: impl FnMut(usize, usize) -> bool) -> Vec<u8> {
        let unflushed = self.unflushed(at);
        let state = self.state();
        let mut image = state.base.clone();
        for (number, event) in state.events[..at].iter().enumerate() {
            let durable = number < unflushed.start;
            event.apply(&mut image, |sector| durable || survives(number, sector));
        }
        image
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(&self, event: Event) {
        let mut state = self.state();
        event.apply(&mut state.now, |_| true);
        state.events.push(event);
    }

    fn zero(&self, range: Range<u64>) -> Result<(), MediumError> {
        check_span(&range, self.capacity)?;
        if !range.is_empty() {
            self.push(Event::Zero { range });
        }
        Ok(())
    }
}

impl Medium for CrashMedium {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        check_range(offset, buf.len() as u64, self.capacity)?;
        if self.state().failing_reads {
            return Err(MediumError::Io { kind: io::ErrorKind::Other, offset });
        }
        self.counters.read(buf.len());
        buf.copy_from_slice(&self.state().now[offset as usize..offset as usize + buf.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        self.write_vectored_at(offset, &[IoSlice::new(buf)])
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        let data = bufs.iter().flat_map(|b| b.iter().copied()).collect::<Vec<u8>>();
        check_range(offset, data.len() as u64, self.capacity)?;
        if self.state().failing_writes {
            return Err(MediumError::Io { kind: io::ErrorKind::Other, offset });
        }
        self.counters.write(data.len());
        self.push(Event::Write { offset, data });
        Ok(())
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.counters.flush();
        if self.state().failing_flushes {
            return Err(MediumError::Io { kind: std::io::ErrorKind::Other, offset: 0 });
        }
        self.push(Event::Flush);
        Ok(())
    }

    fn allocate(&self, range: Range<u64>) -> Result<(), MediumError> {
        check_span(&range, self.capacity)
    }

    fn prepare(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.zero(range)
    }

    fn trim(&self, range: Range<u64>) -> Result<(), MediumError> {
        self.zero(range)
    }

    fn positions(&self) -> bool {
        self.state().positions
    }

    fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn describe(&self) -> String {
        format!("crash-image memory of {} bytes", self.capacity)
    }
}
