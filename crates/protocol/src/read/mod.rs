//! Cores that fetch the blocks of one segment (dissertation §4.1.2, §4.3.3): which devices are asked for what, how
//! much may be on the way, what happens when a device is slow, fails or lies, and when the read is over.
//!
//! | core | for | asks |
//! |---|---|---|
//! | [`Adaptive`] | rateless segments, copies of small objects | what K needs from those who have it soonest, then what they can send in time |
//! | [`Speculative`] | rateless and replicated segments (RRAID-S) | everything, or K plus a few, until the decoder has enough |
//! | [`Replicas`] | replicated segments read adaptively (RRAID-A), and ranges of all | one copy of each block; the rest of the slow, of those that are done |
//! | [`Striped`] | RAID-0, and ranges of it | every wanted block from its one holder |
//! | [`Ranged`] | ranges of rateless segments, parity segments and ranges of them | the originals that hold the bytes, then what a decode needs |
//!
//! What is too small for any of them is read from the one node that has it, and decoded where that is late by [`Hedge`]. From one read of
//! chunks to the next, [`Caution`] keeps how late is late, and who is.
//!
//! All take [`Input`] and give [`Action`]; a driver runs any of them through [`ReadCore`] and has [`whole`] choose. One stream is open at each
//! device at a time: after `Open`, the driver reports `Opened`, `Slice`s and `Block`s, and one of `Ended` and
//! `Failed`; only then may the core open that device again. After `Cancel` nothing is expected of the device, and
//! what still comes is only counted; once it has ended, a core that is not over may open it again. Every `Block` and `Corrupt` of a stream is reported before its `Ended`: what was
//! asked and neither came nor was reported by then counts as gone from that device, but after a `Finish`.
//!
//! Left out: decoding (the driver tells how many blocks the decoder lacks), decrypting, caching.

mod adaptive;
mod again;
mod caution;
mod flow;
mod forecast;
mod hedge;
mod ranged;
mod replicas;
mod source;
mod speculative;
mod striped;
#[cfg(test)]
mod tests;

pub use adaptive::Adaptive;
pub use caution::{Caution, Late};
pub use hedge::Hedge;
pub use ranged::Ranged;
pub use replicas::Replicas;
pub use speculative::Speculative;
pub use striped::Striped;

use crate::{
    BlockIndex, DeviceId, IndexRanges, Time,
    layout::{CodeKind, SegmentLayout},
    message::{Fault, NodeFault, PAYLOAD_BYTES_MAX, Want},
    policy::{Policy, ReplicaRead},
    words::{are, counted, counted_are},
};
use core::time::Duration;
use steadfast_codes::rateless::Effort;

/// How long a read waits while nothing at all arrives, unless the caller says otherwise: long enough for a disk
/// that spins up or a server that restarts; a progressing read is never ended by it.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Requests waiting at a device from which others are held up by extras: what two readers keep there, four slices each
/// ([`crate::serve`]).
const BUSY_REQUESTS: f64 = 8.0;

/// How much is asked beyond the K blocks that are needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestRule {
    /// All blocks from all devices (§4.1.2), each within its window.
    All,
    /// The same without windows: each device may send all it has until it is told to stop. What the paper evaluates (§6.2.2:
    /// a network without limits, one request); over a long way it wastes what a round trip carries.
    AllAtOnce,
    /// K, what the code is expected to need beyond, and this many; more when devices fail or lag.
    KPlus(u32),
    /// K and what the code is expected to need beyond, of the devices that are expected to have it soonest; more when
    /// measured pace says that a straggler would hold the read up.
    Adaptive {
        /// Bytes that may be sent in vain, in hundredths of the segment's.
        waste_percent: u8,
    },
}

impl RequestRule {
    /// Whether everything is asked for.
    pub fn is_all(self) -> bool {
        matches!(self, Self::All | Self::AllAtOnce)
    }

    /// The adaptive rule under its usual budget: what a read over 100 ms may waste.
    pub const ADAPTIVE: RequestRule = RequestRule::Adaptive { waste_percent: 15 };
}

impl Default for RequestRule {
    fn default() -> Self {
        Self::ADAPTIVE
    }
}

