//! A segment of chunks that a node, its *primary*, encodes and distributes for the client (CodFS §5.3: offloading). The client
//! sends every byte once, n / k times fewer than where it encodes by itself; the nodes' own network carries the rest.
//!
//! ```text
//!   client (Offload)                 primary (serve::IngestStream, ParityWriter)          other nodes
//!    │ OPEN Ingest{policy, places} ─────▶│ memory for the whole segment, or a refusal
//!    │◀──────────────────────── CREDIT ──│ for all of it
//!    │ original blocks, in order ═══════▶│ data chunks go on as they come ═══════════════▶│
//!    │                                   │ parity once all are there ════════════════════▶│
//!    │◀───────── Confirmed, as it comes ─│◀──────────────────────────────────── Confirmed │
//!    │◀────────────────── END Ingested ──│
//! ```
//!
//! The primary is the node of the first chunk ([`Primaries`]), so that primaries are spread as chunks are. Where it refuses, fails or falls
//! silent the client stores the segment by itself, under another name: nothing that the primary still does can get in its way, and
//! what it did is deleted. Everything a peer says is checked: the policy and the places by [`accept`], where the chunks came to
//! lie by [`Offload`].
//!
//! Invariants: the client pushes each original once, in order, as they arrive from its source, within the credit; it takes a segment for stored only where every
//! chunk lies whole on a planned device, in a domain of its own.
//!
//! Left out: what the simulator would need to run it; blocks in parts (parity waits for the last original, while other segments
//! arrive).

use super::{Given, Target, WriteSpec};
use crate::{
    BlockIndex, DeviceId, IndexRanges, IntentId, SegmentId, Time, Version,
    durability::Rule,
    layout::{CodeSpec, ParityGeometry, Share},
    message::{Fault, IngestOpen, Ingested, NodeFault, Place},
    plan::Scheme,
    policy::{Parity, Policy},
    read::Cause,
};
use core::{ops::Range, time::Duration};
use std::collections::{BTreeSet, VecDeque};

/// The most spares that a primary may be given, beside its n devices. Picked by eye: more than a put ever turns to.
const SPARES_MAX: usize = 256;
/// The most failure domains that devices may be numbered over: what is counted by domain is bounded.
const DOMAINS_MAX: u32 = 1 << 16;
/// The longest that a primary waits for a sign.
const PATIENCE_MAX: Duration = Duration::from_secs(600);

/// What a primary is to do, once it was checked.
#[derive(Clone)]
pub struct Accepted {
    /// The bucket's policy.
    pub policy: Parity,
    /// The segment's shape.
    pub shape: ParityGeometry,
    /// Its code as it is written down.
    pub code: CodeSpec,
    /// The input of its write core.
    pub spec: WriteSpec,
}

/// Checks what a primary is asked for.
///
/// # Errors
/// What is wrong with it.
pub fn accept(open: &IngestOpen) -> Result<Accepted, String> {
    let policy: Policy = open.policy.parse().map_err(|error| format!("{error}"))?;
    let Policy::Parity(parity) = policy else {
        return Err(format!("policy `{policy}` has no chunks: its segments are stored by the client"));
    };
    if open.length == 0 || open.length > parity.segment_bytes {
        return Err(format!("a segment of {} bytes under `{policy}`", open.length));
    }
    let shape = ParityGeometry::of(&parity, open.length);
    let code = CodeSpec { kind: shape.code(), originals: shape.originals(), seed: open.seed };
    if open.devices.len() != shape.chunks as usize || open.spares.len() > SPARES_MAX {
        let (devices, spares) = (open.devices.len(), open.spares.len());
        return Err(format!("{devices} devices and {spares} spares for {} chunks", shape.chunks));
    }
    let places = || open.devices.iter().chain(&open.spares);
    let named: BTreeSet<DeviceId> = places().map(|place| place.device).collect();
    let domains: BTreeSet<u32> = open.devices.iter().map(|place| place.domain).collect();
    if named.len() != open.devices.len() + open.spares.len()
        || domains.len() != open.devices.len()
        || open.domains > DOMAINS_MAX
        || places().any(|place| place.domain >= open.domains)
    {
        return Err("chunks need devices in domains of their own, each named once".to_owned());
    }
    let target = |place: &Place| Target { device: place.device, domain: place.domain, write_bytes_per_s: 0 };
    let spec = WriteSpec {
        scheme: Scheme::Parity,
        code: code.code().map_err(|error| error.to_string())?,
        block_bytes: shape.block_bytes,
        rule: Rule::of(&policy),
        domains: open.domains,
        devices: open.devices.iter().map(target).collect(),
        spares: open.spares.iter().map(target).collect(),
        patience: Duration::from_millis(open.patience_ms.into()).min(PATIENCE_MAX),
        seed: open.seed,
        given: Given::default(),
        fewer: None,
    };
    Ok(Accepted { policy: parity, shape, code, spec })
}

