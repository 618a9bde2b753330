//! Servers that die, disks that stall: within what is tolerated nothing shows; beyond it the error is clean and quick.

use crate::{
    common::{Bed, WITHIN, block_on, bytes, eventually, known_to_be_well, once_of, put, seed, shape},
    raw::Raw,
};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    cmp::Reverse,
    fs,
    io::{self, Cursor, Read},
    sync::mpsc,
    time::{Duration, Instant},
};
use steadfast_client::GetError;
use steadfast_lab::cluster::Shape;
use steadfast_protocol::message::DeviceHealth;

#[test]
fn two_dead_servers_of_eight_do_not_show() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(8, 2), "rateless:redundancy=0.5,tolerate=2");
    let file = bed.file("original", 24 << 20, seed);
    let small = bed.file("small", 9000, seed + 1);
    bed.put(&file, "object");
    bed.put(&small, "small");
    bed.cluster.kill_node(1).unwrap();
    bed.cluster.kill_node(6).unwrap();
    bed.get_equals("object", &fs::read(&file).unwrap());
    bed.get_equals("small", &fs::read(&small).unwrap());
    // Six servers are left, and take a put that survives two more.
    bed.put(&file, "later");
    bed.cluster.kill_node(0).unwrap();
    bed.cluster.kill_node(3).unwrap();
    bed.get_equals("later", &fs::read(&file).unwrap());
}

#[test]
fn more_failures_than_tolerated_are_told_and_heal() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    let file = bed.file("original", 6 << 20, seed);
    bed.put(&file, "object");
    // Which devices got most is not known before: without the four that did, no more than a third is left.
    let most: Vec<usize> = block_on(async {
        let client = bed.client().await;
        let mut holders = client.stat("data", "object").await.unwrap().segments.remove(0).holders;
        holders.sort_by_key(|holder| Reverse(holder.count()));
        let mut most = Vec::new();
        for holder in &holders[..4] {
            most.push(bed.server_of(&client, holder.device).await);
        }
        most
    });
    for &node in &most {
        bed.cluster.kill_node(node).unwrap();
    }
    let start = Instant::now();
    let said = bed.fails(5, &["get", "data/object", "-", "--patience", "60"]);
    assert!(
        said.contains(" needed and ") && said.contains(" in reach") && said.contains("steadfast status"),
        "{said}"
    );
    assert!(
        start.elapsed() < Duration::from_secs(30),
        "told at once, not when patience ends: {:?}",
        start.elapsed()
    );
    bed.restart(most[0]);
    bed.restart(most[1]);
    bed.get_equals("object", &fs::read(&file).unwrap());
}

#[test]
fn a_stalled_disk_delays_neither_reads_nor_writes() {
    let bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    let original = bytes(12 << 20, seed());
    block_on(async { put(&bed.client().await, "object", &original).await });
    // Compared with what a put takes now, and not with a clock alone.
    once_of("a stalled disk delays neither", || block_on(is_not_delayed(&bed, &original)));
}

/// Whether a get and a put took about as long as where no disk stalls.
async fn is_not_delayed(bed: &Bed, original: &[u8]) -> bool {
    let (client, impatient) = (bed.client().await, bed.impatient().await);
    let device = client.registry().await.unwrap().nodes[0].record.devices[0].0;
    known_to_be_well(&client, device).await;
    // Another disk may seem to stall, too.
    let timed_put = async || {
        let (start, size) = (Instant::now(), Some(original.len() as u64));
        let stored = impatient.put("data", "second", Cursor::new(original.to_vec()), size).await;
        stored.inspect_err(|error| println!("{error}")).is_ok().then(|| start.elapsed())
    };
    let Some(before) = timed_put().await else { return false };
    client.emulate(device, "stall").await.unwrap();
    // Whoever waited for the stalled disk would fail.
    let got = impatient.get("data", "object", None, std::io::sink()).await;
    let got = got.inspect_err(|error| println!("{error}"));
    let stalled = timed_put().await;
    let stat = client.stat("data", "second").await.unwrap();
    client.emulate(device, "off").await.unwrap();
    println!("{before:?} before, {stalled:?} with a stalled disk");
    let (Ok(got), Some(stalled)) = (got, stalled) else { return false };
    assert_eq!(got.size, original.len() as u64);
    assert!(stat.segments[0].holders.iter().all(|holder| holder.device != device));
    // The answer waits for the stalled disk no more than the data does: sealing it would take five seconds.
    stalled < before + Duration::from_millis(4500)
}

