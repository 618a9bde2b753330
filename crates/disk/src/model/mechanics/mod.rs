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
use geometry::Place;

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
    /// First sector that was not read at `at_ns`; the heads are in front of it then.
    next: u64,
    at_ns: u64,
    /// Where the heads stop.
    limit: u64,
    /// When the last command started.
    command_ns: u64,
    write: bool,
    /// The last command set the limit: if it grows, the limit does too.
    own_limit: bool,
    /// Place of the last sector before `next`. A seek starts there: reading ahead moves the heads by
    /// a cylinder at most.
    cylinder: u32,
    head: u32,
}

impl Mechanics {
    /// A disk at rest, heads on the outermost track.
    pub fn new(geometry: Arc<Geometry>) -> Mechanics {
        let run = Run {
            first: u64::MAX,
            next: u64::MAX,
            at_ns: 0,
            limit: u64::MAX,
            command_ns: 0,
            write: false,
            own_limit: false,
            cylinder: 0,
            head: 0,
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
        let (end_ns, run) = self.act(start_ns, request, false, || self.candidate(request));
        self.run = run;
        end_ns
    }

    /// [`Mechanics::serve`] for a candidate of this disk.
    #[inline]
    pub fn serve_candidate(&mut self, start_ns: u64, candidate: &Candidate) -> u64 {
        let (end_ns, run) = self.act(start_ns, candidate.request, false, || *candidate);
        self.run = run;
        end_ns
    }

    /// Serves what continues the command before, as one command with it: no overhead, the heads go on. Anything
    /// else is served as a command of its own.
    pub fn extend(&mut self, start_ns: u64, request: Request) -> u64 {
        let follows = request.write == self.run.write
            && request.lba >= self.run.first
            && request.lba <= self.run.next
            && self.run.next != u64::MAX;
        let request = self.within(request);
        let (end_ns, run) = self.act(start_ns, request, follows, || self.candidate(request));
        self.run = run;
        end_ns
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
    #[inline]
    pub fn moment(&self, start_ns: u64) -> Moment<'_> {
        let ready_ns = start_ns + self.geometry.parameters.miss_overhead_ns;
        Moment { disk: self, start_ns, ready_angle_ns: self.geometry.passing_ns(ready_ns) }
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
        let Candidate { place, angle_ns, .. } =
            if from == lba { candidate() } else { self.candidate(Request { lba: from, ..request }) };
        let arrived_ns = ready_ns + if in_place { 0 } else { self.move_ns(&place, write) };
        let begin_ns = arrived_ns + self.geometry.wait_ns(angle_ns, arrived_ns);
        Begin::Media { from, ready_ns, begin_ns, place }
    }

    /// Time to move the heads to a place.
    #[inline(always)]
    fn move_ns(&self, place: &Place, write: bool) -> u64 {
        let p = &self.geometry.parameters;
        // Without branches that depend on the place: they would be mispredicted half of the time.
        let switch_ns = u64::from(place.head != self.run.head) * p.head_switch_ns;
        let move_ns = self.geometry.seek_ns(place.cylinder.abs_diff(self.run.cylinder)).max(switch_ns);
        move_ns + u64::from(write && move_ns > 0) * p.write_settle_ns
    }

    /// Whether the buffered run may have something of a request.
    #[inline]
    fn may_be_buffered(&self, lba: u64, write: bool) -> bool {
        let run = &self.run;
        self.ahead(write) > 0 && write == run.write && lba >= run.first && lba <= run.limit
    }

    /// When a request ends, and what the heads do then.
    #[inline]
    fn act(
        &self,
        start_ns: u64,
        request: Request,
        extends: bool,
        candidate: impl FnOnce() -> Candidate,
    ) -> (u64, Run) {
        let disk = self.geometry.sectors();
        let (lba, sectors) = (request.lba, u64::from(request.sectors));
        let end = lba + sectors;
        let ahead = self.ahead(request.write);
        let bus_ns = sectors * self.geometry.parameters.bus_sector_ns;
        let command_ns = if extends { self.run.command_ns } else { start_ns };
        match self.begin(start_ns, request, extends, candidate) {
            Begin::Hit { hit_ns, grows } => {
                let mut run = Run { own_limit: grows, command_ns, ..self.run };
                let mut end_ns = hit_ns + bus_ns;
                if end > run.next {
                    self.stream(&mut run, end);
                    end_ns = end_ns.max(run.at_ns);
                }
                if grows {
                    run.limit = run.limit.max((end + ahead).min(disk));
                }
                (end_ns, run)
            }
            Begin::Media { from, ready_ns, begin_ns, place } => {
                let mut run = Run {
                    first: lba,
                    next: from,
                    at_ns: begin_ns,
                    limit: (end + ahead).min(disk),
                    command_ns,
                    write: request.write,
                    own_limit: true,
                    cylinder: place.cylinder,
                    head: place.head,
                };
                self.stream_from(place, &mut run, end);
                (run.at_ns.max(ready_ns.max(start_ns) + bus_ns), run)
            }
        }
    }

    #[inline]
    fn ahead(&self, write: bool) -> u64 {
        let p = &self.geometry.parameters;
        if write && !p.write_buffer { 0 } else { p.read_ahead_sectors }
    }

    /// Lets the heads go on until they are in front of `to`, if they are not beyond it.
    #[inline]
    fn stream(&self, run: &mut Run, to: u64) {
        if to > run.next {
            let place = self.geometry.locate(run.next - 1);
            let place = Place { sector: place.sector + 1, ..place };
            self.stream_from(place, run, to);
        }
    }

    /// When the heads stop at the limit.
    #[inline]
    fn stop_ns(&self) -> u64 {
        let mut run = self.run;
        self.stream(&mut run, self.run.limit);
        run.at_ns
    }

    /// As [`Mechanics::stream`], from a known place, whose sector may be one behind its track's last.
    #[inline(always)]
    fn stream_from(&self, mut place: Place, run: &mut Run, to: u64) {
        let mut along_ns = self.geometry.along_ns(&place, place.sector);
        loop {
            let track = place.sectors_per_track;
            let last = (place.sector + (to - run.next)).min(track);
            let last_ns = self.geometry.along_ns(&place, last);
            run.at_ns += last_ns - along_ns;
            run.next += last - place.sector;
            if run.next >= to {
                break;
            }
            let Some((next, gap_ns)) = self.geometry.next_track(&place, run.write) else { break };
            run.at_ns += gap_ns;
            (place, along_ns) = (next, 0);
        }
        (run.cylinder, run.head) = (place.cylinder, place.head);
    }
}

/// A disk at one time.
#[derive(Debug, Clone, Copy)]
pub struct Moment<'a> {
    disk: &'a Mechanics,
    start_ns: u64,
    /// The angle under the heads when they set out.
    ready_angle_ns: u64,
}

