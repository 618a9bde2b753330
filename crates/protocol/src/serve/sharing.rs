//! What sharing costs a device: its throughput while n streams have requests at it, against that while one has, as
//! measured from the requests themselves (dissertation §5.4: "multiple simultaneous accesses to one disk usually get
//! much less total performance than exclusive access").
//!
//! Time counts while something is at the device, under the number of streams that have something there; bytes count
//! when they are done. Spans in which both kinds of access are at the device tell nothing about either and are left
//! out, as is the time of a device that has nothing to do.

use crate::{Time, message::Access};
use std::collections::BTreeMap;

/// Busy seconds after which an observation counts only 1/e. Picked by eye: sharing is a property of the device and
/// changes seldom, but a cell is filled only while just so many streams are there.
const MEMORY_S: f64 = 5.0;
/// Busy seconds below which a cell says nothing yet.
const KNOWN_S: f64 = 0.1;
/// Streams that the cells stand for: 1, 2, up to 4, up to 8, more.
const CELLS: usize = 5;
/// Sharing never costs more than all but this: beyond it a stall was measured, not sharing.
const LEFT_MIN: f64 = 0.05;

/// The meter of one device.
#[derive(Clone, Debug, Default)]
pub struct Sharing {
    /// Requests at the device, by stream.
    streams: BTreeMap<u64, u32>,
    /// Requests at the device that read, and that write.
    at_device: [u32; 2],
    since: Time,
    cells: [[Cell; CELLS]; 2],
}

#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    bytes: f64,
    seconds: f64,
}

impl Cell {
    fn bytes_per_s(&self) -> Option<f64> {
        (self.seconds >= KNOWN_S && self.bytes > 0.0).then(|| self.bytes / self.seconds)
    }
}

impl Sharing {
    /// A request of `stream` went to the device.
    pub fn started(&mut self, now: Time, stream: u64, access: Access) {
        self.pass(now);
        *self.streams.entry(stream).or_default() += 1;
        self.at_device[access as usize] += 1;
    }

    /// A request of `stream` came back from the device with `bytes` done; 0 when it failed or was withdrawn.
    ///
    /// # Panics
    /// When no such request is at the device: the driver's mistake.
    pub fn finished(&mut self, now: Time, stream: u64, access: Access, bytes: u64) {
        self.pass(now);
        if let Some((kind, cell)) = self.cell() {
            self.cells[kind][cell].bytes += bytes as f64;
        }
        let left = self.streams.get_mut(&stream).expect("a request that came back was at the device");
        *left -= 1;
        if *left == 0 {
            self.streams.remove(&stream);
        }
        self.at_device[access as usize] -= 1;
    }

    /// Streams that have requests at the device.
    pub fn streams(&self) -> usize {
        self.streams.len()
    }

    /// What is left of the throughput of one stream when 2, 4, 8 and 16 share the device, in parts per million: the
    /// lesser of reads and writes; 0 where it was not measured.
    pub fn left_ppm(&self) -> [u32; 4] {
        let mut left = [0; 4];
        for (position, left) in left.iter_mut().enumerate() {
            let of_kind =
                |cells: &[Cell; CELLS]| Some(cells[position + 1].bytes_per_s()? / cells[0].bytes_per_s()?);
            let least = self.cells.iter().filter_map(of_kind).reduce(f64::min);
            *left = least.map_or(0, |share| (share.clamp(LEFT_MIN, 1.0) * 1e6) as u32);
        }
        left
    }

    /// The cell that time and bytes count to now: by kind and by number of streams.
    fn cell(&self) -> Option<(usize, usize)> {
        let kind = match self.at_device {
            [1..=u32::MAX, 0] => 0,
            [0, 1..=u32::MAX] => 1,
            _ => return None,
        };
        let cell = self.streams.len().next_power_of_two().ilog2() as usize;
        Some((kind, cell.min(CELLS - 1)))
    }

    fn pass(&mut self, now: Time) {
        let span = now.since(self.since).as_secs_f64();
        self.since = self.since.max(now);
        if let Some((kind, cell)) = self.cell() {
            let cell = &mut self.cells[kind][cell];
            let keep = (-span / MEMORY_S).exp();
            cell.bytes *= keep;
            cell.seconds = cell.seconds * keep + span;
        }
    }
}
