//! `sim replay` in processes of its own: one seed is one hash.

use crate::common::program;
use serde_json::Value;
use std::{
    fs,
    process::{Command, Output, Stdio},
};

fn replay(arguments: &[&str]) -> Output {
    let fixed = ["sim", "replay", "--disks", "8", "--json"];
    Command::new(program()).args(fixed).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn shown(arguments: &[&str]) -> Value {
    let output = replay(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_seed_is_a_hash_in_every_process_and_a_flipped_byte_shows() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("trace.jsonl");
    let first = shown(&["--seed", "7"]);
    let again = shown(&["--seed", "7", "--trace", file.to_str().unwrap()]);
    assert_eq!(first["hash"].as_str().unwrap().len(), 16);
    for same in ["hash", "latency", "messages", "events", "disk_requests"] {
        assert_eq!(first[same], again[same], "{same}");
    }
    let trace = fs::read_to_string(&file).unwrap();
    let messages: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(messages.len() as u64, first["messages"].as_u64().unwrap());
    assert_ne!(shown(&["--seed", "8"])["hash"], first["hash"]);
    let slice = messages.iter().position(|message| message["message"]["Event"].is_array()).unwrap();
    let flipped = shown(&["--seed", "7", "--flip", &(slice + 1).to_string()]);
    assert_ne!(flipped["hash"], first["hash"]);
    assert!(flipped["damage"].as_str().unwrap().contains("checksums"), "{flipped}");

    for (arguments, words) in [
        (["--seed", "7", "--scheme", "raid"], "rateless-b"),
        (["--seed", "7", "--flip", "99999999"], "is never sent"),
        (["--seed", "-1", "--access", "0"], "--seed"),
    ] {
        let refused = replay(&arguments);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains(words), "{arguments:?}: {said}");
    }
}

#[test]
fn a_reader_that_has_gone_ends_a_command_quietly() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let replay = ["sim", "replay", "--disks", "8", "--seed", "7"];
    let output = Command::new(program()).args(replay).stdin(Stdio::null()).stdout(writer).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    assert!(output.status.success(), "{:?}", output.status);
}
