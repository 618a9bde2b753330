//! The server on the network: requests, refusals, garbage, shutdown.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends here")]

mod support;

use std::{sync::Arc, time::Duration};
use steadfast_meta::{Meta, MetaError, run};
use steadfast_net::{CallError, Connection, Open, Options, connect};
use steadfast_protocol::{
    ClusterId, DeviceId, NodeId, RequestId,
    message::{
        Change, Fault, Heartbeat, Hello, MetaAnswer, MetaFault, MetaRequest, NodeRecord, Query, Role,
        VERSION, decode, encode,
    },
};
use support::{begin, begun, block_on, commit, node, options, setup};
use tokio::sync::oneshot;

fn hello(cluster: Option<ClusterId>) -> Hello {
    Hello { version: VERSION, features: 0, role: Role::Client, cluster }
}

async fn client(meta: &Meta) -> Connection {
    let connected = connect(&meta.address().to_string(), hello(None), &Options::default()).await.unwrap();
    assert_eq!((connected.peer.role, connected.peer.cluster), (Role::Meta, Some(meta.cluster())));
    connected.connection
}

async fn call(connection: &Connection, body: Vec<u8>) -> Result<MetaAnswer, CallError> {
    let open = Open { body, deadline: Some(Duration::from_secs(60)), ..Open::default() };
    connection.call(open).await.map(|(body, _)| decode(&body).unwrap())
}

async fn change(connection: &Connection, count: u64, change: Change) -> Result<MetaAnswer, CallError> {
    call(connection, encode(&MetaRequest::Change { id: RequestId { client: 5, count }, change })).await
}

#[test]
fn requests_are_answered_and_refused_with_their_own_words() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let meta = Meta::start(&options(dir.path())).await.unwrap();
        let connection = client(&meta).await;
        for (count, setup) in (100..).zip(setup()) {
            assert_eq!(change(&connection, count, setup).await, Ok(MetaAnswer::Done));
        }
        let Ok(MetaAnswer::Begun(put)) = change(&connection, 1, begin("a")).await else { panic!() };
        let committed = change(&connection, 2, commit(&put, 9)).await.unwrap();
        // Asked again on another connection.
        assert_eq!(change(&client(&meta).await, 2, commit(&put, 9)).await, Ok(committed));
        let lookup =
            |key: &str| encode(&MetaRequest::Ask(Query::Lookup { bucket: "data".into(), key: key.into() }));
        assert!(
            matches!(call(&connection, lookup("a")).await, Ok(MetaAnswer::Object { object, .. }) if object.size == 9)
        );
        let absent = MetaFault::NoObject { bucket: "data".into(), key: "b".into() };
        assert_eq!(call(&connection, lookup("b")).await, Err(CallError::Fault(Fault::Meta(absent))));
        meta.stop().await;
    });
}

#[test]
fn garbage_is_refused_and_the_connection_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let meta = Meta::start(&options(dir.path())).await.unwrap();
        let connection = client(&meta).await;
        let good = encode(&MetaRequest::Ask(Query::Buckets));
        let mut trailing = good.clone();
        trailing.push(0);
        for garbage in [vec![], vec![0xff; 100], vec![3], trailing, vec![0; 1 << 20]] {
            let refused = call(&connection, garbage).await;
            assert!(matches!(refused, Err(CallError::Fault(Fault::Protocol(_)))), "{refused:?}");
        }
        // Any bytes whatever: an answer or a refusal.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        for length in 0..300 {
            let bytes = (0..length).map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                // Small numbers reach deeper into the messages.
                (state % 12) as u8
            });
            match call(&connection, bytes.collect()).await {
                Ok(_) | Err(CallError::Fault(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
        assert_eq!(call(&connection, good).await, Ok(MetaAnswer::Buckets(vec![])));
    });
}

#[test]
fn a_peer_of_another_cluster_is_not_greeted() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let meta = Meta::start(&options(dir.path())).await.unwrap();
        let address = meta.address().to_string();
        assert!(connect(&address, hello(Some(ClusterId(1))), &Options::default()).await.is_err());
        assert!(connect(&address, hello(Some(meta.cluster())), &Options::default()).await.is_ok());
    });
}

