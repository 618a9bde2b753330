//! Devices that a registration brings into another failure domain: their disk was moved to another server, or their server to another site.
//!
//! What lies on a device was spread by the domain that it was in. Where it comes to others, blocks of one object that were stored apart
//! may be lost together from then on. Nothing is refused for that, for disks are moved where a server died: whoever runs the cluster is to
//! hear of it, and to have the devices drained.
//!
//! Left out: which objects have blocks on both (a drain finds out). A server whose disks all move to one that has no others, or a site that
//! gets a name of its own, brings nothing together.

use super::{
    registry,
    view::{View, ViewError},
};
use crate::{DeviceId, NodeId, message::NodeRecord, policy::Domain};
use std::collections::{BTreeMap, BTreeSet};

/// Devices that come to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    /// What they have in common with those from now on: a node, or a site.
    pub domain: Domain,
    /// Those that come.
    pub devices: Vec<DeviceId>,
}

/// What the registration of `record` brings together, as long as it is not carried out.
///
/// # Errors
/// When the store cannot be read.
pub fn moved(view: &dyn View, record: &NodeRecord) -> Result<Vec<Moved>, ViewError> {
    let nodes = registry::nodes(view)?;
    let sites: BTreeMap<NodeId, &str> = nodes.iter().map(|node| (node.node, node.site.as_str())).collect();
    let (mut by_node, mut by_site) = (BTreeMap::new(), BTreeMap::new());
    for &(device, _) in &record.devices {
        // One that is new holds nothing.
        let Some(node) = registry::last_node(view, device)? else { continue };
        by_node.insert(device, node);
        if let Some(&site) = sites.get(&node) {
            by_site.insert(device, site);
        }
    }
    let of_site = |node: &NodeRecord| node.site == record.site && !node.devices.is_empty();
    let site_has_others = nodes.iter().any(|node| node.node != record.node && of_site(node));
    let moved = [
        (Domain::Node, come(&by_node, record.node, false)),
        (Domain::Site, come(&by_site, record.site.as_str(), site_has_others)),
    ];
    let moved = moved.into_iter().filter(|(_, devices)| !devices.is_empty());
    Ok(moved.map(|(domain, devices)| Moved { domain, devices }).collect())
}

/// Of devices that were in the domains `from` those that come to `to`, where there are others then: of these devices, or `has_others`.
fn come<T: Copy + Ord>(from: &BTreeMap<DeviceId, T>, to: T, has_others: bool) -> Vec<DeviceId> {
    let mut domains: BTreeSet<T> = from.values().copied().collect();
    if has_others {
        domains.insert(to);
    }
    let strangers = from.iter().filter(|&(_, &domain)| domains.len() > 1 && domain != to);
    strangers.map(|(&device, _)| device).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{
        keys,
        view::{MemoryStore, transact},
    };
    use super::*;

    fn record(node: u128, site: &str, devices: &[u128]) -> NodeRecord {
        NodeRecord {
            node: NodeId(node),
            cluster: None,
            address: format!("{node}:1"),
            site: site.to_owned(),
            devices: devices.iter().map(|&device| (DeviceId(device), 1 << 40)).collect(),
        }
    }

    /// What registering the last of these brings together.
    fn told(registered: &[NodeRecord], last: &NodeRecord) -> Vec<(Domain, Vec<u128>)> {
        let mut store = MemoryStore::new();
        for record in registered {
            let (_, writes) = transact(&store, |txn| {
                keys::write(txn, keys::node(record.node), record);
                for &(device, _) in &record.devices {
                    keys::write(txn, keys::device(device), &record.node);
                }
            });
            store.apply(writes);
        }
        let names = |moved: Moved| (moved.domain, moved.devices.iter().map(|device| device.0).collect());
        moved(&store, last).unwrap().into_iter().map(names).collect()
    }

    #[test]
    fn devices_that_come_to_others_on_one_server_are_told() {
        let servers = [record(1, "", &[10, 11]), record(2, "", &[20])];
        for same in [record(1, "", &[10, 11]), record(1, "", &[11]), record(2, "", &[20, 21])] {
            assert_eq!(told(&servers, &same), [], "{same:?}");
        }
        assert_eq!(told(&servers, &record(2, "", &[11, 20])), [(Domain::Node, vec![11])]);
        // Both servers' disks in a third: neither was there before.
        assert_eq!(told(&servers, &record(3, "", &[10, 11, 20])), [(Domain::Node, vec![10, 11, 20])]);
        // All that one had, under another name, and a new disk beside them.
        assert_eq!(told(&servers, &record(3, "", &[10, 11, 30])), []);
        // One that the server lacks now, and that is back in another.
        let without = [record(1, "", &[10, 11]), record(1, "", &[10]), record(2, "", &[20])];
        assert_eq!(told(&without, &record(2, "", &[11, 20])), [(Domain::Node, vec![11])]);
    }

    #[test]
    fn devices_that_come_to_others_at_one_site_are_told() {
        let servers = [record(1, "here", &[10]), record(2, "there", &[20]), record(3, "there", &[30])];
        assert_eq!(told(&servers, &record(1, "there", &[10])), [(Domain::Site, vec![10])]);
        // A name of its own, and a disk that stays where its site is.
        assert_eq!(told(&servers, &record(1, "elsewhere", &[10])), []);
        assert_eq!(told(&servers, &record(3, "there", &[20, 30])), [(Domain::Node, vec![20])]);
        let both = [(Domain::Node, vec![10]), (Domain::Site, vec![10])];
        assert_eq!(told(&servers, &record(2, "there", &[10, 20])), both);
    }
}
