//! The layout planner: how many devices an access uses, and which (dissertation §5.3.1).
//!
//! - *How many*: no fewer than the wanted bandwidth divided by the average device's; with no wish, every usable
//!   device up to [`DEVICES_DEFAULT_MAX`]; never so many that a device expects fewer than [`BLOCKS_PER_DEVICE_MIN`]
//!   blocks, unless failure domains ask for them.
//! - *Which*: alive, healthy, with room; then lightly loaded, with larger free space, measured fast, taken in turn from
//!   every failure domain and site; a little chance mixes them, so that not every object lands on the same ones.
//!
//! With a [`Quality`] wished for, as few devices as meet it, or [`PlanError`] with what the cluster can give; what each
//! device is to keep for the access is part of the plan ([`Planned::reserve_bytes_per_s`]; [`fetch()`] for reads, [`revise()`] for changes of some bytes).
//!
//! How long devices are waited for that are asked to keep their part say [`Answers`].
//!
//! Also [`segments`]: how an object is cut, [`Dealt`]: that its chunks ask the same of every device, and [`feasible`]: whether a cluster can meet a policy at all.
//!
//! For objects that are there: [`update()`], what a change of some bytes does to the coded blocks; [`in_place()`], whether one of
//! a parity segment is made where its chunks lie, and who is sent what; [`trim`](fn@trim), which blocks go for a smaller
//! redundancy; [`Places`], where others may go, and [`given()`], which of them go where; [`growth()`] and [`cut()`], what becomes of a file's segments when it is another
//! size; [`Attempts`], when a change that was not made is made again.
//!
//! Left out: admission (each node decides for itself; what it refuses is planned anew) and the availability history of a
//! device (not measured yet).

mod amend;
mod answers;
mod choose;
mod deal;
mod fetch;
mod in_place;
mod pace;
mod quality;
mod replace;
mod resize;
mod revise;
mod segment;
mod spares;
mod spread;
#[cfg(test)]
pub(crate) mod tests;
mod trim;
mod unserved;
mod update;

pub use amend::{Again, Attempts, Places, Unmade, amended, stored, to_be_had};
pub use answers::Answers;
pub use choose::{candidates, choose, choose_for, feasible, feasible_among, holders};
pub use deal::Dealt;
pub use fetch::{Fetch, Holding, fetch, held};
pub use in_place::{ChunkChange, in_place, worth_waiting};
pub use pace::Expected;
pub use quality::{Quality, QualityError};
pub use replace::{Replaced, dialled, given, only_needed, to_be_kept};
pub use resize::{Cut, Growth, Longer, TooLong, cut, file_bytes_max, growth};
pub use revise::{Part, parts, revise};
pub use segment::{
    SegmentPlan, beyond_layouts, few_segments, following, segment_bytes, segments, segments_of,
};
pub use trim::{Trim, TrimError, trim};
pub use unserved::Unserved;
pub use update::{Difference, Update, update};

use crate::{
    DeviceId, NodeId,
    message::DeviceHealth,
    policy::{Parity, Policy},
    words::{counted, counted_of},
    write::{Fewer, Target},
};
use core::time::Duration;

/// Devices an object is spread over when neither the policy nor the caller asks for a number. 64 is the
/// dissertation's: enough devices of 20 MB/s to fill a link of 10 Gb/s (§5.3.1).
pub const DEVICES_DEFAULT_MAX: u32 = 64;
/// Blocks a device should expect at least: below this, opening it costs more than it brings. Picked by eye.
pub const BLOCKS_PER_DEVICE_MIN: u32 = 4;
/// Bandwidth reserved beyond what is wished for, as a share of it: opening, the last flush and the commit take time in
/// which nothing moves. Picked by eye.
const HEADROOM: f64 = 0.1;
/// The part of its patience that a write has with the last chunks where fewer will do, ...
const PATIENCE_FEWER: u32 = 2;
/// ... and where their devices stall already. Both picked by eye, 5 and 2.5 s: longer than nearly all stalls of a busy disk, shorter
/// than what a person waits for without wondering.
const PATIENCE_STALLED: u32 = 4;
/// Round trips of a put: begin, reserve, open, commit.
const ROUND_TRIPS_PUT: u32 = 4;
/// Round trips of a get: look up, reserve, open.
const ROUND_TRIPS_GET: u32 = 3;
/// Round trips of an update: look up, begin, reserve, read, write, commit.
const ROUND_TRIPS_UPDATE: u32 = 6;

