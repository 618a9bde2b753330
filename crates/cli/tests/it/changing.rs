//! Objects that change while they are read. A scripted metadata server says, lookup by lookup, where they lie; a
//! storage server in this process has what is left of them.

use crate::{
    common::{block_on, bytes},
    raw::{Blocks, Name, Raw},
};
use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::{Arc, Mutex},
    time::Duration,
};
use steadfast_client::{Client, ClientError, GetError, Options};
use steadfast_disk::media::OpenFileError;
use steadfast_net::Server;
use steadfast_node::{Node, NodeError, NodeOptions};
use steadfast_protocol::{
    ClusterId, DeviceId, Epoch, IntentId, SegmentId, Time, Version,
    layout::{CodeKind, CodeSpec, Holder, SegmentLayout},
    message::{
        self, Change, Fault, Hello, MetaAnswer, MetaFault, MetaRequest, NodeState, ObjectRecord, Query,
        Registry, Role, VERSION,
    },
    policy::{Pledge, Policy, Rateless},
};
use tokio::task::JoinHandle;

/// Bytes in each segment: one block, held by two devices.
const SEGMENT: usize = 9000;

#[derive(Default)]
struct Script {
    nodes: Vec<NodeState>,
    /// What lookups are answered with; the last one for ever.
    lookups: VecDeque<Result<(ObjectRecord, Vec<SegmentLayout>), MetaFault>>,
    asked: usize,
}

impl Script {
    fn answer(&mut self, request: MetaRequest) -> Result<MetaAnswer, Fault> {
        match request {
            MetaRequest::Change { change: Change::RegisterNode(record), .. } => {
                self.nodes.push(NodeState {
                    record,
                    alive: true,
                    silent_ms: Some(0),
                    devices: Vec::new(),
                    activity: Default::default(),
                });
                Ok(MetaAnswer::Done)
            }
            MetaRequest::Heartbeat(_) => Ok(MetaAnswer::Heard { registered: true }),
            MetaRequest::Ask(Query::Registry) => Ok(MetaAnswer::Registry(Registry {
                cluster: ClusterId(7),
                nodes: self.nodes.clone(),
                ..Registry::default()
            })),
            MetaRequest::Ask(Query::Lookup { .. }) => {
                self.asked += 1;
                let next = if self.lookups.len() > 1 { self.lookups.pop_front() } else { None };
                let (object, segments) =
                    next.unwrap_or_else(|| self.lookups[0].clone()).map_err(Fault::Meta)?;
                let policy = Policy::Rateless(Rateless::default());
                Ok(MetaAnswer::Object { object, segments, policy })
            }
            other => Err(Fault::Protocol(format!("not in the script: {other:?}"))),
        }
    }
}

struct Stage {
    script: Arc<Mutex<Script>>,
    serving: JoinHandle<()>,
    node: Node,
    raw: Raw,
    client: Client,
    _dir: tempfile::TempDir,
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

impl Stage {
    async fn set() -> Self {
        let server = Server::bind("127.0.0.1:0").await.unwrap();
        let address = server.local_addr().unwrap().to_string();
        let script = Arc::new(Mutex::new(Script::default()));
        let hello = Hello { version: VERSION, features: 0, role: Role::Meta, cluster: Some(ClusterId(7)) };
        let handler = {
            let script = script.clone();
            move |connected: steadfast_net::Connected| {
                let script = script.clone();
                async move {
                    let mut incoming = connected.incoming;
                    while let Some((opened, stream)) = incoming.next().await {
                        let answer = script.lock().unwrap().answer(message::decode(&opened.body).unwrap());
                        match answer {
                            Ok(answer) => drop(stream.end(message::encode(&answer))),
                            Err(fault) => stream.fail(&fault),
                        }
                    }
                }
            }
        };
        let serving = tokio::spawn(server.serve(hello, steadfast_net::Options::default(), handler));
        let dir = tempfile::tempdir().unwrap();
        let dirs = (0..2).map(|device| dir.path().join(device.to_string())).collect();
        let mut options = NodeOptions::new(dirs, &address, "127.0.0.1:0".parse().unwrap());
        options.capacity_bytes = Some(16 << 20);
        let node = started(options).await;
        node.registered().await;
        let options = Options { patience: Duration::from_secs(30), ..Options::default() };
        let client = Client::connect(&address, options).await.unwrap();
        Self { script, serving, node, raw: Raw::new(), client, _dir: dir }
    }

