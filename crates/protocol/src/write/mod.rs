//! Cores that store one segment: which blocks go to which device, and when the put may be acknowledged.
//!
//! | scheme | source | file |
//! |---|---|---|
//! | rateless: N floats until the durability rule holds | dissertation §4.1.2, §4.3.2 | `rateless` |
//! | striped: every block once, RAID-0; or f + 1 times, each copy one device further on | dissertation ch. 6 | `striped` |
//! | replicated: f + 1 copies of one block | very small objects | `replicated` |
//! | parity: chunks of a fixed code, each whole on a device in a domain of its own | CodFS §3.3 | `parity` |
//!
//! A segment of chunks may be handed to a node that runs the core in the client's place: [`ingest`].
//!
//! A driver makes a [`Writer`] from a [`WriteSpec`] and never names a scheme. The contract is that of every core:
//! [`Writer::handle`], [`Writer::poll`] until `None`, [`Writer::wake_at`].
//!
//! ```text
//!   core                                   driver
//!    │ Open{device, expected_blocks} ────────▶│ OPEN Write ...          answered by Opened or Failed
//!    │◀──────────────── Credit{device, bytes} │ payload bytes granted, as they come
//!    │ Push{device, indices} ────────────────▶│ encode this run, send it in slices
//!    │◀──────────── Confirmed{device, blocks} │ durable on the device
//!    │ Cancel{device} | Finish{device} ──────▶│ at the end, or when this device failed or has all that it is to get
//!    │ Done | Failed ────────────────────────▶│ the last action
//! ```
//!
//! Invariants: an index is pushed once, to one device (a block that must be rewritten, [`Given::wanted`], or one of a
//! chunk, to a second one where the first failed or lags); what is pushed to a device never exceeds the credit it
//! granted (in whole blocks: a device must grant at least one block's bytes before it gets any); a layout lists
//! confirmed blocks only; after `Done` or `Failed` inputs are ignored.
//!
//! Left out: what is in a block (codes, in the driver), retries of lost connections (a device that failed is not
//! opened again; one that refused is, when it said so, as long as the put is patient).

mod forecast;
pub mod ingest;
mod lane;
mod level;
mod parity;
mod rateless;
mod replicated;
mod striped;
#[cfg(test)]
mod tests;
mod wanted;

pub use parity::ParityWriter;
pub use rateless::RatelessWriter;
pub use replicated::ReplicatedWriter;
pub use striped::StripedWriter;

use crate::{
    BlockIndex, DeviceId, IndexRanges, Time,
    durability::{Rule, Shortfall, Verdict},
    layout::Share,
    message::{Fault, NodeFault},
    plan::Scheme,
    words::{are, counted, counted_are},
};
use core::{ops::Range, time::Duration};
use steadfast_codes::rateless::Code;

/// How long a put waits without any confirmation before it gives up. Picked by eye: longer than any flush seen,
/// shorter than a person's patience.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// What to store and where: the input of every write core.
#[derive(Clone)]
pub struct WriteSpec {
    /// How the segment is written.
    pub scheme: Scheme,
    /// Its code; K blocks of `block_bytes`.
    pub code: Code,
    /// Bytes in each block.
    pub block_bytes: u32,
    /// The durability rule.
    pub rule: Rule,
    /// Failure domains, numbered from 0, over `devices` and `spares` together.
    pub domains: u32,
    /// The devices to write to, best first.
    pub devices: Vec<Target>,
    /// Devices to turn to when one of the others fails, best first.
    pub spares: Vec<Target>,
    /// How long to wait without any confirmation; [`PATIENCE`] by default.
    pub patience: Duration,
    /// Draws the loss patterns that are tested where not all can be.
    pub seed: u64,
    /// What is there already and what must be rewritten; nothing for a put.
    pub given: Given,
    /// Where the segment may be stored with fewer chunks instead.
    pub fewer: Option<Fewer>,
}

/// How long a write of chunks is patient with the last of them, where the segment can be written anew without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fewer {
    /// No more than so many may lack.
    pub chunks: u32,
    /// How long to wait for those without any confirmation.
    pub patience: Duration,
}

