//! What can be seen of a running cluster: admin ports, `status`, `top`.

use crate::common::{Bed, Killed, WITHIN, block_on, bytes, eventually, once_of, program, put, seed, shape};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fs,
    io::{Cursor, Read, Write},
    net::TcpStream,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_client::GetError;
use steadfast_lab::cluster::Shape;

/// A scrape's answer: the status line's code, and the body.
fn ask(address: &str, path: &str) -> (u16, String) {
    let mut socket = TcpStream::connect(address).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split_whitespace().nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// A page by the rules of the text format: every sample has a type said before it, every name a help.
#[derive(Debug)]
pub(crate) struct Metrics(BTreeMap<String, Vec<Sample>>);

/// Labels and a value.
type Sample = (BTreeMap<String, String>, f64);

impl Metrics {
    pub(crate) fn scrape(address: &str) -> Self {
        let (code, body) = ask(address, "/metrics");
        assert_eq!(code, 200, "{body}");
        let (mut helped, mut types) = (Vec::new(), BTreeMap::new());
        let mut samples = BTreeMap::<String, Vec<_>>::new();
        for line in body.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                helped.push(help.split_once(' ').expect("a help has text").0.to_owned());
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(helped.iter().any(|helped| helped == name), "{name} has no help");
                assert!(types.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} twice");
            } else {
                let (series, value) = line.rsplit_once(' ').expect("a sample has a value");
                let (name, labels) = match series.split_once('{') {
                    Some((name, labels)) => (name, parse_labels(labels.strip_suffix('}').unwrap())),
                    None => (series, BTreeMap::new()),
                };
                let family = ["_bucket", "_sum", "_count"]
                    .iter()
                    .find_map(|suffix| types.get_key_value(name.strip_suffix(suffix)?))
                    .filter(|(_, kind)| *kind == "histogram")
                    .map_or(name, |(family, _)| family);
                assert!(types.contains_key(family), "{name} has no type");
                assert!(name.starts_with("steadfast_"), "{name}");
                samples.entry(name.to_owned()).or_default().push((labels, value.parse().unwrap()));
            }
        }
        Self(samples)
    }

    /// The sum of a metric's samples with these labels.
    pub(crate) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let samples = self.0.get(name).unwrap_or_else(|| panic!("no {name}"));
        let matching = samples.iter().filter(|(of, _)| {
            labels.iter().all(|&(label, value)| of.get(label).is_some_and(|found| found == value))
        });
        matching.map(|(_, value)| value).sum()
    }
}

fn parse_labels(mut text: &str) -> BTreeMap<String, String> {
    let mut labels = BTreeMap::new();
    while !text.is_empty() {
        let (name, rest) = text.split_once("=\"").expect("a label has a value in quotes");
        let (mut value, mut escaped, mut end) = (String::new(), false, None);
        for (at, letter) in rest.char_indices() {
            match letter {
                _ if escaped => {
                    value.push(if letter == 'n' { '\n' } else { letter });
                    escaped = false;
                }
                '\\' => escaped = true,
                '"' => {
                    end = Some(at);
                    break;
                }
                letter => value.push(letter),
            }
        }
        labels.insert(name.to_owned(), value);
        text = rest[end.expect("a value ends") + 1..].trim_start_matches(',');
    }
    labels
}

fn admin_ports(bed: &Bed) -> (String, Vec<String>) {
    let mut ports = bed.cluster.admin_ports().map(|(_, admin)| admin.to_owned());
    (ports.next().unwrap(), ports.collect())
}

fn status(bed: &Bed) -> Value {
    serde_json::from_str(&bed.ok(&["status", "--json"])).unwrap()
}

