//! Devices that come and go on a live cluster: growth by one disk, drains, removals, repair after a loss.

use crate::{
    common::{self, Bed, WITHIN, block_on, bytes, eventually, is_not_now, once_of, seed, shape},
    files::{check, close, open, patient, put, sync},
    watch::Metrics,
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::{Child, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use steadfast_client::Client;
use steadfast_protocol::{DeviceId, message::DeviceState};

/// The devices of a storage server.
fn devices(bed: &Bed, node: usize) -> Vec<DeviceId> {
    let address = bed.cluster.node_address(node).to_owned();
    block_on(async {
        let registry = bed.client().await.registry().await.unwrap();
        let server = registry.nodes.into_iter().find(|server| server.record.address == address).unwrap();
        server.record.devices.into_iter().map(|(device, _)| device).collect()
    })
}

/// What `steadfast device ls` says, by device.
fn listed(bed: &Bed) -> BTreeMap<String, Value> {
    let lines = bed.ok(&["device", "ls", "--json"]);
    let parsed = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    parsed.map(|device| (device["device"].as_str().unwrap().to_owned(), device)).collect()
}

async fn lies_on(client: &Client, key: &str, device: DeviceId) -> bool {
    let stat = client.stat("data", key).await.unwrap();
    stat.segments.iter().any(|segment| segment.holder(device).is_some())
}

#[test]
fn a_drained_server_is_not_missed() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    bed.ok(&[
        "bucket",
        "create",
        "other",
        "--policy",
        "rateless:code=lt,c=1,delta=0.5,redundancy=1,tolerate=1",
    ]);
    let mut expected = BTreeMap::new();
    for (number, length) in [0, 5000, 700_000, 3 << 20, 9 << 20].into_iter().enumerate() {
        let key = format!("object-{number}");
        let file = bed.file(&key, length, seed + number as u64);
        bed.put(&file, &key);
        expected.insert(key, fs::read(&file).unwrap());
    }
    let file = bed.file("lt", 4 << 20, seed + 77);
    bed.settled(&["put", file.to_str().unwrap(), "other/lt"]);
    let leaving = devices(&bed, 2)[0];
    let name = leaving.to_string();
    let before = listed(&bed);
    assert_eq!(before.len(), 6);
    assert!(before[&name]["blocks"].as_u64().unwrap() > 0 && before[&name]["state"] == "active");

    // Not before it is empty.
    let said = bed.fails(1, &["device", "remove", &name]);
    assert!(said.contains("steadfast device drain"), "{said}");
    assert_eq!(listed(&bed)[&name]["state"], "active");

    let address = bed.cluster.node_address(2).to_owned();
    // A drain that finds devices stalled ends, and what it moved by then stays moved.
    let (mut tries, mut before) = (0, before);
    let drained: Value = loop {
        tries += 1;
        let output = bed.run(&["device", "drain", &address, "--json"]);
        if output.status.success() {
            break serde_json::from_slice(&output.stdout).unwrap();
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(is_not_now(output.status) && tries < 100, "{said}");
        std::thread::sleep(Duration::from_millis(200));
        before = listed(&bed);
    };
    assert!(drained["objects"].as_u64().unwrap() >= 3 || tries > 1, "{drained}");
    assert_eq!(drained["blocks"], before[&name]["blocks"]);
    assert_eq!(drained["bytes"], before[&name]["block_bytes"]);
    let after = listed(&bed);
    assert_eq!((&after[&name]["state"], &after[&name]["blocks"]), (&"draining".into(), &0.into()));
    // Once more finds nothing; what a put that was held up has there is gone some time.
    block_on(eventually("nothing is left there", WITHIN, async || {
        let again: Value = serde_json::from_str(&bed.settled(&["device", "drain", &name, "--json"])).unwrap();
        assert_eq!(again["objects"], 0);
        again["extents_left"] == 0
    }));

    let everything_reads = |bed: &Bed| {
        for (key, bytes) in &expected {
            bed.get_equals(key, bytes);
        }
        let copy = bed.dir.path().join("copy");
        bed.ok(&["get", "other/lt", copy.to_str().unwrap()]);
        assert!(fs::read(&copy).unwrap() == fs::read(&file).unwrap());
    };
    everything_reads(&bed);
    // New objects leave it alone.
    bed.put(&file, "later");
    block_on(async {
        let client = bed.client().await;
        for key in expected.keys().map(String::as_str).chain(["later"]) {
            assert!(!lies_on(&client, key, leaving).await, "{key}");
        }
    });
    bed.cluster.kill_node(2).unwrap();
    everything_reads(&bed);
    // The promise holds without it: two more may die.
    bed.cluster.kill_node(0).unwrap();
    bed.cluster.kill_node(4).unwrap();
    for (key, bytes) in &expected {
        bed.get_equals(key, bytes);
    }
}

#[test]
fn what_an_object_was_wished_to_survive_holds_for_whatever_becomes_of_it() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=1");
    let file = bed.file("original", 6 << 20, seed);
    let small = bed.file("small", 3000, seed + 1);
    for (file, object) in [(&file, "data/object"), (&small, "data/small")] {
        bed.settled(&["put", file.to_str().unwrap(), object, "--qos", "tolerate=3"]);
        assert!(bed.ok(&["stat", object]).contains("promises   to survive 3 failures"));
    }
    // The bucket's one failure would do with it.
    let said = bed.fails(2, &["tune", "data/object", "--redundancy", "0.6"]);
    assert!(said.contains("any 3 failure domains"), "{said}");
    let patch = bed.file("patch", 200_000, seed + 2);
    let range = ["--range", "3000000-", "--qos", "tolerate=2"];
    bed.settled(&[&["put", patch.to_str().unwrap(), "data/object"], &range[..]].concat());
    let address = bed.cluster.node_address(2).to_owned();
    bed.settled(&["device", "drain", &address]);
    let mut expected = fs::read(&file).unwrap();
    expected[3_000_000..3_200_000].copy_from_slice(&fs::read(&patch).unwrap());
    assert_eq!(listed(&bed)[&devices(&bed, 2)[0].to_string()]["blocks"], 0);
    for node in [2, 0, 3, 5] {
        bed.cluster.kill_node(node).unwrap();
    }
    bed.get_equals("object", &expected);
    bed.get_equals("small", &fs::read(&small).unwrap());
    // A new version promises what it is wished for, here nothing.
    for node in [0, 3, 5] {
        bed.restart(node);
    }
    bed.put(&small, "object");
    assert!(!bed.ok(&["stat", "data/object"]).contains("promises"));
}

#[test]
fn copies_that_move_stay_as_many_as_they_were() {
    once_of("copies that move stay about as many as they were", copies_move);
}

/// Whether they stay so many: there are more where devices seem to stall on the way.
fn copies_move() -> bool {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(6, 1), "replicated:copies=3");
    let file = bed.file("original", 5 << 20, seed);
    bed.put(&file, "object");
    let stored = || {
        let stat: Value = serde_json::from_str(&bed.ok(&["stat", "data/object", "--json"])).unwrap();
        let blocks = stat["segments"]
            .as_array()
            .unwrap()
            .iter()
            .map(|segment| segment["stored_blocks"].as_u64().unwrap());
        blocks.sum::<u64>()
    };
    let before = stored();
    let mut as_many = true;
    for node in [1, 4, 2] {
        let address = bed.cluster.node_address(node).to_owned();
        bed.settled(&["device", "drain", &address]);
        let now = stored();
        println!("{now} of {before}");
        as_many &= now <= before + before / 10;
        bed.get_equals("object", &fs::read(&file).unwrap());
        bed.ok(&["device", "drain", "--cancel", &address]);
    }
    for node in [0, 5] {
        bed.cluster.kill_node(node).unwrap();
    }
    bed.get_equals("object", &fs::read(&file).unwrap());
    as_many
}

