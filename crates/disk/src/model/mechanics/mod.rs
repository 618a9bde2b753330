//! A rotating disk: where its heads are, what it has buffered, when a request ends.
//!
//! Stands for the dissertation's DiskSim (§6.2.2): zones, heads, seeks, rotation, switches with skew, command
//! overhead, bus and read-ahead. The angle of the platters follows from absolute time, so a request's time
//! depends on when it starts. Integer nanoseconds throughout.
//!
//! After a command the heads go on over the following sectors, up to the *limit* of the read-ahead, unless
//! another command wants them. A later command that lies in what is read is a *hit*. One that reaches beyond
//! the limit while the heads still move takes the limit along (with *read-ahead on hit*, as DiskSim calls it,
//! any hit does). Once they stopped at the limit, what lies beyond waits for the platter to come
//! round. So a host slower than the media pays a rotation each time it has used up a read-ahead, and a faster
//! one none: this makes the step in the sequential row of Table 6-1. Writes do the same through the write
//! buffer, where there is one.
//!
//! A simulation of the whole evaluation asks for 6e9 requests: what one needs is forced inline, has no
//! unpredictable branch and no division.
//!
//! Left out: more than one buffered run, defects, the time between commands on the host's side.

mod geometry;
mod parameters;

use std::sync::{Arc, LazyLock};

pub use geometry::{Geometry, GeometryError};
pub use parameters::{ATA_7200, DiskParameters, SECTOR_BYTES, SeekCurve, Zone};

pub(in crate::model) use geometry::Divisor;
use geometry::{Heads, Place};

/// A request for neighbouring sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// First sector.
    pub lba: u64,
    /// How many; 0 counts as 1.
    pub sectors: u32,
    /// Writes instead of reads.
    pub write: bool,
}

/// A request and where it lies on a disk.
#[derive(Debug, Clone, Copy)]
pub struct Candidate {
    request: Request,
    place: Place,
    /// Angle of its first sector, below a revolution.
    angle_ns: u64,
}

impl Candidate {
    /// The request.
    pub fn request(&self) -> Request {
        self.request
    }
}

/// One disk in motion.
#[derive(Debug, Clone)]
pub struct Mechanics {
    geometry: Arc<Geometry>,
    run: Run,
}

/// What the heads do after the last command until another one wants them.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// First sector of the buffered run.
    first: u64,
    /// In front of the first sector that the commands did not need. A seek starts there: reading ahead moves the
    /// heads by a cylinder at most.
    heads: Heads,
    /// Where the heads stop.
    limit: u64,
    /// When the last command started.
    command_ns: u64,
    write: bool,
    /// The last command set the limit: if it grows, the limit does too.
    own_limit: bool,
}

impl Mechanics {
    /// A disk at rest, heads on the outermost track.
    pub fn new(geometry: Arc<Geometry>) -> Mechanics {
        let place = geometry.locate(0);
        let run = Run {
            first: u64::MAX,
            heads: Heads { place, next: u64::MAX, at_ns: 0 },
            limit: u64::MAX,
            command_ns: 0,
            write: false,
            own_limit: false,
        };
        Mechanics { geometry, run }
    }

    /// An [`ATA_7200`]; all share one geometry.
    pub fn ata_7200() -> Mechanics {
        static GEOMETRY: LazyLock<Arc<Geometry>> = LazyLock::new(|| {
            Arc::new(Geometry::new(ATA_7200).unwrap_or_else(|error| unreachable!("a constant: {error}")))
        });
        Mechanics::new(GEOMETRY.clone())
    }

    /// The disk's geometry.
    pub fn geometry(&self) -> &Arc<Geometry> {
        &self.geometry
    }

    /// Serves a request whose command arrives at `start_ns`, which is not before the end of the one before;
    /// gives the time it ends. Sectors beyond the disk's end count as its last ones.
    #[inline]
    pub fn serve(&mut self, start_ns: u64, request: Request) -> u64 {
        let request = self.within(request);
        let begin = self.begin(start_ns, request, false, || self.candidate(request));
        self.act(start_ns, request, false, begin)
    }

    /// [`Mechanics::serve`] for a candidate of this disk.
    #[inline]
    pub fn serve_candidate(&mut self, start_ns: u64, candidate: &Candidate) -> u64 {
        let begin = self.begin(start_ns, candidate.request, false, || *candidate);
        self.act(start_ns, candidate.request, false, begin)
    }

    /// [`Mechanics::serve_candidate`] of one whose [`Moment::estimate`] at `start_ns` is known.
    #[inline(always)]
    pub fn serve_estimated(&mut self, start_ns: u64, candidate: &Candidate, estimate_ns: u64) -> u64 {
        let Candidate { request, place, .. } = *candidate;
        if self.may_be_buffered(request.lba, request.write) {
            return self.serve_candidate(start_ns, candidate);
        }
        let ready_ns = start_ns + self.geometry.parameters.miss_overhead_ns;
        let begin_ns = start_ns + estimate_ns;
        self.act(start_ns, request, false, Begin::Media { from: request.lba, ready_ns, begin_ns, place })
    }

