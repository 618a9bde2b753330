//! Handles on servers that are played here.

use super::*;
use crate::{
    amend::faked::{self, Heard},
    chunks::zeros,
    reserve::tests::{client, device_of, found, layout, serving},
};
use core::{
    future::Future,
    pin::{Pin, pin},
    task::{Context, Waker},
};
use steadfast_net::Stream;
use steadfast_protocol::{
    DeviceId, SegmentId,
    message::{self, ChunkVersions, Fault, NodeAnswer, NodeFault, NodeRequest, ReadRows, ReadState},
};
use tokio::sync::mpsc::{self, UnboundedReceiver};

/// A handle on an object as found, of segments as long as the first.
fn opened(client: &Arc<Client>, found: ObjectStat, options: &FileOptions) -> File {
    let sizes = (found.segments[0].length, 1 << 40);
    Inner::new(client, ("data", "object"), found, sizes, Duration::ZERO, options).into()
}

/// A handle on an object of two segments, a metadata server that makes commits and gives them no answer, and what is heard there.
async fn unanswered() -> (File, UnboundedReceiver<Heard>) {
    let (tell, hears) = mpsc::unbounded_channel();
    let mut client = client(&faked::node(tell.clone()).await, Vec::new());
    let object = faked::object(2);
    let store = faked::metadata(&mut client, object.clone(), tell).await;
    store.lock().unwrap().is_silent = true;
    (opened(&Arc::new(client), object, &FileOptions::default()), hears)
}

/// When the metadata server has heard of a commit.
async fn committed(hears: &mut UnboundedReceiver<Heard>) {
    while !matches!(hears.recv().await, Some(Heard::Meta(Change::Commit { .. }))) {}
}

/// What is cut is neither read again nor appended to.
async fn is_cut(file: &File, reads: bool) {
    assert!(file.size() > 0, "nobody has said anything");
    if reads {
        assert!(file.read_at(0, 100).await.unwrap().is_empty());
    }
    assert_eq!(file.append(b"x").await.unwrap(), 0);
    assert_eq!((file.size(), file.counts().lookups), (1, 1));
}

#[tokio::test]
async fn what_became_of_a_truncate_that_was_dropped_is_looked_up() {
    for reads in [false, true] {
        let (file, mut hears) = unanswered().await;
        tokio::select! {
            cut = file.truncate(0) => panic!("it has no answer: {cut:?}"),
            () = committed(&mut hears) => {}
        }
        is_cut(&file, reads).await;
        // What is looked up has all that was asked for before.
        let asked = core::iter::from_fn(|| hears.try_recv().ok());
        let behind =
            |heard: &Heard| matches!(heard, Heard::Meta(Change::Renew { intent }) if *intent == NO_INTENT);
        assert_eq!(asked.filter(behind).count(), 1);
    }
}

#[tokio::test]
async fn what_became_of_a_truncate_without_an_answer_is_looked_up() {
    let (file, mut hears) = unanswered().await;
    let waiting = async {
        committed(&mut hears).await;
        // Nothing is to be done any more but to wait.
        tokio::time::pause();
    };
    let (cut, ()) = tokio::join!(file.truncate(0), waiting);
    tokio::time::resume();
    let unknown =
        AmendError::Metadata(ClientError::Unknown { address: String::new(), waited: Duration::ZERO });
    assert_eq!(
        core::mem::discriminant(&cut.unwrap_err()),
        core::mem::discriminant(&FileError::Write(unknown)),
    );
    is_cut(&file, false).await;
}

