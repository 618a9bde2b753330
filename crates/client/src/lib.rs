//! The native client library: put, get, list, remove over any cluster.
//!
//! A [`Client`] drives the asking cores of `steadfast-protocol` over TCP: it opens the streams they ask for, feeds
//! them what arrives, runs the codec, and decides nothing itself.
//!
//! | room | what lives there |
//! |---|---|
//! | `memory` | keeps buffers between accesses, for a while |
//! | `metadata` | one request under one id until an answer comes |
//! | `source` | the bytes of a put, read ahead |
//! | `get` | a segment read: opens what the core asks for, hands the bytes over |
//! | `leaving` | cancelled streams of a read, until they have said what they moved |
//! | `decode` | checksums and decoder off the runtime's thread, ahead of the end |
//! | `reader` | an open object: reads at any place, reading ahead |
//! | `file` | an open object that can be changed: reads, and writes that are kept until a sync |
//! | `put` | a segment write: cores, encoder, commit, seal |
//! | `feed` | the segments of a put: cut from the source, half of the next read ahead |
//! | `turns` | which of them are stored at a time |
//! | `offload` | a segment handed to a node that encodes and distributes it |
//! | `lease` | the lease of a put or a change, kept while it is made |
//! | `reserve` | bandwidth kept for an access with a wish, while it lives |
//! | `amend` | an object changed where it is: some bytes, its redundancy, the devices it lies on, its size |
//! | `devices` | devices added, emptied, removed |
//! | `moves` | objects moved off devices, or completed where they are degraded |
//! | `mend` | the same of whatever is degraded, without being asked |
//! | `tidy` | seals and deletions, behind the answer |

mod ahead;
mod amend;
mod chunks;
mod decode;
mod devices;
mod error;
mod feed;
mod file;
mod get;
mod lease;
mod leaving;
mod memory;
mod mend;
mod metadata;
mod moves;
mod offload;
mod put;
mod reader;
mod reserve;
mod source;
mod stand_ins;
mod states;
mod tidy;
mod turns;

pub use amend::{AmendError, AmendReport, ResizeReport};
pub use devices::{DrainError, DrainOptions, DrainReport, RemoveError};
pub use error::{ClientError, FileError, GetError, PutError};
pub use file::{File, FileCounts, FileOptions};
pub use get::{GetOptions, GetReport};
pub use mend::mend;
pub use moves::{Degraded, RepairError, RepairReport};
pub use offload::Ingest;
pub use put::{PutOptions, PutReport};
pub use reader::ObjectReader;
pub use reserve::Busy;
pub use source::{Memory, Source};
pub use steadfast_protocol::plan::Quality;
pub use steadfast_protocol::read::RequestRule;

use metadata::Metadata;
use std::{
    collections::{BTreeMap, BTreeSet},
    io::Read,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use steadfast_net::Pool;
use steadfast_protocol::{
    DeviceId, Epoch, Time,
    layout::{BLOCK_BYTES_MAX, SEGMENT_BYTES_MAX, SegmentLayout},
    message::{
        AccessTotals, BucketRecord, Change, DeviceHealth, DrainProgress, Hello, MetaAnswer, MetaRequest,
        NodeAnswer, NodeRequest, NodeStatus, ObjectRecord, Query, Registry, Role, VERSION,
    },
    plan::{self, Unserved, Wish},
    policy::Policy,
    read::{Caution, Hedge},
    write::WriteError,
};

/// How a client behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// Repeats the client's own choices (graph seeds, placement); drawn from the clock when absent.
    pub seed: Option<u64>,
    /// How much a read asks for beyond the K blocks it needs.
    pub request: RequestRule,
    /// How long an access waits while nothing at all moves. For a metadata server that has answered before, ten seconds at least, five
    /// minutes at most, and with what was stored under a lease as long as that.
    pub patience: Duration,
    /// Threads that decode; 0 for as many as the machine has.
    pub threads: usize,
    /// Who encodes the segments that a put or a change stores whole under the policy `parity`.
    pub ingest: Ingest,
    /// Bandwidth wanted of an object, in bytes per second; decides how many devices it is spread over (§5.3.1).
    pub bandwidth_bytes_per_s: Option<u64>,
    /// What every access wants that does not say otherwise: nothing by default, which costs nothing. What cannot be promised to an access
    /// makes it fail, as a latency of what is opened.
    pub quality: Quality,
    /// Memory for the segments that one access has in hand, in bytes: with room for two, the next one is read while one
    /// is decoded or written. One is always allowed, whatever its size.
    pub memory_bytes: u64,
    /// The largest segment that a put makes, in bytes; rounded down to MiB, from 1 MiB to 1 GiB.
    pub segment_bytes: u64,
    /// Timing and limits of connections; the link can delay and limit them.
    pub net: steadfast_net::Options,
}

