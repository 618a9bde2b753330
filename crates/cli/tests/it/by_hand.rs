//! Servers that are started by hand, with what is only said to them where something is special: that they stand elsewhere, that a disk
//! moved, that their store is an older copy.

use crate::common::{Bed, Killed, WITHIN, block_on, eventually, heard, lines, program, seed, shape};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::Receiver,
};
use steadfast_lab::LISTENING;

/// A server that ends when nobody has it any more.
struct Server {
    _process: Killed,
    address: String,
    log: Receiver<String>,
}

impl Server {
    /// Starts it, and waits until it listens.
    fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = Killed(command.spawn().unwrap());
        let said = lines(process.0.stdout.take().unwrap());
        let log = lines(process.0.stderr.take().unwrap());
        let address = heard(&said, |line| line.strip_prefix(LISTENING).map(str::to_owned));
        Self { _process: process, address, log }
    }
}

/// A storage server of a bed's cluster.
fn node(bed: &Bed, flags: &[&str], dirs: &[PathBuf]) -> Server {
    let mut node = Command::new(program());
    node.args(["node", "--listen", "127.0.0.1:0", "--capacity", "256MiB", "--meta", bed.cluster.address()]);
    Server::start(node.args(flags).arg("--dir").args(dirs))
}

/// The name of the device in a directory.
fn device(dir: &Path) -> String {
    let identity = fs::read_to_string(dir.join("identity")).unwrap();
    identity.lines().find_map(|line| line.strip_prefix("device ")).unwrap().to_owned()
}

/// What `steadfast device ls` says, by device.
fn listed(bed: &Bed) -> BTreeMap<String, Value> {
    let lines = bed.ok(&["device", "ls", "--json"]);
    let parsed = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    parsed.map(|device| (device["device"].as_str().unwrap().to_owned(), device)).collect()
}

/// Waits until the cluster knows that a server has a device, and that it is well.
fn serves(bed: &Bed, server: &Server, device: &str) {
    block_on(eventually("the device is served", WITHIN, async || {
        let listed = listed(bed);
        listed.get(device).is_some_and(|it| it["address"] == server.address.as_str() && it["health"] == "ok")
    }));
}

