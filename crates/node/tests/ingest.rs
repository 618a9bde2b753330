//! A node as the primary of segments: what it stores, what it refuses, and that nothing is left of what failed.

mod common;

use bytes::Bytes;
use common::{Client, Cluster, WITHIN};
use steadfast_codes::mds;
use steadfast_disk::{Granule, checksum};
use steadfast_net::{Event, Stream};
use steadfast_node::Node;
use steadfast_protocol::{
    IndexRanges, IntentId, SegmentId, Version,
    message::{
        self, Fault, IngestOpen, Ingested, NodeAnswer, NodeFault, NodePush, NodeRequest, Place, Slice, Want,
    },
};

const BLOCK: usize = 512 << 10;
const GRANULE: Granule = Granule::KIB_4;

/// 1 MiB under (3, 2): two data chunks and one of parity, a block each.
fn open(node: &Node, segment: u64) -> IngestOpen {
    let places = (0..).zip(node.devices()).map(|(domain, device)| Place { device, domain });
    IngestOpen {
        segment: SegmentId(segment),
        version: Version(9),
        intent: IntentId(1),
        length: 2 * BLOCK as u64,
        policy: "parity:code=rs(3,2),segment=1MiB".to_owned(),
        seed: 0,
        domains: 3,
        devices: places.collect(),
        spares: Vec::new(),
        patience_ms: 60_000,
    }
}

fn blocks() -> Vec<Vec<u8>> {
    (0..2).map(|block| (0..BLOCK).map(|at| (at * 7 + block * 131 + at / 4096) as u8).collect()).collect()
}

async fn hand_over(stream: &Stream, open: &IngestOpen, index: u32, block: &[u8]) {
    let sums = checksum::sums(block, GRANULE, open.segment, open.version, index);
    for (number, payload) in block.chunks(256 << 10).enumerate() {
        let sums = sums[number * 64..(number + 1) * 64].to_vec();
        let slice = Slice { index, offset: (number * (256 << 10)) as u32, sums };
        let push = message::encode(&NodePush::Slice(slice));
        // It may have answered already.
        let _ = stream.sender().send(push, Bytes::copy_from_slice(payload)).await;
    }
}

async fn next(stream: &mut Stream) -> Event {
    let event = tokio::time::timeout(WITHIN, stream.recv());
    event.await.expect("an event in time").expect("a stream ends with an answer")
}

/// A segment that the node takes, with credit for all of it, or not.
async fn ask(client: &Client, open: &IngestOpen) -> Result<Stream, Fault> {
    let mut stream = client.open_request(&NodeRequest::Ingest(open.clone()), 0);
    match next(&mut stream).await {
        Event::Credit(bytes) => {
            assert_eq!(bytes as usize, 2 * BLOCK);
            Ok(stream)
        }
        Event::Failed(fault) => Err(fault),
        other => panic!("{other:?}"),
    }
}

/// What comes in the end.
async fn end(mut stream: Stream) -> Result<Ingested, Fault> {
    loop {
        match next(&mut stream).await {
            Event::Data { .. } => {}
            Event::End(body) => {
                let NodeAnswer::Ingested(ingested) = message::decode(&body).expect("an answer") else {
                    panic!()
                };
                return Ok(ingested);
            }
            Event::Failed(fault) => return Err(fault),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn chunks_and_parity_are_stored_from_what_came_once() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(3)).await.unwrap();
    let client = Client::to(&node).await;
    let open = open(&node, 5);
    let blocks = blocks();
    let stream = ask(&client, &open).await.unwrap();
    for (index, block) in (0..).zip(&blocks) {
        hand_over(&stream, &open, index, block).await;
    }
    let ingested = end(stream).await.unwrap();
    assert_eq!((ingested.pushed_blocks, ingested.abandoned.len()), (3, 0));
    let code = mds::Code::new(mds::Kind::ReedSolomon, 2, 1).unwrap();
    let mut parity = vec![vec![0u8; BLOCK]];
    code.encode(
        &blocks.iter().map(|block| &block[..]).collect::<Vec<_>>(),
        &mut parity.iter_mut().map(|block| &mut block[..]).collect::<Vec<_>>(),
    )
    .unwrap();
    for (index, expected) in (0..).zip(blocks.iter().chain(&parity)) {
        let device = node.devices()[index as usize];
        assert_eq!(ingested.holders[index as usize], (device, IndexRanges::from(index..index + 1)));
        let (read, _) = client.read(device, 5, Want::All, GRANULE).await.unwrap();
        assert!(read[&index] == *expected, "chunk {index}");
    }
    node.stop().await;
}

#[tokio::test]
async fn what_is_wrong_is_refused_and_leaves_room_for_the_next() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(3);
    // One segment at a time.
    options.ingest_budget_bytes = 2 << 20;
    let node = Node::start(options).await.unwrap();
    let client = Client::to(&node).await;
    let blocks = blocks();

    let mut wrong = open(&node, 1);
    wrong.policy = "parity:code=rs(3,3)".to_owned();
    assert!(matches!(ask(&client, &wrong).await, Err(Fault::Node(NodeFault::Invalid(_)))));

    // Damaged on the way: found before parity is made of it.
    let damaged = open(&node, 2);
    let stream = ask(&client, &damaged).await.unwrap();
    let mut block = blocks[0].clone();
    let sums = checksum::sums(&block, GRANULE, damaged.segment, damaged.version, 0);
    block[5] ^= 1;
    let slice = Slice { index: 0, offset: 0, sums: sums[..64].to_vec() };
    let push = message::encode(&NodePush::Slice(slice));
    stream.sender().send(push, Bytes::copy_from_slice(&block[..256 << 10])).await.unwrap();
    assert_eq!(end(stream).await, Err(Fault::Node(NodeFault::Damaged { index: 0 })));

    // Out of order, and something else.
    let order = open(&node, 3);
    let stream = ask(&client, &order).await.unwrap();
    hand_over(&stream, &order, 1, &blocks[1]).await;
    assert!(matches!(end(stream).await, Err(Fault::Protocol(_))));
    let stream = ask(&client, &order).await.unwrap();
    stream.sender().send(message::encode(&NodePush::Finish), Bytes::new()).await.unwrap();
    assert!(matches!(end(stream).await, Err(Fault::Protocol(_))));

    // A second one while there is memory for one, and a client that says nothing more.
    let (first, second) = (open(&node, 6), open(&node, 7));
    let first = IngestOpen { patience_ms: 3000, ..first };
    let silent = ask(&client, &first).await.unwrap();
    hand_over(&silent, &first, 0, &blocks[0]).await;
    assert!(matches!(ask(&client, &second).await, Err(Fault::Refused { .. })));
    assert_eq!(end(silent).await, Err(Fault::DeadlinePassed));

    // One that goes away.
    let gone = ask(&client, &first).await.unwrap();
    gone.cancel();
    assert_eq!(end(gone).await, Err(Fault::Cancelled));
    let last = open(&node, 8);
    let stream = ask(&client, &last).await.unwrap();
    for (index, block) in (0..).zip(&blocks) {
        hand_over(&stream, &last, index, block).await;
    }
    assert!(end(stream).await.is_ok());
    assert_eq!(client.status().await.streams, 0);
    node.stop().await;
}