#[test]
fn a_drain_that_breaks_a_promise_is_refused_and_changes_nothing() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(3, 1), "rateless:redundancy=1,tolerate=2");
    let file = bed.file("original", 2 << 20, seed);
    let small = bed.file("small", 3000, seed + 1);
    bed.put(&file, "object");
    bed.put(&small, "small");
    let device = devices(&bed, 0)[0];
    let said = bed.fails(6, &["device", "drain", &device.to_string()]);
    assert!(said.contains("`data`") && said.contains("3 nodes") && said.contains("2 can"), "{said}");
    // The last copy, however much one wants it.
    let said = bed.fails(6, &["device", "drain", "--force", &device.to_string()]);
    assert!(said.contains("data/") && said.contains("cannot be moved"), "{said}");
    assert_eq!(listed(&bed)[&device.to_string()]["state"], "draining");
    bed.ok(&["device", "drain", "--cancel", &device.to_string()]);
    assert_eq!(listed(&bed)[&device.to_string()]["state"], "active");
    // All that there is.
    let addresses: Vec<String> = (0..3).map(|node| bed.cluster.node_address(node).to_owned()).collect();
    let mut all = vec!["device", "drain"];
    all.extend(addresses.iter().map(String::as_str));
    bed.fails(6, &all);
    bed.get_equals("object", &fs::read(&file).unwrap());
    bed.get_equals("small", &fs::read(&small).unwrap());
    for (missing, about) in [
        (&["device", "drain", "zz"][..], "no device begins with `zz`"),
        (&["device", "remove", "zz"], "no device begins with `zz`"),
        (&["emulate", "zz", "off"], "no device begins with `zz`"),
        (&["device", "add", "--node", "zz", "/zz"], "no device begins with `zz`"),
        (
            &["device", "add", "--node", "00000000000000000000000000000000", "/zz"],
            "no storage server has device 0",
        ),
        (&["device", "drain", "127.0.0.1:1"], "no storage server is at 127.0.0.1:1; there are "),
        (
            &["device", "add", "--node", "127.0.0.1:1", "/zz"],
            "no storage server is at 127.0.0.1:1; there are ",
        ),
    ] {
        let said = bed.fails(3, missing);
        assert!(said.contains(about), "{said}");
    }
    let said = bed.fails(3, &["device", "drain", &"0".repeat(32)]);
    assert!(said.contains("steadfast device ls"), "{said}");
}

