//! Chunks that change in place at this node: the drivers of [`steadfast_protocol::serve::parity_log`].
//!
//! ```text
//!   client ── Update ──▶ data::Host ══ link (NodeRequest::Log) ══▶ parity::Host of another node
//!                          │ lane: redo, flush                       │ lane: log, flush; merges
//! ```
//!
//! A host ([`host`]) is a task that owns the core of one chunk. It begins when the chunk is first spoken of, asks the metadata server
//! where the segment lies and the device what it holds, and ends when nothing has happened for a while: all that matters
//! is on the device. Updates that a device holds from before a restart are levelled by a host that begins at the start; whether a chunk came
//! back with old data, of which the device holds nothing, is found out before it is first read ([`returned`]).

mod data;
mod device_room;
mod host;
mod link;
mod logged;
mod medium;
mod merge;
mod merges;
mod parity;
mod peers;
mod recover;
pub(crate) mod returned;
pub(crate) mod rows;
#[cfg(test)]
mod tests;
mod waiting;

pub(crate) use logged::Logged;
pub(crate) use merges::{Merges, merge_left};
pub(crate) use parity::Shrunk;
pub(crate) use recover::recover;

use crate::{devices::ServedDevice, membership::Meta};
use host::Host;
use peers::Peers;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use steadfast_disk::{Op, Priority as LanePriority};
use steadfast_net::{Pool, Stream};
use steadfast_protocol::{
    DeviceId, Epoch, SegmentId, Version,
    layout::{ParityGeometry, SegmentLayout},
    message::{Fault, NodeFault, RefusalReason},
    serve::parity_log::ChunkNumber,
};
use tokio::{
    runtime::Handle,
    sync::{mpsc, oneshot},
    task::JoinSet,
};
use waiting::Waiting;

/// Chunks that may be changed at a time: a host keeps some kilobytes, and the differences under way. A device may have half of what the
/// others leave, so that the hosts of one that stands still keep no other from being changed.
const HOSTS_MAX: usize = 4096;
/// A host ends when nothing happened for so long: its streams and its memory are worth less than a question on the next
/// update. Picked by eye.
const IDLE_MAX: Duration = Duration::from_secs(10);
/// The same where there are many: small changes all over thousands of segments need a host each, and one that is refused for want of
/// room can cost a segment that is stored anew. Picked by eye: longer than what changes one chunk pauses, and short beside [`IDLE_MAX`].
const CROWDED_IDLE_MAX: Duration = Duration::from_millis(500);
/// When to come back where there are too many: one of them may leave by then. Picked by eye.
const CROWDED_RETRY_MS: u32 = 100;

/// A merge that is not made by then stands behind too many, and of a device that has not given a reserve back by then nobody knows when it
/// does. Picked by eye, more than a host without anybody waits ([`IDLE_MAX`]).
const QUIET_MAX: Duration = Duration::from_secs(30);

/// The hosts of a node.
pub(crate) struct Updates {
    data: Hosts<data::Event>,
    parity: Hosts<parity::Event>,
    peers: Peers,
    waiting: Waiting,
    tasks: Mutex<JoinSet<()>>,
    /// Hosts begin tasks on whatever thread they run.
    runtime: Handle,
    numbers: AtomicU64,
}

/// Hosts of one kind, by device and segment.
struct Hosts<Event>(Mutex<BTreeMap<(DeviceId, SegmentId), mpsc::UnboundedSender<Event>>>);

/// One chunk of a segment, as the metadata server says.
pub(crate) struct Chunk {
    pub(crate) device: Arc<ServedDevice>,
    pub(crate) segment: SegmentId,
    pub(crate) version: Version,
    pub(crate) epoch: Epoch,
    pub(crate) shape: ParityGeometry,
    /// Which chunk of the segment.
    pub(crate) number: u32,
    /// The devices of all chunks.
    pub(crate) holders: Vec<DeviceId>,
}

impl Updates {
    /// `pool` is for connections to other nodes.
    pub(crate) fn new(meta: Arc<Meta>, pool: Pool) -> Self {
        Self {
            data: Hosts(Mutex::default()),
            parity: Hosts(Mutex::default()),
            peers: Peers::new(meta, pool),
            waiting: Waiting::default(),
            tasks: Mutex::default(),
            runtime: Handle::current(),
            // Above the numbers of streams, which a lane tells apart by them.
            numbers: AtomicU64::new(1 << 63),
        }
    }

    /// Changes bytes of a data chunk; its version with the change.
    pub(crate) async fn update(
        self: &Arc<Self>,
        device: Arc<ServedDevice>,
        segment: SegmentId,
        epoch: Epoch,
        offset: u64,
        bytes: bytes::Bytes,
    ) -> Result<u64, Fault> {
        let (reply, answered) = oneshot::channel();
        let room = self.waiting.room(device.id, segment, bytes.len())?;
        let update = data::Event::Update { epoch, offset, bytes, reply, room };
        self.tell::<data::Host>(device, segment, update)?;
        answered.await.unwrap_or_else(|_| Err(not_in_place(segment, "its node stops serving it")))
    }

