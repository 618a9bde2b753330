//! One disk with its queue: a transfer goes in, the time it ends comes out.
//!
//! A transfer is cut into the physical requests of its [`Placement`]; they are issued in order, so many at a
//! time as `outstanding_sectors` allows, and share the disk's queue with the requests of others (§6.2.2). A
//! transfer is modelled when it begins; one that is cancelled before costs nothing.

use super::{
    background::Background,
    mechanics::{Mechanics, SECTOR_BYTES},
    placement::Placement,
    waiting::WaitingList,
};
use crate::queue::{self, Estimate};

/// Which of the waiting requests the disk serves next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Policy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// Shortest positioning time first.
    Sptf,
}

/// What a drive has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Work {
    /// Physical requests of transfers.
    pub foreground_requests: u64,
    /// Time the disk worked on them.
    pub foreground_ns: u64,
    /// Requests of others.
    pub background_requests: u64,
    /// Time the disk worked on them.
    pub background_ns: u64,
}

/// A modelled disk in use.
#[derive(Debug, Clone)]
pub struct Drive {
    mechanics: Mechanics,
    placement: Placement,
    background: Option<Background>,
    policy: Policy,
    /// How many requests of a transfer wait at the disk at a time.
    depth: usize,
    /// So many nanoseconds outside are one inside.
    dilation: u64,
    /// When the disk has done all it was given.
    free_ns: u64,
    /// Where the last transfer ended and which way it went.
    tail: (u64, bool),
    waiting: WaitingList,
    work: Work,
}

impl Drive {
    /// A disk at rest that serves transfers alone, first come, first served.
    pub fn new(mechanics: Mechanics, placement: Placement) -> Drive {
        Drive {
            mechanics,
            placement,
            background: None,
            policy: Policy::Fcfs,
            depth: 1,
            dilation: 1,
            free_ns: 0,
            tail: (u64::MAX, false),
            waiting: WaitingList::default(),
            work: Work::default(),
        }
    }

    /// Shortest positioning time first, where a transfer keeps as many of its requests at the disk as fit in
    /// `outstanding_sectors`, at least one and at most [`DEPTH_MAX`].
    pub fn shortest_first(mut self, outstanding_sectors: u32) -> Drive {
        let fit = u64::from(outstanding_sectors) * SECTOR_BYTES / self.placement.chunk_bytes();
        self.policy = Policy::Sptf;
        self.depth = fit.clamp(1, DEPTH_MAX) as usize;
        self
    }

    /// Everything takes so many times as long, the requests of others and their intervals too.
    pub fn dilated(mut self, dilation: u32) -> Drive {
        self.dilation = dilation.max(1).into();
        self
    }

    /// Shared with others.
    pub fn with_background(mut self, background: Background) -> Drive {
        self.background = Some(background);
        self
    }

    /// Moves `bytes` at `offset` of the device; the transfer was queued at `queued_ns` and begins when the one
    /// before has ended. Gives the time its last byte is over.
    ///
    /// What was queued before the last transfer ended and continues it inside a chunk is one command with it:
    /// a chunk takes the same time in pieces as whole.
    pub fn transfer(&mut self, queued_ns: u64, offset: u64, bytes: u64, write: bool) -> u64 {
        let queued_ns = queued_ns / self.dilation;
        let end = offset.saturating_add(bytes);
        let continues = self.tail == (offset, write) && queued_ns <= self.free_ns;
        self.tail = (end, write);
        if let Some(background) = &mut self.background
            && queued_ns - queued_ns.min(self.free_ns.max(background.next_ns())) > IDLE_MEMORY_NS
        {
            background.skip_to(queued_ns - IDLE_MEMORY_NS);
        }
        let over_ns = if self.policy == Policy::Sptf && (self.depth > 1 || self.background.is_some()) {
            self.by_positioning(queued_ns, offset, end, write)
        } else {
            self.in_order(queued_ns, offset, end, write, continues)
        };
        over_ns.saturating_mul(self.dilation)
    }

    /// From `start_ns` until the heads are over the first sector of a transfer that would begin then, the disk being
    /// free: what SPTF compares, and a bid for a read names. Nanoseconds; the requests of others are left out.
    pub fn estimate(&self, start_ns: u64, offset: u64, write: bool) -> u64 {
        let start_ns = (start_ns / self.dilation).max(self.free_ns);
        let first = self.placement.clone().next(offset, offset.saturating_add(1), write);
        first.map_or(0, |(piece, _)| self.mechanics.estimate(start_ns, piece.request) * self.dilation)
    }