/// One name that is wrong, before or behind the others, leaves none of them draining.
#[test]
fn a_drain_of_several_with_a_wrong_name_changes_nothing() {
    let bed = Bed::start(&shape(2, 1));
    let device = devices(&bed, 0)[0].to_string();
    for wrong in ["0".repeat(32), "f".repeat(32)] {
        for names in [[&device, &wrong], [&wrong, &device]] {
            let mut drain = vec!["device", "drain"];
            drain.extend(names.map(String::as_str));
            let said = bed.fails(3, &drain);
            assert!(said.contains(&format!("no device {wrong}")), "{said}");
            assert_eq!(listed(&bed)[&device]["state"], "active", "{names:?}");
        }
    }
}

#[test]
fn a_running_server_takes_a_further_disk_and_finds_it_again() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(3, 1), "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 6 << 20, seed);
    bed.put(&file, "before");
    let first = devices(&bed, 1)[0];
    let disk = bed.dir.path().join("further disk");
    let disk = disk.to_str().unwrap();
    // Named by a device of it; a name that is not a full path means nothing there.
    let first_name = first.to_string();
    let said = bed.fails(2, &["device", "add", "--node", &first_name, "further"]);
    assert!(said.contains("full path"), "{said}");
    let said = bed.fails(1, &["device", "add", "--node", &first_name, "/proc/nowhere"]);
    assert!(said.contains(": no device was added in /proc/nowhere: cannot make"), "{said}");
    let said = bed.fails(2, &["device", "add", "--node", &first_name, disk, "--capacity", "100"]);
    assert!(said.contains("`100` is too little for a device") && said.contains("1.0 MiB or more"), "{said}");
    let added: Value =
        serde_json::from_str(&bed.ok(&["device", "add", "--node", &first_name, disk, "--json"])).unwrap();
    let added: DeviceId = added["added"].as_str().unwrap().parse().unwrap();
    assert_eq!(devices(&bed, 1).len(), 2);
    let said = bed.fails(2, &["device", "add", "--node", &first_name, disk, "--thick"]);
    assert!(said.contains("--capacity"), "{said}");
    let twice = bed.fails(2, &["device", "add", "--node", &first_name, disk]);
    assert!(twice.contains("twice") || twice.contains("in use"), "{twice}");
    block_on(async {
        let client = bed.client().await;
        // What is stored stays; what is new uses it.
        assert!(!lies_on(&client, "before", added).await);
        let original = fs::read(&file).unwrap();
        eventually("what is new uses it", WITHIN, async || {
            common::put(&client, "after", &original).await;
            lies_on(&client, "after", added).await
        })
        .await;
    });
    bed.restart(1);
    assert_eq!(devices(&bed, 1).len(), 2);
    let address = bed.cluster.node_address(1).to_owned();
    block_on(async {
        let client = bed.client().await;
        let read_bytes = async || {
            let status = client.node_status(&address).await.unwrap();
            status.devices.iter().find(|report| report.device == added).unwrap().medium_read_bytes
        };
        let before = read_bytes().await;
        // Unless it is slow just then.
        eventually("its blocks are read", WITHIN, async || {
            bed.get_equals("after", &fs::read(&file).unwrap());
            read_bytes().await > before
        })
        .await;
    });
    bed.cluster.kill_node(0).unwrap();
    for key in ["before", "after"] {
        bed.get_equals(key, &fs::read(&file).unwrap());
    }
}

