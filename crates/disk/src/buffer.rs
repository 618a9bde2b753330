//! Page-aligned buffers: what direct I/O needs, handed on as [`Bytes`] without a copy.
//!
//! A fresh page of a virtual machine's memory costs far more than the copy it saves (about 0.5 GB/s at the
//! first touch), so a [`BufferPool`] keeps buffers that were given back: the one inside a [`Bytes`] comes home
//! when the last clone is dropped.

use std::{
    alloc::{self, Layout},
    fmt,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use bytes::Bytes;

/// Alignment of every buffer: a page, which satisfies every direct-I/O device in use.
pub const ALIGNMENT: usize = 4096;

/// The bare allocation: `capacity` bytes at [`ALIGNMENT`], always initialised.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: `Memory` owns its allocation alone, and plain bytes may be used from any thread.
unsafe impl Send for Memory {}
// SAFETY: shared access only ever reads the bytes.
unsafe impl Sync for Memory {}

impl Memory {
    fn zeroed(capacity: usize) -> Memory {
        let capacity = capacity.max(1).next_multiple_of(ALIGNMENT);
        let layout = Self::layout(capacity);
        // SAFETY: the layout has a size of at least `ALIGNMENT`, so it is not zero.
        let start = unsafe { alloc::alloc_zeroed(layout) };
        match NonNull::new(start) {
            Some(start) => Memory { start, capacity },
            None => alloc::handle_alloc_error(layout),
        }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, ALIGNMENT).expect("a buffer is far smaller than the address space")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout, and dropped once.
        unsafe { alloc::dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
    }
}

/// A heap buffer aligned to [`ALIGNMENT`]; zeroed when it is made, not when it comes from a pool.
pub struct AlignedBuf {
    /// `None` only while it is being dropped.
    memory: Option<Memory>,
    len: usize,
    home: Weak<PoolInner>,
}

impl AlignedBuf {
    /// A zeroed buffer of `len` bytes that belongs to no pool.
    pub fn zeroed(len: usize) -> AlignedBuf {
        AlignedBuf { memory: Some(Memory::zeroed(len)), len, home: Weak::new() }
    }

    /// Bytes it could hold without a new allocation.
    pub fn capacity(&self) -> usize {
        self.memory().capacity
    }

    /// Changes the length; where it must, takes a larger allocation (losing the content), from the pool that it belongs
    /// to. What lies between the old and the new length is unspecified, though always initialised.
    pub fn resize(&mut self, len: usize) {
        if len > self.capacity() {
            let pool = self.home.upgrade();
            let larger = pool.as_ref().map_or_else(|| Memory::zeroed(len), |pool| pool.get(len));
            if let (Some(pool), Some(smaller)) = (pool, self.memory.replace(larger)) {
                pool.put(smaller);
            }
        }
        self.len = len;
    }

    /// Cuts the buffer to its first `len` bytes; longer than it is changes nothing.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }

    /// Hands the buffer on without a copy; its memory returns to the pool with the last clone.
    pub fn into_bytes(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn memory(&self) -> &Memory {
        self.memory.as_ref().expect("present until dropped")
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the allocation is initialised, holds at least `len` bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.memory().start.as_ptr(), self.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.memory().start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for AlignedBuf {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for AlignedBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AlignedBuf").field("len", &self.len).field("capacity", &self.capacity()).finish()
    }
}

impl From<AlignedBuf> for Bytes {
    fn from(buf: AlignedBuf) -> Bytes {
        buf.into_bytes()
    }
}

impl Drop for AlignedBuf {
    fn drop(&mut self) {
        if let (Some(pool), Some(memory)) = (self.home.upgrade(), self.memory.take()) {
            pool.put(memory);
        }
    }
}

struct PoolInner {
    idle: Mutex<Idle>,
    idle_bytes_max: usize,
}

#[derive(Default)]
struct Idle {
    buffers: Vec<Memory>,
    bytes: usize,
}

impl PoolInner {
    fn get(&self, len: usize) -> Memory {
        let found = {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            // The one given back last is the warmest; one much larger than needed is left for others.
            let fits = |m: &Memory| m.capacity >= len && m.capacity <= len.max(ALIGNMENT) * 4;
            idle.buffers.iter().rposition(fits).map(|at| {
                let memory = idle.buffers.swap_remove(at);
                idle.bytes -= memory.capacity;
                memory
            })
        };
        found.unwrap_or_else(|| Memory::zeroed(len))
    }

    fn put(&self, memory: Memory) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.bytes + memory.capacity <= self.idle_bytes_max {
            idle.bytes += memory.capacity;
            idle.buffers.push(memory);
        }
    }
}

/// Buffers that are used again. Cheap to clone; idle memory is bounded, memory in use is not.
#[derive(Clone)]
pub struct BufferPool(Arc<PoolInner>);

impl BufferPool {
    /// A pool that keeps at most `idle_bytes_max` bytes of unused buffers.
    pub fn new(idle_bytes_max: usize) -> BufferPool {
        BufferPool(Arc::new(PoolInner { idle: Mutex::default(), idle_bytes_max }))
    }

    /// A buffer of `len` bytes. Its content is unspecified: the caller fills it before it shows it to anyone.
    pub fn take(&self, len: usize) -> AlignedBuf {
        AlignedBuf { memory: Some(self.0.get(len)), len, home: Arc::downgrade(&self.0) }
    }

    /// Bytes of buffers that wait for their next use.
    pub fn idle_bytes(&self) -> usize {
        self.0.idle.lock().unwrap_or_else(PoisonError::into_inner).bytes
    }
}

impl fmt::Debug for BufferPool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BufferPool").field("idle_bytes", &self.idle_bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aligned_zeroed_and_resizable() {
        let mut buf = AlignedBuf::zeroed(5000);
        assert_eq!(buf.as_ptr() as usize % ALIGNMENT, 0);
        assert_eq!(buf.capacity(), 8192);
        assert!(buf.iter().all(|&b| b == 0) && buf.len() == 5000);
        buf[4999] = 1;
        buf.resize(8192);
        assert_eq!(buf[4999], 1);
        buf.resize(9000);
        assert_eq!((buf.len(), buf.as_ptr() as usize % ALIGNMENT), (9000, 0));
        buf.truncate(3);
        assert_eq!(&buf[..], [0, 0, 0]);
        assert!(AlignedBuf::zeroed(0).is_empty());
    }

    #[test]
    fn bytes_without_a_copy_come_home_to_the_pool() {
        let pool = BufferPool::new(1 << 20);
        let mut buf = pool.take(4096);
        buf.fill(7);
        let address = buf.as_ptr();
        let bytes = buf.into_bytes();
        assert_eq!(bytes.as_ptr(), address, "no copy");
        let part = bytes.slice(10..20);
        drop(bytes);
        assert_eq!((pool.idle_bytes(), &part[..]), (0, &[7u8; 10][..]));
        drop(part);
        assert_eq!(pool.idle_bytes(), 4096);
        assert_eq!(pool.take(1000).as_ptr(), address, "used again");
        drop(pool.take(2 << 20));
        assert_eq!(pool.idle_bytes(), 4096, "too large to keep");
        let mut grown = pool.take(0);
        grown.resize(100 << 10);
        let large = grown.as_ptr();
        drop(grown);
        let mut grown = pool.take(0);
        grown.resize(100 << 10);
        assert_eq!(grown.as_ptr(), large, "a buffer that grows takes from its pool, too");
        drop(grown);
        let orphan = pool.take(100);
        drop(pool);
        drop(orphan);
    }
}