/// A device that could be chosen, as last heard of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// The device.
    pub device: DeviceId,
    /// The node that serves it.
    pub node: NodeId,
    /// Its node's site.
    pub site: String,
    /// Bytes free.
    pub free_bytes: u64,
    /// Requests waiting in its queue.
    pub queue_length: u32,
    /// Measured reading speed in bytes per second; 0 before the first measurement.
    pub read_bytes_per_s: u64,
    /// Measured writing speed in bytes per second; 0 before the first measurement.
    pub write_bytes_per_s: u64,
    /// Whether its node was heard of lately.
    pub alive: bool,
    /// How it is.
    pub health: DeviceHealth,
    /// Reading speed that others reserved, in bytes per second.
    pub reserved_read_bytes_per_s: u64,
    /// Writing speed that others reserved, in bytes per second.
    pub reserved_write_bytes_per_s: u64,
    /// What is left of its speed when 2, 4, 8 and 16 streams share it, in parts per million; 0 where unknown.
    pub sharing_ppm: [u32; 4],
    /// Whether it refused a moment ago to keep bandwidth for this access: it can promise nothing.
    pub refused: bool,
    /// Chunks of the same object that it was given before ([`Dealt`]): the more, the later its turn.
    pub given: u32,
}

impl Candidate {
    /// Whether it answers reads and changes of what it holds, as far as is known. One that stalls or has failed may take what it is
    /// asked, and keep bandwidth for it, and moves nothing.
    fn serves(&self) -> bool {
        self.alive && matches!(self.health, DeviceHealth::Ok | DeviceHealth::Full)
    }
}

/// What is wished for beyond a place to store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wish {
    /// It.
    pub quality: Quality,
    /// A round trip to the cluster, as measured just now.
    pub round_trip: Duration,
}

impl Wish {
    /// The policy of chunks, with as few of them at least as it allows and tolerates what is wished for; none of other policies.
    pub fn fewest(&self, policy: &Policy) -> Option<Parity> {
        let Policy::Parity(parity) = policy else { return None };
        let tolerates = parity.data() + self.quality.tolerate.unwrap_or(0);
        let least = parity.least_chunks().max(tolerates).min(parity.chunks());
        Some(Parity { least_chunks: Some(least), ..*parity })
    }

    /// The wish for `part` of the bytes of an access that is made part after part: its share of the time.
    pub fn part(&self, part: u64, whole: u64) -> Self {
        let share = |span: Duration| span.mul_f64((part as f64 / whole.max(1) as f64).min(1.0));
        let quality = Quality { latency: self.quality.latency.map(share), ..self.quality };
        Self { quality, round_trip: share(self.round_trip) }
    }

    /// The wish once so much of its time has passed.
    pub fn after(&self, spent: Duration) -> Self {
        let left = |latency: Duration| latency.saturating_sub(spent);
        let quality = Quality { latency: self.quality.latency.map(left), ..self.quality };
        Self { quality, ..*self }
    }
}

/// What is to be stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wanted {
    /// The bucket's policy.
    pub policy: Policy,
    /// Bytes to store with this choice of devices: a segment or a whole object.
    pub length: u64,
    /// Wanted bandwidth in payload bytes per second; none for as much as the devices give.
    pub bandwidth_bytes_per_s: Option<u64>,
    /// Mixes devices of about equal merit.
    pub seed: u64,
}

/// Which devices to use, best first.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// What it meets: the policy in [`Wanted`], or that with fewer parity chunks.
    pub policy: Policy,
    /// Whether devices that stall are among those to write to: no others would be enough.
    pub stalled: bool,
    /// The devices to write to.
    pub devices: Vec<Planned>,
    /// Devices to turn to when one of those fails, in this order; some of those that there are.
    pub spares: Vec<Planned>,
    /// Failure domains over both; they are numbered from 0.
    pub domains: u32,
}

/// A device of a plan.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// The device.
    pub device: DeviceId,
    /// The node that serves it.
    pub node: NodeId,
    /// Its failure domain, below [`Plan::domains`].
    pub domain: u32,
    /// The share of all blocks it is expected to take, by measured speed; the devices' add up to 1, a spare's is 0.
    pub share: f64,
    /// Measured writing speed in bytes per second, the median of the others where it was not measured; 0 where none
    /// was.
    pub write_bytes_per_s: u64,
    /// Payload bytes per second that it is to keep for the access; 0 without a wish.
    pub reserve_bytes_per_s: u64,
}

impl Plan {
    /// How long a write by this plan is patient with chunks that the segment could be stored without, where it usually is for
    /// `usual`; none where it could not.
    pub fn fewer(&self, usual: Duration, wish: &Wish) -> Option<Fewer> {
        let parity = wish.fewest(&self.policy)?;
        let chunks = parity.chunks() - parity.least_chunks();
        // A stall may be over before the first block is sent.
        let part = if self.stalled { PATIENCE_STALLED } else { PATIENCE_FEWER };
        (chunks > 0).then_some(Fewer { chunks, patience: usual / part })
    }