#[test]
fn a_removed_disk_leaves_its_server_running_and_does_not_come_back() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(4, 2), "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 5 << 20, seed);
    bed.put(&file, "object");
    let gone = devices(&bed, 3)[0];
    let name = gone.to_string();
    bed.settled(&["device", "drain", &name]);
    bed.ok(&["device", "remove", &name[..12]]);
    assert!(!listed(&bed).contains_key(&name));
    let log = bed.cluster.dir().join("logs").join("node-03.log");
    let dropped = || fs::read_to_string(&log).unwrap().matches("is served no more").count();
    block_on(eventually("the server lets go of it", WITHIN, async || dropped() == 1));
    bed.get_equals("object", &fs::read(&file).unwrap());
    // Its directory is still named on the server's command line: it is passed over.
    bed.restart(3);
    assert!(fs::read_to_string(&log).unwrap().contains("passed over until it is emptied"));
    assert_eq!((devices(&bed, 3).len(), dropped()), (1, 1));
    bed.put(&file, "later");
    bed.get_equals("later", &fs::read(&file).unwrap());
    // Nor by way of another server; emptied, the directory makes a new device.
    let dirs = bed.cluster.device_dirs(3);
    let is_it =
        |dir: &PathBuf| fs::read_to_string(dir.join("identity")).unwrap().contains(&format!("device {name}"));
    let dir = dirs.into_iter().find(is_it).unwrap();
    let other = devices(&bed, 0)[0].to_string();
    let add = ["device", "add", "--node", &other, dir.to_str().unwrap()];
    // Its old server closes it a moment after it said so.
    block_on(eventually("its name is refused", WITHIN, async || {
        bed.fails(2, &add).contains("was removed from the cluster")
    }));
    let said = bed.fails(1, &["device", "drain", &name]);
    assert!(said.contains("was removed from the cluster"), "{said}");
    fs::remove_dir_all(&dir).unwrap();
    bed.ok(&add);
    assert_eq!(devices(&bed, 0).len(), 3);
}

