//! Buckets of policy `parity`: objects stored as chunks, read whole and in part while servers are down, moved and refused.

use crate::common::{Bed, WITHIN, block_on, bytes, eventually, known_to_be_well, put, seed, settled, shape};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Cursor,
    time::{Duration, Instant},
};
use steadfast_client::{Client, Options, PutError};
use steadfast_protocol::{
    DeviceId,
    layout::{ParityGeometry, SegmentLayout},
    write::WriteError,
};

const MIB: usize = 1 << 20;

/// By key: nothing, a byte, a granule, a segment that is not full, three of them.
fn objects() -> Vec<(&'static str, Vec<u8>)> {
    let lengths = [("none", 0), ("byte", 1), ("granule", 4096), ("odd", 5 * MIB + 3), ("many", 40 * MIB)];
    lengths.iter().zip(seed()..).map(|(&(key, length), seed)| (key, bytes(length, seed))).collect()
}

/// Each chunk whole on a device of its own.
fn chunks(layout: &SegmentLayout) -> Vec<DeviceId> {
    let shape = ParityGeometry::of_layout(layout).expect("a parity segment");
    shape.holders(layout).expect("every chunk lies whole on one device")
}

/// Six servers, so that no chunk has another place to go to.
#[test]
fn the_data_chunks_of_a_put_lie_evenly() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:code=rs(6,4),segment=1MiB,update=fo");
    block_on(async {
        let client = bed.client().await;
        put(&client, "object", &bytes(24 * MIB, seed())).await;
        let mut data = BTreeMap::new();
        for segment in client.stat("data", "object").await.unwrap().segments {
            for device in &chunks(&segment)[..4] {
                *data.entry(*device).or_insert(0) += 1;
            }
        }
        assert!(data.len() == 6 && data.values().all(|chunks| (15..=17).contains(chunks)), "{data:?}");
    });
}

fn put_all(bed: &Bed) -> Vec<(&'static str, Vec<u8>)> {
    let objects = objects();
    for (key, original) in &objects {
        let file = bed.dir.path().join(key);
        fs::write(&file, original).unwrap();
        bed.put(&file, key);
    }
    objects
}

fn get_range(bed: &Bed, key: &str, from: usize, to: usize) -> Vec<u8> {
    let copy = bed.dir.path().join("part");
    let range = format!("{from}-{to}");
    bed.ok(&["get", &format!("data/{key}"), copy.to_str().unwrap(), "--range", &range]);
    fs::read(copy).unwrap()
}

#[test]
fn objects_are_chunks_and_come_back_with_two_servers_dead() {
    let mut bed = Bed::with_bucket(&shape(7, 1), "parity:code=rs(6,4),segment=16MiB,reserve=64KiB");
    assert!(bed.ok(&["bucket", "ls"]).contains("parity:code=rs(6,4),segment=16MiB,update=plr,reserve=64KiB"));
    let objects = put_all(&bed);
    for (key, original) in &objects {
        bed.get_equals(key, original);
    }
    // A source of unknown length is cut alike.
    block_on(async {
        let client = bed.client().await;
        let (_, odd) = &objects[3];
        let (_, many) = &objects[4];
        for (key, original) in [("odd-streamed", odd), ("many-streamed", many)] {
            settled(async || client.put("data", key, Cursor::new(original.clone()), None).await).await;
            let (known, streamed) = (
                client.stat("data", key.trim_end_matches("-streamed")).await.unwrap(),
                client.stat("data", key).await.unwrap(),
            );
            let shapes = |stat: &steadfast_client::ObjectStat| -> Vec<_> {
                stat.segments.iter().map(|it| (it.length, ParityGeometry::of_layout(it))).collect()
            };
            assert_eq!(shapes(&known), shapes(&streamed));
        }
        let stat = client.stat("data", "many").await.unwrap();
        let lengths: Vec<u64> = stat.segments.iter().map(|segment| segment.length).collect();
        assert_eq!(lengths, [16 << 20, 16 << 20, 8 << 20]);
        let used: BTreeSet<DeviceId> = stat.segments.iter().flat_map(chunks).collect();
        assert!(used.len() >= 6, "{used:?}");
    });
    assert!(bed.ok(&["stat", "data/odd"]).contains("rs(6,4), K = 8, N = 12"));
    let said = bed.fails(2, &["tune", "data/odd", "--redundancy", "1"]);
    assert!(said.contains("6 chunks, any 4 of which give it"), "{said}");

    let many = &objects[4].1;
    let ranges =
        [(0, 0), (4095, 4096), (4 * MIB - 1, 4 * MIB), (5 * MIB, 20 * MIB), (40 * MIB - 1, 40 * MIB - 1)];
    for (from, to) in ranges {
        assert!(get_range(&bed, "many", from, to) == many[from..=to], "bytes {from}-{to}");
    }
    for (first, second) in [(0, 1), (2, 5), (3, 6)] {
        bed.cluster.kill_node(first).unwrap();
        bed.cluster.kill_node(second).unwrap();
        for (key, original) in &objects {
            bed.get_equals(key, original);
        }
        bed.get_equals("odd-streamed", &objects[3].1);
        for (from, to) in ranges {
            assert!(get_range(&bed, "many", from, to) == many[from..=to], "bytes {from}-{to}");
        }
        bed.restart(first);
        bed.restart(second);
    }
}

