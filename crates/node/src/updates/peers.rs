//! The other nodes: where segments lie and devices are served, as the metadata server says, and connections to them.

use super::not_in_place;
use crate::membership::Meta;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
};
use steadfast_net::{Connection, Pool};
use steadfast_protocol::{
    DeviceId, SegmentId,
    layout::SegmentLayout,
    message::{Fault, MetaAnswer, Query},
};

pub(super) struct Peers {
    meta: Arc<Meta>,
    pool: Pool,
    addresses: Mutex<BTreeMap<DeviceId, String>>,
}

impl Peers {
    pub(super) fn new(meta: Arc<Meta>, pool: Pool) -> Self {
        Self { meta, pool, addresses: Mutex::default() }
    }

    /// Where a segment lies; none where no object has it.
    pub(super) async fn layout(&self, segment: SegmentId) -> Result<Option<SegmentLayout>, Fault> {
        match self.meta.query(Query::Layout { segment }).await {
            Some(MetaAnswer::Layout(layout)) => Ok(layout),
            _ => Err(not_in_place(segment, "the metadata server does not say where it lies")),
        }
    }

    /// A connection to the node that serves a device; none where it cannot be had now.
    pub(super) async fn connection(&self, device: DeviceId) -> Option<Connection> {
        if let Some(address) = self.address(device)
            && let Ok(connection) = self.pool.connection(&address).await
        {
            return Some(connection);
        }
        // It may be served elsewhere by now.
        self.look().await;
        self.pool.connection(&self.address(device)?).await.ok()
    }

    /// Where these devices are served, of those that are.
    pub(super) async fn locate(&self, devices: BTreeSet<DeviceId>) -> BTreeMap<DeviceId, String> {
        if devices.iter().any(|&device| self.address(device).is_none()) {
            self.look().await;
        }
        devices.into_iter().filter_map(|device| Some((device, self.address(device)?))).collect()
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Asks where devices are served.
    async fn look(&self) {
        let Some(MetaAnswer::Registry(registry)) = self.meta.query(Query::Registry).await else { return };
        let served = registry.nodes.into_iter().flat_map(|node| {
            let address = node.record.address;
            node.record.devices.into_iter().map(move |(device, _)| (device, address.clone()))
        });
        *self.addresses.lock().unwrap_or_else(PoisonError::into_inner) = served.collect();
    }

    /// Its node does not serve it any more.
    pub(super) fn forget(&self, device: DeviceId) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).remove(&device);
    }

    fn address(&self, device: DeviceId) -> Option<String> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).get(&device).cloned()
    }
}
