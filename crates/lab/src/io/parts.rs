//! What the store's parts cost when each does nothing else: the limit of processor time, taken in the same run.
//!
//! | access | processor seconds of |
//! |---|---|
//! | put | N/K x (one loopback socket, both ends; two checksums; direct writing) and encoding |
//! | get | one loopback socket, both ends; two checksums; direct reading |
//!
//! Two checksums: whoever sends a block makes one, and whoever receives it compares.
//!
//! Decoding is no part of a get: all originals are stored, and who gets those alone decodes nothing. A get of devices that all answer
//! takes coded blocks by its own choice, where they are sooner; what that costs is what it takes beyond its parts.

use super::{Measured, real::STORED};
use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;
use steadfast_codes::rateless::Code;
use steadfast_protocol::{plan, policy::Policy};

/// Bytes of the object whose first segment is encoded to measure encoding.
const ENCODED_BYTES: u64 = 64 << 20;
/// Bytes summed to measure checksums: more than caches hold.
const SUMMED_BYTES: usize = 64 << 20;

/// What something took, all threads of this process together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Bytes per second.
    pub(super) rate: f64,
    /// Processor seconds per byte.
    pub(super) cpu: f64,
}

/// A clock of this process, wall and processor.
pub(super) struct Stopwatch {
    wall: Instant,
    processor: f64,
}

impl Stopwatch {
    pub(super) fn start() -> Self {
        Self { wall: Instant::now(), processor: process_seconds() }
    }

    /// `bytes` since then.
    pub(super) fn cost(&self, bytes: u64) -> Cost {
        let bytes = bytes as f64;
        Cost {
            rate: bytes / self.wall.elapsed().as_secs_f64(),
            cpu: (process_seconds() - self.processor) / bytes,
        }
    }
}

/// Processor seconds that this process has taken so far.
pub(super) fn process_seconds() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The parts that need no files and no sockets, with their memory.
pub(super) struct Parts {
    code: Code,
    block_bytes: usize,
    originals: Vec<u8>,
    coded: Vec<u8>,
}

impl Parts {
    pub(super) fn new(measured: Measured, seed: u64) -> Result<Self> {
        let policy: Policy = measured.policy().parse()?;
        let segment_bytes = steadfast_client::Options::default().segment_bytes;
        let segments = plan::segments_of(segment_bytes, ENCODED_BYTES, &policy);
        let segment = segments.first().context("an object of 64 MiB has segments")?;
        let (_, code) = segment.code(seed, STORED - 1.0).context("the code of an object of 64 MiB")?;
        let (k, block_bytes) = (code.k() as usize, segment.geometry.block_bytes as usize);
        let coded_blocks = (k as f64 * (STORED - 1.0)) as usize;
        // Touched here, so that no page is cleared while a clock runs.
        Ok(Self {
            code,
            block_bytes,
            originals: vec![0x5a; k * block_bytes],
            coded: vec![1; coded_blocks * block_bytes],
        })
    }

    /// Processor seconds per byte of object for a put, besides `socket` and `disk`; without `disk` what no disk writes.
    pub(super) fn put(&mut self, socket: Cost, disk: Option<Cost>) -> Result<f64> {
        let encoding = self.encode()?;
        Ok(of_put(socket.cpu, self.checksum(), disk.map_or(0.0, |disk| disk.cpu), encoding))
    }

    /// Processor seconds per byte of object for a get, besides `socket` and `disk`; without `disk` what is in caches.
    pub(super) fn get(&self, socket: Cost, disk: Option<Cost>) -> f64 {
        of_get(socket.cpu, self.checksum(), disk.map_or(0.0, |disk| disk.cpu))
    }

    /// One pass.
    fn checksum(&self) -> f64 {
        let summed = &self.originals[..SUMMED_BYTES.min(self.originals.len())];
        let watch = Stopwatch::start();
        std::hint::black_box(steadfast_disk::checksum::crc32c(summed));
        watch.cost(summed.len() as u64).cpu
    }

    /// A whole segment's coded blocks, per byte of its originals.
    fn encode(&mut self) -> Result<f64> {
        let originals: Vec<&[u8]> = self.originals.chunks_exact(self.block_bytes).collect();
        let mut coded: Vec<&mut [u8]> = self.coded.chunks_exact_mut(self.block_bytes).collect();
        let watch = Stopwatch::start();
        self.code.encoder().encode_run(self.code.k(), &originals, &mut coded)?;
        Ok(watch.cost(self.originals.len() as u64).cpu)
    }
}

fn of_put(socket: f64, checksum: f64, disk: f64, encoding: f64) -> f64 {
    STORED * of_get(socket, checksum, disk) + encoding
}

fn of_get(socket: f64, checksum: f64, disk: f64) -> f64 {
    socket + 2.0 * checksum + disk
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parts of another machine, in s/GB: 0.21, 0.03 a pass, 0.07 and 0.1 make about 0.6 and 0.35.
    #[test]
    fn every_part_counts() {
        let near = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(near(of_get(0.21, 0.03, 0.07), 0.34) && near(of_put(0.21, 0.03, 0.07, 0.1), 0.61));
    }

    #[test]
    fn what_is_measured_here_takes_time() {
        for measured in [Measured::Rateless, Measured::Parity] {
            let mut parts = Parts::new(measured, 1).unwrap();
            // The least of some: each may be slow where the machine does other things.
            let sums = [(); 5].map(|()| parts.checksum());
            assert!(sums.iter().all(|&sum| sum > 0.0));
            assert!(parts.encode().unwrap() > sums.into_iter().fold(f64::MAX, f64::min));
            assert!(
                parts.coded.len() * 2 == parts.originals.len(),
                "D = 0.5 and (6, 4) store half as much again"
            );
        }
    }
}
