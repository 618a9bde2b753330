//! An emulated device's pace arrives at the client: nothing between lane and socket costs more than a little of it.

#![allow(clippy::unwrap_used, reason = "a helper of tests fails as a test does")]

mod common;

use common::{Client, Cluster, blocks, open};
use std::time::Instant;
use steadfast_disk::Granule;
use steadfast_node::Node;
use steadfast_protocol::message::Want;

/// What may differ by what else the machine does: the pace of a device of 50 MB/s, seen by a client and by the node.
async fn paced() -> Result<(), String> {
    let cluster = Cluster::start().await;
    let mut options = cluster.options(1);
    options.emulate = Some("off".parse().unwrap());
    let node = Node::start(options).await.unwrap();
    let device = node.devices()[0];
    let client = Client::to(&node).await;
    let written = blocks(1, 0..200, 64 << 10);
    client.emulate(device, "rate=50MB").await.unwrap();
    // 13.1 MB take 262 ms. Twice that is allowed: other tests run on the same two cores.
    let bytes = 200.0 * 65536.0;
    let began = Instant::now();
    let mut request = open(device, 1, 64 << 10, Granule::KIB_64);
    request.expected_blocks = 200;
    client.write(request, &written).await.unwrap();
    let write_rate = bytes / began.elapsed().as_secs_f64();
    let began = Instant::now();
    let (read, _) = client.read(device, 1, Want::All, Granule::KIB_64).await.unwrap();
    let read_rate = bytes / began.elapsed().as_secs_f64();
    assert!(read == written);
    println!("written at {:.1} MB/s, read at {:.1} MB/s", write_rate / 1e6, read_rate / 1e6);
    assert!(read_rate < 52e6, "the emulation is not passed by: {read_rate}");
    if read_rate <= 25e6 || write_rate <= 25e6 {
        return Err(format!("read {read_rate}, written {write_rate}"));
    }
    let report = &client.status().await.devices[0];
    let near = |rate: u64| (30_000_000..60_000_000).contains(&rate);
    match near(report.read_bytes_per_s) && near(report.write_bytes_per_s) {
        true => Ok(()),
        false => Err(format!("{report:?}")),
    }
}

#[tokio::test]
async fn a_device_of_50_mb_a_second_is_read_and_written_at_about_that() {
    let mut seen = Vec::new();
    while let Err(other) = paced().await {
        seen.push(other);
        assert!(seen.len() < 20, "{seen:#?}");
    }
}
