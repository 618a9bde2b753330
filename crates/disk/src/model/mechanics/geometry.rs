//! Where sectors lie, and how long moves take: [`DiskParameters`] made ready for many questions.

use super::parameters::{DiskParameters, SECTOR_BYTES, SeekCurve};

/// A description of a disk that cannot be one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("disk `{disk}` cannot be modelled: {reason}")]
pub struct GeometryError {
    /// Name of the disk.
    pub disk: &'static str,
    /// What is wrong with the parameters.
    pub reason: &'static str,
}

/// A disk's geometry. Shared by all disks of one make.
#[derive(Debug)]
pub struct Geometry {
    pub(super) parameters: DiskParameters,
    zones: Vec<ZoneTable>,
    /// The zone of the first sector of each `1 << hint_shift` sectors.
    hints: Vec<u8>,
    hint_shift: u32,
    sectors: u64,
    cylinders: u32,
    revolution: Divisor,
    /// Whole revolutions, more than the longest move takes.
    turns_ns: u64,
    /// Of a square-root curve: `root_ns / sqrt(cylinders)`.
    root_ns: f64,
}

#[derive(Debug)]
struct ZoneTable {
    first: u64,
    end: u64,
    first_cylinder: u32,
    end_cylinder: u32,
    track: Divisor,
    cylinder: Divisor,
    /// Time of a sector under the heads, in 2^-[`FRACTION_BITS`] nanoseconds.
    sector_fraction_ns: u64,
    track_skew_ns: u64,
    /// How much later the first track of the next cylinder starts than that of this one.
    cylinder_turn_ns: u64,
    /// From the end of a track to the start of the next head's, and of the next cylinder's; reading, writing.
    head_gap_ns: [u64; 2],
    cylinder_gap_ns: [u64; 2],
}

impl ZoneTable {
    /// Angle of a sector from the start of its track, in nanoseconds of rotation.
    #[inline(always)]
    fn along_ns(&self, sector: u32) -> u64 {
        (u64::from(sector) * self.sector_fraction_ns) >> FRACTION_BITS
    }
}

/// A divisor with its reciprocal: the model divides more often than it does anything else.
#[derive(Debug, Clone, Copy)]
pub(in crate::model) struct Divisor {
    pub(in crate::model) by: u64,
    /// `2^64 / by`, rounded down.
    reciprocal: u64,
}

impl Divisor {
    pub(in crate::model) fn new(by: u64) -> Divisor {
        Divisor { by, reciprocal: ((1u128 << 64) / u128::from(by)).min(u128::from(u64::MAX)) as u64 }
    }

    /// Quotient and remainder. The reciprocal is too small by less than 1, the quotient thus at most one off.
    #[inline]
    pub(in crate::model) fn split(self, n: u64) -> (u64, u64) {
        let quotient = ((u128::from(n) * u128::from(self.reciprocal)) >> 64) as u64;
        let rest = n - quotient * self.by;
        let over = u64::from(rest >= self.by);
        (quotient + over, rest - over * self.by)
    }
}

/// Precision of a sector's time: an error of less than a nanosecond in a track.
const FRACTION_BITS: u32 = 20;

/// A place on the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub zone: u32,
    pub cylinder: u32,
    pub head: u32,
    /// Sector of its track; one behind its last where the heads are at its end.
    pub sector: u32,
    /// Angle of the track's first sector, in nanoseconds of rotation; may exceed a revolution.
    pub track_angle_ns: u64,
}

/// Heads on their way over neighbouring sectors.
#[derive(Debug, Clone, Copy)]
pub(super) struct Heads {
    pub place: Place,
    /// The sector that they are in front of at `at_ns`.
    pub next: u64,
    pub at_ns: u64,
}

const HINTS: u64 = 1024;

