//! The other nodes: where segments lie and devices are served, as the metadata server says, and connections to them.

use super::not_in_place;
use crate::membership::Meta;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use steadfast_net::{Connection, Pool};
use steadfast_protocol::{
    DeviceId, SegmentId,
    layout::SegmentLayout,
    message::{Fault, MetaAnswer, Query},
};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, sleep_until},
};

/// What whoever looks does where the last answer is not old enough to be asked for again.
#[derive(Clone, Copy)]
enum Hurry {
    TakesWhatIsKnown,
    Waits,
}

pub(super) struct Peers {
    meta: Arc<Meta>,
    pool: Pool,
    addresses: Mutex<BTreeMap<DeviceId, String>>,
    /// When the metadata server was last asked for them. Whoever holds it asks.
    looked_at: AsyncMutex<Option<Instant>>,
}

/// What the metadata server said of all devices is not asked for again before: while a node is away every link to it would ask,
/// for much that no one of them needs. 1 s: a device that is served elsewhere is found about as fast as its heartbeats tell.
const LOOK_AGE_MIN: Duration = Duration::from_secs(1);

impl Peers {
    pub(super) fn new(meta: Arc<Meta>, pool: Pool) -> Self {
        Self { meta, pool, addresses: Mutex::default(), looked_at: AsyncMutex::default() }
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
        // It may be served elsewhere by now. Links come again: none waits here for a newer answer.
        self.look(Hurry::TakesWhatIsKnown, || false).await;
        self.pool.connection(&self.address(device)?).await.ok()
    }

    /// Where these devices are served, of those that are.
    pub(super) async fn locate(&self, devices: BTreeSet<DeviceId>) -> BTreeMap<DeviceId, String> {
        let are_known = || devices.iter().all(|&device| self.address(device).is_some());
        if !are_known() {
            self.look(Hurry::Waits, are_known).await;
        }
        devices.into_iter().filter_map(|device| Some((device, self.address(device)?))).collect()
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Asks where devices are served, unless that was asked a moment ago. Those that come meanwhile share the answer.
    async fn look(&self, hurry: Hurry, is_known: impl Fn() -> bool) {
        let mut looked_at = self.looked_at.lock().await;
        // Whoever looked before may have found it.
        if is_known() {
            return;
        }
        if let Some(next) = looked_at.map(|before| before + LOOK_AGE_MIN)
            && Instant::now() < next
        {
            match hurry {
                Hurry::TakesWhatIsKnown => return,
                Hurry::Waits => sleep_until(next).await,
            }
        }
        *looked_at = Some(Instant::now());
        let answer = self.meta.query(Query::Registry).await;
        // However long it took: those that waited meanwhile do not ask one after the other.
        *looked_at = Some(Instant::now());
        let Some(MetaAnswer::Registry(registry)) = answer else { return };
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by it")]

    use super::*;
    use crate::membership::hello;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use steadfast_net::{Options, Server};
    use steadfast_protocol::{
        ClusterId, NodeId,
        message::{self, MetaRequest, NodeActivity, NodeRecord, NodeState, Registry, Role},
    };

    const CLUSTER: ClusterId = ClusterId(7);
    const DEAD: DeviceId = DeviceId(1);

    /// The address of a metadata server that says where one device is served, and how often it was asked.
    async fn counting(address: String) -> (String, Arc<AtomicU64>) {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let own = server.local_addr().unwrap().to_string();
        let asked = Arc::new(AtomicU64::new(0));
        let counted = asked.clone();
        let record = NodeRecord {
            node: NodeId(1),
            cluster: Some(CLUSTER),
            address,
            site: String::new(),
            devices: vec![(DEAD, 1 << 20)],
        };
        let greeting = hello(Role::Meta, Some(CLUSTER));
        tokio::spawn(server.serve(greeting, Options::default(), move |mut connected| {
            let (asked, record) = (asked.clone(), record.clone());
            async move {
                while let Some((opened, stream)) = connected.incoming.next().await {
                    let request = message::decode::<MetaRequest>(&opened.body).unwrap();
                    assert!(matches!(request, MetaRequest::Ask(Query::Registry)));
                    asked.fetch_add(1, Relaxed);
                    let (devices, activity) = (Vec::new(), NodeActivity::default());
                    let state = NodeState {
                        record: record.clone(),
                        alive: true,
                        silent_ms: Some(0),
                        devices,
                        activity,
                    };
                    let registry = Registry { nodes: vec![state], ..Registry::default() };
                    stream.end(message::encode(&MetaAnswer::Registry(registry))).unwrap();
                }
            }
        }));
        (own, counted)
    }

    #[tokio::test]
    async fn a_dead_node_does_not_make_everybody_ask_where_it_is() {
        // Held, so that nobody else listens there.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (address, asked) = counting(held.local_addr().unwrap().to_string()).await;
        let meta = Arc::new(Meta::new(&address, NodeId(2), CLUSTER, &Options::default(), 1));
        let pool = Pool::new(hello(Role::Node(NodeId(2)), Some(CLUSTER)), Options::default());
        let peers = Arc::new(Peers::new(meta, pool));
        let until = Instant::now() + Duration::from_secs(2);
        let mut hosts = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let peers = peers.clone();
            hosts.spawn(async move {
                while Instant::now() < until {
                    assert!(peers.connection(DEAD).await.is_none());
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            });
        }
        while let Some(ended) = hosts.join_next().await {
            ended.unwrap();
        }
        let count = asked.load(Relaxed);
        assert!((1..=4).contains(&count), "it was asked {count} times");
        // What nobody knows is asked for all the same.
        assert!(peers.locate(BTreeSet::from([DeviceId(9)])).await.is_empty());
        assert_eq!(asked.load(Relaxed), count + 1);
    }
}