    /// Serves what continues the command before, as one command with it: no overhead, the heads go on. Anything
    /// else is served as a command of its own.
    pub fn extend(&mut self, start_ns: u64, request: Request) -> u64 {
        let follows = request.write == self.run.write
            && request.lba >= self.run.first
            && request.lba <= self.run.heads.next
            && self.run.heads.next != u64::MAX;
        let request = self.within(request);
        let begin = self.begin(start_ns, request, follows, || self.candidate(request));
        self.act(start_ns, request, follows, begin)
    }

    /// From `start_ns` to the first sector under the heads or out of the buffer if [`Mechanics::serve`] were
    /// asked: command overhead, seek or head switch, rotation. Nanoseconds.
    pub fn estimate(&self, start_ns: u64, request: Request) -> u64 {
        self.moment(start_ns).estimate(&self.candidate(request))
    }

    /// A request prepared for many estimates.
    #[inline(always)]
    pub fn candidate(&self, request: Request) -> Candidate {
        let request = self.within(request);
        let place = self.geometry.locate(request.lba);
        Candidate { request, place, angle_ns: self.geometry.angle_ns(&place) }
    }

    /// For the estimates of many candidates at one time.
    #[inline(always)]
    pub fn moment(&self, start_ns: u64) -> Moment<'_> {
        let p = &self.geometry.parameters;
        let run = &self.run;
        Moment {
            disk: self,
            start_ns,
            ready_angle_ns: self.geometry.passing_ns(start_ns + p.miss_overhead_ns),
            // Without a buffer nothing is in it.
            first: if self.ahead(run.write) > 0 { run.first } else { u64::MAX },
            ahead: if self.ahead(run.write) > 0 { run.limit - run.first } else { 0 },
            write: run.write,
            cylinder: run.heads.place.cylinder,
            head: run.heads.place.head,
        }
    }

    /// Keeps a request on the disk.
    #[inline]
    fn within(&self, request: Request) -> Request {
        let disk = self.geometry.sectors();
        let sectors = u64::from(request.sectors.max(1)).min(disk);
        Request { lba: request.lba.min(disk - sectors), sectors: sectors as u32, ..request }
    }

    /// How a request begins; nothing is changed. `candidate` gives the request's, if it is needed.
    #[inline(always)]
    fn begin(
        &self,
        start_ns: u64,
        request: Request,
        extends: bool,
        candidate: impl FnOnce() -> Candidate,
    ) -> Begin {
        let p = &self.geometry.parameters;
        let run = &self.run;
        let Request { lba, write, .. } = request;
        let end = lba + u64::from(request.sectors);
        let (mut from, mut ready_ns, mut in_place) = (lba, start_ns + p.miss_overhead_ns, false);
        if self.may_be_buffered(lba, write) || extends {
            // What lengthens a command is judged as of the command's start.
            let command_ns = if extends { run.command_ns } else { start_ns };
            let hit_ns = if extends { start_ns } else { start_ns + p.hit_overhead_ns };
            let grows = (extends && run.own_limit)
                || ((p.read_ahead_on_hit || end > run.limit) && command_ns <= self.stop_ns());
            if grows || end <= run.limit {
                return Begin::Hit { hit_ns, grows };
            }
            // Stopped at the limit, the heads are in place for what follows.
            in_place = lba <= run.limit;
            if lba < run.limit {
                // The buffer holds the beginning; the wait for the rest starts at once.
                (from, ready_ns) = (run.limit, command_ns + p.hit_overhead_ns);
            }
        }
        // Where the rest begins, whatever its length: a longer one would be moved back to end with the disk.
        let rest = || self.candidate(Request { lba: from, sectors: 1, ..request });
        let Candidate { place, angle_ns, .. } = if from == lba { candidate() } else { rest() };
        let heads = (run.heads.place.cylinder, run.heads.place.head);
        let arrived_ns = ready_ns + if in_place { 0 } else { self.move_ns(heads, &place, write) };
        let begin_ns = arrived_ns + self.geometry.wait_ns(angle_ns, arrived_ns);
        Begin::Media { from, ready_ns, begin_ns, place }
    }

    /// Time to move the heads from a cylinder and a head to a place.
    #[inline(always)]
    fn move_ns(&self, (cylinder, head): (u32, u32), place: &Place, write: bool) -> u64 {
        let p = &self.geometry.parameters;
        // Without branches that depend on the place: they would be mispredicted half of the time.
        let switch_ns = if place.head != head { p.head_switch_ns } else { 0 };
        let move_ns = self.geometry.seek_ns(place.cylinder.abs_diff(cylinder)).max(switch_ns);
        if write && move_ns > 0 { move_ns + p.write_settle_ns } else { move_ns }
    }

    /// Whether the buffered run may have something of a request.
    #[inline(always)]
    fn may_be_buffered(&self, lba: u64, write: bool) -> bool {
        let run = &self.run;
        // One comparison for both ends: of two, each would be mispredicted half of the time.
        let within = lba.wrapping_sub(run.first) <= run.limit - run.first;
        within && write == run.write && self.ahead(write) > 0
    }

    /// Lets a request that begins so have been; gives when it ends.
    #[inline(always)]
    fn act(&mut self, start_ns: u64, request: Request, extends: bool, begin: Begin) -> u64 {
        let Request { lba, write, .. } = request;
        let sectors = u64::from(request.sectors);
        let end = lba + sectors;
        let limit = (end + self.ahead(write)).min(self.geometry.sectors());
        let bus_ns = sectors * self.geometry.parameters.bus_sector_ns;
        let run = &mut self.run;
        if !extends {
            run.command_ns = start_ns;
        }
        match begin {
            Begin::Hit { hit_ns, grows } => {
                let mut end_ns = hit_ns + bus_ns;
                if end > run.heads.next {
                    self.geometry.stream(&mut run.heads, end, run.write);
                    end_ns = end_ns.max(run.heads.at_ns);
                }
                run.own_limit = grows;
                if grows {
                    run.limit = run.limit.max(limit);
                }
                end_ns
            }
            Begin::Media { from, ready_ns, begin_ns, place } => {
                (run.first, run.limit, run.write, run.own_limit) = (lba, limit, write, true);
                run.heads = Heads { place, next: from, at_ns: begin_ns };
                self.geometry.stream(&mut run.heads, end, write);
                run.heads.at_ns.max(ready_ns.max(start_ns) + bus_ns)
            }
        }
    }

    #[inline(always)]
    fn ahead(&self, write: bool) -> u64 {
        let p = &self.geometry.parameters;
        if write && !p.write_buffer { 0 } else { p.read_ahead_sectors }
    }

    /// When the heads stop at the limit.
    #[inline]
    fn stop_ns(&self) -> u64 {
        let mut heads = self.run.heads;
        self.geometry.stream(&mut heads, self.run.limit, self.run.write);
        heads.at_ns
    }
}