impl Geometry {
    /// Checks the parameters and prepares the tables.
    ///
    /// # Errors
    /// Where a count or the revolution is zero, there are more than 255 zones, a seek table is empty or not in
    /// order, a move takes seconds, or a number is beyond what the arithmetic holds.
    pub fn new(parameters: DiskParameters) -> Result<Geometry, GeometryError> {
        let p = &parameters;
        let fail = |reason| GeometryError { disk: p.name, reason };
        if p.revolution_ns == 0 || p.revolution_ns > 1 << 32 || p.heads == 0 || p.heads > 1 << 10 {
            return Err(fail("a revolution of 1 ns to 4 s and 1 to 1024 heads are needed"));
        }
        if p.zones.is_empty() || p.zones.len() > 255 {
            return Err(fail("1 to 255 zones are needed"));
        }
        if let SeekCurve::Table(points) = &p.seek
            && (points.is_empty() || !points.is_sorted_by(|a, b| a.0 < b.0))
        {
            return Err(fail("a seek table needs points by rising distance"));
        }
        let mut zones = Vec::with_capacity(p.zones.len());
        let (mut first, mut first_cylinder) = (0u64, 0u32);
        for zone in p.zones.iter() {
            let sectors_per_track = u64::from(zone.sectors_per_track);
            if zone.cylinders == 0 || sectors_per_track == 0 || sectors_per_track > 1 << 20 {
                return Err(fail("a zone needs cylinders and 1 to 1048576 sectors a track"));
            }
            if zone.track_skew_sectors > zone.sectors_per_track
                || zone.cylinder_skew_sectors > zone.sectors_per_track
            {
                return Err(fail("a skew is at most a track"));
            }
            let angle = |sectors: u32| u64::from(sectors) * p.revolution_ns / sectors_per_track;
            let track_skew_ns = angle(zone.track_skew_sectors);
            let cylinder_skew_ns = angle(zone.cylinder_skew_sectors);
            let sectors_per_cylinder = sectors_per_track * u64::from(p.heads);
            let end = first + sectors_per_cylinder * u64::from(zone.cylinders);
            let end_cylinder = first_cylinder
                .checked_add(zone.cylinders)
                .filter(|c| *c < 1 << 24)
                .ok_or(fail("at most 16777216 cylinders can be modelled"))?;
            zones.push(ZoneTable {
                first,
                end,
                first_cylinder,
                end_cylinder,
                track: Divisor::new(sectors_per_track),
                cylinder: Divisor::new(sectors_per_cylinder),
                // Rounded up, so that the last sector ends with the revolution.
                sector_fraction_ns: (p.revolution_ns << FRACTION_BITS).div_ceil(sectors_per_track),
                track_skew_ns,
                cylinder_turn_ns: (track_skew_ns * u64::from(p.heads - 1) + cylinder_skew_ns)
                    % p.revolution_ns,
                head_gap_ns: [0; 2],
                cylinder_gap_ns: [0; 2],
            });
            (first, first_cylinder) = (end, end_cylinder);
        }
        let hint_shift = (first.div_ceil(HINTS)).next_power_of_two().trailing_zeros();
        let hints = (0..=(first - 1) >> hint_shift)
            .map(|hint| zones.partition_point(|z| z.end <= hint << hint_shift) as u8)
            .collect();
        let (root_ns, longest_ns) = match &p.seek {
            SeekCurve::SquareRoot { base_ns, root_ns } => {
                (*root_ns as f64 / f64::from(first_cylinder).sqrt(), base_ns.saturating_add(*root_ns))
            }
            SeekCurve::Table(points) => (0.0, points.iter().map(|&(_, ns)| ns).max().unwrap_or(0)),
        };
        let longest_ns = longest_ns.max(p.head_switch_ns);
        if longest_ns.max(p.write_settle_ns) > u32::MAX.into() {
            return Err(fail("a seek, a head switch and a write's settling take 4 s at most"));
        }
        let turns = (longest_ns + p.write_settle_ns).div_ceil(p.revolution_ns) + 1;
        let mut geometry = Geometry {
            zones,
            hints,
            hint_shift,
            sectors: first,
            cylinders: first_cylinder,
            revolution: Divisor::new(p.revolution_ns),
            turns_ns: turns * p.revolution_ns,
            root_ns,
            parameters,
        };
        geometry.fill_gaps();
        Ok(geometry)
    }

    /// A track ends at the angle where it began; the next one's start has then gone by or is still to come.
    fn fill_gaps(&mut self) {
        let (heads, switch_ns) = (u64::from(self.parameters.heads), self.parameters.head_switch_ns);
        let one_ns = self.seek_ns(1);
        for zone in 0..self.zones.len() {
            let table = &self.zones[zone];
            // The last track of a cylinder starts that much later than its first.
            let last_ns = table.track_skew_ns * (heads - 1);
            let gap = |skew_ns, switch_ns| switch_ns + self.wait_ns(self.passing_ns(skew_ns), switch_ns);
            let turn_ns = table.cylinder_turn_ns + heads * self.parameters.revolution_ns - last_ns;
            let settle = [0, self.parameters.write_settle_ns];
            let head_gap_ns = settle.map(|s| gap(table.track_skew_ns, switch_ns + s));
            let cylinder_gap_ns = settle.map(|s| gap(turn_ns, one_ns + s));
            let table = &mut self.zones[zone];
            (table.head_gap_ns, table.cylinder_gap_ns) = (head_gap_ns, cylinder_gap_ns);
        }
    }

    /// What the disk is made of.
    pub fn parameters(&self) -> &DiskParameters {
        &self.parameters
    }

    /// Sectors of the disk.
    #[inline]
    pub fn sectors(&self) -> u64 {
        self.sectors
    }

    /// Bytes of the disk.
    pub fn bytes(&self) -> u64 {
        self.sectors * SECTOR_BYTES
    }

    /// Cylinders of the disk.
    pub fn cylinders(&self) -> u32 {
        self.cylinders
    }

