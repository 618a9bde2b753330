//! Objects changed where they are: bytes, redundancy, devices; with servers dead, clients killed and readers beside.

use crate::common::{self, Bed, WITHIN, block_on, bytes, eventually, put, seed, shape};
use std::{
    collections::BTreeSet,
    fs,
    io::{self, Cursor, Write},
    process::Stdio,
    sync::{Arc, Mutex},
};
use steadfast_client::{AmendError, Client, GetError, ObjectStat};
use steadfast_lab::cluster::Shape;
use steadfast_protocol::{DeviceId, layout::PIECES_MERGED_AT, read::ReadError, write::WriteError};

const RATELESS: &str = "rateless:redundancy=0.5,tolerate=2";

/// A sink whose bytes can be looked at.
#[derive(Clone, Default)]
struct Kept(Arc<Mutex<Vec<u8>>>);

impl Write for Kept {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

async fn get(client: &Client, key: &str) -> Result<Vec<u8>, GetError> {
    let sink = Kept::default();
    client.get("data", key, None, sink.clone()).await?;
    Ok(std::mem::take(&mut *sink.0.lock().unwrap()))
}

/// Writes `patch` over `content` and over the object, by the program; what it says.
fn update(bed: &Bed, key: &str, content: &mut [u8], offset: usize, patch: &[u8]) -> serde_json::Value {
    content[offset..offset + patch.len()].copy_from_slice(patch);
    let file = bed.dir.path().join("patch");
    fs::write(&file, patch).unwrap();
    let (object, range) = (format!("data/{key}"), format!("{offset}-"));
    settled(bed, &["put", file.to_str().unwrap(), &object, "--range", &range, "--json"])
}

/// [`Bed::settled`] of a change; what it says.
fn settled(bed: &Bed, arguments: &[&str]) -> serde_json::Value {
    let said = bed.settled(arguments);
    println!("{}", said.trim());
    serde_json::from_str(&said).unwrap()
}

fn devices(stat: &ObjectStat) -> BTreeSet<DeviceId> {
    stat.segments.iter().flat_map(|layout| layout.holders.iter().map(|holder| holder.device)).collect()
}

#[test]
fn bytes_in_the_middle_are_changed_and_nothing_else_is_written() {
    let bed = Bed::with_bucket(&shape(6, 1), RATELESS);
    let mut content = bytes(40 << 20, seed());
    fs::write(bed.dir.path().join("original"), &content).unwrap();
    bed.put(&bed.dir.path().join("original"), "object");
    let used = block_on(async { bed.used_bytes(&bed.client().await).await });
    // Within one block; over the border of two; the first byte; the last ones; the middle of what was changed before.
    let last = content.len() - 70_000;
    let mut sparing = 0;
    for (round, (offset, length)) in
        [(9_000_001, 1000), (655_000, 70_000), (0, 1), (last, 70_000), (9_000_100, 20)]
            .into_iter()
            .enumerate()
    {
        let originals = ((offset + length - 1) / 65_536 - offset / 65_536 + 1) as u64;
        let said = update(&bed, "object", &mut content, offset, &bytes(length, seed() ^ round as u64 ^ 77));
        let (written, stored) = (said["written_blocks"].as_u64().unwrap(), said["stored"].as_u64().unwrap());
        assert!(written > originals && stored >= said["stored_before"].as_u64().unwrap());
        // Some 35 to 50 of about 500 repair blocks hold an original, of more as many more, and no others are read or written,
        // unless a server seems to be lost meanwhile.
        if said["decoded_segments"] == 0 {
            let repairs = stored - said["originals"].as_u64().unwrap();
            let most = originals * (repairs * 15 / 100).max(75);
            assert!(said["read_blocks"].as_u64().unwrap() <= most, "{said}");
            sparing += u32::from(written <= most && said["stored"] == said["stored_before"]);
        }
        bed.get_equals("object", &content);
    }
    assert!(sparing > 0, "every update wrote much");
    block_on(async {
        let client = bed.client().await;
        // What was replaced is freed: at most the slack of a few extents stays.
        eventually("old blocks are freed", WITHIN, async || {
            bed.used_bytes(&client).await <= used + (2 << 20)
        })
        .await;
    });
    let file = bed.file("patch", 2000, 1);
    let range = format!("{}-", content.len() - 1999);
    let said = bed.fails(2, &["put", file.to_str().unwrap(), "data/object", "--range", &range]);
    assert!(said.contains("Put the whole object"), "{said}");
    let said = bed.fails(2, &["put", file.to_str().unwrap(), "data/object", "--range", "5-9"]);
    assert!(said.contains("2000 bytes"), "{said}");
    bed.fails(3, &["put", file.to_str().unwrap(), "data/none", "--range", "0-"]);
    bed.get_equals("object", &content);
}

#[test]
fn small_objects_stripes_and_whole_objects_are_changed_too() {
    let bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=1,tolerate=1");
    bed.ok(&["bucket", "create", "striped", "--policy", "stripe"]);
    for (bucket, length) in [("data", 3000), ("data", 3 << 20), ("striped", 2 << 20)] {
        let mut content = bytes(length, seed());
        let file = bed.file("original", length, seed());
        let object = format!("{bucket}/{length}");
        bed.settled(&["put", file.to_str().unwrap(), &object]);
        for (offset, changed) in [(1000, 500), (0, length), (length - 1, 1)] {
            let patch = bytes(changed, seed() ^ offset as u64 ^ 5);
            content[offset..offset + changed].copy_from_slice(&patch);
            let file = bed.dir.path().join("patch");
            fs::write(&file, &patch).unwrap();
            let range = format!("{offset}-{}", offset + changed - 1);
            bed.settled(&["put", file.to_str().unwrap(), &object, "--range", &range]);
            let copy = bed.dir.path().join("copy");
            bed.ok(&["get", &object, copy.to_str().unwrap()]);
            assert!(fs::read(&copy).unwrap() == content, "{object} at {offset}");
        }
    }
    let said = bed.fails(2, &["tune", "data/3000", "--redundancy", "3"]);
    assert!(said.contains("copies"), "{said}");
    let said = bed.fails(2, &["tune", "striped/2097152", "--redundancy", "3"]);
    assert!(said.contains("stripe"), "{said}");
}

#[test]
fn an_update_while_a_server_is_dead_survives_two_more() {
    let mut bed = Bed::with_bucket(&shape(6, 1), RATELESS);
    let mut content = bytes(12 << 20, seed());
    fs::write(bed.dir.path().join("original"), &content).unwrap();
    bed.put(&bed.dir.path().join("original"), "object");
    bed.cluster.kill_node(3).unwrap();
    update(&bed, "object", &mut content, 5_000_000, &bytes(300_000, seed() ^ 3));
    bed.get_equals("object", &content);
    // It was made up for: as many may be lost as the bucket says, from now on.
    for node in [0, 5] {
        bed.cluster.kill_node(node).unwrap();
    }
    bed.get_equals("object", &content);
    // What the dead one has of the old bytes is not taken for the new ones.
    for node in [0, 3, 5] {
        bed.restart(node);
    }
    for node in [1, 2] {
        bed.cluster.kill_node(node).unwrap();
    }
    bed.get_equals("object", &content);
}

#[test]
fn an_update_does_not_wait_for_a_device_that_stalls() {
    let bed = Bed::with_bucket(&shape(6, 1), RATELESS);
    let mut content = bytes(12 << 20, seed());
    fs::write(bed.dir.path().join("original"), &content).unwrap();
    bed.put(&bed.dir.path().join("original"), "object");
    block_on(async {
        let client = bed.client().await;
        let device = *devices(&client.stat("data", "object").await.unwrap()).first().unwrap();
        client.emulate(device, "stall").await.unwrap();
        update(&bed, "object", &mut content, 3_000_000, &bytes(100_000, seed() ^ 4));
        assert!(get(&client, "object").await.unwrap() == content);
        client.emulate(device, "off").await.unwrap();
        assert!(get(&client, "object").await.unwrap() == content);
    });
}

#[test]
fn a_client_killed_in_an_update_leaves_the_old_bytes_and_no_blocks() {
    let bed = Bed::with_bucket(&Shape { lease_s: 5, ..shape(6, 1) }, RATELESS);
    let content = bytes(24 << 20, seed());
    block_on(async {
        let client = bed.client().await;
        put(&client, "object", &content).await;
        client.tidy().await;
        let before = bed.used_bytes(&client).await;
        let stat = client.stat("data", "object").await.unwrap();
        for device in devices(&stat) {
            client.emulate(device, "rate=500kB").await.unwrap();
        }
        let file = bed.file("patch", 5 << 20, 9);
        let mut changing = bed
            .command(&["put", file.to_str().unwrap(), "data/object", "--range", "7000000-"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        eventually("blocks are on their way", WITHIN, async || {
            bed.used_bytes(&client).await > before + (1 << 20)
        })
        .await;
        changing.kill().unwrap();
        changing.wait().unwrap();
        for device in devices(&stat) {
            client.emulate(device, "off").await.unwrap();
        }
        assert!(get(&client, "object").await.unwrap() == content);
        assert_eq!(client.stat("data", "object").await.unwrap(), stat);
        eventually("the space is back", WITHIN, async || bed.used_bytes(&client).await <= before).await;
        assert!(get(&client, "object").await.unwrap() == content);
    });
}

#[test]
fn redundancy_is_dialled_up_and_down_on_a_live_cluster() {
    let mut bed = Bed::with_bucket(&shape(6, 1), RATELESS);
    let content = bytes(16 << 20, seed());
    block_on(async {
        let client = bed.client().await;
        // K = 256 and D = 0.5 make 384 blocks; a writer that is held up stores many more, and leaves less to be added.
        eventually("few more are stored than must be", WITHIN, async || {
            put(&client, "object", &content).await;
            client.stat("data", "object").await.unwrap().segments[0].stored_blocks() <= 560
        })
        .await;
    });
    let tune = |bed: &Bed, redundancy: &str| {
        settled(bed, &["tune", "data/object", "--redundancy", redundancy, "--json"])
    };
    let up = tune(&bed, "2");
    assert!(up["redundancy"].as_f64().unwrap() >= 2.0 && up["dropped_blocks"] == 0);
    let minted = up["stored"].as_u64().unwrap() - up["stored_before"].as_u64().unwrap();
    let written = up["written_blocks"].as_u64().unwrap();
    // About as many, unless this machine holds the writer up.
    assert!(minted > 200 && written >= minted && written <= 4 * minted, "{written} written for {minted}");
    // The same again: soon there is nothing to do, and no new version.
    block_on(eventually("it is tuned", WITHIN, async || {
        let version = |said: String| said.lines().find(|line| line.starts_with("version")).map(str::to_owned);
        let before = version(bed.ok(&["stat", "data/object"]));
        let again = tune(&bed, "2");
        let same = version(bed.ok(&["stat", "data/object"])) == before;
        assert_eq!(same, again["stored"] == again["stored_before"], "{again}");
        same
    }));
    for node in [0, 1] {
        bed.cluster.kill_node(node).unwrap();
    }
    bed.get_equals("object", &content);
    for node in [0, 1] {
        bed.restart(node);
    }
    let mut freed = 0;
    block_on(eventually("it is tuned down", WITHIN, async || {
        // Where a put on a busy machine placed unequal shares, 0.6 may be too small for two losses. As long as servers that just began
        // again are not counted, 0.9 is, too: that is no fault of the command line.
        let down = tune(&bed, "0.9");
        freed += down["freed_bytes"].as_u64().unwrap();
        down["redundancy"].as_f64().unwrap() < 0.95
    }));
    assert!(freed > 10 << 20, "{freed} bytes freed");
    bed.get_equals("object", &content);
    // Below what two of six lost servers leave.
    block_on(eventually("it is refused", WITHIN, async || {
        let refused = bed.run(&["tune", "data/object", "--redundancy", "0.2"]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        // Devices may seem to stall.
        if common::is_not_now(refused.status) {
            return false;
        }
        assert_eq!(refused.status.code(), Some(2), "{said}");
        // What is named is enough, for every segment.
        let smallest = said.split(" is the smallest").next().and_then(|said| said.rsplit(' ').next());
        let named = smallest.and_then(|said| said.parse::<f64>().ok());
        said.contains("0.2")
            && named.is_some_and(|named| {
                bed.run(&["tune", "data/object", "--redundancy", &named.to_string()]).status.success()
            })
    }));
    let said = bed.fails(2, &["tune", "data/object", "--redundancy", "99"]);
    assert!(said.contains("0 to 15"), "{said}");
    for node in [2, 4] {
        bed.cluster.kill_node(node).unwrap();
    }
    bed.get_equals("object", &content);
}

/// Whether others were first each time, or held everybody up.
fn is_overtaken(error: &AmendError) -> bool {
    matches!(
        error,
        AmendError::Contended { .. }
            | AmendError::Plan(_)
            | AmendError::Write(WriteError::Stalled { .. })
            | AmendError::Read(GetError::Read(ReadError::Stalled { .. }))
    )
}

/// Two writers change the same bytes, one more others; readers see bytes of one of the two, whole.
#[test]
fn readers_beside_updates_never_see_half_of_one() {
    let bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=0.5,tolerate=1");
    let (first, length) = (900_000, 1_500_000);
    block_on(async {
        let mut content = bytes(6 << 20, seed());
        content[first..first + length].fill(0);
        let client = bed.client().await;
        put(&client, "object", &content).await;
        let writer = async |value: u8| {
            let client = bed.client().await;
            let mut conflicts = 0;
            for round in 0..6 {
                let patch = Cursor::new(vec![value + 2 * round; length]);
                match client.update("data", "object", first as u64, patch).await {
                    Ok(_) => {}
                    Err(error) if is_overtaken(&error) => conflicts += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            assert!(conflicts < 6, "no change was ever first");
        };
        let elsewhere = async {
            let client = bed.client().await;
            for round in 0..4u8 {
                match client.update("data", "object", 5 << 20, Cursor::new(vec![round; 70_000])).await {
                    Ok(_) => {}
                    Err(error) if is_overtaken(&error) => {}
                    Err(error) => panic!("{error}"),
                }
            }
        };
        let reader = async {
            let mut seen = BTreeSet::new();
            let mut busy = 0;
            for _ in 0..25 {
                match get(&client, "object").await {
                    Ok(read) => {
                        let value = read[first];
                        assert!(read[first..first + length].iter().all(|&byte| byte == value), "torn");
                        assert!(read[..first] == content[..first], "bytes before changed");
                        assert!(read[first + length..5 << 20] == content[first + length..5 << 20]);
                        assert!(read[(5 << 20) + 70_000..] == content[(5 << 20) + 70_000..]);
                        seen.insert(value);
                    }
                    // Overtaken more often than a get begins anew; it says so.
                    Err(GetError::Read(_) | GetError::Changed { .. }) => busy += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            println!("{} values seen, {busy} reads overtaken", seen.len());
            assert!(!seen.is_empty() && busy < 20, "{busy} of 25 reads were overtaken");
        };
        tokio::join!(writer(1), writer(2), elsewhere, reader);
        let read = get(&client, "object").await.unwrap();
        assert!(read[first] > 0 && read[first..first + length].iter().all(|&byte| byte == read[first]));
    });
}

#[test]
fn an_object_leaves_devices_until_the_rule_would_break() {
    let mut bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=1");
    bed.ok(&["bucket", "create", "striped", "--policy", "stripe"]);
    let content = bytes(9 << 20, seed());
    block_on(async {
        let client = bed.client().await;
        put(&client, "object", &content).await;
        put(&client, "small", &content[..5000]).await;
        let size = Some(9 << 20);
        common::settled(async || client.put("striped", "object", Cursor::new(content.clone()), size).await)
            .await;
        let nodes = client.registry().await.unwrap().nodes;
        let device = |node: usize| {
            let address = bed.cluster.node_address(node);
            nodes.iter().find(|known| known.record.address == address).unwrap().record.devices[0].0
        };
        let leaving = BTreeSet::from([device(1), device(4)]);
        for (bucket, key) in [("data", "object"), ("data", "small"), ("striped", "object")] {
            let before = client.stat(bucket, key).await.unwrap();
            let moved = common::settled(async || client.without_devices(bucket, key, &leaving).await).await;
            println!("{bucket}/{key}: {moved:?}");
            let stat = client.stat(bucket, key).await.unwrap();
            assert!(devices(&stat).is_disjoint(&leaving), "{stat:?}");
            // Again: nothing to do.
            let again = client.without_devices(bucket, key, &leaving).await.unwrap();
            assert_eq!((again.written_blocks, again.version), (0, stat.object.version));
            // Of those that there were: a put is done when its rule holds, and a server that is late may have an original still on
            // its way then.
            let [before, layout] = [&before, &stat].map(|stat| &stat.segments[0]);
            let k = layout.code.originals;
            if k > 1 {
                let stays =
                    |original| before.holder_of(original).is_none() || layout.holder_of(original).is_some();
                assert!((0..k).all(stays), "an original is gone");
            }
        }
        let all: BTreeSet<DeviceId> = (0..5).map(device).collect();
        let error = client.without_devices("data", "object", &all).await.unwrap_err();
        assert!(matches!(error, AmendError::Write(_) | AmendError::Plan(_)), "{error}");
        let error = client.without_devices("data", "small", &all).await.unwrap_err();
        assert!(matches!(error, AmendError::Write(_) | AmendError::Plan(_)), "{error}");
    });
    for node in [1, 4] {
        bed.cluster.kill_node(node).unwrap();
    }
    block_on(async {
        let client = bed.client().await;
        let sink = Kept::default();
        client.get("striped", "object", None, sink.clone()).await.unwrap();
        assert!(*sink.0.lock().unwrap() == content);
    });
    // One more, as the bucket promises.
    bed.cluster.kill_node(0).unwrap();
    bed.get_equals("object", &content);
    bed.get_equals("small", &content[..5000]);
}

/// However often an object is changed, each device holds it in few pieces.
#[test]
fn an_object_changed_again_and_again_stays_in_few_pieces() {
    let mut bed = Bed::with_bucket(&shape(6, 1), RATELESS);
    let mut content = bytes(20 << 20, seed());
    block_on(async {
        let client = bed.client().await;
        put(&client, "object", &content).await;
        client.tidy().await;
        let used = bed.used_bytes(&client).await;
        let (mut most, mut merged) = (0, 0);
        for round in 0..125u64 {
            let offset = (round as usize * 7_919_317) % (content.len() - 200_000);
            // A few originals, which most devices hold something of.
            let patch = bytes(200_000, seed() ^ round);
            content[offset..offset + patch.len()].copy_from_slice(&patch);
            let update =
                async || client.update("data", "object", offset as u64, Cursor::new(patch.clone())).await;
            let changed = common::settled(update).await;
            merged += changed.merged_blocks;
            // More where a server seems to be lost for a while.
            assert!(changed.stored_after >= changed.stored_before, "{changed:?}");
            assert!(changed.written_blocks >= changed.dropped_blocks + changed.merged_blocks, "{changed:?}");
            let stat = client.stat("data", "object").await.unwrap();
            let pieces = stat.segments[0].holders.iter().map(|holder| holder.pieces.len()).max().unwrap();
            assert!(pieces <= PIECES_MERGED_AT, "{pieces} pieces after {round} changes");
            most = most.max(pieces);
            if round % 25 == 24 {
                assert!(get(&client, "object").await.unwrap() == content, "after {round} changes");
            }
        }
        assert!(most > PIECES_MERGED_AT / 2 && merged > 0, "{most} pieces at most, {merged} blocks merged");
        // Pieces that were merged are freed: at most the slack of as many extents stays.
        eventually("old pieces are freed", WITHIN, async || {
            bed.used_bytes(&client).await <= used + (12 << 20)
        })
        .await;
    });
    for node in [1, 4] {
        bed.cluster.kill_node(node).unwrap();
    }
    bed.get_equals("object", &content);
}