#[test]
fn counters_move_with_accesses_and_agree_with_status() {
    let bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=1,tolerate=1");
    let (meta, nodes) = admin_ports(&bed);
    let size = 4 << 20;
    let original = bytes(size, seed());
    let all = |name: &str| nodes.iter().map(|node| Metrics::scrape(node).sum(name, &[])).sum::<f64>();
    assert_eq!(all("steadfast_node_sent_payload_bytes_total"), 0.0);

    block_on(async {
        let client = bed.client().await;
        let put = put(&client, "object", &original).await;
        let received = all("steadfast_node_received_payload_bytes_total");
        assert!(received >= put.stored_bytes as f64, "{received} of {}", put.stored_bytes);
        assert!(all("steadfast_device_medium_written_bytes_total") >= put.stored_bytes as f64);
        assert!(all("steadfast_device_flushes_total") >= 1.0);

        let got = client.get("data", "object", None, std::io::sink()).await.unwrap();
        // The last streams end behind the answer.
        eventually("all streams are over", WITHIN, async || {
            client.tidy().await;
            all("steadfast_node_open_streams") == 0.0
        })
        .await;
        let sent = all("steadfast_node_sent_payload_bytes_total");
        assert!(sent >= size as f64 && sent >= got.received_bytes as f64, "{sent}");
        let (read, handed) = (
            all("steadfast_device_stream_read_bytes_total"),
            all("steadfast_device_stream_sent_bytes_total"),
        );
        let unsent = all("steadfast_node_unsent_payload_bytes_total");
        assert!(read >= handed && handed >= sent, "{read} read, {handed} handed over, {sent} sent");
        assert!(handed <= sent + unsent, "{handed} handed over, {sent} sent, {unsent} dropped");
        assert!(all("steadfast_node_admitted_streams_total") > 0.0);
    });

    let metrics = Metrics::scrape(&meta);
    assert_eq!(metrics.sum("steadfast_meta_requests_total", &[("kind", "commit"), ("outcome", "ok")]), 1.0);
    assert_eq!(metrics.sum("steadfast_meta_client_gets_total", &[]), 1.0);
    assert_eq!(metrics.sum("steadfast_meta_client_used_bytes_total", &[]), size as f64);
    let of_clients = |what: &str| metrics.sum(&format!("steadfast_meta_client_{what}_total"), &[]);
    let (asked, extras, won) =
        (of_clients("requested_blocks"), of_clients("extra_blocks"), of_clients("extra_blocks_won"));
    // K = 64 blocks of 64 KiB.
    assert!(asked >= 64.0 && won <= extras && extras <= asked, "{asked} asked, {extras} extra, {won} won");
    assert!(of_clients("received_bytes") >= size as f64, "{}", of_clients("received_bytes"));
    // As far as servers have said: whoever is late with it is not waited for.
    for what in ["medium_read_bytes", "sent_bytes"] {
        assert!(of_clients(what) > 0.0, "{what}");
    }
    assert_eq!((of_clients("puts"), of_clients("put_bytes")), (1.0, size as f64));
    // The same in what people read, and in what programs do.
    let accesses = status(&bed)["accesses"].clone();
    let top: Value = serde_json::from_str(&bed.ok(&["top", "--once", "--json"])).unwrap();
    assert_eq!(top["accesses"], accesses);
    for (key, counted) in [("requested_blocks", asked), ("extra_blocks", extras), ("extra_won", won)] {
        assert_eq!(accesses[key].as_f64().unwrap(), counted, "{accesses}");
    }
    for command in [&["status"][..], &["top", "--once"]] {
        let said = bed.ok(command);
        assert!(said.contains(&format!("extras {extras} of {asked} blocks asked for, {won} won")), "{said}");
        assert!(said.contains("reads  1, 4.0 MiB used; waste: ") && said.contains(" from media, "), "{said}");
        assert!(said.contains("writes 1, 4.0 MiB, "), "{said}");
    }
    block_on(eventually("all servers and devices are well", WITHIN, async || {
        let metrics = Metrics::scrape(&meta);
        metrics.sum("steadfast_meta_nodes", &[("state", "alive")]) == 4.0
            && metrics.sum("steadfast_meta_devices", &[("state", "ok")]) == 4.0
    }));
    assert!(metrics.sum("steadfast_meta_store_bytes", &[]) > 0.0);
    let changes = metrics.sum("steadfast_meta_request_seconds_count", &[("class", "change")]);
    let whole = [("class", "change"), ("le", "+Inf")];
    assert_eq!(metrics.sum("steadfast_meta_request_seconds_bucket", &whole), changes);
    block_on(eventually("the records are counted", WITHIN, async || {
        let metrics = Metrics::scrape(&meta);
        let count = |kind: &str| {
            metrics
                .0
                .get("steadfast_meta_records")
                .map(|_| metrics.sum("steadfast_meta_records", &[("kind", kind)]))
        };
        (count("object"), count("bucket"), count("intent")) == (Some(1.0), Some(1.0), Some(0.0))
    }));
    bed.ok(&["rm", "data/object"]);
    assert_eq!(Metrics::scrape(&meta).sum("steadfast_meta_records", &[("kind", "object")]), 0.0);

    // Both say the same: one now, the other with the next heartbeat.
    block_on(eventually("status agrees with the metrics", WITHIN, async || {
        let status = status(&bed);
        let nodes = status["nodes"].as_array().unwrap();
        assert_eq!(status["admin"], meta.as_str());
        nodes.iter().all(|node| {
            let metrics = Metrics::scrape(node["activity"]["admin"].as_str().unwrap());
            let device = &node["devices"][0];
            let same = |name: &str, value: &Value| metrics.sum(name, &[]) == value.as_f64().unwrap();
            same("steadfast_node_sent_payload_bytes_total", &node["activity"]["sent_bytes"])
                && same("steadfast_node_received_payload_bytes_total", &node["activity"]["received_bytes"])
                && same("steadfast_device_medium_read_bytes_total", &device["medium_read_bytes"])
                && same("steadfast_device_free_bytes", &device["free_bytes"])
                && same("steadfast_device_flushes_total", &device["activity"]["flushes"])
        })
    }));
}

