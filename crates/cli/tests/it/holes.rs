//! Holes of files, on real processes: what takes no room, who sees what is written into one, and writers who fill them together.

use crate::{
    common::{Bed, block_on, bytes, once_of, seed, settled, shape},
    files::{check, open, patient, sync},
    sizes::{CREATE, survives_any_two},
};
use std::{
    collections::BTreeSet,
    sync::{Arc, Barrier},
    time::Duration,
};
use steadfast_client::{Client, Options};
use steadfast_protocol::DeviceId;

const MIB: usize = 1 << 20;
const GIB: u64 = 1 << 30;

/// Chunks on all devices.
fn stored(bed: &Bed) -> usize {
    block_on(async {
        let found = bed.client().await.stat("data", "object").await.unwrap();
        found.segments.iter().map(|layout| layout.holders.len()).sum()
    })
}

#[test]
fn a_file_of_holes_takes_no_room_and_has_what_is_written_into_them() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity");
    let patch = bed.file("patch", 5000, 3);
    let new = bytes(5000, 3);
    block_on(async {
        let client = patient(&bed).await;
        client.open_file_with("data", "object", &CREATE).await.unwrap().close().await.unwrap();
    });
    bed.ok(&["truncate", "data/object", "100GiB"]);
    assert_eq!(stored(&bed), 0);
    let stat = bed.ok(&["stat", "data/object"]);
    assert!(stat.contains("hole       100.0 GiB of zeros, which nobody stores"), "{stat}");
    let json: serde_json::Value = serde_json::from_str(&bed.ok(&["stat", "data/object", "--json"])).unwrap();
    let hole = &json["segments"][0];
    assert_eq!((&hole["code"], &hole["holders"]), (&"hole".into(), &serde_json::json!([])));
    assert!(hole["redundancy"].is_null() && json["degraded_segments"] == 0);
    block_on(async {
        // One who has opened it before sees what another has written since.
        let client = patient(&bed).await;
        let before = open(&client).await;
        assert!(before.read_at(50 * GIB, 100_000).await.unwrap() == vec![0; 100_000]);
        bed.settled(&["write", "data/object", "--offset", "53687091300", patch.to_str().unwrap()]);
        let mut model = vec![0; 100_000];
        model[100..5100].copy_from_slice(&new);
        assert!(before.read_at(50 * GIB, 100_000).await.unwrap() == model, "known as a hole before");
        assert!(open(&client).await.read_at(50 * GIB, 100_000).await.unwrap() == model);
    });
    // Of 6,400 segments one is stored, of six chunks.
    assert_eq!(stored(&bed), 6);
    let out = bed.dir.path().join("out");
    bed.ok(&["get", "data/object", out.to_str().unwrap(), "--range", "53687091190-53687096309"]);
    assert!(std::fs::read(&out).unwrap() == [&[0; 110][..], &new, &[0; 10]].concat());
    // Cut within a hole, within what is stored, and made longer again.
    for size in [60 * GIB + 7, 50 * GIB + 3000, 50 * GIB + 4000, 70 * GIB] {
        bed.settled(&["truncate", "data/object", &size.to_string()]);
        assert_eq!(stored(&bed), 6, "{size}");
    }
    bed.ok(&["get", "data/object", out.to_str().unwrap(), "--range", "53687091190-53687096309"]);
    assert!(std::fs::read(&out).unwrap() == [&[0; 110][..], &new[..2900], &[0; 2110]].concat());
    bed.ok(&["rm", "data/object"]);
    bed.fails(3, &["stat", "data/object"]);
}

