//! Storage servers and their devices. What they are is stored; that they live, and how their devices do, is only
//! remembered ([`Liveness`]), for it changes every second and is learned again after a restart.
//!
//! Invariants: a device is served by at most one node; devices of another cluster never enter.

use super::{
    counters, keys, standing,
    view::{Txn, View, ViewError},
};
use crate::{
    ClusterId, DeviceId, NodeId, Time,
    message::{
        AccessTotals, DeviceHealth, DeviceReport, DrainProgress, DrainState, Heartbeat, MetaAnswer,
        MetaFault, NodeActivity, NodeRecord, NodeState, Registry, Standing,
    },
};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

/// The most devices of one node.
pub const DEVICES_PER_NODE_MAX: usize = 256;
/// The most devices, and so the most nodes, of a cluster: a report of them all fits into one answer.
pub const DEVICES_MAX: usize = 8192;
/// The longest address or site name in bytes.
pub const ADDRESS_BYTES_MAX: usize = 255;
/// The longest admin address that is passed on, in bytes.
const ADMIN_BYTES_MAX: usize = 64;

/// Who was heard of when, and what they reported last.
#[derive(Clone, Debug, PartialEq)]
pub struct Liveness {
    started: Time,
    dead_after: Duration,
    heard: BTreeMap<NodeId, Heard>,
    accesses: AccessTotals,
    /// What clients said of drains, and when; the latest last. No device is in two of them.
    drains: Vec<(Time, DrainProgress)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Heard {
    at: Time,
    devices: Vec<DeviceReport>,
    activity: NodeActivity,
}

impl Liveness {
    /// Nobody was heard of yet. A node is dead once silent for `dead_after`; one that was not heard of since `started`
    /// is given that long too, for it may just not have noticed that the server is back.
    pub fn new(started: Time, dead_after: Duration) -> Self {
        let (heard, accesses, drains) = Default::default();
        Self { started, dead_after, heard, accesses, drains }
    }

    /// A node has registered: it lives, and what it reported before is void.
    pub fn registered(&mut self, now: Time, node: NodeId) {
        self.heard.insert(node, Heard { at: now, devices: Vec::new(), activity: NodeActivity::default() });
    }

    /// Whether a registered node counts as alive.
    pub fn is_alive(&self, node: NodeId, now: Time) -> bool {
        now.since(self.heard.get(&node).map_or(self.started, |heard| heard.at)) < self.dead_after
    }

    /// Adds what a client says that it did.
    pub fn account(&mut self, accesses: &AccessTotals) {
        self.accesses.add(accesses);
    }

    /// What clients did, as far as they said.
    pub fn accesses(&self) -> &AccessTotals {
        &self.accesses
    }

    /// Takes what a client says of a drain, in place of what was said of its devices before.
    ///
    /// # Errors
    /// For no devices, or more than a cluster can have.
    pub fn drain(&mut self, now: Time, progress: DrainProgress) -> Result<MetaAnswer, MetaFault> {
        let devices: BTreeSet<DeviceId> = progress.devices.iter().copied().collect();
        if devices.is_empty() || progress.devices.len() > DEVICES_MAX {
            return Err(MetaFault::Invalid(format!(
                "a drain of {} devices, 1 to {DEVICES_MAX} are possible",
                progress.devices.len()
            )));
        }
        self.drains.retain(|(_, other)| !other.devices.iter().any(|device| devices.contains(device)));
        self.drains.push((now, DrainProgress { devices: devices.into_iter().collect(), ..progress }));
        // Of devices that nobody has, the oldest word goes.
        let named = |drains: &[(Time, DrainProgress)]| -> usize {
            drains.iter().map(|(_, drain)| drain.devices.len()).sum()
        };
        while named(&self.drains) > DEVICES_MAX {
            self.drains.remove(0);
        }
        Ok(MetaAnswer::Done)
    }