    /// The layout of a segment whose one block lies, as copies 0 and 1, on both devices in these pieces.
    fn layout(&self, segment: u64, pieces: [(u64, u64); 2]) -> SegmentLayout {
        let holder = |(at, (segment, version)): (usize, (u64, u64))| {
            let index = at as u32;
            let blocks = (index..index + 1).into();
            Holder::whole(self.node.devices()[at], SegmentId(segment), Version(version), blocks)
        };
        SegmentLayout {
            segment: SegmentId(segment),
            version: Version(1),
            epoch: Epoch(1),
            length: SEGMENT as u64,
            code: CodeSpec { kind: CodeKind::Replicated, originals: 1, seed: 0 },
            block_bytes: SEGMENT as u32,
            granule_bytes: 4096,
            holders: pieces.into_iter().enumerate().map(holder).collect(),
        }
    }

    /// Stores a copy of a segment's bytes as a piece.
    async fn store(&self, copy: usize, (segment, version): (u64, u64), data: &[u8]) {
        let device: DeviceId = self.node.devices()[copy];
        let (segment, version) = (SegmentId(segment), Version(version));
        let name = Name { segment, version, epoch: Epoch(1), intent: IntentId(1) };
        let blocks = Blocks::from([(copy as u32, data.to_vec())]);
        self.raw.store(&self.node.address().to_string(), device, name, 4096, &blocks).await;
    }

    /// What the lookups are to say.
    fn say(&self, lookups: impl IntoIterator<Item = Result<(ObjectRecord, Vec<SegmentLayout>), MetaFault>>) {
        let mut script = self.script.lock().unwrap();
        (script.lookups, script.asked) = (lookups.into_iter().collect(), 0);
    }

    async fn get(&self, range: Option<(u64, Option<u64>)>) -> (Result<Version, GetError>, Vec<u8>) {
        let sink = Sink::default();
        let got = self.client.get("data", "object", range, sink.clone()).await;
        if let Ok(report) = &got {
            assert_eq!(report.size, sink.0.lock().unwrap().len() as u64);
        }
        let taken = sink.0.lock().unwrap().clone();
        (got.map(|report| report.version), taken)
    }

