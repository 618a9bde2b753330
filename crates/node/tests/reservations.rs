//! Bandwidth of a device, kept for those who asked for it first.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use common::{Client, Cluster, blocks, open};
use std::{sync::Arc, time::Duration};
use steadfast_disk::Granule;
use steadfast_node::Node;
use steadfast_protocol::{
    DeviceId, ReservationId, SegmentId, Version,
    message::{self, Access, Fault, NodeAnswer, NodeRequest, ReadPiece, RefusalReason, Reserve, Want},
    serve::AdmissionPolicy,
};

fn wish(device: DeviceId, reservation: u128, bytes_per_s: u64, lease_ms: u32) -> Reserve {
    let reservation = ReservationId(reservation);
    Reserve { device, reservation, access: Access::Read, bytes_per_s, lease_ms, background: false }
}

/// The lease in milliseconds, or why there is none and when to ask again.
async fn reserve(client: &Client, wish: Reserve) -> Result<u32, (RefusalReason, u32)> {
    match client.call(&NodeRequest::Reserve(wish), 0).await {
        Ok(NodeAnswer::Reserved { lease_ms }) => Ok(lease_ms),
        Err(Fault::Refused { reason, retry_after_ms }) => Err((reason, retry_after_ms)),
        other => panic!("{other:?}"),
    }
}

/// A node of one device of 40 MB/s, with 100 blocks of 64 KiB of each of these segments, its speeds measured.
async fn node(cluster: &Cluster, admission: AdmissionPolicy, segments: u64) -> (Node, Client) {
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    options.capacity_bytes = Some(256 << 20);
    options.admission = admission;
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    client.emulate(device, "rate=40MB").await.unwrap();
    for segment in 0..segments {
        client
            .write(open(device, segment, 64 << 10, Granule::KIB_64), &blocks(segment, 0..100, 64 << 10))
            .await
            .unwrap();
    }
    // Again where it was held up: many times slower would be known as the device's speed.
    let near = 30_000_000..50_000_000;
    for tries in 1.. {
        client.read(device, 0, Want::All, Granule::KIB_64).await.unwrap();
        let seen = client.status().await.devices[0].read_bytes_per_s;
        if near.contains(&seen) {
            break;
        }
        assert!(tries < 100, "{seen} B/s");
    }
    (node, client)
}

#[tokio::test]
async fn the_second_is_refused_until_the_first_gives_back_or_dies() {
    let cluster = Cluster::start().await;
    let (node, first) = node(&cluster, AdmissionPolicy::Capacity, 1).await;
    let device = node.devices()[0];
    let second = Client::to(&node).await;
    let measured = first.status().await.devices[0].read_bytes_per_s;
    let most = measured / 10 * 6;
    assert_eq!(reserve(&first, wish(device, 1, most, 30_000)).await, Ok(30_000));
    let report = first.status().await.devices[0].clone();
    assert_eq!((report.reserved_read_bytes_per_s, report.reserved_write_bytes_per_s), (most, 0));
    let (reason, retry) = reserve(&second, wish(device, 2, most, 30_000)).await.unwrap_err();
    assert!(reason == RefusalReason::Reserved && (1000..=30_000).contains(&retry), "{reason} {retry}");
    let (reason, _) = reserve(&second, wish(device, 2, measured * 2, 30_000)).await.unwrap_err();
    assert_eq!(reason, RefusalReason::NoCapacity);
    // Given back: there is room, and a third is told when the second's lease ends.
    let release = NodeRequest::Release { device, reservation: ReservationId(1) };
    assert_eq!(first.call(&release, 0).await, Ok(NodeAnswer::Done));
    assert_eq!(first.call(&release, 0).await, Ok(NodeAnswer::Done));
    assert_eq!(reserve(&second, wish(device, 2, most, 3000)).await, Ok(3000));
    let (_, retry) = reserve(&first, wish(device, 1, most, 1000)).await.unwrap_err();
    assert!(retry <= 3000, "{retry}");
    // The second dies without a word; its connection's end is not even needed.
    drop(second);
    tokio::time::sleep(Duration::from_millis(u64::from(retry) + 5)).await;
    assert_eq!(reserve(&first, wish(device, 1, most, 1000)).await, Ok(1000));
    let unknown = first.call(&NodeRequest::Reserve(wish(DeviceId(9), 1, 1, 1)), 0).await;
    assert!(matches!(unknown, Err(Fault::Node(_))), "{unknown:?}");
}