/// Whatever of it is a hole; also decoded, moved, and read where two servers are away.
#[test]
fn holes_are_read_as_zeros_in_every_way() {
    let mut bed = Bed::with_bucket(&shape(8, 1), "parity:segment=1MiB");
    let mut model = vec![0; 9 * MIB + 500];
    block_on(async {
        let client = patient(&bed).await;
        let file = client.open_file_with("data", "object", &CREATE).await.unwrap();
        settled(async || file.truncate(model.len() as u64).await).await;
        for (at, length) in [(2 * MIB + 5, 9000), (5 * MIB - 20_000, 40_000), (7 * MIB, MIB)] {
            let new = bytes(length, at as u64);
            settled(async || file.write_at(at as u64, &new).await).await;
            model[at..at + length].copy_from_slice(&new);
        }
        sync(&file).await;
        check(&file, &model, "its own").await;
        check(&open(&client).await, &model, "opened").await;
        let found = client.stat("data", "object").await.unwrap();
        let holes: Vec<bool> = found.segments.iter().map(|layout| layout.is_hole()).collect();
        assert_eq!(holes.iter().filter(|is_hole| !**is_hole).count(), 4, "{holes:?}");
        // One between two that are stored is filled by another client, under a handle that knows it as a hole.
        let (before, other) = (open(&client).await, open(&patient(&bed).await).await);
        let (at, new) = (6 * MIB + 100, bytes(300, 6));
        assert!(holes[6] && !holes[5] && !holes[7]);
        settled(async || other.write_at(at as u64, &new).await).await;
        sync(&other).await;
        model[at..at + 300].copy_from_slice(&new);
        let read = before.read_at(6 * MIB as u64, MIB).await.unwrap();
        assert!(read == model[6 * MIB..7 * MIB], "known as a hole before");
        // Away from every device that holds some, one after the other.
        let pieces = found.segments.iter().flat_map(|layout| layout.pieces());
        let devices: BTreeSet<DeviceId> = pieces.map(|(device, _)| device).collect();
        for device in devices {
            let lost = [device].into();
            assert!(client.decoded_without("data", "object", &lost).await.unwrap() == model);
            settled(async || client.without_devices("data", "object", &lost).await).await;
            check(&open(&client).await, &model, "moved").await;
        }
    });
    bed.get_equals("object", &model);
    bed.cluster.kill_node(1).unwrap();
    bed.cluster.kill_node(4).unwrap();
    bed.get_equals("object", &model);
    block_on(async { check(&open(&patient(&bed).await).await, &model, "without two servers").await });
    bed.restart(1);
    bed.restart(4);
}

/// As parallel programs do that make the whole file first, and as those that do not.
#[test]
fn writers_who_fill_a_file_together_store_each_segment_once() {
    once_of("each segment is stored once", || fills(true));
    once_of("so it is behind the end", || fills(false));
}

/// Whether no segment was stored twice, as one is where a server is held up, also not in vain.
fn fills(is_made_first: bool) -> bool {
    const WRITERS: usize = 6;
    const EACH: usize = 2;
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let address = bed.cluster.address().to_owned();
    let size = (WRITERS * EACH * MIB) as u64;
    block_on(async {
        let file = patient(&bed).await.open_file_with("data", "object", &CREATE).await.unwrap();
        if is_made_first {
            settled(async || file.truncate(size).await).await;
        }
        file.close().await.unwrap();
    });
    let begin = Arc::new(Barrier::new(WRITERS));
    let new = |part: usize| bytes(MIB, part as u64 ^ seed());
    let threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (address, begin) = (address.clone(), Arc::clone(&begin));
            std::thread::spawn(move || {
                block_on(async {
                    let options = Options { patience: Duration::from_secs(60), ..Options::default() };
                    let client = Arc::new(Client::connect(&address, options).await.unwrap());
                    let file = client.open_file("data", "object").await.unwrap();
                    for round in 0..EACH {
                        // Those behind first, so that there are holes before them.
                        let part = (EACH - 1 - round) * WRITERS + writer;
                        begin.wait();
                        settled(async || file.write_at((part * MIB) as u64, &new(part)).await).await;
                        sync(&file).await;
                        assert!(file.size() >= ((part + 1) * MIB) as u64);
                        assert!(file.read_at((part * MIB) as u64, MIB).await.unwrap() == new(part));
                    }
                    let counts = file.counts();
                    counts.segments_anew + counts.segments_added
                })
            })
        })
        .collect();
    let stored: u64 = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
    let model: Vec<u8> = (0..WRITERS * EACH).flat_map(new).collect();
    bed.get_equals("object", &model);
    let written: u64 = block_on(async {
        let client = bed.client().await;
        survives_any_two(&client, &model).await;
        let statuses = bed.statuses(&client).await;
        statuses.iter().flat_map(|status| &status.devices).map(|device| device.medium_written_bytes).sum()
    });
    println!("{stored} segments stored, {written} bytes written for {size}");
    // Six chunks for four, and what is written beside them: 0.06 of that, on a quiet machine.
    stored == (WRITERS * EACH) as u64 && written < size * 6 / 4 * 130 / 100
}
