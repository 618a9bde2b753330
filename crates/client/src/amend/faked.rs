//! A metadata server in tests, which knows one object and keeps to what the real one promises of amendments; and what servers hear.

use crate::{
    Client, ObjectStat,
    amend::found,
    metadata::Metadata,
    reserve::tests::{layout, serving},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
    time::Duration,
};
use steadfast_net::{Options, Server, Stream};
use steadfast_protocol::{
    DeviceId, Epoch, IntentId, SegmentId, Version,
    layout::{Holder, SegmentLayout},
    message::{
        self, Change, ChunkVersions, Fault, Hello, MetaAnswer, MetaFault, MetaRequest, NodeAnswer,
        NodeRequest, PutBegun, Query, Registry, Role, VERSION,
    },
};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};

/// What a server was asked.
#[derive(Debug)]
pub(crate) enum Heard {
    /// The metadata server.
    Meta(Change),
    /// A storage server.
    Node(NodeRequest),
}

/// What the metadata server knows, and how it behaves.
pub(crate) struct Store {
    pub(crate) object: ObjectStat,
    pub(crate) registry: Registry,
    /// So many commits find that somebody else was first.
    pub(crate) conflicts: u32,
    /// Commits are made, and have no answer.
    pub(crate) is_silent: bool,
    heard: UnboundedSender<Heard>,
    named: u64,
    begun: BTreeMap<IntentId, (Version, Epoch)>,
    unanswered: Vec<Stream>,
}

/// An object of so many segments of chunks, named from 1 on, each as the tests' [`layout`]; 4 devices are enough for another.
pub(crate) fn object(segments: u64) -> ObjectStat {
    let one = layout();
    let segment = |name| {
        let pieces = one.holders.iter().map(|holder| (holder.device, holder.blocks()));
        let named =
            pieces.map(|(device, blocks)| Holder::whole(device, SegmentId(name), one.version, blocks));
        SegmentLayout { segment: SegmentId(name), holders: named.collect(), ..one.clone() }
    };
    let segments: Vec<SegmentLayout> = (1..=segments).map(segment).collect();
    let policy = "parity:code=rs(4,2),segment=1MiB,domain=device".parse().unwrap();
    let lengths: Vec<u64> = segments.iter().map(|layout| layout.length).collect();
    ObjectStat { segments, policy, ..found(&lengths) }
}

/// Where a server listens whose chunks were never changed and are fenced at once; it says what else it is asked, and answers nothing else but
/// that it deletes.
pub(crate) async fn node(heard: UnboundedSender<Heard>) -> String {
    let unanswered = Mutex::new(Vec::new());
    serving(move |request, stream| {
        let answer = match &request {
            NodeRequest::Fence { .. } => NodeAnswer::Done,
            NodeRequest::ChunkVersions { .. } => NodeAnswer::ChunkVersions(ChunkVersions::default()),
            _ => {
                let is_told = matches!(request, NodeRequest::Delete { .. });
                // Nobody counts them any more.
                let _ = heard.send(Heard::Node(request));
                if !is_told {
                    return unanswered.lock().unwrap().push(stream);
                }
                NodeAnswer::Done
            }
        };
        // The client may be gone.
        let _ = stream.end(message::encode(&answer));
    })
    .await
}

/// All that was heard until now, once what this client has left to be done is done.
pub(crate) async fn settled(client: &Client, hears: &mut UnboundedReceiver<Heard>) -> Vec<Heard> {
    client.tidying.settled(Duration::from_secs(10)).await;
    core::iter::from_fn(|| hears.try_recv().ok()).collect()
}

/// The blocks that storage servers were told to delete, after what the metadata server was told last.
pub(crate) fn deleted(heard: &[Heard]) -> BTreeSet<(DeviceId, SegmentId)> {
    let last = heard.iter().rposition(|heard| matches!(heard, Heard::Meta(_))).map_or(0, |last| last + 1);
    let deleted = |heard: &Heard| match heard {
        Heard::Node(NodeRequest::Delete { device, segment }) => Some((*device, *segment)),
        _ => None,
    };
    assert_eq!(heard[..last].iter().find_map(deleted), None, "before it is certain that nothing has them");
    heard[last..].iter().filter_map(deleted).collect()
}

