//! Streams between two real ends.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;
use bytes::Bytes;
use common::*;
use std::{
    sync::atomic::{AtomicU64, Ordering::SeqCst},
    time::Duration,
};
use steadfast_net::{CallError, Event, Lost, Open, Options};
use steadfast_protocol::{
    Epoch,
    message::{Fault, PAYLOAD_BYTES_MAX, Priority, RefusalReason},
};

fn open(body: &[u8]) -> Open {
    Open { body: body.to_vec(), ..Open::default() }
}

/// Futures must be able to run on any runtime.
#[allow(dead_code, reason = "compiled, not run")]
fn futures_are_send(connection: &steadfast_net::Connection, stream: &mut steadfast_net::Stream) {
    fn send(_: impl Send) {}
    send(connection.call(Open::default()));
    send(stream.send(Vec::new(), Bytes::new()));
    send(stream.recv());
    send(steadfast_net::connect("", hello(), &Options::default()));
}

#[tokio::test]
async fn an_open_arrives_whole_and_messages_go_both_ways() {
    let (near, mut far) = pair(Options::default(), Options::default()).await;
    let request = Open {
        body: b"request".to_vec(),
        priority: Priority::Background,
        epoch: Epoch(7),
        deadline: Some(Duration::from_millis(1500)),
        credit: 300,
    };
    let mut opener = near.connection.open(request).unwrap();
    let (opened, mut acceptor) = soon(far.incoming.next()).await.unwrap();
    assert_eq!(
        (opened.body, opened.priority, opened.epoch, opened.deadline, opened.credit),
        (b"request".to_vec(), Priority::Background, Epoch(7), Some(Duration::from_millis(1500)), 300)
    );
    acceptor.grant(5);
    assert!(matches!(soon(opener.recv()).await, Some(Event::Credit(5))));
    opener.send(b"push".to_vec(), Bytes::from_static(b"12345")).await.unwrap();
    assert_eq!(expect_data(&mut acceptor).await, (b"push".to_vec(), b"12345"[..].into()));
    acceptor.send(b"event".to_vec(), Bytes::from(vec![9; 300])).await.unwrap();
    acceptor.end(b"answer".to_vec()).unwrap();
    acceptor.fail(&Fault::Cancelled);
    assert_eq!(expect_data(&mut opener).await, (b"event".to_vec(), vec![9; 300][..].into()));
    assert!(matches!(soon(opener.recv()).await, Some(Event::End(body)) if body == b"answer"));
    assert!(soon(opener.recv()).await.is_none());
    assert!(soon(acceptor.recv()).await.is_none(), "after its own END");
}

