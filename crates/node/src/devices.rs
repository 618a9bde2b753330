//! One directory is one device: finding what is there, formatting what is new, opening, and its lane.
//!
//! ```text
//!   directory ──▶ space there?  ──yes──▶ opens? ──yes──▶ Found           its lane starts
//!                  │ no                    │ blank
//!                  ▼                       ▼
//!                 identity there? ──yes──▶ refused as wiped
//!                  │ no
//!                  ▼
//!                 New: formatted once the metadata server has named the cluster
//! ```
//!
//! A directory whose device was removed from the cluster is passed over, whatever is in it, until it is emptied: its identity still says
//! which node this is, and the list of [`added`](crate::added) devices may lie there.

use crate::{
    NodeError, NodeOptions,
    identity::{self, Identity},
    paced::Paced,
    updates::Merges,
};
use std::{
    collections::BTreeSet,
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};
use steadfast_disk::{
    Device, EmulatedMedium, EmulationControl, EmulationSpec, FileMedium, FormatOptions, Lane, LaneHandle,
    Medium,
    device::OpenError,
    media::{Made, OpenFileError},
};
use steadfast_protocol::{BlockIndex, ClusterId, DeviceId, NodeId, SegmentId, serve::AdmissionPolicy};
use tokio::sync::Semaphore;

/// One device that is served.
pub(crate) struct ServedDevice {
    pub(crate) id: DeviceId,
    pub(crate) dir: PathBuf,
    pub(crate) lane: LaneHandle,
    /// The way of data to the lane.
    pub(crate) paced: Arc<Paced>,
    /// When its logs are merged.
    pub(crate) merges: Merges,
    /// Readers that may have one of its logs in memory.
    pub(crate) logs: Semaphore,
    /// Redraws its emulation, if it was started with one.
    pub(crate) emulation: Option<EmulationControl>,
    /// Bytes of blocks read for readers, and of those the ones given to their connections.
    pub(crate) stream_read_bytes: AtomicU64,
    pub(crate) stream_sent_bytes: AtomicU64,
    /// Bytes of reserves that updates did not need.
    pub(crate) reserve_given_back_bytes: AtomicU64,
    refused_as_full: Mutex<Option<Instant>>,
    corrupt_told: Mutex<BTreeSet<SegmentId>>,
}

/// Logs that are in memory for readers at a time. A log has as many bytes as its chunk by default, 4 MiB, and one at a time keeps the device
/// busy; the second is read while the first is used.
const LOGS_MAX: usize = 2;
/// Segments whose damage is told; a device with more is broken, as its count of corrupt blocks says.
const CORRUPT_TOLD_MAX: usize = 256;

/// A directory before its lane starts.
pub(crate) struct Prepared {
    dir: PathBuf,
    state: State,
    identity: Option<Identity>,
    /// What was made for it, which goes again unless its lane starts.
    made: Made,
}

enum State {
    Found {
        device: Box<Device>,
        emulation: Option<EmulationControl>,
    },
    New,
    /// Its device was removed from this cluster.
    Removed {
        cluster: ClusterId,
    },
}

impl ServedDevice {
    pub(crate) fn new(
        id: DeviceId,
        dir: PathBuf,
        lane: LaneHandle,
        emulation: Option<EmulationControl>,
        admission: AdmissionPolicy,
    ) -> Self {
        let paced = Paced::new(lane.clone(), admission);
        let (stream_read_bytes, stream_sent_bytes, refused_as_full, corrupt_told) = Default::default();
        Self {
            id,
            dir,
            lane,
            paced,
            merges: Merges::default(),
            logs: Semaphore::new(LOGS_MAX),
            emulation,
            stream_read_bytes,
            stream_sent_bytes,
            reserve_given_back_bytes: AtomicU64::new(0),
            refused_as_full,
            corrupt_told,
        }
    }

    /// Notes that a block was refused for want of space, or taken.
    pub(crate) fn note_full(&self, full: bool) {
        *self.refused_as_full.lock().unwrap_or_else(PoisonError::into_inner) = full.then(Instant::now);
    }

    /// Says once for each segment that a block of it is damaged.
    pub(crate) fn tell_corrupt(&self, segment: SegmentId, index: BlockIndex) {
        let mut told = self.corrupt_told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < CORRUPT_TOLD_MAX && told.insert(segment) {
            let dir = self.dir.display();
            tracing::error!(device = %self.id, %dir, %segment, index, "a block does not match its checksum");
        }
    }

    /// What made it fail, where something did.
    pub(crate) fn why_failed(&self) -> Option<String> {
        let status = self.lane.status();
        let reads = || status.reads.error.map(|error| format!("its reads fail: {error}"));
        status.failed.map(|error| error.to_string()).or_else(reads)
    }

    /// Since it last refused a block for want of space.
    pub(crate) fn refused_as_full(&self) -> Option<Duration> {
        let refused = self.refused_as_full.lock().unwrap_or_else(PoisonError::into_inner);
        refused.map(|at| at.elapsed())
    }
}

