//! What the store's parts cost when each does nothing else: the limit of processor time, taken in the same run.
//!
//! | access | processor seconds of |
//! |---|---|
//! | put | N/K x (one loopback socket, both ends; two checksums; direct writing) and encoding |
//! | get | one loopback socket, both ends; two checksums; direct reading |
//!
//! Two checksums: whoever sends a block makes one, and whoever receives it compares.

use super::real::STORED;
use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};
use std::time::Instant;
use steadfast_codes::rateless::{Code, Encoder, Kind};

/// Blocks of the object that is encoded to measure encoding, and their bytes: what an object of 64 MiB has.
const ENCODED_K: u32 = 1024;
const ENCODED_BLOCK: usize = 64 << 10;
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
pub(super) struct Started {
    wall: Instant,
    processor: f64,
}

impl Started {
    pub(super) fn now() -> Self {
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
    originals: Vec<u8>,
    coded: Vec<u8>,
}

impl Parts {
    pub(super) fn new(seed: u64) -> Result<Self> {
        let k = ENCODED_K as usize;
        let code = Code::new(Kind::Mix, ENCODED_K, seed).context("a code of an object of 64 MiB")?;
        let coded_blocks = (k as f64 * (STORED - 1.0)) as usize;
        // Touched here, so that no page is cleared while a clock runs.
        Ok(Self {
            code,
            originals: vec![0x5a; k * ENCODED_BLOCK],
            coded: vec![1; coded_blocks * ENCODED_BLOCK],
        })
    }

    /// Processor seconds per byte of object for a put, besides `socket` and `disk`.
    pub(super) fn put(&mut self, socket: Cost, disk: Cost) -> Result<f64> {
        let encoding = self.encode()?;
        Ok(STORED * (socket.cpu + 2.0 * self.checksum() + disk.cpu) + encoding)
    }

    /// Processor seconds per byte of object for a get, besides `socket` and `disk`; without `disk` what is in caches.
    pub(super) fn get(&self, socket: Cost, disk: Option<Cost>) -> f64 {
        socket.cpu + 2.0 * self.checksum() + disk.map_or(0.0, |disk| disk.cpu)
    }

    /// One pass.
    fn checksum(&self) -> f64 {
        let summed = &self.originals[..SUMMED_BYTES.min(self.originals.len())];
        let started = Started::now();
        std::hint::black_box(steadfast_disk::checksum::crc32c(summed));
        started.cost(summed.len() as u64).cpu
    }

    /// A whole object's coded blocks, per byte of its originals.
    fn encode(&mut self) -> Result<f64> {
        let originals: Vec<&[u8]> = self.originals.chunks_exact(ENCODED_BLOCK).collect();
        let mut coded: Vec<&mut [u8]> = self.coded.chunks_exact_mut(ENCODED_BLOCK).collect();
        let started = Started::now();
        Encoder::<Vec<u8>>::new(&self.code).encode_run(ENCODED_K, &originals, &mut coded)?;
        Ok(started.cost(self.originals.len() as u64).cpu)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_costs_more_than_a_get_and_every_part_counts() {
        let mut parts = Parts::new(1).unwrap();
        let (socket, disk) = (Cost { rate: 1e9, cpu: 2e-10 }, Cost { rate: 1e9, cpu: 7e-11 });
        let (warm, cold) = (parts.get(socket, None), parts.get(socket, Some(disk)));
        assert!(warm > socket.cpu && cold > disk.cpu + socket.cpu, "{warm} {cold}");
        assert!(parts.put(socket, disk).unwrap() > STORED * (socket.cpu + disk.cpu));
    }
}