#[tokio::test]
async fn both_ends_open_streams_at_once() {
    let (near, far) = pair(Options::default(), Options::default()).await;
    let ends = [near.connection.clone(), far.connection.clone()];
    tokio::spawn(echo(near));
    tokio::spawn(echo(far));
    let mut calls = tokio::task::JoinSet::new();
    for number in 0..200_u32 {
        let connection = ends[number as usize % 2].clone();
        calls.spawn(async move {
            let body = number.to_le_bytes();
            assert_eq!(connection.call(open(&body)).await.unwrap().0, body);
        });
    }
    soon(async {
        while let Some(called) = calls.join_next().await {
            called.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn a_call_joins_the_payloads_before_the_answer() {
    let (near, mut far) = pair(Options::default(), Options::default()).await;
    let serve = async {
        let (_, stream) = far.incoming.next().await.unwrap();
        for piece in [&b"one "[..], b"two ", b"three"] {
            stream.send_now(Vec::new(), Bytes::from_static(piece)).unwrap();
        }
        stream.end(b"done".to_vec()).unwrap();
    };
    let call = near.connection.call(Open { credit: 100, ..Open::default() });
    let (answer, ()) = soon(async { tokio::join!(call, serve) }).await;
    assert_eq!(answer.unwrap(), (b"done".to_vec(), b"one two three"[..].into()));
}

#[tokio::test]
async fn a_deadline_ends_the_call_and_cancels_the_request() {
    let (near, mut far) = pair(Options::default(), Options::default()).await;
    let request = Open { deadline: Some(Duration::from_millis(30)), ..open(b"slow") };
    let serve = async {
        let (opened, mut stream) = far.incoming.next().await.unwrap();
        assert_eq!(opened.deadline, Some(Duration::from_millis(30)));
        assert!(matches!(stream.recv().await, Some(Event::Cancelled)));
    };
    let (called, ()) = soon(async { tokio::join!(near.connection.call(request), serve) }).await;
    assert_eq!(called.unwrap_err(), CallError::TimedOut);
}

#[tokio::test]
async fn a_dropped_opener_cancels_and_a_dropped_acceptor_fails() {
    let (near, mut far) = pair(Options::default(), Options::default()).await;
    let opener = near.connection.open(open(b"a")).unwrap();
    let (_, mut acceptor) = soon(far.incoming.next()).await.unwrap();
    let (sender, receiver) = opener.into_split();
    drop(receiver);
    drop(sender);
    assert!(matches!(soon(acceptor.recv()).await, Some(Event::Cancelled)));
    drop(acceptor);

    let mut opener = near.connection.open(open(b"b")).unwrap();
    let (_, acceptor) = soon(far.incoming.next()).await.unwrap();
    drop(acceptor);
    assert!(matches!(soon(opener.recv()).await, Some(Event::Failed(Fault::Protocol(_)))));

    let mut opener = near.connection.open(open(b"c")).unwrap();
    let (_, mut acceptor) = soon(far.incoming.next()).await.unwrap();
    opener.cancel();
    assert!(matches!(soon(acceptor.recv()).await, Some(Event::Cancelled)));
    drop(acceptor);
    assert!(matches!(soon(opener.recv()).await, Some(Event::Failed(Fault::Cancelled))));
}

#[tokio::test]
async fn an_end_that_takes_no_streams_refuses_them() {
    let (near, far) = pair(Options::default(), Options::default()).await;
    let connection = far.connection.clone();
    drop(far.incoming);
    let error = soon(near.connection.call(open(b"anybody?"))).await.unwrap_err();
    let CallError::Fault(Fault::Refused { reason: RefusalReason::NotReady, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!(connection.lost(), None);
}

#[tokio::test]
async fn streams_above_the_limit_are_refused_until_one_ends() {
    let (near, mut far) = pair(Options::default(), Options { streams_max: 2, ..Options::default() }).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        held.push(near.connection.open(open(b"held")).unwrap());
    }
    let error = soon(near.connection.call(open(b"third"))).await.unwrap_err();
    let CallError::Fault(Fault::Refused { reason: RefusalReason::Overloaded, .. }) = error else {
        panic!("{error}")
    };
    let (_, first) = soon(far.incoming.next()).await.unwrap();
    first.end(Vec::new()).unwrap();
    let serve = async {
        let (_, second) = far.incoming.next().await.unwrap();
        let (opened, fourth) = far.incoming.next().await.unwrap();
        fourth.end(opened.body).unwrap();
        second
    };
    let (called, _second) = soon(async { tokio::join!(near.connection.call(open(b"fourth")), serve) }).await;
    assert_eq!(called.unwrap().0, b"fourth");
}

#[tokio::test]
async fn what_was_queued_arrives_although_its_end_let_go_of_everything() {
    // However long the end that takes it is held up.
    let lingering = Options { linger: Duration::from_secs(60), ..Options::default() };
    let (near, mut far) = pair(Options::default(), lingering).await;
    let slices = 40;
    let credit = slices * PAYLOAD_BYTES_MAX;
    let mut opener = near.connection.open(Open { credit, ..Open::default() }).unwrap();
    let (_, acceptor) = soon(far.incoming.next()).await.unwrap();
    for _ in 0..slices {
        acceptor.send_now(Vec::new(), Bytes::from(vec![1; PAYLOAD_BYTES_MAX as usize])).unwrap();
    }
    acceptor.end(b"all".to_vec()).unwrap();
    drop((acceptor, far));
    for _ in 0..slices {
        expect_data(&mut opener).await;
        // Sent to an end that has closed, this would make the kernel throw away what is still unread here.
        opener.grant(1);
    }
    assert!(matches!(soon(opener.recv()).await, Some(Event::End(_))));
    drop(opener);
    let error = soon(async {
        loop {
            match near.connection.call(open(b"more")).await {
                Err(CallError::Lost(lost)) => return lost,
                // Opened before the news of the close came.
                other => assert!(matches!(other, Err(CallError::Fault(_))), "{other:?}"),
            }
        }
    })
    .await;
    assert_eq!(error, Lost::Closed);
}

#[tokio::test]
async fn senders_wait_while_the_socket_is_full_and_are_freed_by_a_close() {
    let (near, mut far) = pair(Options::default(), Options::default()).await;
    let opener = near.connection.open(Open { credit: u32::MAX, ..Open::default() }).unwrap();
    let (_, acceptor) = soon(far.incoming.next()).await.unwrap();
    let queued = AtomicU64::new(0);
    let fill = async {
        let payload = Bytes::from(vec![1; PAYLOAD_BYTES_MAX as usize]);
        loop {
            acceptor.send_now(Vec::new(), payload.clone())?;
            queued.fetch_add(u64::from(PAYLOAD_BYTES_MAX), SeqCst);
            acceptor.ready().await?;
        }
    };
    let watch = async {
        // The receiving end takes everything into its queue (the credit allows it), so what is sent and not yet
        // received is what the two kernels and this program hold.
        let mut most = 0;
        for _ in 0..200 {
            tokio::task::yield_now().await;
            let sent = far.connection.counters().payload_bytes_sent;
            most = most.max(queued.load(SeqCst) - sent.min(queued.load(SeqCst)));
        }
        far.connection.close();
        most
    };
    let (filled, most): (Result<(), Lost>, u64) = soon(async { tokio::join!(fill, watch) }).await;
    assert_eq!(filled, Err(Lost::ClosedHere));
    assert!(most <= (1 << 20) + 2 * u64::from(PAYLOAD_BYTES_MAX), "{most} bytes waited in this program");
    drop(opener);
}

#[tokio::test]
async fn what_does_not_fit_a_frame_is_refused_and_the_connection_lives() {
    let (near, mut far) = pair(Options::default(), Options::default()).await;
    let long = vec![0; (4 << 20) + 1];
    assert!(matches!(near.connection.open(open(&long)), Err(Lost::TooLong { .. })));
    let serve = async {
        let (_, stream) = far.incoming.next().await.unwrap();
        assert!(matches!(stream.end(long.clone()), Err(Lost::TooLong { .. })));
    };
    let (called, ()) = soon(async { tokio::join!(near.connection.call(open(b"list")), serve) }).await;
    assert!(matches!(called, Err(CallError::Fault(Fault::Protocol(_)))));
    assert_eq!(near.connection.lost(), None);
}

/// A lane's thread sends from outside the runtime. The reader is slow to begin, so that the socket is full meanwhile.
#[tokio::test]
async fn threads_that_are_no_runtimes_send_by_themselves_and_in_order() {
    const MESSAGES: u32 = 3000;
    const PAYLOAD: usize = 3000;
    let (near, mut far) = pair(Options::default(), Options::default()).await;
    let mut openers = Vec::new();
    for _ in 0..3 {
        let opener = near.connection.open(open(b"")).unwrap();
        let (_, acceptor) = soon(far.incoming.next()).await.unwrap();
        acceptor.grant(MESSAGES * PAYLOAD as u32);
        openers.push((opener, acceptor));
    }
    let message = |number: u32| (number.to_le_bytes().to_vec(), Bytes::from(vec![number as u8; PAYLOAD]));
    let mut threads = Vec::new();
    for (opener, _) in &openers[..2] {
        let sender = opener.sender();
        threads.push(std::thread::spawn(move || {
            for number in 0..MESSAGES {
                let (body, payload) = message(number);
                sender.send_now(body, payload).unwrap();
            }
        }));
    }
    let sender = openers[2].0.sender();
    for number in 0..MESSAGES {
        let (body, payload) = message(number);
        sender.send(body, payload).await.unwrap();
        if number == 0 {
            // Nothing is read while this thread sleeps: the others fill the socket.
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    for (_, acceptor) in &mut openers {
        for number in 0..MESSAGES {
            let (body, payload) = expect_data(acceptor).await;
            assert!((body, payload.len()) == (number.to_le_bytes().to_vec(), PAYLOAD), "{number}");
            assert!(payload.iter().all(|&byte| byte == number as u8), "{number}");
        }
    }
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let counters = near.connection.counters();
    assert_eq!(counters.payload_bytes_sent, 3 * u64::from(MESSAGES) * PAYLOAD as u64);
}
