//! `steadfast bench`: what it prints, not how fast the machine is.

use crate::common::{Bed, Killed, ended, heard, lines, program, shape, signal};
use rustix::{fs::OFlags, process::Signal};
use std::{
    io::{BufRead, BufReader, Write},
    process::{Command, Stdio},
};
use steadfast_lab::original::Original;

#[test]
fn one_object_a_line_with_the_limit_of_the_same_run() {
    let cases =
        ["rs-encode k=4 m=2 shard=64KiB cached", "delta rs k=10 m=2 4KiB cached", "rank mix-b K=1024"];
    for (only, metric) in cases.into_iter().zip(["throughput", "throughput", "time"]) {
        let output = Command::new(program())
            .args(["bench", "codes", "--quick", "--json", "--seed", "3", "--only", only])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let records: Vec<serde_json::Value> = String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let ours = records.iter().find(|record| record["metric"] == metric).unwrap();
        assert_eq!(ours["experiment"], "bench-codes");
        assert!(ours["case"].as_str().unwrap().contains(only), "{ours}");
        assert_eq!(ours["seed"], 3);
        assert!(ours["paper"].is_null() && ours["spread"].is_number(), "{ours}");
        let value = ours["value"].as_f64().unwrap();
        assert!(value > 0.0);
        if metric == "throughput" {
            assert_eq!(ours["unit"], "GB/s");
            let limit = ours["limit"].as_f64().unwrap();
            assert!((ours["ratio"].as_f64().unwrap() - value / limit).abs() < 1e-9, "{ours}");
        } else {
            assert_eq!(ours["unit"], "s");
        }
    }
}

#[test]
fn a_table_names_the_machine_and_an_unknown_case_is_an_error() {
    let table = Command::new(program())
        .args(["bench", "codes", "--quick", "--only", "rs-encode k=4 m=2 shard=64KiB cached"])
        .output()
        .unwrap();
    let said = String::from_utf8(table.stdout).unwrap();
    assert!(said.contains("of limit") && said.contains("shard=64KiB cached"), "{said}");
    assert!(said.contains("kernels: "), "{said}");
    let unknown =
        Command::new(program()).args(["bench", "codes", "--only", "no such case"]).output().unwrap();
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said.contains("there are rs-encode") && said.contains("overhead mix-b K=16"), "{said}");
}

#[test]
fn a_tier_is_forced_by_name_and_a_wrong_name_lists_those_there_are() {
    let bench = |tier: &str| {
        let only = "rs-encode k=4 m=2 shard=64KiB cached";
        let arguments = ["bench", "codes", "--quick", "--json", "--only", only, "--tier", tier];
        Command::new(program()).args(arguments).output().unwrap()
    };
    let output = bench("portable");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.contains("\"rs-encode k=4 m=2 shard=64KiB cached tier=portable\""), "{said}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("kernels: portable (this processor has portable")
    );
    let wrong = bench("mmx");
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(wrong.status.code() == Some(2) && said.contains("`mmx`") && said.contains("portable"), "{said}");
}

#[test]
fn overheads_are_printed_and_plotted() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("overhead.svg");
    let lab = |arguments: &[&str]| {
        let fixed = ["lab", "run", "--json", "--seed", "3", "--plot", file.to_str().unwrap()];
        Command::new(program()).args(fixed).args(arguments).output().unwrap()
    };
    let output = lab(&["codes/overhead", "--draws", "3", "--case", "K=1024 arrival=random"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    for metric in ["mean", "p99", "worst", "xors", "update"] {
        let line = format!("\"case\":\"overhead mix-b K=1024 arrival=random\",\"metric\":\"{metric}\"");
        assert!(said.contains(&line), "{metric}: {said}");
    }
    assert!(std::fs::read_to_string(&file).unwrap().trim_end().ends_with("</svg>"));
    let none = lab(&["demo"]);
    assert!(String::from_utf8_lossy(&none.stderr).contains("has no picture"));
    assert_eq!(none.status.code(), Some(2));
}

#[test]
fn what_an_experiment_does_not_have_is_a_wrong_command() {
    for (arguments, said) in [
        (&["no/such"][..], "no experiment named `no/such`"),
        (&["demo", "--quick"], "`demo` takes no --quick: it takes no options"),
        (&["six-devices", "--case", "nine"], "there are get-64MiB-equal, put-64MiB-equal"),
        (&["codes/overhead", "--case", "nine"], "overhead mix-b K=16 arrival=disks"),
        (&["robustore/table6-1", "--case", "nine"], "has no case of that name"),
    ] {
        let output = Command::new(program()).args(["lab", "run"]).args(arguments).output().unwrap();
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && told.contains(said), "{arguments:?}: {told}");
    }
    let replay = ["sim", "replay", "--seed", "1", "--scheme", "raid-9"];
    assert_eq!(Command::new(program()).args(replay).output().unwrap().status.code(), Some(2));
}

