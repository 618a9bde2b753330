//! Processes killed at bad moments: what was acknowledged is there, what was not is invisible and costs no space.

use crate::common::{Bed, WITHIN, block_on, bytes, eventually, seed, shape};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    io::{self, Cursor, Read, Write},
    process::Stdio,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::Duration,
};
use steadfast_client::{Client, Options};
use steadfast_lab::cluster::Shape;

#[test]
fn a_client_killed_in_a_put_leaves_nothing() {
    let shape = Shape { lease_s: 5, ..shape(6, 1) };
    let bed = Bed::with_bucket(&shape, "rateless:redundancy=0.5,tolerate=2");
    block_on(async {
        let client = bed.client().await;
        let before = bed.used_bytes(&client).await;
        let devices: Vec<_> =
            client.registry().await.unwrap().nodes.iter().map(|node| node.record.devices[0].0).collect();
        // Slow enough that the put is caught in the middle.
        for &device in &devices {
            client.emulate(device, "rate=1MB").await.unwrap();
        }
        let mut put = bed
            .command(&["put", "-", "data/never"])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let mut stdin = put.stdin.take().unwrap();
        let original = bytes(32 << 20, seed());
        let feeding = std::thread::spawn(move || {
            // Ends early when the client dies.
            let _ = stdin.write_all(&original);
        });
        eventually("blocks are on their way", WITHIN, async || {
            bed.used_bytes(&client).await > before + (1 << 20)
        })
        .await;
        put.kill().unwrap();
        put.wait().unwrap();
        feeding.join().unwrap();
        for &device in &devices {
            client.emulate(device, "off").await.unwrap();
        }
        assert!(client.list("data", "", None, 10).await.unwrap().0.is_empty());
        eventually("the space is back", WITHIN, async || bed.used_bytes(&client).await <= before).await;
    });
}

#[test]
fn the_metadata_server_killed_at_any_moment_forgets_no_put() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=0.5,tolerate=1");
    let address = bed.cluster.address().to_owned();
    let acknowledged = Arc::new(Mutex::new(Vec::new()));
    let stop = Arc::new(AtomicBool::new(false));
    let writing = {
        let (acknowledged, stop) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        std::thread::spawn(move || {
            block_on(async {
                let client =
                    steadfast_client::Client::connect(&address, steadfast_client::Options::default())
                        .await
                        .unwrap();
                let mut number = 0u64;
                while !stop.load(Ordering::Relaxed) {
                    let length = 1000 + (number % 7) as usize * 300_000;
                    let content = bytes(length, seed ^ number);
                    let key = number.to_string();
                    let put = client.put("data", &key, Cursor::new(content), Some(length as u64));
                    // A put may fail while the server is away; what it acknowledges must last.
                    if put.await.is_ok() {
                        acknowledged.lock().unwrap().push((number, length));
                    }
                    number += 1;
                }
            });
        })
    };
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    for _ in 0..4 {
        let before = acknowledged.lock().unwrap().len();
        let grown = async || acknowledged.lock().unwrap().len() >= before + 2;
        block_on(eventually("puts are acknowledged", WITHIN, grown));
        std::thread::sleep(Duration::from_millis(200 + random.next_u64() % 400));
        bed.cluster.kill_meta().unwrap();
        bed.cluster.restart_meta().unwrap();
    }
    stop.store(true, Ordering::Relaxed);
    writing.join().unwrap();
    let acknowledged = acknowledged.lock().unwrap().clone();
    assert!(acknowledged.len() > 4, "only {} puts were acknowledged", acknowledged.len());
    for (number, length) in acknowledged {
        bed.get_equals(&number.to_string(), &bytes(length, seed ^ number));
    }
}

/// Bytes that stand still once, behind so many of them: it says so, and goes on when it is told.
struct Gated {
    content: Cursor<Vec<u8>>,
    stands_at: u64,
    gate: Option<(mpsc::Sender<()>, mpsc::Receiver<()>)>,
}

impl Read for Gated {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.stands_at.saturating_sub(self.content.position()) as usize;
        if left > 0 {
            let most = left.min(buffer.len());
            return self.content.read(&mut buffer[..most]);
        }
        if let Some((reached, go_on)) = self.gate.take() {
            reached.send(()).unwrap();
            go_on.recv().unwrap();
        }
        self.content.read(buffer)
    }
}

/// One put asks for names of further segments meanwhile, the other has only its commit to ask for.
#[test]
fn an_outage_of_the_metadata_server_that_is_shorter_than_a_lease_fails_no_put() {
    let shape = Shape { lease_s: 60, ..shape(6, 1) };
    let mut bed = Bed::with_bucket(&shape, "rateless:redundancy=0.5,tolerate=1");
    let original = bytes(8 << 20, seed());
    let puts = [("middle", 9 << 19), ("end", 8 << 20)].map(|(key, stands_at)| {
        let (reached, stands) = mpsc::channel();
        let (go_on, told) = mpsc::channel();
        let content = Cursor::new(original.clone());
        let source = Gated { content, stands_at, gate: Some((reached, told)) };
        let address = bed.cluster.address().to_owned();
        let putting = std::thread::spawn(move || {
            block_on(async {
                let options = Options { segment_bytes: 1 << 20, ..Options::default() };
                let client = Client::connect(&address, options).await.unwrap();
                client.put("data", key, source, None).await
            })
        });
        (stands, go_on, putting)
    });
    for (stands, ..) in &puts {
        stands.recv_timeout(WITHIN).unwrap();
    }
    bed.cluster.kill_meta().unwrap();
    for (_, go_on, _) in &puts {
        go_on.send(()).unwrap();
    }
    // Longer than a question is asked where nothing is at stake.
    std::thread::sleep(Duration::from_secs(12));
    bed.cluster.restart_meta().unwrap();
    for (_, _, putting) in puts {
        putting.join().unwrap().unwrap();
    }
    for key in ["middle", "end"] {
        bed.get_equals(key, &original);
    }
}

#[test]
fn servers_killed_and_restarted_serve_what_they_confirmed() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(4, 2), "rateless:redundancy=0.5,tolerate=1");
    let original = bytes(7 << 20, seed);
    std::fs::write(bed.dir.path().join("original"), &original).unwrap();
    for round in 0..3u64 {
        let file = bed.dir.path().join("original");
        bed.put(&file, &format!("round-{round}"));
        // All of them at once, right after the acknowledgement.
        for node in 0..4 {
            bed.cluster.kill_node(node).unwrap();
        }
        for node in 0..4 {
            bed.restart(node);
        }
        for earlier in 0..=round {
            bed.get_equals(&format!("round-{earlier}"), &original);
        }
    }
}
