//! A real end against a peer that does what real ends do not: what is a violation, what is ignored, what is purged.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;
use bytes::Bytes;
use common::*;
use std::{collections::BTreeSet, time::Duration};
use steadfast_net::{Connected, Event, Lost, Open, Options, Server, Stream, Violation, connect};
use steadfast_protocol::message::{self, Fault, FrameKind, Header, PAYLOAD_BYTES_MAX};

fn header(kind: FrameKind, stream: u64) -> Header {
    Header::new(kind, stream)
}

/// A real end with a stream of its own open (2: it accepted), and the peer that got the OPEN.
async fn with_open_stream(credit: u32) -> (RawPeer, Connected, Stream) {
    let (mut raw, connected) = RawPeer::connected(Options::default()).await;
    let stream = connected.connection.open(Open { credit, ..Open::default() }).unwrap();
    let opened = raw.recv().await.unwrap().header;
    assert_eq!((opened.kind, opened.stream, opened.credit), (FrameKind::Open, 2, credit));
    (raw, connected, stream)
}

async fn expect_lost(stream: &mut Stream, expected: Violation) {
    match soon(stream.recv()).await {
        Some(Event::Lost(Lost::Violation(violation))) => assert_eq!(violation, expected),
        other => panic!("{expected:?} expected, got {other:?}"),
    }
    assert!(soon(stream.recv()).await.is_none());
}

#[tokio::test]
async fn a_byte_beyond_the_credit_closes_the_connection() {
    let (mut raw, connected, mut stream) = with_open_stream(10).await;
    let mut other = connected.connection.open(Open::default()).unwrap();
    raw.send(header(FrameKind::Data, 2), b"a", &[1; 6]).await;
    raw.send(header(FrameKind::Data, 2), b"b", &[1; 4]).await;
    expect_data(&mut stream).await;
    expect_data(&mut stream).await;
    // All ten are used; seven more are granted, eight come.
    assert_eq!(stream.grant(7), 7);
    raw.send(header(FrameKind::Data, 2), b"c", &[1; 8]).await;
    let violation = Violation::Credit { stream: 2, payload_bytes: 8, credit: 7 };
    expect_lost(&mut stream, violation.clone()).await;
    expect_lost(&mut other, violation.clone()).await;
    assert_eq!(connected.connection.lost(), Some(Lost::Violation(violation.clone())));
    let refused = connected.connection.open(Open::default()).unwrap_err();
    assert_eq!(refused, Lost::Violation(violation));
    while raw.recv().await.is_some() {}
}

#[tokio::test]
async fn a_pusher_starts_without_credit() {
    let (mut raw, mut connected) = RawPeer::connected(Options::default()).await;
    raw.send(header(FrameKind::Open, 1), b"write", &[]).await;
    raw.send(header(FrameKind::Data, 1), b"block", &[1]).await;
    let (_, mut stream) = soon(connected.incoming.next()).await.unwrap();
    expect_lost(&mut stream, Violation::Credit { stream: 1, payload_bytes: 1, credit: 0 }).await;
    assert!(soon(connected.incoming.next()).await.is_none());
}

#[tokio::test]
async fn frames_outside_the_protocol_close_the_connection() {
    let open_1 = frame_bytes(header(FrameKind::Open, 1), b"r", &[]);
    let cases: Vec<(Vec<u8>, Violation)> = vec![
        (
            frame_bytes(header(FrameKind::Open, 4), b"r", &[]),
            Violation::StreamId { stream: 4, odd: true, last: 0 },
        ),
        ([&open_1[..], &open_1].concat(), Violation::StreamId { stream: 1, odd: true, last: 1 }),
        (frame_bytes(header(FrameKind::Data, 4), b"r", &[]), Violation::NeverOpened { stream: 4 }),
        (frame_bytes(header(FrameKind::Credit, 3), &[], &[]), Violation::NeverOpened { stream: 3 }),
        (
            frame_bytes(header(FrameKind::Cancel, 2), &[], &[]),
            Violation::WrongEnd { stream: 2, by_opener: false },
        ),
        (
            [open_1, frame_bytes(header(FrameKind::End, 1), b"r", &[])].concat(),
            Violation::WrongEnd { stream: 1, by_opener: true },
        ),
        (frame_bytes(header(FrameKind::Fail, 2), &[0xff; 9], &[]), Violation::Fault { stream: 2 }),
        (
            frame_bytes(credit(header(FrameKind::Credit, 2), u32::MAX), &[], &[]).repeat(2),
            Violation::CreditOverflow { stream: 2 },
        ),
    ];
    for (bytes, violation) in cases {
        let (mut raw, connected, _stream) = with_open_stream(0).await;
        tokio::io::AsyncWriteExt::write_all(&mut raw.socket, &bytes).await.unwrap();
        while raw.recv().await.is_some() {}
        assert_eq!(connected.connection.lost(), Some(Lost::Violation(violation)));
    }
}