/// Who is asked to store the segments of one put or change, and who no more.
#[derive(Clone, Debug, Default)]
pub struct Primaries {
    /// Devices whose nodes failed.
    lost: BTreeSet<DeviceId>,
}

impl Primaries {
    /// What to ask a primary for, so that it writes by `spec` a segment of `length` bytes in a bucket of `policy`, and the core
    /// of it, which begins at time 0. None where that is no use, or the segment is none of chunks, or has others than a primary makes of so
    /// many bytes: the last one of a file that has grown.
    pub fn ask(
        &self,
        (segment, version, intent): (SegmentId, Version, IntentId),
        length: u64,
        policy: &Policy,
        spec: &WriteSpec,
    ) -> Option<(IngestOpen, Offload)> {
        let place = |&Target { device, domain, .. }: &Target| Place { device, domain };
        let devices: Vec<Place> = spec.devices.iter().map(place).collect();
        let spares: Vec<Place> = spec.spares.iter().map(place).take(SPARES_MAX).collect();
        if spec.scheme != Scheme::Parity || self.lost.contains(&devices.first()?.device) {
            return None;
        }
        let domains = devices.iter().chain(&spares).map(|place| place.domain + 1).max()?;
        let policy = policy.to_string();
        // What it is not done with soon the client does, with fewer chunks where it has to.
        let patience = spec.fewer.map_or(spec.patience, |fewer| fewer.patience);
        let patience_ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let seed = spec.seed;
        let open = IngestOpen {
            segment,
            version,
            intent,
            length,
            policy,
            seed,
            domains,
            devices,
            spares,
            patience_ms,
        };
        let core = Offload::new(&open, Time(0)).ok()?;
        let as_planned =
            (core.shape.block_bytes, core.shape.originals()) == (spec.block_bytes, spec.code.k());
        as_planned.then_some((open, core))
    }

    /// A primary did not store a segment.
    pub fn set_back(&mut self, primary: DeviceId, setback: &Setback) {
        if setback.for_good {
            self.lost.insert(primary);
        }
    }
}

/// What happened, as the driver tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffloadInput {
    /// The primary takes so many more payload bytes.
    Credit {
        /// Beyond those granted before.
        bytes: u64,
    },
    /// Some of it is durable.
    Confirmed,
    /// All of it is, says the primary.
    Stored(Ingested),
    /// The stream is over, without.
    Failed(Cause),
    /// So many of the originals are there, the first ones: all of them unless something else is said.
    Arrived {
        /// How many.
        originals: u32,
    },
    /// Nothing; time has passed.
    Tick,
}

/// What the driver is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OffloadAction {
    /// Send these originals, in order, after what was pushed before.
    Push {
        /// The blocks; their bytes are within the credit.
        indices: Range<BlockIndex>,
    },
    /// The segment is stored so. The last action.
    Done(Offloaded),
    /// It is not: the client stores it by itself. The last action; the stream is to be cancelled.
    Failed(Setback),
}

/// Why a primary did not store a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setback {
    /// What was said.
    pub why: String,
    /// Whether it is no use to ask this primary for further segments.
    pub for_good: bool,
    /// Originals that were pushed to it.
    pub pushed_blocks: u32,
}

/// A segment stored by its primary.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offloaded {
    /// The chunks, in their order: the layout's.
    pub holders: Vec<Share>,
    /// Devices that may hold something that is to be deleted.
    pub abandoned: Vec<DeviceId>,
    /// Blocks in `holders`.
    pub stored_blocks: u32,
    /// Blocks sent to devices in all, by the primary.
    pub pushed_blocks: u32,
}

/// The client's side: the core of one segment handed to its primary.
pub struct Offload {
    shape: ParityGeometry,
    places: Vec<Place>,
    next: BlockIndex,
    /// The originals that are there.
    arrived: u32,
    /// Bytes granted in all.
    granted_bytes: u64,
    /// When the primary last said something, or got something to say something about.
    heard: Time,
    patience: Duration,
    over: bool,
    actions: VecDeque<OffloadAction>,
}