    /// [`Drive::estimate`] at one time, for [`Queue::select`](crate::queue::Queue::select).
    pub fn estimates_at(&self, now_ns: u64) -> Estimates<'_> {
        Estimates { drive: self, now_ns }
    }

    /// When the disk has done all it was given.
    pub fn free_ns(&self) -> u64 {
        self.free_ns.saturating_mul(self.dilation)
    }

    /// What it has done, in the time of the undilated disk.
    pub fn work(&self) -> Work {
        self.work
    }

    fn in_order(&mut self, queued_ns: u64, offset: u64, end: u64, write: bool, continues: bool) -> u64 {
        let mut at = offset;
        let mut issued_ns = queued_ns;
        while let Some((piece, next)) = self.placement.next(at, end, write) {
            let goes_on = piece.inside && continues && at == offset;
            if self.background.is_some() && !goes_on {
                self.serve_earlier(issued_ns);
            }
            let start_ns = issued_ns.max(self.free_ns);
            let end_ns = if goes_on {
                self.mechanics.extend(start_ns, piece.request)
            } else {
                self.work.foreground_requests += 1;
                self.mechanics.serve(start_ns, piece.request)
            };
            self.work.foreground_ns += end_ns - start_ns;
            self.free_ns = end_ns;
            issued_ns = end_ns;
            at = next;
        }
        issued_ns
    }

    /// Serves the requests of others that arrived until `now_ns`.
    fn serve_earlier(&mut self, now_ns: u64) {
        let Some(background) = &mut self.background else { return };
        while background.next_ns() <= now_ns {
            let (arrived_ns, request) = background.take();
            let start_ns = arrived_ns.max(self.free_ns);
            if start_ns - arrived_ns > PATIENCE_NS {
                continue;
            }
            self.free_ns = self.mechanics.serve(start_ns, request);
            self.work.background_requests += 1;
            self.work.background_ns += self.free_ns - start_ns;
        }
    }

    fn by_positioning(&mut self, queued_ns: u64, offset: u64, end: u64, write: bool) -> u64 {
        let mut at = offset;
        let mut own = 0;
        let mut last_ns = queued_ns;
        loop {
            while own < self.depth
                && let Some((piece, next)) = self.placement.next(at, end, write)
            {
                self.waiting.push(last_ns, piece.request, true);
                own += 1;
                at = next;
            }
            if own == 0 {
                return last_ns;
            }
            let now_ns = if self.waiting.any_at(self.free_ns) {
                self.free_ns
            } else {
                let first_ns = self.waiting.first_ns().unwrap_or(last_ns);
                let other_ns = self.background.as_ref().map_or(u64::MAX, Background::next_ns);
                self.free_ns.max(first_ns.min(other_ns))
            };
            self.admit(now_ns);
            let served = self.waiting.serve_soonest(&mut self.mechanics, now_ns);
            let Some((end_ns, waiting)) = served else { return last_ns };
            self.free_ns = end_ns;
            if waiting.foreground {
                own -= 1;
                last_ns = self.free_ns;
                self.work.foreground_requests += 1;
                self.work.foreground_ns += self.free_ns - now_ns;
            } else {
                self.work.background_requests += 1;
                self.work.background_ns += self.free_ns - now_ns;
            }
        }
    }

    /// Lets the requests of others in that arrived until `now_ns`.
    fn admit(&mut self, now_ns: u64) {
        let Some(background) = &mut self.background else { return };
        while background.next_ns() <= now_ns {
            let (arrived_ns, request) = background.take();
            if self.waiting.len() < WAITING_MAX {
                self.waiting.push(arrived_ns, request, false);
            }
        }
    }
}

/// The positioning times of a drive at one time.
#[derive(Debug, Clone, Copy)]
pub struct Estimates<'a> {
    drive: &'a Drive,
    now_ns: u64,
}

impl Estimate for Estimates<'_> {
    /// The drive knows where its heads are: `head` is not asked.
    fn service_ns(&self, _head: u64, request: &queue::Request) -> u64 {
        self.drive.estimate(self.now_ns, request.offset, request.kind == queue::Kind::Write)
    }
}

/// More of its own requests a transfer never keeps at the disk: twice what disks queue (NCQ: 32).
pub const DEPTH_MAX: u64 = 64;

/// Where others want more than the disk can do, their requests would queue up for ever. First come, first served,
/// one that waited so long is given up, as a time-out would ...
const PATIENCE_NS: u64 = 1_000_000_000;

/// ... and by positioning time, one that finds so many waiting.
const WAITING_MAX: usize = 256;

/// Of a longer pause between transfers only this end is modelled: what others did before leaves no trace.
const IDLE_MEMORY_NS: u64 = 10 * PATIENCE_NS;
