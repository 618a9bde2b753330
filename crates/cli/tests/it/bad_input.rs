//! What users, strangers and broken peers send.

use crate::common::{Bed, WITHIN, deaf, program, seed, shape};
use std::{
    ffi::OsStr,
    io::{ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    os::unix::ffi::OsStrExt,
    process::Command,
    time::{Duration, Instant},
};
use steadfast_protocol::message::{self, FrameKind, Header, Hello, Role, VERSION};

#[test]
fn names_buckets_and_policies_are_judged_and_explained() {
    let bed = Bed::with_bucket(&shape(3, 2), "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 1000, seed());
    let file = file.to_str().unwrap();
    for name in ["", "ab", "Upper", "under_score", "dash-", &"long".repeat(16)] {
        bed.fails(2, &["bucket", "create", name, "--policy", "stripe"]);
    }
    assert!(bed.fails(7, &["bucket", "create", "data", "--policy", "stripe"]).contains("exists"));
    assert!(bed.fails(2, &["bucket", "create", "raid", "--policy", "raid6"]).contains("raid6"));
    let unknown = bed.fails(2, &["bucket", "create", "mixed", "--policy", "rateless:code=mix-d"]);
    assert!(unknown.contains("mix-a, mix-b, mix-c or lt"), "{unknown}");
    for (policy, part) in [
        ("rateless:redundancy=0.5,redundancy=1", "`redundancy` is given twice"),
        ("rateless:", "parameter 1 of policy `rateless` is empty"),
        ("parity:code=rs(6,4),,least=5", "parameter 2 of policy `parity` is empty"),
    ] {
        let said = bed.fails(2, &["bucket", "create", "other", "--policy", policy]);
        assert!(said.contains(part), "{said}");
    }
    let unmet = bed.fails(6, &["bucket", "create", "wide", "--policy", "rateless:tolerate=4"]);
    assert!(unmet.contains("5 nodes") && unmet.contains("2 missing"), "{unmet}");
    assert!(bed.fails(3, &["put", file, "absent/key"]).contains("bucket create"));
    bed.settled(&["put", file, &format!("data/{}", "k".repeat(1024))]);
    bed.fails(2, &["put", file, &format!("data/{}", "k".repeat(1025))]);
    for key in ["..", "a/../b", "."] {
        bed.fails(2, &["put", file, &format!("data/{key}")]);
    }
    let said = bed.fails(2, &["put", file, "data/key", "--qos", ""]);
    assert!(said.contains("--qos") && said.contains("it names no wish"), "{said}");
    let said = bed.fails(2, &["put", file, "data/key", "--qos", "tolerate=1,,redundancy=1"]);
    assert!(said.contains("wish 2 is empty"), "{said}");
    bed.fails(2, &["put", file, "data/"]);
    bed.fails(2, &["put", file, "data"]);
    let not_utf8 = OsStr::from_bytes(b"data/\xff\xfe");
    let refused = bed.command(&["put", file]).arg(not_utf8).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    bed.fails(1, &["put", "/nonexistent/file", "data/key"]);
    bed.fails(2, &["put", bed.dir.path().to_str().unwrap(), "data/key"]);
    bed.fails(3, &["get", "data/key", "-"]);
    bed.fails(3, &["rm", "data/key"]);
    for range in ["9-3", "-5"] {
        let said = bed.fails(2, &["get", "data/key", "-", "--range", range]);
        assert!(said.contains(&format!("`{range}` is not a range")), "{said}");
    }
    assert_eq!(bed.ok(&["ls", "data"]).lines().count(), 1);
    for redundancy in ["nan", "1000", "inf", "-1"] {
        let said = bed.fails(2, &["tune", "data/key", "--redundancy", redundancy]);
        assert!(said.contains("0 to 15"), "{said}");
    }
}

/// An address without a port can be nobody's: that is said at once, and not after trying it again and again.
#[test]
fn what_is_no_address_and_no_emulation_is_refused_at_once() {
    let started = Instant::now();
    let refused = |arguments: &[&str], about: &str| {
        let output = Command::new(program()).args(arguments).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(about), "{said}");
    };
    for address in ["foo", "127.0.0.1", "foo:", ":7000", "foo:bar", ""] {
        refused(&["ls", "--cluster", address], "HOST:PORT");
        refused(&["node", "--dir", "x", "--listen", "127.0.0.1:0", "--meta", address], "HOST:PORT");
    }
    for spec in ["rate=", "rate=0", "speed=3", "latency=-1ms"] {
        refused(&["emulate", "a", spec, "--cluster", "127.0.0.1:1"], "bad emulation spec");
        refused(&["up", "--dir", "x", "--emulate", spec], "bad emulation spec");
        let node =
            ["node", "--dir", "x", "--listen", "127.0.0.1:0", "--meta", "127.0.0.1:1", "--emulate", spec];
        refused(&node, "bad emulation spec");
    }
    for capacity in ["0", "100", "1MB"] {
        let too_little = format!("`{capacity}` is too little for a device, which takes 1.0 MiB or more");
        refused(&["up", "--dir", "x", "--capacity", capacity], &too_little);
        let node = ["node", "--dir", "x", "--listen", "127.0.0.1:0", "--meta", "127.0.0.1:1"];
        refused(&[&node[..], &["--capacity", capacity]].concat(), &too_little);
    }
    refused(&["up", "--dir", "x", "--capacity", "-1"], "`-1` is not a size");
    let add = ["device", "add", "--node", "a", "/x", "--cluster", "127.0.0.1:1", "--capacity", "-1"];
    refused(&add, "`-1` is not a size");
    assert!(started.elapsed() < WITHIN);
    let help = Command::new(program()).args(["get", "--help"]).output().unwrap();
    assert!(String::from_utf8_lossy(&help.stdout).contains("`all-at-once`"));
}

#[test]
fn garbage_and_endless_frames_hurt_nobody_else() {
    let bed = Bed::with_bucket(&shape(3, 1), "rateless:redundancy=1,tolerate=1");
    let addresses: Vec<String> = bed.cluster.processes().map(|(_, _, address)| address.to_owned()).collect();
    let mut idle = Vec::new();
    for address in &addresses {
        for garbage in [vec![0u8; 4096], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), other_version()] {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(WITHIN)).unwrap();
            let _ = stream.write_all(&garbage);
            // The server hangs up: the end of the stream, not a time-out.
            let mut answer = Vec::new();
            match stream.read_to_end(&mut answer) {
                Ok(_) => {}
                Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{address}"),
            }
        }
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_write_timeout(Some(WITHIN)).unwrap();
        stream.write_all(&endless_frame()).unwrap();
        // More than sockets hold, and far less than was announced: whoever would take that would take all of it.
        let more = vec![0xff_u8; 1 << 20];
        let refused = (0..256).find_map(|_| stream.write_all(&more).err()).map(|error| error.kind());
        assert!(
            matches!(refused, Some(ErrorKind::ConnectionReset | ErrorKind::BrokenPipe)),
            "{address}: {refused:?}"
        );
        idle.extend((0..20).map(|_| TcpStream::connect(address).unwrap()));
    }
    let file = bed.file("original", 3 << 20, seed());
    bed.put(&file, "object");
    bed.get_equals("object", &std::fs::read(&file).unwrap());
}

