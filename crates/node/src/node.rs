//! Starting, running and stopping a node.

use crate::{
    NodeError, NodeOptions, chores,
    devices::{self, Started},
    identity,
    joining::Joining,
    membership::{Meta, hello, learn_cluster, not_ours},
    roster::{Places, Roster, is_plain, resolve},
    served::{self, Served},
    service::Service,
    updates::Updates,
    watch::Watched,
};
use std::{
    collections::BTreeSet,
    future::Future,
    net::{IpAddr, SocketAddr, UdpSocket},
    path::PathBuf,
    sync::Arc,
};
use steadfast_admin::Admin;
use steadfast_net::{Connected, Pool, Server};
use steadfast_protocol::{
    ClusterId, DeviceId, NodeId, Time,
    message::{NodeRecord, Role},
    serve::Reserve,
};
use tokio::{
    sync::{mpsc, watch},
    task::{JoinHandle, JoinSet},
};

/// Directories that may wait to be added.
const WISHES_MAX: usize = 16;

/// A storage server that runs. Dropped, it stops serving at once, and its devices close soon after; [`Node::stop`]
/// returns when they are flushed and closed, so that another may open them.
pub struct Node {
    node: NodeId,
    cluster: ClusterId,
    address: SocketAddr,
    service: Arc<Service>,
    registered: watch::Receiver<bool>,
    serving: JoinHandle<()>,
    living: JoinHandle<NodeError>,
    chores: JoinSet<()>,
    admin: Option<Admin>,
}

/// Runs a node until `shutdown` is there, then stops it cleanly.
///
/// # Errors
/// Every [`NodeError`]: it could not start, or the metadata server refuses it for good.
pub async fn run(options: NodeOptions, shutdown: impl Future<Output = ()>) -> Result<(), NodeError> {
    tokio::pin!(shutdown);
    let mut node = tokio::select! {
        started = Node::start(options) => started?,
        () = &mut shutdown => return Ok(()),
    };
    let outcome = tokio::select! {
        error = node.failed() => Err(error),
        () = &mut shutdown => Ok(()),
    };
    node.stop().await;
    outcome
}