/// What a segment holds before a write begins, and what that write must rewrite. The rateless core takes it (that of chunks
/// too, for whole ones): an update (dissertation §4.3.4), a higher redundancy, a drained or lost device are one thing there,
/// "mint until the rule holds, given what exists".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Given {
    /// Blocks confirmed earlier, that stay: they count in the durability rule for as long as their device is not found
    /// out of reach. No index is listed twice, nor here and in `wanted`.
    pub existing: Vec<Existing>,
    /// Blocks to be written whatever the rule says, each to this device first; they go to another when it fails, lags or
    /// is not among the devices of the write.
    pub wanted: Vec<(DeviceId, IndexRanges)>,
    /// The first index that was never used: above all of the segment's that exist or existed.
    pub first_new_index: BlockIndex,
}

/// Blocks that a device held before a write began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    /// The device.
    pub device: DeviceId,
    /// Its failure domain.
    pub domain: u32,
    /// The blocks.
    pub blocks: IndexRanges,
}

impl Given {
    /// Whether there is nothing: a put.
    pub fn is_empty(&self) -> bool {
        self.existing.is_empty() && self.wanted.is_empty()
    }

    /// # Panics
    /// When an index is listed twice or is not below `first_new_index`, or a domain is not below `domains`.
    fn check(&self, domains: u32) {
        let mut seen = IndexRanges::new();
        let existing = self.existing.iter().map(|existing| &existing.blocks);
        for index in existing.chain(self.wanted.iter().map(|(_, blocks)| blocks)).flat_map(IndexRanges::iter)
        {
            assert!(seen.insert(index), "block {index} is given twice");
            assert!(index < self.first_new_index, "block {index} would be minted again");
        }
        assert!(self.existing.iter().all(|existing| existing.domain < domains));
    }
}

/// A device that a write may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Target {
    /// The device.
    pub device: DeviceId,
    /// Its failure domain.
    pub domain: u32,
    /// Measured writing speed in bytes per second; 0 where unknown.
    pub write_bytes_per_s: u64,
}

/// What happened, as the driver tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// The node took the OPEN. Optional: the first credit says the same.
    Opened {
        /// The device.
        device: DeviceId,
    },
    /// The node takes so many more payload bytes.
    Credit {
        /// The device.
        device: DeviceId,
        /// Payload bytes, beyond those granted before.
        bytes: u64,
    },
    /// These blocks are durable.
    Confirmed {
        /// The device.
        device: DeviceId,
        /// Newly durable blocks.
        blocks: IndexRanges,
    },
    /// The device's stream is over, and not because the core ended it.
    Failed {
        /// The device.
        device: DeviceId,
        /// Why.
        cause: FailureKind,
    },
    /// So many of the originals are there, the first ones. Told before anything else where not all are, and as more come; cores that
    /// push all they are let to push, whatever is there, are told once all are ([`Writer::follows_each_arrival`]): until then nothing is
    /// held against devices.
    Arrived {
        /// How many.
        originals: u32,
    },
    /// Nothing; time has passed.
    Tick,
}

/// Why a device's stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FailureKind {
    /// No connection, or it was lost.
    #[error("unreachable")]
    Unreachable,
    /// No room for more blocks; what it confirmed is good.
    #[error("full")]
    Full,
    /// Not admitted now.
    #[error("refused; it takes new work in {} ms", retry_after.as_millis())]
    Refused {
        /// When asking again makes sense.
        retry_after: Duration,
    },
    /// Its medium failed: what it confirmed is lost.
    #[error("its medium failed")]
    Medium,
    /// It broke the protocol or found the request wrong.
    #[error("protocol violation")]
    Protocol,
}

impl From<&Fault> for FailureKind {
    fn from(fault: &Fault) -> Self {
        match fault {
            Fault::Refused { retry_after_ms, .. } => {
                FailureKind::Refused { retry_after: Duration::from_millis((*retry_after_ms).into()) }
            }
            Fault::Node(NodeFault::Full(_)) => FailureKind::Full,
            Fault::Node(NodeFault::Medium { .. }) => FailureKind::Medium,
            Fault::Cancelled | Fault::DeadlinePassed => FailureKind::Unreachable,
            Fault::Protocol(_) | Fault::Node(_) | Fault::Meta(_) => FailureKind::Protocol,
        }
    }
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Open a write stream to the device.
    Open {
        /// The device.
        device: DeviceId,
        /// Blocks it is expected to get, from measured speed; more or fewer may come.
        expected_blocks: u32,
        /// The chunk that it gets, of a code of chunks; just its blocks come then.
        chunk: Option<u32>,
    },
    /// Encode these blocks and send them, in order, after what was pushed before.
    Push {
        /// The device.
        device: DeviceId,
        /// The blocks; their bytes are within the credit granted.
        indices: Range<BlockIndex>,
    },
    /// Close the stream: everything pushed was confirmed and no more will come.
    Finish {
        /// The device.
        device: DeviceId,
    },
    /// Cancel the stream; what was not sent yet is dropped.
    Cancel {
        /// The device.
        device: DeviceId,
    },
    /// The segment may be acknowledged. The last action.
    Done(WriteDone),
    /// The segment cannot be stored. The last action.
    Failed(WriteError),
}