#[test]
fn a_picture_that_cannot_be_drawn_takes_no_figures_along() {
    let dir = tempfile::tempdir().unwrap();
    let lab = |file: &str| {
        let fixed =
            ["lab", "run", "--json", "codes/overhead", "--draws", "3", "--case", "mix-b K=16 arrival"];
        Command::new(program()).args(fixed).arg("--plot").arg(dir.path().join(file)).output().unwrap()
    };
    let too_little = lab("overhead.svg");
    assert_eq!(too_little.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&too_little.stdout).contains("\"metric\":\"worst\""));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no empty picture");
    // One that was there stays.
    let old = dir.path().join("old.svg");
    std::fs::write(&old, "<svg/>").unwrap();
    assert_eq!(lab("old.svg").status.code(), Some(1));
    assert_eq!(std::fs::read_to_string(&old).unwrap(), "<svg/>");
    let nowhere = lab("missing/overhead.svg");
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(nowhere.status.code() == Some(1) && said.contains("missing/overhead.svg"), "{said}");
    assert!(!said.contains("seed"), "nothing was run: {said}");
}

#[test]
fn figures_of_complete_cases_outlive_a_run_that_is_killed() {
    let mut run = Command::new(program())
        .args(["lab", "run", "codes/overhead", "--json", "--case", "overhead"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut first = String::new();
    // Open until it is killed: with nobody to read its figures it would end by itself.
    let mut figures = BufReader::new(run.stdout.take().unwrap());
    figures.read_line(&mut first).unwrap();
    assert!(run.try_wait().unwrap().is_none(), "two dozen cases are left");
    run.kill().unwrap();
    run.wait().unwrap();
    drop(figures);
    let record: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(record["metric"], "mean");
}

#[test]
fn a_run_that_is_told_to_stop_prints_what_it_has() {
    let mut run = Command::new(program())
        .args(["lab", "run", "codes/overhead", "--case", "overhead"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
    // It is said when the next begins.
    let complete = said.by_ref().filter(|line| line.contains(": mean ")).nth(1).unwrap();
    assert!(complete.contains("overhead lt"), "{complete}");
    signal(&run, Signal::TERM);
    let said: Vec<String> = said.collect();
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{said:?}");
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(table.contains("XORs/K") && table.contains("overhead lt"), "{table}");
    assert!(!table.contains("mix-b"), "far behind: {table}");
}

#[test]
fn a_run_whose_figures_nobody_reads_ends_when_it_is_told_to_stop() {
    let (read, mut full) = std::io::pipe().unwrap();
    rustix::fs::fcntl_setfl(&full, OFlags::NONBLOCK).unwrap();
    while full.write(&[b'x'; 4096]).is_ok() {}
    rustix::fs::fcntl_setfl(&full, OFlags::empty()).unwrap();
    let run = Command::new(program())
        .args(["lab", "run", "robustore/table6-1", "--draws", "2"])
        .stdout(full)
        .stderr(Stdio::piped())
        .spawn();
    let mut run = Killed(run.unwrap());
    let said = lines(run.0.stderr.take().unwrap());
    // The last case is complete: it has its figures, and waits for the pipe.
    heard(&said, |line| line.contains("table6-1: confined-to-0.53").then_some(()));
    assert!(run.0.try_wait().unwrap().is_none());
    signal(&run.0, Signal::TERM);
    assert_eq!(ended(&mut run.0).code(), Some(130));
    drop(read);
}

#[test]
fn a_terminal_that_is_closed_stops_a_run_unless_it_was_to_outlive_it() {
    let run = |hangup: &str| {
        // Whoever runs the tests may ignore it, which programs inherit.
        let mut run = Command::new("env");
        run.arg(format!("--{hangup}-signal=HUP")).arg(program());
        run.args(["lab", "run", "codes/overhead", "--case", "overhead"]);
        let mut run = run.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(run.stderr.take().unwrap()).lines().map(Result::unwrap);
        said.by_ref().find(|line| line.contains(": mean ")).unwrap();
        signal(&run, Signal::HUP);
        (run, said)
    };
    let (mut stopped, said) = run("default");
    let said: Vec<String> = said.collect();
    assert_eq!(stopped.wait().unwrap().code(), Some(130), "{said:?}");
    let (mut kept, mut said) = run("ignore");
    // One may have been on its way.
    assert!(said.by_ref().filter(|line| line.contains(": mean ")).nth(2).is_some());
    signal(&kept, Signal::TERM);
    drop(said);
    assert_eq!(kept.wait().unwrap().code(), Some(130));
}

#[test]
fn a_client_of_the_io_bench_that_nobody_lets_go_does_nothing() {
    // No cluster is there either: it would say that.
    let output = Command::new(program())
        .args(["bench", "access", "--cluster", "127.0.0.1:1", "--object", "data/object"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("whoever started this client is gone"),
        "{said}"
    );
}

#[test]
fn results_become_a_page_that_names_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let (results, page) = (dir.path().join("results.jsonl"), dir.path().join("page.html"));
    let run = |arguments: &[&str]| Command::new(program()).arg("lab").args(arguments).output().unwrap();
    let printed = run(&["run", "robustore/table6-1", "--draws", "2", "--seed", "3", "--json"]);
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    std::fs::write(&results, &printed.stdout).unwrap();
    let report = || run(&["report", results.to_str().unwrap(), "--output", page.to_str().unwrap()]);
    let made = report();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let said = String::from_utf8(made.stderr).unwrap();
    assert!(
        said.contains("missing") && said.contains("robustore/disks") && !said.contains("table6-1"),
        "{said}"
    );
    let html = std::fs::read_to_string(&page).unwrap();
    assert!(html.contains("<svg") && html.contains("--seed 3 --draws 2"));
    std::fs::write(&results, "robustore/table6-1, seed 3\n").unwrap();
    let bad = report();
    let said = String::from_utf8(bad.stderr).unwrap();
    assert!(bad.status.code() == Some(1) && said.contains("results.jsonl:1"), "{said}");
}

#[test]
fn the_clients_of_the_io_bench_say_what_an_access_took() {
    let bed = Bed::with_bucket(&shape(3, 1), "rateless:tolerate=1");
    let access = |arguments: &[&str]| {
        let fixed = ["bench", "access", "--object", "data/object"];
        let mut child = bed
            .command(&[&fixed, arguments].concat())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // It waits for this line.
        child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).unwrap();
        let mut lines = said.lines();
        assert_eq!(lines.next(), Some("ready"));
        lines.map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<serde_json::Value>>()
    };
    let bytes = 3_000_000;
    let put = access(&["--put", &bytes.to_string(), "--seed", "5"]);
    let got = access(&["--count", "2"]);
    assert_eq!((put.len(), got.len()), (1, 2));
    let Original::Made(original) = Original::make(bytes, 5) else { unreachable!("made") };
    for taken in &got {
        assert_eq!(taken["sum"], crc_fast::crc32_iscsi(&original));
        assert_eq!(taken["bytes"], bytes);
    }
    for taken in put.iter().chain(&got) {
        assert!(taken["seconds"].as_f64() > Some(0.0) && taken["cpu_s"].as_f64() > Some(0.0), "{taken}");
    }
    assert!(put[0]["io_overhead"].as_f64() >= Some(0.5), "D = 0.5 at least: {}", put[0]);
}

#[test]
fn an_unknown_io_case_names_those_there_are() {
    let unknown = Command::new(program()).args(["bench", "io", "--only", "delete-1TiB"]).output().unwrap();
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(2));
    assert!(said.contains("get-256MiB-warm") && said.contains("put-64MiB-stalled"), "{said}");
}

/// The records of `bench io --policy parity --quick` whose case has this in its name.
fn of_updates(only: &str) -> Vec<serde_json::Value> {
    let fixed = ["bench", "io", "--policy", "parity", "--quick", "--json", "--seed", "3", "--only"];
    let output = Command::new(program()).args(fixed).arg(only).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn record<'a>(records: &'a [serde_json::Value], case: &str, metric: &str) -> &'a serde_json::Value {
    let found = records.iter().find(|record| record["case"] == case && record["metric"] == metric);
    found.unwrap_or_else(|| panic!("no {metric} of {case}: {records:?}"))
}

/// A figure with its limit of the same run, and the quotient.
fn beside_its_limit(record: &serde_json::Value) {
    let [value, limit, ratio] = ["value", "limit", "ratio"].map(|part| record[part].as_f64());
    let (value, limit) = value.zip(limit).unwrap_or_else(|| panic!("no limit: {record}"));
    assert!(value >= 0.0 && limit > 0.0, "{record}");
    assert!((ratio.unwrap() - value / limit).abs() < 1e-9, "{record}");
}

#[test]
fn six_devices_have_every_figure_and_its_limit() {
    let fixed = ["bench", "io", "--quick", "--json", "--seed", "3", "--only", "64MiB-equal"];
    let output = Command::new(program()).args(fixed).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said = String::from_utf8(output.stdout).unwrap();
    let records: Vec<_> = said.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for case in ["get-64MiB-equal", "put-64MiB-equal"] {
        for metric in ["throughput", "cpu", "latency_mean"] {
            beside_its_limit(record(&records, case, metric));
        }
        for metric in ["latency_sd", "latency_p99", "io_overhead"] {
            assert!(record(&records, case, metric)["value"].is_number(), "{case} {metric}");
        }
    }
    let put = record(&records, "put-64MiB-equal", "io_overhead");
    assert!(put["value"].as_f64() >= Some(0.5), "D = 0.5 at least: {put}");
}

#[test]
fn small_updates_have_every_figure_and_its_limit() {
    let records = of_updates("update-4KiB plr depth=1");
    for case in ["update-4KiB plr depth=1", "update-4KiB plr depth=16"] {
        for metric in ["latency_p50", "latency_p99", "cpu_ms", "reads", "writes"] {
            beside_its_limit(record(&records, case, metric));
        }
    }
    beside_its_limit(record(&records, "update-4KiB plr depth=1", "rate"));
    assert!(record(&records, "update-4KiB plr depth=16", "rate")["value"].as_f64() > Some(0.0));
    // As the paper counts them (§3.2).
    assert_eq!(record(&records, "update-4KiB plr depth=1", "reads")["limit"], 1.0);
    assert_eq!(record(&records, "update-4KiB plr depth=1", "writes")["limit"], 3.0);
    assert_eq!(record(&records, "update-4KiB plr depth=16", "rate_of_depth_1")["limit"], 3.0);
}

#[test]
fn both_orders_of_flushes_are_measured_beside_raw_writes() {
    let records = of_updates("update-4KiB two-flushes");
    for case in ["update-4KiB one-flush", "update-4KiB two-flushes"] {
        for metric in ["latency_p50", "latency_p99"] {
            let latency = record(&records, case, metric);
            let (value, limit) = (latency["value"].as_f64().unwrap(), latency["limit"].as_f64().unwrap());
            assert!(value > 0.0 && limit > 0.0, "{latency}");
            assert!((latency["ratio"].as_f64().unwrap() - value / limit).abs() < 1e-9, "{latency}");
        }
        assert!(record(&records, case, "write_back_ms")["value"].as_f64() > Some(0.0));
    }
    let of_one = record(&records, "update-4KiB two-flushes", "latency_of_one_flush");
    assert!(of_one["value"].as_f64() > Some(0.0), "{of_one}");
}

#[test]
fn both_schemes_are_measured_on_rotating_disks() {
    let records = of_updates("update-16KiB plr rotating depth=1");
    for (scheme, counted) in [("plr", 4.0), ("fo", 6.0)] {
        let case = format!("update-16KiB {scheme} rotating depth=1");
        let rate = record(&records, &case, "rate")["value"].as_f64().unwrap();
        let with_merges = record(&records, &case, "rate_with_merges")["value"].as_f64().unwrap();
        assert!(with_merges > 0.0 && with_merges <= rate, "{case}: {with_merges} of {rate}");
        // One after the other, of a disk that takes some milliseconds to position.
        assert!(rate < 400.0, "{case}: {rate}");
        let on_path = record(&records, &case, "positionings");
        assert_eq!(on_path["limit"], counted);
        // Redo and, logged or not, parity is written.
        assert!(on_path["value"].as_f64() >= Some(3.0), "{on_path}");
    }
    let of_fo = record(&records, "update-16KiB plr rotating depth=1", "rate_of_fo");
    assert_eq!(of_fo["limit"], 1.5);
}

#[test]
fn a_sequential_reader_after_updates_reads_what_was_written() {
    let records = of_updates("read-after-updates");
    let case = "read-after-updates plr";
    for metric in ["read_before", "read_after", "control_before", "control_after", "ratio"] {
        assert!(record(&records, case, metric)["value"].as_f64() > Some(0.0), "{metric}");
    }
    assert_eq!(record(&records, case, "updates")["value"], 320.0);
}
