//! Reads, writes and changes over TCP, on files.

mod common;

use bytes::Bytes;
use common::{Client, Cluster, WITHIN, blocks, open};
use steadfast_disk::Granule;
use steadfast_net::Event;
use steadfast_node::Node;
use steadfast_protocol::{
    DeviceId, Epoch, IndexRanges, SegmentId, Version,
    message::{
        self, DeviceHealth, Fault, FrameKind, Header, NodeAnswer, NodeEvent, NodeFault, NodePush,
        NodeRequest, ReadPiece, RefusalReason, Slice, Want,
    },
};
use tokio::io::AsyncWriteExt;

#[tokio::test]
async fn what_was_written_is_read_sealed_and_deleted() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(2)).await.unwrap();
    let client = Client::to(&node).await;
    let sizes = [
        (64 << 10, Granule::KIB_64),
        (1 << 20, Granule::KIB_64),
        (100_000, Granule::KIB_4),
        (1, Granule::KIB_4),
    ];
    for (position, (bytes, granule)) in sizes.into_iter().enumerate() {
        let (device, segment) = (node.devices()[position % 2], position as u64 + 1);
        let written = blocks(segment, [3, 4, 9, 1], bytes);
        let durable = client.write(open(device, segment, bytes as u32, granule), &written).await.unwrap();
        assert_eq!(durable, written.keys().copied().collect());
        let (read, done) = client.read(device, segment, Want::All, granule).await.unwrap();
        assert!(read == written, "segment {segment} differs");
        assert_eq!((done.sent_bytes, done.corrupt_blocks), (4 * bytes as u64, 0));
        // Some of them, in the order they lie; those it does not hold are left out.
        let want = Want::Blocks([4, 1, 77].into_iter().collect());
        let (read, _) = client.read(device, segment, want, granule).await.unwrap();
        assert_eq!(read.keys().copied().collect::<Vec<_>>(), [1, 4]);
        assert_eq!(read[&4], written[&4]);

        let seal = NodeRequest::Seal { device, segment: SegmentId(segment), keep: IndexRanges::from(3..5) };
        assert_eq!(client.call(&seal, 1).await, Ok(NodeAnswer::Done));
        assert_eq!(client.describe(device, segment).await, Ok((IndexRanges::from(3..5), true)));
        let stale = client.call(&NodeRequest::Delete { device, segment: SegmentId(segment) }, 0).await;
        assert_eq!(stale, Err(Fault::Node(NodeFault::StaleEpoch { given: 0, current: 1 })));
        for _ in 0..2 {
            let delete = NodeRequest::Delete { device, segment: SegmentId(segment) };
            assert_eq!(client.call(&delete, 1).await, Ok(NodeAnswer::Done));
        }
        let unknown = Fault::Node(NodeFault::UnknownSegment { device, segment: SegmentId(segment) });
        assert_eq!(client.describe(device, segment).await, Err(unknown.clone()));
        assert_eq!(client.read(device, segment, Want::All, granule).await.unwrap_err(), unknown);
    }
    assert_eq!(client.status().await.streams, 0, "nothing but the question is open");
    node.stop().await;
}

#[tokio::test]
async fn blocks_outlive_the_node_and_a_writer_that_comes_back_goes_on() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let (name, device) = (node.id(), node.devices()[0]);
    let written = blocks(5, 0..10, 64 << 10);
    let open = open(device, 5, 64 << 10, Granule::KIB_64);
    Client::to(&node).await.write(open.clone(), &written).await.unwrap();
    node.stop().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    assert_eq!((node.id(), node.devices()), (name, vec![device]));
    let client = Client::to(&node).await;
    let (read, _) = client.read(device, 5, Want::All, Granule::KIB_64).await.unwrap();
    assert!(read == written);
    // An index is never taken twice, over streams too.
    let mut writer = client.writer(open.clone()).await;
    writer.push(3, &written[&3]).await.unwrap();
    let fault = writer.answer().await.unwrap_err();
    assert!(matches!(&fault, Fault::Protocol(text) if text.contains("never reused")), "{fault}");
    let more = blocks(5, 20..22, 64 << 10);
    assert_eq!(client.write(open, &more).await.unwrap(), IndexRanges::from(20..22));
}