/// What a read is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct ReadPlan {
    /// Who holds which blocks, and how fast it is expected to read.
    pub sources: Vec<Source>,
    /// K: blocks that are enough, but for the code's reception overhead.
    pub originals: u32,
    /// Blocks the code is expected to need beyond K.
    pub extra_blocks: u32,
    /// Bytes in each block.
    pub block_bytes: u32,
    /// How much to ask for.
    pub rule: RequestRule,
    /// How long to wait while nothing arrives; [`PATIENCE`] unless the caller knows better.
    pub patience: Duration,
    /// How long a request and its answer take on the way, where the caller has seen it.
    pub round_trip: Option<Duration>,
    /// The largest payload of a message: what a frame takes, unless a simulation says otherwise.
    pub payload_bytes_max: u32,
    /// What decoding adds to the read; none where originals are worth no more than other blocks.
    pub decoding: Option<Decoding>,
    /// Whether the last block that one device owes is asked for from a second one too, where replicas are read adaptively.
    pub races: bool,
    /// Whether a server that is out of reach is waited for a few seconds, where the read cannot do without it.
    pub waits: bool,
    /// How long reads of single originals wait for a device, and which they do without: what [`Caution`] has learned.
    pub late: Late,
}

/// What it takes to compute originals that did not come as they are, where the indices below K are they.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decoding {
    /// For each of them, as long as that is less than the rest.
    pub alone: Duration,
    /// What is done once, however many those are.
    pub first: Duration,
    /// And for each of them.
    pub each: Duration,
}

impl Decoding {
    /// Seconds for so many of them: a code's effort, with seconds for blocks.
    fn seconds(&self, coded: u32) -> f64 {
        let [alone, first, each] = [self.alone, self.first, self.each].map(|span| span.as_secs_f64());
        Effort { alone, first, each }.of(coded)
    }
}

/// One device that holds blocks of the segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The device.
    pub device: DeviceId,
    /// The blocks it holds.
    pub blocks: IndexRanges,
    /// Expected reading speed in bytes per second; 0 where unknown.
    pub read_bytes_per_s: u64,
    /// Requests of others that waited there when it was last heard of.
    pub queue_length: u32,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The stream's OPEN went out.
    Opened {
        /// To this device.
        device: DeviceId,
    },
    /// Payload arrived; its credit is used.
    Slice {
        /// From this device.
        device: DeviceId,
        /// Part of this block.
        index: BlockIndex,
        /// Payload bytes.
        bytes: u32,
    },
    /// A whole block was verified and given to the decoder.
    Block {
        /// From this device.
        device: DeviceId,
        /// The block.
        index: BlockIndex,
        /// Blocks that the decoder lacks now, as a lower bound; 0 when it can decode.
        missing: u32,
    },
    /// The device has sent all it was asked for and still has (END).
    Ended {
        /// The device.
        device: DeviceId,
    },
    /// A block arrived damaged and was dropped.
    Corrupt {
        /// From this device.
        device: DeviceId,
        /// The block.
        index: BlockIndex,
    },
    /// The stream is gone: refused, failed, or its connection was lost or could not be made.
    Failed {
        /// The device.
        device: DeviceId,
        /// Why.
        cause: Cause,
    },
    /// Time passed.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Open a read stream.
    Open {
        /// At this device.
        device: DeviceId,
        /// For these blocks.
        want: Want,
        /// The first credit, in payload bytes.
        credit_bytes: u32,
    },
    /// Grant more credit.
    Grant {
        /// To this device's stream.
        device: DeviceId,
        /// In payload bytes.
        bytes: u32,
    },
    /// Take back what the device's stream was granted and has not begun to use: it sends what it is reading, and ends.
    Finish {
        /// The device.
        device: DeviceId,
    },
    /// Cancel the device's stream.
    Cancel {
        /// The device.
        device: DeviceId,
    },
    /// Enough has arrived. The last action.
    Done(ReadDone),
    /// The read cannot succeed. The last action, after every stream was cancelled.
    Failed(ReadError),
}

/// What a read took, in blocks and payload bytes. [`ReadCore::counts`] goes on counting what arrives after the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadDone {
    /// Blocks asked for.
    pub requested_blocks: u32,
    /// Whole verified blocks received.
    pub received_blocks: u32,
    /// Payload bytes received.
    pub received_bytes: u64,
    /// Blocks that brought the decoder nearer its end.
    pub useful_blocks: u32,
    /// Useful blocks that are no originals, where originals are known from others ([`ReadPlan::decoding`]).
    pub coded_blocks: u32,
    /// Blocks that arrived damaged.
    pub corrupt_blocks: u32,
    /// Devices that sent at least one block.
    pub devices: u32,
    /// Devices that failed.
    pub devices_failed: u32,
    /// Blocks asked for although what had been asked for before was enough, because it was late.
    pub extra_blocks: u32,
    /// Those of them that were useful before the ones they stood in for.
    pub extra_won: u32,
}

