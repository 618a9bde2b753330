//! What a connection moved, counted where it moves: what the kernel took and what arrived, not what was asked.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A connection's counts since it began.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counters { $($(#[$doc])* pub $name: u64,)* }

        #[derive(Debug, Default)]
        pub(crate) struct Counting { $(pub(crate) $name: AtomicU64,)* }

        impl Counting {
            pub(crate) fn read(&self) -> Counters {
                Counters { $($name: self.$name.load(Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Frames handed to the kernel whole.
    frames_sent,
    /// Bytes handed to the kernel.
    bytes_sent,
    /// Payload bytes of frames handed to the kernel whole.
    payload_bytes_sent,
    /// Payload bytes dropped by a cancel before the kernel had them.
    payload_bytes_purged,
    /// Frames received whole.
    frames_received,
    /// Bytes received.
    bytes_received,
    /// Payload bytes received whole and given to a stream.
    payload_bytes_received,
    /// Payload bytes that arrived for a stream nobody holds any more.
    payload_bytes_discarded,
    /// Streams of the peer that were refused here: it had too many open, or what it asked was not taken fast enough.
    streams_refused,
}

pub(crate) fn add(counter: &AtomicU64, amount: usize) {
    counter.fetch_add(amount as u64, Relaxed);
}
