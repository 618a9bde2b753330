//! The node's side of membership: learning the cluster, registering, heartbeats.
//!
//! ```text
//!   Registering ──Done──▶ Registered ──Heard{registered: false}──▶ Registering
//!        │ refused for good          no answer: keeps trying, and says so once
//!        ▼
//!      Refused: the node stops with the reason
//! ```

use crate::{NodeError, report, service::Service};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};
use steadfast_net::{CallError, ConnectError, Open, Options, Pool};
use steadfast_protocol::{
    ClusterId, DeviceId, NodeId, RequestId,
    message::{
        self, Change, DeviceHealth, DeviceReport, Fault, Heartbeat, Hello, MetaAnswer, MetaFault,
        MetaRequest, NodeRecord, Priority, Query, REMOVED_MAX, Role, VERSION,
    },
    serve::OnRefusal,
};
use tokio::{
    sync::{Semaphore, watch},
    time::{Instant, sleep},
};

/// How long a question to the metadata server may take: a commit on a busy disk takes tens of milliseconds, a
/// server that starts with a million objects a second.
const PATIENCE: Duration = Duration::from_secs(5);
/// Questions that are open at a time; the others wait for their turn. The metadata server has places for so many of one connection (256):
/// signs of life always find one, however many hosts of chunks begin. Picked by eye: a quarter of those.
const QUESTIONS_MAX: usize = 64;
/// Pauses between attempts to reach it: first, and at most; doubled in between.
const PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(2));

/// Why a question was not answered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("it answered something else than was asked")]
    Unexpected,
}

/// The connection to the metadata server.
pub(crate) struct Meta {
    address: String,
    pool: Pool,
    /// This process, as request ids name it.
    client: u128,
    count: AtomicU64,
    questions: Semaphore,
}

/// What this end says first.
pub(crate) fn hello(role: Role, cluster: Option<ClusterId>) -> Hello {
    Hello { version: VERSION, features: 0, role, cluster }
}

/// Asks the metadata server which cluster it is, until it answers; `ours` where the devices know.
pub(crate) async fn learn_cluster(
    meta: &str,
    ours: Option<ClusterId>,
    net: &Options,
) -> Result<ClusterId, NodeError> {
    let mut trouble = Trouble::new(meta);
    loop {
        // Before its devices are made, a node has no name to give.
        let error = match steadfast_net::connect(meta, hello(Role::Client, ours), net).await {
            Ok(connected) => match (connected.peer.role, connected.peer.cluster) {
                (Role::Meta, Some(cluster)) => {
                    trouble.over();
                    return Ok(cluster);
                }
                (Role::Meta, None) => "it does not know its cluster yet".to_owned(),
                (role, _) => format!("a {role:?} answers there, not a metadata server"),
            },
            Err(ConnectError::Cluster { ours, theirs }) => {
                return Err(NodeError::ForeignCluster { ours, theirs, meta: meta.to_owned() });
            }
            Err(source @ (ConnectError::Version { .. } | ConnectError::Greeting { .. })) => {
                return Err(NodeError::NotMeta { meta: meta.to_owned(), source });
            }
            Err(error) => error.to_string(),
        };
        trouble.again(&error).await;
    }
}

/// Those of these devices that were removed from the cluster, or that another node than `own` serves, as far as the metadata server says
/// so soon.
pub(crate) async fn not_ours(
    meta: &str,
    (cluster, own): (Option<ClusterId>, Option<NodeId>),
    net: &Options,
    devices: &BTreeSet<DeviceId>,
) -> BTreeSet<DeviceId> {
    let asked = async {
        let connected = steadfast_net::connect(meta, hello(Role::Client, cluster), net).await.ok()?;
        let ask = async |query: Query| {
            let body = message::encode(&MetaRequest::Ask(query));
            let open = Open { body, deadline: Some(PATIENCE), ..Open::default() };
            let (answer, _) = connected.connection.call(open).await.ok()?;
            message::decode::<MetaAnswer>(&answer).ok()
        };
        let mut others = BTreeSet::new();
        for some in devices.iter().copied().collect::<Vec<_>>().chunks(REMOVED_MAX) {
            match ask(Query::RemovedDevices { devices: some.to_vec() }).await? {
                MetaAnswer::RemovedDevices(removed) => others.extend(removed),
                _ => return None,
            }
        }
        let MetaAnswer::Registry(registry) = ask(Query::Registry).await? else { return None };
        let is_other = |node: NodeId| own.is_some_and(|own| node != own);
        let elsewhere = registry.nodes.iter().filter(|node| node.alive && is_other(node.record.node));
        others.extend(elsewhere.flat_map(|node| &node.record.devices).map(|&(device, _)| device));
        others.retain(|device| devices.contains(device));
        Some(others)
    };
    tokio::time::timeout(PATIENCE, asked).await.ok().flatten().unwrap_or_default()
}

