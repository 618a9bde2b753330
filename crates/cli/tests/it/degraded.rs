//! Parity buckets that do with fewer chunks on as many servers as a segment has chunks, while some of them do not serve: written with
//! fewer, complete again afterwards.

use crate::{
    common::{Bed, WITHIN, block_on, bytes, eventually, known_to_be_well, put, seed, settled, shape},
    files,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{collections::BTreeSet, fs, io::Cursor, time::Instant};
use steadfast_client::{Client, PutError, PutOptions, Quality};
use steadfast_lab::cluster::Shape;
use steadfast_protocol::{DeviceId, layout::ParityGeometry, write::WriteError};

const MIB: usize = 1 << 20;

/// Chunks of each segment of an object.
async fn chunks(client: &Client, key: &str) -> Vec<u32> {
    let found = client.stat("data", key).await.unwrap();
    found.segments.iter().map(|layout| ParityGeometry::of_layout(layout).unwrap().chunks).collect()
}

async fn change(client: &Client, model: &mut [u8], offset: usize, new: Vec<u8>) -> u64 {
    model[offset..offset + new.len()].copy_from_slice(&new);
    let update = async || client.update("data", "object", offset as u64, Cursor::new(new.clone())).await;
    settled(update).await.in_place_bytes
}

#[test]
fn with_a_server_dead_everything_can_be_written_and_is_completed_when_it_is_back() {
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let shape = Shape { repair_period_s: 0, ..shape(6, 1) };
    let mut bed = Bed::with_bucket(&shape, "parity:segment=4MiB,least=5");
    // Two full segments and a short one; every server has a chunk of each.
    let mut model = bytes(9 * MIB + 12_345, seed);
    let new = bytes(6 * MIB, seed + 1);
    let file = bed.dir.path().join("new");
    fs::write(&file, &new).unwrap();
    let new_file = file.to_str().unwrap();
    block_on(async {
        let client = bed.client().await;
        // A device that is held up for some seconds is gone without.
        eventually("all chunks are stored", WITHIN, async || {
            put(&client, "object", &model).await;
            chunks(&client, "object").await == [6, 6, 6]
        })
        .await;
    });
    assert!(bed.ok(&["repair"]).contains("nothing is degraded"));
    bed.cluster.kill_node(2).unwrap();
    block_on(async {
        let client = bed.client().await;
        let report = put(&client, "new", &new).await;
        assert_eq!((report.degraded_segments, chunks(&client, "new").await), (2, vec![5, 5]));
        let mut in_place = 0;
        for round in 0..2 {
            // A few bytes of every chunk.
            for chunk in 0..9 {
                let offset = chunk * MIB + (random.next_u64() % 900_000) as usize;
                let changed = change(&client, &mut model, offset, bytes(5000, seed + offset as u64)).await;
                in_place += u32::from(round == 1 && changed == 5000);
            }
        }
        // What a server that is held up does not take is stored anew.
        assert!(in_place >= 6, "{in_place} of 9 in place: degraded segments change so, too");
        // Of the last, short segment no chunk that lies there was changed, perhaps.
        assert_eq!(chunks(&client, "object").await[..2], [5, 5]);
        // A file grows, in place and by further segments, and is cut.
        let client = files::patient(&bed).await;
        let opened = files::open(&client).await;
        for more in [bytes(3000, seed + 2), bytes(5 * MIB, seed + 3)] {
            let at = model.len();
            model.extend_from_slice(&more);
            files::write(&opened, &mut model, at, &more).await;
            files::sync(&opened).await;
        }
        files::check(&opened, &model, "with a server dead").await;
        files::close(opened).await;
        settled(async || client.truncate("data", "object", 13 * MIB as u64).await).await;
        model.truncate(13 * MIB);
        assert_eq!(chunks(&client, "object").await[..2], [5, 5]);
        // Who wants all chunks has to wait.
        let all = PutOptions { quality: Quality { tolerate: Some(2), ..Quality::default() } };
        let strict = client.put_with("data", "strict", Cursor::new(new.clone()), None, &all);
        let refused = strict.await.unwrap_err().to_string();
        assert!(refused.contains('6'), "{refused}");
    });
    let status = bed.ok(&["status"]);
    assert!(status.contains("with fewer parity chunks"), "{status}");
    let stat = bed.ok(&["stat", "data/new"]);
    assert!(stat.contains("degraded   2 of 2 segments with fewer chunks than `parity:"), "{stat}");
    assert_eq!(stat.matches("; degraded: 1 chunk missing").count(), 2, "{stat}");
    let stat: serde_json::Value = serde_json::from_str(&bed.ok(&["stat", "data/new", "--json"])).unwrap();
    assert_eq!((&stat["degraded_segments"], &stat["segments"][1]["missing_chunks"]), (&2.into(), &1.into()));
    let said = bed.fails(6, &["repair"]);
    assert!(said.contains("cannot be completed now: ") && said.contains('6'), "{said}");
    // One parity chunk is left to be lost.
    bed.cluster.kill_node(4).unwrap();
    bed.get_equals("object", &model);
    bed.get_equals("new", &new);
    let said = bed.fails(6, &["put", new_file, "data/short"]);
    assert!(said.contains("needs 5") || said.contains("5 failure domains"), "{said}");
    assert!(!bed.ok(&["ls", "data"]).contains("short"));

    bed.restart(2);
    bed.restart(4);
    bed.get_equals("object", &model);
    let done: serde_json::Value = serde_json::from_str(&bed.settled(&["repair", "--json"])).unwrap();
    println!("{done}");
    let status: serde_json::Value = serde_json::from_str(&bed.ok(&["status", "--json"])).unwrap();
    assert_eq!(status["degraded_segments"], 0);
    let stat = bed.ok(&["stat", "data/new"]);
    assert!(!stat.contains("degraded"), "{stat}");
    block_on(async {
        let client = bed.client().await;
        assert_eq!(chunks(&client, "object").await, [6; 4]);
        assert_eq!(chunks(&client, "new").await, [6; 2]);
        // They change in place as before.
        let in_place = change(&client, &mut model, 100, bytes(5000, seed + 9)).await;
        println!("{in_place} bytes in place");
    });
    for (first, second) in [(0, 1), (3, 5)] {
        bed.cluster.kill_node(first).unwrap();
        bed.cluster.kill_node(second).unwrap();
        bed.get_equals("object", &model);
        bed.get_equals("new", &new);
        bed.restart(first);
        bed.restart(second);
    }
}

/// Two devices a server: a degraded segment's chunks move from one disk to the other of its server, and a lost one is rebuilt there.
#[test]
fn degraded_segments_leave_devices_with_as_many_chunks_as_they_have() {
    let shape = Shape { repair_period_s: 0, ..shape(6, 2) };
    let mut bed = Bed::with_bucket(&shape, "parity:segment=1MiB,least=5");
    let original = bytes(20 * MIB, seed());
    bed.cluster.kill_node(1).unwrap();
    let (moved, lost, lost_server) = block_on(async {
        let client = bed.client().await;
        put(&client, "object", &original).await;
        assert_eq!(chunks(&client, "object").await, [5; 20]);
        let found = client.stat("data", "object").await.unwrap();
        let holders = &found.segments[0].holders;
        let lost = holders[4].device;
        (holders[2].device, lost, bed.server_of(&client, lost).await)
    });
    let (moved, lost) = (moved.to_string(), lost.to_string());
    // It takes more than one amendment, and some segments were changed in place before.
    block_on(async {
        let client = bed.client().await;
        for offset in [0, MIB, 7 * MIB] {
            let same = original[offset..offset + 3000].to_vec();
            let update =
                async || client.update("data", "object", offset as u64, Cursor::new(same.clone())).await;
            settled(update).await;
        }
    });
    bed.settled(&["device", "drain", &moved, "--force"]);
    bed.get_equals("object", &original);
    let held = |device: &str| {
        let lines = bed.ok(&["device", "ls", "--json"]);
        let devices = lines.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let mut found = devices.filter(|one| one["device"] == *device);
        found.next().map(|one| one["blocks"].as_u64().unwrap())
    };
    assert_eq!(held(&moved), Some(0));
    // The disk is dead, its server is not.
    block_on(async { bed.client().await.emulate(lost.parse().unwrap(), "error").await.unwrap() });
    bed.settled(&["device", "remove", "--lost", &lost]);
    assert_eq!(held(&lost), None);
    bed.get_equals("object", &original);
    block_on(async {
        let client = bed.client().await;
        assert_eq!(chunks(&client, "object").await, [5; 20]);
    });
    // One more may be lost, as before.
    let other = (0..6).find(|&server| server != 1 && server != lost_server).unwrap();
    bed.cluster.kill_node(other).unwrap();
    bed.get_equals("object", &original);
    bed.restart(other);
    bed.restart(1);
    let version =
        || block_on(async { bed.client().await.stat("data", "object").await.unwrap().object.version });
    let before = version();
    bed.settled(&["repair"]);
    // In lots: eight, eight, three, and the last alone.
    assert!(version().0 >= before.0 + 4, "what was replaced is freed in between");
    block_on(async {
        let client = bed.client().await;
        assert_eq!(chunks(&client, "object").await, [6; 20]);
    });
    bed.get_equals("object", &original);
}

#[test]
fn segments_get_as_many_chunks_more_as_there_are_servers() {
    let shape = Shape { repair_period_s: 0, ..shape(6, 1) };
    let mut bed = Bed::with_bucket(&shape, "parity:code=rs(6,3),segment=1MiB,least=4");
    let original = bytes(2 * MIB, seed());
    let now = |bed: &Bed| block_on(async { chunks(&bed.client().await, "object").await });
    for server in [1, 4] {
        bed.cluster.kill_node(server).unwrap();
    }
    block_on(async { put(&bed.client().await, "object", &original).await });
    assert_eq!(now(&bed), [4; 2]);
    for (server, chunks) in [(1, 5), (4, 6)] {
        bed.fails(6, &["repair"]);
        assert_eq!(now(&bed), [chunks - 1; 2]);
        bed.restart(server);
        // With fewer than all it says what is missing still, and goes no further while a dead server is not known to be dead.
        let deadline = Instant::now() + WITHIN;
        while now(&bed) != [chunks; 2] {
            let said = bed.run(&["repair"]);
            println!("{}", String::from_utf8_lossy(&said.stderr));
            assert!(Instant::now() < deadline, "{chunks} chunks: not within {WITHIN:?}");
        }
        bed.get_equals("object", &original);
    }
}

/// Six devices and one of them stalls: nobody can take its chunk.
#[test]
fn with_a_device_that_stalls_a_segment_has_fewer_chunks_until_it_serves_again() {
    let shape = Shape { repair_period_s: 1, ..shape(6, 1) };
    let bed = Bed::with_bucket(&shape, "parity:segment=1MiB,least=5");
    let original = bytes(3 * MIB, seed());
    block_on(async {
        let client = bed.client_of_patience(std::time::Duration::from_secs(8)).await;
        let device = client.registry().await.unwrap().nodes[2].record.devices[0].0;
        put(&client, "object", &original).await;
        client.emulate(device, "stall").await.unwrap();
        // Who wants all chunks is told who is silent.
        let all = PutOptions { quality: Quality { tolerate: Some(2), ..Quality::default() } };
        let strict = client.put_with("data", "late", Cursor::new(original.clone()), None, &all);
        match &strict.await.unwrap_err() {
            // Others may be held up, too.
            PutError::Write(WriteError::Stalled { silent, .. }) => {
                assert!(silent.contains(&device), "{silent:?}");
            }
            PutError::Plan(plan) => assert!(plan.to_string().contains("6 nodes"), "{plan}"),
            other => panic!("{other}"),
        }
        let report = put(&client, "late", &original).await;
        assert_eq!((report.degraded_segments, chunks(&client, "late").await), (3, vec![5; 3]));
        let found = client.stat("data", "late").await.unwrap();
        let holders: BTreeSet<DeviceId> =
            found.segments.iter().flat_map(|layout| &layout.holders).map(|holder| holder.device).collect();
        assert!(holders.len() == 5 && !holders.contains(&device));
        // Small changes, of a chunk there and of others.
        let mut model = original.clone();
        for offset in [0, 300_000, 600_000, 900_000, 2_000_000] {
            change(&client, &mut model, offset, bytes(4096, offset as u64)).await;
        }
        // A reader does without it.
        let report = client.get("data", "object", None, std::io::sink()).await.unwrap();
        assert_eq!(report.size, model.len() as u64);
        assert!(client.degraded().await.unwrap().segments >= 3);
        client.emulate(device, "off").await.unwrap();
        known_to_be_well(&client, device).await;
        eventually("all is complete, without being asked", WITHIN, async || {
            client.degraded().await.unwrap().segments == 0
        })
        .await;
        assert_eq!(chunks(&client, "late").await, [6; 3]);
        bed.get_equals("late", &original);
        bed.get_equals("object", &model);
    });
}
