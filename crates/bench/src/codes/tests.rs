//! The harness itself; no figure is judged.

use super::*;

fn options(only: &str) -> Options {
    Options { quick: true, only: Some(only.to_owned()), tier: None }
}

#[test]
fn a_case_gives_a_rate_its_limit_and_their_ratio() {
    let mut said = Vec::new();
    let report =
        run(&options("xor d=8 32KiB cached"), Report::new(9), &mut |text| said.push(text.to_owned()))
            .unwrap();
    assert_eq!(said, ["xor d=8 32KiB cached"]);
    let ours = report.records.iter().find(|record| record.metric == THROUGHPUT).unwrap();
    let (value, limit) = (ours.value.unwrap(), ours.limit.unwrap());
    assert!(value > 0.0 && limit > 0.0 && (ours.ratio.unwrap() - value / limit).abs() < 1e-9, "{ours:?}");
    assert!(show(&report).contains("xor d=8"));
}

#[test]
fn a_case_that_is_no_rate_gives_a_time() {
    let mut said = Vec::new();
    let report =
        run(&options("rank mix-b K=1024"), Report::new(9), &mut |text| said.push(text.to_owned())).unwrap();
    assert_eq!(said, ["rank mix-b K=1024 patterns=200"]);
    assert!(report.value(EXPERIMENT, &said[0], "time").unwrap() > 0.0);
    assert!(show(&report).contains("rank mix-b"));
}

#[test]
fn a_case_is_told_before_the_next_begins() {
    let log = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = log.clone();
    let report = Report::telling(9, move |records| {
        told.lock().unwrap().push(format!("{} figures of {}", records.len(), records[0].case));
        Ok(())
    });
    run(&options("overhead mix-b K=16 "), report, &mut |text| log.lock().unwrap().push(text.to_owned()))
        .unwrap();
    let [random, disks] = ["random", "disks"].map(|arrival| format!("overhead mix-b K=16 arrival={arrival}"));
    let figures = |case: &str| format!("3 figures of {case}");
    assert_eq!(*log.lock().unwrap(), [random.clone(), figures(&random), disks.clone(), figures(&disks)]);
}

#[test]
fn an_overhead_has_its_mean_and_tail_as_shares_of_k() {
    let report = run(&options("overhead mix-b K=64 arrival=disks"), Report::new(9), &mut |_| {}).unwrap();
    let value = |metric| report.value(EXPERIMENT, "overhead mix-b K=64 arrival=disks", metric).unwrap();
    // At most one block of the 64.
    assert!(value("mean") <= value("p99") && value("p99") <= value("worst") && value("worst") <= 1.01 / 64.0);
    assert!(show(&report).contains("K=64 arrival=disks, worst: "), "{}", show(&report));
}

#[test]
fn blocks_are_counted_in_whole_ones() {
    let mut report = Report::new(1);
    for (case, blocks) in [("decode a", 3.0), ("decode b", 1.0)] {
        report.add(EXPERIMENT, case, "extra_blocks", blocks, "blocks");
    }
    let shown = show(&report);
    assert!(shown.contains("decode a, extra_blocks: 3 blocks\n"), "{shown}");
    assert!(shown.contains("decode b, extra_blocks: 1 block\n"), "{shown}");
}

#[test]
fn a_name_that_no_case_has_is_an_error() {
    assert!(run(&options("no such case"), Report::new(9), &mut |_| {}).is_err());
}

#[test]
fn every_case_has_a_name_of_its_own() {
    let mut names: Vec<String> = stripe::cases()
        .into_iter()
        .chain(sum::cases())
        .chain(object::cases())
        .chain(overhead_cases())
        .map(|case| case.name)
        .collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
    // Names that figures are published under.
    for name in [
        "rs-encode k=4 m=2 shard=1MiB memory",
        "rs-encode k=32 m=8 shard=64KiB memory",
        "rs-encode-crc k=10 m=4 shard=1MiB memory",
        "xor d=2 1MiB memory",
        "xor d=8 32KiB cached",
        "decode mix-b K=1024 block=64KiB",
        "decode mix-b K=1024 block=64KiB arrival=disks",
        "overhead mix-b K=1024 arrival=random",
        "overhead mix-b K=1024 arrival=disks",
        "overhead mix-b K=16 arrival=random",
    ] {
        assert!(names.iter().any(|known| known == name), "{name}");
    }
}
