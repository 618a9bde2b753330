//! Devices that are foreign, wiped, taken, full or damaged.

use crate::common::{Bed, WITHIN, block_on, bytes, eventually, program, put, seed, shape};
use std::{
    collections::BTreeSet,
    fs,
    io::{Cursor, Read, Seek, SeekFrom, Write},
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};
use steadfast_client::PutError;
use steadfast_protocol::{plan::PlanError, write::WriteError};

/// Starts a storage server by hand on `dir`; what it says when it fails.
fn refused(dir: &Path, meta: &str) -> String {
    let mut command = Command::new(program());
    command.args(["node", "--listen", "127.0.0.1:0", "--meta", meta, "--dir"]).arg(dir);
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let deadline = Instant::now() + WITHIN;
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if Instant::now() > deadline => break None,
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    // Gone already unless it serves, which is what must not be.
    let _ = child.kill();
    child.wait().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(status.is_some_and(|status| !status.success()), "it serves: {said}");
    assert!(!said.contains("panicked"), "{said}");
    said
}

#[test]
fn two_servers_on_one_directory() {
    let bed = Bed::start(&shape(1, 1));
    let said = refused(&bed.cluster.device_dirs(0)[0], bed.cluster.address());
    assert!(said.contains("in use") || said.contains("another process") || said.contains("locked"), "{said}");
}

#[test]
fn a_device_of_another_cluster() {
    let (mut theirs, ours) = (Bed::start(&shape(1, 1)), Bed::start(&shape(1, 1)));
    theirs.cluster.kill_node(0).unwrap();
    let said = refused(&theirs.cluster.device_dirs(0)[0], ours.cluster.address());
    assert!(said.contains("cluster"), "{said}");
}

#[test]
fn a_wiped_device_is_not_taken_for_an_empty_one() {
    let mut bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=1,tolerate=1");
    let file = bed.file("original", 3 << 20, seed());
    bed.put(&file, "object");
    bed.cluster.kill_node(2).unwrap();
    let dir = bed.cluster.device_dirs(2)[0].clone();
    let space = dir.join("space");
    let length = fs::metadata(&space).unwrap().len();
    let wiped = fs::File::options().write(true).open(&space).unwrap();
    wiped.set_len(0).unwrap();
    wiped.set_len(length).unwrap();
    let said = refused(&dir, bed.cluster.address());
    assert!(said.contains("is not there (its space is blank)"), "{said}");
    bed.get_equals("object", &fs::read(&file).unwrap());
}

#[test]
fn a_flipped_bit_is_found_counted_and_read_around() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=1,tolerate=1");
    let original = bytes(8 << 20, seed);
    block_on(async {
        let client = bed.client().await;
        put(&client, "object", &original).await;
        // One bit in every eighth original, on whichever device holds it: a read asks for half of what is stored, and may
        // leave any device out that is slow just then, but hardly all of these.
        let needles: BTreeSet<&[u8]> =
            original.chunks(8 * (64 << 10)).map(|block| &block[4096..4160]).collect();
        let mut flipped = 0;
        for node in 0..4 {
            let space = bed.cluster.device_dirs(node)[0].join("space");
            let mut file = fs::File::options().read(true).write(true).open(&space).unwrap();
            let mut content = Vec::new();
            file.read_to_end(&mut content).unwrap();
            for (at, place) in content.chunks(64).enumerate().filter(|(_, place)| needles.contains(place)) {
                file.seek(SeekFrom::Start(at as u64 * 64)).unwrap();
                file.write_all(&[place[0] ^ 0x10]).unwrap();
                flipped += 1;
            }
            file.sync_all().unwrap();
        }
        // A put may leave some out whose device was slow.
        assert!(flipped * 2 >= needles.len(), "originals are stored as they are");
        eventually("a damaged block is noticed", WITHIN, async || {
            let sink = Comparing { expected: original.clone(), at: 0 };
            client.get("data", "object", None, sink).await.unwrap().corrupt_blocks > 0
        })
        .await;
        let mut counted = 0;
        for node in client.registry().await.unwrap().nodes {
            let status = client.node_status(&node.record.address).await.unwrap();
            counted += status.devices.iter().map(|device| device.corrupt_blocks).sum::<u64>();
        }
        assert!(counted > 0);
    });
}

struct Comparing {
    expected: Vec<u8>,
    at: usize,
}

impl Write for Comparing {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        assert!(self.expected[self.at..self.at + bytes.len()] == *bytes, "bytes from {} differ", self.at);
        self.at += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Whether it is room that an object lacked.
fn is_for_room(error: &PutError) -> bool {
    match error {
        PutError::Plan(error) => matches!(error, PlanError::Space { .. } | PlanError::Room { .. }),
        PutError::Write(error) => matches!(error, WriteError::Full { .. }),
        _ => false,
    }
}

#[test]
fn a_full_device_is_passed_over_and_a_full_cluster_says_so() {
    let seed = seed();
    let mut small = shape(4, 1);
    small.capacity_bytes = Some(48 << 20);
    let bed = Bed::with_bucket(&small, "rateless:redundancy=0.5,tolerate=1");
    let original = bytes(12 << 20, seed);
    block_on(async {
        let client = bed.client().await;
        let device = client.registry().await.unwrap().nodes[0].record.devices[0].0;
        client.emulate(device, "full").await.unwrap();
        let try_put = |key: String| {
            client.put(
                "data",
                Box::leak(key.into_boxed_str()),
                Cursor::new(original.clone()),
                Some(original.len() as u64),
            )
        };
        put(&client, "first", &original).await;
        let stat = client.stat("data", "first").await.unwrap();
        assert!(stat.segments[0].holders.iter().all(|holder| holder.device != device));
        client.emulate(device, "off").await.unwrap();
        let mut stored = vec!["first".to_owned()];
        let deadline = Instant::now() + WITHIN;
        loop {
            let key = format!("more-{}", stored.len());
            match try_put(key.clone()).await {
                Ok(_) => stored.push(key),
                Err(error) if is_for_room(&error) => {
                    println!("{error}");
                    break;
                }
                // Devices seemed to stall.
                Err(error) => {
                    assert!(Instant::now() < deadline, "{error}");
                    println!("again: {error}");
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
            }
            assert!(stored.len() < 40, "48 MiB devices never fill");
        }
        // Each takes a tenth of all there is, or little more.
        assert!(stored.len() >= 4, "full with {} objects", stored.len());
        for key in &stored {
            let sink = Comparing { expected: original.clone(), at: 0 };
            client.get("data", key, None, sink).await.unwrap();
        }
        for key in &stored {
            client.remove("data", key).await.unwrap();
        }
        eventually("deletes make room", WITHIN, async || try_put("again".to_owned()).await.is_ok()).await;
    });
}
