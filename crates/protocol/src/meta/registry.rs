//! Storage servers and their devices. What they are is stored; that they live, and how their devices do, is only
//! remembered ([`Liveness`]), for it changes every second and is learned again after a restart.
//!
//! A device that its node registers no more, for its disk is dead or it was taken out, is *missing*: it may stand in layouts,
//! so it stays known, as the last node's that served it, until it is removed (`standing`) or any node registers it again.
//!
//! A node's damaged record is left out of what is known: told so by the answer to its next heartbeat, the node registers
//! over it.
//!
//! A server started again may listen elsewhere, and is told from a copy of one that runs (a machine cloned with its disks, which would serve
//! the same devices beside it) by the silence before: who sends signs of life has not ended.
//!
//! Invariants: a device is served by at most one node; devices of another cluster never enter.

use super::{
    counters, keys,
    reports::ClientReports,
    standing,
    view::{Txn, View, ViewError},
};
use crate::{
    ClusterId, DeviceId, NodeId, Time,
    message::{
        AccessTotals, DeviceHealth, DeviceReport, DrainProgress, Heartbeat, MISSING_SHOWN_MAX, MetaAnswer,
        MetaFault, NodeActivity, NodeRecord, NodeState, Registry, Standing,
    },
};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// The most devices of one node.
pub const DEVICES_PER_NODE_MAX: usize = 256;
/// The most devices, and so the most nodes, of a cluster: a report of them all fits into one answer.
pub const DEVICES_MAX: usize = 8192;
/// The most devices that no node registers any more and that are remembered all the same: what a node leaves out beyond is
/// forgotten, for servers that come with new devices at each start must not fill the store.
const MISSING_MAX: usize = DEVICES_MAX;
/// The most devices that are known.
pub(super) const KNOWN_MAX: usize = DEVICES_MAX + MISSING_MAX;
/// The longest address or site name in bytes.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// The most bytes of all nodes' addresses and site names: 64 for each of [`DEVICES_MAX`] nodes, an eighth of what an answer holds.
const TEXTS_BYTES_MAX: usize = 64 * DEVICES_MAX;
/// The longest admin address that is passed on, in bytes.
const ADMIN_BYTES_MAX: usize = 64;
/// Whoever was heard so lately runs: three of the signs of life that come twice a second, one of which may be late. A server that is started
/// again elsewhere within it is refused, and asks again after two seconds; mostly it is not, as its connection has ended ([`Liveness::left`]).
const RUNS_FOR: Duration = Duration::from_millis(1500);
/// So many times as long as until a node counts as dead what was heard of it is kept at least.
const HEARD_KEPT: u32 = 10;

/// Who was heard of when, and what they reported last.
#[derive(Clone, Debug, PartialEq)]
pub struct Liveness {
    /// From when on silence counts: when the server started, or last went on.
    started: Time,
    dead_after: Duration,
    heard: BTreeMap<NodeId, Heard>,
    /// Of a driver that keeps no others.
    reports: ClientReports,
}

#[derive(Clone, Debug, PartialEq)]
struct Heard {
    at: Time,
    /// When its last sign of life came: none since it registered, or since it left.
    beat_at: Option<Time>,
    devices: Vec<DeviceReport>,
    activity: NodeActivity,
}

impl Liveness {
    /// Nobody was heard of yet. A node is dead once silent for `dead_after`; one that was not heard of since `started`
    /// is given that long too, for it may just not have noticed that the server is back.
    pub fn new(started: Time, dead_after: Duration) -> Self {
        let (heard, reports) = Default::default();
        Self { started, dead_after, heard, reports }
    }

    /// A node has registered: it lives, and what it reported before is void. Of more nodes than a cluster has, those are forgotten that were
    /// not heard for long: whoever comes under a new name each time must not fill the memory.
    pub fn registered(&mut self, now: Time, node: NodeId) {
        let (devices, activity) = Default::default();
        self.heard.insert(node, Heard { at: now, beat_at: None, devices, activity });
        if self.heard.len() > DEVICES_MAX {
            let kept = self.dead_after.saturating_mul(HEARD_KEPT);
            self.heard.retain(|_, heard| now.since(heard.at) < kept);
        }
    }

    /// The connection is over by which a node was heard last: it has ended, as far as is known, and may be started again elsewhere. One that
    /// runs on is heard soon.
    pub fn left(&mut self, node: NodeId) {
        if let Some(heard) = self.heard.get_mut(&node) {
            heard.beat_at = None;
        }
    }

