//! Wishes for bandwidth: met, told to wait, or told what there is; and for no more than the background.

use crate::{
    common::{Bed, WITHIN, block_on, bytes, eventually, once_of, seed, settled, shape, within},
    ranges::ranges_on_one_device,
    trace::records,
    watch::Metrics,
};
use std::{
    fs,
    process::{Child, Output, Stdio},
    time::{Duration, Instant},
};
use steadfast_client::{Client, Options};
use steadfast_lab::cluster::Shape;
use steadfast_protocol::{
    message::{NodeRequest, Priority},
    trace::{Message, Record},
};

/// Six devices of 40 MB/s whose speeds were measured, one bucket of D = 0.5.
fn bed() -> Bed {
    let mut disks = shape(6, 1);
    disks.emulate = Some("rate=40MB".to_owned());
    let bed = Bed::with_bucket(&disks, "rateless:redundancy=0.5,tolerate=2");
    let warm = bed.file("warm", 24 << 20, seed());
    bed.put(&warm, "warm");
    bed.get_equals("warm", &std::fs::read(&warm).unwrap());
    let known = async || {
        let nodes = bed.client().await.registry().await.unwrap().nodes;
        let reports: Vec<_> = nodes.iter().flat_map(|node| &node.devices).collect();
        reports.len() == 6
            && reports.iter().all(|report| report.read_bytes_per_s > 0 && report.write_bytes_per_s > 0)
    };
    let (deadline, mut looks) = (Instant::now() + WITHIN, 0);
    while !block_on(known()) {
        assert!(Instant::now() < deadline, "not every speed is known to the planner");
        std::thread::sleep(Duration::from_millis(50));
        looks += 1;
        // A device that was held up may have been left out of all that was written and read.
        if looks % 40 == 0 {
            bed.put(&warm, "warm");
            bed.ok(&["get", "data/warm", "/dev/null", "--request", "all"]);
        }
    }
    bed
}

