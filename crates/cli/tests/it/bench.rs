//! `steadfast bench codes`: what it prints, not how fast the machine is.

use crate::common::program;
use std::process::Command;

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
    assert_eq!(unknown.status.code(), Some(1));
}