/// A disk at one time: what estimates need of it, at hand.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    disk: &'a Mechanics,
    start_ns: u64,
    /// The angle under the heads when they set out.
    ready_angle_ns: u64,
    /// First sector of the buffered run, how far behind it the heads stop, and whether it was written.
    first: u64,
    ahead: u64,
    write: bool,
    /// Where the heads are.
    cylinder: u32,
    head: u32,
}

impl Moment<'_> {
    /// [`Mechanics::estimate`] of a candidate for this disk.
    #[inline]
    pub fn estimate(&self, candidate: &Candidate) -> u64 {
        match self.buffered(&candidate.request) {
            Buffered::Whole => self.hit_ns(),
            other => self.estimate_as(other, candidate),
        }
    }

    /// [`Mechanics::estimate`] of a candidate of which the buffer has so much, but not the whole.
    #[inline(always)]
    pub(in crate::model) fn estimate_as(&self, buffered: Buffered, candidate: &Candidate) -> u64 {
        if buffered != Buffered::Nothing {
            return self.partly_buffered(candidate);
        }
        let Candidate { request, place, angle_ns } = candidate;
        let geometry = &self.disk.geometry;
        let move_ns = self.disk.move_ns((self.cylinder, self.head), place, request.write);
        let wait_ns = geometry.wait_after_ns(*angle_ns, self.ready_angle_ns, move_ns);
        geometry.parameters.miss_overhead_ns + move_ns + wait_ns
    }

    /// [`Mechanics::estimate`] of what is buffered as a whole.
    #[inline(always)]
    pub(in crate::model) fn hit_ns(&self) -> u64 {
        self.disk.geometry.parameters.hit_overhead_ns
    }

    /// What the buffer has of a request that lies on this disk, or is about to.
    #[inline(always)]
    pub(in crate::model) fn buffered(&self, request: &Request) -> Buffered {
        // One comparison for both ends of the run: of two, each would be mispredicted half of the time.
        let within = request.lba.wrapping_sub(self.first);
        if within > self.ahead || request.write != self.write {
            Buffered::Nothing
        } else if within + u64::from(request.sectors) <= self.ahead {
            Buffered::Whole
        } else {
            Buffered::Part
        }
    }

    /// [`Moment::estimate`] of one that the buffer has some of, or the heads stopped in front of.
    #[inline(never)]
    fn partly_buffered(&self, candidate: &Candidate) -> u64 {
        let request = candidate.request;
        match self.disk.begin(self.start_ns, request, false, || *candidate) {
            Begin::Hit { hit_ns, .. } => hit_ns - self.start_ns,
            Begin::Media { from, ready_ns, .. } if from > request.lba => ready_ns - self.start_ns,
            Begin::Media { begin_ns, .. } => begin_ns - self.start_ns,
        }
    }
}

/// How much of a request the buffer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) enum Buffered {
    Nothing,
    /// Some, or the heads stopped in front of it.
    Part,
    Whole,
}

/// How a request begins.
enum Begin {
    /// All of it is in the buffer, or the heads are on their way there. `grows`: the read-ahead goes on
    /// behind it.
    Hit { hit_ns: u64, grows: bool },
    /// The heads are sent to `from`, behind what the buffer has, and are there at `begin_ns`.
    Media { from: u64, ready_ns: u64, begin_ns: u64, place: Place },
}
