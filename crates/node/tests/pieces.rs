//! Reads of several pieces of one coded segment: one stream, one credit, one account.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use common::{Client, Cluster, WITHIN, blocks, open, piece};
use std::time::Duration;
use steadfast_disk::Granule;
use steadfast_net::{Event, Stream};
use steadfast_node::Node;
use steadfast_protocol::{
    BlockIndex, DeviceId, IndexRanges, SegmentId, Version,
    layout::PIECES_PER_HOLDER_MAX,
    message::{
        self, DeviceHealth, Fault, NodeAnswer, NodeEvent, NodeFault, NodeRequest, ReadPiece, RefusalReason,
        Want,
    },
};

const BLOCK: usize = 64 << 10;

/// Stores these blocks under a segment, their bytes telling segment and index.
async fn store(
    client: &Client,
    device: DeviceId,
    segment: u64,
    indices: impl IntoIterator<Item = BlockIndex>,
) {
    let open = open(device, segment, BLOCK as u32, Granule::KIB_64);
    client.write(open, &blocks(segment, indices, BLOCK)).await.unwrap();
}

fn some(indices: impl IntoIterator<Item = BlockIndex>) -> Want {
    Want::Blocks(indices.into_iter().collect())
}

async fn next_index(stream: &mut Stream) -> BlockIndex {
    match tokio::time::timeout(Duration::from_secs(20), stream.recv()).await.expect("a slice") {
        Some(Event::Data { body, .. }) => match message::decode(&body).unwrap() {
            NodeEvent::Slice(slice) => slice.index,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn pieces_come_one_after_the_other_under_one_credit_and_one_account() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    store(&client, device, 1, [3, 4, 9]).await;
    store(&client, device, 2, 10..13).await;
    store(&client, device, 1, [1]).await;
    store(&client, device, 3, [5, 6]).await;
    let pieces = || vec![piece(2, some([10, 12])), piece(1, some([1, 3, 9])), piece(3, Want::All)];

    // Three blocks' worth of credit ends within the second piece, each block as it lies.
    let mut stream = client.open_read_pieces(device, pieces(), 3 * BLOCK as u32);
    for expected in [10, 12, 3] {
        assert_eq!(next_index(&mut stream).await, expected);
    }
    // A node that sent on without credit would have by the time that it answered others.
    for _ in 0..3 {
        client.status().await;
    }
    assert!(tokio::time::timeout(Duration::from_millis(20), stream.recv()).await.is_err());
    stream.grant(3 * BLOCK as u32);
    for expected in [9, 1, 5] {
        assert_eq!(next_index(&mut stream).await, expected);
    }
    stream.grant(BLOCK as u32);
    assert_eq!(next_index(&mut stream).await, 6);
    let Some(Event::End(body)) = stream.recv().await else { panic!("it has all") };
    let NodeAnswer::Read(done) = message::decode(&body).unwrap() else { panic!() };
    assert_eq!((done.sent_bytes, done.medium_bytes), (7 * BLOCK as u64, 7 * BLOCK as u64));

    let owner = |index| match index {
        10.. => 2,
        5 | 6 => 3,
        _ => 1,
    };
    let (read, done) = client.read_pieces(device, pieces(), Granule::KIB_64, owner).await.unwrap();
    let mut written = blocks(1, [1, 3, 9], BLOCK);
    written.extend(blocks(2, [10, 12], BLOCK));
    written.extend(blocks(3, [5, 6], BLOCK));
    assert!(read == written);
    assert_eq!((done.sent_bytes, done.corrupt_blocks), (7 * BLOCK as u64, 0));
}

#[tokio::test]
async fn a_piece_that_is_missing_is_left_out_and_one_held_twice_sent_once() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    store(&client, device, 1, 0..4).await;
    store(&client, device, 2, 2..6).await;
    let other_version = ReadPiece { version: Version(8), ..piece(2, Want::All) };
    let pieces = vec![piece(77, some([40])), other_version, piece(1, some([0, 3, 50]))];
    let (read, done) = client.read_pieces(device, pieces, Granule::KIB_64, |_| 1).await.unwrap();
    assert!(read == blocks(1, [0, 3], BLOCK));
    assert_eq!((done.sent_bytes, done.corrupt_blocks), (2 * BLOCK as u64, 0));

    // New contents of 2 and 3 first: the old ones, not trimmed yet, are not sent.
    let pieces = vec![piece(2, some([2, 3])), piece(1, Want::All)];
    let owner = |index| if index == 2 || index == 3 { 2 } else { 1 };
    let (read, _) = client.read_pieces(device, pieces, Granule::KIB_64, owner).await.unwrap();
    let mut written = blocks(1, [0, 1], BLOCK);
    written.extend(blocks(2, [2, 3], BLOCK));
    assert!(read == written);

    let gone = vec![piece(77, Want::All), piece(78, Want::All)];
    let answer = client.read_pieces(device, gone, Granule::KIB_64, |_| 0).await;
    assert_eq!(answer, Err(Fault::Node(NodeFault::UnknownSegment { device, segment: SegmentId(77) })));
}

#[tokio::test]
async fn requests_that_name_pieces_wrongly_are_refused() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    store(&client, device, 1, 0..4).await;
    let smaller = open(device, 2, 4096, Granule::KIB_4);
    client.write(smaller, &blocks(2, 0..4, 4096)).await.unwrap();
    let many = |count: usize| (1..=count as u64).map(|segment| piece(segment, Want::All)).collect::<Vec<_>>();
    for (pieces, given) in [(Vec::new(), 0), (many(PIECES_PER_HOLDER_MAX + 1), PIECES_PER_HOLDER_MAX + 1)] {
        let given = given as u32;
        let answer = client.call(&NodeRequest::Read { device, pieces }, 0).await;
        assert_eq!(answer, Err(Fault::Node(NodeFault::Pieces { given })));
    }
    for (pieces, named) in [
        (vec![piece(1, Want::All), piece(1, some([1]))], "twice"),
        (vec![piece(1, Want::All), piece(2, Want::All)], "another size"),
    ] {
        let answer = client.call(&NodeRequest::Read { device, pieces }, 0).await;
        assert!(
            matches!(&answer, Err(Fault::Node(NodeFault::Invalid(text))) if text.contains(named)),
            "{answer:?}"
        );
    }
    // As many as are allowed, nearly all of them missing.
    let mut pieces = many(PIECES_PER_HOLDER_MAX);
    pieces.remove(1);
    let (read, _) = client.read_pieces(device, pieces, Granule::KIB_64, |_| 1).await.unwrap();
    assert!(read == blocks(1, 0..4, BLOCK));
}