/// A header of another version of this protocol, and more.
fn other_version() -> Vec<u8> {
    let mut frame = vec![0xff; 1 << 20];
    frame[..8].copy_from_slice(&[b'S', b'F', 1, 1, 0, 0, 0, 0]);
    frame
}

/// A greeting, and the header of a message that announces the largest lengths there are: nothing else is wrong with it, as far as
/// can be seen before all of it is there.
fn endless_frame() -> Vec<u8> {
    let hello = Hello { version: VERSION, features: 0, role: Role::Client, cluster: None };
    let hello = message::encode(&hello);
    let body_bytes = u32::try_from(hello.len()).unwrap();
    let greeting = Header { body_bytes, ..Header::new(FrameKind::Hello, 0) }.to_bytes(&hello);
    let mut endless = Header::new(FrameKind::Data, 1).to_bytes(&[]);
    // Of body and payload.
    endless[32..40].fill(0xff);
    [&greeting[..], &hello[..], &endless[..]].concat()
}

#[test]
fn a_cluster_that_is_not_there_or_says_nothing_is_told_quickly() {
    let (_held, closed) = deaf("127.0.0.1:0");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    for address in [closed, silent.local_addr().unwrap()] {
        let start = Instant::now();
        let output =
            Command::new(program()).args(["ls", "--cluster", &address.to_string()]).output().unwrap();
        assert_eq!(output.status.code(), Some(4));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("cannot reach the cluster"), "{said}");
        assert!(start.elapsed() < Duration::from_secs(30));
    }
    let output = Command::new(program()).args(["ls"]).env_remove("STEADFAST_CLUSTER").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}