/// Where a server listens that has these chunks, all of whose bytes are zero, and says of others that it does not know their segment.
async fn having(has: impl Fn(DeviceId, SegmentId) -> bool + Send + Sync + 'static) -> String {
    serving(move |request, stream| {
        let (device, segment) = match &request {
            NodeRequest::ReadRows(ReadRows { device, segment, .. })
            | NodeRequest::ChunkVersions { device, segment } => (*device, *segment),
            NodeRequest::Read { device, pieces } => (*device, pieces[0].segment),
            other => panic!("{other:?}"),
        };
        if !has(device, segment) {
            return stream.fail(&Fault::Node(NodeFault::UnknownSegment { device, segment }));
        }
        if matches!(request, NodeRequest::ChunkVersions { .. }) {
            let held = if device >= device_of(2) { vec![(0, 0), (1, 0)] } else { Vec::new() };
            let versions = NodeAnswer::ChunkVersions(ChunkVersions { version: 0, held });
            // Others may have been enough.
            let _ = stream.end(message::encode(&versions));
        } else {
            zeros::serve(&request, ReadState::default(), stream);
        }
    })
    .await
}

#[tokio::test]
async fn a_chunk_that_has_gone_astray_is_decoded_around() {
    let client = client(&having(|device, _| device != device_of(0)).await, Vec::new());
    let file = opened(&Arc::new(client), found(), &FileOptions::default());
    assert_eq!(file.read_at(10, 100).await.unwrap()[..], [0; 100]);
    assert_eq!(file.counts().lookups, 0);
    let client = &file.inner.client;
    assert!(!client.hedge().is_late(client.now(), device_of(0)));
}

#[tokio::test]
async fn a_segment_that_was_stored_anew_is_looked_up() {
    let now = layout().segment;
    let mut client = client(&having(move |_, segment| segment == now).await, Vec::new());
    let (tell, _hears) = mpsc::unbounded_channel();
    let stored = ObjectStat {
        object: steadfast_protocol::message::ObjectRecord {
            version: steadfast_protocol::Version(2),
            ..found().object
        },
        ..found()
    };
    faked::metadata(&mut client, stored, tell).await;
    let mut before = faked::object(1);
    assert_ne!(before.segments[0].segment, now);
    before.policy = found().policy;
    let file = opened(&Arc::new(client), before, &FileOptions::default());
    assert_eq!(file.read_at(10, 100).await.unwrap()[..], [0; 100]);
    assert_eq!(file.counts().lookups, 1);
    let client = &file.inner.client;
    assert!((0..4).all(|chunk| !client.hedge().is_late(client.now(), device_of(chunk))));
}

/// Servers that change chunks in place when they are told to.
#[derive(Default)]
struct Slow {
    are_released: bool,
    waiting: Vec<Stream>,
}

fn updated(stream: Stream) {
    // The client may be gone.
    let _ = stream.end(message::encode(&NodeAnswer::Updated { version: 1 }));
}

impl Slow {
    /// Where they listen; they say what they are to change.
    async fn serving(tell: mpsc::UnboundedSender<Heard>) -> (String, Arc<Mutex<Self>>) {
        let slow = Arc::new(Mutex::new(Self::default()));
        let serving_it = Arc::clone(&slow);
        let address = serving(move |request, stream| {
            let answer = match request {
                NodeRequest::Update { .. } => {
                    // Nobody counts them any more.
                    let _ = tell.send(Heard::Node(request));
                    let mut slow = serving_it.lock().unwrap();
                    if slow.are_released {
                        updated(stream)
                    } else {
                        slow.waiting.push(stream)
                    }
                    return;
                }
                NodeRequest::ChunkVersions { .. } => NodeAnswer::ChunkVersions(ChunkVersions::default()),
                _ => NodeAnswer::Done,
            };
            let _ = stream.end(message::encode(&answer));
        })
        .await;
        (address, slow)
    }

    fn release(&mut self) {
        self.are_released = true;
        self.waiting.drain(..).for_each(updated);
    }
}

/// Segments of which something was to be changed.
fn changed(hears: &mut UnboundedReceiver<Heard>) -> BTreeSet<u64> {
    let heard = core::iter::from_fn(|| hears.try_recv().ok());
    let segment = |heard| match heard {
        Heard::Node(NodeRequest::Update { segment, .. }) => Some(segment.0),
        _ => None,
    };
    heard.filter_map(segment).collect()
}