/// Drops cached pages of the data in `dir`, so that the next read comes from the medium. Blocks.
pub(crate) fn drop_caches(dir: &Path) -> std::io::Result<()> {
    // A lock belongs to its open file, so opening the space once more takes nothing from the lane.
    let space = File::open(dir.join("space"))?;
    rustix::fs::fdatasync(&space)?;
    rustix::fs::fadvise(&space, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Looks into every directory; opens what is there. Devices must agree on their cluster.
pub(crate) fn prepare(options: &NodeOptions) -> Result<Vec<Prepared>, NodeError> {
    if options.dirs.is_empty() {
        return Err(NodeError::NoDirectory);
    }
    let mut seen = BTreeSet::new();
    let mut all_made = Vec::new();
    for dir in &options.dirs {
        let mut made = Made::default();
        made.directory(dir).map_err(io("make", dir))?;
        all_made.push(made);
        if !seen.insert(fs::canonicalize(dir).map_err(io("resolve", dir))?) {
            return Err(NodeError::DirectoryTwice { dir: dir.clone() });
        }
    }
    let mut prepared: Vec<Prepared> = Vec::new();
    for (dir, made) in options.dirs.iter().zip(all_made) {
        let found = look(dir, options.emulate.is_some(), made)?;
        if let (Some(ours), Some(theirs)) = (cluster(&prepared), found.cluster())
            && ours != theirs
        {
            return Err(NodeError::MixedClusters { dir: dir.clone(), ours, theirs });
        }
        prepared.push(found);
    }
    Ok(prepared)
}

/// The cluster of the devices that are there already.
pub(crate) fn cluster(prepared: &[Prepared]) -> Option<ClusterId> {
    prepared.iter().find_map(Prepared::cluster)
}

/// Whether a device must be formatted first.
pub(crate) fn any_new(prepared: &[Prepared]) -> bool {
    prepared.iter().any(|device| matches!(device.state, State::New))
}

/// A further device of a node that runs, in `dir`; it has those in `there`. Blocks.
pub(crate) fn add(
    dir: &Path,
    there: &[PathBuf],
    node: NodeId,
    cluster: ClusterId,
    options: &NodeOptions,
) -> Result<ServedDevice, NodeError> {
    if !dir.is_absolute() {
        return Err(NodeError::Relative { dir: dir.to_owned() });
    }
    let mut made = Made::default();
    made.directory(dir).map_err(io("make", dir))?;
    let dir = &fs::canonicalize(dir).map_err(io("resolve", dir))?;
    if there.iter().any(|there| fs::canonicalize(there).is_ok_and(|there| there == *dir)) {
        return Err(NodeError::DirectoryTwice { dir: dir.clone() });
    }
    let found = look(dir, options.emulate.is_some(), made)?;
    if let Prepared { state: State::Removed { .. }, identity: Some(Identity { device, .. }), .. } = found {
        return Err(NodeError::Removed { dir: dir.clone(), device });
    }
    if let Some(theirs) = found.cluster().filter(|&theirs| theirs != cluster) {
        return Err(NodeError::MixedClusters { dir: dir.clone(), ours: cluster, theirs });
    }
    let (_, mut served) = start(vec![found], cluster, options, Some(node))?;
    Ok(served.pop().expect("one directory is one device"))
}

/// Formats what is new, starts the lanes, and says which node this is, where it is not `known`.
pub(crate) fn start(
    prepared: Vec<Prepared>,
    cluster: ClusterId,
    options: &NodeOptions,
    known: Option<NodeId>,
) -> Result<(NodeId, Vec<ServedDevice>), NodeError> {
    let capacities = capacities(&prepared, options)?;
    // The first directory that remembers says which node this is.
    let remembered = prepared.iter().find_map(|device| device.identity).map(|identity| identity.node);
    let mut node = known.or(remembered);
    let mut served = Vec::new();
    for (Prepared { dir, state, identity, mut made }, capacity) in prepared.into_iter().zip(capacities) {
        let (device, emulation) = match state {
            State::Found { device, emulation } => (*device, emulation),
            State::New => format(&dir, cluster, capacity, options, &mut made)?,
            State::Removed { .. } => {
                let dir = dir.display();
                tracing::warn!(%dir, "its device was removed from the cluster: passed over until it is emptied");
                continue;
            }
        };
        let id = device.id();
        // A node is named after its first device, and keeps that name.
        let node = *node.get_or_insert(NodeId(id.0));
        let now = Identity { node, device: id, cluster, removed: false };
        if identity != Some(now) {
            if !dir.join(identity::FILE).exists() {
                made.file(dir.join(identity::FILE));
            }
            identity::store(&dir, &now)?;
        }
        let lane = Lane::spawn(device, options.lane).map_err(io("start a thread for", &dir))?;
        if let (Some(control), Some(spec)) = (&emulation, options.emulate) {
            control.redraw(spec);
        }
        made.keep();
        served.push(ServedDevice::new(id, dir, lane, emulation, options.admission));
    }
    let node = node.expect("there is at least one directory, and a device in it, or the name of one");
    Ok((node, served))
}

impl Prepared {
    fn cluster(&self) -> Option<ClusterId> {
        match &self.state {
            State::Found { device, .. } => Some(device.cluster()),
            State::Removed { cluster } => Some(*cluster),
            State::New => None,
        }
    }
}

fn look(dir: &Path, emulated: bool, made: Made) -> Result<Prepared, NodeError> {
    let identity = identity::load(dir)?;
    let prepared = |state| Prepared { dir: dir.to_owned(), state, identity, made };
    if let Some(Identity { cluster, removed: true, .. }) = identity {
        return Ok(prepared(State::Removed { cluster }));
    }
    let fresh = |found: &'static str| match identity {
        None => Ok(State::New),
        Some(Identity { device, .. }) => Err(NodeError::Wiped { dir: dir.to_owned(), device, found }),
    };
    let space = match FileMedium::open(dir) {
        Ok(space) => space,
        Err(OpenFileError::Missing { .. }) => return fresh("there is no space file").map(prepared),
        Err(error) => return Err(error.into()),
    };
    match open(space, emulated) {
        Ok((device, emulation)) => Ok(prepared(State::Found { device: Box::new(device), emulation })),
        Err(OpenError::Blank) => fresh("its space is blank").map(prepared),
        Err(source) => Err(NodeError::Device { dir: dir.to_owned(), source }),
    }
}

/// Opens the device on `space`; the emulation begins as off, so that a stall does not hold the start.
fn open(space: FileMedium, emulated: bool) -> Result<(Device, Option<EmulationControl>), OpenError> {
    let space = Arc::new(space);
    if emulated {
        let medium = EmulatedMedium::new(space, EmulationSpec::OFF);
        let control = medium.control();
        Ok((Device::open(Arc::new(medium), None)?, Some(control)))
    } else {
        Ok((Device::open(space as Arc<dyn Medium>, None)?, None))
    }
}

fn format(
    dir: &Path,
    cluster: ClusterId,
    capacity: u64,
    options: &NodeOptions,
    made: &mut Made,
) -> Result<(Device, Option<EmulationControl>), NodeError> {
    let space = match FileMedium::create(dir, capacity) {
        // A start that was cut short left it, blank: look() made sure. It has the capacity that was wished for then, or none.
        Err(OpenFileError::Exists { .. }) => {
            let mut space = FileMedium::open(dir)?;
            if options.capacity_bytes.is_some() || space.capacity() == 0 {
                space.resize(capacity)?;
            }
            space
        }
        other => {
            let space = other?;
            made.file(dir.join("space"));
            space
        }
    };
    let id = DeviceId(identity::random_u128()?);
    let failed = |source| NodeError::Format { dir: dir.to_owned(), source };
    if options.thick {
        let filling = |source| NodeError::Fill { dir: dir.to_owned(), source };
        space.fill().map_err(filling)?;
    }
    let how = FormatOptions { thick: options.thick, ..FormatOptions::new(cluster, id) };
    Device::format(&space, how).map_err(failed)?;
    tracing::info!(device = %id, %cluster, dir = %dir.display(), bytes = capacity, "made a new device");
    open(space, options.emulate.is_some()).map_err(|source| NodeError::Device { dir: dir.to_owned(), source })
}

/// Bytes of each new device; 0 for those that are there.
fn capacities(prepared: &[Prepared], options: &NodeOptions) -> Result<Vec<u64>, NodeError> {
    let mut filesystems = Vec::new();
    for device in prepared {
        let new = matches!(device.state, State::New);
        let metadata = fs::metadata(&device.dir).map_err(io("look at", &device.dir))?;
        filesystems.push(new.then(|| metadata.dev()));
    }
    let sharing = |filesystem| filesystems.iter().filter(|&&other| other == filesystem).count() as u64;
    let mut capacities = Vec::new();
    for (device, &filesystem) in prepared.iter().zip(&filesystems) {
        capacities.push(match (filesystem, options.capacity_bytes) {
            (None, _) => 0,
            (Some(_), Some(bytes)) => bytes,
            (Some(_), None) => {
                let stat = rustix::fs::statvfs(&device.dir)
                    .map_err(|error| io("look at", &device.dir)(error.into()))?;
                let free_bytes = stat.f_bavail.saturating_mul(stat.f_frsize);
                let share = free_bytes / 10 * 9 / sharing(filesystem);
                if share < 16 << 20 {
                    return Err(NodeError::NoRoom { dir: device.dir.clone(), free_bytes });
                }
                share
            }
        });
    }
    Ok(capacities)
}

fn io(what: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> NodeError {
    let path = path.to_owned();
    move |source| NodeError::Io { what, path, source }
}