/// Servers say at the end of a stream what it moved, and no reader waits for that.
#[test]
fn what_moved_for_open_objects_and_failed_gets_is_counted() {
    let bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=1,tolerate=1");
    let (meta, _) = admin_ports(&bed);
    let original = bytes(4 << 20, seed());
    let size = original.len() as f64;
    block_on(async { put(&bed.client().await, "object", &original).await });
    let counted = || {
        let page = Metrics::scrape(&meta);
        ["gets", "used_bytes", "received_bytes", "sent_bytes", "medium_read_bytes"]
            .map(|what| page.sum(&format!("steadfast_meta_client_{what}_total"), &[]))
    };
    let since = |before: [f64; 5]| {
        let now = counted();
        core::array::from_fn::<f64, 5, _>(|at| now[at] - before[at])
    };
    // One of some: who is held up for long says it too late.
    once_of("a reader counts what its servers moved", || {
        let before = counted();
        block_on(async {
            let client = Arc::new(bed.client().await);
            let mut reader = client.open("data", "object").await.unwrap();
            assert!(reader.read(original.len()).await.unwrap() == original[..]);
            client.tidy().await;
        });
        let [gets, used, received, sent, medium] = since(before);
        println!("{used} bytes used, {received} received, {sent} sent, {medium} from media");
        gets == 0.0 && used == size && received >= used && sent >= used && medium >= used
    });
    once_of("so does a get whose sink is full", || {
        let before = counted();
        block_on(async {
            let client = bed.client().await;
            let got = client.get("data", "object", None, Cursor::new([0u8; 16])).await;
            assert!(matches!(got, Err(GetError::Sink(_))), "{got:?}");
            client.tidy().await;
        });
        let [gets, used, received, sent, medium] = since(before);
        (gets, used) == (0.0, 0.0) && received >= size && sent >= size && medium >= size
    });
}

#[test]
fn health_says_why_not() {
    let mut bed = Bed::start(&Shape { emulate: Some("off".to_owned()), ..shape(1, 1) });
    let (meta, nodes) = admin_ports(&bed);
    assert_eq!(ask(&meta, "/healthz"), (200, "ok\n".to_owned()));
    // The metadata server knows it a moment before it hears so.
    block_on(eventually("it is well", WITHIN, async || {
        ask(&nodes[0], "/healthz") == (200, "ok\n".to_owned())
    }));
    bed.ok(&["bucket", "create", "data", "--policy", "rateless:redundancy=0.5,tolerate=0"]);
    let device = status(&bed)["devices"][0]["device"].as_str().unwrap().to_owned();
    bed.ok(&["emulate", &device, "error"]);
    let file = bed.file("original", 2 << 20, seed());
    // Where the device seems to stall when it is asked, nothing is written that could fail.
    block_on(eventually("the device has failed", WITHIN, async || {
        assert!(!bed.run(&["put", file.to_str().unwrap(), "data/object"]).status.success());
        let (code, said) = ask(&nodes[0], "/healthz");
        code == 503 && said.contains("failed")
    }));
    assert_eq!(Metrics::scrape(&nodes[0]).sum("steadfast_device_state", &[("state", "failed")]), 1.0);
    let killed = Instant::now();
    bed.cluster.kill_meta().unwrap();
    assert!(TcpStream::connect(&meta).is_err());
    // It is known for some seconds after the last heartbeat that was answered.
    let registered = Metrics::scrape(&nodes[0]).sum("steadfast_node_registered", &[]);
    assert!(registered == 1.0 || killed.elapsed() >= Duration::from_secs(3));
    block_on(eventually("failed heartbeats are counted", WITHIN, async || {
        Metrics::scrape(&nodes[0]).sum("steadfast_node_heartbeats_failed_total", &[]) > 0.0
    }));
    block_on(eventually("nobody says that it is known", WITHIN, async || {
        let (code, said) = ask(&nodes[0], "/healthz");
        code == 503 && said.contains("does not answer")
    }));
    assert_eq!(Metrics::scrape(&nodes[0]).sum("steadfast_node_registered", &[]), 0.0);
    // Begun again on its own device it serves, and nobody knows it.
    bed.cluster.restart_node(0).unwrap();
    let (_, nodes) = admin_ports(&bed);
    let (code, said) = ask(&nodes[0], "/healthz");
    assert!(code == 503 && said.contains("not registered"), "{code} {said}");
    assert_eq!(Metrics::scrape(&nodes[0]).sum("steadfast_node_registered", &[]), 0.0);
    bed.cluster.restart_meta().unwrap();
    block_on(eventually("it registers and is well", WITHIN, async || {
        ask(&nodes[0], "/healthz") == (200, "ok\n".to_owned())
    }));
    let log = fs::read_to_string(bed.cluster.dir().join("logs/node-00.log")).unwrap();
    assert_eq!(log.matches("a device failed").count(), 1, "told once:\n{log}");
}