/// What an asker says before its stream has begun is not lost.
#[tokio::test]
async fn grants_and_ends_that_come_early_count() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let mut nothing = client.writer(open(device, 1, 64 << 10, Granule::KIB_64)).await;
    assert_eq!(nothing.finish().await.unwrap(), IndexRanges::new());
    client.write(open(device, 1, 64 << 10, Granule::KIB_64), &blocks(1, 0..2, 64 << 10)).await.unwrap();
    let mut read = client.open_read(device, 1, Want::All, 0);
    read.grant(64 << 10);
    read.grant(64 << 10);
    for _ in 0..2 {
        let event = tokio::time::timeout(WITHIN, read.recv()).await;
        assert!(matches!(event.unwrap(), Some(Event::Data { .. })));
    }
}

#[tokio::test]
async fn cancel_of_a_read_stops_the_medium() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let written = blocks(1, 0..64, 64 << 10);
    client.write(open(device, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    // 64 KiB every 65 ms: nearly all of it is still to be read when the cancel comes.
    client.emulate(device, "rate=1MB").await.unwrap();
    let before = client.status().await.devices[0].medium_read_bytes;
    let mut stream = client.open_read(device, 1, Want::All, 4 << 20);
    let Some(Event::Data { .. }) = stream.recv().await else { panic!() };
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
    // One slice was sent; at most four were being held, one of them on the medium. More only where this task was held up.
    assert!(done.medium_bytes <= 32 * (64 << 10) && done.sent_bytes <= done.medium_bytes, "{done:?}");
    let moved = client.status().await.devices[0].medium_read_bytes - before;
    // Tables of checksums are read too; no further data is, however often one asks.
    assert!(moved <= done.medium_bytes + (256 << 10), "{moved} bytes for {done:?}");
    client.read(device, 1, Want::Blocks(IndexRanges::from(0..1)), Granule::KIB_64).await.unwrap();
    let later = client.status().await.devices[0].medium_read_bytes - before;
    assert!(later <= moved + (128 << 10), "{later} after {moved}");
}

/// What was granted and is not being read is taken back; what is, is sent.
#[tokio::test]
async fn finish_of_a_read_takes_back_what_is_not_being_read() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let written = blocks(1, 0..64, 64 << 10);
    client.write(open(device, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    // 64 KiB every 65 ms: nearly all of it is still to be read when the reader has enough.
    client.emulate(device, "rate=1MB").await.unwrap();
    let mut stream = client.open_read(device, 1, Want::All, 4 << 20);
    let (mut received, mut finished) = (0, false);
    let done = loop {
        match stream.recv().await.unwrap() {
            Event::Data { body, payload } => {
                let NodeEvent::Slice(slice) = message::decode(&body).unwrap() else { panic!() };
                assert!(payload == written[&slice.index], "block {}", slice.index);
                received += payload.len() as u64;
                if !std::mem::replace(&mut finished, true) {
                    stream.send(message::encode(&NodePush::Finish), Bytes::new()).await.unwrap();
                }
            }
            Event::End(body) => match message::decode(&body).unwrap() {
                NodeAnswer::Read(done) => break done,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((done.sent_bytes, done.medium_bytes), (received, received), "what was read was sent");
    // One block, where its lane had not begun with the next, to six; more only where this task was held up.
    assert!(received <= 32 * (64 << 10), "{received} bytes");
    // Nothing else is data to a read.
    let mut stream = client.open_read(device, 1, Want::All, 0);
    let slice = NodePush::Slice(Slice { index: 0, offset: 0, sums: Vec::new() });
    stream.send(message::encode(&slice), Bytes::new()).await.unwrap();
    let refused = stream.recv().await.unwrap();
    assert!(
        matches!(&refused, Event::Failed(Fault::Protocol(text)) if text.contains("no data")),
        "{refused:?}"
    );
}

/// Design decision 10 by the media's own counters: once the answers to CANCEL have come nothing is read any more, on a
/// device with one stream or with four, whatever credit they had left.
#[tokio::test]
async fn after_cancels_the_media_stand_still() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(2);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let client = Client::to(&node).await;
    let devices = node.devices().to_vec();
    let block = 64u64 << 10;
    for &device in &devices {
        let written = blocks(1, 0..64, 64 << 10);
        client.write(open(device, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
        client.emulate(device, "rate=4MB").await.unwrap();
    }
    let counters = async || -> Vec<u64> {
        client.status().await.devices.iter().map(|device| device.medium_read_bytes).collect()
    };
    let before = counters().await;
    let mut streams = Vec::new();
    for (device, count) in devices.iter().zip([1, 4]) {
        for _ in 0..count {
            streams.push((*device, client.open_read(*device, 1, Want::All, 4 << 20)));
        }
    }
    for (_, stream) in &mut streams {
        let Some(Event::Data { .. }) = stream.recv().await else { panic!() };
    }
    streams.iter().for_each(|(_, stream)| stream.cancel());
    let mut said: std::collections::BTreeMap<DeviceId, u64> = Default::default();
    for (device, mut stream) in streams {
        loop {
            match stream.recv().await.unwrap() {
                Event::End(body) => {
                    let NodeAnswer::Read(done) = message::decode(&body).unwrap() else { panic!() };
                    *said.entry(device).or_default() += done.medium_bytes;
                    break;
                }
                Event::Data { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let stopped = counters().await;
    // Sixteen blocks' time at 4 MB/s: a stream that went on would have read more meanwhile.
    tokio::time::sleep(std::time::Duration::from_millis(260)).await;
    assert_eq!(counters().await, stopped, "the media were read after all streams had stopped");
    let reports = client.status().await.devices;
    for (report, before) in reports.iter().zip(before) {
        let moved = report.medium_read_bytes - before;
        // Tables of checksums beside what the streams account for: with 64 blocks a device and four streams on one,
        // reading on would be 16 MiB.
        let accounted = said[&report.device];
        assert!(
            moved >= accounted && moved <= accounted + 8 * block,
            "{moved} moved, {accounted} accounted for"
        );
    }
}

#[tokio::test]
async fn cancel_of_a_write_answers_with_what_is_durable() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let mut writer = client.writer(open(device, 1, 64 << 10, Granule::KIB_64)).await;
    let written = blocks(1, 0..40, 64 << 10);
    writer.push(0, &written[&0]).await.unwrap();
    while writer.confirmed.is_empty() {
        assert!(writer.event().await.is_none());
    }
    client.emulate(device, "rate=1MB").await.unwrap();
    writer.push(1, &written[&1]).await.unwrap();
    writer.push(2, &written[&2]).await.unwrap();
    writer.stream.cancel();
    let durable = writer.answer().await.unwrap();
    assert!(durable.contains(0) && durable.count() <= 3, "{durable}");
    // What was confirmed is there; what was withdrawn is not, once the device is quiet.
    let (held, sealed) = client.describe(device, 1).await.unwrap();
    assert_eq!((held, sealed), (durable, false));
    client.status_when("all streams gone", |status| status.streams == 0).await;
}

/// A writer counts what a server confirmed that is gone for lost, and a reader waits for one that restarts: neither does so after a fault.
#[tokio::test]
async fn a_node_that_stops_is_gone_and_says_of_no_stream_that_it_failed() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let mut writer = client.writer(open(device, 1, 64 << 10, Granule::KIB_64)).await;
    writer.push(0, &blocks(1, 0..1, 64 << 10)[&0]).await.unwrap();
    while writer.confirmed.is_empty() {
        assert!(writer.event().await.is_none());
    }
    let mut reader = client.open_read(device, 1, Want::All, 0);
    node.stop().await;
    for stream in [&mut writer.stream, &mut reader] {
        let last = loop {
            match tokio::time::timeout(WITHIN, stream.recv()).await.unwrap() {
                Some(Event::Credit(_) | Event::Data { .. }) => {}
                last => break last,
            }
        };
        assert!(matches!(last, Some(Event::Lost(_))), "{last:?}");
    }
}

#[tokio::test]
async fn damage_and_nonsense_get_typed_answers_and_hurt_nobody() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let nobody = DeviceId(12345);
    let unknown = Err(Fault::Node(NodeFault::UnknownDevice(nobody)));
    assert_eq!(client.call(&NodeRequest::DropCaches { device: nobody }, 0).await, unknown);
    assert_eq!(client.call(&NodeRequest::DropCaches { device }, 0).await, Ok(NodeAnswer::Done));
    assert_eq!(client.describe(nobody, 1).await.map(|_| ()), unknown.map(|_| ()));
    let refused = client.emulate(device, "rate=1MB").await.unwrap_err();
    assert!(refused.to_string().contains("--emulate"), "{refused}");

    let garbage = steadfast_net::Open { body: vec![0xff; 40], ..Default::default() };
    let answered = client.connection.call(garbage).await.unwrap_err();
    assert!(matches!(answered, steadfast_net::CallError::Fault(Fault::Protocol(_))), "{answered}");

    let good = blocks(1, 0..1, 64 << 10);
    let mut writer = client.writer(open(device, 1, 64 << 10, Granule::KIB_64)).await;
    writer.slice(0, 0, &good[&0], vec![0xbad]).await.unwrap();
    assert_eq!(writer.answer().await, Err(Fault::Node(NodeFault::Damaged { index: 0 })));
    let mut writer = client.writer(open(device, 1, 64 << 10, Granule::KIB_64)).await;
    writer.slice(0, 4096, &good[&0][4096..], vec![1]).await.unwrap();
    assert!(matches!(writer.answer().await, Err(Fault::Protocol(_))));
    let mut writer = client.writer(open(device, 1, 64 << 10, Granule::KIB_64)).await;
    writer.stream.send(vec![9, 9, 9], bytes::Bytes::new()).await.unwrap();
    assert!(matches!(writer.answer().await, Err(Fault::Protocol(_))));
    let mut writer = client.writer(open(device, 1, 64 << 10, Granule::KIB_64)).await;
    writer.push(0, &good[&0]).await.unwrap();
    assert_eq!(writer.finish().await.unwrap(), IndexRanges::from(0..1));

    // Another version of the segment is another segment.
    let segment = SegmentId(1);
    let pieces = vec![ReadPiece { segment, version: Version(8), want: Want::All }];
    let read = NodeRequest::Read { device, pieces };
    assert_eq!(client.call(&read, 0).await, Err(Fault::Node(NodeFault::UnknownSegment { device, segment })));
    let wrong = message::WriteOpen { granule_bytes: 5000, ..open(device, 2, 64 << 10, Granule::KIB_64) };
    assert!(matches!(client.writer(wrong).await.answer().await, Err(Fault::Protocol(_))));
    let empty = message::WriteOpen { block_bytes: 0, ..open(device, 2, 64 << 10, Granule::KIB_64) };
    assert!(client.writer(empty).await.answer().await.is_err());

    // Payload without credit costs the peer its connection, and nobody else theirs.
    let other = Client::to(&node).await;
    let writer = other.writer(open(device, 3, 64 << 10, Granule::KIB_64)).await;
    let body = message::encode(&NodePush::Slice(Slice { index: 0, offset: 0, sums: vec![0; 4] }));
    for _ in 0..64 {
        let _ = writer.stream.send_now(body.clone(), bytes::Bytes::from(vec![0; 256 << 10]));
    }
    client.status_when("all streams gone", |status| status.streams == 0).await;
    let (read, _) = client.read(device, 1, Want::All, Granule::KIB_64).await.unwrap();
    assert!(read == good);
}

/// One place that a disk does not give costs the block that lies there, and nothing else that the stream asks for.
#[tokio::test]
async fn a_block_that_cannot_be_read_is_left_out_of_its_stream() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let (kept, lost) = (blocks(1, 0..4, 64 << 10), blocks(2, [9], 64 << 10));
    for (segment, written) in [(1, &kept), (2, &lost)] {
        client.write(open(device, segment, 64 << 10, Granule::KIB_64), written).await.unwrap();
    }
    // The file ends before what was written last.
    let space = cluster.dirs(1)[0].join("space");
    let bytes = std::fs::read(&space).unwrap();
    let place = |block: &[u8]| bytes.chunks(4096).position(|page| page == &block[..4096]).unwrap() * 4096;
    let end = place(&lost[&9]);
    assert!(kept.values().all(|block| place(block) < end));
    std::fs::OpenOptions::new().write(true).open(&space).unwrap().set_len(end as u64).unwrap();

    let pieces = vec![common::piece(2, Want::All), common::piece(1, Want::All)];
    let segment_of = |index| if index == 9 { 2 } else { 1 };
    let (read, done) = client.read_pieces(device, pieces, Granule::KIB_64, segment_of).await.unwrap();
    assert!(read == kept);
    assert_eq!((done.sent_bytes, done.corrupt_blocks), (4 * (64 << 10), 1));
    let (read, _) = client.read(device, 2, Want::All, Granule::KIB_64).await.unwrap();
    assert!(read.is_empty());
}

#[tokio::test]
async fn a_stalled_device_holds_up_nobody_else_and_not_the_stop() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(2);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let devices = node.devices();
    let client = Client::to(&node).await;
    let written = blocks(1, 0..8, 64 << 10);
    for &device in &devices {
        client.write(open(device, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    }
    client.emulate(devices[0], "stall").await.unwrap();
    let mut stalled = client.open_read(devices[0], 1, Want::All, 1 << 20);
    let (read, _) = client.read(devices[1], 1, Want::All, Granule::KIB_64).await.unwrap();
    assert!(read == written);
    let health = |status: &message::NodeStatus, device| {
        status.devices.iter().find(|report| report.device == device).unwrap().health
    };
    let status =
        client.status_when("stalled", |status| health(status, devices[0]) == DeviceHealth::Stalled).await;
    assert_eq!(health(&status, devices[1]), DeviceHealth::Ok);
    // It gives all it was asked once it answers again.
    client.emulate(devices[0], "off").await.unwrap();
    let mut slices = 0;
    while let Some(Event::Data { .. }) = stalled.recv().await {
        slices += 1;
    }
    assert_eq!(slices, 8);
    client.emulate(devices[0], "stall").await.unwrap();
    let _stalled = client.open_read(devices[0], 1, Want::All, 1 << 20);
    client.status_when("stalled", |status| health(status, devices[0]) == DeviceHealth::Stalled).await;
    // Who asked for chunks there and gave up, or waited as long as it would, takes no place among the streams.
    let segment = SegmentId(1);
    let versions = NodeRequest::ChunkVersions { device: devices[0], segment };
    let rows = NodeRequest::ReadRows(message::ReadRows {
        device: devices[0],
        segment,
        offset: 0,
        length: 64 << 10,
        at: message::RowsAt::Newest,
    });
    let mut asked = Vec::new();
    for request in [&versions, &rows] {
        asked.extend((0..50).map(|_| client.open_request(request, 1 << 20)));
    }
    client.status_when("all asked", |status| status.streams > 100).await;
    asked.iter().for_each(steadfast_net::Stream::cancel);
    client.status_when("all given up", |status| status.streams == 1).await;
    for request in [&versions, &rows] {
        let deadline = Some(std::time::Duration::from_millis(20));
        let body = message::encode(request);
        let open = steadfast_net::Open { body, deadline, credit: 1 << 20, ..Default::default() };
        let mut late = client.connection.open(open).unwrap();
        let answer = tokio::time::timeout(WITHIN, late.recv()).await.unwrap();
        assert!(matches!(answer, Some(Event::Failed(Fault::DeadlinePassed))), "{answer:?}");
    }
    let stopping = node.stop();
    tokio::time::timeout(WITHIN, stopping).await.expect("it stops");
}

/// Rows that are read, or wait for that or for their reader, count as what they take of the memory for reads: one connection has its share
/// of that.
#[tokio::test]
async fn rows_are_admitted_with_the_memory_that_they_take() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let [client, other] = [Client::to(&node).await, Client::to(&node).await];
    client.write(open(device, 1, 1 << 20, Granule::KIB_64), &blocks(1, 0..1, 1 << 20)).await.unwrap();
    client.status_when("written", |status| status.streams == 0).await;
    client.emulate(device, "stall").await.unwrap();
    let rows = NodeRequest::ReadRows(message::ReadRows {
        device,
        segment: SegmentId(1),
        offset: 0,
        length: 1 << 20,
        at: message::RowsAt::Newest,
    });
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let mut stream = client.open_request(&rows, 1 << 20);
        asked.spawn(async move { (stream.recv().await, stream) });
    }
    // Until it is known where they lie they take none.
    client.status_when("all wait for the device", |status| status.streams == 40).await;
    client.emulate(device, "latency=100ms").await.unwrap();
    // One after the other is read, and nearly all are to be by now: each is refused, or waits with its memory.
    let some = async {
        let mut refused = 0;
        while refused < 4 {
            let (answer, _stream) = asked.join_next().await.expect("32 MiB do for all of 40").unwrap();
            refused += u32::from(matches!(answer, Some(Event::Failed(Fault::Refused { .. }))));
        }
    };
    tokio::time::timeout(WITHIN, some).await.expect("some are refused");
    let mut others = other.open_request(&rows, 1 << 20);
    let answer = tokio::time::timeout(WITHIN, others.recv()).await.unwrap();
    assert!(!matches!(answer, None | Some(Event::Failed(_))), "another connection has its share: {answer:?}");
    client.emulate(device, "off").await.unwrap();
    node.stop().await;
}

#[tokio::test]
async fn a_full_device_refuses_blocks_and_still_reads_and_deletes() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let written = blocks(1, 0..8, 64 << 10);
    client.write(open(device, 1, 64 << 10, Granule::KIB_64), &written).await.unwrap();
    // Until nothing fits any more.
    let mut stored = 0u64;
    let fault = 'full: loop {
        let mut writer = client.writer(open(device, 2, 1 << 20, Granule::KIB_64)).await;
        for index in stored as u32.. {
            let block = blocks(2, [index], 1 << 20);
            if let Err(fault) = writer.push(index, &block[&index]).await {
                break 'full fault;
            }
            stored = u64::from(index) + 1;
            assert!(stored < 100, "it never was full");
        }
    };
    assert_eq!(fault, Fault::Node(NodeFault::Full(device)));
    let status = client.status_when("full", |status| status.devices[0].health == DeviceHealth::Full).await;
    assert!(status.devices[0].free_bytes < 8 << 20, "{status:?}");
    let (read, _) = client.read(device, 1, Want::All, Granule::KIB_64).await.unwrap();
    assert!(read == written);
    client.call(&NodeRequest::Delete { device, segment: SegmentId(2) }, 1).await.unwrap();
    assert_eq!(
        client
            .write(open(device, 3, 1 << 20, Granule::KIB_64), &blocks(3, 0..4, 1 << 20))
            .await
            .unwrap()
            .count(),
        4
    );
    client.status_when("room again", |status| status.devices[0].health == DeviceHealth::Ok).await;
}

#[tokio::test]
async fn many_writers_share_the_memory_and_the_last_are_told_when_to_return() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.write_budget_bytes = 8 << 20;
    options.capacity_bytes = Some(1 << 30);
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let (mut writers, mut granted, mut refused) = (Vec::new(), 0, 0);
    for segment in 0..12 {
        let mut writer = client.writer(open(device, segment, 1 << 20, Granule::KIB_64)).await;
        match writer.event().await {
            None => {
                assert!(writer.credit > 0);
                granted += writer.credit;
                writers.push((segment, writer));
            }
            Some(Err(Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms })) => {
                assert!(retry_after_ms > 0);
                refused += 1;
                // Nothing is left of it.
                let unknown = Fault::Node(NodeFault::UnknownSegment { device, segment: SegmentId(segment) });
                assert_eq!(client.describe(device, segment).await, Err(unknown));
            }
            Some(other) => panic!("{other:?}"),
        }
    }
    assert!(
        granted <= 8 << 20 && writers.len() >= 3 && refused >= 3,
        "{granted} {} {refused}",
        writers.len()
    );
    // Whoever was taken gets through, whatever the others do.
    for (segment, mut writer) in writers {
        for (index, block) in blocks(segment, 0..4, 1 << 20) {
            writer.push(index, &block).await.unwrap();
        }
        assert_eq!(writer.finish().await.unwrap(), IndexRanges::from(0..4));
    }
    let again = client.write(open(device, 50, 1 << 20, Granule::KIB_64), &blocks(50, 0..2, 1 << 20)).await;
    assert_eq!(again.unwrap().count(), 2);
}

#[tokio::test]
async fn writers_that_send_nothing_keep_nobody_from_writing() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.write_budget_bytes = 8 << 20;
    options.capacity_bytes = Some(1 << 30);
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let block_bytes = 128 << 10;
    let mut idle = Vec::new();
    for segment in 0..32 {
        let mut writer = client.writer(open(device, segment, block_bytes, Granule::KIB_64)).await;
        assert_eq!(writer.event().await, None, "writer {segment} is granted something");
        idle.push(writer);
    }
    let written = blocks(40, 0..8, block_bytes as usize);
    let durable = client.write(open(device, 40, block_bytes, Granule::KIB_64), &written).await.unwrap();
    assert_eq!(durable, IndexRanges::from(0..8));
    // Whoever waited begins when it likes.
    let mut first = idle.remove(0);
    for (index, block) in blocks(0, 0..4, block_bytes as usize) {
        first.push(index, &block).await.unwrap();
    }
    assert_eq!(first.finish().await.unwrap(), IndexRanges::from(0..4));
}