    /// Serves a stream of a data chunk's differences, whose opener takes so many bytes of records, until it ends.
    pub(crate) async fn log(
        self: &Arc<Self>,
        device: Arc<ServedDevice>,
        segment: SegmentId,
        chunk: ChunkNumber,
        (stream, credit): (&mut Stream, u32),
    ) -> Result<(), Fault> {
        let number = self.number();
        let (welcome, welcomed) = oneshot::channel();
        let opened = parity::Event::Opened { stream: number, chunk, sender: stream.sender(), welcome };
        let host = self.tell::<parity::Host>(device, segment, opened)?;
        parity::forward(number, (stream, credit), &host, welcomed).await;
        Ok(())
    }

    /// Has a data chunk's host begin, so that what devices hold of it becomes committed.
    pub(crate) fn begin(self: &Arc<Self>, device: Arc<ServedDevice>, segment: SegmentId) {
        if let Err(fault) = self.tell::<data::Host>(device, segment, data::Event::Begin) {
            tracing::warn!(%segment, %fault, "held updates are not levelled now");
        }
    }

    /// Merges the log of a parity chunk as far as it is committed, after everybody else; how many bytes it takes then. None where that
    /// cannot be done soon.
    pub(crate) async fn merge(
        self: &Arc<Self>,
        device: Arc<ServedDevice>,
        segment: SegmentId,
    ) -> Option<u64> {
        let (left_bytes, answered) = oneshot::channel();
        self.tell::<parity::Host>(device, segment, parity::Event::Merge { left_bytes }).ok()?;
        tokio::time::timeout(QUIET_MAX, answered).await.ok()?.ok()
    }

    /// Gives the end of a parity chunk's reserve back.
    pub(crate) async fn shrink_reserve(
        self: &Arc<Self>,
        device: Arc<ServedDevice>,
        segment: SegmentId,
        reserve_bytes: u64,
    ) -> Shrunk {
        let (shrunk, answered) = oneshot::channel();
        let event = parity::Event::Shrink { reserve_bytes, shrunk };
        match self.tell::<parity::Host>(device.clone(), segment, event) {
            Ok(_) => match tokio::time::timeout(QUIET_MAX, answered).await {
                Ok(Ok(shrunk)) => shrunk,
                // No host serves the chunk, or none does any more.
                Ok(Err(_)) => self.shrink_unserved(&device, segment, reserve_bytes).await,
                Err(_) => Shrunk::NotNow,
            },
            Err(_) => Shrunk::NotNow,
        }
    }

    /// The same of a chunk that no host serves, where none can any more: chunks of its segment do not lie as they were stored, which stays so
    /// until it is stored anew, or it is gone. Nobody logs anything in its reserve then.
    async fn shrink_unserved(
        &self,
        device: &Arc<ServedDevice>,
        segment: SegmentId,
        reserve_bytes: u64,
    ) -> Shrunk {
        let is_unserved = matches!(
            self.chunk(device.clone(), segment).await,
            Err(Fault::Node(NodeFault::NotInPlace { .. }))
        );
        if !is_unserved {
            return Shrunk::NotNow;
        }
        let lane = (self.number(), LanePriority::Background);
        let Ok(info) = medium::describe(device, lane, segment).await else { return Shrunk::NotNow };
        // Under the epoch that it has: whoever has raised it by then is about to move or to replace it.
        let op = Op::ShrinkReserve { segment, epoch: info.epoch, reserve_bytes };
        match medium::ask(device, lane, op).await {
            Ok(_) => Shrunk::Done,
            // Its log has something, or it is gone by now.
            Err(_) => Shrunk::NotNow,
        }
    }

    /// Tells a chunk's host something; it begins where there is none.
    fn tell<H: Host>(
        self: &Arc<Self>,
        device: Arc<ServedDevice>,
        segment: SegmentId,
        event: H::Event,
    ) -> Result<mpsc::UnboundedSender<H::Event>, Fault> {
        let updates = self.clone();
        H::hosts(self).tell(device.id, segment, event, |events, sender| {
            let host = host::run::<H>(updates.clone(), device, segment, events, sender);
            updates.spawn(host);
        })
    }

    fn spawn(&self, host: impl Future<Output = ()> + Send + 'static) {
        let mut tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(ended) = tasks.try_join_next() {
            crate::node::report_panic(ended);
        }
        tasks.spawn_on(host, &self.runtime);
    }

    /// A number that nothing else has.
    fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Where devices are served, of those that are served now.
    pub(crate) async fn addresses(&self, devices: BTreeSet<DeviceId>) -> BTreeMap<DeviceId, String> {
        self.peers.locate(devices).await
    }