impl Meta {
    pub(crate) fn new(address: &str, node: NodeId, cluster: ClusterId, net: &Options, client: u128) -> Self {
        let pool = Pool::new(hello(Role::Node(node), Some(cluster)), net.clone());
        let (count, questions) = (AtomicU64::new(1), Semaphore::new(QUESTIONS_MAX));
        Self { address: address.to_owned(), pool, client, count, questions }
    }

    /// One question, one answer.
    pub(crate) async fn ask(
        &self,
        request: &MetaRequest,
        priority: Priority,
        deadline: Duration,
    ) -> Result<MetaAnswer, AskError> {
        let connection = self.pool.connection(&self.address).await?;
        let body = message::encode(request);
        let open = Open { body, priority, deadline: Some(deadline), ..Open::default() };
        let (answer, _) = connection.call(open).await?;
        message::decode(&answer).map_err(|_| AskError::Unexpected)
    }

    /// Asks what became of segments, where one lies, or who is there; absent where there was no answer in time.
    pub(crate) async fn query(&self, query: Query) -> Option<MetaAnswer> {
        let request = MetaRequest::Ask(query);
        let asked = async {
            let _one_of_few = self.questions.acquire().await.expect("it is never closed");
            self.ask(&request, Priority::Background, PATIENCE).await
        };
        // The turn included: where nobody answers, thousands would wait for theirs one after the other.
        match tokio::time::timeout(PATIENCE, asked).await.unwrap_or(Err(CallError::TimedOut.into())) {
            Ok(answer) => Some(answer),
            Err(error) => {
                tracing::debug!(meta = %self.address, %error, "no answer");
                None
            }
        }
    }

    /// Registers and then sends heartbeats, for ever; `registered` says whether the metadata server knows this node,
    /// as far as it has answered lately.
    /// Returns only the reason why it never will.
    pub(crate) async fn live(
        &self,
        record: NodeRecord,
        service: &Service,
        every: Duration,
        registered: &watch::Sender<bool>,
    ) -> NodeError {
        loop {
            // Devices come and go while it runs.
            let record = NodeRecord { devices: service.devices.record(), ..record.clone() };
            match self.register(&record).await {
                Ok(()) => service.devices.registered(),
                // Without devices it stays too: others may be added.
                Err(NodeError::Refused { fault: Fault::Meta(MetaFault::DeviceRemoved(device)), .. })
                    if record.devices.iter().any(|&(ours, _)| ours == device) =>
                {
                    service.devices.dismiss(device).await;
                    continue;
                }
                Err(error) => match refused(service, &record, &error) {
                    OnRefusal::SetAside(device) => {
                        tracing::error!(%device, %error, "a device is set aside, and asked for again for a while");
                        service.devices.set_aside(device).await;
                        continue;
                    }
                    OnRefusal::Again { first } => {
                        if first {
                            tracing::warn!(%error, "not registered yet");
                        }
                        sleep(PAUSE.1).await;
                        continue;
                    }
                    OnRefusal::End => return error,
                },
            }
            registered.send_replace(true);
            tracing::info!(node = %record.node, meta = %self.address, "registered");
            self.beat(record.node, service, every, registered).await;
            registered.send_replace(false);
        }
    }

    /// Registers, however long it takes to reach the metadata server.
    pub(crate) async fn register(&self, record: &NodeRecord) -> Result<(), NodeError> {
        let mut trouble = Trouble::new(&self.address);
        // One id for all attempts: an answer that was lost is the same answer again.
        let id = RequestId { client: self.client, count: self.count.fetch_add(1, Ordering::Relaxed) };
        let request = MetaRequest::Change { id, change: Change::RegisterNode(record.clone()) };
        loop {
            let error = match self.ask(&request, Priority::Control, PATIENCE).await {
                Ok(MetaAnswer::Done) => {
                    trouble.over();
                    return Ok(());
                }
                Ok(_) => AskError::Unexpected,
                Err(AskError::Call(CallError::Fault(Fault::Meta(MetaFault::Store(detail))))) => {
                    AskError::Call(CallError::Fault(Fault::Meta(MetaFault::Store(detail))))
                }
                Err(AskError::Call(CallError::Fault(fault @ Fault::Meta(_)))) => {
                    return Err(NodeError::Refused { meta: self.address.clone(), fault });
                }
                Err(AskError::Connect(ConnectError::Cluster { ours, theirs })) => {
                    return Err(NodeError::ForeignCluster { ours, theirs, meta: self.address.clone() });
                }
                Err(error) => error,
            };
            trouble.again(&error.to_string()).await;
        }
    }