impl Node {
    /// Opens or makes the devices and begins to serve. Waits for the metadata server only when a device must be made,
    /// for its cluster's name; registration goes on behind (see [`Node::registered`]).
    ///
    /// # Errors
    /// Every [`NodeError`] but a refusal, which [`Node::failed`] tells.
    pub async fn start(options: NodeOptions) -> Result<Self, NodeError> {
        Reserve::new(Time(0), options.reserve)?;
        // Who watches the node's connections watches what it serves.
        let asking = steadfast_net::Options { tap: None, ..options.net.clone() };
        let roster = Arc::new(Roster::new(&options.dirs));
        let (looking, listed) = (options.clone(), roster.clone());
        let (mut prepared, given, added) = blocking(move || {
            let (given, added) = (listed.given()?, listed.added()?);
            let prepared = devices::prepare(&looking, &given, &added)?;
            Ok::<_, NodeError>((prepared, given, added))
        })
        .await??;
        let known = devices::cluster(&prepared);
        let mut missing = devices::missing(&prepared, given.keys().chain(added.keys()).copied());
        if !missing.is_empty() {
            let own = devices::remembered(&prepared);
            let elsewhere = not_ours(&options.meta, (known, own), &asking, &missing).await;
            missing.retain(|device| !elsewhere.contains(device));
            let roster = roster.clone();
            blocking(move || elsewhere.into_iter().for_each(|device| roster.forget(device))).await?;
        }
        devices::settle(&mut prepared, &missing);
        let cluster = match known {
            Some(cluster) if !devices::any_new(&prepared) => cluster,
            _ => learn_cluster(&options.meta, known, &asking).await?,
        };
        let (making, listed) = (options.clone(), roster.clone());
        let started = blocking(move || {
            let named = making.rename.then(identity::random_u128).transpose()?.map(NodeId);
            let started = devices::start(prepared, cluster, &making, named)?;
            list(&listed, &making.dirs, (given, &missing), &started);
            Ok::<_, NodeError>(started)
        });
        let Started { node, served: devices } = started.await??;
        let (wish, wishes) = mpsc::channel(WISHES_MAX);
        let devices = Served::new(devices, roster.clone(), options.taken_for);
        let client = identity::random_u128()?;
        let meta = Arc::new(Meta::new(&options.meta, node, cluster, &asking, client));
        let peers = Pool::new(hello(Role::Node(node), Some(cluster)), asking.clone());
        let updates = Arc::new(Updates::new(meta.clone(), peers));
        let budgets = (options.write_budget_bytes, options.ingest_budget_bytes);
        let service = Arc::new(Service::new(devices, updates, wish, options.limits, budgets));

        let address = options.listen.to_string();
        let listen = |source| NodeError::Listen { address: address.clone(), source };
        let server = Server::bind(&address).await.map_err(listen)?;
        let address = server
            .local_addr()
            .map_err(|source| NodeError::Listen { address: options.listen.to_string(), source })?;
        let greeting = hello(Role::Node(node), Some(cluster));
        let serving = {
            let service = service.clone();
            tokio::spawn(server.serve(greeting, options.net.clone(), move |connected| {
                connection(service.clone(), connected)
            }))
        };
        let record = NodeRecord {
            node,
            cluster: Some(cluster),
            address: advertised(&options, address),
            site: options.site.clone(),
            devices: service.devices.record(),
        };
        let (registering, registered) = watch::channel(false);
        let admin = match options.admin {
            Some(at) => {
                let watched = Watched {
                    service: service.clone(),
                    node,
                    cluster,
                    address,
                    meta: options.meta.clone(),
                    registered: registered.clone(),
                    admission: options.admission,
                };
                let admin = Admin::start(at, Arc::new(watched)).await;
                let admin = admin.map_err(|source| NodeError::Listen { address: at.to_string(), source })?;
                let _first = service.admin.set(admin.address().to_string());
                Some(admin)
            }
            None => None,
        };
        let living = {
            let (service, meta, every) = (service.clone(), meta.clone(), options.heartbeat);
            let record = record.clone();
            tokio::spawn(async move { meta.live(record, &service, every, &registering).await })
        };
        let mut chores = JoinSet::new();
        for device in service.devices.all() {
            chores::begin(&mut chores, &service, &meta, &device, &options);
        }
        tracing::info!(%node, %cluster, %address, devices = service.devices.all().len(), "serving");
        let options = NodeOptions { net: asking, ..options };
        let joining = Joining { service: service.clone(), meta, record, options, roster };
        chores.spawn(joining.run(wishes));
        Ok(Self { node, cluster, address, service, registered, serving, living, chores, admin })
    }

    /// Its name.
    pub fn id(&self) -> NodeId {
        self.node
    }