#[test]
fn a_device_that_gives_nothing_back_has_failed_until_it_does() {
    let bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    let original = bytes(3 << 20, seed());
    block_on(async {
        let client = bed.client().await;
        put(&client, "object", &original).await;
        let node = client.registry().await.unwrap().nodes.remove(0).record;
        let device = node.devices[0].0;
        // Its seal, which follows the answer, would fail too, and a device that cannot write has failed for good.
        let segment = client.stat("data", "object").await.unwrap().segments[0].segment;
        let raw = Raw::new();
        eventually("it is sealed", WITHIN, async || {
            raw.describe(&node.address, device, segment).await.is_some_and(|(_, sealed)| sealed)
        })
        .await;
        client.emulate(device, "error").await.unwrap();
        // Nothing is written: its reads alone tell. A get gives up after a few places of it.
        eventually("the device is known to have failed", WITHIN, async || {
            client.get("data", "object", None, std::io::sink()).await.unwrap();
            let nodes = client.registry().await.unwrap().nodes;
            let mut reports = nodes.iter().flat_map(|node| &node.devices);
            reports.any(|report| report.device == device && report.health == DeviceHealth::Failed)
        })
        .await;
        // Nobody asks it for anything any more: it is its own server that finds it well.
        client.emulate(device, "off").await.unwrap();
        known_to_be_well(&client, device).await;
    });
}

/// It could hear nobody meanwhile: that is no server's silence.
#[test]
fn a_metadata_server_that_stood_still_takes_no_server_for_dead() {
    let bed = Bed::with_bucket(&Shape { repair_period_s: 0, ..shape(6, 1) }, "parity:segment=1MiB,least=5");
    let original = bytes(3 << 20, seed());
    let pid = i32::try_from(bed.cluster.processes().next().unwrap().1).unwrap();
    let meta = Pid::from_raw(pid).unwrap();
    // A server that is held up may seem dead or stalled all the same.
    once_of("all servers take a put", || {
        block_on(async {
            let client = bed.client().await;
            kill_process(meta, Signal::STOP).unwrap();
            tokio::time::sleep(Duration::from_secs(8)).await;
            kill_process(meta, Signal::CONT).unwrap();
            let size = Some(original.len() as u64);
            let stored = client.put("data", "object", Cursor::new(original.clone()), size).await;
            println!("{stored:?}");
            stored.is_ok_and(|report| report.degraded_segments == 0)
        })
    });
    bed.get_equals("object", &original);
}

/// A stream that outlived its access would keep its part of a node's write budget: later puts would be refused.
#[test]
fn no_stream_outlives_its_access() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    let original = bytes(8 << 20, seed);
    block_on(async {
        let client = bed.client().await;
        let nodes = client.registry().await.unwrap().nodes;
        for access in 0..6 {
            // Slow enough that streams are busy when the access ends; one of them is cancelled in a stall.
            for (number, node) in nodes.iter().enumerate() {
                let spec = if number == access { "stall" } else { "rate=100MB" };
                client.emulate(node.record.devices[0].0, spec).await.unwrap();
            }
            let key = format!("object-{}", access % 2);
            put(&client, &key, &original).await;
            client.get("data", &key, None, std::io::sink()).await.unwrap();
        }
        for node in &nodes {
            client.emulate(node.record.devices[0].0, "off").await.unwrap();
        }
        eventually("every stream ends", WITHIN, async || {
            bed.statuses(&client).await.iter().all(|status| status.streams == 0)
        })
        .await;
    });
}