#[tokio::test]
async fn only_reads_and_writes_use_a_reservation() {
    let cluster = Cluster::start().await;
    let (node, client) = node(&cluster, AdmissionPolicy::Capacity, 1).await;
    let device = node.devices()[0];
    let under = |request: &NodeRequest| NodeRequest::UnderReservation {
        reservation: ReservationId(5),
        request: message::encode(request),
    };
    let nested = under(&under(&NodeRequest::Status));
    for wrong in [under(&NodeRequest::Status), nested, under(&NodeRequest::DropCaches { device })] {
        let answer = client.call(&wrong, 0).await;
        assert!(matches!(answer, Err(Fault::Protocol(_))), "{answer:?}");
    }
    let garbage = NodeRequest::UnderReservation { reservation: ReservationId(5), request: vec![0xff; 9] };
    assert!(matches!(client.call(&garbage, 0).await, Err(Fault::Protocol(_))));
    // One that is not kept (any more) is no right and no obstacle: the read shares what is left.
    let (segment, version) = (SegmentId(0), Version(9));
    let read = NodeRequest::Read {
        device,
        pieces: vec![ReadPiece { segment, version, want: Want::Blocks((0..2).into()) }],
    };
    let mut stream = client.open_request(&under(&read), 1 << 20);
    assert_eq!(client.drain(&mut stream).await.unwrap(), 2 * (64 << 10));
}

#[tokio::test]
async fn an_access_that_reserved_keeps_its_pace_among_many_that_did_not() {
    // The best of a few: another process may take the processor. Without the reservation it would have a ninth.
    let mut parts: Vec<f64> = Vec::new();
    while parts.last().is_none_or(|part| *part <= 0.4) {
        assert!(parts.len() < 5, "{parts:.2?} of the device, 0.6 were promised");
        parts.push(reserved_part().await);
    }
}

/// What part of a device has an access that reserved 0.6 of it, among many that did not.
async fn reserved_part() -> f64 {
    let cluster = Cluster::start().await;
    let (node, client) = node(&cluster, AdmissionPolicy::Capacity, 9).await;
    let device = node.devices()[0];
    let measured = client.status().await.devices[0].read_bytes_per_s;
    let share = measured / 10 * 6;
    reserve(&client, wish(device, 1, share, 60_000)).await.unwrap();
    let read = |segment| NodeRequest::Read {
        device,
        pieces: vec![ReadPiece { segment: SegmentId(segment), version: Version(9), want: Want::All }],
    };
    // Eight readers without a wish, each again and again.
    let client = Arc::new(client);
    let mut others = tokio::task::JoinSet::new();
    for segment in 1..9 {
        let (client, request) = (client.clone(), read(segment));
        others.spawn(async move {
            let mut bytes = 0u64;
            loop {
                let mut stream = client.open_request(&request, 64 << 20);
                bytes += client.drain(&mut stream).await.unwrap_or(0);
                if client.enough() {
                    return bytes;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(300)).await;
    let before = client.status().await.devices[0].medium_read_bytes;
    let (mut own, began) = (0, std::time::Instant::now());
    while began.elapsed() < Duration::from_millis(1500) {
        let request = NodeRequest::UnderReservation {
            reservation: ReservationId(1),
            request: message::encode(&read(0)),
        };
        let mut stream = client.open_request(&request, 64 << 20);
        own += client.drain(&mut stream).await.unwrap();
    }
    let all = client.status().await.devices[0].medium_read_bytes - before;
    client.stop();
    let left = others.join_all().await;
    // Compared with what the device gave in the same time, not with a clock.
    let part = own as f64 / all as f64;
    println!("{part:.2} of the device; the others had {left:?}");
    // And nobody is starved.
    assert!(left.iter().all(|&bytes| bytes > 0), "{left:?}");
    part
}

#[tokio::test]
async fn foreground_takes_from_background_where_the_node_admits_by_priority() {
    let cluster = Cluster::start().await;
    let (node, client) = node(&cluster, AdmissionPolicy::Priority, 1).await;
    let device = node.devices()[0];
    let most = client.status().await.devices[0].read_bytes_per_s / 10 * 8;
    let background = Reserve { background: true, ..wish(device, 1, most, 30_000) };
    assert_eq!(reserve(&client, background).await, Ok(30_000));
    assert_eq!(reserve(&client, wish(device, 2, most, 30_000)).await, Ok(30_000));
    assert_eq!(reserve(&client, background).await.unwrap_err().0, RefusalReason::Reserved);
    assert_eq!(client.status().await.devices[0].reserved_read_bytes_per_s, most);
}