/// Devices of a known pace: what is late is late, also on a busy machine. One segment: of two that arrive side by side, chunks on
/// one device share its pace, and another's parity may come sooner.
#[test]
fn a_reader_is_sent_the_data_alone_and_one_chunk_more_for_one_that_is_lost() {
    let mut disks = shape(6, 1);
    disks.emulate = Some("rate=20MB".to_owned());
    let mut bed = Bed::with_bucket(&disks, "parity");
    let original = bytes(16 * MIB, seed());
    let dead = block_on(async {
        let client = patient(&bed).await;
        put(&client, "object", &original).await;
        eventually("only the data is asked for", WITHIN, async || {
            let report = client.get("data", "object", None, std::io::sink()).await.unwrap();
            println!("healthy: {report:?}");
            assert_eq!(report.segment_bytes, 16 << 20);
            report.requested_blocks == 16 && report.io_overhead() < 0.001
        })
        .await;
        let first = chunks(&client.stat("data", "object").await.unwrap().segments[0]);
        bed.server_of(&client, first[1]).await
    });
    bed.cluster.kill_node(dead).unwrap();
    block_on(async {
        let client = patient(&bed).await;
        eventually("no more than a chunk stands in", WITHIN, async || {
            let report = client.get("data", "object", None, std::io::sink()).await.unwrap();
            println!("degraded: {report:?}");
            report.io_overhead() < 0.1
        })
        .await;
    });
}

/// A client whose patience no busy machine exhausts.
async fn patient(bed: &Bed) -> Client {
    let options = Options { patience: Duration::from_secs(120), ..Options::default() };
    Client::connect(bed.cluster.address(), options).await.unwrap()
}

#[test]
fn a_chunk_goes_to_another_server_where_one_stalls_or_is_dead() {
    let mut bed = Bed::with_bucket(&shape(7, 1), "parity");
    let original = bytes(20 * MIB, seed());
    block_on(async {
        let client = bed.client().await;
        put(&client, "before", &original).await;
        // The device of a chunk of any put: with seven of them and six chunks, six puts of seven use it.
        let device = client.registry().await.unwrap().nodes[0].record.devices[0].0;
        client.emulate(device, "stall").await.unwrap();
        for key in ["a", "b", "c"] {
            let start = Instant::now();
            // Without a spare it would end with the client's patience.
            put(&client, key, &original).await;
            println!("{key}: {:?}", start.elapsed());
            let stat = client.stat("data", key).await.unwrap();
            assert!(stat.segments.iter().all(|segment| !chunks(segment).contains(&device)));
        }
        client.emulate(device, "off").await.unwrap();
        known_to_be_well(&client, device).await;
    });
    bed.cluster.kill_node(3).unwrap();
    let file = bed.dir.path().join("original");
    fs::write(&file, &original).unwrap();
    bed.put(&file, "after");
    bed.cluster.kill_node(0).unwrap();
    for key in ["before", "a", "b", "c", "after"] {
        bed.get_equals(key, &original);
    }
    // Five servers are left: no object with fewer chunks than its bucket promises.
    let said = bed.fails(6, &["put", file.to_str().unwrap(), "data/short"]);
    assert!(said.contains("the policy needs 6"), "{said}");
    assert!(!bed.ok(&["ls", "data"]).contains("short"));
}

/// Six devices and one of them stalls: nobody can take its chunk.
#[test]
fn without_a_spare_a_put_ends_with_what_is_missing() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let original = bytes(MIB, seed());
    block_on(async {
        let client = bed.client().await;
        let device = client.registry().await.unwrap().nodes[2].record.devices[0].0;
        put(&client, "object", &original).await;
        client.emulate(device, "stall").await.unwrap();
        let late = bed.impatient().await.put("data", "late", Cursor::new(original.clone()), None).await;
        let error = late.unwrap_err();
        match &error {
            // Others may be held up, too.
            PutError::Write(WriteError::Stalled { silent, .. }) => {
                assert!(silent.contains(&device), "{silent:?}");
            }
            PutError::Plan(plan) => assert!(plan.to_string().contains("6 nodes"), "{plan}"),
            other => panic!("{other}"),
        }
        // A reader does without it.
        let report = client.get("data", "object", None, std::io::sink()).await.unwrap();
        assert_eq!(report.size, original.len() as u64);
        client.emulate(device, "off").await.unwrap();
    });
}