/// The store of a metadata server that this client asks from now on, which says what changes it hears.
pub(crate) async fn metadata(
    client: &mut Client,
    object: ObjectStat,
    heard: UnboundedSender<Heard>,
) -> Arc<Mutex<Store>> {
    let store = Arc::new(Mutex::new(Store {
        object,
        registry: client.registry.lock().unwrap().clone(),
        conflicts: 0,
        is_silent: false,
        heard,
        named: 100,
        begun: BTreeMap::new(),
        unanswered: Vec::new(),
    }));
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap().to_string();
    let hello = Hello { version: VERSION, features: 0, role: Role::Meta, cluster: None };
    let serving = Arc::clone(&store);
    tokio::spawn(server.serve(hello, Options::default(), move |connected| {
        let (store, mut incoming) = (Arc::clone(&serving), connected.incoming);
        async move {
            while let Some((opened, stream)) = incoming.next().await {
                store.lock().unwrap().asked(message::decode(&opened.body).unwrap(), stream);
            }
        }
    }));
    client.metadata = Metadata::new(&address, client.pool.clone(), 1, Duration::from_secs(10));
    store
}

impl Store {
    /// Knows an intent that it has not named.
    pub(crate) fn knows(&mut self, intent: IntentId, base: Version, epoch: Epoch) {
        self.begun.insert(intent, (base, epoch));
    }

    /// The other way about.
    pub(crate) fn forgets(&mut self, intent: IntentId) {
        self.begun.remove(&intent);
    }

    fn asked(&mut self, request: MetaRequest, stream: Stream) {
        let answer = match request {
            MetaRequest::Ask(Query::Lookup { .. }) => Ok(MetaAnswer::Object {
                object: self.object.object.clone(),
                segments: self.object.segments.clone(),
                policy: self.object.policy,
            }),
            MetaRequest::Ask(Query::Registry) => Ok(MetaAnswer::Registry(self.registry.clone())),
            MetaRequest::Change { change, .. } => {
                let is_commit = matches!(change, Change::Commit { .. });
                // Nobody counts them any more.
                let _ = self.heard.send(Heard::Meta(change.clone()));
                let answer = self.changed(change);
                if is_commit && self.is_silent {
                    return self.unanswered.push(stream);
                }
                answer
            }
            _ => Ok(MetaAnswer::Done),
        };
        // The client may be gone.
        match answer {
            Ok(answer) => drop(stream.end(message::encode(&answer))),
            Err(fault) => stream.fail(&Fault::Meta(fault)),
        }
    }

    fn changed(&mut self, change: Change) -> Result<MetaAnswer, MetaFault> {
        match change {
            Change::BeginPut { segments, .. } => Ok(self.begin(Version(0), segments)),
            Change::BeginAmend { base, segments, .. } => Ok(self.begin(base, segments)),
            Change::MoreSegments { segments, .. } => Ok(MetaAnswer::Segments(self.names(segments))),
            Change::Commit { intent, size, segments, .. } => {
                let &(base, epoch) = self.begun.get(&intent).ok_or(MetaFault::IntentOver(intent))?;
                if self.conflicts > 0 {
                    self.conflicts -= 1;
                    self.object.object.version = Version(self.name());
                }
                let (version, current) = (Version(epoch.0), self.object.object.version);
                if base != Version(0) && base != current {
                    let (bucket, key) = ("data".to_owned(), self.object.object.key.clone());
                    return Err(MetaFault::Conflict { bucket, key, base, current: Some(current) });
                }
                self.begun.remove(&intent);
                (self.object.object.version, self.object.object.size) = (version, size);
                self.object.segments = segments;
                Ok(MetaAnswer::Committed { version, freed: Vec::new() })
            }
            Change::GiveUp { intent, fenced } => {
                let (base, epoch) = self.begun.remove(&intent).ok_or(MetaFault::IntentOver(intent))?;
                if base == self.object.object.version {
                    let listed = self.object.segments.iter_mut();
                    for layout in listed.filter(|layout| fenced.contains(&layout.segment)) {
                        layout.epoch = layout.epoch.max(epoch);
                    }
                    self.object.object.version = Version(epoch.0);
                }
                Ok(MetaAnswer::Done)
            }
            Change::Abort { intent } => {
                self.begun.remove(&intent).map(|_| MetaAnswer::Done).ok_or(MetaFault::IntentOver(intent))
            }
            Change::Renew { .. } => Ok(MetaAnswer::Done),
            other => panic!("nobody asks for it here: {other:?}"),
        }
    }

    fn begin(&mut self, base: Version, segments: u32) -> MetaAnswer {
        let number = self.name();
        let (intent, epoch) = (IntentId(number), Epoch(number));
        self.begun.insert(intent, (base, epoch));
        MetaAnswer::Begun(PutBegun {
            intent,
            version: Version(number),
            epoch,
            segments: self.names(segments),
            policy: self.object.policy,
            lease_ms: 30_000,
        })
    }

    fn names(&mut self, segments: u32) -> Vec<SegmentId> {
        (0..segments).map(|_| SegmentId(self.name())).collect()
    }

    fn name(&mut self) -> u64 {
        self.named += 1;
        self.named
    }
}
