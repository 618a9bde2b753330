//! What a rotating disk is made of, as plain numbers.

use std::borrow::Cow;

/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 512;

/// A rotating disk. Times are nanoseconds, distances cylinders; cylinder 0 is the outermost.
///
/// Sectors are numbered along a track, then over the heads of a cylinder, then over the cylinders.
#[derive(Debug, Clone, PartialEq)]
pub struct DiskParameters {
    /// What the disk is called.
    pub name: &'static str,
    /// Time of one revolution.
    pub revolution_ns: u64,
    /// Data surfaces.
    pub heads: u32,
    /// Zones from the outermost inwards.
    pub zones: Cow<'static, [Zone]>,
    /// Time to move over a distance.
    pub seek: SeekCurve,
    /// Time to change to another head of the same cylinder.
    pub head_switch_ns: u64,
    /// Added to every seek and head switch before a write.
    pub write_settle_ns: u64,
    /// From the arrival of a command to the start of positioning.
    pub miss_overhead_ns: u64,
    /// From the arrival of a command to the first byte out of the buffer.
    pub hit_overhead_ns: u64,
    /// Time of a sector on the host's bus; 0: no limit. The bus works while the media is read.
    pub bus_sector_ns: u64,
    /// How far the disk reads ahead of a command in sectors; 0: not at all.
    pub read_ahead_sectors: u64,
    /// Whether a hit while the heads read ahead sends them further; otherwise only a request beyond the limit does.
    pub read_ahead_on_hit: bool,
    /// Whether writes are taken into a buffer, so that a sequence of them streams as reads do.
    pub write_buffer: bool,
}

/// Neighbouring cylinders with equally long tracks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Zone {
    /// How many cylinders.
    pub cylinders: u32,
    /// Sectors of a track.
    pub sectors_per_track: u32,
    /// How many sectors later the next head's track starts.
    pub track_skew_sectors: u32,
    /// How many sectors later the next cylinder's first track starts.
    pub cylinder_skew_sectors: u32,
}

/// Time to move the heads.
#[derive(Debug, Clone, PartialEq)]
pub enum SeekCurve {
    /// `base + root * sqrt(d / cylinders)` for a distance of d > 0.
    SquareRoot {
        /// Shortest seek.
        base_ns: u64,
        /// What a full stroke adds to it.
        root_ns: u64,
    },
    /// Points (distance, time) by rising distance with straight lines between; before the first and
    /// behind the last the time stays.
    Table(Cow<'static, [(u32, u64)]>),
}

const ATA_REVOLUTION_NS: u64 = 8_333_333;
const ATA_HEAD_SWITCH_NS: u64 = 300_000;
const ATA_ZONES: usize = 30;

/// Shortest seek of [`ATA_7200`], and what a full stroke adds.
const ATA_SEEK_NS: (u64, u64) = (900_000, 14_250_000);

/// A 7200 rpm ATA disk of 400 GB with an ATA-100 bus, as the dissertation's (§6.2.6: IBM Deskstar 7K400).
///
/// No public model of that disk exists. Revolution, heads, zones and seek curve are given; they alone make the
/// row of random layouts of Table 6-1 from 32 sectors up, and the 53 MB/s of its sequential row (8.5 ms of mean
/// seek + 4.2 ms of half a rotation + the media). Fitted to the sequential row: 0.95 ms from a command to the first
/// byte of a buffer hit, 145 KiB of read-ahead, 77 of the bus's 100 MB/s, 0.3 ms of head switch; they reproduce all of
/// its eight cells within 13 %. A read-ahead that is a multiple of a blocking factor resonates with it: 288
/// sectors instead of 290 would put the cell of 32 at 1.35. The overhead of 0.2 ms without a hit is picked by eye
/// between 0 and 0.4, which change no cell of the other row by more than 4 %.
pub const ATA_7200: DiskParameters = DiskParameters {
    name: "ata7200",
    revolution_ns: ATA_REVOLUTION_NS,
    heads: 10,
    zones: Cow::Borrowed(&ATA_7200_ZONES),
    seek: SeekCurve::SquareRoot { base_ns: ATA_SEEK_NS.0, root_ns: ATA_SEEK_NS.1 },
    head_switch_ns: ATA_HEAD_SWITCH_NS,
    write_settle_ns: 0,
    miss_overhead_ns: 200_000,
    hit_overhead_ns: 950_000,
    bus_sector_ns: 6_656,
    read_ahead_sectors: 290,
    read_ahead_on_hit: false,
    write_buffer: true,
};

/// 30 zones of 1170 down to 570 sectors a track over 89,800 cylinders; skews just hide the switches.
static ATA_7200_ZONES: [Zone; ATA_ZONES] = {
    let empty = Zone { cylinders: 0, sectors_per_track: 0, track_skew_sectors: 0, cylinder_skew_sectors: 0 };
    let mut zones = [empty; ATA_ZONES];
    let mut zone = 0;
    while zone < ATA_ZONES {
        let (first, last) = (89_800 * zone / ATA_ZONES, 89_800 * (zone + 1) / ATA_ZONES);
        let sectors = 1170 - 600 * zone as u64 / (ATA_ZONES as u64 - 1);
        // One cylinder is a seek of 0.9 + 14.25 / sqrt(89,800) ms.
        let one_cylinder_ns = ATA_SEEK_NS.0 + 47_553;
        zones[zone] = Zone {
            cylinders: (last - first) as u32,
            sectors_per_track: sectors as u32,
            track_skew_sectors: (ATA_HEAD_SWITCH_NS * sectors).div_ceil(ATA_REVOLUTION_NS) as u32 + 1,
            cylinder_skew_sectors: (one_cylinder_ns * sectors).div_ceil(ATA_REVOLUTION_NS) as u32 + 1,
        };
        zone += 1;
    }
    zones
};
