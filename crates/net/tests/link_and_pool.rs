//! The delaying link on real sockets (loose bounds: the pacing itself is tested without I/O), and the pool.

#![allow(clippy::unwrap_used, reason = "a test fails by it")]

mod common;
use bytes::Bytes;
use common::*;
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use steadfast_net::{ConnectError, Event, Link, Open, Options, Pool, Server};
use steadfast_protocol::message::{Fault, PAYLOAD_BYTES_MAX};
use tokio::net::TcpListener;

fn over(link: Link) -> Options {
    Options { link, ..Options::default() }
}

#[tokio::test]
async fn a_delay_each_way_is_a_round_trip() {
    let delay = Duration::from_millis(40);
    let link = Link { delay, rate_bytes_per_s: None };
    let began = Instant::now();
    let (near, far) = pair(over(link), over(link)).await;
    assert!(began.elapsed() >= delay, "the HELLO too is delayed");
    tokio::spawn(echo(far));
    let began = Instant::now();
    // A hundred at once share the delay.
    let mut calls = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let connection = near.connection.clone();
        calls.spawn(async move { connection.call(Open { body: vec![1; 100], ..Open::default() }).await });
    }
    while let Some(called) = soon(calls.join_next()).await {
        called.unwrap().unwrap();
    }
    let took = began.elapsed();
    // One after the other they take two hundred.
    assert!(took >= 2 * delay && took < 100 * delay, "{took:?}");
}

/// A server that is slow to take what comes is as near as any: the kernel connects for it.
#[tokio::test]
async fn the_way_is_the_links_and_not_the_peers() {
    let delay = Duration::from_millis(40);
    let slow = Duration::from_millis(400);
    // The best of a few: another process may take the processor.
    let mut ways: Vec<Duration> = Vec::new();
    while ways.last().is_none_or(|way| *way >= slow) {
        assert!(ways.len() < 5, "{ways:?}");
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let accepted = async {
            tokio::time::sleep(slow).await;
            let (socket, _) = listener.accept().await.unwrap();
            steadfast_net::accept(socket, hello(), &Options::default()).await.unwrap()
        };
        let options = over(Link { delay, rate_bytes_per_s: None });
        let connected = async { steadfast_net::connect(&address, hello(), &options).await.unwrap() };
        let began = Instant::now();
        let (near, far) = soon(async { tokio::join!(connected, accepted) }).await;
        assert!(began.elapsed() >= slow);
        let way = near.connection.way().unwrap();
        assert!(way >= delay, "{way:?}");
        assert_eq!(far.connection.way(), None, "who accepts has not seen it");
        ways.push(way);
    }
}

#[tokio::test]
async fn a_rate_is_kept() {
    let link = Link { delay: Duration::from_millis(5), rate_bytes_per_s: Some(20_000_000) };
    let slices = 16;
    let credit = slices * PAYLOAD_BYTES_MAX;
    let ideal_s = f64::from(credit) / 20e6;
    // Never faster; slower where this machine does something else, but not five times.
    let mut least_s = f64::MAX;
    for _ in 0..5 {
        let (near, mut far) = pair(Options::default(), over(link)).await;
        let began = Instant::now();
        let mut opener = near.connection.open(Open { credit, ..Open::default() }).unwrap();
        let (_, acceptor) = soon(far.incoming.next()).await.unwrap();
        for _ in 0..slices {
            acceptor.send_now(Vec::new(), Bytes::from(vec![0; PAYLOAD_BYTES_MAX as usize])).unwrap();
        }
        for _ in 0..slices {
            expect_data(&mut opener).await;
        }
        let took_s = began.elapsed().as_secs_f64();
        assert!(took_s >= ideal_s, "{took_s:.3} s; the rate allows {ideal_s:.3} s");
        least_s = least_s.min(took_s);
        if least_s < 3.0 * ideal_s {
            return;
        }
    }
    panic!("{least_s:.3} s; the rate allows {ideal_s:.3} s");
}

#[tokio::test]
async fn a_cancel_reaches_what_waits_for_the_link_and_not_what_is_on_it() {
    let link = Link { delay: Duration::from_millis(20), rate_bytes_per_s: Some(10_000_000) };
    let (near, mut far) = pair(Options::default(), over(link)).await;
    // Ten seconds of it: also a machine that is busy with other things cancels before the half.
    let slices = 400;
    let payload = Bytes::from(vec![0; PAYLOAD_BYTES_MAX as usize]);
    let mut opener =
        near.connection.open(Open { credit: slices * PAYLOAD_BYTES_MAX, ..Open::default() }).unwrap();
    let (_, mut acceptor) = soon(far.incoming.next()).await.unwrap();
    for _ in 0..slices {
        acceptor.send_now(Vec::new(), payload.clone()).unwrap();
    }
    expect_data(&mut opener).await;
    opener.cancel();
    assert!(matches!(soon(acceptor.recv()).await, Some(Event::Cancelled)));
    acceptor.fail(&Fault::Cancelled);
    let mut more = 0;
    loop {
        match soon(opener.recv()).await {
            Some(Event::Data { .. }) => more += 1,
            Some(Event::Failed(Fault::Cancelled)) => break,
            other => panic!("{other:?}"),
        }
    }
    assert!(more < slices / 2, "{more} slices came after the cancel");
    let counters = far.connection.counters();
    let all = u64::from(slices) * u64::from(PAYLOAD_BYTES_MAX);
    assert_eq!(counters.payload_bytes_sent + counters.payload_bytes_purged, all);
}

