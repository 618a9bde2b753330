//! A link that delays and limits what one end sends, for test-beds whose kernel cannot.
//!
//! Frames are put on the link one after another: each takes `bytes / rate` to go on, and comes off `delay` later.
//! All times are absolute and computed from one another, never from when a timer happened to fire: a timer that
//! ticks every millisecond makes single frames late by up to one, but no lateness adds up, and order is kept.
//! A frame that is on the link is gone: a cancel reaches only those that still wait.
//!
//! Left out: loss, reordering, and the kernel's own buffers beyond the link.

use std::{collections::VecDeque, time::Duration};
use steadfast_protocol::Time;

#[cfg(test)]
mod tests;

/// Delay and rate of what one end sends. The default adds nothing and costs nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// One-way delay.
    pub delay: Duration,
    /// Bytes per second; `None` for no limit. At least 1.
    pub rate_bytes_per_s: Option<u64>,
}

impl Link {
    /// Whether it adds nothing.
    pub fn is_transparent(&self) -> bool {
        self.delay.is_zero() && self.rate_bytes_per_s.is_none()
    }
}

/// What is on the link: a plain core, time is an argument and never goes backwards.
#[derive(Debug)]
pub struct Pacer<T> {
    link: Link,
    /// When the last frame put on has gone on whole.
    free_at: Time,
    /// A frame was seen waiting since before the link became free, so the next one starts at `free_at`.
    waiting: bool,
    on_link: VecDeque<(Time, T)>,
}

impl<T> Pacer<T> {
    /// An empty link.
    pub fn new(link: Link) -> Self {
        Self { link, free_at: Time(0), waiting: false, on_link: VecDeque::new() }
    }

    /// Whether a frame may be put on now. Asked when a frame waits; a `false` is remembered, so that the frame
    /// goes on at the very time the link becomes free, however late the caller comes back.
    pub fn ready(&mut self, now: Time) -> bool {
        let ready = now >= self.free_at;
        self.waiting |= !ready;
        ready
    }

    /// Puts a frame of `bytes` on.
    ///
    /// # Panics
    /// When the link was not [ready](Self::ready).
    pub fn put(&mut self, now: Time, bytes: usize, frame: T) {
        assert!(now >= self.free_at, "put on a link that is not free");
        let start = if self.waiting { self.free_at } else { now };
        self.free_at = start + serialisation(bytes, self.link.rate_bytes_per_s);
        // Whoever still waits after this frame says so by asking again; until then the next starts afresh,
        // unless the link was already behind, in which case the next asks at once.
        self.waiting = self.waiting && self.free_at <= now;
        self.on_link.push_back((self.free_at + self.link.delay, frame));
    }

    /// Nothing waits any more: the next frame starts when it comes.
    pub fn idle(&mut self) {
        self.waiting = false;
    }

    /// The next frame that has come off the link.
    pub fn pop_due(&mut self, now: Time) -> Option<T> {
        self.on_link.pop_front_if(|(due, _)| *due <= now).map(|(_, frame)| frame)
    }

    /// When something happens next: a frame comes off, or (`more`: a frame waits) the link becomes free.
    pub fn wake_at(&self, more: bool) -> Option<Time> {
        let off = self.on_link.front().map(|&(due, _)| due);
        let free = more.then_some(self.free_at);
        match (off, free) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (one, other) => one.or(other),
        }
    }

    /// Frames on the link.
    pub fn len(&self) -> usize {
        self.on_link.len()
    }

    /// Whether nothing is on the link.
    pub fn is_empty(&self) -> bool {
        self.on_link.is_empty()
    }
}

fn serialisation(bytes: usize, rate_bytes_per_s: Option<u64>) -> Duration {
    match rate_bytes_per_s {
        Some(rate) => {
            let nanos = bytes as u128 * 1_000_000_000 / u128::from(rate.max(1));
            Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
        }
        None => Duration::ZERO,
    }
}
