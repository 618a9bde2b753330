//! One directory is one device: finding what is there, formatting what is new, opening, and its lane.
//!
//! ```text
//!   directory ──▶ space there?  ──yes──▶ opens? ──yes──▶ Found            its lane starts
//!                  │ no                    │ blank  └─no──▶ Unusable      passed over
//!                  ▼                       ▼
//!                 identity there, or listed? ──yes──▶ Gone                passed over,
//!                  │ no                                │ removed from     unless the metadata server
//!                  ▼                                   ▼ the cluster      says that it was removed
//!                 New: formatted once the metadata server has named the cluster
//! ```
//!
//! One disk that is dead or not mounted is not to keep the others from being served: where one device is found, what is wrong with others is
//! told, and they are missing. One that takes no writes any more is found: it is told as failed, and serves what it has. A directory whose
//! device was removed from the cluster is passed over, whatever is in it, until it is emptied: its identity still says which node this is,
//! and the lists of the [`roster`](crate::roster) may lie there.

use crate::{
    NodeError, NodeOptions,
    identity::{self, Identity},
    paced::Paced,
    roster::{Places, is_plain, resolve},
    updates::{Logged, Merges, returned::Returned},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError, atomic::AtomicU64},
    time::{Duration, Instant},
};
use steadfast_disk::{
    Device, EmulatedMedium, EmulationControl, EmulationSpec, FileMedium, FormatOptions, Lane, LaneHandle,
    Medium,
    device::{DeviceError, OpenError},
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
    /// What is known of them.
    pub(crate) logged: Logged,
    /// Whether its data chunks have all that was acknowledged.
    pub(crate) returned: Returned,
    /// Redraws its emulation, if it was started with one.
    pub(crate) emulation: Option<EmulationControl>,
    /// Bytes of blocks read for readers, and of those the ones given to their connections.
    pub(crate) stream_read_bytes: AtomicU64,
    pub(crate) stream_sent_bytes: AtomicU64,
    /// Bytes of reserves that updates did not need.
    pub(crate) reserve_given_back_bytes: AtomicU64,
    /// Blocks that layouts list on it and that it did not hold at the last sweep.
    pub(crate) blocks_lost: AtomicU64,
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
    /// Whether the node is started with it.
    given: bool,
    /// What is listed there.
    had: Option<DeviceId>,
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
    /// There was a device, and it is not there.
    Gone {
        device: DeviceId,
        found: &'static str,
    },
    /// There is something, and it does not open.
    Unusable(NodeError),
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
            logged: Logged::default(),
            returned: Returned::default(),
            emulation,
            stream_read_bytes,
            stream_sent_bytes,
            reserve_given_back_bytes: AtomicU64::new(0),
            blocks_lost: AtomicU64::new(0),
            refused_as_full,
            corrupt_told,
        }
    }

    /// Notes that a block was refused for want of space, or taken.
    pub(crate) fn note_full(&self, full: bool) {
        *self.refused_as_full.lock().unwrap_or_else(PoisonError::into_inner) = full.then(Instant::now);
    }

    /// Says once for each segment that a block of it is damaged, or cannot be read.
    pub(crate) fn tell_corrupt(&self, segment: SegmentId, index: BlockIndex) {
        let mut told = self.corrupt_told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.len() < CORRUPT_TOLD_MAX && told.insert(segment) {
            let dir = self.dir.display();
            tracing::error!(device = %self.id, %dir, %segment, index, "a block is damaged, or cannot be read");
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

/// Directories and the devices that are listed in them.
type Had = BTreeMap<PathBuf, BTreeSet<DeviceId>>;

/// Looks into every directory that the node is started with, which had the devices `given`, and into those of devices that were `added`.
/// Opens what is there. Devices must agree on their cluster.
pub(crate) fn prepare(
    options: &NodeOptions,
    given: &Places,
    added: &Places,
) -> Result<Vec<Prepared>, NodeError> {
    if options.dirs.is_empty() {
        return Err(NodeError::NoDirectory);
    }
    let mut had = Had::new();
    for (&device, dir) in given.iter().chain(added) {
        had.entry(resolve(dir)).or_default().insert(device);
    }
    let mut seen = BTreeSet::new();
    let mut to_look = Vec::new();
    for dir in &options.dirs {
        let mut made = Made::default();
        // What had a device and is not there at all is no new directory.
        if !had.contains_key(&resolve(dir)) {
            made.directory(dir).map_err(io("make", dir))?;
        }
        if !seen.insert(resolve(dir)) {
            return Err(NodeError::DirectoryTwice { dir: dir.clone() });
        }
        to_look.push((dir, true, made));
    }
    let besides = added.values().filter(|dir| seen.insert(resolve(dir)));
    to_look.extend(besides.map(|dir| (dir, false, Made::default())));
    let mut prepared: Vec<Prepared> = Vec::new();
    let none = BTreeSet::new();
    for (dir, given, made) in to_look {
        let listed = had.get(&resolve(dir)).unwrap_or(&none);
        let mut found = look(dir, listed.first().copied(), options.emulate, made)?;
        found.given = given;
        // Nobody said that another device in its place is this node's.
        if let (Some(device), Some(&expected)) = (found.device(), listed.first())
            && !given
            && !listed.contains(&device)
        {
            found.state = State::Gone { device: expected, found: "another device is there" };
        }
        if let (Some(ours), Some(theirs)) = (cluster(&prepared), found.cluster())
            && ours != theirs
        {
            return Err(NodeError::MixedClusters { dir: dir.clone(), ours, theirs });
        }
        // Which of two copies has what was written last, nothing here says.
        if let Some(device) = found.device()
            && let Some(twin) = prepared.iter().find(|other| other.device() == Some(device))
        {
            return Err(NodeError::DeviceTwice { device, dirs: [twin.dir.clone(), dir.clone()] });
        }
        prepared.push(found);
    }
    Ok(prepared)
}

/// Those of these devices that are in no directory.
pub(crate) fn missing(prepared: &[Prepared], listed: impl Iterator<Item = DeviceId>) -> BTreeSet<DeviceId> {
    let gone = prepared.iter().filter_map(|prepared| match prepared.state {
        State::Gone { device, .. } => Some(device),
        _ => None,
    });
    let found: BTreeSet<DeviceId> = prepared.iter().filter_map(Prepared::device).collect();
    listed.chain(gone).filter(|device| !found.contains(device)).collect()
}

/// Of all that were here only these are `missing`: directories that are given and had others are new. As long as one is missing whose
/// directory has another now, its disk may belong wherever nothing is.
pub(crate) fn settle(prepared: &mut Vec<Prepared>, missing: &BTreeSet<DeviceId>) {
    let lacks = |prepared: &Prepared| match prepared.state {
        State::Gone { device, .. } => Some(device),
        _ => None,
    };
    let unusable = |prepared: &Prepared| match prepared.state {
        State::Unusable(_) => prepared.had,
        _ => None,
    };
    let lacking: BTreeSet<DeviceId> =
        prepared.iter().filter_map(|prepared| lacks(prepared).or(unusable(prepared))).collect();
    let displaced = missing.iter().find(|device| !lacking.contains(device)).copied();
    let is_over = |prepared: &Prepared| lacks(prepared).is_some_and(|device| !missing.contains(&device));
    prepared.retain(|prepared| prepared.given || !is_over(prepared));
    for prepared in prepared {
        if !is_over(prepared) && !matches!(prepared.state, State::New) {
            continue;
        }
        prepared.state = match displaced {
            Some(device) => State::Gone { device, found: "its disk may belong here" },
            None => prepared
                .made
                .directory(&prepared.dir)
                .map_or_else(|error| State::Unusable(io("make", &prepared.dir)(error)), |()| State::New),
        };
    }
}

/// The node that these directories remember: the first of a device that was here at the last start and takes writes, as others may have an
/// earlier name; else the first.
pub(crate) fn remembered(prepared: &[Prepared]) -> Option<NodeId> {
    let was_named = |device: &&Prepared| match &device.state {
        State::Found { device: found, .. } => device.had == Some(found.id()) && found.failed().is_none(),
        _ => false,
    };
    let first = prepared.iter().filter(was_named).chain(prepared).find_map(|device| device.identity);
    first.map(|identity| identity.node)
}

/// The cluster of the devices that are there already.
pub(crate) fn cluster(prepared: &[Prepared]) -> Option<ClusterId> {
    prepared.iter().find_map(Prepared::cluster)
}

/// Whether a device must be formatted first.
pub(crate) fn any_new(prepared: &[Prepared]) -> bool {
    prepared.iter().any(|device| matches!(device.state, State::New))
}

/// A further device of a node that runs, in `dir`, which may have `had` one before; the node serves those in `there`. Blocks.
pub(crate) fn add(
    dir: &Path,
    (there, had): (&Places, Option<DeviceId>),
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
    if !is_plain(dir) {
        return Err(NodeError::Name { dir: dir.clone() });
    }
    if there.values().any(|there| fs::canonicalize(there).is_ok_and(|there| there == *dir)) {
        return Err(NodeError::DirectoryTwice { dir: dir.clone() });
    }
    let found = look(dir, had, options.emulate, made)?;
    if let Prepared { state: State::Removed { .. }, identity: Some(Identity { device, .. }), .. } = found {
        return Err(NodeError::Removed { dir: dir.clone(), device });
    }
    if let Some((device, twin)) = found.device().and_then(|device| there.get_key_value(&device)) {
        return Err(NodeError::DeviceTwice { device: *device, dirs: [twin.clone(), dir.clone()] });
    }
    if let Some(theirs) = found.cluster().filter(|&theirs| theirs != cluster) {
        return Err(NodeError::MixedClusters { dir: dir.clone(), ours: cluster, theirs });
    }
    let Started { mut served, .. } = start(vec![found], cluster, options, Some(node))?;
    Ok(served.pop().expect("one directory is one device"))
}

/// What a node has when it starts.
pub(crate) struct Started {
    /// Its name.
    pub(crate) node: NodeId,
    pub(crate) served: Vec<ServedDevice>,
}

/// Formats what is new, starts the lanes, and says which node this is, where it is not `known`.
///
/// # Errors
/// Also what is wrong with the first device, where none is well.
pub(crate) fn start(
    prepared: Vec<Prepared>,
    cluster: ClusterId,
    options: &NodeOptions,
    known: Option<NodeId>,
) -> Result<Started, NodeError> {
    let well = |device: &Prepared| matches!(device.state, State::Found { .. } | State::Removed { .. });
    let is_one_well = prepared.iter().any(well);
    let capacities = capacities(&prepared, options)?;
    // The directories say which node this is.
    let mut node = known.or(remembered(&prepared));
    let mut served = Vec::new();
    for (Prepared { dir, state, identity, mut made, .. }, capacity) in prepared.into_iter().zip(capacities) {
        let (device, emulation) = match state {
            State::Found { device, emulation } => (*device, emulation),
            State::New => format(&dir, cluster, capacity, options, &mut made)?,
            State::Removed { .. } => {
                let dir = dir.display();
                tracing::warn!(%dir, "its device was removed from the cluster: passed over until it is emptied");
                continue;
            }
            State::Gone { .. } | State::Unusable(_) => {
                let error = match state {
                    State::Unusable(error) => error,
                    State::Gone { device, found } => NodeError::Gone { dir: dir.clone(), device, found },
                    _ => unreachable!("matched above"),
                };
                if !is_one_well {
                    return Err(error);
                }
                tracing::error!(%error, "a device is not served");
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
            match identity::store(&dir, &now) {
                // Its disk takes no writes any more: it serves what it has all the same.
                Err(error) if device.failed().is_some() => {
                    let dir = dir.display();
                    tracing::warn!(%dir, %node, %error, "the directory keeps what it says of its server");
                }
                stored => stored?,
            }
        }
        let lane = Lane::spawn(device, options.lane).map_err(io("start a thread for", &dir))?;
        if let (Some(control), Some(spec)) = (&emulation, options.emulate) {
            control.redraw(spec);
        }
        made.keep();
        served.push(ServedDevice::new(id, dir, lane, emulation, options.admission));
    }
    let node = node.expect("there is at least one directory, and a device in it, or the name of one");
    Ok(Started { node, served })
}

impl Prepared {
    fn cluster(&self) -> Option<ClusterId> {
        match &self.state {
            State::Found { device, .. } => Some(device.cluster()),
            State::Removed { cluster } => Some(*cluster),
            State::New | State::Gone { .. } | State::Unusable(_) => {
                self.identity.map(|identity| identity.cluster)
            }
        }
    }

    /// The device that is there.
    fn device(&self) -> Option<DeviceId> {
        match &self.state {
            State::Found { device, .. } => Some(device.id()),
            _ => None,
        }
    }
}

/// What is in a directory, which `had` a device.
///
/// # Errors
/// For what is not the disk's: another process has it, or another program version made it.
fn look(
    dir: &Path,
    had: Option<DeviceId>,
    emulate: Option<EmulationSpec>,
    made: Made,
) -> Result<Prepared, NodeError> {
    let (identity, state) = match identity::load(dir) {
        Ok(identity) => (identity, state(dir, identity, had, emulate)?),
        Err(error) => (None, State::Unusable(error)),
    };
    Ok(Prepared { dir: dir.to_owned(), given: true, had, state, identity, made })
}

fn state(
    dir: &Path,
    identity: Option<Identity>,
    had: Option<DeviceId>,
    emulate: Option<EmulationSpec>,
) -> Result<State, NodeError> {
    if let Some(Identity { cluster, removed: true, .. }) = identity {
        return Ok(State::Removed { cluster });
    }
    let nothing = |found: &'static str| match identity.map(|identity| identity.device).or(had) {
        None => State::New,
        Some(device) => State::Gone { device, found },
    };
    let space = match FileMedium::open(dir) {
        Ok(space) => space,
        Err(OpenFileError::Missing { .. }) => return Ok(nothing("there is no space file")),
        Err(error @ OpenFileError::Locked { .. }) => return Err(error.into()),
        Err(error) => return Ok(State::Unusable(error.into())),
    };
    let failed = |source| NodeError::Device { dir: dir.to_owned(), source };
    match open(space, emulate) {
        Ok((device, emulation)) => Ok(State::Found { device: Box::new(device), emulation }),
        Err(OpenError::Blank) => Ok(nothing("its space is blank")),
        Err(source @ OpenError::UnknownVersion { .. }) => Err(failed(source)),
        Err(source) => Ok(State::Unusable(failed(source))),
    }
}

/// Opens the device on `space`; the emulation begins as off, so that a stall does not hold the start.
fn open(
    space: FileMedium,
    emulate: Option<EmulationSpec>,
) -> Result<(Device, Option<EmulationControl>), OpenError> {
    let space = Arc::new(space);
    if let Some(EmulationSpec { rotational, .. }) = emulate {
        // It opens in no time; how it is written to counts from the start.
        let medium = EmulatedMedium::new(space, EmulationSpec { rotational, ..EmulationSpec::OFF });
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
    let failed = |source| NodeError::Device { dir: dir.to_owned(), source };
    let (device, emulation) = open(space, options.emulate).map_err(failed)?;
    match device.failed() {
        // There is nothing to be read on it.
        Some(DeviceError::Failed { cause }) => Err(failed(OpenError::Medium(cause.clone()))),
        _ => Ok((device, emulation)),
    }
}

/// Bytes of each new device; 0 for those that are there.
fn capacities(prepared: &[Prepared], options: &NodeOptions) -> Result<Vec<u64>, NodeError> {
    let mut filesystems = Vec::new();
    for device in prepared {
        filesystems.push(match device.state {
            State::New => Some(fs::metadata(&device.dir).map_err(io("look at", &device.dir))?.dev()),
            _ => None,
        });
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

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_disk::media::CrashMedium;

    const CLUSTER: ClusterId = ClusterId(9);

    /// A device that was in `dir` at the last start, of a server of that name. Where it `only_reads`, nothing is written beside it either.
    fn found(dir: PathBuf, device: u128, node: NodeId, only_reads: bool) -> Prepared {
        let id = DeviceId(device);
        let medium = Arc::new(CrashMedium::new(4 << 20));
        Device::format(&*medium, FormatOptions::new(CLUSTER, id)).unwrap();
        medium.fail_writes(only_reads);
        let device = Box::new(Device::open(medium, None).unwrap());
        assert_eq!(device.failed().is_some(), only_reads);
        let now = Identity { node, device: id, cluster: CLUSTER, removed: false };
        fs::create_dir(&dir).unwrap();
        identity::store(&dir, &now).unwrap();
        if only_reads {
            // Who runs the tests may write anywhere, but to a directory.
            fs::create_dir(dir.join("identity.new")).unwrap();
        }
        let state = State::Found { device, emulation: None };
        Prepared { dir, given: true, had: Some(id), state, identity: Some(now), made: Made::default() }
    }

    #[test]
    fn a_disk_that_only_reads_keeps_no_other_from_a_new_name() {
        let root = tempfile::tempdir().unwrap();
        let dir = |name: &str| root.path().join(name);
        let (old, new) = (NodeId(1), NodeId(2));
        let prepared = vec![found(dir("a"), 11, old, true), found(dir("b"), 12, old, false)];
        assert_eq!(remembered(&prepared), Some(old));
        let options = NodeOptions::new(Vec::new(), "127.0.0.1:1", "127.0.0.1:0".parse().unwrap());
        let started = start(prepared, CLUSTER, &options, Some(new)).unwrap();
        let served: Vec<DeviceId> = started.served.iter().map(|device| device.id).collect();
        assert_eq!((started.node, served), (new, vec![DeviceId(11), DeviceId(12)]));
        for device in &started.served {
            device.lane.shutdown();
        }
        let named = |name| identity::load(&dir(name)).unwrap().map(|identity| identity.node);
        assert_eq!((named("a"), named("b")), (Some(old), Some(new)));
        // At the next start, without a wish for a new name, the first directory still has the old one.
        let prepared = [found(dir("c"), 13, old, true), found(dir("d"), 14, new, false)];
        assert_eq!(remembered(&prepared), Some(new));
    }
}