/// It has credit for all it asked for, and never takes a byte.
#[tokio::test]
async fn a_reader_that_takes_nothing_keeps_no_other_from_reading() {
    let cluster = Cluster::start().await;
    let node = Node::start(cluster.options(1)).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let written = blocks(1, 0..16, 256 << 10);
    client.write(open(device, 1, 256 << 10, Granule::KIB_64), &written).await.unwrap();
    let mut raw = tokio::net::TcpStream::connect(node.address()).await.unwrap();
    let hello = message::Hello {
        version: message::VERSION,
        features: 0,
        role: message::Role::Client,
        cluster: Some(node.cluster()),
    };
    let mut frames = frame(Header::new(FrameKind::Hello, 0), &message::encode(&hello));
    let body = message::encode(&NodeRequest::Read { device, pieces: vec![common::piece(1, Want::All)] });
    for number in 0..40 {
        let header = Header { credit: 1 << 30, ..Header::new(FrameKind::Open, 2 * number + 1) };
        frames.extend(frame(header, &body));
    }
    raw.write_all(&frames).await.unwrap();
    client.status_when("many are served", |status| status.streams >= 20).await;
    let (read, _) = client.read(device, 1, Want::All, Granule::KIB_64).await.unwrap();
    assert!(read == written);
}

/// They open a read each, grant nothing for it, and go on answering whether they are there.
#[tokio::test]
async fn readers_that_grant_nothing_keep_nobody_from_reading() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    // One slice for each of four streams.
    options.limits.reading_bytes_max = 1 << 20;
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let written = blocks(1, 0..4, 256 << 10);
    client.write(open(device, 1, 256 << 10, Granule::KIB_64), &written).await.unwrap();
    client.status_when("written", |status| status.streams == 0).await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        let other = Client::to(&node).await;
        let stream = other.open_read(device, 1, Want::All, 0);
        silent.push((other, stream));
    }
    client.status_when("all are open", |status| status.streams == 4).await;
    let mut refused = 0;
    let served = async {
        loop {
            match client.read(device, 1, Want::All, Granule::KIB_64).await {
                Ok((read, _)) => return read,
                Err(Fault::Refused { reason: RefusalReason::Overloaded, .. }) => refused += 1,
                Err(other) => panic!("{other}"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let read = tokio::time::timeout(WITHIN, served).await.expect("it is served");
    assert!(read == written && refused > 0);
    // One made room, and the others were not asked for more.
    client.status_when("one gave way", |status| status.streams == 3).await;
}

/// What is long before it is understood takes more after, and all of it is held while a device stands still.
#[tokio::test]
async fn long_requests_are_refused_where_many_wait() {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    client.write(open(device, 1, 64 << 10, Granule::KIB_64), &blocks(1, 0..2, 64 << 10)).await.unwrap();
    client.emulate(device, "stall").await.unwrap();
    let _first = client.open_read(device, 1, Want::All, 1 << 20);
    client.status_when("stalled", |status| status.devices[0].health == DeviceHealth::Stalled).await;
    let keep: IndexRanges = (0..200_000).map(|number| 2 * number).collect();
    let body = message::encode(&NodeRequest::Seal { device, segment: SegmentId(1), keep });
    assert!((1 << 20..2 << 20).contains(&body.len()), "{}", body.len());
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..40 {
        let open = steadfast_net::Open { body: body.clone(), epoch: Epoch(1), ..Default::default() };
        let mut stream = client.connection.open(open).unwrap();
        asked.spawn(async move { (stream.recv().await, stream) });
    }
    let mut refused = 0;
    let all = async {
        // Each is refused at once, or waits for the device, as the read does.
        while client.status().await.streams + refused < 40 + 1 {
            while let Some(answer) = asked.try_join_next() {
                let (answer, _stream) = answer.unwrap();
                assert!(matches!(answer, Some(Event::Failed(Fault::Refused { .. }))), "{answer:?}");
                refused += 1;
            }
        }
    };
    tokio::time::timeout(WITHIN, all).await.expect("each is refused or waits");
    assert!((8..20).contains(&refused), "{refused} of 40, where there is room for 32 MiB");
    client.emulate(device, "off").await.unwrap();
    node.stop().await;
}

fn frame(header: Header, body: &[u8]) -> Vec<u8> {
    let header = Header { body_bytes: u32::try_from(body.len()).expect("a short body"), ..header };
    [&header.to_bytes(body)[..], body].concat()
}