fn is_over(work: Pin<&mut impl Future>) -> bool {
    work.poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

/// Writes of which [`TAKEN`] fill the cache of such a handle: each to a segment of its own.
const WRITTEN: [u8; 8 << 10] = [7; 8 << 10];
const TAKEN: u64 = 7;

/// An object of so many segments, whose chunks are changed in place however small they are.
fn object(segments: u64) -> ObjectStat {
    let policy = "parity:code=rs(4,2),segment=1MiB,domain=device,update=fo".parse().unwrap();
    ObjectStat { policy, ..faked::object(segments) }
}

async fn write(file: &File, position: u64) {
    file.write_at(position * file.inner.segment_bytes, &WRITTEN).await.unwrap();
}

fn small() -> FileOptions {
    FileOptions { cache_bytes: 64 << 10, ..FileOptions::default() }
}

#[tokio::test]
async fn nobody_waits_for_slow_servers_before_there_is_no_room() {
    let (tell, mut hears) = mpsc::unbounded_channel();
    let (address, servers) = Slow::serving(tell).await;
    let file = opened(&Arc::new(client(&address, Vec::new())), object(8), &small());
    for position in 0..TAKEN {
        assert!(is_over(pin!(write(&file, position))));
    }
    let mut waits = pin!(write(&file, TAKEN));
    assert!(!is_over(waits.as_mut()), "there is no room");
    // All that may be stored at a time are.
    let mut first = BTreeSet::new();
    while first.len() < 4 {
        match hears.recv().await.unwrap() {
            Heard::Node(NodeRequest::Update { segment, .. }) => first.insert(segment.0),
            other => panic!("{other:?}"),
        };
    }
    assert_eq!(first, [1, 2, 3, 4].into(), "those that were written first");
    assert!(!is_over(waits.as_mut()));
    servers.lock().unwrap().release();
    waits.await;
    file.sync().await.unwrap();
    assert!(file.inner.state().cache.is_empty());
    first.extend(changed(&mut hears));
    assert_eq!(first, (1..=8).collect());
    let counts = file.counts();
    assert_eq!((counts.write_backs, counts.in_place_bytes), (8, 8 * WRITTEN.len() as u64));
    assert!((4..8).contains(&counts.evictions), "{counts:?}");
}

#[tokio::test]
async fn what_is_cut_while_it_is_stored_behind_the_writers_does_not_come_back() {
    let (tell, mut hears) = mpsc::unbounded_channel();
    let (address, servers) = Slow::serving(tell.clone()).await;
    let mut client = client(&address, Vec::new());
    let store = faked::metadata(&mut client, object(8), tell).await;
    let file = opened(&Arc::new(client), object(8), &small());
    for position in (0..TAKEN).rev() {
        assert!(is_over(pin!(write(&file, position))));
    }
    while servers.lock().unwrap().waiting.len() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let kept = 2 * file.inner.segment_bytes;
    let mut cutting = pin!(file.truncate(kept));
    assert!(!is_over(cutting.as_mut()));
    for position in [0, 2] {
        write(&file, position).await;
    }
    assert!(!is_over(cutting.as_mut()), "what is on its way would make it longer again");
    servers.lock().unwrap().release();
    cutting.await.unwrap();
    changed(&mut hears);
    assert_eq!((file.size(), store.lock().unwrap().object.object.size), (kept, kept));
    file.sync().await.unwrap();
    assert!(changed(&mut hears).is_subset(&[1, 2].into()));
    assert!(file.inner.state().cache.is_empty());
    assert!(file.read_at(kept, 100).await.unwrap().is_empty());
    assert_eq!(file.append(b"x").await.unwrap(), kept);
}

#[tokio::test]
async fn with_the_handle_all_that_it_stores_ends() {
    let (tell, _hears) = mpsc::unbounded_channel();
    let (address, servers) = Slow::serving(tell).await;
    let file = opened(&Arc::new(client(&address, Vec::new())), object(8), &small());
    for position in 0..TAKEN {
        assert!(is_over(pin!(write(&file, position))));
    }
    while servers.lock().unwrap().waiting.len() < 4 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let inner = Arc::downgrade(&file.inner);
    drop(file);
    // Nothing is ever answered.
    while inner.strong_count() > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}