#[test]
fn an_address_in_use_is_named() {
    let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    block_on(async {
        let meta = Meta::start(&options(one.path())).await.unwrap();
        let mut taken = options(two.path());
        taken.listen = meta.address().to_string();
        match Meta::start(&taken).await {
            Err(error @ MetaError::Listen { .. }) => assert!(error.to_string().contains(&taken.listen)),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn run_stops_when_told_and_the_directory_is_free_again() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        for round in 0..3 {
            let (stop, stopped) = oneshot::channel::<()>();
            let (ready, address) = oneshot::channel();
            let options = options(dir.path());
            let server = tokio::spawn(async move {
                let ready = |address| ready.send(address).unwrap();
                run(&options, ready, async move { drop(stopped.await) }).await
            });
            let address = address.await.unwrap().to_string();
            let connection =
                Arc::new(connect(&address, hello(None), &Options::default()).await.unwrap().connection);
            if round == 0 {
                for (count, setup) in (100..).zip(setup()) {
                    change(&connection, count, setup).await.unwrap();
                }
            }
            // Under load.
            let load: Vec<_> = (0..20)
                .map(|put| {
                    let connection = Arc::clone(&connection);
                    tokio::spawn(
                        async move { change(&connection, round * 100 + 1000 + put, begin("a")).await },
                    )
                })
                .collect();
            stop.send(()).unwrap();
            server.await.unwrap().unwrap();
            for put in load {
                // Answered, refused because it stops, or cut off: never left hanging.
                match put.await.unwrap() {
                    Ok(answer) => drop(begun(Ok(answer))),
                    Err(
                        CallError::Fault(Fault::Meta(MetaFault::Store(_)) | Fault::Refused { .. })
                        | CallError::Lost(_),
                    ) => {}
                    Err(other) => panic!("{other}"),
                }
            }
        }
    });
}

/// A server that was killed and is started again gets another port; a copy of one that runs, which has its name and its devices, does not.
#[test]
fn a_server_may_come_back_elsewhere_at_once_and_a_copy_of_one_that_runs_may_not() {
    let dir = tempfile::tempdir().unwrap();
    block_on(async {
        let meta = Meta::start(&options(dir.path())).await.unwrap();
        let address = meta.address().to_string();
        let connected = async || {
            let hello = Hello { role: Role::Node(NodeId(1)), ..hello(None) };
            connect(&address, hello, &Options::default()).await.unwrap().connection
        };
        let at = |port: u16| NodeRecord { address: format!("127.0.0.1:{port}"), ..node(1) };
        let (first, copy) = (connected().await, connected().await);
        let register = Change::RegisterNode;
        assert_eq!(change(&first, 1, register(at(1))).await, Ok(MetaAnswer::Done));
        let beat = || {
            let (node, devices, activity) = (NodeId(1), Vec::new(), Default::default());
            encode(&MetaRequest::Heartbeat(Heartbeat { node, devices, activity }))
        };
        assert_eq!(call(&first, beat()).await, Ok(MetaAnswer::Heard { registered: true }));
        let taken = |port: u16| {
            let (node, device) = (NodeId(1), DeviceId(1));
            let fault = MetaFault::NodeTaken { node, address: format!("127.0.0.1:{port}"), device };
            Err(CallError::Fault(Fault::Meta(fault)))
        };
        assert_eq!(change(&copy, 2, register(at(2))).await, taken(1));
        // That of the copy is none by which the server was heard.
        drop(copy);
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(call(&first, beat()).await, Ok(MetaAnswer::Heard { registered: true }));
        let again = connected().await;
        assert_eq!(change(&again, 3, register(at(2))).await, taken(1));
        // It is killed.
        drop(first);
        tokio::time::timeout(Duration::from_secs(60), async {
            let mut count = 4;
            while let Err(refused) = change(&again, count, register(at(2))).await {
                assert_eq!(Err(refused), taken(1));
                tokio::time::sleep(Duration::from_millis(5)).await;
                count += 1;
            }
        })
        .await
        .expect("it registers");
        meta.stop().await;
    });
}