    fn asked(&self) -> usize {
        self.script.lock().unwrap().asked
    }
}

/// Starts a node. Tests beside this one start processes: until such a one has become another program, it holds locks
/// on the files that this process had open.
async fn started(options: NodeOptions) -> Node {
    for _ in 0..1000 {
        match Node::start(options.clone()).await {
            Ok(node) => return node,
            Err(NodeError::Space(OpenFileError::Locked { .. })) => {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            Err(error) => panic!("{error}"),
        }
    }
    panic!("the devices stay locked");
}

#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn object(
    version: u64,
    contents: u64,
    segments: Vec<SegmentLayout>,
) -> Result<(ObjectRecord, Vec<SegmentLayout>), MetaFault> {
    let record = ObjectRecord {
        key: "object".into(),
        size: segments.iter().map(|layout| layout.length).sum(),
        version: Version(version),
        contents: Version(contents),
        committed: Time(0),
        segments: segments.iter().map(|layout| layout.segment).collect(),
        pledge: Pledge::default(),
    };
    Ok((record, segments))
}

fn no_object<T>() -> Result<T, MetaFault> {
    Err(MetaFault::NoObject { bucket: "data".into(), key: "object".into() })
}

#[test]
fn what_was_replaced_before_anything_was_read_is_read_as_it_is_now() {
    block_on(async {
        let stage = Stage::set().await;
        let data = bytes(SEGMENT, 1);
        stage.store(0, (20, 2), &data).await;
        let (gone, new) = (stage.layout(10, [(10, 1); 2]), stage.layout(20, [(20, 2); 2]));
        stage.say([object(1, 1, vec![gone.clone()]), object(2, 2, vec![new])]);
        let (got, taken) = stage.get(None).await;
        assert_eq!((got.unwrap(), stage.asked()), (Version(2), 2));
        assert!(taken == data);

        // Nobody replaced it: it cannot be read, and is asked about once more only.
        stage.say([object(1, 1, vec![gone.clone()])]);
        let (got, taken) = stage.get(None).await;
        assert!(matches!(got, Err(GetError::Read(_))), "{got:?}");
        assert_eq!((taken.len(), stage.asked()), (0, 2));

        // Removed: that is what is said.
        stage.say([object(1, 1, vec![gone.clone()]), no_object()]);
        let (got, _) = stage.get(None).await;
        let removed = |error: &GetError| {
            matches!(error, GetError::Metadata(ClientError::Refused(MetaFault::NoObject { .. })))
        };
        assert!(got.as_ref().is_err_and(removed), "{got:?}");

        // Replaced faster than it is read: not for ever.
        stage.say((1..100).map(|version| object(version, version, vec![gone.clone()])));
        let (got, _) = stage.get(None).await;
        assert!(matches!(got, Err(GetError::Changed { handed: 0, .. })), "{got:?}");
        assert!((3..10).contains(&stage.asked()), "asked {} times", stage.asked());
    });
}

#[test]
fn a_read_goes_on_where_blocks_moved_and_ends_where_other_bytes_came() {
    block_on(async {
        let stage = Stage::set().await;
        let data = bytes(2 * SEGMENT, 2);
        let (first, second) = data.split_at(SEGMENT);
        stage.store(0, (10, 1), first).await;
        // The second segment's copies moved: one piece each by other amendments, one of which is gone by now.
        stage.store(1, (31, 3), second).await;
        let before = || vec![stage.layout(10, [(10, 1); 2]), stage.layout(11, [(11, 1); 2])];
        let after = || vec![stage.layout(10, [(10, 1); 2]), stage.layout(11, [(30, 2), (31, 3)])];
        stage.say([object(1, 1, before()), object(3, 1, after())]);
        let (got, taken) = stage.get(None).await;
        assert_eq!((got.unwrap(), stage.asked()), (Version(3), 2));
        assert!(taken == data);
        let (from, to) = (5000, SEGMENT + 4321);
        stage.say([object(1, 1, before()), object(3, 1, after())]);
        let (got, taken) = stage.get(Some((from as u64, Some(to as u64 - 1)))).await;
        assert_eq!(got.unwrap(), Version(3));
        assert!(taken == data[from..to]);

        // Other bytes do not follow what the sink has.
        stage.say([object(1, 1, before()), object(3, 3, after())]);
        let (got, taken) = stage.get(None).await;
        let changed = |got: &Result<Version, GetError>| matches!(got, Err(GetError::Changed { handed, .. }) if *handed == SEGMENT as u64);
        assert!(changed(&got), "{got:?}");
        assert!(taken == first);
        stage.say([object(1, 1, before()), no_object()]);
        let (got, taken) = stage.get(None).await;
        assert!(changed(&got), "{got:?}");
        assert!(taken == first);
        // A range within what is lost only: nothing was handed over, so the new version serves.
        stage.say([object(1, 1, before()), object(3, 3, after())]);
        let (got, taken) = stage.get(Some((SEGMENT as u64, None))).await;
        assert_eq!(got.unwrap(), Version(3));
        assert!(taken == second);
    });
}