/// A segment that is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteDone {
    /// The devices and their blocks confirmed in this write, in the order of the devices given: the layout's, beside
    /// what existed before.
    pub holders: Vec<Share>,
    /// Devices that were opened and hold nothing of the layout: what they may have is to be deleted.
    pub abandoned: Vec<DeviceId>,
    /// Blocks in `holders`: N, less what existed before.
    pub stored_blocks: u32,
    /// Blocks pushed in all.
    pub pushed_blocks: u32,
    /// Blocks pushed that are not in the layout.
    pub wasted_blocks: u32,
    /// The durability rule's verdict.
    pub verdict: Verdict,
}

/// Why a segment could not be stored. What was written is garbage for the sweep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// Nothing was confirmed for as long as the put is patient.
    #[error(
        "the put stalled: {confirmed} of {needed} blocks confirmed and none for {} ms; {} silent: {}",
        patience.as_millis(), counted_are(silent.len(), "device"), names(silent)
    )]
    Stalled {
        /// Blocks confirmed.
        confirmed: u32,
        /// Blocks that the rule needs at least.
        needed: u32,
        /// How long it waited.
        patience: Duration,
        /// Devices that had work and said nothing.
        silent: Vec<DeviceId>,
    },
    /// Too few failure domains can still take blocks.
    #[error(
        "{} can still take blocks, {} needed to survive the loss of {}: {failed} of {} failed; bring {} up",
        counted(available, "failure domain"), are(*needed), needed - 1, counted(devices, "device"),
        counted(needed.saturating_sub(*available), "more domain")
    )]
    NotEnoughDomains {
        /// Domains with a device that works.
        available: u32,
        /// f + 1.
        needed: u32,
        /// Devices that failed.
        failed: u32,
        /// Devices tried, spares among them.
        devices: u32,
    },
    /// Too few devices have room.
    #[error(
        "{full} of {} {} full; {confirmed} of at least {needed} blocks of {block_bytes} bytes found room: \
         delete objects or add devices",
        counted(devices, "device"), if *full == 1 { "is" } else { "are" }
    )]
    Full {
        /// Devices that are full.
        full: u32,
        /// Devices tried, spares among them.
        devices: u32,
        /// Blocks confirmed.
        confirmed: u32,
        /// Blocks that the rule needs at least.
        needed: u32,
        /// Bytes in each block.
        block_bytes: u32,
    },
    /// A chunk has no device to go to.
    #[error(
        "the policy needs {needed} failure domains, {available} can be had: {} has no device to go to; bring {} up",
        chunk_of(lost), counted(needed.saturating_sub(*available).max(1), "more domain")
    )]
    NoPlace {
        /// n: domains that the chunks take.
        needed: u32,
        /// Domains that hold chunks, or could.
        available: u32,
        /// What failed, and why; absent where there was no place to begin with.
        lost: Option<(DeviceId, FailureKind)>,
        /// All that failed, but for full ones.
        failed: Vec<DeviceId>,
    },
    /// A stripe's device failed; a stripe survives none.
    #[error(
        "device {device} failed ({cause}); a stripe, and copies of one, need all of their {devices} devices"
    )]
    StripeBroken {
        /// The device.
        device: DeviceId,
        /// Why.
        cause: FailureKind,
        /// Devices of the stripe.
        devices: u32,
    },
    /// Every block was confirmed and the rule does not hold.
    #[error(
        "all blocks are stored and the durability rule does not hold: {} short ({why:?})",
        counted(blocks, "block")
    )]
    Unmet {
        /// Blocks missing.
        blocks: u32,
        /// Which part of the rule.
        why: Shortfall,
    },
}