    /// Heartbeats until the metadata server says that it does not know this node. While it has answered none for a while nobody can say
    /// that it does.
    async fn beat(&self, node: NodeId, service: &Service, every: Duration, registered: &watch::Sender<bool>) {
        let turn = |known: bool| registered.send_if_modified(|now| std::mem::replace(now, known) != known);
        let mut heard_at = Instant::now();
        let mut states = BTreeMap::new();
        let mut trouble = Trouble::new(&self.address);
        let mut ticks = tokio::time::interval(every);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let devices: Vec<_> = service.devices.all().iter().map(|device| report::device(device)).collect();
            tell_changes(node, service, &devices, &mut states);
            let beat =
                MetaRequest::Heartbeat(Heartbeat { node, devices, activity: report::activity(service) });
            let heard = self.ask(&beat, Priority::Control, PATIENCE).await;
            if matches!(heard, Ok(MetaAnswer::Heard { .. })) {
                heard_at = Instant::now();
            } else {
                service.activity.heartbeat_failed();
                if heard_at.elapsed() >= PATIENCE {
                    turn(false);
                }
            }
            match heard {
                Ok(MetaAnswer::Heard { registered: true }) => {
                    turn(true);
                    trouble.over();
                }
                Ok(MetaAnswer::Heard { registered: false }) => return,
                Ok(_) => trouble.note(&AskError::Unexpected.to_string()),
                Err(error) => trouble.note(&error.to_string()),
            }
        }
    }
}

/// What is to be done about what a registration ended with.
fn refused(service: &Service, record: &NodeRecord, error: &NodeError) -> OnRefusal {
    let NodeError::Refused { fault: Fault::Meta(fault), .. } = error else { return OnRefusal::End };
    let devices: Vec<DeviceId> = record.devices.iter().map(|&(device, _)| device).collect();
    service.devices.refused(service.now(), fault, &devices)
}

/// Says once when a device's state has changed.
fn tell_changes(
    node: NodeId,
    service: &Service,
    reports: &[DeviceReport],
    states: &mut BTreeMap<DeviceId, DeviceHealth>,
) {
    for &DeviceReport { device, health, .. } in reports {
        let before = states.insert(device, health).unwrap_or(DeviceHealth::Ok);
        if before == health {
            continue;
        }
        // One that was dismissed meanwhile has nothing to tell.
        let Some(served) = service.devices.get(device) else { continue };
        let dir = served.dir.display();
        match health {
            DeviceHealth::Ok => tracing::info!(%node, %device, %dir, ?before, "a device is well again"),
            DeviceHealth::Full => tracing::warn!(%node, %device, %dir, "a device is full"),
            DeviceHealth::Stalled => tracing::warn!(%node, %device, %dir, "a device stalls"),
            DeviceHealth::Failed => {
                let error = served.why_failed().unwrap_or_default();
                tracing::error!(%node, %device, %dir, error, "a device failed; nothing new is stored on it");
            }
        }
    }
}

/// Says once that the metadata server cannot be reached, and once that it can again.
struct Trouble<'a> {
    meta: &'a str,
    pause: Duration,
    told: bool,
}

impl<'a> Trouble<'a> {
    fn new(meta: &'a str) -> Self {
        Self { meta, pause: PAUSE.0, told: false }
    }

    fn note(&mut self, error: &str) {
        if self.told {
            tracing::debug!(meta = self.meta, error, "still no metadata server");
        } else {
            self.told = true;
            tracing::warn!(
                meta = self.meta,
                error,
                "the metadata server cannot be reached; this node keeps trying"
            );
        }
    }

    async fn again(&mut self, error: &str) {
        self.note(error);
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(PAUSE.1);
    }

    fn over(&mut self) {
        if std::mem::take(&mut self.told) {
            tracing::info!(meta = self.meta, "the metadata server answers again");
        }
        self.pause = PAUSE.0;
    }
}