/// Stops half-way until it is let go, or given up.
struct Stalling {
    content: Cursor<Vec<u8>>,
    stalls: Option<mpsc::Sender<()>>,
    go_on: mpsc::Receiver<()>,
}

impl Read for Stalling {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let half = self.content.get_ref().len() as u64 / 2;
        if self.content.position() >= half
            && let Some(stalls) = self.stalls.take()
        {
            let _ = stalls.send(());
            self.go_on.recv().map_err(io::Error::other)?;
        }
        self.content.read(buffer)
    }
}

/// What they were granted before is of use to nobody: a server had no memory for others until they went on. They give it back, and go
/// on all the same.
#[test]
fn puts_whose_sources_stall_do_not_keep_others_out() {
    // Room enough for whatever share of the rateless ones goes to whichever device is fastest: a stripe has no other place.
    let shape = Shape { capacity_bytes: Some(1 << 30), ..shape(1, 6) };
    let bed = Bed::with_bucket(&shape, "rateless:redundancy=0.5,tolerate=0");
    bed.ok(&["bucket", "create", "stripe", "--policy", "stripe:devices=6"]);
    let original = bytes(48 << 20, seed());
    block_on(async {
        // Slow enough for every writer to be granted as much as it may have.
        let client = bed.client_of_patience(Duration::from_secs(30)).await;
        let nodes = client.registry().await.unwrap().nodes;
        let devices: Vec<_> = nodes[0].record.devices.iter().map(|device| device.0).collect();
        for &device in &devices {
            client.emulate(device, "rate=40MB").await.unwrap();
        }
        let (stalls, stalled) = mpsc::channel();
        let mut held = Vec::new();
        for number in 0..16 {
            let (release, go_on) = mpsc::channel();
            let content = Cursor::new(original.clone());
            let source = Stalling { content, stalls: Some(stalls.clone()), go_on };
            let client = bed.client_of_patience(Duration::from_secs(60)).await;
            let bucket = if number % 2 == 0 { "data" } else { "stripe" };
            let put =
                async move { client.put(bucket, &format!("stalled-{number}"), source, Some(48 << 20)).await };
            held.push((release, tokio::spawn(put)));
        }
        for number in 0..held.len() {
            eventually(&format!("source {number} stalls"), WITHIN, async || stalled.try_recv().is_ok()).await;
        }
        // What came is written: from here on they are silent.
        tokio::time::sleep(Duration::from_secs(4)).await;
        for &device in &devices {
            client.emulate(device, "off").await.unwrap();
        }
        put(&client, "object", &original).await;
        bed.get_equals("object", &original);
        for (number, (release, put)) in held.into_iter().enumerate() {
            release.send(()).unwrap();
            let put = put.await.unwrap();
            assert!(put.is_ok(), "{number}: {put:?}");
        }
        for key in ["data/stalled-0", "stripe/stalled-15"] {
            let got = bed.run(&["get", key, "-"]);
            assert!(got.status.success() && got.stdout == original, "{key}");
        }
    });
}

#[test]
fn all_disks_stalled_is_an_error_with_names() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(3, 1), "rateless:redundancy=1,tolerate=1");
    let original = bytes(3 << 20, seed);
    block_on(async {
        let client = bed.client().await;
        put(&client, "object", &original).await;
        let devices: Vec<_> =
            client.registry().await.unwrap().nodes.iter().map(|node| node.record.devices[0].0).collect();
        for &device in &devices {
            client.emulate(device, "stall").await.unwrap();
        }
        let got = bed.impatient().await.get("data", "object", None, std::io::sink()).await;
        let error = got.unwrap_err();
        assert!(
            matches!(error, GetError::Read(_)) && error.to_string().contains("nothing arrived"),
            "{error}"
        );
        for &device in &devices {
            client.emulate(device, "off").await.unwrap();
        }
        eventually("reads work again", WITHIN, async || {
            client.get("data", "object", None, std::io::sink()).await.is_ok()
        })
        .await;
    });
}
