//! Whether a product's bytes lie in a cache: asked of the processor, as nobody else knows.
//!
//! A store to a line that is in no cache reads it first. Past the caches it does not, but then whoever wants the bytes next
//! waits for memory, and so does the store where they were near. Above [`STREAM_FROM`](super::STREAM_FROM) bytes are taken to be
//! far; below, it depends on what the caller did with its buffers before.
//!
//! Sources count, too: where they are near and outputs are not, outputs written past the caches would be far next time again, and
//! a loop that its cache has room for would never get into it (4 + 2 of 64 KiB: 76 GB/s for ever, 135 once it is).
#![cfg(target_arch = "x86_64")]

use super::steps::LINE;
use core::arch::x86_64::{_MM_HINT_T0, _mm_lfence, _mm_prefetch, _rdtsc};
use std::{
    cell::RefCell,
    sync::atomic::{AtomicU8, Ordering},
};

/// Ticks of the time stamp counter (2 to 4 in a nanosecond) from which an access went to memory. On Zen 5 it takes 52 to 78 in the
/// nearer caches, 130 at most (99 of 100) in the third, 440 and more in memory (9 of 10).
const FAR: u64 = 160;
/// Products that a "far" is taken for: whoever walks through memory gets it each time, and waits twice for memory to hear it (4 + 2 of
/// 64 KiB: a twentieth of the product). Few, since what is near is slower past the caches.
const TRUSTED: u8 = 7;
/// Lines of each source fetched before the question, so that they come while its answer does: a gap that nothing fills costs products
/// of 64 KiB slices 1 to 2 %.
const FIRST_LINES: usize = 8;

/// Whether a byte of each has to come from memory: one somewhere in the last source and one somewhere in `output`, which becomes
/// zero. Somewhere, since an access that goes on by equal steps from call to call is foreseen by the processor.
///
/// Wrong at times, as when the thread is interrupted meanwhile, many stores wait before this one, or a virtual machine counts the time
/// itself: the product is slower then, and the same.
pub(super) fn are_far(sources: &[&[u8]], output: &mut [u8]) -> bool {
    #[cfg(test)]
    if let Some(far) = tests::ANSWER.get() {
        return far;
    }
    let Some(source) = sources.last() else { return false };
    let places = (somewhere(source), somewhere(output));
    let (Some(source_at), Some(output_at)) = places else { return false };
    fetch_first(sources);
    let first = sources[0].as_ptr().addr();
    if LAST.with(|last| last.borrow_mut().still_holds(first)) {
        return true;
    }
    let (source, output) = (&source[source_at], &mut output[output_at]);
    // SAFETY: a borrowed byte is read.
    let read = || unsafe { core::ptr::read_volatile(source) };
    // An exchange, not a load: what was never touched would be given a page of zeros to read, and another to write.
    // SAFETY: the byte is borrowed uniquely.
    let exchange = || unsafe { AtomicU8::from_ptr(output) }.swap(0, Ordering::Relaxed);
    let far = ticks(read) > FAR && ticks(exchange) > FAR;
    LAST.with(|last| *last.borrow_mut() = Answer { first, trusted: if far { TRUSTED } else { 0 } });
    far
}

thread_local! {
    /// The last answer on this thread.
    static LAST: RefCell<Answer> = const { RefCell::new(Answer { first: 0, trusted: 0 }) };
}

/// An answer, and for how many products it is taken.
#[derive(Debug)]
struct Answer {
    /// Where the first source of the last product was.
    first: usize,
    trusted: u8,
}

impl Answer {
    /// Whether a product whose first source is at `first` is taken to be far unasked: not one whose sources were just read.
    fn still_holds(&mut self, first: usize) -> bool {
        if self.trusted == 0 || first == self.first {
            return false;
        }
        *self = Self { first, trusted: self.trusted - 1 };
        true
    }
}

/// A place in `bytes` that their address picks.
fn somewhere(bytes: &[u8]) -> Option<usize> {
    // SplitMix64's last steps: addresses differ by a few steps' length, and places must not.
    let mut place = bytes.as_ptr().addr() as u64;
    place = (place ^ place >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    place = (place ^ place >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((place ^ place >> 31) as usize).checked_rem(bytes.len())
}

/// Asks for the first lines of every source.
fn fetch_first(sources: &[&[u8]]) {
    for source in sources {
        for line in source.chunks(LINE).take(FIRST_LINES) {
            // SAFETY: a prefetch reads nothing that the program could see, and faults at no address.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
        }
    }
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
pub(super) mod tests {
    use super::*;
    use std::cell::Cell;

    thread_local! {
        /// What [`are_far`] says on this thread instead of asking.
        pub(in super::super) static ANSWER: Cell<Option<bool>> = const { Cell::new(None) };
    }

    #[test]
    fn an_answer_is_taken_a_few_times_and_not_for_what_was_just_read() {
        let mut far = Answer { first: 64, trusted: 2 };
        assert!(!far.still_holds(64), "its sources are near now");
        assert!(
            far.still_holds(128) && !far.still_holds(128) && far.still_holds(64) && !far.still_holds(192)
        );
        assert!(!Answer { first: 64, trusted: 0 }.still_holds(128), "near");
    }

    #[test]
    fn asking_overwrites_at_most_one_byte() {
        assert!(!are_far(&[], &mut [1]) && !are_far(&[&[]], &mut []), "nothing is nowhere");
        let mut line = [1; 64];
        // What it says depends on the machine.
        are_far(&[&[2; 64]], std::hint::black_box(&mut line));
        assert!(line.iter().filter(|byte| **byte != 1).count() <= 1, "{line:?}");
        assert!(line.iter().all(|byte| *byte <= 1), "{line:?}");
    }
}
