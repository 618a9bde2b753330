//! Space reserved for updates: given back where they do not need it, while others go on.

use crate::{
    common::{Bed, WITHIN, block_on, bytes, once_of, put, seed, settled, shape, within},
    files::sync,
    watch::Metrics,
};
use std::{
    collections::BTreeMap,
    io::Cursor,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use steadfast_client::{Client, Options};
use steadfast_lab::cluster::Shape;
use steadfast_protocol::{DeviceId, layout::ParityGeometry};

const SEGMENT: usize = 1 << 20;
/// Of each of two parity chunks of a segment.
const RESERVE: u64 = 1 << 20;
const CHUNK: u64 = 256 << 10;

async fn patient(bed: &Bed) -> Arc<Client> {
    let options = Options { patience: Duration::from_secs(60), ..Options::default() };
    Arc::new(Client::connect(bed.cluster.address(), options).await.unwrap())
}

#[test]
fn reserves_that_updates_do_not_need_are_given_back_and_updates_go_on() {
    // What a server that is held up does not take in place is stored anew.
    once_of("updates go on in place", given_back);
}

/// Whether reserves were given back and updates went on in place.
fn given_back() -> bool {
    let shape = Shape { reserve_period_s: 1, ..shape(6, 1) };
    let mut bed = Bed::with_bucket(&shape, "parity:segment=1MiB,reserve=1MiB");
    let mut model = bytes(3 * SEGMENT, seed());
    let in_place = block_on(tokio::task::LocalSet::new().run_until(async {
        let client = patient(&bed).await;
        let version = put(&client, "object", &model).await.version;
        let before = bed.used_bytes(&client).await;
        // The first segment is changed now and then, the others never.
        let over = Arc::new(AtomicBool::new(false));
        let changing = {
            let (client, over) = (client.clone(), over.clone());
            tokio::task::spawn_local(async move {
                let file = client.open_file("data", "object").await.unwrap();
                let mut written = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let at = written.len() * 7919 % (SEGMENT - 4096);
                    let new = vec![written.len() as u8; 4096];
                    file.write_at(at as u64, &new).await.unwrap();
                    sync(&file).await;
                    written.push((at, new));
                    // Reserves shrink between two.
                    tokio::time::sleep(Duration::from_millis(800)).await;
                }
                file.close().await.unwrap();
                written
            })
        };
        // Beside a chunk that is used as much is left as any change in place may need: 640 KiB, in whole chunks.
        let left = 2 * 3 * CHUNK;
        let mut used = before;
        let shrunk = within(Duration::from_secs(90), async || {
            used = bed.used_bytes(&client).await;
            used + 6 * RESERVE <= before + left
        })
        .await;
        over.store(true, Ordering::Relaxed);
        for (at, new) in changing.await.unwrap() {
            model[at..at + new.len()].copy_from_slice(&new);
        }
        println!("{used} bytes used, {before} before");
        // Less where whoever changes it is held up for some periods: then it seems not to be used either.
        let mut as_expected = shrunk && used + 6 * RESERVE == before + left;
        as_expected &= client.stat("data", "object").await.unwrap().object.version == version;
        let mut change = async |at: usize, length: usize, in_place: u64| {
            let new = bytes(length, at as u64);
            model[at..at + length].copy_from_slice(&new);
            let update = async || client.update("data", "object", at as u64, Cursor::new(new.clone())).await;
            as_expected &= settled(update).await.in_place_bytes == in_place;
        };
        // Where nothing is reserved parity is overwritten; what is too much for that is stored anew.
        change(5000, 100_000, 100_000).await;
        change(SEGMENT + 5000, 20_000, 20_000).await;
        change(2 * SEGMENT - 10_000, 20_000, 20_000).await;
        change(2 * SEGMENT, SEGMENT, 0).await;
        as_expected
    }));
    let given_back = |(_, port): (&str, &str)| {
        Metrics::scrape(port).sum("steadfast_device_reserve_given_back_bytes_total", &[])
    };
    let given_back: f64 = bed.cluster.admin_ports().skip(1).map(given_back).sum();
    assert!(!in_place || given_back >= (6 * RESERVE - 6 * CHUNK) as f64, "{given_back}");
    for (first, second) in [(0, 1), (2, 5), (3, 4)] {
        bed.cluster.kill_node(first).unwrap();
        bed.cluster.kill_node(second).unwrap();
        bed.get_equals("object", &model);
        bed.restart(first);
        bed.restart(second);
    }
    in_place
}

/// A segment of which chunks were moved alone is not changed in place before it is stored anew: those need no reserve.
#[test]
fn chunks_that_a_drain_moves_have_nothing_reserved_beside_them() {
    // Where a server is held up a segment is stored anew instead, with its reserves.
    once_of("chunks are moved alone", moved_alone);
}

/// Whether what was moved had no reserve, and had one again once it was stored anew.
fn moved_alone() -> bool {
    let bed = Bed::with_bucket(&shape(7, 1), "parity:segment=1MiB,reserve=1MiB");
    let mut model = bytes(8 * SEGMENT, seed());
    let as_expected = block_on(async {
        let client = patient(&bed).await;
        put(&client, "object", &model).await;
        let before = bed.used_bytes(&client).await;
        let found = client.stat("data", "object").await.unwrap();
        let mut parity: BTreeMap<DeviceId, Vec<usize>> = BTreeMap::new();
        for (position, layout) in found.segments.iter().enumerate() {
            let shape = ParityGeometry::of_layout(layout).unwrap();
            for &device in &shape.holders(layout).unwrap()[shape.data as usize..] {
                parity.entry(device).or_default().push(position);
            }
        }
        let (leaving, moved) = parity.into_iter().max_by_key(|(_, moved)| moved.len()).unwrap();
        bed.settled(&["device", "drain", &leaving.to_string()]);
        let is_used =
            async |bytes: u64| within(WITHIN, async || bed.used_bytes(&client).await == bytes).await;
        let left = before - moved.len() as u64 * RESERVE;
        if !is_used(left).await {
            return false;
        }
        let (at, length) = (moved[0] * SEGMENT, 100);
        let mut as_expected = true;
        for (value, in_place) in [(1, 0), (2, length as u64)] {
            model[at..at + length].fill(value);
            let new = || Cursor::new(vec![value; length]);
            let update = async || client.update("data", "object", at as u64, new()).await;
            as_expected &= settled(update).await.in_place_bytes == in_place;
        }
        as_expected && is_used(left + RESERVE).await
    });
    bed.get_equals("object", &model);
    as_expected
}
