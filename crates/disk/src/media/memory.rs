//! A medium in anonymous memory: for tests and for measuring everything but the disk.

use std::{
    io::IoSlice,
    ops::Range,
    sync::{PoisonError, RwLock},
};

use super::{CounterCell, Counters, Medium, MediumError, check_range, check_span};

/// Memory; pages that were never written take none.
pub struct MemoryMedium {
    bytes: RwLock<Vec<u8>>,
    capacity: u64,
    counters: CounterCell,
}

impl MemoryMedium {
    /// A medium of `capacity` zero bytes.
    pub fn new(capacity: u64) -> MemoryMedium {
        MemoryMedium::from_image(vec![0; usize::try_from(capacity).expect("fits the address space")])
    }

    /// A medium with this content.
    pub fn from_image(image: Vec<u8>) -> MemoryMedium {
        MemoryMedium {
            capacity: image.len() as u64,
            bytes: RwLock::new(image),
            counters: CounterCell::default(),
        }
    }

    /// A copy of the content.
    pub fn image(&self) -> Vec<u8> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn zero(&self, range: Range<u64>) -> Result<(), MediumError> {
        check_span(&range, self.capacity)?;
        if !range.is_empty() {
            let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
            bytes[range.start as usize..range.end as usize].fill(0);
        }
        Ok(())
    }
}

impl Medium for MemoryMedium {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), MediumError> {
        check_range(offset, buf.len() as u64, self.capacity)?;
        self.counters.read(buf.len());
        let bytes = self.bytes.read().unwrap_or_else(PoisonError::into_inner);
        buf.copy_from_slice(&bytes[offset as usize..offset as usize + buf.len()]);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), MediumError> {
        self.write_vectored_at(offset, &[IoSlice::new(buf)])
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), MediumError> {
        let len = bufs.iter().map(|b| b.len()).sum::<usize>();
        check_range(offset, len as u64, self.capacity)?;
        self.counters.write(len);
        let mut bytes = self.bytes.write().unwrap_or_else(PoisonError::into_inner);
        let mut at = offset as usize;
        for buf in bufs {
            bytes[at..at + buf.len()].copy_from_slice(buf);
            at += buf.len();
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), MediumError> {
        self.counters.flush();
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

    fn counters(&self) -> Counters {
        self.counters.get()
    }

    fn describe(&self) -> String {
        format!("memory of {} bytes", self.capacity)
    }
}