/// Runs a command with a wish until it is granted: devices that were held up are known as slow for a while, or as stalled.
fn granted(what: &str, mut run: impl FnMut() -> Output) -> Output {
    let deadline = Instant::now() + WITHIN;
    loop {
        let output = run();
        if output.status.success() {
            return output;
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let refused = matches!(output.status.code(), Some(6 | 9));
        assert!(refused && Instant::now() < deadline, "{what}: {said}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// What the disks give a put of this file now, kB/s, as one is told who wishes for more than any have.
fn given_kb(bed: &Bed, file: &str) -> u64 {
    let said = bed.fails(6, &["put", file, "data/never", "--qos", "bandwidth=10GB"]);
    let given = said.split(" give ").nth(1).unwrap_or_else(|| panic!("what they give: {said}"));
    let mut words = given.split([' ', ';', '\n']);
    let number: f64 = words.next().unwrap().parse().unwrap();
    let unit = match words.next().unwrap() {
        "GB/s" => 1e6,
        "MB/s" => 1e3,
        "kB/s" => 1.0,
        other => panic!("{other}: {said}"),
    };
    (number * unit) as u64
}

fn begin(bed: &Bed, arguments: &[&str]) -> Child {
    bed.command(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn two_puts_at_once_get_what_they_wished_for_or_one_is_told_to_wait() {
    let bed = bed();
    let file = bed.file("original", 32 << 20, seed());
    let original = std::fs::read(&file).unwrap();
    let file = file.to_str().unwrap();
    // A third of what the disks give with D = 0.5 each: there is room for both, and a put without a wish has what is left.
    let put = |key: &str, wish: &[&str]| begin(&bed, &[&["put", file, key, "--json"], wish].concat());
    // Compared with the third and not with a clock: where this machine is the limit, all three are slow. Where it holds one of
    // them up, the next three are looked at.
    once_of("puts with a wish keep up", || {
        let wish = &["--qos", "bandwidth=45MB"][..];
        let all = [("data/a", wish), ("data/b", wish), ("data/e", &[][..])]
            .map(|(key, wish)| (key, wish, put(key, wish)));
        let paces = all.map(|(key, wish, child)| {
            // Where the disks were measured as slower than they are, one has to wait.
            let mut begun = Some(child);
            let output =
                granted(key, || begun.take().unwrap_or_else(|| put(key, wish)).wait_with_output().unwrap());
            let stored: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
            (32 << 20) as f64 / stored["seconds"].as_f64().unwrap() / 1e6
        });
        println!("{paces:.1?} MB/s, the first two of 45 wished for");
        let [first, second, other] = paces;
        first.min(second) > 0.4 * other.min(45.0)
    });
    // More than half each of what there is just then: whoever comes second is told to wait, and when. Both may be where disks are known as
    // slow, for a while.
    let more_than_half = || format!("bandwidth={}kB", given_kb(&bed, file) * 53 / 100);
    let (mut codes, mut said) = ([None; 2], [String::new(), String::new()]);
    block_on(eventually("one of two is granted", WITHIN, async || {
        let wish = more_than_half();
        let both = ["data/c", "data/d"].map(|key| put(key, &["--qos", &wish]));
        let outputs = both.map(|child| child.wait_with_output().unwrap());
        codes = outputs.each_ref().map(|output| output.status.code());
        said = outputs.each_ref().map(|output| String::from_utf8_lossy(&output.stderr).into_owned());
        assert!(codes.iter().all(|code| matches!(code, Some(0 | 6 | 9))), "{said:?}");
        println!("{wish}: {codes:?}");
        codes.contains(&Some(0)) && !codes.contains(&Some(6))
    }));
    // Where the processes hardly ran at the same time, both had room.
    if let Some(waiting) = codes.iter().position(|code| *code == Some(9)) {
        assert!(said[waiting].contains("try again"), "{said:?}");
        let key = ["data/c", "data/d"][waiting];
        // What the first reserved was given back at its end.
        granted(key, || put(key, &["--qos", &more_than_half()]).wait_with_output().unwrap());
    }
    for key in ["a", "b", "c", "d", "e"] {
        bed.get_equals(key, &original);
    }
    let copy = bed.dir.path().join("wished");
    granted("a get", || bed.run(&["get", "data/a", copy.to_str().unwrap(), "--qos", "bandwidth=50MB"]));
    assert!(std::fs::read(&copy).unwrap() == original);
}

#[test]
fn impossible_wishes_are_told_what_there_is() {
    let bed = bed();
    let file = bed.file("original", 8 << 20, seed());
    let file = file.to_str().unwrap();
    let put = |code, wish: &str| bed.fails(code, &["put", file, "data/key", "--qos", wish]);
    let said = put(6, "bandwidth=2GB,accesses=4");
    assert!(said.contains("wanted 2 GB/s for each of 4 accesses") && said.contains("MB/s"), "{said}");
    assert!(put(6, "latency=1ms").contains("round trips"));
    // Unless a device counts as stalled just then.
    block_on(eventually("all six are counted", WITHIN, async || put(6, "devices=40").contains("34 missing")));
    assert!(put(6, "sites=2").contains("1 missing"));
    let said = put(2, "devices=1");
    assert!(said.contains("has to be on 3 nodes"), "{said}");
    assert!(put(2, "tolerate=1").contains("bucket's 2"));
    for (wish, part) in [("speed=4", "speed"), ("bandwidth=4XB", "400MB"), ("devices=1,devices=2", "twice")] {
        let said = put(2, wish);
        assert!(said.contains(part), "{said}");
    }
    let said = bed.fails(2, &["get", "data/warm", "-", "--qos", "redundancy=3"]);
    assert!(said.contains("when it was stored"), "{said}");
    block_on(eventually("all six are named", WITHIN, async || {
        let said = bed.fails(6, &["get", "data/warm", "/dev/null", "--qos", "bandwidth=10GB"]);
        said.contains("wanted 10 GB/s, the 6 devices that can send it give")
    }));
    // What was refused left nothing.
    assert_eq!(bed.ok(&["ls", "data"]).lines().count(), 1);
    // More redundancy than the bucket's is taken.
    // On all that were wished for, unless one of them was held up.
    block_on(eventually("it is stored as wished for", WITHIN, async || {
        bed.settled(&["put", file, "data/more", "--qos", "redundancy=2,devices=5"]);
        let stat = bed.ok(&["stat", "data/more"]);
        println!("{stat}");
        stat.contains("on 5 devices") && (stat.contains("D = 2.") || stat.contains("D = 3."))
    }));
}

/// Segments are stored one after the other, and take as long as all of them do.
#[test]
fn the_latency_of_a_put_is_the_whole_objects() {
    let bed = bed();
    let file = bed.dir.path().join("large");
    fs::File::create(&file).unwrap().set_len(512 << 20).unwrap();
    let put = |file: &str, key: &str| bed.run(&["put", file, key, "--qos", "latency=2s"]);
    // Half as much again takes six disks 3.7 s at what they can promise; one segment of eight, half a second.
    let wanted = "wanted 536870912 bytes within 2000 ms, the 6 devices that can take data take ";
    block_on(eventually("it is told what all of it takes", WITHIN, async || {
        let output = put(file.to_str().unwrap(), "data/large");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(6), "{said}");
        said.contains(wanted)
    }));
    let said = bed.fails(2, &["put", "-", "data/pipe", "--qos", "latency=2s"]);
    assert!(said.contains("no latency can be promised") && said.contains("wish for a bandwidth"), "{said}");
    assert_eq!(bed.ok(&["ls", "data"]).lines().count(), 1);
    let small = bed.file("small", 4 << 20, seed());
    granted("a small put", || put(small.to_str().unwrap(), "data/small"));
}

/// What lies on one disk comes as fast as that one sends it, whatever the others could.
#[test]
fn a_range_is_promised_by_those_that_hold_it() {
    let bed = bed();
    let stat = block_on(async { bed.client().await.stat("data", "warm").await.unwrap() });
    let ranges = ranges_on_one_device(&stat, 2 * u64::from(stat.segments[0].block_bytes));
    let range = ranges.first().expect("originals are written in runs");
    let range = format!("{}-{}", range.start, range.end - 1);
    let get =
        |wish: &str| bed.run(&["get", "data/warm", "/dev/null", "--range", range.as_str(), "--qos", wish]);
    // Unless its server seems to be away just then.
    block_on(eventually("one disk cannot send so fast", WITHIN, async || {
        let output = get("bandwidth=100MB");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.code() == Some(6)
            && said.contains("wanted 100 MB/s, the 1 device that can send it gives ")
    }));
    granted("as fast as it can", || get("bandwidth=10MB"));
    granted("all of it, by all", || bed.run(&["get", "data/warm", "/dev/null", "--qos", "bandwidth=100MB"]));
}

#[test]
fn what_a_killed_client_reserved_comes_back_with_its_lease() {
    let bed = bed();
    let file = bed.file("original", 160 << 20, seed());
    let ports: Vec<String> = bed.cluster.admin_ports().skip(1).map(|(_, port)| port.to_owned()).collect();
    let all = |name: &str, labels: &[(&str, &str)]| -> f64 {
        ports.iter().map(|port| Metrics::scrape(port).sum(name, labels)).sum()
    };
    let reserved_now = |access| all("steadfast_device_reserved_bytes_per_second", &[("access", access)]);
    let json =
        |arguments: &[&str]| -> serde_json::Value { serde_json::from_str(&bed.ok(arguments)).unwrap() };
    let put = || begin(&bed, &["put", file.to_str().unwrap(), "data/a", "--qos", "bandwidth=60MB"]);
    block_on(async {
        let client = bed.client().await;
        let emulate = async |spec: &str| {
            for node in client.registry().await.unwrap().nodes {
                client.emulate(node.record.devices[0].0, spec).await.unwrap();
            }
        };
        // It takes long enough to be looked at: what the disks are known for, and what is promised, stays so.
        emulate("rate=5MB").await;
        let reserved = async || {
            let statuses = bed.statuses(&client).await;
            let devices = statuses.iter().flat_map(|status| &status.devices);
            devices.map(|device| device.reserved_write_bytes_per_s).sum::<u64>()
        };
        let (mut child, mut tries) = (put(), 0);
        loop {
            eventually("it reserves", WITHIN, async || {
                // Refused where devices seemed to stall.
                if child.try_wait().unwrap().is_some() {
                    child = put();
                }
                reserved().await > 80_000_000
            })
            .await;
            // Seen at the admin ports now, and by status and top with the next heartbeats.
            let (held, rate) = (all("steadfast_device_reservations", &[]), reserved_now("write"));
            let (read, granted) =
                (reserved_now("read"), all("steadfast_device_reservations_granted_total", &[]));
            let is_shown = within(WITHIN, async || {
                let kept = json(&["status", "--json"])["kept"].clone();
                let (held, rate) = (&kept["reservations"]["held"], &kept["reserved_write_bytes_per_s"]);
                let is_shown = held.as_u64().unwrap() >= 4 && rate.as_u64().unwrap() > 80_000_000;
                is_shown || child.try_wait().unwrap().is_some()
            })
            .await;
            let top = bed.ok(&["top", "--once"]);
            child.kill().unwrap();
            let code = child.wait().unwrap().code();
            if code.is_none() {
                assert!(held >= 4.0 && rate > 80e6 && read == 0.0, "{held} held, {rate} B/s");
                assert!(granted >= held && is_shown && top.contains("kept   0/"), "{granted} granted\n{top}");
                break;
            }
            // Refused after all where devices seemed to stall, or over where this test was held up.
            tries += 1;
            let is_passing = matches!(code, Some(0 | 6 | 9));
            assert!(is_passing && tries < 6, "{code:?} before it was killed: store more");
            child = put();
        }
        // Ten seconds at most, and longer on a machine that is busy with other things.
        eventually("its leases end", WITHIN, async || reserved().await == 0).await;
        let expired = all("steadfast_device_reservations_ended_total", &[("how", "expired")]);
        assert!(expired >= 4.0 && all("steadfast_device_reservations", &[]) == 0.0, "{expired} expired");
        // One that ends well gives back.
        emulate("rate=40MB").await;
        let small = bed.file("small", 4 << 20, seed());
        granted("a small put", || {
            bed.run(&["put", small.to_str().unwrap(), "data/b", "--qos", "bandwidth=2MB"])
        });
        eventually("it gives back", WITHIN, async || {
            all("steadfast_device_reservations_ended_total", &[("how", "given_back")]) >= 1.0
        })
        .await;
        let line = bed.ok(&["status"]).lines().find(|line| line.starts_with("kept ")).map(str::to_owned);
        assert!(line.as_ref().is_some_and(|line| line.contains("expired")), "{line:?}");
    });
}

/// An update with a wish keeps its part of every device it reads and writes, or says what it can have.
#[test]
fn updates_have_wishes_too() {
    let bed = bed();
    let mut content = bytes(24 << 20, seed());
    let file = bed.file("original", content.len(), seed());
    bed.put(&file, "object");
    let patch = bytes(3 << 20, seed() ^ 9);
    let file = bed.dir.path().join("patch");
    std::fs::write(&file, &patch).unwrap();
    let update = |wish: &str| {
        let mut arguments =
            vec!["put", file.to_str().unwrap(), "data/object", "--range", "5000000-", "--json"];
        arguments.extend(["--qos", wish]);
        bed.run(&arguments)
    };
    let refused = |code, wish: &str| {
        let output = update(wish);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{wish}: {said}");
        said
    };
    block_on(eventually("all six are named", WITHIN, async || {
        refused(6, "bandwidth=2GB").contains("wanted 2 GB/s, the 6 devices that can change it give")
    }));
    let said = refused(6, "latency=5ms");
    assert!(said.contains("wanted 3145728 bytes within 5 ms"), "{said}");
    assert!(refused(2, "tolerate=1").contains("bucket's 2"));
    assert!(refused(2, "devices=4").contains("a wish for devices"));
    assert!(refused(2, "sites=1").contains("a wish for sites"));
    bed.get_equals("object", &content);

    let ports: Vec<String> = bed.cluster.admin_ports().skip(1).map(|(_, port)| port.to_owned()).collect();
    let all = |name: &str| -> f64 { ports.iter().map(|port| Metrics::scrape(port).sum(name, &[])).sum() };
    let before = all("steadfast_device_reservations_granted_total");
    // 48 originals and what holds them take a sixth of six disks' time for some seconds.
    let output = granted("an update", || update("bandwidth=500kB"));
    content[5_000_000..5_000_000 + patch.len()].copy_from_slice(&patch);
    bed.get_equals("object", &content);
    // Of all six, unless one of them seemed to stall.
    assert!(all("steadfast_device_reservations_granted_total") >= before + 5.0);
    block_on(eventually("it gives back", WITHIN, async || all("steadfast_device_reservations") == 0.0));
    let changed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let status: serde_json::Value = serde_json::from_str(&bed.ok(&["status", "--json"])).unwrap();
    let accesses = &status["accesses"];
    assert_eq!(accesses["amends"], 1);
    assert_eq!(accesses["amend_sent_bytes"], changed["written_bytes"]);
    assert_eq!(accesses["amend_received_bytes"], changed["read_bytes"]);
    assert!(bed.ok(&["status"]).contains("amends 1, "));
    // More redundancy for all that it touches, as for a put.
    let output = granted("an update for more redundancy", || update("redundancy=1.2"));
    let raised: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(raised["redundancy"].as_f64().unwrap() >= 1.2, "{raised}");
    bed.get_equals("object", &content);
}

/// What it reads to mint blocks is, and so are the blocks.
#[test]
fn a_tune_by_a_client_in_the_background_is_in_the_background() {
    let bed = Bed::with_bucket(&Shape { trace: true, ..shape(4, 1) }, "rateless:redundancy=0.5,tolerate=1");
    bed.put(&bed.file("original", 4 << 20, seed()), "object");
    block_on(async {
        let quality = "priority=background".parse().unwrap();
        let options = Options { quality, patience: Duration::from_secs(30), ..Options::default() };
        let client = Client::connect(bed.cluster.address(), options).await.unwrap();
        settled(async || client.tune("data", "object", 3.0).await).await;
        // Servers write down what they heard behind their answers. Nobody else reads, and the put was not in the background.
        eventually("its streams are written down", WITHIN, async || {
            let (mut reads, mut writes) = (0, 0);
            let heard = (0..4).flat_map(|node| records(&bed, &format!("node-{node:02}")));
            for Record { message, .. } in heard {
                let Message::Open { request, priority, .. } = message else { continue };
                match *request {
                    NodeRequest::Read { .. } => {
                        assert_eq!(priority, Priority::Background);
                        reads += 1;
                    }
                    NodeRequest::Write(_) if priority == Priority::Background => writes += 1,
                    _ => {}
                }
            }
            reads > 0 && writes > 0
        })
        .await;
    });
}
