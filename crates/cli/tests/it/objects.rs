//! Objects of every size there and back, by every way the command line has.

use crate::common::{Bed, Killed, WITHIN, block_on, bytes, ended, eventually, seed, settled, shape, signal};
use ::bytes::Bytes;
use rustix::{
    fs::{FileType, Mode},
    process::Signal,
};
use std::{
    fs,
    io::{self, Cursor, Read},
    process::Stdio,
    sync::mpsc,
    time::Duration,
};
use steadfast_client::Memory;

#[test]
fn every_size_comes_back_byte_for_byte() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(8, 1), "rateless:redundancy=0.5,tolerate=2");
    let mib = 1 << 20;
    for length in [0, 1, 4095, 4097, mib - 1, mib, mib + 1, 3 * mib + 17, 8 * mib, 13 * mib + 511, 40 * mib] {
        let key = format!("of-{length}");
        let file = bed.file("original", length, seed ^ length as u64);
        bed.put(&file, &key);
        bed.get_equals(&key, &fs::read(&file).unwrap());
    }
    let copy = bed.dir.path().join("copy");
    let empty = bed.ok(&["get", "data/of-0", copy.to_str().unwrap(), "--json"]);
    let empty: serde_json::Value = serde_json::from_str(&empty).unwrap();
    assert_eq!(empty["io_overhead"], 0.0, "nothing came, and nothing in vain");
    let listed = bed.ok(&["ls", "data"]);
    assert_eq!(listed.lines().count(), 11);
    let sizes = bed.ok(&["ls", "data/of-4", "--json"]);
    assert!(sizes.lines().count() == 3 && sizes.contains("\"size\":4097"), "{sizes}");
}

/// Which begins anywhere: with nothing that a device, a kernel or a checksum would like better.
#[test]
fn what_is_in_memory_is_stored_from_where_it_lies() {
    let seed = seed();
    let bed = Bed::start(&shape(6, 1));
    let memory = Bytes::from(bytes(6_000_000, seed));
    block_on(async {
        let client = bed.client().await;
        for (bucket, policy) in [
            ("coded", "rateless:redundancy=0.5,tolerate=2"),
            ("chunks", "parity:segment=2MiB"),
            ("plain", "stripe"),
        ] {
            bed.ok(&["bucket", "create", bucket, "--policy", policy]);
            for (key, range) in [("small", 7..1000), ("large", 1..5_800_001), ("streamed", 3..5_999_999)] {
                let content = memory.slice(range);
                let size = (key != "streamed").then_some(content.len() as u64);
                settled(async || client.put(bucket, key, Memory(content.clone()), size).await).await;
                let object = format!("{bucket}/{key}");
                let got = bed.run(&["get", &object, "-"]);
                assert!(got.status.success() && got.stdout == content[..], "{object}");
            }
        }
    });
}

/// Gives its bytes and then nothing, not even its end, while somebody holds the other end: as a connection that stays open.
struct StaysOpen {
    bytes: Cursor<Vec<u8>>,
    closed: mpsc::Receiver<()>,
}

impl Read for StaysOpen {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.bytes.read(buffer)?;
        if read == 0 {
            // Nothing is ever said.
            let _ = self.closed.recv();
        }
        Ok(read)
    }
}

#[test]
fn nothing_is_waited_for_behind_what_was_announced() {
    let bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    bed.ok(&["bucket", "create", "chunks", "--policy", "parity:segment=2MiB"]);
    block_on(async {
        let client = bed.client().await;
        for (bucket, length) in [("data", 1000), ("data", 5 << 20), ("chunks", 5 << 20), ("chunks", 0)] {
            let content = bytes(length, seed());
            let store = async || {
                let (_open, closed) = mpsc::channel();
                let source = StaysOpen { bytes: Cursor::new(content.clone()), closed };
                client.put(bucket, "object", source, Some(length as u64)).await
            };
            let stored = tokio::time::timeout(WITHIN, settled(store)).await;
            assert_eq!(stored.expect("it waits for what comes behind").size, length as u64);
            let got = bed.run(&["get", &format!("{bucket}/object"), "-"]);
            assert!(got.status.success() && got.stdout == content, "{length} bytes in {bucket}");
        }
    });
    // A file is another when it has more than it had: this one says that it has nothing.
    let said = bed.fails(1, &["put", "/proc/version", "data/grown"]);
    assert!(said.contains("announced 0 bytes"), "{said}");
    bed.fails(3, &["stat", "data/grown"]);
}