    /// Devices that may be served elsewhere by now.
    pub(crate) fn forget(&self, devices: impl Iterator<Item = DeviceId>) {
        devices.for_each(|device| self.peers.forget(device));
    }

    /// Connections to other nodes.
    pub(crate) fn pool(&self) -> &Pool {
        self.peers.pool()
    }

    /// Ends all hosts; what they had acknowledged is durable.
    pub(crate) async fn stop(&self) {
        let mut tasks = std::mem::take(&mut *self.tasks.lock().unwrap_or_else(PoisonError::into_inner));
        tasks.shutdown().await;
    }

    /// Where a segment lies that has a chunk on this device, and may be changed in place.
    async fn chunk(&self, device: Arc<ServedDevice>, segment: SegmentId) -> Result<Chunk, Fault> {
        let layout = self.peers.layout(segment).await?;
        let found = layout.as_ref().and_then(|layout| chunk_of(layout, device.id));
        let Some((layout, (shape, number, holders))) = layout.as_ref().zip(found) else {
            return Err(not_in_place(segment, "its chunks do not lie as they were stored, or it is gone"));
        };
        let (version, epoch) = (layout.version, layout.epoch);
        Ok(Chunk { device, segment, version, epoch, shape, number, holders })
    }
}

/// The shape of a segment, which of its chunks a device has, and the devices of all.
fn chunk_of(layout: &SegmentLayout, device: DeviceId) -> Option<(ParityGeometry, u32, Vec<DeviceId>)> {
    let shape = ParityGeometry::of_layout(layout)?;
    let holders = shape.updatable(layout)?;
    let number = holders.iter().position(|&holder| holder == device)?;
    Some((shape, u32::try_from(number).ok()?, holders))
}

impl<Event> Hosts<Event> {
    /// Tells a host something; `begin` starts it where there is none.
    fn tell(
        &self,
        device: DeviceId,
        segment: SegmentId,
        event: Event,
        begin: impl FnOnce(mpsc::UnboundedReceiver<Event>, mpsc::UnboundedSender<Event>),
    ) -> Result<mpsc::UnboundedSender<Event>, Fault> {
        let mut hosts = self.lock();
        let known = hosts.get(&(device, segment)).filter(|sender| !sender.is_closed());
        let sender = match known {
            Some(sender) => sender.clone(),
            None if of_device(&hosts, device) + hosts.len() >= HOSTS_MAX => {
                let reason = RefusalReason::Overloaded;
                return Err(Fault::Refused { reason, retry_after_ms: CROWDED_RETRY_MS });
            }
            None => {
                let (sender, events) = mpsc::unbounded_channel();
                begin(events, sender.clone());
                hosts.insert((device, segment), sender.clone());
                sender
            }
        };
        // Under the lock, so that a host that ends for want of work has looked before or will see it.
        let _ = sender.send(event);
        Ok(sender)
    }

    /// Whether a device's are so many that one should leave that can: half of what is refused, where each has `others` at other nodes,
    /// which may be as full.
    fn are_many(&self, device: DeviceId, others: usize) -> bool {
        let hosts = self.lock();
        let (all, many) = (hosts.len(), |hosts| hosts * others.max(1) >= HOSTS_MAX / 2);
        // Counted only where it depends on that.
        many(all) || many(2 * all) && many(of_device(&hosts, device) + all)
    }

    /// Takes a host out that has nothing to do, unless it was told something meanwhile.
    fn leave(&self, device: DeviceId, segment: SegmentId, events: &mpsc::UnboundedReceiver<Event>) -> bool {
        let mut hosts = self.lock();
        let quiet = events.is_empty();
        if quiet {
            hosts.remove(&(device, segment));
        }
        quiet
    }

    /// Takes a host out that cannot go on; what it was told since is dropped with its channel.
    fn remove(&self, device: DeviceId, segment: SegmentId, events: &mut mpsc::UnboundedReceiver<Event>) {
        let mut hosts = self.lock();
        events.close();
        if hosts.get(&(device, segment)).is_some_and(mpsc::UnboundedSender::is_closed) {
            hosts.remove(&(device, segment));
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(DeviceId, SegmentId), mpsc::UnboundedSender<Event>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many of the hosts are a device's.
fn of_device<Host>(hosts: &BTreeMap<(DeviceId, SegmentId), Host>, device: DeviceId) -> usize {
    hosts.range((device, SegmentId(0))..=(device, SegmentId(u64::MAX))).count()
}

/// What is read of parity cannot be right: neither can what it becomes.
fn damaged_parity(device: DeviceId, segment: SegmentId, detail: impl std::fmt::Display) -> Fault {
    Fault::Node(NodeFault::DamagedParity { device, segment, detail: detail.to_string() })
}

pub(crate) fn not_in_place(segment: SegmentId, detail: impl std::fmt::Display) -> Fault {
    Fault::Node(NodeFault::NotInPlace { segment, detail: detail.to_string() })
}
