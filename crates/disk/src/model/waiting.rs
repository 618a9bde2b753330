//! Requests that wait at a disk, in no order; the one positioned soonest is chosen.
//!
//! The choice is what a simulation of small random requests spends its time on: requests stay where they are while
//! they wait, and only their numbers move.

use super::mechanics::{Buffered, Candidate, Mechanics, Request};

/// A request that waits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub arrived_ns: u64,
    /// Of a transfer, not of others.
    pub foreground: bool,
    pub request: Request,
    /// Where it lies, once that was needed: not of one in the buffer.
    candidate: Option<Candidate>,
}

/// All that wait.
#[derive(Debug, Clone, Default)]
pub(super) struct WaitingList {
    requests: Vec<Waiting>,
    /// Numbers of `requests`: first of those that wait, then of those that are free.
    order: Vec<u16>,
    count: usize,
}

impl WaitingList {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// When the first of them arrived.
    pub(super) fn first_ns(&self) -> Option<u64> {
        self.waiting().map(|waiting| waiting.arrived_ns).min()
    }

    /// Whether one of them was there at `now_ns`.
    #[inline]
    pub(super) fn any_at(&self, now_ns: u64) -> bool {
        self.waiting().any(|waiting| waiting.arrived_ns <= now_ns)
    }

    /// One more.
    #[inline]
    pub(super) fn push(&mut self, arrived_ns: u64, request: Request, foreground: bool) {
        if self.count == self.order.len() {
            self.order.push(u16::try_from(self.count).expect("fewer than 65536 requests wait"));
            self.requests.push(Waiting { arrived_ns, foreground, request, candidate: None });
        }
        // Field by field: a whole one would be put together on the stack first, and wait to be read from there.
        let waiting = &mut self.requests[usize::from(self.order[self.count])];
        (waiting.arrived_ns, waiting.foreground) = (arrived_ns, foreground);
        (waiting.request, waiting.candidate) = (request, None);
        self.count += 1;
    }

    /// Serves the one that is positioned soonest, of equals the first in the list: when it ends, and what it was.
    /// `None` where none is there at `now_ns`.
    #[inline(always)]
    pub(super) fn serve_soonest(&mut self, disk: &mut Mechanics, now_ns: u64) -> Option<(u64, &Waiting)> {
        let (place, estimate) = self.choose(disk, now_ns)?;
        let number = usize::from(self.order[place]);
        self.count -= 1;
        self.order.swap(place, self.count);
        let waiting = &self.requests[number];
        let end_ns = match &waiting.candidate {
            Some(candidate) => disk.serve_estimated(now_ns, candidate, estimate),
            None => disk.serve(now_ns, waiting.request),
        };
        Some((end_ns, waiting))
    }

    /// Where in `order` the one is that is positioned soonest, and how soon that is.
    ///
    /// Not inlined: its loop then has the registers for itself.
    #[inline(never)]
    fn choose(&mut self, disk: &Mechanics, now_ns: u64) -> Option<(usize, u64)> {
        let moment = disk.moment(now_ns);
        let (mut best, mut least) = (usize::MAX, u64::MAX);
        for (place, &number) in self.order[..self.count].iter().enumerate() {
            let Waiting { arrived_ns, request, candidate, .. } = &mut self.requests[usize::from(number)];
            if *arrived_ns > now_ns {
                continue;
            }
            let estimate = match moment.buffered(request) {
                Buffered::Whole => moment.hit_ns(),
                other => {
                    let candidate = match candidate {
                        Some(candidate) => candidate,
                        None => candidate.insert(disk.candidate(*request)),
                    };
                    moment.estimate_as(other, candidate)
                }
            };
            // A choice, not a branch: it would be mispredicted half of the time.
            best = if estimate < least { place } else { best };
            least = least.min(estimate);
        }
        (best != usize::MAX).then_some((best, least))
    }

    fn waiting(&self) -> impl Iterator<Item = &Waiting> {
        self.order[..self.count].iter().map(|&number| &self.requests[usize::from(number)])
    }
}
