//! The other nodes: where segments lie and devices are served, as the metadata server says, and connections to them.

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
    message::{Fault, MetaAnswer, Query, RefusalReason},
};
use tokio::{
    sync::Mutex as AsyncMutex,
    time::{Instant, sleep, sleep_until, timeout_at},
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
    /// Whoever holds it asks for them.
    looks: AsyncMutex<Looks>,
}

/// When the metadata server was asked where devices are served.
#[derive(Default)]
struct Looks {
    /// The last time, or when that was answered.
    last: Option<Instant>,
    /// When the last question began that was answered, or was not in time: who came before need not ask.
    settled: Option<Instant>,
}

/// What the metadata server said of all devices is not asked for again before: while a node is away every link to it would ask,
/// for much that no one of them needs. 1 s: a device that is served elsewhere is found about as fast as its heartbeats tell.
const LOOK_AGE_MIN: Duration = Duration::from_secs(1);
/// How long the metadata server is asked where a segment lies while it does not say. Longer than its address is left alone after it was
/// away (2 s, `steadfast_net::Pool`), so that one that was started again is found; and so much less than the nodes of data chunks wait for
/// one with parity to greet them (3 s, `UpdateWindow`) that these hear in time that it is not ready.
const LAYOUT_PATIENCE: Duration = Duration::from_millis(2200);
/// Between two such questions. Picked by eye, as the first pause after a failed attempt to connect.
const LAYOUT_PAUSE: Duration = Duration::from_millis(200);
/// When who waits for that is to come again. Picked by eye: the next to come asks for long anyway.
const LAYOUT_RETRY_MS: u32 = 200;

impl Peers {
    pub(super) fn new(meta: Arc<Meta>, pool: Pool) -> Self {
        Self { meta, pool, addresses: Mutex::default(), looks: AsyncMutex::default() }
    }

