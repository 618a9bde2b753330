//! Parts of an object that arrive while the one before them is decoded and handed over.
//!
//! A read of a segment begins with a round trip and ends as one: of small segments several arrive at a time, so that the devices
//! always have something to send. A large one keeps them busy by itself.
//!
//! Invariants: parts come in the order in which they were begun; all of them arrive whenever any of them is waited for.

use crate::{GetError, get::SegmentReader};
use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll},
    time::Instant,
};

/// Bytes that arrive at a time, where a part has less: three of the usual parity segments, which ask the same of each of six devices
/// (`plan::Dealt`). Six of 100 MB/s gave 410, 570 and 530 MB/s with two, three and four.
const AHEAD_BYTES: u64 = 48 << 20;
/// Parts that arrive at a time, however small: each has a stream to every device that it wants something of. Picked by eye.
const AHEAD_PARTS: usize = 8;

/// What became of a part that was read.
pub(crate) struct Arrived<'a> {
    pub(crate) reader: SegmentReader<'a>,
    pub(crate) outcome: Result<(), GetError>,
    /// When.
    at: Instant,
}

/// Parts on their way, and those that are here before their turn.
#[derive(Default)]
pub(crate) struct Ahead<'a> {
    parts: VecDeque<(u64, Part<'a>)>,
}

enum Part<'a> {
    Coming(Pin<Box<dyn Future<Output = Arrived<'a>> + Send + 'a>>),
    Here(Box<Arrived<'a>>),
}

impl<'a> Ahead<'a> {
    /// Whether a part of so many bytes may be begun, where `in_hand_bytes` of another one and at most `memory_bytes` are in
    /// memory. One always may, where there is no other.
    pub(crate) fn has_room(&self, bytes: u64, in_hand_bytes: u64, memory_bytes: u64) -> bool {
        let ahead: u64 = self.parts.iter().map(|(bytes, _)| bytes).sum();
        let few = ahead == 0 || (ahead + bytes <= AHEAD_BYTES && self.parts.len() < AHEAD_PARTS);
        let fits = ahead + in_hand_bytes == 0 || ahead + in_hand_bytes + bytes <= memory_bytes;
        few && fits
    }

    /// Begins to read a part.
    pub(crate) fn begin(&mut self, mut reader: SegmentReader<'a>) {
        let bytes = reader.memory_bytes();
        let coming = async move {
            let outcome = reader.arrive().await;
            Arrived { reader, outcome, at: Instant::now() }
        };
        self.parts.push_back((bytes, Part::Coming(Box::pin(coming))));
    }

    /// The first part, once it is here; none where none was begun.
    pub(crate) async fn next(&mut self) -> Option<Arrived<'a>> {
        poll_fn(|context| {
            self.poll(context);
            match self.parts.front() {
                Some((_, Part::Coming(_))) => Poll::Pending,
                _ => Poll::Ready(()),
            }
        })
        .await;
        match self.parts.pop_front()? {
            (_, Part::Here(arrived)) => Some(*arrived),
            (_, Part::Coming(_)) => unreachable!("it was waited for"),
        }
    }

    /// Lets parts arrive for as long as it is polled.
    pub(crate) async fn arriving(&mut self) -> core::convert::Infallible {
        poll_fn(|context| {
            self.poll(context);
            Poll::Pending
        })
        .await
    }

    /// When the first part arrived, if it has.
    pub(crate) fn here_since(&self) -> Option<Instant> {
        match self.parts.front() {
            Some((_, Part::Here(arrived))) => Some(arrived.at),
            _ => None,
        }
    }

    /// Whether none was begun.
    pub(crate) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    fn poll(&mut self, context: &mut Context<'_>) {
        for (_, part) in &mut self.parts {
            if let Part::Coming(coming) = part
                && let Poll::Ready(arrived) = coming.as_mut().poll(context)
            {
                *part = Part::Here(Box::new(arrived));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_few_parts_arrive_at_a_time() {
        let mut ahead = Ahead::default();
        let mut begun = |bytes: u64, most: u64| {
            ahead.parts.clear();
            while ahead.parts.len() < 100 && ahead.has_room(bytes, 0, most) {
                ahead.parts.push_back((bytes, Part::Coming(Box::pin(core::future::pending()))));
            }
            ahead.parts.len()
        };
        assert_eq!(begun(1 << 10, u64::MAX), AHEAD_PARTS, "small ones by their number");
        assert_eq!(begun(16 << 20, u64::MAX), 3, "large ones by their bytes");
        assert_eq!(begun(1 << 30, 5), 1, "one in any case");
        assert_eq!(begun(1 << 20, 3 << 20), 3, "and no more than fit memory");
    }
}