impl Moment<'_> {
    /// [`Mechanics::estimate`] of a candidate for this disk.
    #[inline(always)]
    pub fn estimate(&self, candidate: &Candidate) -> u64 {
        let Candidate { request, place, angle_ns } = candidate;
        let disk = self.disk;
        if disk.may_be_buffered(request.lba, request.write) {
            return self.partly_buffered(candidate);
        }
        let move_ns = disk.move_ns(place, request.write);
        let wait_ns = disk.geometry.turn_ns(self.ready_angle_ns + move_ns, *angle_ns);
        disk.geometry.parameters.miss_overhead_ns + move_ns + wait_ns
    }

    /// [`Mechanics::estimate`] of a request that lies on this disk, where the buffer has all of it or is about to: where
    /// it lies is not asked then. `None`: it has not.
    #[inline(always)]
    pub fn estimate_buffered(&self, request: Request) -> Option<u64> {
        let buffered = self.disk.may_be_buffered(request.lba, request.write)
            && request.lba + u64::from(request.sectors) <= self.disk.run.limit;
        buffered.then_some(self.disk.geometry.parameters.hit_overhead_ns)
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

/// How a request begins.
enum Begin {
    /// All of it is in the buffer, or the heads are on their way there. `grows`: the read-ahead goes on
    /// behind it.
    Hit { hit_ns: u64, grows: bool },
    /// The heads are sent to `from`, behind what the buffer has, and are there at `begin_ns`.
    Media { from: u64, ready_ns: u64, begin_ns: u64, place: Place },
}