/// The largest segment that a put makes unless it is told otherwise: whoever stores or reads one has all of it in memory, and the
/// first byte of a read waits for the whole. Six servers on one disk of a machine with two processors, 256 MiB in segments of 128 and
/// 64 MiB: put in 0.42 s of 410 and 270 MB, 2.1 s of the processors a GB for either, got from the page cache at 1.2 to 1.9 and 0.8 s/GB
/// of 180 and 100 MB; on six emulated disks of 100 MB/s put in 0.74 and 0.77 s. Segments of 32 MiB have half as large blocks.
const SEGMENT_BYTES: u64 = 64 << 20;

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: None,
            request: RequestRule::default(),
            patience: Duration::from_secs(10),
            threads: 0,
            ingest: Ingest::default(),
            bandwidth_bytes_per_s: None,
            quality: Quality::default(),
            memory_bytes: default_memory_bytes(),
            segment_bytes: SEGMENT_BYTES,
            net: steadfast_net::Options::default(),
        }
    }
}

impl Options {
    /// The largest segment that a put makes, as a layout may have it.
    fn segment_bytes(&self) -> u64 {
        let piece = u64::from(BLOCK_BYTES_MAX);
        self.segment_bytes.clamp(piece, SEGMENT_BYTES_MAX) / piece * piece
    }

    /// The same for an object of `size` bytes, where that is known: larger ones where there would be very many, as far as two have room
    /// in memory.
    fn segment_bytes_of(&self, size: Option<u64>) -> u64 {
        let piece = u64::from(BLOCK_BYTES_MAX);
        plan::few_segments(self.segment_bytes(), self.memory_bytes / 2 / piece * piece, size.unwrap_or(0))
    }
}

/// How often an access that takes long looks where servers are and how busy. Picked by eye: some beats of the servers' own reports, and
/// little beside what such an access moves.
const FOLLOW_EVERY: Duration = Duration::from_secs(3);

/// Two of the largest segments, or a quarter of the machine's memory, whichever is less. Picked by eye: the rest is the
/// application's and the page cache's.
fn default_memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    let unit = u64::from(system.mem_unit.max(1));
    // The field's type follows the machine's word.
    #[allow(clippy::useless_conversion, clippy::unnecessary_fallible_conversions, reason = "as said")]
    let pages = u64::try_from(system.totalram).unwrap_or(u64::MAX);
    (pages.saturating_mul(unit) / 4).min(2 * SEGMENT_BYTES_MAX)
}

/// A client of one cluster.
#[derive(Debug)]
pub struct Client {
    metadata: Metadata,
    pool: Pool,
    options: Options,
    seed: u64,
    memory: memory::Memory,
    tidying: Arc<tidy::Tidying>,
    /// The last registry seen; refreshed by every access, by long ones now and then, and when a device is missing.
    registry: Mutex<Registry>,
    /// Who is late with a few bytes.
    hedge: Mutex<Hedge>,
    /// How late chunks may be, and whose are not asked for.
    caution: Mutex<Caution>,
    /// Told when that has changed.
    lessons: tokio::sync::Notify,
    /// Who did not take a chunk a moment ago.
    unserved: Mutex<Unserved>,
    started: Instant,
}