/// A server whose connections echo until told to close, which counts them.
async fn counted_server() -> (String, Arc<AtomicUsize>) {
    let server = Server::bind("127.0.0.1:0").await.unwrap();
    let address = server.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let counting = count.clone();
    tokio::spawn(server.serve(hello(), Options::default(), move |mut connected| {
        counting.fetch_add(1, SeqCst);
        async move {
            while let Some((opened, stream)) = connected.incoming.next().await {
                if opened.body == b"close" {
                    return connected.connection.close();
                }
                let _ = stream.end(opened.body);
            }
        }
    }));
    (address, count)
}

#[tokio::test]
async fn a_pool_shares_one_connection_and_makes_it_anew_when_lost() {
    let (address, count) = counted_server().await;
    let pool = Pool::new(hello(), Options::default());
    assert_eq!(pool.way(&address), None, "nobody has connected");
    let mut callers = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (pool, address) = (pool.clone(), address.clone());
        callers.spawn(async move {
            let connection = pool.connection(&address).await.unwrap();
            connection.call(Open { body: b"hi".to_vec(), ..Open::default() }).await.unwrap();
        });
    }
    while let Some(called) = soon(callers.join_next()).await {
        called.unwrap();
    }
    assert_eq!(count.load(SeqCst), 1);
    assert!(pool.way(&address).is_some());

    let connection = pool.connection(&address).await.unwrap();
    soon(connection.call(Open { body: b"close".to_vec(), ..Open::default() })).await.unwrap_err();
    assert!(connection.lost().is_some());
    let again = soon(pool.connection(&address)).await.unwrap();
    soon(again.call(Open { body: b"hi".to_vec(), ..Open::default() })).await.unwrap();
    assert_eq!(count.load(SeqCst), 2);
}

#[tokio::test]
async fn a_dead_node_fails_at_once_and_is_tried_again_later() {
    // The best of a few: another process may take the processor for as long as the node is left alone.
    let mut seen = Vec::new();
    while let Err(other) = tried_again_later().await {
        seen.push(other);
        assert!(seen.len() < 5, "{seen:?}");
    }
}

/// An address where connections are accepted, counted, and closed after so long: every attempt fails.
async fn closing_after(held: Duration) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counting = attempts.clone();
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            counting.fetch_add(1, SeqCst);
            tokio::time::sleep(held).await;
            drop(socket);
        }
    });
    (address, attempts)
}

/// What may differ by what else the machine does: how often a dead node is asked for until it was tried three times, and how often it
/// was tried when it is asked for just after the fourth.
async fn tried_again_later() -> Result<(), (u32, usize)> {
    let (address, attempts) = closing_after(Duration::ZERO).await;
    let pool = Pool::new(hello(), Options::default());
    let began = Instant::now();
    let mut asked = 0;
    while attempts.load(SeqCst) < 3 {
        let error = soon(pool.connection(&address)).await.unwrap_err();
        assert!(matches!(error, ConnectError::Lost(_)), "{error}");
        asked += 1;
        tokio::task::yield_now().await;
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    // 200 ms after the first and 400 ms after the second.
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
    // Who cannot do without tries for himself.
    soon(pool.connection_after_all(&address)).await.unwrap_err();
    assert_eq!(attempts.load(SeqCst), 4);
    soon(pool.connection(&address)).await.unwrap_err();
    // The others leave it alone, and were answered from memory.
    let tried = attempts.load(SeqCst);
    if asked > 10 && tried == 4 { Ok(()) } else { Err((asked, tried)) }
}

/// A machine that is gone is found to be by accesses each of which has no time to wait for it.
#[tokio::test]
async fn an_attempt_goes_on_without_who_asked_for_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let attempts = Arc::new(AtomicUsize::new(0));
    let counting = attempts.clone();
    tokio::spawn(async move {
        let mut unanswered = Vec::new();
        while let Ok((socket, _)) = listener.accept().await {
            counting.fetch_add(1, SeqCst);
            unanswered.push(socket);
        }
    });
    let waited = Duration::from_secs(1);
    let pool = Pool::new(hello(), Options { hello_timeout: waited, ..Options::default() });
    // Where the machine does much else the attempt may be over by then: then it is remembered.
    let _hurried = tokio::time::timeout(Duration::from_millis(20), pool.connection(&address)).await;
    let error = soon(pool.connection(&address)).await.unwrap_err();
    assert_eq!(error, ConnectError::NoHello { waited });
    assert_eq!(attempts.load(SeqCst), 1, "who asks next is told what came of it");
}

/// Nobody answers there for a while: who waits for an attempt has its failure, and does not make the next when that is over.
#[tokio::test]
async fn those_who_wait_for_an_attempt_share_its_failure() {
    let (address, attempts) = closing_after(Duration::from_millis(300)).await;
    let pool = Pool::new(hello(), Options::default());
    let asking: Vec<_> = (0..8)
        .map(|_| {
            let (pool, address) = (pool.clone(), address.clone());
            tokio::spawn(async move { pool.connection_after_all(&address).await.map(|_| ()) })
        })
        .collect();
    for asked in asking {
        assert!(matches!(soon(asked).await.unwrap(), Err(ConnectError::Lost(_))));
    }
    // One of them may have asked late, if the machine did much else.
    let tried = attempts.load(SeqCst);
    assert!(tried <= 4, "{tried} attempts for eight who asked at once");
}