/// Half of the servers are dead: what is to be changed cannot be read, and that is said, not that others changed it.
#[test]
fn a_change_that_too_few_servers_have_says_so() {
    let mut bed = Bed::with_bucket(&shape(6, 1), "parity:segment=4MiB");
    let file = bed.file("original", 4 << 20, seed());
    bed.put(&file, "object");
    // The first data chunk's server among them: nothing of it can be changed in place.
    let (version, dead) = block_on(async {
        let client = bed.client().await;
        let found = client.stat("data", "object").await.unwrap();
        let mut dead = Vec::new();
        for &device in &chunks(&found.segments[0])[..3] {
            dead.push(bed.server_of(&client, device).await);
        }
        (found.object.version, dead)
    });
    for server in dead {
        bed.cluster.kill_node(server).unwrap();
    }
    let patch = bed.file("patch", 70_000, seed() + 9);
    for change in [["--offset", "0"], ["--offset", "4000"]] {
        let [flag, at] = change;
        let said = bed.fails(5, &["write", "data/object", flag, at, patch.to_str().unwrap()]);
        assert!(!said.contains("others changed"), "{said}");
    }
    // It was not begun again and again.
    let now = block_on(async { bed.client().await.stat("data", "object").await.unwrap().object.version });
    assert!(now.0 <= version.0 + 8, "{version} became {now}");
}

#[test]
fn chunks_move_from_a_drained_device_and_some_bytes_are_changed() {
    let bed = Bed::with_bucket(&shape(7, 1), "parity:segment=4MiB");
    let mut original = bytes(9 * MIB + 5, seed());
    let file = bed.dir.path().join("original");
    fs::write(&file, &original).unwrap();
    bed.put(&file, "object");
    let segments = || block_on(async { bed.client().await.stat("data", "object").await.unwrap().segments });
    let leaving = chunks(&segments()[0])[1];
    bed.settled(&["device", "drain", &leaving.to_string()]);
    assert!(segments().iter().all(|segment| !chunks(segment).contains(&leaving)));
    bed.get_equals("object", &original);
    // Of six left none can go.
    let other = chunks(&segments()[0])[0];
    let said = bed.fails(6, &["device", "drain", &other.to_string()]);
    assert!(said.contains("data") && said.contains("6 nodes"), "{said}");

    let patch = bed.file("patch", 700_000, seed() + 9);
    bed.settled(&["put", patch.to_str().unwrap(), "data/object", "--range", "4000000-"]);
    original[4_000_000..4_700_000].copy_from_slice(&fs::read(&patch).unwrap());
    bed.get_equals("object", &original);
    assert!(segments().iter().all(|segment| chunks(segment).len() == 6));
    // A change in place heeds a wish that cannot be, as any other does.
    let small = bed.file("small", 512, seed() + 10);
    for wish in ["tolerate=9", "redundancy=1"] {
        bed.fails(2, &["put", small.to_str().unwrap(), "data/object", "--range", "0-", "--qos", wish]);
    }
    bed.get_equals("object", &original);
    // What was replaced is freed: three segments of (6, 4), of 4, 4 and (1 MiB + 5 B) padded to 2 MiB, and
    // beside their parity chunks as much again: 15 and 5 MiB.
    block_on(async {
        let client = bed.client().await;
        eventually("old chunks are freed", WITHIN, async || bed.used_bytes(&client).await < 22 << 20).await;
        client.remove("data", "object").await.unwrap();
        eventually("all chunks are freed", WITHIN, async || bed.used_bytes(&client).await == 0).await;
    });
}

#[test]
fn policies_that_cannot_be_are_refused() {
    let bed = Bed::start(&shape(4, 2));
    let create = |code, policy: &str| bed.fails(code, &["bucket", "create", "data", "--policy", policy]);
    let said = create(6, "parity");
    assert!(said.contains('6') && said.contains("nodes") && said.contains('4'), "{said}");
    assert!(create(2, "parity:code=rdp(6,4)").contains("the only code of such buckets"));
    assert!(create(2, "parity:update=fo,reserve=4MiB").contains("leave `reserve` out"));
    bed.ok(&["bucket", "create", "data", "--policy", "parity:code=rs(8,6),domain=device,segment=1MiB"]);
    let file = bed.file("original", 300_000, seed());
    bed.put(&file, "object");
    bed.get_equals("object", &fs::read(&file).unwrap());
    let said = bed.fails(2, &["put", file.to_str().unwrap(), "data/object", "--qos", "devices=8"]);
    assert!(said.contains("no devices to wish for"), "{said}");
    let layout =
        block_on(async { bed.client().await.stat("data", "object").await.unwrap() }).segments.remove(0);
    assert_eq!(chunks(&layout).len(), 8);
}
