//! Memory that outlives one solve or encode.

pub(crate) use crate::kernel::sums::Strips;

/// What [`Decoder::solve_with`](super::Decoder::solve_with) and [`Encoder::encode_with`](super::Encoder::encode_with) work
/// in, kept for the next call: up to 2.75 MiB a thread, and two words a block.
#[derive(Default)]
pub struct Scratch {
    /// One a thread.
    strips: Vec<Strips>,
    /// Lists of blocks, empty between calls.
    shared: Vec<&'static [u8]>,
    unique: Vec<&'static mut [u8]>,
}

impl Scratch {
    /// Nothing is held before the first call.
    pub fn new() -> Self {
        Self::default()
    }

    /// Strips for so many threads.
    pub(super) fn strips(&mut self, threads: usize) -> &mut [Strips] {
        if self.strips.len() < threads {
            self.strips.resize_with(threads, Strips::default);
        }
        &mut self.strips[..threads]
    }

    /// Bytes of each thread's strips.
    #[cfg(test)]
    pub(super) fn strip_bytes(&self) -> Vec<usize> {
        self.strips.iter().map(Strips::bytes).collect()
    }

    pub(super) fn take_shared<'a>(&mut self) -> Vec<&'a [u8]> {
        std::mem::take(&mut self.shared)
    }

    pub(super) fn keep_shared(&mut self, mut list: Vec<&[u8]>) {
        list.clear();
        // What is collected from a vector's own iterator stays in its memory.
        self.shared = list.into_iter().map(|_| <&[u8]>::default()).collect();
    }

    pub(super) fn take_unique<'a>(&mut self) -> Vec<&'a mut [u8]> {
        std::mem::take(&mut self.unique)
    }

    pub(super) fn keep_unique(&mut self, mut list: Vec<&mut [u8]>) {
        list.clear();
        self.unique = list.into_iter().map(|_| <&mut [u8]>::default()).collect();
    }
}

impl core::fmt::Debug for Scratch {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Scratch").field("threads", &self.strips.len()).finish()
    }
}