    /// The place of a sector; `lba` lies on the disk.
    #[inline(always)]
    pub(super) fn locate(&self, lba: u64) -> Place {
        let mut zone = usize::from(self.hints[(lba >> self.hint_shift) as usize]);
        while lba >= self.zones[zone].end {
            zone += 1;
        }
        let table = &self.zones[zone];
        let (cylinder, rest) = table.cylinder.split(lba - table.first);
        let (head, sector) = table.track.split(rest);
        Place {
            zone: zone as u32,
            cylinder: table.first_cylinder + cylinder as u32,
            head: head as u32,
            sector: sector as u32,
            track_angle_ns: cylinder * table.cylinder_turn_ns + head * table.track_skew_ns,
        }
    }

    /// Lets the heads go on until they are in front of `to`, or the disk ends.
    #[inline(always)]
    pub(super) fn stream(&self, heads: &mut Heads, to: u64, write: bool) {
        let mut table = &self.zones[heads.place.zone as usize];
        let mut along_ns = table.along_ns(heads.place.sector);
        while heads.next < to {
            let left = table.track.by - u64::from(heads.place.sector);
            let passed = (to - heads.next).min(left);
            heads.place.sector += passed as u32;
            heads.next += passed;
            let last_ns = table.along_ns(heads.place.sector);
            heads.at_ns += last_ns - along_ns;
            along_ns = last_ns;
            if heads.next < to {
                let Some((next, gap_ns)) = self.next_track(&heads.place, write) else { break };
                heads.at_ns += gap_ns;
                (heads.place, along_ns) = (next, 0);
                table = &self.zones[next.zone as usize];
            }
        }
    }

    /// The first sector of the track behind that of `place`, and the time from the end of the one to the start
    /// of the other; `None` behind the last track.
    #[inline(always)]
    fn next_track(&self, place: &Place, write: bool) -> Option<(Place, u64)> {
        let table = &self.zones[place.zone as usize];
        let mut next = Place { sector: 0, ..*place };
        if place.head + 1 < self.parameters.heads {
            next.head += 1;
            next.track_angle_ns += table.track_skew_ns;
            return Some((next, table.head_gap_ns[usize::from(write)]));
        }
        next.head = 0;
        next.cylinder += 1;
        if next.cylinder < table.end_cylinder {
            let within = u64::from(next.cylinder - table.first_cylinder);
            next.track_angle_ns = within * table.cylinder_turn_ns;
            return Some((next, table.cylinder_gap_ns[usize::from(write)]));
        }
        if next.zone as usize + 1 == self.zones.len() {
            return None;
        }
        next.zone += 1;
        next.track_angle_ns = 0;
        let settle = if write { self.parameters.write_settle_ns } else { 0 };
        let moved_ns = self.seek_ns(1) + settle;
        Some((next, moved_ns + self.wait_ns(0, place.track_angle_ns + moved_ns)))
    }

    /// Time to move the heads over so many cylinders; 0 for none.
    ///
    /// A table of all distances would be as fast alone, and wait for memory where much else goes on.
    #[inline(always)]
    pub fn seek_ns(&self, cylinders: u32) -> u64 {
        if cylinders == 0 {
            return 0;
        }
        match &self.parameters.seek {
            SeekCurve::SquareRoot { base_ns, .. } => {
                // Through u32, which holds it: a conversion to u64 takes twice the instructions.
                base_ns + u64::from((self.root_ns * f64::from(cylinders).sqrt()) as u32)
            }
            SeekCurve::Table(points) => interpolate(points, cylinders),
        }
    }

    /// Angle of a place, below a revolution.
    #[inline(always)]
    pub(super) fn angle_ns(&self, place: &Place) -> u64 {
        let along_ns = self.zones[place.zone as usize].along_ns(place.sector);
        self.passing_ns(place.track_angle_ns + along_ns)
    }

    /// The angle that passes the heads at a time.
    #[inline(always)]
    pub(super) fn passing_ns(&self, now_ns: u64) -> u64 {
        self.revolution.split(now_ns).1
    }

    /// How long after `now_ns` the angle `angle_ns`, below a revolution, passes the heads.
    #[inline(always)]
    pub(super) fn wait_ns(&self, angle_ns: u64, now_ns: u64) -> u64 {
        let from = self.passing_ns(now_ns);
        let back = u64::from(angle_ns < from) * self.revolution.by;
        angle_ns + back - from
    }

    /// [`Geometry::wait_ns`] at the end of a move that begins when the angle `from_ns`, below a revolution, passes.
    #[inline(always)]
    pub(super) fn wait_after_ns(&self, angle_ns: u64, from_ns: u64, move_ns: u64) -> u64 {
        self.passing_ns(angle_ns + (self.turns_ns - from_ns) - move_ns)
    }
}

fn interpolate(points: &[(u32, u64)], distance: u32) -> u64 {
    let above = points.partition_point(|&(d, _)| d < distance);
    match (above.checked_sub(1).map(|below| points[below]), points.get(above)) {
        (Some((_, last)), None) => last,
        (None, Some(&(_, first))) => first,
        (Some((d0, t0)), Some(&(d1, t1))) => {
            let (along, of) = (i128::from(distance - d0), i128::from(d1 - d0));
            (i128::from(t0) + (i128::from(t1) - i128::from(t0)) * along / of) as u64
        }
        (None, None) => 0,
    }
}