#[test]
fn servers_stand_where_they_are_told_and_objects_lie_on_both_sites() {
    let bed = Bed::with_bucket(&shape(2, 1), "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 3 << 20, seed());
    let put = ["put", file.to_str().unwrap(), "data/object", "--qos", "sites=2"];
    let said = bed.fails(6, &put);
    assert!(said.contains("1 missing"), "{said}");
    let dirs = ["first", "second"].map(|name| bed.dir.path().join(name));
    let there = dirs.each_ref().map(|dir| node(&bed, &["--site", "there"], std::slice::from_ref(dir)));
    for (server, dir) in there.iter().zip(&dirs) {
        serves(&bed, server, &device(dir));
    }
    let site_of = |device: &str| listed(&bed)[device]["site"].as_str().unwrap().to_owned();
    assert!(dirs.iter().all(|dir| site_of(&device(dir)) == "there"));
    // A put may leave out a device that is held up.
    block_on(eventually("it lies on both sites", WITHIN, async || {
        bed.settled(&put);
        let stat: Value = serde_json::from_str(&bed.ok(&["stat", "data/object", "--json"])).unwrap();
        assert_eq!(stat["pledge"]["sites"], 2, "{stat}");
        stat["segments"].as_array().unwrap().iter().all(|segment| {
            let holders = segment["holders"].as_array().unwrap().iter();
            let sites: BTreeSet<String> =
                holders.map(|holder| site_of(holder["device"].as_str().unwrap())).collect();
            sites.iter().eq(["default", "there"])
        })
    }));
    bed.get_equals("object", &fs::read(&file).unwrap());
}

/// Its old server goes on with the other disk that it has, under the name that both had.
#[test]
fn a_disk_that_moved_to_another_server_begins_there_under_a_new_name() {
    let bed = Bed::with_bucket(&shape(2, 1), "rateless:redundancy=1,tolerate=1");
    let dirs = ["stays", "moves"].map(|name| bed.dir.path().join(name));
    let both = node(&bed, &[], &dirs);
    let [stays, moves] = dirs.each_ref().map(|dir| device(dir));
    for device in [&stays, &moves] {
        serves(&bed, &both, device);
    }
    let file = bed.file("original", 5 << 20, seed());
    // A put may leave out a device that is held up.
    block_on(eventually("it lies on the disk that moves", WITHIN, async || {
        bed.put(&file, "object");
        listed(&bed)[&moves]["blocks"].as_u64() > Some(0)
    }));
    let held = listed(&bed)[&moves]["blocks"].clone();
    drop(both);
    // It is told to wait until what it was before, with both of them, counts as dead.
    let old = node(&bed, &[], &dirs[..1]);
    serves(&bed, &old, &stays);
    // Under the old name it would take the place of the one that goes on.
    let taken = node(&bed, &[], &dirs[1..]);
    let said = heard(&taken.log, |line| line.contains("`--rename`").then(|| line.to_owned()));
    assert!(said.contains(&old.address) && said.contains(&stays), "{said}");
    assert_eq!(listed(&bed)[&moves]["health"], "missing");
    drop(taken);
    let new = node(&bed, &["--rename"], &dirs[1..]);
    serves(&bed, &new, &moves);
    serves(&bed, &old, &stays);
    let name_of = |device: &str| listed(&bed)[device]["node"].clone();
    let name = name_of(&moves);
    assert_ne!(name, name_of(&stays));
    assert_eq!(listed(&bed)[&moves]["blocks"], held);
    bed.get_equals("object", &fs::read(&file).unwrap());
    // It keeps that name.
    drop(new);
    let new = node(&bed, &[], &dirs[1..]);
    serves(&bed, &new, &moves);
    assert_eq!(name_of(&moves), name);
    bed.get_equals("object", &fs::read(&file).unwrap());
}

/// What was stored since its copy was made is given up, and what was named since is named no more.
#[test]
fn a_metadata_server_that_was_put_back_from_a_copy_goes_on() {
    let mut bed = Bed::with_bucket(&shape(3, 1), "rateless:redundancy=1,tolerate=1");
    let (kept, since) = (bed.file("kept", 2 << 20, seed()), bed.file("since", 4 << 20, seed() + 1));
    bed.put(&kept, "kept");
    let used = block_on(async { bed.used_bytes(&bed.client().await).await });
    let store = bed.cluster.dir().join("meta");
    let copy = bed.dir.path().join("copy of the store");
    bed.cluster.kill_meta().unwrap();
    fs::create_dir(&copy).unwrap();
    for file in fs::read_dir(&store).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), copy.join(file.file_name())).unwrap();
    }
    bed.cluster.restart_meta().unwrap();
    bed.put(&since, "since");
    let version_of = |bed: &Bed, key: &str| {
        block_on(async { bed.client().await.stat("data", key).await.unwrap().object.version })
    };
    let before = version_of(&bed, "since");
    bed.cluster.kill_meta().unwrap();
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&copy, &store).unwrap();
    let mut meta = Command::new(program());
    meta.args(["meta", "--restored", "--lease", "20", "--listen", bed.cluster.address()]);
    let meta = Server::start(meta.arg("--dir").arg(&store));
    assert_eq!(meta.address, bed.cluster.address());
    heard(&meta.log, |line| line.contains("put back from a copy").then_some(()));
    bed.get_equals("kept", &fs::read(&kept).unwrap());
    bed.fails(3, &["get", "data/since", "-"]);
    block_on(async {
        let client = bed.client().await;
        // It takes 8 MiB at least.
        let is_freed = async || bed.used_bytes(&client).await < used + (4 << 20);
        eventually("what was stored since is freed", WITHIN, is_freed).await;
    });
    bed.put(&since, "since");
    assert!(version_of(&bed, "since") > before);
    bed.get_equals("since", &fs::read(&since).unwrap());
    bed.get_equals("kept", &fs::read(&kept).unwrap());
}