    /// The devices and the spares as a write core takes them.
    pub fn targets(&self) -> (Vec<Target>, Vec<Target>) {
        let targets = |planned: &[Planned]| {
            let target = |planned: &Planned| Target {
                device: planned.device,
                domain: planned.domain,
                write_bytes_per_s: planned.write_bytes_per_s,
            };
            planned.iter().map(target).collect()
        };
        (targets(&self.devices), targets(&self.spares))
    }
}

/// How a segment is written and read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Coded blocks, N floats.
    Rateless,
    /// RAID-0, or whole copies of it, each one device further on.
    Striped,
    /// Copies of one block.
    Replicated,
    /// Chunks of a fixed code, each whole on a device in a failure domain of its own.
    Parity,
}

/// Why no plan can be made. The numbers say what is missing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// Too few failure domains or devices.
    #[error(
        "the policy needs {} that can take data, {available} can: {} missing",
        counted_of(*needed, domain),
        needed.saturating_sub(*available)
    )]
    Unmet {
        /// `nodes`, `devices` or `sites`.
        domain: &'static str,
        /// How many the policy needs.
        needed: u32,
        /// How many there are.
        available: u32,
    },
    /// Too little room.
    #[error(
        "{needed_bytes} bytes with redundancy do not fit: {free_bytes} bytes are free on the devices that can take data; \
         delete objects or add devices"
    )]
    Space {
        /// Bytes that would be stored, redundancy included.
        needed_bytes: u64,
        /// Bytes free on devices that are alive and well.
        free_bytes: u64,
    },
    /// Room enough in all, and on too few failure domains or devices.
    #[error(
        "the policy needs {} with {bytes} bytes of room, {available} have it: delete objects, or add devices to those that \
         are full",
        counted_of(*needed, domain)
    )]
    Room {
        /// `nodes`, `devices` or `sites`.
        domain: &'static str,
        /// How many the policy needs.
        needed: u32,
        /// How many there are.
        available: u32,
        /// Bytes that each has to take at least.
        bytes: u64,
    },
    /// Too few devices or sites for a wish.
    #[error(
        "wanted {}, {available} can take data: {} missing",
        counted_of(*wanted, wish),
        wanted.saturating_sub(*available)
    )]
    TooFew {
        /// `devices` or `sites`.
        wish: &'static str,
        /// How many are wished for.
        wanted: u32,
        /// How many there are.
        available: u32,
    },
    /// A wish for fewer devices than the policy, or the wish for sites, needs.
    #[error(
        "wanted {}, but what is stored has to be on {}: wish for {needed} at least",
        counted(wanted, "device"), counted_of(*needed, domain)
    )]
    FewDevices {
        /// Devices wished for.
        wanted: u32,
        /// The fewest that can be on so many domains.
        needed: u32,
        /// `nodes`, `devices` or `sites`.
        domain: &'static str,
    },
    /// A wish for more sites than a small object has copies.
    #[error(
        "wanted {}, but an object so small is stored as {}: wish for {copies} at most",
        counted(wanted, "site"),
        if *copies == 1 { "1 copy".to_owned() } else { format!("{copies} copies") }
    )]
    FewCopies {
        /// Sites wished for.
        wanted: u32,
        /// Copies, each on one device.
        copies: u32,
    },
    /// The devices do not give the wished bandwidth.
    #[error(
        "wanted {}{}, the {} that can {verb} {} {}{}", rate(*wanted_bytes_per_s), for_all(*accesses),
        counted(devices, "device"), if *devices == 1 { "gives" } else { "give" }, rate(*given_bytes_per_s),
        but_for(*reserved_bytes_per_s)
    )]
    Bandwidth {
        /// Payload bytes per second wished for, of each access.
        wanted_bytes_per_s: u64,
        /// Accesses at the same time.
        accesses: u32,
        /// Devices that could serve it.
        devices: u32,
        /// `take data` or `send it`.
        verb: &'static str,
        /// Payload bytes per second that they give all accesses together, redundancy counted.
        given_bytes_per_s: u64,
        /// What they could give beyond that if nobody had reserved anything.
        reserved_bytes_per_s: u64,
    },
    /// The devices do not give the wished latency.
    #[error(
        "wanted {bytes} bytes within {}{}, the {} that can {verb} {} {} ({} when they are slow, {} of it \
         round trips){}",
        millis(*wanted), for_all(*accesses), counted(devices, "device"), if *devices == 1 { "takes" } else { "take" },
        millis(expected.mean), millis(expected.late), millis(*round_trips), but_for(*reserved_bytes_per_s)
    )]
    Latency {
        /// Bytes of the access.
        bytes: u64,
        /// From the call to its end.
        wanted: Duration,
        /// Accesses at the same time.
        accesses: u32,
        /// Devices that could serve it.
        devices: u32,
        /// `take data` or `send it`.
        verb: &'static str,
        /// What is expected of them.
        expected: Expected,
        /// The part of it that no device could shorten.
        round_trips: Duration,
        /// Payload bytes per second that they could give beyond what they do if nobody had reserved anything.
        reserved_bytes_per_s: u64,
    },
    /// A wish for less than the bucket promises.
    #[error(
        "{wish}={wanted} is less than the bucket's {bucket}: a wish can raise what a bucket promises, not lower it"
    )]
    BelowBucket {
        /// Which.
        wish: &'static str,
        /// What is wished for.
        wanted: String,
        /// What the bucket has.
        bucket: String,
    },
    /// A wish that the bucket's policy cannot carry.
    #[error("a bucket of policy `{policy}` has no {wish} to wish for")]
    Unsupported {
        /// Which.
        wish: &'static str,
        /// The bucket's policy.
        policy: String,
    },
    /// A wish for a pace of an access of which too little is known beforehand to promise it.
    #[error("no {wish} can be promised to {access}: {instead}")]
    Unforeseen {
        /// `bandwidth` or `latency`.
        wish: &'static str,
        /// Which access, and what nobody knows of it.
        access: &'static str,
        /// What to do.
        instead: &'static str,
    },
}