impl Offload {
    /// A core that begins at `now` with what was opened.
    ///
    /// # Errors
    /// As [`accept`].
    pub fn new(open: &IngestOpen, now: Time) -> Result<Self, String> {
        let Accepted { shape, spec, .. } = accept(open)?;
        Ok(Self {
            shape,
            places: open.devices.iter().chain(&open.spares).copied().collect(),
            next: 0,
            arrived: shape.originals(),
            granted_bytes: 0,
            heard: now,
            // As long as the primary has with its devices: by then it has said something, be it that it gave up.
            patience: spec.patience,
            over: false,
            actions: VecDeque::new(),
        })
    }

    /// Takes what happened at `now`.
    pub fn handle(&mut self, now: Time, input: OffloadInput) {
        if self.over {
            return;
        }
        match input {
            OffloadInput::Credit { bytes } => {
                self.heard = now;
                self.granted_bytes = self.granted_bytes.saturating_add(bytes);
                self.push();
            }
            OffloadInput::Arrived { originals } => {
                self.heard = now;
                self.arrived = originals.min(self.shape.originals());
                self.push();
            }
            OffloadInput::Confirmed => self.heard = now,
            OffloadInput::Stored(ingested) => match self.checked(ingested) {
                Ok(offloaded) => self.end(OffloadAction::Done(offloaded)),
                Err(why) => self.fail(why, true),
            },
            OffloadInput::Failed(cause) => {
                // One that failed once would cost each segment what it cost this one; but being busy passes, others' devices
                // are not its own, and it is not to blame for a source that is slower than it is patient.
                let passes = match &cause {
                    Cause::Fault(Fault::Refused { .. } | Fault::Node(NodeFault::NotStored { .. })) => true,
                    Cause::Fault(Fault::DeadlinePassed) => !self.is_waited_for(),
                    _ => false,
                };
                self.fail(cause.to_string(), !passes);
            }
            OffloadInput::Tick => {}
        }
        if !self.over && self.is_waited_for() && now.since(self.heard) >= self.patience {
            let why = format!("the primary said nothing for {} ms", self.patience.as_millis());
            self.fail(why, true);
        }
    }

    /// The next action to carry out.
    pub fn poll(&mut self) -> Option<OffloadAction> {
        self.actions.pop_front()
    }

    /// When to tick, should nothing happen before; none once it is over.
    pub fn wake_at(&self) -> Option<Time> {
        (!self.over && self.is_waited_for()).then(|| self.heard + self.patience)
    }

    /// Whether it is the primary that is waited for, and not the source.
    fn is_waited_for(&self) -> bool {
        self.next < self.arrived || self.arrived == self.shape.originals()
    }

    fn push(&mut self) {
        let paid = self.granted_bytes / u64::from(self.shape.block_bytes);
        let end = self.arrived.min(u32::try_from(paid).unwrap_or(u32::MAX));
        if self.next < end {
            self.actions.push_back(OffloadAction::Push { indices: self.next..end });
            self.next = end;
        }
    }

    fn fail(&mut self, why: String, for_good: bool) {
        self.end(OffloadAction::Failed(Setback { why, for_good, pushed_blocks: self.next }));
    }

    fn end(&mut self, last: OffloadAction) {
        self.over = true;
        self.actions.clear();
        self.actions.push_back(last);
    }

    /// Where the primary says that the chunks are, if that is what was asked for.
    fn checked(&self, ingested: Ingested) -> Result<Offloaded, String> {
        let wrong = |what: &str| Err(format!("the primary's answer is none: {what}"));
        if self.next < self.shape.originals() || ingested.holders.len() != self.shape.chunks as usize {
            return wrong("not all chunks can be stored");
        }
        let mut domains = BTreeSet::new();
        for (chunk, (device, blocks)) in (0..).zip(&ingested.holders) {
            let Some(place) = self.places.iter().find(|place| place.device == *device) else {
                return wrong("a chunk is on a device that was not planned");
            };
            if *blocks != IndexRanges::from(self.shape.blocks_of(chunk)) || !domains.insert(place.domain) {
                return wrong("chunks are not whole, each in a domain of its own");
            }
        }
        if !ingested.abandoned.iter().all(|device| self.places.iter().any(|place| place.device == *device)) {
            return wrong("it names a device that was not planned");
        }
        let stored_blocks = self.shape.chunks * self.shape.blocks;
        Ok(Offloaded {
            holders: ingested.holders.into_iter().map(|(device, blocks)| Share { device, blocks }).collect(),
            abandoned: ingested.abandoned,
            stored_blocks,
            pushed_blocks: ingested.pushed_blocks,
        })
    }
}