    /// What was said of drains of devices that are `draining`.
    fn drains(&self, now: Time, draining: &[Standing]) -> Vec<DrainState> {
        let goes_on = |device: &DeviceId| draining.iter().any(|standing| standing.device == *device);
        let told = self.drains.iter().filter_map(|(at, progress)| {
            let devices: Vec<DeviceId> = progress.devices.iter().copied().filter(goes_on).collect();
            let silent_ms = u64::try_from(now.since(*at).as_millis()).unwrap_or(u64::MAX);
            let progress = DrainProgress { devices, ..progress.clone() };
            (!progress.devices.is_empty()).then_some(DrainState { progress, silent_ms })
        });
        told.collect()
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
/// When the store cannot be read, or the heartbeat reports more devices than a node can have.
pub fn heartbeat(
    view: &dyn View,
    now: Time,
    liveness: &mut Liveness,
    heartbeat: Heartbeat,
) -> Result<MetaAnswer, MetaFault> {
    let Heartbeat { node, mut devices, mut activity } = heartbeat;
    let Some(record) = read(view, node)? else { return Ok(MetaAnswer::Heard { registered: false }) };
    // One that was added a moment ago and one that was removed: registering again, the node learns which.
    for report in &devices {
        let known = record.devices.iter().any(|&(device, _)| device == report.device);
        if !known && !has_device(view, report.device)? {
            return Ok(MetaAnswer::Heard { registered: false });
        }
    }
    let mut reported = BTreeSet::new();
    // Only what it serves: a device that another node took over since is that node's to report.
    devices.retain(|report| {
        record.devices.iter().any(|&(device, _)| device == report.device) && reported.insert(report.device)
    });
    // Any socket's address is shorter, and a report of all nodes has to fit into one answer.
    activity.admin = activity.admin.filter(|admin| admin.len() <= ADMIN_BYTES_MAX);
    liveness.heard.insert(node, Heard { at: now, devices, activity });
    Ok(MetaAnswer::Heard { registered: true })
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
    for &(device, _) in &record.devices {
        standing::check_here(txn, device)?;
        match keys::read::<NodeId>(txn, "device", &keys::device(device))? {
            Some(node) if node != record.node && liveness.is_alive(node, now) => {
                return Err(MetaFault::DeviceTaken { device, node });
            }
            Some(node) if node != record.node => release(txn, node, device)?,
            _ => {}
        }
    }
    // What is left of servers whose devices were all removed or taken over.
    for other in nodes(txn)? {
        if other.node != record.node && other.devices.is_empty() && !liveness.is_alive(other.node, now) {
            txn.delete(keys::node(other.node));
        }
    }
    if let Some(before) = read(txn, record.node)? {
        before.devices.iter().for_each(|&(device, _)| txn.delete(keys::device(device)));
    }
    for &(device, _) in &record.devices {
        keys::write(txn, keys::device(device), &record.node);
    }
    keys::write(txn, keys::node(record.node), &NodeRecord { cluster: Some(ours), ..record.clone() });
    Ok(MetaAnswer::Done)
}

/// Every registered node with what was heard of it.
pub(super) fn report(view: &dyn View, now: Time, liveness: &Liveness) -> Result<MetaAnswer, MetaFault> {
    let state = |record: NodeRecord| {
        let heard = liveness.heard.get(&record.node);
        let silent = heard.map(|heard| u64::try_from(now.since(heard.at).as_millis()).unwrap_or(u64::MAX));
        let devices = heard.map_or_else(Vec::new, |heard| heard.devices.clone());
        let activity = heard.map_or_else(NodeActivity::default, |heard| heard.activity.clone());
        NodeState { alive: liveness.is_alive(record.node, now), silent_ms: silent, devices, record, activity }
    };
    // One whose devices were all removed, or taken over, is gone once it is silent: nothing is missing with it.
    let nodes = nodes(view)?.into_iter().map(state);
    let nodes = nodes.filter(|node| node.alive || !node.record.devices.is_empty()).collect();
    let standings = standing::draining(view)?;
    Ok(MetaAnswer::Registry(Registry {
        cluster: cluster(view)?,
        nodes,
        admin: None,
        accesses: liveness.accesses,
        drains: liveness.drains(now, &standings),
        standings,
    }))
}

/// Every registered node.
pub(super) fn nodes(view: &dyn View) -> Result<Vec<NodeRecord>, ViewError> {
    let (from, to) = keys::nodes();
    let entries = view.scan(&from, &to, DEVICES_MAX)?;
    entries.iter().map(|(key, value)| keys::parse("node", key, value)).collect()
}

/// Whether a device is registered.
pub(super) fn has_device(view: &dyn View, device: DeviceId) -> Result<bool, ViewError> {
    Ok(view.get(&keys::device(device))?.is_some())
}

fn read(view: &dyn View, node: NodeId) -> Result<Option<NodeRecord>, ViewError> {
    keys::read(view, "node", &keys::node(node))
}

fn cluster(view: &dyn View) -> Result<ClusterId, ViewError> {
    counters::cluster(view)?.ok_or(ViewError::Damaged { what: "missing cluster", length: 0 })
}

/// Takes a device from the node that serves it, and the node's record with its last.
pub(super) fn remove(txn: &mut Txn<'_>, device: DeviceId) -> Result<(), ViewError> {
    let Some(node) = keys::read::<NodeId>(txn, "device", &keys::device(device))? else { return Ok(()) };
    txn.delete(keys::device(device));
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
    }
    if record.address.is_empty() {
        return Err(MetaFault::Invalid("the node has no address".to_owned()));
    }
    // A node counts as one device at least, so that nodes without devices are bounded too.
    let others = nodes(view)?.into_iter().filter(|other| other.node != record.node);
    let registered: usize = others.map(|other| other.devices.len().max(1)).sum();
    if registered + record.devices.len().max(1) > DEVICES_MAX {
        return Err(MetaFault::Invalid(format!(
            "the cluster has {registered} devices, at most {DEVICES_MAX} fit"
        )));
    }
    Ok(())
}