impl PlanError {
    /// What was said of `part` bytes of an access of `whole` bytes that is made part after part ([`Wish::part`] of `wish`), said of all of
    /// it.
    pub fn of_whole(self, (part, whole): (u64, u64), wish: &Wish) -> Self {
        let times = (whole as f64 / part.max(1) as f64).max(1.0);
        let all =
            |span: Duration| Duration::try_from_secs_f64(span.as_secs_f64() * times).unwrap_or(Duration::MAX);
        match self {
            Self::Latency {
                wanted,
                accesses,
                devices,
                verb,
                expected,
                round_trips,
                reserved_bytes_per_s,
                ..
            } => Self::Latency {
                bytes: whole,
                wanted: wish.quality.latency.unwrap_or(wanted),
                accesses,
                devices,
                verb,
                expected: Expected { mean: all(expected.mean), late: all(expected.late) },
                round_trips: all(round_trips),
                reserved_bytes_per_s,
            },
            other => other,
        }
    }

    /// What was said of what was left of `wish` once `spent` of its time had passed ([`Wish::after`]), said of all of it.
    pub fn after(mut self, spent: Duration, wish: &Wish) -> Self {
        if let Self::Latency { wanted, expected, .. } = &mut self {
            *wanted = wish.quality.latency.unwrap_or(*wanted);
            expected.mean = expected.mean.saturating_add(spent);
            expected.late = expected.late.saturating_add(spent);
        }
        self
    }

    /// Whether waiting may help: others have reserved what is missing.
    pub fn is_reserved_by_others(&self) -> bool {
        match self {
            Self::Bandwidth { reserved_bytes_per_s, .. } | Self::Latency { reserved_bytes_per_s, .. } => {
                *reserved_bytes_per_s > 0
            }
            _ => false,
        }
    }
}

/// `1.1 GB/s`, `400 MB/s`, `17 B/s`: three digits.
fn rate(bytes_per_s: u64) -> String {
    let value = bytes_per_s as f64;
    let (scaled, unit) = match bytes_per_s {
        1_000_000_000.. => (value / 1e9, "GB/s"),
        1_000_000.. => (value / 1e6, "MB/s"),
        1_000.. => (value / 1e3, "kB/s"),
        _ => return format!("{bytes_per_s} B/s"),
    };
    let rounded = (scaled * 10.0).round() / 10.0;
    format!("{rounded} {unit}")
}

fn for_all(accesses: u32) -> String {
    if accesses > 1 { format!(" for each of {accesses} accesses") } else { String::new() }
}

fn but_for(reserved_bytes_per_s: u64) -> String {
    match reserved_bytes_per_s {
        0 => String::new(),
        reserved => format!("; {} more are reserved by others: try again later", rate(reserved)),
    }
}

/// Whole milliseconds, and microseconds where those would say little or nothing of it.
fn millis(span: Duration) -> String {
    match span.as_micros() {
        _ if span == Duration::MAX => "for ever".to_owned(),
        micros @ 1..1000 => format!("{micros} us"),
        micros @ 1000..10_000 => format!("{} ms", (micros as f64 / 100.0).round() / 10.0),
        _ => format!("{} ms", span.as_millis()),
    }
}
