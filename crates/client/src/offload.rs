//! Hands a segment to its primary (`steadfast_protocol::write::ingest`): the driver of the client's core.

use crate::{Client, reserve::Reserved};
use core::{fmt, str::FromStr};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};
use steadfast_protocol::{
    DeviceId, Epoch, IntentId, Time,
    message::{Fault, IngestOpen, NodeAnswer, NodeRequest, Priority},
    policy::Policy,
    read::Cause,
    write::{
        WriteSpec,
        ingest::{Offload, OffloadAction, OffloadInput, Offloaded, Primaries, Setback},
    },
};
use steadfast_transfer::{Arrivals, Event, Maker, Streams};

/// Who encodes segments that a put or a change stores whole, and sends their chunks to the devices, under the policy `parity`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ingest {
    /// The client: it sends n / k times the bytes of the object, straight to the devices.
    #[default]
    Client,
    /// A node (CodFS §5.3): the client sends the bytes of the object and no more, one node forwards them. For clients behind a
    /// link that is slower than the nodes' own, or without processor time to spare. A put or change with a wish for bandwidth or latency
    /// is the client's all the same: what is reserved is reserved for it.
    Primary,
}

impl FromStr for Ingest {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "client" => Ok(Self::Client),
            "primary" => Ok(Self::Primary),
            _ => Err(format!("`{text}`: choose `client` or `primary`")),
        }
    }
}

impl fmt::Display for Ingest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Primary => "primary",
        })
    }
}

impl Client {
    /// Whether chunks of an access are encoded by nodes: not where bandwidth is reserved, which is this client's.
    pub(crate) fn offloads(&self, reserved: &Reserved) -> bool {
        self.options.ingest == Ingest::Primary && !reserved.wants_pace()
    }

    /// Hands a segment of `length` bytes, whose blocks `maker` makes, to the node that can store it by `spec`; none where there is none to
    /// ask. Each time more is known, `touched` is told all devices that may hold something of it.
    pub(crate) async fn hand_over(
        &self,
        primaries: &Mutex<Primaries>,
        maker: &Arc<Maker>,
        (length, policy, spec): (u64, &Policy, &WriteSpec),
        (intent, epoch, priority): (IntentId, Epoch, Priority),
        touched: impl Fn(BTreeSet<DeviceId>),
    ) -> Option<Result<Offloaded, Setback>> {
        let primaries = || primaries.lock().unwrap_or_else(PoisonError::into_inner);
        let named = (maker.segment, maker.version, intent);
        let (open, core) = primaries().ask(named, length, policy, spec)?;
        let primary = open.devices.first()?.device;
        // It may write to any of them.
        touched(open.devices.iter().chain(&open.spares).map(|place| place.device).collect());
        let done = self.offload(maker, (open, core), primary, epoch, priority).await;
        match &done {
            Ok(offloaded) => {
                let kept = offloaded.holders.iter().map(|share| share.device);
                touched(kept.chain(offloaded.abandoned.iter().copied()).collect());
            }
            Err(setback) => primaries().set_back(primary, setback),
        }
        Some(done)
    }

    /// Hands the segment whose blocks `maker` makes to the node of `primary`; `core` is that of `open`, as it begins.
    async fn offload(
        &self,
        maker: &Arc<Maker>,
        (open, mut core): (IngestOpen, Offload),
        primary: DeviceId,
        epoch: Epoch,
        priority: Priority,
    ) -> Result<Offloaded, Setback> {
        let start = Instant::now();
        let mut streams = Streams::new(priority);
        let request = NodeRequest::Ingest(open);
        let mut arriving = Arrivals::of(maker);
        if let Some(originals) = arriving.now() {
            core.handle(Time(0), OffloadInput::Arrived { originals });
        }
        let maker = Some(Arc::clone(maker));
        streams.open(&self.pool, primary, self.address_of(primary), &request, epoch, 0, maker);
        loop {
            while let Some(action) = core.poll() {
                match action {
                    OffloadAction::Push { indices } => streams.push(primary, indices),
                    OffloadAction::Done(offloaded) => return Ok(offloaded),
                    OffloadAction::Failed(setback) => return Err(setback),
                }
            }
            let wake_at = core.wake_at().map(|at| start + Duration::from_nanos(at.0));
            let event = tokio::select! {
                event = streams.next(wake_at) => event,
                originals = arriving.more(false) => {
                    core.handle(Time(start.elapsed().as_nanos() as u64), OffloadInput::Arrived { originals });
                    continue;
                }
            };
            let input = match event.map(|(_, event)| event) {
                None => OffloadInput::Tick,
                Some(Event::Credit(bytes)) => OffloadInput::Credit { bytes: bytes.into() },
                Some(Event::Confirmed(_)) => OffloadInput::Confirmed,
                Some(Event::Ended(NodeAnswer::Ingested(ingested))) => OffloadInput::Stored(ingested),
                Some(Event::Ended(_)) => {
                    let fault = Fault::Protocol("a primary gave another answer".to_owned());
                    OffloadInput::Failed(Cause::Fault(fault))
                }
                Some(Event::Failed(cause)) => OffloadInput::Failed(cause),
                Some(Event::Opened | Event::Slice { .. } | Event::State(_)) => continue,
            };
            core.handle(Time(start.elapsed().as_nanos() as u64), input);
        }
    }
}
