//! Whether bytes about to be overwritten lie in a cache: asked of the processor, as nobody else knows.
//!
//! A store to a line that is in no cache reads it first. Past the caches it does not, but then whoever wants the bytes next
//! waits for memory, and so does the store where they were near. Above [`STREAM_FROM`](super::STREAM_FROM) bytes are taken to be
//! far; below, it depends on what the caller did with its buffers before.
#![cfg(target_arch = "x86_64")]

use core::arch::x86_64::{_mm_lfence, _rdtsc};
use std::sync::atomic::{AtomicU8, Ordering};

/// Ticks of the time stamp counter (2 to 4 in a nanosecond) from which an exchange went to memory. On Zen 5 it takes 52 to 78 in the
/// nearer caches, 130 at most (99 of 100) in the third, 440 and more in memory (9 of 10).
const FAR: u64 = 160;

/// Whether the last bytes of `output` have to come from memory. They are overwritten: one of them with zero, here.
///
/// Wrong at times, as when the thread is interrupted meanwhile, many stores wait before this one, or a virtual machine counts the time
/// itself: the product is slower then, and the same.
pub(super) fn is_far(output: &mut [u8]) -> bool {
    let Some(last) = output.last_mut() else { return false };
    // SAFETY: every x86-64 processor has both instructions, which change no memory; the byte is borrowed uniquely.
    unsafe {
        // An exchange, not a load: what was never touched would be given a page of zeros to read, and another to write.
        let byte = AtomicU8::from_ptr(last);
        _mm_lfence();
        let start = _rdtsc();
        _mm_lfence();
        byte.swap(0, Ordering::Relaxed);
        _mm_lfence();
        _rdtsc().wrapping_sub(start) > FAR
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_overwrites_the_last_byte_and_no_other() {
        assert!(!is_far(&mut []), "nothing is nowhere");
        let mut line = [1; 64];
        // What it says depends on the machine.
        is_far(std::hint::black_box(&mut line));
        assert_eq!((line[63], &line[..63]), (0, &[1; 63][..]), "one byte is overwritten");
    }
}