impl WriteError {
    /// The devices that it failed for, without which it may go well: they failed, or owed a sign. Full ones are none of them.
    pub fn unserved(&self) -> Vec<DeviceId> {
        match self {
            Self::Stalled { silent, .. } => silent.clone(),
            Self::NoPlace { failed, .. } => failed.clone(),
            _ => Vec::new(),
        }
    }
}

fn chunk_of(lost: &Option<(DeviceId, FailureKind)>) -> String {
    lost.map_or_else(
        || "a chunk".to_owned(),
        |(device, cause)| format!("the chunk of device {device} ({cause})"),
    )
}

fn names(devices: &[DeviceId]) -> String {
    let shown: Vec<String> = devices.iter().take(4).map(ToString::to_string).collect();
    let more = devices.len().saturating_sub(shown.len());
    if more > 0 { format!("{} and {more} more", shown.join(", ")) } else { shown.join(", ") }
}

/// The write core of a segment, of whichever scheme it asks for.
pub enum Writer {
    /// N floats.
    Rateless(RatelessWriter),
    /// RAID-0, and copies of it.
    Striped(StripedWriter),
    /// Copies.
    Replicated(ReplicatedWriter),
    /// Chunks.
    Parity(ParityWriter),
}

impl Writer {
    /// A core that begins at `now`. Its first actions are ready to be polled.
    ///
    /// # Panics
    /// When `devices` is empty, a device is listed twice, or a domain is not below `domains`: the plan's promise. When
    /// what is given contradicts itself, or is given to another scheme than rateless and parity.
    pub fn new(spec: WriteSpec, now: Time) -> Self {
        assert!(!spec.devices.is_empty(), "a write without devices");
        let mut listed: Vec<DeviceId> =
            spec.devices.iter().chain(&spec.spares).map(|target| target.device).collect();
        listed.sort_unstable();
        assert!(listed.windows(2).all(|pair| pair[0] != pair[1]), "a device is listed twice");
        assert!(spec.devices.iter().chain(&spec.spares).all(|target| target.domain < spec.domains));
        spec.given.check(spec.domains);
        let amends = matches!(spec.scheme, Scheme::Rateless | Scheme::Parity);
        assert!(spec.given.is_empty() || amends, "{:?} does not amend", spec.scheme);
        match spec.scheme {
            Scheme::Rateless => Self::Rateless(RatelessWriter::new(spec, now)),
            Scheme::Striped => Self::Striped(StripedWriter::new(spec, now)),
            Scheme::Replicated => Self::Replicated(ReplicatedWriter::new(spec, now)),
            Scheme::Parity => Self::Parity(ParityWriter::new(spec, now)),
        }
    }

    /// Whether it is to be told of originals as they arrive, not just of the last.
    pub fn follows_each_arrival(&self) -> bool {
        matches!(self, Writer::Parity(_))
    }

    /// Whether it is done once what is in flight is confirmed, if nothing fails: whoever waits for the devices may begin. Schemes that hand
    /// out all they have at once never say so.
    pub fn ending(&self) -> bool {
        matches!(self, Writer::Rateless(core) if core.ending())
    }

    /// Takes what happened at `now`. Inputs about devices that were not opened, or are given up, are ignored.
    pub fn handle(&mut self, now: Time, input: Input) {
        match self {
            Writer::Rateless(core) => core.handle(now, input),
            Writer::Striped(core) => core.handle(now, input),
            Writer::Replicated(core) => core.handle(now, input),
            Writer::Parity(core) => core.handle(now, input),
        }
    }

    /// The next action to carry out.
    pub fn poll(&mut self) -> Option<Action> {
        match self {
            Writer::Rateless(core) => core.poll(),
            Writer::Striped(core) => core.poll(),
            Writer::Replicated(core) => core.poll(),
            Writer::Parity(core) => core.poll(),
        }
    }

    /// When to call [`Writer::handle`] with a tick, should nothing happen before; `None` once it is over.
    pub fn wake_at(&self) -> Option<Time> {
        match self {
            Writer::Rateless(core) => core.wake_at(),
            Writer::Striped(core) => core.wake_at(),
            Writer::Replicated(core) => core.wake_at(),
            Writer::Parity(core) => core.wake_at(),
        }
    }
}