#[tokio::test]
async fn messages_nobody_takes_are_bounded() {
    let (mut raw, _connected, mut stream) = with_open_stream(0).await;
    let flood = frame_bytes(header(FrameKind::Data, 2), &[0; 1000], &[]).repeat(1000);
    let mut sent = 0_usize;
    while tokio::io::AsyncWriteExt::write_all(&mut raw.socket, &flood).await.is_ok() {
        sent += flood.len();
        assert!(sent < 256 << 20, "the connection should have been closed long ago");
    }
    let mut held = 0;
    loop {
        match soon(stream.recv()).await {
            Some(Event::Data { body, .. }) => held += body.len(),
            Some(Event::Lost(Lost::Violation(Violation::Flood { stream: 2, .. }))) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(held <= 8 << 20, "{held} bytes were held");
}

/// The answer itself is what is too much: whoever waits for it hears of the flood, and not of a stream without an end.
#[tokio::test]
async fn an_answer_that_is_a_flood_is_told_as_one() {
    let (mut raw, _connected, mut stream) = with_open_stream(0).await;
    // 8 MiB may wait.
    for (kind, mib) in [(FrameKind::Data, 4), (FrameKind::Data, 2), (FrameKind::End, 4)] {
        let frame = frame_bytes(header(kind, 2), &vec![0; mib << 20], &[]);
        // The last finds the connection closed.
        let _ = tokio::io::AsyncWriteExt::write_all(&mut raw.socket, &frame).await;
    }
    while raw.recv().await.is_some() {}
    let mut last = None;
    while let Some(event) = soon(stream.recv()).await {
        last = Some(event);
    }
    assert!(
        matches!(last, Some(Event::Lost(Lost::Violation(Violation::Flood { stream: 2, .. })))),
        "{last:?}"
    );
}

/// Each answer frees its stream; what waits to be sent is bounded all the same.
#[tokio::test]
async fn a_peer_that_asks_and_does_not_read_is_refused_more() {
    const ANSWER: usize = 3 << 20;
    let (mut raw, mut connected) = RawPeer::connected(Options::default()).await;
    let mut answered = 0;
    for stream in (1..400).step_by(2) {
        raw.send(header(FrameKind::Open, stream), b"all", &[]).await;
        let next = tokio::time::timeout(Duration::from_secs(5), connected.incoming.next()).await;
        let Ok(Some((_, taken))) = next else { break };
        taken.end(vec![7; ANSWER]).unwrap();
        answered += 1;
    }
    // 64 MiB, and what the kernel holds.
    assert!((21..60).contains(&answered), "{answered}");
    // It reads after all: every answer, and why there was no other.
    let mut ends = 0;
    loop {
        let frame = raw.recv().await.unwrap();
        match frame.header.kind {
            FrameKind::End => ends += 1,
            FrameKind::Fail => {}
            other => panic!("{other:?}"),
        }
        if ends == answered {
            break;
        }
    }
    raw.send(header(FrameKind::Open, 1001), b"all", &[]).await;
    let (_, taken) = soon(connected.incoming.next()).await.unwrap();
    taken.end(Vec::new()).unwrap();
}

#[tokio::test]
async fn pings_are_answered_but_not_each() {
    let (mut raw, connected) = RawPeer::connected(Options::default()).await;
    let pings = frame_bytes(header(FrameKind::Ping, 0), &[], &[]).repeat(10_000);
    tokio::io::AsyncWriteExt::write_all(&mut raw.socket, &pings).await.unwrap();
    raw.send(header(FrameKind::Open, 1), b"r", &[]).await;
    let mut incoming = connected.incoming;
    let (opened, stream) = soon(incoming.next()).await.unwrap();
    stream.end(opened.body).unwrap();
    let mut pongs = 0;
    loop {
        match raw.recv().await.unwrap().header.kind {
            FrameKind::Pong => pongs += 1,
            FrameKind::End => break,
            other => panic!("{other:?}"),
        }
    }
    assert!((1..10_000).contains(&pongs), "{pongs} answers");
}

#[tokio::test]
async fn frames_of_streams_that_are_over_are_ignored() {
    let (mut raw, mut connected, stream) = with_open_stream(1 << 20).await;
    drop(stream);
    assert_eq!(raw.answer().await.unwrap().header.kind, FrameKind::Cancel);
    raw.send(header(FrameKind::Data, 2), b"late", &[1; 100_000]).await;
    raw.send(credit(header(FrameKind::Credit, 2), 5), &[], &[]).await;
    raw.send(header(FrameKind::Fail, 2), &message::encode(&Fault::Cancelled), &[]).await;
    raw.send(header(FrameKind::Data, 2), b"later", &[1; 9]).await;
    // A stream cancelled before anybody took it is answered without anybody.
    raw.send(header(FrameKind::Open, 1), b"never mind", &[]).await;
    raw.send(header(FrameKind::Cancel, 1), &[], &[]).await;
    raw.send(header(FrameKind::Cancel, 1), &[], &[]).await;
    let answer = raw.answer().await.unwrap();
    assert_eq!((answer.header.kind, answer.header.stream), (FrameKind::Fail, 1));
    assert_eq!(message::decode::<Fault>(&answer.body), Ok(Fault::Cancelled));
    raw.send(header(FrameKind::Open, 3), b"next", &[]).await;
    let (opened, _stream) = soon(connected.incoming.next()).await.unwrap();
    assert_eq!(opened.body, b"next");
    assert_eq!(connected.connection.counters().payload_bytes_discarded, 100_009);
}

#[tokio::test]
async fn a_cancel_purges_what_the_kernel_does_not_have() {
    let (mut raw, mut connected) = RawPeer::connected(Options::default()).await;
    // One stream is cancelled while its slices fill every buffer on the way; its neighbour is not touched.
    for id in [1, 3] {
        raw.send(credit(header(FrameKind::Open, id), u32::MAX), b"read all", &[]).await;
    }
    let (_, mut cancelled) = soon(connected.incoming.next()).await.unwrap();
    let (_, neighbour) = soon(connected.incoming.next()).await.unwrap();
    let slices = 200;
    let payload = Bytes::from(vec![7; PAYLOAD_BYTES_MAX as usize]);
    for _ in 0..slices {
        cancelled.send_now(b"slice".to_vec(), payload.clone()).unwrap();
    }
    neighbour.send_now(b"mine".to_vec(), Bytes::from_static(b"stays")).unwrap();
    raw.send(header(FrameKind::Cancel, 1), &[], &[]).await;
    assert!(matches!(soon(cancelled.recv()).await, Some(Event::Cancelled)));
    // Too late: dropped as well.
    cancelled.send_now(b"slice".to_vec(), payload).unwrap();
    cancelled.fail(&Fault::Cancelled);
    neighbour.end(Vec::new()).unwrap();
    let (mut received, mut ends) = (0, BTreeSet::new());
    while ends.len() < 2 {
        let frame = raw.answer().await.unwrap();
        match (frame.header.kind, frame.header.stream) {
            (FrameKind::Data, 1) => received += frame.payload.len() as u64,
            (FrameKind::Data, 3) => assert_eq!(&frame.payload[..], b"stays"),
            (kind, stream) => assert!(ends.insert((stream, kind as u8)), "one end for each"),
        }
    }
    assert_eq!(ends, BTreeSet::from([(1, FrameKind::Fail as u8), (3, FrameKind::End as u8)]));
    let counters = connected.connection.counters();
    assert_eq!(counters.payload_bytes_sent, received + 5);
    let all = (slices + 1) * u64::from(PAYLOAD_BYTES_MAX);
    assert_eq!(received + counters.payload_bytes_purged, all);
    assert!(received < all / 2, "{received} of {all} bytes were sent in spite of the cancel");
}

#[tokio::test]
async fn an_answer_frees_the_opener_that_waits_to_push() {
    let (mut raw, _connected, mut stream) = with_open_stream(0).await;
    let payload = Bytes::from(vec![7; PAYLOAD_BYTES_MAX as usize]);
    for _ in 0..200 {
        stream.send_now(b"block".to_vec(), payload.clone()).unwrap();
    }
    // The peer reads nothing any more, so only its answer can make room.
    let answer = message::encode(&Fault::DeadlinePassed);
    let waiting = stream.sender();
    let (ready, ()) =
        soon(async { tokio::join!(waiting.ready(), raw.send(header(FrameKind::Fail, 2), &answer, &[])) })
            .await;
    ready.unwrap();
    assert!(matches!(soon(stream.recv()).await, Some(Event::Failed(Fault::DeadlinePassed))));
}

#[tokio::test]
async fn a_thousand_streams_are_served_in_turn() {
    let (mut raw, mut connected) = RawPeer::connected(Options::default()).await;
    let mut streams = Vec::new();
    for number in 0..1000 {
        raw.send(credit(header(FrameKind::Open, 2 * number + 1), 1 << 20), b"read", &[]).await;
        streams.push(soon(connected.incoming.next()).await.unwrap().1);
    }
    for stream in &streams {
        for _ in 0..3 {
            stream.send_now(Vec::new(), Bytes::from_static(&[0; 4096])).unwrap();
        }
    }
    for round in 0..3 {
        let mut served = BTreeSet::new();
        for _ in 0..1000 {
            let frame = raw.answer().await.unwrap();
            assert_eq!(frame.header.kind, FrameKind::Data);
            served.insert(frame.header.stream);
        }
        assert_eq!(served.len(), 1000, "round {round}: every stream once");
    }
}

#[tokio::test]
async fn a_short_answer_does_not_wait_for_bulk() {
    let (mut raw, mut connected) = RawPeer::connected(Options::default()).await;
    raw.send(credit(header(FrameKind::Open, 1), u32::MAX), b"bulk", &[]).await;
    raw.send(header(FrameKind::Open, 3), b"short", &[]).await;
    let (_, bulk) = soon(connected.incoming.next()).await.unwrap();
    let (_, short) = soon(connected.incoming.next()).await.unwrap();
    for _ in 0..100 {
        bulk.send_now(Vec::new(), Bytes::from(vec![0; PAYLOAD_BYTES_MAX as usize])).unwrap();
    }
    short.end(b"now".to_vec()).unwrap();
    assert_eq!(raw.answer().await.unwrap().header.stream, 3);
}

#[tokio::test]
async fn a_lost_peer_is_told_to_every_stream() {
    let (raw, connected, _) = with_open_stream(0).await;
    let mut streams: Vec<_> = (0..50).map(|_| connected.connection.open(Open::default()).unwrap()).collect();
    drop(raw);
    for stream in &mut streams {
        assert!(matches!(soon(stream.recv()).await, Some(Event::Lost(_))));
        assert!(stream.send(Vec::new(), Bytes::new()).await.is_err());
    }
}

/// As if it had been killed: that a request failed is said of a handler that panics, and not of a server that stops.
#[tokio::test]
async fn what_a_server_has_in_hand_is_lost_when_it_stops_and_failed_when_it_panics() {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap().to_string();
    let serving = tokio::spawn(server.serve(hello(), Options::default(), |mut connected| async move {
        let mut held = Vec::new();
        while let Some((opened, stream)) = connected.incoming.next().await {
            assert!(opened.body != b"panic", "as it was asked to");
            stream.send_now(b"held".to_vec(), Bytes::new()).unwrap();
            held.push(stream);
        }
    }));
    let mut last = Vec::new();
    for panics in [true, false] {
        let connected = connect(&address, hello(), &Options::default()).await.unwrap();
        let mut stream = connected.connection.open(Open::default()).unwrap();
        expect_data(&mut stream).await;
        let panic = Open { body: b"panic".to_vec(), ..Open::default() };
        let _asked = panics.then(|| connected.connection.open(panic).unwrap());
        if !panics {
            serving.abort();
        }
        last.push(soon(stream.recv()).await);
    }
    assert!(matches!(&last[..], [Some(Event::Failed(Fault::Protocol(_))), Some(Event::Lost(_))]), "{last:?}");
}

#[tokio::test]
async fn a_peer_that_stops_answering_pings_is_lost_and_not_before() {
    let options = Options {
        ping_after: Duration::from_millis(30),
        // Longer than a busy machine holds up the peer that answers.
        lost_after: Duration::from_secs(3),
        ..Options::default()
    };
    let (mut raw, connected) = RawPeer::connected(options).await;
    let mut stream = connected.connection.open(Open::default()).unwrap();
    assert_eq!(raw.recv().await.unwrap().header.kind, FrameKind::Open);
    for _ in 0..8 {
        assert_eq!(raw.recv().await.unwrap().header.kind, FrameKind::Ping);
        assert_eq!(connected.connection.lost(), None);
        raw.send(header(FrameKind::Pong, 0), &[], &[]).await;
    }
    let Some(Event::Lost(Lost::Silent { silence })) = soon(stream.recv()).await else { panic!("silent") };
    assert!(silence >= Duration::from_secs(3), "{silence:?}");
}

/// Its PING waits behind what the kernel has of slices: a peer that takes these slowly is not silent.
#[tokio::test]
async fn a_peer_that_takes_its_bytes_slowly_is_not_lost_and_one_that_takes_none_is() {
    // The best of a few: another process may take the processor for as long as a peer may be silent.
    let mut tries = 0;
    while !takes_slowly_and_then_nothing().await {
        tries += 1;
        assert!(tries < 5, "a slow peer was lost, or one that stopped was not in time");
    }
}

/// Whether the peer was not lost while it took bytes slowly, and soon after it stopped.
async fn takes_slowly_and_then_nothing() -> bool {
    let options = Options {
        ping_after: Duration::from_millis(200),
        lost_after: Duration::from_millis(2000),
        ..Options::default()
    };
    let (mut raw, mut connected) = RawPeer::connected_with(options, Some(64 << 10)).await;
    raw.send(credit(header(FrameKind::Open, 1), u32::MAX), b"read all", &[]).await;
    let (_, mut stream) = soon(connected.incoming.next()).await.unwrap();
    let slices = 8;
    for _ in 0..slices {
        stream.send_now(Vec::new(), Bytes::from(vec![7; PAYLOAD_BYTES_MAX as usize])).unwrap();
    }
    // 320 KB/s: what the kernel has beside the PING takes longer than the peer has to answer.
    let (mut received, mut pings) = (0, 0);
    let begun = std::time::Instant::now();
    while received < slices * PAYLOAD_BYTES_MAX as usize {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let frames = raw.read_some(16 << 10).await;
        if let Some(lost) = connected.connection.lost() {
            println!("{lost} after {received} bytes");
            return false;
        }
        for frame in frames {
            received += frame.payload.len();
            if frame.header.kind == FrameKind::Ping {
                pings += 1;
                raw.send(header(FrameKind::Pong, 0), &[], &[]).await;
            }
        }
    }
    assert!(begun.elapsed() > Duration::from_secs(4) && pings > 0, "{pings} PINGs");
    // It stops reading, with more on its way than the kernel takes.
    for _ in 0..slices {
        stream.send_now(Vec::new(), Bytes::from(vec![7; PAYLOAD_BYTES_MAX as usize])).unwrap();
    }
    let stopped = std::time::Instant::now();
    let lost = soon(stream.recv()).await;
    assert!(matches!(lost, Some(Event::Lost(_))), "{lost:?}");
    println!("{lost:?} after {:?}", stopped.elapsed());
    stopped.elapsed() < Duration::from_secs(8)
}

#[tokio::test]
async fn a_peer_that_vanishes_without_a_stream_is_lost_and_one_that_answers_is_not() {
    // The best of a few, as above.
    let mut tries = 0;
    while !answers_and_vanishes().await {
        tries += 1;
        assert!(tries < 5, "a peer that answers was lost");
    }
}

/// Whether the peer was not lost before it vanished.
async fn answers_and_vanishes() -> bool {
    let options = Options {
        ping_after: Duration::from_millis(30),
        lost_after: Duration::from_secs(1),
        idle_ping_after: Duration::from_millis(100),
        ..Options::default()
    };
    let (mut raw, mut connected) = RawPeer::connected(options).await;
    for _ in 0..3 {
        let frame = raw.recv().await;
        if connected.connection.lost().is_some() {
            return false;
        }
        assert_eq!(frame.unwrap().header.kind, FrameKind::Ping);
        raw.send(header(FrameKind::Pong, 0), &[], &[]).await;
    }
    assert!(soon(connected.incoming.next()).await.is_none());
    assert!(matches!(connected.connection.lost(), Some(Lost::Silent { .. })));
    true
}