    /// Where a segment lies; none where no object has it.
    ///
    /// # Errors
    /// [`Fault::Refused`] where the metadata server does not say for long. It is no reason to store the segment anew, which needs that
    /// server as well: whoever asked comes again.
    pub(super) async fn layout(&self, segment: SegmentId) -> Result<Option<SegmentLayout>, Fault> {
        let until = Instant::now() + LAYOUT_PATIENCE;
        loop {
            // One that hangs says nothing for longer than whoever asked waits.
            match timeout_at(until, self.meta.query(Query::Layout { segment })).await {
                Ok(Some(MetaAnswer::Layout(layout))) => return Ok(layout),
                _ if Instant::now() < until => sleep(LAYOUT_PAUSE).await,
                _ => {
                    tracing::debug!(%segment, "the metadata server does not say where it lies");
                    let reason = RefusalReason::NotReady;
                    return Err(Fault::Refused { reason, retry_after_ms: LAYOUT_RETRY_MS });
                }
            }
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

    /// Asks where devices are served, unless that was asked a moment ago. Those that come meanwhile share the answer, and so do those that
    /// came before the question began.
    async fn look(&self, hurry: Hurry, is_known: impl Fn() -> bool) {
        let came = Instant::now();
        let mut looks = loop {
            let looks = self.looks.lock().await;
            // Whoever looked before may have found it.
            if is_known() || looks.settled.is_some_and(|began| began >= came) {
                return;
            }
            let next = looks.last.map(|before| before + LOOK_AGE_MIN);
            let Some(next) = next.filter(|&next| Instant::now() < next) else { break looks };
            // Nobody else waits for that.
            drop(looks);
            match hurry {
                Hurry::TakesWhatIsKnown => return,
                Hurry::Waits => sleep_until(next).await,
            }
        };
        let began = Instant::now();
        // Whoever asks may give up: that was a question all the same.
        looks.last = Some(began);
        let answer = self.meta.query(Query::Registry).await;
        // However long it took: those that waited meanwhile do not ask one after the other.
        *looks = Looks { last: Some(Instant::now()), settled: Some(began) };
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

    /// As it was known before a device moved.
    #[cfg(test)]
    pub(super) fn is_served_at(&self, device: DeviceId, address: String) {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner).insert(device, address);
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
    use steadfast_net::{Options, Server, Stream};
    use steadfast_protocol::{
        ClusterId, NodeId,
        message::{
            self, Heartbeat, MetaRequest, NodeActivity, NodeRecord, NodeState, Priority, Registry, Role,
        },
    };
    use tokio::task::JoinSet;

    const CLUSTER: ClusterId = ClusterId(7);
    const DEAD: DeviceId = DeviceId(1);
    /// How long something may take that is soon done.
    const WITHIN: Duration = Duration::from_secs(60);

    fn meta_at(address: &str) -> Arc<Meta> {
        Arc::new(Meta::new(address, NodeId(2), CLUSTER, &Options::default(), 1))
    }

    fn peers_of(meta: Arc<Meta>) -> Arc<Peers> {
        let pool = Pool::new(hello(Role::Node(NodeId(2)), Some(CLUSTER)), Options::default());
        Arc::new(Peers::new(meta, pool))
    }

    /// The address of a metadata server that does this with what it is asked, and has so many places for one connection.
    async fn serving(
        streams_max: usize,
        serve: impl Fn(MetaRequest, Stream) + Clone + Send + Sync + 'static,
    ) -> String {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let own = server.local_addr().unwrap().to_string();
        let (greeting, options) =
            (hello(Role::Meta, Some(CLUSTER)), Options { streams_max, ..Options::default() });
        tokio::spawn(server.serve(greeting, options, move |mut connected| {
            let serve = serve.clone();
            async move {
                while let Some((opened, stream)) = connected.incoming.next().await {
                    serve(message::decode(&opened.body).unwrap(), stream);
                }
            }
        }));
        own
    }

    #[tokio::test]
    async fn a_metadata_server_that_refuses_is_asked_again_where_a_segment_lies() {
        let asked = Arc::new(AtomicU64::new(0));
        let counted = asked.clone();
        let address = serving(256, move |_, stream| match counted.fetch_add(1, Relaxed) {
            0 | 1 => stream.fail(&Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 1 }),
            _ => stream.end(message::encode(&MetaAnswer::Layout(None))).unwrap(),
        });
        let peers = peers_of(meta_at(&address.await));
        assert_eq!(peers.layout(SegmentId(1)).await, Ok(None));
        assert_eq!(asked.load(Relaxed), 3);
    }

    /// Its client asks again for as long as it has patience, and stores nothing anew.
    #[tokio::test]
    async fn where_there_is_no_metadata_server_a_segment_is_not_ready() {
        // Held, so that nobody listens there.
        let held = tokio::net::TcpSocket::new_v4().unwrap();
        held.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let peers = peers_of(meta_at(&held.local_addr().unwrap().to_string()));
        let refused = peers.layout(SegmentId(1)).await;
        assert!(
            matches!(refused, Err(Fault::Refused { reason: RefusalReason::NotReady, .. })),
            "{refused:?}"
        );
    }

    /// A question by itself is waited for longer.
    #[tokio::test]
    async fn where_the_metadata_server_hangs_a_segment_is_not_ready_in_time() {
        let held: Arc<Mutex<Vec<Stream>>> = Arc::default();
        let holding = held.clone();
        let address = serving(8, move |_, stream| holding.lock().unwrap().push(stream));
        let peers = peers_of(meta_at(&address.await));
        let layout = tokio::time::timeout(Duration::from_secs(4), peers.layout(SegmentId(1)));
        let refused = layout.await.expect("before a data chunk's node gives up");
        assert!(
            matches!(refused, Err(Fault::Refused { reason: RefusalReason::NotReady, .. })),
            "{refused:?}"
        );
    }

    /// Whoever names segments that nobody has makes a host begin for each of them.
    #[tokio::test]
    async fn questions_that_nobody_answers_leave_places_for_signs_of_life() {
        let held: Arc<Mutex<Vec<Stream>>> = Arc::default();
        let holding = held.clone();
        let address = serving(256, move |request, stream| match request {
            MetaRequest::Heartbeat(_) => {
                stream.end(message::encode(&MetaAnswer::Heard { registered: true })).unwrap();
            }
            _ => holding.lock().unwrap().push(stream),
        });
        let meta = meta_at(&address.await);
        let mut asking = JoinSet::new();
        for segment in (0..300).map(SegmentId) {
            let meta = meta.clone();
            asking.spawn(async move { meta.query(Query::Layout { segment }).await });
        }
        let asked = async {
            while held.lock().unwrap().len() < 64 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(WITHIN, asked).await.expect("they are asked");
        for _ in 0..20 {
            let beat = Heartbeat { node: NodeId(2), devices: Vec::new(), activity: NodeActivity::default() };
            let heard = meta.ask(&MetaRequest::Heartbeat(beat), Priority::Control, WITHIN).await;
            assert!(matches!(heard, Ok(MetaAnswer::Heard { registered: true })), "{heard:?}");
        }
        asking.abort_all();
    }

    #[tokio::test]
    async fn those_that_look_for_what_nobody_serves_share_a_question() {
        let (address, asked) = counting("127.0.0.1:1".to_owned()).await;
        let peers = peers_of(meta_at(&address));
        let began = Instant::now();
        let mut looking = JoinSet::new();
        for _ in 0..8 {
            let peers = peers.clone();
            looking.spawn(async move { peers.locate(BTreeSet::from([DeviceId(9)])).await });
        }
        while let Some(found) = looking.join_next().await {
            assert!(found.unwrap().is_empty());
        }
        let took = began.elapsed();
        // One after the other they would take seven times the least age of an answer.
        assert!(took < 4 * LOOK_AGE_MIN, "{took:?}");
        let count = asked.load(Relaxed);
        assert!(count <= 2, "it was asked {count} times");
    }

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
        let peers = peers_of(meta_at(&address));
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