    /// Whether a node runs, for it was heard a moment ago.
    fn runs(&self, node: NodeId, now: Time) -> bool {
        let beat_at = self.heard.get(&node).and_then(|heard| heard.beat_at);
        beat_at.is_some_and(|beat_at| now.since(beat_at) < RUNS_FOR)
    }

    /// The server goes on at `now` and could hear nobody for a while, for it did not run or its store hung: as after a restart every
    /// node is given as long to be heard as it may be silent.
    pub fn stood_still(&mut self, now: Time) {
        self.started = self.started.max(now);
    }

    /// Whether a registered node counts as alive.
    pub fn is_alive(&self, node: NodeId, now: Time) -> bool {
        let heard = self.heard.get(&node).map_or(self.started, |heard| heard.at);
        now.since(heard.max(self.started)) < self.dead_after
    }

    /// [`ClientReports::account`].
    pub fn account(&mut self, accesses: &AccessTotals) {
        self.reports.account(accesses);
    }

    /// [`ClientReports::drain`], where nothing is known of the devices.
    ///
    /// # Errors
    /// As that.
    pub fn drain(&mut self, now: Time, progress: DrainProgress) -> Result<MetaAnswer, MetaFault> {
        self.reports.drain(now, progress, &[])
    }

    /// What clients said.
    pub fn reports(&self) -> &ClientReports {
        &self.reports
    }

    /// Takes a sign of life that came at `at`, as [`vouched`] gives it. Where the store was slow to vouch for it, what came
    /// later stands.
    pub fn heard(&mut self, at: Time, heartbeat: Heartbeat) {
        let Heartbeat { node, devices, activity } = heartbeat;
        if self.heard.get(&node).is_none_or(|heard| heard.at <= at) {
            self.heard.insert(node, Heard { at, beat_at: Some(at), devices, activity });
        }
    }

    /// Whether a node reported that a device of it has failed.
    pub fn has_failed(&self, node: NodeId, device: DeviceId) -> bool {
        let reports = self.heard.get(&node).map_or(&[][..], |heard| &heard.devices);
        reports.iter().any(|report| report.device == device && report.health == DeviceHealth::Failed)
    }
}

/// Takes a sign of life. A node that is not registered is told so and not remembered.
///
/// # Errors
/// When the store cannot be read.
pub fn heartbeat(
    view: &dyn View,
    now: Time,
    liveness: &mut Liveness,
    heartbeat: Heartbeat,
) -> Result<MetaAnswer, MetaFault> {
    let vouched = vouched(view, heartbeat)?;
    let registered = vouched.is_some();
    vouched.into_iter().for_each(|heartbeat| liveness.heard(now, heartbeat));
    Ok(MetaAnswer::Heard { registered })
}

/// What of a sign of life is to be remembered ([`Liveness::heard`]): nothing of a node that has to register first.
///
/// # Errors
/// When the store cannot be read.
pub fn vouched(view: &dyn View, heartbeat: Heartbeat) -> Result<Option<Heartbeat>, MetaFault> {
    let Heartbeat { node, mut devices, mut activity } = heartbeat;
    let Some(record) = read(view, node)? else { return Ok(None) };
    // One that was added a moment ago, or is back, and one that was removed: registering again, the node learns which.
    for report in &devices {
        let known = record.devices.iter().any(|&(device, _)| device == report.device);
        if !known && !is_served(view, report.device)? {
            return Ok(None);
        }
    }
    let mut reported = BTreeSet::new();
    // Only what it serves: a device that another node took over since is that node's to report.
    devices.retain(|report| {
        record.devices.iter().any(|&(device, _)| device == report.device) && reported.insert(report.device)
    });
    // Any socket's address is shorter, and a report of all nodes has to fit into one answer.
    activity.admin = activity.admin.filter(|admin| admin.len() <= ADMIN_BYTES_MAX);
    Ok(Some(Heartbeat { node, devices, activity }))
}