#[test]
fn a_dead_disk_is_repaired_from_the_others() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(5, 1), "rateless:redundancy=0.5,tolerate=1");
    let (file, small) = (bed.file("original", 7 << 20, seed), bed.file("small", 100, seed + 1));
    bed.put(&file, "object");
    bed.put(&small, "small");
    let lost = devices(&bed, 1)[0].to_string();
    bed.cluster.kill_node(1).unwrap();
    let removed: Value =
        serde_json::from_str(&bed.settled(&["device", "remove", "--lost", &lost, "--json"])).unwrap();
    assert!(removed["repaired_blocks"].as_u64().unwrap() > 0, "{removed}");
    assert!(!listed(&bed).contains_key(&lost));
    // Repaired: any other may die now.
    bed.cluster.kill_node(3).unwrap();
    bed.get_equals("object", &fs::read(&file).unwrap());
    bed.get_equals("small", &fs::read(&small).unwrap());
    // Found again after all, its server is told why it has nothing to serve.
    bed.cluster.restart_node(1).unwrap();
    let log = bed.cluster.dir().join("logs").join("node-01.log");
    block_on(eventually("it is refused", WITHIN, async || {
        fs::read_to_string(&log).unwrap().contains("was removed from the cluster")
    }));
}

#[test]
fn the_disks_of_a_dead_server_are_repaired_together() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(5, 2), "rateless:redundancy=1,tolerate=2");
    let file = bed.file("original", 7 << 20, seed);
    bed.put(&file, "object");
    let lost: Vec<String> = devices(&bed, 1).iter().map(ToString::to_string).collect();
    let address = bed.cluster.node_address(1).to_owned();
    bed.cluster.kill_node(1).unwrap();
    let said = bed.settled(&["device", "remove", "--lost", "--background", &address, "--json"]);
    let removed: Vec<Value> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: BTreeSet<&str> = removed.iter().map(|line| line["removed"].as_str().unwrap()).collect();
    assert_eq!(names, lost.iter().map(String::as_str).collect(), "{said}");
    // What was on both is decoded once, and told once.
    let repaired = |line: &Value| line["repaired_blocks"].as_u64().unwrap();
    assert!(repaired(&removed[0]) > 0 && repaired(&removed[1]) == 0, "{said}");
    assert!(lost.iter().all(|device| !listed(&bed).contains_key(device)));
    bed.cluster.kill_node(3).unwrap();
    bed.get_equals("object", &fs::read(&file).unwrap());
}

/// Its server was started without it, as is natural with a dead disk: what it held is repaired all the same.
#[test]
fn a_dead_disk_that_its_server_left_out_is_repaired() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 5 << 20, seed);
    let disk = bed.dir.path().join("further disk");
    let node = devices(&bed, 1)[0].to_string();
    let add = ["device", "add", "--node", &node, disk.to_str().unwrap(), "--json"];
    let added: Value = serde_json::from_str(&bed.ok(&add)).unwrap();
    let lost: DeviceId = added["added"].as_str().unwrap().parse().unwrap();
    block_on(async {
        let client = bed.client().await;
        let original = fs::read(&file).unwrap();
        eventually("what is new uses it", WITHIN, async || {
            common::put(&client, "object", &original).await;
            lies_on(&client, "object", lost).await
        })
        .await;
    });
    bed.cluster.kill_node(1).unwrap();
    fs::remove_dir_all(&disk).unwrap();
    bed.cluster.restart_node(1).unwrap();
    let name = lost.to_string();
    block_on(eventually("its server is back without it", WITHIN, async || {
        listed(&bed)[&name]["health"] == "missing"
    }));
    let quick = bed.ok(&["device", "ls", "--quick"]);
    assert!(quick.lines().any(|line| line.contains(&name[..12]) && line.contains("missing")), "{quick}");
    let said = bed.ok(&["status"]);
    assert!(said.contains("missing: 1 device that") && said.contains("tolerates no further one"), "{said}");
    let removed: Value =
        serde_json::from_str(&bed.settled(&["device", "remove", "--lost", &name[..12], "--json"])).unwrap();
    assert!(removed["repaired_blocks"].as_u64().unwrap() > 0, "{removed}");
    assert!(!listed(&bed).contains_key(&name));
    assert!(!bed.ok(&["status"]).contains("missing"));
    // Its server looks for it no more, once it has heard.
    let added = bed.cluster.device_dirs(1)[0].join("added");
    assert!(fs::read_to_string(&added).unwrap().contains(&name));
    bed.cluster.restart_node(1).unwrap();
    assert!(!fs::read_to_string(&added).unwrap().contains(&name) && !disk.exists());
    bed.cluster.kill_node(2).unwrap();
    bed.get_equals("object", &fs::read(&file).unwrap());
}

