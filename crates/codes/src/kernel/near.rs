//! Whether a product's bytes lie in a cache: asked of the processor, as nobody else knows.
//!
//! A store to a line that is in no cache reads it first. Past the caches it does not, but then whoever wants the bytes next
//! waits for memory, and so does the store where they were near. Above [`STREAM_FROM`](super::STREAM_FROM) bytes are taken to be
//! far; below, it depends on what the caller did with its buffers before.
//!
//! Sources count, too: where they are near and outputs are not, outputs written past the caches would be far next time again, and
//! a loop that its cache has room for would never get into it (4 + 2 of 64 KiB: 76 GB/s for ever, 135 once it is).
#![cfg(target_arch = "x86_64")]

use core::arch::x86_64::{_mm_lfence, _rdtsc};
use std::sync::atomic::{AtomicU8, Ordering};

/// Ticks of the time stamp counter (2 to 4 in a nanosecond) from which an access went to memory. On Zen 5 it takes 52 to 78 in the
/// nearer caches, 130 at most (99 of 100) in the third, 440 and more in memory (9 of 10).
const FAR: u64 = 160;
/// Neighbouring pages times this lie anywhere.
const SCATTER: usize = 0x9e37_79b1;

/// Whether a byte of each has to come from memory: one somewhere in `source`, since a load that goes on by equal steps from call to
/// call is foreseen by the processor, and the last of `output`, which becomes zero.
///
/// Wrong at times, as when the thread is interrupted meanwhile, many stores wait before this one, or a virtual machine counts the time
/// itself: the product is slower then, and the same.
pub(super) fn are_far(source: &[u8], output: &mut [u8]) -> bool {
    let somewhere = (source.as_ptr().addr() / 4096).wrapping_mul(SCATTER).checked_rem(source.len());
    let (Some(at), Some(output)) = (somewhere, output.last_mut()) else { return false };
    let source = &source[at];
    // SAFETY: a borrowed byte is read.
    let read = || unsafe { core::ptr::read_volatile(source) };
    // An exchange, not a load: what was never touched would be given a page of zeros to read, and another to write.
    // SAFETY: the byte is borrowed uniquely.
    let exchange = || unsafe { AtomicU8::from_ptr(output) }.swap(0, Ordering::Relaxed);
    ticks(read) > FAR && ticks(exchange) > FAR
}

/// Ticks that an access takes.
#[inline(always)]
fn ticks(access: impl FnOnce() -> u8) -> u64 {
    // SAFETY: every x86-64 processor has both instructions, which change no memory.
    unsafe {
        _mm_lfence();
        let start = _rdtsc();
        _mm_lfence();
        core::hint::black_box(access());
        _mm_lfence();
        _rdtsc().wrapping_sub(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn asking_overwrites_at_most_the_last_byte() {
        assert!(!are_far(&[], &mut []), "nothing is nowhere");
        let mut line = [1; 64];
        // What it says depends on the machine.
        are_far(&[2; 64], std::hint::black_box(&mut line));
        assert_eq!(line[..63], [1; 63]);
        assert!(line[63] <= 1, "{}", line[63]);
    }
}