#[test]
fn slow_readers_of_metrics_hold_nothing_up() {
    let bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=1,tolerate=1");
    let (meta, nodes) = admin_ports(&bed);
    let mut held = Vec::new();
    for port in nodes.iter().chain([&meta]) {
        for half in ["", "GET /metr", "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01\x02"] {
            for _ in 0..4 {
                let mut socket = TcpStream::connect(port).unwrap();
                // The oldest of too many are closed.
                let _ = socket.write_all(half.as_bytes());
                held.push(socket);
            }
        }
    }
    let file = bed.file("original", 3 << 20, seed());
    bed.put(&file, "object");
    bed.get_equals("object", &fs::read(&file).unwrap());
    for port in nodes.iter().chain([&meta]) {
        assert_eq!(ask(port, "/healthz").0, 200);
        assert!(Metrics::scrape(port).0.len() > 10);
    }
    drop(held);
}

#[test]
fn top_marks_the_slow_disk() {
    let bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    let found = status(&bed);
    let devices: Vec<String> = found["devices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|device| device["device"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(devices.len(), 6, "{found}");
    // All emulated, far below what this machine can do, so that its load makes none of them slow.
    for device in &devices {
        bed.ok(&["emulate", device, "rate=40MB"]);
    }
    bed.ok(&["emulate", &devices[3], "rate=2MB"]);
    let file = bed.file("original", 8 << 20, seed());
    bed.put(&file, "object");
    bed.get_equals("object", &fs::read(&file).unwrap());
    let mut frame = String::new();
    block_on(eventually("the slow disk is marked", WITHIN, async || {
        frame = bed.ok(&["top", "--once"]);
        let slow: Vec<&str> = frame.lines().filter(|line| line.contains(" slow ")).collect();
        slow.iter().any(|line| line.starts_with(&devices[3][..8]))
    }));
    println!("{frame}");
    assert!(frame.lines().all(|line| line.chars().count() <= 80), "{frame}");
    assert!(frame.contains("6 of 6 servers alive") && frame.contains("waste:"), "{frame}");
    assert!(bed.ok(&["status"]).contains(" slow "));
    let json: Value = serde_json::from_str(&bed.ok(&["top", "--once", "--json"])).unwrap();
    let slow =
        json["devices"].as_array().unwrap().iter().find(|device| device["device"] == devices[3].as_str());
    assert!(slow.unwrap()["times_slower"].as_f64().unwrap() >= 3.0, "{json}");
    assert_eq!(json["accesses"]["gets"], 1);
    assert!(json["sent_waste"].as_f64().unwrap() > -0.01, "{json}");
    let stragglers = status(&bed)["stragglers"].clone();
    assert!(stragglers.as_array().unwrap().iter().any(|one| *one == devices[3].as_str()), "{stragglers}");
}

/// Behind a wall that leads one address to another it cannot know by itself where others reach it.
#[test]
fn a_server_is_known_by_the_address_that_it_is_told() {
    let bed = Bed::start(&shape(1, 1));
    let mut command = Command::new(program());
    command.args(["node", "--listen", "127.0.0.1:0", "--advertise", "store.example:7010"]);
    command.args([
        "--admin",
        "127.0.0.1:0",
        "--capacity",
        "256MiB",
        "--meta",
        bed.cluster.address(),
        "--dir",
    ]);
    command.arg(bed.dir.path().join("another"));
    let node = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let _node = Killed(node);
    block_on(eventually("it is told where it is", WITHIN, async || {
        bed.ok(&["status"]).contains("store.example:7010: http://127.0.0.1:")
    }));
}