/// What `status` says of a device.
fn shown(bed: &Bed, device: &str) -> Value {
    let status: Value = serde_json::from_str(&bed.ok(&["status", "--json"])).unwrap();
    let devices = status["devices"].as_array().unwrap();
    devices.iter().find(|shown| shown["device"] == device).cloned().unwrap_or(Value::Null)
}

/// A command that goes on beside the test.
fn begin(bed: &Bed, arguments: &[&str]) -> Child {
    bed.command(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A drain, and the repair after a loss, can be watched from anywhere while they go on.
#[test]
fn drains_and_repairs_are_shown_with_their_progress() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=1");
    for number in 0..12 {
        let file = bed.file("original", 2 << 20, seed + number);
        bed.put(&file, &format!("object-{number}"));
    }
    let leaving = devices(&bed, 1)[0].to_string();
    assert!(shown(&bed, &leaving)["leaving"].is_null());
    let slow = |spec: &str| {
        for node in [0, 2, 3, 4, 5] {
            bed.ok(&["emulate", &devices(&bed, node)[0].to_string(), spec]);
        }
    };
    // Two megabytes of each object to be read, and two thirds of one to be written elsewhere: some time to be looked at.
    slow("rate=500kB");
    let drain = ["device", "drain", &leaving, "--json"];
    let mut draining = begin(&bed, &drain);
    let meta = bed.cluster.admin_ports().next().unwrap().1.to_owned();
    let mut seen = None;
    block_on(eventually("it is on its way", 2 * WITHIN, async || {
        let moved = shown(&bed, &leaving)["leaving"]["moved"].as_f64().unwrap_or(0.0);
        seen = Some((bed.ok(&["status"]), bed.ok(&["top", "--once"]), Metrics::scrape(&meta)));
        match draining.try_wait().unwrap() {
            None => 0.0 < moved && moved < 1.0,
            // Devices seemed to stall.
            Some(status) => {
                assert!(is_not_now(status), "it was over before anybody looked");
                draining = begin(&bed, &drain);
                false
            }
        }
    }));
    let (said, top, metrics) = seen.unwrap();
    assert!(said.contains("1 draining") && said.contains(&format!("drain  {}: ", &leaving[..12])), "{said}");
    let line = |said: &str| said.lines().find(|line| line.starts_with(&leaving[..8])).unwrap().to_owned();
    assert!(line(&top).contains(" drain ") && top.contains(&format!("drain  {}: ", &leaving[..12])), "{top}");
    assert!(top.lines().all(|line| line.chars().count() <= 80), "{top}");
    assert_eq!(metrics.sum("steadfast_meta_draining_devices", &[]), 1.0);
    assert!(metrics.sum("steadfast_meta_drained_ratio", &[("device", &leaving)]) > 0.0);
    slow("off");
    let ended = draining.wait().unwrap();
    assert!(ended.success() || is_not_now(ended), "{ended:?}");
    if !ended.success() {
        bed.settled(&drain);
    }
    block_on(eventually("it is empty", WITHIN, async || {
        let shown = shown(&bed, &leaving);
        shown["leaving"]["empty"] == true && shown["leaving"]["moved"] == 1.0
    }));
    assert!(bed.ok(&["status"]).contains(" empty "));
    bed.ok(&["device", "remove", &leaving]);
    assert!(shown(&bed, &leaving).is_null() && !bed.ok(&["status"]).contains("drain  "));

    // The repair after a loss: its server is dead, and the device is shown as lost, not only as dead.
    let lost = devices(&bed, 2)[0].to_string();
    bed.cluster.kill_node(2).unwrap();
    for node in [0, 3, 4, 5] {
        bed.ok(&["emulate", &devices(&bed, node)[0].to_string(), "rate=500kB"]);
    }
    let repair = ["device", "remove", "--lost", &lost];
    let mut repairing = begin(&bed, &repair);
    block_on(eventually("the repair is shown", 2 * WITHIN, async || {
        let is_lost = shown(&bed, &lost)["leaving"]["lost"] == true;
        let is_shown = is_lost && bed.ok(&["status"]).contains("repair ");
        match repairing.try_wait().unwrap() {
            None => is_shown,
            Some(status) => {
                assert!(is_not_now(status), "it was over before anybody looked");
                repairing = begin(&bed, &repair);
                false
            }
        }
    }));
    let said = bed.ok(&["status"]);
    assert!(said.contains(" lost ") || said.contains("1 lost"), "{said}");
    // Cut short, it says after a while that nobody is at it.
    repairing.kill().unwrap();
    repairing.wait().unwrap();
    block_on(eventually("nobody is at it", WITHIN, async || {
        shown(&bed, &lost)["leaving"]["abandoned"] == true
    }));
    let said = bed.ok(&["status"]);
    assert!(said.contains("steadfast device remove --lost") && said.contains("silent "), "{said}");
    for node in [0, 3, 4, 5] {
        bed.ok(&["emulate", &devices(&bed, node)[0].to_string(), "off"]);
    }
    bed.settled(&["device", "remove", "--lost", &lost]);
    assert!(shown(&bed, &lost).is_null());
}

#[test]
fn a_drain_ends_while_others_put_and_overwrite() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(5, 1), "rateless:redundancy=0.5,tolerate=1");
    block_on(async {
        let client = bed.client().await;
        let leaving = client.registry().await.unwrap().nodes[0].record.devices[0].0;
        let content = |round: u64| bytes(1_500_000 + 1000 * round as usize, seed + round);
        let put = async |key: String, round: u64| {
            common::put(&client, &key, &content(round)).await;
        };
        let mut newest = BTreeMap::new();
        for key in 0..6 {
            put(format!("object-{key}"), key).await;
            newest.insert(format!("object-{key}"), key);
        }
        let name = leaving.to_string();
        let drain = || {
            let mut drain = bed.command(&["device", "drain", &name, "--json"]);
            drain.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let mut draining = drain();
        let (mut round, deadline) = (100, Instant::now() + Duration::from_secs(120));
        let status = loop {
            let key = if round % 3 == 0 { format!("new-{round}") } else { format!("object-{}", round % 6) };
            put(key.clone(), round).await;
            newest.insert(key, round);
            if round % 7 == 0 && newest.remove("object-1").is_some() {
                client.remove("data", "object-1").await.unwrap();
            }
            round += 1;
            match draining.try_wait().unwrap() {
                // Devices seemed to stall.
                Some(status) if is_not_now(status) => draining = drain(),
                Some(status) => break status,
                None => {}
            }
            assert!(Instant::now() < deadline, "the drain never ends");
        };
        let said = draining.wait_with_output().unwrap().stderr;
        assert!(status.success(), "{}", String::from_utf8_lossy(&said));
        assert_eq!(client.registry().await.unwrap().state(leaving), DeviceState::Draining);
        for (key, &round) in &newest {
            assert!(!lies_on(&client, key, leaving).await, "{key} lies there");
            let mut copy = tempfile::tempfile().unwrap();
            client.get("data", key, None, copy.try_clone().unwrap()).await.unwrap();
            let mut read = Vec::new();
            std::io::Seek::rewind(&mut copy).unwrap();
            std::io::Read::read_to_end(&mut copy, &mut read).unwrap();
            assert!(read == content(round), "{key} differs");
        }
        client.remove_device(leaving, false).await.unwrap();
    });
}