#[test]
fn the_papers_code_the_other_variants_and_the_stripe_serve_too() {
    let seed = seed();
    let bed = Bed::start(&shape(6, 2));
    let file = bed.file("original", 11 << 20, seed);
    let original = fs::read(&file).unwrap();
    for (bucket, policy) in [
        ("data", "rateless:code=lt,c=1,delta=0.5,redundancy=1.5,tolerate=1"),
        ("data-a", "rateless:code=mix-a,redundancy=0.5,tolerate=1"),
        ("data-c", "rateless:code=mix-c,redundancy=0.5,tolerate=1"),
        ("data-stripe", "stripe:devices=12"),
    ] {
        bed.ok(&["bucket", "create", bucket, "--policy", policy]);
        let object = format!("{bucket}/object");
        bed.settled(&["put", file.to_str().unwrap(), &object]);
        let copy = bed.dir.path().join("copy");
        bed.ok(&["get", &object, copy.to_str().unwrap()]);
        assert!(fs::read(copy).unwrap() == original, "{policy}");
    }
    for (bucket, code) in
        [("data", "LT c=1 delta=0.5"), ("data-a", "mix-a, K = 176"), ("data-c", "mix-c, K = 176")]
    {
        let stat = bed.ok(&["stat", &format!("{bucket}/object")]);
        assert!(stat.contains(code), "{stat}");
        let json: serde_json::Value =
            serde_json::from_str(&bed.ok(&["stat", "--json", &format!("{bucket}/object")])).unwrap();
        let segment = &json["segments"][0];
        let held =
            segment["holders"].as_array().unwrap().iter().map(|holder| holder["count"].as_u64().unwrap());
        assert_eq!(segment["stored_blocks"], held.sum::<u64>(), "{json}");
        let pieces = &segment["holders"][0]["pieces"][0];
        assert_eq!((&segment["originals"], &pieces["segment"]), (&176.into(), &segment["segment"]), "{json}");
    }
    let listed = bed.ok(&["bucket", "ls"]);
    assert!(listed.contains("data-c  rateless:code=mix-c,redundancy=0.5,tolerate=1"), "{listed}");
    let stat = bed.ok(&["stat", "data-stripe/object"]);
    assert!(stat.contains("12 devices") && stat.contains("D = 0.00"), "{stat}");
    // A bucket goes when nothing is in it.
    let refused = bed.fails(1, &["bucket", "rm", "data-c"]);
    assert!(refused.contains("bucket \"data-c\" has objects"), "{refused}");
    bed.ok(&["rm", "data-c/object"]);
    assert_eq!(bed.ok(&["bucket", "rm", "data-c"]).trim(), "removed bucket data-c");
    assert!(!bed.ok(&["bucket", "ls"]).contains("data-c"));
    bed.fails(3, &["bucket", "rm", "data-c"]);
}

/// What a get reports lasts until the bytes are where they were to go, not only until they are ready.
#[test]
fn the_time_of_a_get_has_the_writing_in_it() {
    let bed = Bed::with_bucket(&shape(3, 1), "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 1 << 20, seed());
    bed.put(&file, "object");
    let pipe = bed.dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, FileType::Fifo, Mode::RWXU, 0).unwrap();
    let held = Duration::from_secs(2);
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || {
            let mut pipe = fs::File::open(pipe).unwrap();
            std::thread::sleep(held);
            let mut read = Vec::new();
            pipe.read_to_end(&mut read).unwrap();
            read
        }
    });
    let said = bed.ok(&["get", "data/object", pipe.to_str().unwrap(), "--json"]);
    assert!(reader.join().unwrap() == fs::read(&file).unwrap());
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    // The pipe holds 64 KiB of it before somebody reads; the reader may have slept a little before the get began.
    assert!(said["seconds"].as_f64().unwrap() > held.as_secs_f64() / 2.0, "{said}");
}