/// Why a stream is gone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Cause {
    /// The node cannot be reached, or its connection was lost.
    #[error("{0}")]
    Unreachable(String),
    /// The node answered with a fault.
    #[error(transparent)]
    Fault(Fault),
}

impl Cause {
    /// Whether it is that a chunk is not what it was when its last change was acknowledged, as its node says.
    pub fn lacks_changes(&self) -> bool {
        matches!(self, Self::Fault(Fault::Node(NodeFault::LacksChanges { .. })))
    }
}

/// Why a read cannot succeed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ReadError {
    /// Too many blocks are lost or out of reach.
    #[error(
        "{}: {} of {} failed{}",
        shortfall(*missing, *originals, *reachable), failed.len(), counted(devices, "device"), first_of(failed)
    )]
    NotEnough {
        /// Blocks that the decoder still lacks.
        missing: u32,
        /// K.
        originals: u32,
        /// Blocks that could still arrive.
        reachable: u32,
        /// Devices that hold blocks of the segment.
        devices: u32,
        /// Those that failed, and why.
        failed: Vec<(DeviceId, Cause)>,
    },
    /// Nothing arrived from any device for as long as the caller wanted to wait.
    #[error(
        "nothing arrived for {} ms: {} missing and {} silent",
        waited.as_millis(), counted_are(missing, "block"), counted_are(silent.len(), "device")
    )]
    Stalled {
        /// Blocks that are still lacking.
        missing: u32,
        /// For how long nothing arrived.
        waited: Duration,
        /// Devices that were asked and did not answer.
        silent: Vec<DeviceId>,
    },
    /// Blocks whose only holder failed or lost them (RAID-0 survives no failure).
    #[error("{} out of reach on device {device}{}", counted_are(blocks, "block"), because(cause))]
    OutOfReach {
        /// The device.
        device: DeviceId,
        /// How many wanted blocks were still to come from it.
        blocks: u32,
        /// Why, if the stream failed; absent when the blocks are damaged or gone.
        cause: Option<Cause>,
    },
    /// Blocks that no device of the layout holds.
    #[error("the layout lists no holder for {blocks} of the wanted blocks, first {first}")]
    NoHolder {
        /// How many.
        blocks: u32,
        /// The first of them.
        first: BlockIndex,
    },
    /// Chunks that change in place, of which no common state was found. They changed, or those that had no room to answer will have: nothing of
    /// them is lost then. Where it stays so a device lacks changes that others have given up.
    #[error(
        "its chunks were asked {} for one state of them all, and changed meanwhile or had no room to answer: try again; where it stays so, \
         a disk has lost changes, and what is out of reach is needed",
        counted(attempts, "time")
    )]
    Unsettled {
        /// How often they were asked.
        attempts: u32,
    },
}

/// The contract of all cores; see the crate's head for the three steps.
pub trait ReadCore {
    /// Something happened at `now`, which never goes backwards.
    fn handle(&mut self, now: Time, input: Input);
    /// The next action to carry out.
    fn poll(&mut self) -> Option<Action>;
    /// When to call [`ReadCore::handle`] with [`Input::Tick`], should nothing happen before; `None` once it is over.
    fn wake_at(&self) -> Option<Time>;
    /// What was asked and received so far, also after the end.
    fn counts(&self) -> ReadDone;
    /// How late is late has changed ([`Caution::factor_beside`]).
    fn heed(&mut self, now: Time, factor: u32) {
        let _ = (now, factor);
    }
    /// Once it is over: devices that still owed something, and others had been asked for it as well, because they were late.
    fn late(&self) -> Vec<DeviceId> {
        Vec::new()
    }
}