/// An object and where it lies.
#[derive(Clone, Debug, PartialEq)]
pub struct ObjectStat {
    /// Its record.
    pub object: ObjectRecord,
    /// Its segments in order.
    pub segments: Vec<SegmentLayout>,
    /// The policy of its bucket.
    pub policy: Policy,
}

impl Client {
    /// Finds the cluster whose metadata server listens at `cluster` (`host:port`).
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] when nobody answers there, [`ClientError::NotMeta`] when another server does.
    pub async fn connect(cluster: &str, options: Options) -> Result<Self, ClientError> {
        let seed = options.seed.unwrap_or_else(fresh_seed);
        let hello = Hello { version: VERSION, features: 0, role: Role::Client, cluster: None };
        let pool = Pool::new(hello, options.net.clone());
        // Two clients with one given seed are two clients all the same.
        let metadata = Metadata::new(cluster, pool.clone(), fresh_seed(), options.patience);
        let (memory, tidying, registry, unserved) = Default::default();
        let caution = Mutex::new(Caution::new(seed, options.request));
        let hedge = Mutex::new(Hedge::new(options.request));
        let lessons = tokio::sync::Notify::new();
        let started = Instant::now();
        let client = Self {
            metadata,
            pool,
            options,
            seed,
            memory,
            tidying,
            registry,
            hedge,
            caution,
            lessons,
            unserved,
            started,
        };
        client.registry().await?;
        Ok(client)
    }

    /// Makes a bucket.
    ///
    /// # Errors
    /// [`ClientError::Refused`] for a bad or taken name or a policy that the cluster cannot meet.
    pub async fn create_bucket(&self, name: &str, policy: Policy) -> Result<(), ClientError> {
        match self.metadata.change(Change::CreateBucket { bucket: name.to_owned(), policy }).await? {
            MetaAnswer::Done => Ok(()),
            other => Err(unexpected("Done", &other)),
        }
    }

    /// Removes a bucket that has no objects.
    ///
    /// # Errors
    /// [`ClientError::Refused`] where there is no such bucket, or it has objects.
    pub async fn remove_bucket(&self, name: &str) -> Result<(), ClientError> {
        match self.metadata.change(Change::RemoveBucket { bucket: name.to_owned() }).await? {
            MetaAnswer::Done => Ok(()),
            other => Err(unexpected("Done", &other)),
        }
    }

    /// All buckets.
    ///
    /// # Errors
    /// When the metadata server cannot be asked.
    pub async fn buckets(&self) -> Result<Vec<BucketRecord>, ClientError> {
        match self.metadata.ask(Query::Buckets).await? {
            MetaAnswer::Buckets(buckets) => Ok(buckets),
            other => Err(unexpected("Buckets", &other)),
        }
    }

    /// One bucket.
    ///
    /// # Errors
    /// When there is no such bucket.
    pub async fn bucket(&self, bucket: &str) -> Result<BucketRecord, ClientError> {
        match self.metadata.ask(Query::Bucket { bucket: bucket.to_owned() }).await? {
            MetaAnswer::Bucket(bucket) => Ok(bucket),
            other => Err(unexpected("Bucket", &other)),
        }
    }

    /// A page of objects in byte order of their keys, and whether more follow.
    ///
    /// # Errors
    /// When there is no such bucket.
    pub async fn list(
        &self,
        bucket: &str,
        prefix: &str,
        after: Option<String>,
        limit: u32,
    ) -> Result<(Vec<ObjectRecord>, bool), ClientError> {
        let query = Query::List { bucket: bucket.to_owned(), prefix: prefix.to_owned(), after, limit };
        match self.metadata.ask(query).await? {
            MetaAnswer::Page { objects, more } => Ok((objects, more)),
            other => Err(unexpected("Page", &other)),
        }
    }

    /// An object and where it lies.
    ///
    /// # Errors
    /// When there is no such object.
    pub async fn stat(&self, bucket: &str, key: &str) -> Result<ObjectStat, ClientError> {
        match self.metadata.ask(Query::Lookup { bucket: bucket.to_owned(), key: key.to_owned() }).await? {
            MetaAnswer::Object { object, segments, policy } => Ok(ObjectStat { object, segments, policy }),
            other => Err(unexpected("Object", &other)),
        }
    }

    /// Removes an object; its blocks are freed at once where the devices can be reached, by their sweep elsewhere.
    ///
    /// # Errors
    /// When there is no such object.
    pub async fn remove(&self, bucket: &str, key: &str) -> Result<(), ClientError> {
        match self.metadata.change(Change::Remove { bucket: bucket.to_owned(), key: key.to_owned() }).await? {
            MetaAnswer::Removed { freed } => {
                self.free(freed);
                Ok(())
            }
            other => Err(unexpected("Removed", &other)),
        }
    }

    /// Storage servers and devices as the metadata server last heard of them.
    ///
    /// # Errors
    /// When the metadata server cannot be asked.
    pub async fn registry(&self) -> Result<Registry, ClientError> {
        match self.metadata.ask(Query::Registry).await? {
            MetaAnswer::Registry(registry) => {
                *self.registry.lock().expect("never poisoned: no panic while held") = registry.clone();
                Ok(registry)
            }
            other => Err(unexpected("Registry", &other)),
        }
    }

    /// Whether a device was stalled when the registry was last seen, of a server that is there.
    pub(crate) fn any_stalled(&self) -> bool {
        let registry = self.registry.lock().expect("never poisoned: no panic while held");
        let alive = registry.nodes.iter().filter(|node| node.alive);
        alive.flat_map(|node| &node.devices).any(|device| device.health == DeviceHealth::Stalled)
    }

    /// Whether a write that failed may go well without the devices that it failed for, with fewer parity chunks than it had, and was not
    /// `tried` so. What has become of servers since it was planned is known then.
    pub(crate) async fn may_go_without(
        &self,
        (policy, wish): (&Policy, &Wish),
        error: &WriteError,
        tried: &mut BTreeSet<DeviceId>,
    ) -> bool {
        let may = wish.fewest(policy).is_some_and(|parity| parity.least_chunks() < parity.chunks());
        let unserved = || self.unserved.lock().expect("never poisoned: no panic while held");
        if !may || !unserved().learn(self.now(), error, tried) {
            return false;
        }
        // What was known does as well where nobody answers.
        if let Err(error) = self.registry().await {
            tracing::debug!(%error, "planned by what was known");
        }
        true
    }

    /// The devices that did not take a chunk a moment ago.
    fn left_out(&self) -> BTreeSet<DeviceId> {
        self.unserved.lock().expect("never poisoned: no panic while held").left_out(self.now())
    }

    /// A storage server's own account of itself.
    ///
    /// # Errors
    /// When it cannot be reached.
    pub async fn node_status(&self, address: &str) -> Result<NodeStatus, ClientError> {
        match self.ask_node(address, &NodeRequest::Status, Epoch(0)).await? {
            NodeAnswer::Status(status) => Ok(status),
            other => Err(ClientError::Protocol(format!("expected Status, got {other:?}"))),
        }
    }

    /// Redraws a device's emulated medium.
    ///
    /// # Errors
    /// When the device is unknown, not emulated, or its server cannot be reached.
    pub async fn emulate(&self, device: DeviceId, spec: &str) -> Result<(), ClientError> {
        self.tell_device(device, NodeRequest::Emulate { device, spec: spec.to_owned() }).await
    }

    /// Makes the next read of a device come from its medium.
    ///
    /// # Errors
    /// When the device is unknown or its server cannot be reached.
    pub async fn drop_caches(&self, device: DeviceId) -> Result<(), ClientError> {
        self.tell_device(device, NodeRequest::DropCaches { device }).await
    }

    async fn tell_device(&self, device: DeviceId, request: NodeRequest) -> Result<(), ClientError> {
        let address = match self.address_of(device) {
            Some(address) => address,
            None => {
                self.registry().await?;
                self.address_of(device).ok_or(ClientError::UnknownDevice(device))?
            }
        };
        match self.ask_node(&address, &request, Epoch(0)).await? {
            NodeAnswer::Done => Ok(()),
            other => Err(ClientError::Protocol(format!("expected Done, got {other:?}"))),
        }
    }

    async fn ask_node(
        &self,
        address: &str,
        request: &NodeRequest,
        epoch: Epoch,
    ) -> Result<NodeAnswer, ClientError> {
        tidy::ask(&self.pool, address, request, epoch).await
    }

    /// Waits until what finished accesses left behind (blocks beyond a layout, replaced versions) was freed, half a
    /// second at most. An access itself does not wait for it, and without it the servers' sweeps free the same: call
    /// this before a short-lived process ends.
    pub async fn tidy(&self) {
        let until = Instant::now() + TIDY;
        self.tidying.accounted(TIDY).await;
        self.tidying.close_accounts(&self.pool, self.metadata.address());
        self.tidying.settled(until.saturating_duration_since(Instant::now())).await;
    }

    /// Notes for the metadata server what an access did.
    fn account(&self, done: &AccessTotals) {
        self.tidying.account(&self.pool, self.metadata.address(), done);
    }

    /// Tells whoever watches how far a drain is.
    fn show_drain(&self, progress: DrainProgress) {
        self.tidying.tell_metadata(&self.pool, self.metadata.address(), &MetaRequest::Drain(progress));
    }

    /// Where a device's server listens, as last seen.
    fn address_of(&self, device: DeviceId) -> Option<String> {
        let registry = self.registry.lock().expect("never poisoned: no panic while held");
        let node =
            registry.nodes.iter().find(|node| node.record.devices.iter().any(|&(held, _)| held == device))?;
        Some(node.record.address.clone())
    }

    /// Where these devices' servers listen, as far as is known.
    fn addresses_of(&self, devices: &BTreeSet<DeviceId>) -> BTreeMap<DeviceId, String> {
        let registry = self.registry.lock().expect("never poisoned: no panic while held");
        let records = registry.nodes.iter().map(|node| &node.record);
        let all =
            records.flat_map(|record| record.devices.iter().map(|&(device, _)| (device, &record.address)));
        let of_these = all.filter(|(device, _)| devices.contains(device));
        of_these.map(|(device, address)| (device, address.clone())).collect()
    }

    /// Keeps an access that takes long up to date: where servers listen, and how busy they are.
    async fn following(&self) -> core::convert::Infallible {
        loop {
            tokio::time::sleep(FOLLOW_EVERY).await;
            // What was known holds as well as it did.
            let _ = self.registry().await;
        }
    }

    /// The time of what is learned from one access to the next.
    fn now(&self) -> Time {
        Time(0) + self.started.elapsed()
    }

    /// Measured reading speed of every device, in bytes per second, and the requests waiting there, as last seen.
    fn read_speeds(&self) -> BTreeMap<DeviceId, (u64, u32)> {
        let registry = self.registry.lock().expect("never poisoned: no panic while held");
        let reports = registry.nodes.iter().flat_map(|node| &node.devices);
        reports.map(|report| (report.device, (report.read_bytes_per_s, report.queue_length))).collect()
    }
}

/// What a person at a terminal does not notice much; a device that stalls is left to its server's sweep.
const TIDY: Duration = Duration::from_millis(500);

fn unexpected(wanted: &str, got: &MetaAnswer) -> ClientError {
    let got = format!("{got:?}");
    ClientError::Protocol(format!("expected {wanted}, got {}", got.chars().take(80).collect::<String>()))
}

/// A number that no other client has: a thousand that start at one moment, each the first process of its container, differ too.
fn fresh_seed() -> u64 {
    let mut bytes = [0; 8];
    let drawn = std::fs::File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes));
    if drawn.is_ok() {
        return u64::from_le_bytes(bytes);
    }
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 ^ u64::from(std::process::id()) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_clients_draw_the_same() {
        assert_ne!(fresh_seed(), fresh_seed());
    }
}
