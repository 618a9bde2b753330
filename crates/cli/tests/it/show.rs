//! What the program shows: help, status, the local cluster, the demo.

use crate::{
    common::{
        Bed, Killed, WITHIN, block_on, bytes, deaf, ended, eventually, hears_term, is_not_now, program, seed,
        shape, signal,
    },
    watch::Metrics,
};
use rustix::process::{Pid, Signal};
use std::{
    io::{BufRead, BufReader},
    net::TcpStream,
    process::{Command, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
};

#[test]
fn status_names_servers_and_devices() {
    let mut bed = Bed::with_bucket(&shape(2, 2), "stripe");
    let status = bed.ok(&["status"]);
    assert!(status.contains("2 of 2 storage servers alive"), "{status}");
    let json: serde_json::Value = serde_json::from_str(&bed.ok(&["status", "--json"])).unwrap();
    assert_eq!(json["nodes"].as_array().unwrap().len(), 2);
    let device = json["devices"][0]["device"].as_str().unwrap();
    let set = bed.ok(&["emulate", &device[..12], "rate=2GB", "--json"]);
    let set: serde_json::Value = serde_json::from_str(&set).unwrap();
    assert_eq!(set, serde_json::json!({ "device": device, "emulation": "rate=2GB" }));
    assert_eq!(bed.ok(&["emulate", device, "off"]), format!("device {device}: emulation off\n"));
    let storage = bed.cluster.node_address(0).to_owned();
    let said = bed.fails(4, &["status", "--cluster", &storage]);
    assert!(said.contains("a storage server answers at"), "{said}");
    bed.cluster.kill_node(1).unwrap();
    block_on(eventually("a dead server counts as dead", WITHIN, async || {
        bed.ok(&["status"]).contains("1 of 2 storage servers alive")
    }));
    let status = bed.ok(&["status"]);
    assert!(status.contains("bucket data: 2 devices are affected, it tolerates 0"), "{status}");
    assert!(status.contains("dead for ") && status.contains("4 devices: 2 dead, 2 ok"), "{status}");
    let json: serde_json::Value = serde_json::from_str(&bed.ok(&["status", "--json"])).unwrap();
    let dead = |list: &serde_json::Value| {
        list.as_array().unwrap().iter().filter(|device| device["health"] == "dead").count()
    };
    assert_eq!(dead(&json["devices"]), 2, "{json}");
    // Nobody waits for the dead one, and what it said last is no rate of now.
    let top = bed.ok(&["top", "--once"]);
    assert!(top.contains("1 of 2 servers alive") && top.matches(" dead ").count() == 2, "{top}");
    let json: serde_json::Value = serde_json::from_str(&bed.ok(&["top", "--once", "--json"])).unwrap();
    assert_eq!((dead(&json["devices"]), &json["servers_alive"]), (2, &1.into()), "{json}");
    let of_dead = json["devices"].as_array().unwrap().iter().filter(|device| device["health"] == "dead");
    assert!(of_dead.into_iter().all(|device| device["medium_read_bytes_per_s"].is_null()), "{json}");
    let meta = bed.cluster.admin_ports().next().unwrap().1.to_owned();
    let metrics = Metrics::scrape(&meta);
    assert_eq!(metrics.sum("steadfast_meta_nodes", &[("state", "dead")]), 1.0);
    assert_eq!(metrics.sum("steadfast_meta_devices", &[("state", "unheard")]), 2.0);
    // Without the metadata server both say so and end.
    bed.cluster.kill_meta().unwrap();
    let _held = deaf(bed.cluster.address());
    for command in [&["status"][..], &["status", "--json"], &["top", "--once"]] {
        let said = bed.fails(4, command);
        assert!(said.contains("cannot reach the cluster"), "{said}");
    }
}

#[test]
fn a_local_cluster_in_the_foreground_says_what_to_type() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = Command::new(program())
        .args(["up", "--nodes", "3", "--devices", "1", "--capacity", "64MiB", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(up.stdout.take().unwrap()).lines().map_while(Result::ok);
    let said: Vec<String> = lines.take_while(|line| !line.contains("Ctrl-C")).collect();
    assert_eq!(said[0], "a cluster of 3 storage servers with 1 device each is up:");
    let address = said.iter().find_map(|line| line.split_once("STEADFAST_CLUSTER=")).unwrap().1.to_owned();
    let buckets = |policy: &str| {
        Command::new(program())
            .args(["bucket", "create", "photos", "--policy", policy, "--cluster", &address])
            .output()
    };
    assert_eq!(buckets("rateless:tolerate=5").unwrap().status.code(), Some(6));
    assert!(buckets("rateless:redundancy=0.5,tolerate=1").unwrap().status.success());
    // Its servers end with it, also when it is killed.
    up.kill().unwrap();
    up.wait().unwrap();
    block_on(eventually("its servers have ended", WITHIN, async || {
        let ls = Command::new(program()).args(["ls", "--cluster", &address]).output().unwrap();
        ls.status.code() == Some(4)
    }));
}

/// Each server that ends is told, in whatever order they do, and once.
#[test]
fn a_local_cluster_says_of_each_server_that_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = Command::new(program())
        .args(["up", "--json", "--nodes", "3", "--devices", "1", "--capacity", "64MiB", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(up.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let pid = |name: &str| {
        let servers = said["processes"].as_array().unwrap();
        let server = servers.iter().find(|server| server["name"] == name).unwrap();
        Pid::from_raw(i32::try_from(server["pid"].as_i64().unwrap()).unwrap()).unwrap()
    };
    let (tell, told) = mpsc::channel();
    let lines = BufReader::new(up.stderr.take().unwrap()).lines().map_while(Result::ok);
    std::thread::spawn(move || lines.for_each(|line| drop(tell.send(line))));
    // The last first: one that is told must hide none behind it, nor be told again when the next one is.
    for name in ["node-01", "node-00", "node-02", "meta"] {
        rustix::process::kill_process(pid(name), Signal::KILL).unwrap();
        let line = told.recv_timeout(WITHIN);
        assert!(
            line.as_ref().is_ok_and(|line| line.starts_with(&format!("{name} has ended; see "))),
            "{name}: {line:?}"
        );
    }
    up.kill().unwrap();
    up.wait().unwrap();
    assert_eq!(told.recv_timeout(WITHIN), Err(RecvTimeoutError::Disconnected));
}

/// Who may reserve bandwidth is said once, to `up` or in its file, and every storage server has it.
#[test]
fn a_local_cluster_admits_as_it_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("steadfast.toml");
    let text = "[up]\nnodes = 2\ndevices = 1\ncapacity = \"64MiB\"\nadmission = \"priority\"\n";
    std::fs::write(&file, text).unwrap();
    for (flags, policy) in [(&[][..], "priority"), (&["--admission", "open"], "open")] {
        let mut up = Command::new(program())
            .args(["up", "--json", "--dir"])
            .arg(dir.path().join("cluster"))
            .arg("--config")
            .arg(&file)
            .args(flags)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(up.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        let servers = said["processes"].as_array().unwrap();
        let nodes: Vec<&serde_json::Value> =
            servers.iter().filter(|server| server["name"].as_str().unwrap().starts_with("node")).collect();
        assert_eq!(nodes.len(), 2, "{said}");
        for node in nodes {
            let metrics = Metrics::scrape(node["admin"].as_str().unwrap());
            assert_eq!(metrics.sum("steadfast_node_info", &[("admission", policy)]), 1.0);
        }
        up.kill().unwrap();
        up.wait().unwrap();
        // Its servers end a moment after it, and the next one's take their devices.
        let addresses = || servers.iter().map(|server| server["address"].as_str().unwrap());
        block_on(eventually("its servers have ended", WITHIN, async || {
            addresses().all(|address| TcpStream::connect(address).is_err())
        }));
    }
    let refused =
        Command::new(program()).args(["up", "--dir", "x", "--admission", "first"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("choose `open`, `capacity` or `priority`"));
}

/// Ctrl-C stops it; the same command continues it.
#[test]
fn a_local_cluster_that_was_stopped_goes_on_with_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let [cluster, file, copy] = ["cluster", "file", "copy"].map(|name| dir.path().join(name));
    let original = bytes(1 << 20, seed());
    std::fs::write(&file, &original).unwrap();
    let up = |shape: &[&str]| {
        let mut up = Command::new(program());
        up.args(["up", "--json", "--dir"]).arg(&cluster).args(shape);
        up
    };
    let started = |shape: &[&str]| {
        let mut up = Killed(up(shape).stdout(Stdio::piped()).spawn().unwrap());
        let mut said = String::new();
        BufReader::new(up.0.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let said: serde_json::Value = serde_json::from_str(&said).unwrap();
        (up, said["cluster"].as_str().unwrap().to_owned())
    };
    let stopped = |mut up: Killed| {
        hears_term(&up.0);
        signal(&up.0, Signal::TERM);
        assert_eq!(ended(&mut up.0).code(), Some(0));
    };
    let client = |address: &str, arguments: &[&str]| {
        block_on(eventually("it is done", WITHIN, async || {
            let output =
                Command::new(program()).args(arguments).args(["--cluster", address]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            // Devices may seem to stall.
            assert!(output.status.success() || is_not_now(output.status), "{arguments:?}: {said}");
            output.status.success()
        }));
    };
    // One that did not come up, and made no device, binds nobody to its shape.
    let too_large =
        up(&["--nodes", "3", "--devices", "1", "--thick", "--capacity", "900TB"]).output().unwrap();
    assert_eq!(too_large.status.code(), Some(1), "{}", String::from_utf8_lossy(&too_large.stderr));
    let (first, address) = started(&["--nodes", "2", "--devices", "1", "--capacity", "64MiB"]);
    client(&address, &["bucket", "create", "data", "--policy", "rateless:redundancy=1,tolerate=1"]);
    client(&address, &["put", file.to_str().unwrap(), "data/object"]);
    stopped(first);
    // What it has needs not be said again.
    let (second, again) = started(&[]);
    assert_eq!(again, address);
    client(&again, &["get", "data/object", copy.to_str().unwrap()]);
    assert!(std::fs::read(&copy).unwrap() == original);
    stopped(second);
    // One of another shape would leave devices out.
    for other in [["--nodes", "3"], ["--devices", "2"]] {
        let refused = up(&other).output().unwrap();
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{said}");
        let was = "holds a cluster of 2 nodes with 1 device each: start it with `--nodes 2 --devices 1`";
        assert!(said.contains(was), "{said}");
    }
}

#[test]
fn the_demo_reads_every_byte_back_from_a_broken_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    // Small, so that the stripe's slowest disk takes no minutes: K = 128 blocks of 64 KiB.
    std::fs::write(&file, bytes(8 << 20, seed())).unwrap();
    let demo =
        Command::new(program()).arg("demo").arg(&file).args(["--json", "--seed", "7"]).output().unwrap();
    assert!(demo.status.success(), "{}", String::from_utf8_lossy(&demo.stderr));
    let records: Vec<serde_json::Value> = String::from_utf8(demo.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let value = |experiment: &str, case: &str, metric: &str| {
        let found = records.iter().find(|record| {
            record["experiment"] == experiment && record["case"] == case && record["metric"] == metric
        });
        found.unwrap_or_else(|| panic!("{experiment} {case} {metric} is missing"))["value"].clone()
    };
    let replicated = ["replicated-speculative", "replicated-adaptive"];
    for case in replicated.into_iter().chain(["stripe", "rateless-lt", "rateless-b"]) {
        assert_eq!(value("demo-degraded", case, "bytes_wrong"), 0.0, "{case}");
    }
    for case in ["rateless-lt", "rateless-b"] {
        assert_eq!(value("demo-degraded", case, "bytes_unavailable"), 0.0, "{case}");
    }
    assert_eq!(value("demo-write", "rateless-b", "bytes_wrong"), 0.0);
    for metric in ["bandwidth", "latency_mean", "latency_sd", "io_overhead", "share_of_ideal"] {
        let cases = ["stripe", "rateless-lt", "rateless-b", "any-k-ideal"];
        for case in replicated.into_iter().chain(cases) {
            assert!(value("demo", case, metric).is_number(), "{case} {metric}");
        }
    }
    // By how much is for the demo to say: a test shares its processors with others.
    let faster = value("demo", "rateless-b", "bandwidth").as_f64().unwrap();
    assert!(faster > value("demo", "stripe", "bandwidth").as_f64().unwrap());
}