/// The core that reads a whole segment as its code, its bucket's policy and the plan's rule ask.
///
/// # Panics
/// When the layout's code is none ([`crate::layout::CodeSpec::code`]).
pub fn whole(now: Time, plan: ReadPlan, layout: &SegmentLayout, policy: &Policy) -> Box<dyn ReadCore + Send> {
    let rotated = layout.code.kind == CodeKind::Replicated && layout.code.originals > 1;
    if let CodeKind::ReedSolomon { data, .. } = layout.code.kind
        && matches!(plan.rule, RequestRule::Adaptive { .. })
    {
        // Data chunks have the bytes as they are, and what lies behind the last byte is not asked for.
        let wanted = layout.length.div_ceil(plan.block_bytes.max(1).into()).min(plan.originals.into());
        let wanted = IndexRanges::from(0..u32::try_from(wanted).expect("at most K"));
        return Box::new(Ranged::of_chunks(now, plan, wanted, data));
    }
    // Asking for all is what the speculative read of replicas is; otherwise they are read as the policy says.
    let all = plan.rule.is_all();
    let speculative =
        all || matches!(policy, Policy::Replicated(policy) if policy.read == ReplicaRead::Speculative);
    if rotated && layout.code.originals == layout.stored_blocks() {
        let wanted = IndexRanges::from(0..plan.originals);
        Box::new(Striped::new(now, plan, &wanted))
    } else if rotated && speculative {
        let rule = if all { plan.rule } else { RequestRule::All };
        Box::new(Speculative::new(now, ReadPlan { rule, ..plan }))
    } else if rotated {
        Box::new(Replicas::new(now, plan))
    } else if matches!(plan.rule, RequestRule::Adaptive { .. }) {
        Box::new(Adaptive::new(now, plan))
    } else {
        Box::new(Speculative::new(now, plan))
    }
}

impl ReadPlan {
    /// The plan of a segment's read; `seen` gives each device's expected reading speed in bytes per second, 0 where
    /// unknown, and the requests waiting there; `extra_blocks`, the code's expected reception overhead in blocks, which a
    /// rule that asks for everything does not need and does not compute.
    pub fn new(
        layout: &SegmentLayout,
        rule: RequestRule,
        extra_blocks: impl FnOnce() -> u32,
        seen: impl Fn(DeviceId) -> (u64, u32),
    ) -> Self {
        let sources = layout.holders.iter().map(|holder| {
            let (read_bytes_per_s, queue_length) = seen(holder.device);
            Source { device: holder.device, blocks: holder.blocks(), read_bytes_per_s, queue_length }
        });
        Self {
            sources: sources.collect(),
            originals: layout.code.originals,
            extra_blocks: if rule.is_all() { 0 } else { extra_blocks() },
            block_bytes: layout.block_bytes,
            rule,
            patience: PATIENCE,
            round_trip: None,
            payload_bytes_max: PAYLOAD_BYTES_MAX,
            decoding: None,
            waits: true,
            races: true,
            late: Late::default(),
        }
    }

    /// Whether the devices' queues were long when last heard of.
    fn is_busy(&self) -> bool {
        let waiting: f64 = self.sources.iter().map(|source| f64::from(source.queue_length)).sum();
        waiting >= BUSY_REQUESTS * self.sources.len().max(1) as f64
    }

    /// Whether originals have to be computed from this block.
    fn is_coded(&self, index: BlockIndex) -> bool {
        self.decoding.is_some() && index >= self.originals
    }

    /// Payload bytes in a slice of a block: a whole block, or as much as a message takes.
    pub fn slice_bytes(&self) -> u32 {
        self.block_bytes.min(self.payload_bytes_max)
    }
}

/// How many blocks are needed and how many of them can be had.
fn shortfall(missing: u32, originals: u32, reachable: u32) -> String {
    let needed = if missing < originals {
        format!("{missing} of {} still needed", counted_are(originals, "block"))
    } else {
        format!("{} needed", counted_are(missing, "block"))
    };
    match reachable {
        0 => format!("{needed} and none is in reach"),
        _ if reachable < missing => format!("{needed} and only {} in reach", are(reachable)),
        // Enough in number, and still no K of them decode.
        _ => format!("{needed} and the {} in reach do not give them", counted(reachable, "other")),
    }
}

fn first_of(failed: &[(DeviceId, Cause)]) -> String {
    failed.first().map_or_else(String::new, |(device, cause)| format!(" (first {device}: {cause})"))
}

fn because(cause: &Option<Cause>) -> String {
    cause.as_ref().map_or_else(|| ": damaged or gone".to_owned(), |cause| format!(": {cause}"))
}