/// Registers a node and its devices, over what it registered before.
pub(super) fn register(
    txn: &mut Txn<'_>,
    now: Time,
    liveness: &Liveness,
    record: &NodeRecord,
) -> Result<MetaAnswer, MetaFault> {
    let ours = cluster(txn)?;
    if let Some(theirs) = record.cluster.filter(|&theirs| theirs != ours) {
        return Err(MetaFault::ForeignCluster { ours, theirs });
    }
    check_record(txn, record)?;
    check_one(txn, now, liveness, record)?;
    for &(device, _) in &record.devices {
        standing::check_here(txn, device)?;
        let at = last_node(txn, device)?.filter(|&node| node != record.node);
        if let Some(node) = at
            && serves(txn, node, device)?
        {
            if liveness.is_alive(node, now) {
                return Err(MetaFault::DeviceTaken { device, node });
            }
            release(txn, node, device)?;
        }
    }
    // What is left of servers whose devices were all removed or taken over.
    for other in nodes(txn)? {
        if other.node != record.node && other.devices.is_empty() && !liveness.is_alive(other.node, now) {
            txn.delete(keys::node(other.node));
        }
    }
    let mut left_out = read(txn, record.node)?.map_or_else(Vec::new, |before| before.devices);
    left_out.retain(|&(device, _)| record.devices.iter().all(|&(named, _)| named != device));
    for &(device, _) in &record.devices {
        keys::write(txn, keys::device(device), &record.node);
    }
    keys::write(txn, keys::node(record.node), &NodeRecord { cluster: Some(ours), ..record.clone() });
    if !left_out.is_empty() && missing(txn)? > MISSING_MAX {
        left_out.iter().for_each(|&(device, _)| txn.delete(keys::device(device)));
    }
    Ok(MetaAnswer::Done)
}

/// How many devices are known that no node serves.
fn missing(view: &dyn View) -> Result<usize, ViewError> {
    let served: usize = nodes(view)?.iter().map(|record| record.devices.len()).sum();
    let (from, to) = keys::devices();
    Ok(view.scan(&from, &to, KNOWN_MAX + 1)?.len().saturating_sub(served))
}

/// What is registered, as stored.
#[derive(Clone, Debug, PartialEq)]
pub struct Registered {
    cluster: ClusterId,
    nodes: Vec<NodeRecord>,
    standings: Vec<Standing>,
    missing: Vec<(DeviceId, NodeId)>,
}

/// Reads what is registered.
pub(super) fn registered(view: &dyn View) -> Result<Registered, ViewError> {
    let (cluster, nodes, standings) = (cluster(view)?, nodes(view)?, standing::draining(view)?);
    let missing = unserved(view, &nodes)?;
    Ok(Registered { cluster, nodes, standings, missing })
}

/// The first devices that are known and that none of the nodes, all that there are, serves.
fn unserved(view: &dyn View, nodes: &[NodeRecord]) -> Result<Vec<(DeviceId, NodeId)>, ViewError> {
    let named = nodes.iter().flat_map(|record| &record.devices);
    let served: BTreeSet<DeviceId> = named.map(|&(device, _)| device).collect();
    let (from, to) = keys::devices();
    let mut unserved = Vec::new();
    for (key, value) in view.scan(&from, &to, KNOWN_MAX)? {
        let device = match keys::device_of(&key) {
            Ok(device) if served.contains(&device) => continue,
            Ok(device) => device,
            Err(error) => {
                view.left_out(&key, &error);
                continue;
            }
        };
        let Some(node) = keys::whole::<NodeId>(view, "device", &key, &value) else { continue };
        // A node whose record is damaged may serve it.
        let is_whole = nodes.iter().any(|record| record.node == node);
        if is_whole || view.get(&keys::node(node))?.is_none() {
            unserved.push((device, node));
        }
        if unserved.len() == MISSING_SHOWN_MAX {
            break;
        }
    }
    Ok(unserved)
}

impl Registered {
    /// Devices that are draining.
    pub fn standings(&self) -> &[Standing] {
        &self.standings
    }

    /// Every registered node with what was heard of it, and what clients say.
    pub fn report(&self, now: Time, liveness: &Liveness, reports: &ClientReports) -> MetaAnswer {
        let Self { cluster, nodes, standings, missing } = self;
        let state = |record: &NodeRecord| {
            let heard = liveness.heard.get(&record.node);
            let silent =
                heard.map(|heard| u64::try_from(now.since(heard.at).as_millis()).unwrap_or(u64::MAX));
            let devices = heard.map_or_else(Vec::new, |heard| heard.devices.clone());
            let activity = heard.map_or_else(NodeActivity::default, |heard| heard.activity.clone());
            let alive = liveness.is_alive(record.node, now);
            NodeState { alive, silent_ms: silent, devices, record: record.clone(), activity }
        };
        // One whose devices were all removed, or taken over, is gone once it is silent: nothing is missing with it.
        let nodes = nodes.iter().map(state);
        let nodes = nodes.filter(|node| node.alive || !node.record.devices.is_empty()).collect();
        MetaAnswer::Registry(Registry {
            cluster: *cluster,
            nodes,
            admin: None,
            accesses: *reports.accesses(),
            drains: reports.drains(now, standings),
            standings: standings.clone(),
            missing: missing.clone(),
        })
    }
}

