//! Standard output that is closed early, or full.

use crate::common::{
    Bed, Killed, WITHIN, block_on, ended, eventually, heard, hears_term, is_not_now, lines, once_of, program,
    seed, shape, signal,
};
use rustix::process::Signal;
use std::{
    fs,
    io::Read,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};
use steadfast_lab::cluster::Shape;

#[test]
fn a_reader_that_has_seen_enough_ends_a_get_quietly() {
    let bed = Bed::with_bucket(&shape(3, 1), "rateless:redundancy=1,tolerate=1");
    // Far more than a pipe holds.
    let file = bed.file("original", 8 << 20, seed());
    bed.put(&file, "object");
    let mut get = bed.command(&["get", "data/object", "-"]);
    let mut get = get.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    let mut pipe = get.stdout.take().unwrap();
    pipe.read_exact(&mut first).unwrap();
    drop(pipe);
    let ended = get.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((ended.status.code(), said.as_ref()), (Some(0), ""));
    assert!(first == fs::read(&file).unwrap()[..10]);
}

/// It fails, says what is full, and has done everything else.
#[test]
fn what_cannot_be_said_is_done_all_the_same() {
    // No sweep makes good for what the commands leave undone.
    let bed = Bed::with_bucket(&Shape { sweep_s: 3600, ..shape(3, 1) }, "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 4 << 20, seed());
    let unsaid = |arguments: &[&str]| {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let ended = bed.command(arguments).stdin(Stdio::null()).stdout(full).output().unwrap();
        let Output { status, stderr, .. } = ended;
        let said = String::from_utf8_lossy(&stderr).into_owned();
        // The devices may seem to stall just then.
        let refused = is_not_now(status);
        assert!(refused || said.contains("cannot write to standard output: No space left"), "{said}");
        assert!(refused || status.code() == Some(1), "{said}");
        !refused
    };
    let used = || block_on(async { bed.used_bytes(&bed.client().await).await });
    // A client waits half a second at most until what it freed is free: on a busy machine that may be too short.
    once_of("what is removed is freed", || {
        if !unsaid(&["put", file.to_str().unwrap(), "data/object"]) {
            return false;
        }
        bed.get_equals("object", &fs::read(&file).unwrap());
        let before = used();
        assert!(unsaid(&["rm", "data/object"]));
        assert!(bed.ok(&["ls", "data"]).is_empty());
        let deadline = Instant::now() + Duration::from_secs(5);
        while used() + (8 << 20) > before && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        used() + (8 << 20) <= before
    });
}

/// A command whose standard output nobody reads.
fn unread(command: &str) -> Command {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut unread = Command::new(program());
    unread.arg(command).stdin(Stdio::null()).stdout(writer);
    unread
}

/// Starts a server, and waits until it says on standard error where it serves.
fn serving(command: &mut Command) -> (Killed, String) {
    command.args(["--listen", "127.0.0.1:0", "--log-format", "json", "--log", "info"]);
    let mut server = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
    let events = lines(server.0.stderr.take().unwrap());
    let address = heard(&events, |event| {
        let event: serde_json::Value = serde_json::from_str(event).ok()?;
        event["address"].as_str().map(str::to_owned)
    });
    (server, address)
}

/// It stops as it does where somebody reads.
fn stop(mut server: Killed) {
    hears_term(&server.0);
    signal(&server.0, Signal::TERM);
    let ended = ended(&mut server.0);
    assert!(ended.success(), "{ended:?}");
}

/// What a client of the cluster at `address` is told.
fn told(address: &str, arguments: &[&str]) -> String {
    let told = Command::new(program()).args(arguments).args(["--cluster", address]).output().unwrap();
    assert!(told.status.success(), "{}", String::from_utf8_lossy(&told.stderr));
    String::from_utf8(told.stdout).unwrap()
}

/// Whoever started it may have read all that it wanted to know.
#[test]
fn a_server_serves_on_where_nobody_reads_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let (meta, address) = serving(unread("meta").arg("--dir").arg(dir.path().join("meta")));
    let mut node = unread("node");
    node.args(["--capacity", "64MiB", "--meta", &address, "--dir"]).arg(dir.path().join("disk"));
    let (node, _) = serving(&mut node);
    block_on(eventually("the storage server is known", WITHIN, async || {
        told(&address, &["status"]).contains("1 of 1 storage servers alive")
    }));
    stop(node);
    // Nor does it end with the other.
    told(&address, &["bucket", "ls"]);
    stop(meta);
}

#[test]
fn a_local_cluster_serves_on_where_nobody_reads_what_it_says() {
    let dir = tempfile::tempdir().unwrap();
    let mut up = unread("up");
    up.args(["--nodes", "2", "--devices", "1", "--capacity", "64MiB", "--dir"]).arg(dir.path());
    let up = Killed(up.spawn().unwrap());
    // It does when it has said what to type.
    hears_term(&up.0);
    let record = fs::read(dir.path().join("cluster.json")).unwrap();
    let record: serde_json::Value = serde_json::from_slice(&record).unwrap();
    let address = record["servers"][0]["address"].as_str().unwrap();
    let said = told(address, &["status"]);
    assert!(said.contains(" of 2 storage servers alive"), "{said}");
    stop(up);
}