/// Each record that is counted in is another version of the file. Whoever moves its other segments does not wait for a moment
/// in which there is none.
#[test]
fn a_file_that_is_appended_to_all_the_time_is_drained() {
    once_of("it is drained while nearly all is appended in place", drained_while_appended_to);
}

/// Whether it was drained while hardly anything was stored anew by the writer: what a server that is held up does not take is.
fn drained_while_appended_to() -> bool {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(8, 1), "parity:segment=1MiB");
    let mut model = bytes((6 << 20) + (300 << 10), seed);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let leaving = block_on(async {
            let client = patient(&bed).await;
            put(&client, &model).await;
            // The last segment gets chunks with room for all that follows.
            let file = open(&client).await;
            file.append(b"first").await.unwrap();
            close(file).await;
            model.extend(b"first");
            let found = client.stat("data", "object").await.unwrap();
            let last = found.segments.last().unwrap();
            let others = || found.segments.iter().flat_map(|layout| &layout.holders);
            let free = others().map(|holder| holder.device).find(|&device| last.holder(device).is_none());
            free.expect("eight servers have six chunks of each")
        });
        let appending = scope.spawn(|| {
            block_on(async {
                let file = open(&patient(&bed).await).await;
                let mut records = Vec::new();
                while !done.load(Ordering::Relaxed) || records.len() < 20 {
                    let record = bytes(40, seed ^ records.len() as u64);
                    file.append(&record).await.unwrap();
                    sync(&file).await;
                    records.push(record);
                }
                (records.concat(), records.len(), file.counts())
            })
        });
        let drain = || bed.run(&["device", "drain", &leaving.to_string(), "--json"]);
        let mut drained = drain();
        for _ in 0..3 {
            // Devices seemed to stall; what it moved by then stays moved.
            if is_not_now(drained.status) {
                drained = drain();
            }
        }
        done.store(true, Ordering::Relaxed);
        let (added, records, counts) = appending.join().unwrap();
        let said = String::from_utf8_lossy(&drained.stderr);
        println!("{records} records meanwhile: {counts:?}; {said}");
        assert!(drained.status.success() || is_not_now(drained.status), "{said}");
        model.extend(added);
        block_on(async {
            let is_left = !lies_on(&bed.client().await, "object", leaving).await;
            assert!(is_left || !drained.status.success());
            check(&open(&patient(&bed).await).await, &model, "drained").await;
        });
        // Stored anew by the writer all the time, the segment at the end would have let the drain in.
        drained.status.success() && counts.segments_anew * 20 <= records as u64
    })
}