    /// Its cluster.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where its admin port listens, if it has one.
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(Admin::address)
    }

    /// Its devices.
    pub fn devices(&self) -> Vec<DeviceId> {
        self.service.devices.all().iter().map(|device| device.id).collect()
    }

    /// Returns when the metadata server knows this node, and answers.
    pub async fn registered(&self) {
        let mut registered = self.registered.clone();
        if registered.wait_for(|known| *known).await.is_err() {
            // The metadata server refused it for good, which `failed` tells: it will never be registered.
            std::future::pending::<()>().await;
        }
    }

    /// Returns when the node cannot go on, with the reason: the metadata server refused it for good.
    pub async fn failed(&mut self) -> NodeError {
        tokio::select! {
            ended = &mut self.living => match ended {
                Ok(error) => error,
                Err(error) => NodeError::Task { detail: error.to_string() },
            },
            ended = &mut self.serving => NodeError::Task {
                detail: ended.err().map_or_else(|| "the server ended".to_owned(), |error| error.to_string()),
            },
        }
    }

    /// Stops serving, flushes and closes the devices. A device that does not answer is left behind after
    /// [`steadfast_disk::LaneConfig::shutdown_wait_max`]: what was confirmed is durable already.
    pub async fn stop(mut self) {
        self.serving.abort();
        self.living.abort();
        if !self.serving.is_finished() {
            // Its connections leave first: that a device is closed is no fault of what was asked of it.
            let _aborted = (&mut self.serving).await;
        }
        self.chores.shutdown().await;
        self.service.updates.stop().await;
        let mut closing = JoinSet::new();
        for device in self.service.devices.all() {
            closing.spawn_blocking(move || served::close(&device));
        }
        while closing.join_next().await.is_some() {}
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.serving.abort();
        self.living.abort();
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node")
            .field("node", &self.node)
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// Lists what the directories that were `given` have now, for the next start, and where devices were before that are missing. Blocks.
fn list(
    roster: &Roster,
    given: &[PathBuf],
    (before, missing): (Places, &BTreeSet<DeviceId>),
    started: &Started,
) {
    let given: BTreeSet<PathBuf> = given.iter().map(|dir| resolve(dir)).collect();
    let mut places: Places = before.into_iter().filter(|(device, _)| missing.contains(device)).collect();
    for device in &started.served {
        let dir = resolve(&device.dir);
        if given.contains(&dir) && is_plain(&dir) {
            places.insert(device.id, dir);
        } else if given.contains(&dir) {
            tracing::warn!(dir = %dir.display(), "its name is no line of text, so it is not listed: where its disk is not mounted, it is taken for a new one");
        }
    }
    if let Err(error) = roster.set_given(&places) {
        // It serves all the same; a full disk is no reason not to.
        tracing::warn!(%error, "a disk that is not mounted at the next start may be taken for a new one");
    }
}

/// Serves the streams of one connection, each in its own task; all end before the connection's task does.
pub(crate) async fn connection(service: Arc<Service>, connected: Connected) {
    let Connected { connection, mut incoming, .. } = connected;
    // Only the peer opens streams here.
    let counted = service.activity.connected(connection);
    let id = counted.id();
    let mut streams = JoinSet::new();
    loop {
        tokio::select! {
            next = incoming.next() => match next {
                Some((opened, stream)) => {
                    let service = service.clone();
                    streams.spawn(async move { service.serve(id, opened, stream).await });
                }
                None => break,
            },
            Some(ended) = streams.join_next() => report_panic(ended),
        }
    }
    while let Some(ended) = streams.join_next().await {
        report_panic(ended);
    }
}

pub(crate) fn report_panic(ended: Result<(), tokio::task::JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a stream's task panicked");
    }
}

/// Where others reach this node.
fn advertised(options: &NodeOptions, address: SocketAddr) -> String {
    if let Some(advertise) = &options.advertise {
        return advertise.clone();
    }
    if !address.ip().is_unspecified() {
        return address.to_string();
    }
    // Listening everywhere: the address from which the metadata server would be reached. Nothing is sent.
    let any: SocketAddr =
        (if address.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) }, 0).into();
    let local = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(&options.meta)?;
        socket.local_addr()
    });
    let reached = match local {
        Ok(local) => SocketAddr::new(local.ip(), address.port()),
        Err(error) => {
            tracing::warn!(%error, "cannot tell by which address others reach this node: say it with --advertise");
            return address.to_string();
        }
    };
    if reached.ip().is_loopback() {
        // Who listens everywhere wants to be reached from elsewhere; the metadata server's address says only the way from here.
        tracing::warn!(address = %reached, "only this machine reaches this node by the address that it registers: say another with --advertise");
    }
    reached.to_string()
}

/// Does what blocks on a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, NodeError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| NodeError::Task { detail: error.to_string() })
}