/// Every registered node whose record is whole.
pub(super) fn nodes(view: &dyn View) -> Result<Vec<NodeRecord>, ViewError> {
    let (from, to) = keys::nodes();
    let entries = view.scan(&from, &to, DEVICES_MAX)?;
    Ok(entries.iter().filter_map(|(key, value)| keys::whole(view, "node", key, value)).collect())
}

/// Whether a node registers the device, or did and it was not removed since.
pub(super) fn is_known(view: &dyn View, device: DeviceId) -> Result<bool, ViewError> {
    Ok(view.get(&keys::device(device))?.is_some())
}

/// The first of these devices that no node registers.
pub(super) fn first_unserved(
    view: &dyn View,
    devices: &BTreeSet<DeviceId>,
) -> Result<Option<DeviceId>, ViewError> {
    // A commit lists many devices of few nodes: each node's record is read once.
    let mut by_node: BTreeMap<NodeId, Vec<DeviceId>> = BTreeMap::new();
    for &device in devices {
        match last_node(view, device)? {
            Some(node) => by_node.entry(node).or_default().push(device),
            None => return Ok(Some(device)),
        }
    }
    for (node, devices) in by_node {
        let served = served_by(view, node)?;
        if let Some(device) = devices.into_iter().find(|device| !served.has(*device)) {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

/// Whether a node registers the device.
fn is_served(view: &dyn View, device: DeviceId) -> Result<bool, ViewError> {
    match last_node(view, device)? {
        Some(node) => serves(view, node, device),
        None => Ok(false),
    }
}

fn serves(view: &dyn View, node: NodeId, device: DeviceId) -> Result<bool, ViewError> {
    Ok(served_by(view, node)?.has(device))
}

/// What a node serves.
enum Served {
    These(BTreeSet<DeviceId>),
    /// Its record is damaged: all that is known as its own, until it registers over it.
    Unknown,
}

impl Served {
    fn has(&self, device: DeviceId) -> bool {
        match self {
            Served::These(devices) => devices.contains(&device),
            Served::Unknown => true,
        }
    }
}

fn served_by(view: &dyn View, node: NodeId) -> Result<Served, ViewError> {
    let key = keys::node(node);
    let Some(value) = view.get(&key)? else { return Ok(Served::These(BTreeSet::new())) };
    let record: Option<NodeRecord> = keys::whole(view, "node", &key, &value);
    let devices = |record: NodeRecord| record.devices.into_iter().map(|(device, _)| device).collect();
    Ok(record.map_or(Served::Unknown, |record| Served::These(devices(record))))
}

/// The node that serves a device, or was the last that did.
pub(super) fn last_node(view: &dyn View, device: DeviceId) -> Result<Option<NodeId>, ViewError> {
    keys::read_whole(view, "device", &keys::device(device))
}

fn read(view: &dyn View, node: NodeId) -> Result<Option<NodeRecord>, ViewError> {
    keys::read_whole(view, "node", &keys::node(node))
}

fn cluster(view: &dyn View) -> Result<ClusterId, ViewError> {
    counters::cluster(view)?.ok_or(ViewError::Damaged { what: "missing cluster", length: 0 })
}

/// Forgets a device; takes it from the node that serves it, if one does, and the node's record with its last.
pub(super) fn remove(txn: &mut Txn<'_>, device: DeviceId) -> Result<(), ViewError> {
    let node = last_node(txn, device)?;
    txn.delete(keys::device(device));
    let Some(node) = node else { return Ok(()) };
    if !serves(txn, node, device)? {
        return Ok(());
    }
    release(txn, node, device)?;
    if read(txn, node)?.is_some_and(|record| record.devices.is_empty()) {
        txn.delete(keys::node(node));
    }
    Ok(())
}

/// Takes a device off a node's record.
fn release(txn: &mut Txn<'_>, node: NodeId, device: DeviceId) -> Result<(), ViewError> {
    if let Some(mut record) = read(txn, node)? {
        record.devices.retain(|&(held, _)| held != device);
        keys::write(txn, keys::node(node), &record);
    }
    Ok(())
}

/// A server that comes back serves what it did, from wherever it listens now. One that calls itself like a live one and serves
/// less has a disk that was moved: each would take the other's devices off the record at every heartbeat. One that serves as much while the
/// other is heard is a copy of it: both would change the same devices, each its own.
fn check_one(view: &dyn View, now: Time, liveness: &Liveness, record: &NodeRecord) -> Result<(), MetaFault> {
    let Some(before) = read(view, record.node)?.filter(|before| before.address != record.address) else {
        return Ok(());
    };
    let is_here = |device: DeviceId| record.devices.iter().any(|&(here, _)| here == device);
    let elsewhere = before.devices.iter().find(|&&(device, _)| !is_here(device));
    let taken = match elsewhere {
        Some(device) if liveness.is_alive(record.node, now) => Some(device),
        // Without devices there is nothing that two could serve.
        _ if liveness.runs(record.node, now) => before.devices.first(),
        _ => None,
    };
    match taken {
        Some(&(device, _)) => {
            Err(MetaFault::NodeTaken { node: record.node, address: before.address, device })
        }
        None => Ok(()),
    }
}

fn check_record(view: &dyn View, record: &NodeRecord) -> Result<(), MetaFault> {
    let distinct: BTreeSet<DeviceId> = record.devices.iter().map(|&(device, _)| device).collect();
    if distinct.len() != record.devices.len() {
        return Err(MetaFault::Invalid(
            "a device is listed twice: two directories hold copies of it".to_owned(),
        ));
    }
    if record.devices.len() > DEVICES_PER_NODE_MAX {
        return Err(MetaFault::Invalid(format!(
            "{} devices on one node, at most {DEVICES_PER_NODE_MAX} are allowed",
            record.devices.len()
        )));
    }
    for (what, text) in [("address", &record.address), ("site", &record.site)] {
        if text.len() > ADDRESS_BYTES_MAX {
            return Err(MetaFault::Invalid(format!(
                "the node's {what} has {} bytes, at most {ADDRESS_BYTES_MAX} are allowed",
                text.len()
            )));
        }
        // A person's terminal would obey them.
        if text.contains(char::is_control) {
            return Err(MetaFault::Invalid(format!("the node's {what} has control characters")));
        }
    }
    if record.address.is_empty() {
        return Err(MetaFault::Invalid("the node has no address".to_owned()));
    }
    // A node counts as one device at least, so that nodes without devices are bounded too.
    let mut others = nodes(view)?;
    others.retain(|other| other.node != record.node);
    let texts = |record: &NodeRecord| record.address.len() + record.site.len();
    let bytes = others.iter().map(texts).sum::<usize>() + texts(record);
    if bytes > TEXTS_BYTES_MAX {
        return Err(MetaFault::Invalid(format!(
            "the addresses and sites of all nodes have {bytes} bytes, at most {TEXTS_BYTES_MAX} are allowed: choose shorter ones"
        )));
    }
    let registered: usize = others.iter().map(|other| other.devices.len().max(1)).sum();
    if registered + record.devices.len().max(1) > DEVICES_MAX {
        return Err(MetaFault::Invalid(format!(
            "the cluster has {registered} devices, at most {DEVICES_MAX} fit"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_come_under_a_new_name_each_time_do_not_fill_the_memory() {
        let second = |seconds: u64| Time(seconds * 1_000_000_000);
        let mut liveness = Liveness::new(second(0), Duration::from_secs(5));
        liveness.registered(second(0), NodeId(0));
        let names = 4 * DEVICES_MAX as u64;
        for name in 1..=names {
            liveness.registered(second(name), NodeId(name.into()));
            assert!(liveness.heard.len() <= DEVICES_MAX, "{} after {name}", liveness.heard.len());
        }
        // What was heard lately is there, and all of a cluster, however long that is silent.
        let last = NodeId(names.into());
        assert!(liveness.is_alive(last, second(names + 4)));
        let mut liveness = Liveness::new(second(0), Duration::from_secs(5));
        (0..8).for_each(|name| liveness.registered(second(name * 3600), NodeId(name.into())));
        assert_eq!(liveness.heard.len(), 8);
    }
}