/// There is nothing to serve then, and the server is where another disk can be added.
#[test]
fn a_server_whose_only_disk_is_removed_stays_and_takes_another() {
    let mut bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 3 << 20, seed());
    bed.put(&file, "object");
    let name = devices(&bed, 3)[0].to_string();
    bed.settled(&["device", "drain", &name]);
    bed.ok(&["device", "remove", &name]);
    let log = bed.cluster.dir().join("logs").join("node-03.log");
    let dropped = || fs::read_to_string(&log).unwrap().matches("is served no more").count();
    block_on(eventually("the server lets go of it", WITHIN, async || dropped() == 1));
    assert!(devices(&bed, 3).is_empty());
    // It starts again as it was started first.
    bed.restart(3);
    let status: Value = serde_json::from_str(&bed.ok(&["status", "--json"])).unwrap();
    let alive = status["nodes"].as_array().unwrap().iter().filter(|node| node["alive"] == true);
    assert_eq!(alive.count(), 4);
    let address = bed.cluster.node_address(3).to_owned();
    let dir = bed.dir.path().join("another");
    bed.ok(&["device", "add", "--node", &address, dir.to_str().unwrap()]);
    assert_eq!(devices(&bed, 3).len(), 1);
    assert!(!listed(&bed).contains_key(&name));
    bed.put(&file, "later");
    for key in ["object", "later"] {
        bed.get_equals(key, &fs::read(&file).unwrap());
    }
    // Without it and its disk nothing is missing.
    let added = devices(&bed, 3)[0].to_string();
    bed.settled(&["device", "drain", &added]);
    bed.ok(&["device", "remove", &added]);
    block_on(eventually("it has none", WITHIN, async || dropped() == 2));
    bed.cluster.kill_node(3).unwrap();
    block_on(eventually("it is not counted", WITHIN, async || {
        let status: Value = serde_json::from_str(&bed.ok(&["status", "--json"])).unwrap();
        status["nodes"].as_array().unwrap().len() == 3
    }));
}