/// Nothing of it is left, and what had its file's name before is as it was.
#[test]
fn a_get_that_is_told_to_stop_leaves_no_part_of_its_file() {
    let bed = Bed::with_bucket(&shape(3, 1), "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 8 << 20, seed());
    bed.put(&file, "object");
    // Half a minute for all of it.
    let status: serde_json::Value = serde_json::from_str(&bed.ok(&["status", "--json"])).unwrap();
    for device in status["devices"].as_array().unwrap() {
        bed.ok(&["emulate", device["device"].as_str().unwrap(), "rate=100kB"]);
    }
    let dir = bed.dir.path().join("copies");
    fs::create_dir(&dir).unwrap();
    let copy = dir.join("copy");
    let names = || fs::read_dir(&dir).unwrap().count();
    for before in [None, Some("what was there before")] {
        if let Some(before) = before {
            fs::write(&copy, before).unwrap();
        }
        let there = names();
        let mut get = bed.command(&["get", "data/object", copy.to_str().unwrap()]);
        let get = get.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
        let mut get = Killed(get.unwrap());
        block_on(eventually("it has begun its file", WITHIN, async || names() > there));
        signal(&get.0, Signal::TERM);
        let code = ended(&mut get.0).code();
        let mut said = String::new();
        get.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(code, Some(130), "{said}");
        assert_eq!((names(), fs::read_to_string(&copy).ok().as_deref()), (there, before), "{said}");
    }
}

#[test]
fn ranges_pipes_versions_and_removal() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    let original = bytes(5 << 20, seed);
    // From a pipe, whose length nobody knows.
    bed.settled_from(&["put", "-", "data/piped"], &original);
    let fetched = bed.run(&["get", "data/piped", "-"]);
    assert!(fetched.status.success() && fetched.stdout == original);
    for (range, expected) in [
        ("0-0", 0..1),
        ("100000-200000", 100_000..200_001),
        ("5242000-", 5_242_000..5 << 20),
        ("5000000-9999999", 5_000_000..5 << 20),
    ] {
        let part = bed.run(&["get", "data/piped", "-", "--range", range]);
        assert!(part.status.success() && part.stdout == original[expected], "{range}");
    }
    assert!(bed.fails(2, &["get", "data/piped", "-", "--range", "5242880-"]).contains("5242880 bytes"));
    // What is cut short is said, but to programs, which are told how many bytes they got.
    let said = |arguments: &[&str]| {
        let got = bed.run(&[&["get", "data/piped", "/dev/null", "--range"], arguments].concat());
        assert!(got.status.success());
        String::from_utf8(got.stderr).unwrap()
    };
    let cut = "data/piped has 5242880 bytes: those from 5000000 to 5242879 were read, not to 9999999\n";
    assert!(said(&["5000000-9999999"]).contains(cut));
    for whole in [&["5000000-5242879"][..], &["5000000-"], &["5000000-9999999", "--json"]] {
        assert!(!said(whole).contains(" were read"), "{whole:?}");
    }
    // A new version takes the old one's place.
    let second = bed.file("second", 2 << 20, seed + 1);
    bed.put(&second, "piped");
    bed.get_equals("piped", &fs::read(&second).unwrap());
    assert_eq!(bed.ok(&["ls", "data"]).lines().count(), 1);
    bed.ok(&["rm", "data/piped"]);
    assert!(bed.fails(3, &["get", "data/piped", "-"]).contains("piped"));
    assert!(bed.ok(&["ls", "data"]).is_empty());
}
