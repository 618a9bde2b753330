//! Buffers that stay from one access to the next, so that the next finds its memory mapped.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use steadfast_net::{keep_buffers, release_buffers};

/// Accesses to less than this make do with what a process keeps anyway.
const LARGE_BYTES: u64 = 16 << 20;
/// Kept beside segments: what a decoder or an encoder may sum (66 MiB), and the windows of 64 streams.
const BESIDE_BYTES: usize = 160 << 20;
/// How long buffers outlive the last large access. Picked by eye: an application that reads on comes back within
/// it, and one that is done should not hold a segment's memory.
const KEPT_FOR: Duration = Duration::from_secs(10);

/// Which large accesses there are and were.
#[derive(Debug, Default)]
struct Accesses {
    begun: u64,
    running: u64,
    /// Bytes of those that run.
    bytes: usize,
}

/// The client's memory.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    accesses: Arc<Mutex<Accesses>>,
}

/// An access that needs memory, until it is dropped.
pub(crate) struct Held {
    memory: Memory,
    bytes: usize,
}

impl Memory {
    /// An access begins to a segment that takes so many bytes; None when it is a small one. Of segments in hand at a time all bytes
    /// count: those of a put's second one in buffers of their own took 100 times as many page faults.
    pub(crate) fn hold(&self, segment_bytes: u64) -> Option<Held> {
        if segment_bytes < LARGE_BYTES {
            return None;
        }
        let bytes = usize::try_from(segment_bytes).unwrap_or(usize::MAX);
        let all = self.change(|accesses| {
            accesses.begun += 1;
            accesses.running += 1;
            accesses.bytes = accesses.bytes.saturating_add(bytes);
            accesses.bytes
        });
        keep_buffers(all.saturating_add(BESIDE_BYTES));
        Some(Held { memory: self.clone(), bytes })
    }

    fn change<R>(&self, change: impl FnOnce(&mut Accesses) -> R) -> R {
        change(&mut self.accesses.lock().expect("never poisoned: no panic while held"))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let begun = self.memory.change(|accesses| {
            accesses.running -= 1;
            accesses.bytes = accesses.bytes.saturating_sub(self.bytes);
            accesses.begun
        });
        // Outside a runtime nothing can wait; the end of the next access releases instead.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let memory = self.memory.clone();
        runtime.spawn(async move {
            tokio::time::sleep(KEPT_FOR).await;
            if memory.change(|accesses| accesses.running == 0 && accesses.begun == begun) {
                release_buffers();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_net::payload_buffer;

    #[tokio::test(start_paused = true)]
    async fn buffers_stay_until_the_client_has_been_idle() {
        let memory = Memory::default();
        assert!(memory.hold(LARGE_BYTES - 1).is_none());
        let first = memory.hold(64 << 20);
        let second = memory.hold(64 << 20);
        // More than one of them and what is beside it, no more than both.
        let held: Vec<_> = (0..264).map(|_| payload_buffer(1 << 20)).collect();
        let places: Vec<_> = held.iter().map(|buffer| buffer.as_ptr()).collect();
        drop(held);
        drop(first);
        tokio::time::sleep(2 * KEPT_FOR).await;
        // One access still runs: the same memory again.
        let again: Vec<_> = (0..264).map(|_| payload_buffer(1 << 20)).collect();
        assert!(again.iter().all(|buffer| places.contains(&buffer.as_ptr())));
        drop(second);
        tokio::time::sleep(2 * KEPT_FOR).await;
        // Released, though still in use here: none of it is handed out.
        let fresh: Vec<_> = (0..264).map(|_| payload_buffer(1 << 20)).collect();
        assert!(fresh.iter().all(|buffer| !places.contains(&buffer.as_ptr())));
    }
}