#[tokio::test]
async fn a_cancel_within_the_second_piece_stops_the_medium() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    store(&client, device, 1, 0..2).await;
    store(&client, device, 2, 2..60).await;
    client.emulate(device, "rate=4MB").await.unwrap();
    let before = client.status().await.devices[0].medium_read_bytes;
    let pieces = vec![piece(1, Want::All), piece(2, Want::Blocks(IndexRanges::from(2..60)))];
    let mut stream = client.open_read_pieces(device, pieces, 4 << 20);
    for expected in 0..3 {
        assert_eq!(next_index(&mut stream).await, expected);
    }
    stream.cancel();
    let done = loop {
        match stream.recv().await.unwrap() {
            Event::End(body) => match message::decode(&body).unwrap() {
                NodeAnswer::Read(done) => break done,
                other => panic!("{other:?}"),
            },
            Event::Data { .. } => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(done.sent_bytes <= done.medium_bytes && done.medium_bytes < 60 * BLOCK as u64, "{done:?}");
    let moved = client.status().await.devices[0].medium_read_bytes - before;
    // Tables of checksums are read too; no further data is, however long one waits.
    assert!(moved <= done.medium_bytes + (512 << 10), "{moved} bytes for {done:?}");
    client.read(device, 1, some([0]), Granule::KIB_64).await.unwrap();
    let later = client.status().await.devices[0].medium_read_bytes - before;
    assert!(later <= moved + (128 << 10), "{later} after {moved}");
}

/// What a read names is held while its pieces are looked up: it has its place among the streams from then on.
#[tokio::test]
async fn reads_that_look_their_pieces_up_take_places_among_the_streams() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    options.limits.streams_max = 20;
    let most = options.limits.streams_max;
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    store(&client, device, 1, [1]).await;
    client.status_when("written", |status| status.streams == 0).await;
    // The device answers nobody where its pieces are, once the first waits for the medium.
    client.emulate(device, "stall").await.unwrap();
    let read = |from: &Client| from.open_read(device, 1, Want::All, 1 << 20);
    // No connection has all the places.
    let mut others = Vec::new();
    for _ in 0..most {
        others.push(Client::to(&node).await);
    }
    let mut first = read(&others[0]);
    client.status_when("stalled", |status| status.devices[0].health == DeviceHealth::Stalled).await;
    let looking: Vec<Stream> = others[1..].iter().map(read).collect();
    client.status_when("all counted", |status| status.streams == most).await;
    for _ in 0..3 {
        let refused =
            tokio::time::timeout(WITHIN, client.drain(&mut read(&client))).await.expect("an answer");
        let overloaded = matches!(refused, Err(Fault::Refused { reason: RefusalReason::Overloaded, .. }));
        assert!(overloaded, "{refused:?}");
    }
    // Who goes away gives its place back.
    looking.iter().for_each(Stream::cancel);
    client.status_when("all given up", |status| status.streams == 1).await;
    let mut next = read(&others[1]);
    client.status_when("another", |status| status.streams == 2).await;
    client.emulate(device, "off").await.unwrap();
    for stream in [&mut first, &mut next] {
        let bytes = tokio::time::timeout(WITHIN, client.drain(stream)).await.expect("it goes on");
        assert_eq!(bytes, Ok(BLOCK as u64));
    }
    node.stop().await;
}
