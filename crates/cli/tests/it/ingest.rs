//! Puts whose segments a node encodes and distributes (`--ingest primary`).

use crate::{
    common::{Bed, block_on, bytes, once_of, put, seed, settled, shape},
    watch::Metrics,
};
use std::{fs, io::Cursor, time::Duration};
use steadfast_client::{Client, Ingest, Options};
use steadfast_protocol::layout::ParityGeometry;

const MIB: usize = 1 << 20;

/// A client that hands its segments over, on a link of so many bytes per second a connection.
async fn handing_over(bed: &Bed, rate: Option<u64>) -> Client {
    let mut options =
        Options { ingest: Ingest::Primary, patience: Duration::from_secs(20), ..Options::default() };
    options.net.link.rate_bytes_per_s = rate;
    Client::connect(bed.cluster.address(), options).await.unwrap()
}

#[test]
fn the_client_sends_each_byte_once_and_what_is_stored_is_the_same() {
    let mut bed = Bed::with_bucket(&shape(7, 1), "parity:code=rs(6,4),segment=16MiB");
    let lengths = [("none", 0), ("byte", 1), ("odd", 5 * MIB + 3), ("many", 40 * MIB)];
    let objects: Vec<_> =
        lengths.iter().zip(seed()..).map(|(&(key, length), seed)| (key, bytes(length, seed))).collect();
    // What a primary that is held up does not take the client stores itself.
    for (key, original) in &objects {
        once_of(&format!("`{key}` is handed over"), || block_on(is_handed_over(&bed, key, original)));
    }
    // Of a length that is not known.
    let (_, many) = &objects[3];
    once_of("all of a stream is handed over", || {
        block_on(async {
            let client = handing_over(&bed, None).await;
            let stream = async || client.put("data", "streamed", Cursor::new(many.clone()), None).await;
            settled(stream).await.offloaded_bytes == many.len() as u64
        })
    });
    bed.cluster.kill_node(1).unwrap();
    bed.cluster.kill_node(4).unwrap();
    for (key, original) in &objects {
        bed.get_equals(key, original);
    }
    bed.get_equals("streamed", &objects[3].1);
    bed.restart(1);
    bed.restart(4);
    // What a primary stored changes in place as everything does.
    let (_, mut many) = objects.into_iter().next_back().unwrap();
    let patch = bed.file("patch", 5000, seed() + 9);
    bed.settled(&["write", "data/many", "--offset", "20000001", patch.to_str().unwrap()]);
    many[20_000_001..20_005_001].copy_from_slice(&fs::read(&patch).unwrap());
    bed.get_equals("many", &many);
    // By the command line.
    let file = bed.file("file", 3 * MIB, seed() + 10);
    bed.settled(&["put", "--ingest", "primary", file.to_str().unwrap(), "data/file"]);
    bed.get_equals("file", &fs::read(&file).unwrap());
    assert!(bed.fails(2, &["ls", "data", "--ingest", "nobody"]).contains("choose `client` or `primary`"));
}

/// Whether primaries stored all of an object, of which the client sent each byte once.
async fn is_handed_over(bed: &Bed, key: &str, original: &[u8]) -> bool {
    let client = handing_over(bed, None).await;
    let report = put(&client, key, original).await;
    println!("{key}: {report:?}");
    let size = original.len() as u64;
    assert_eq!(report.size, size);
    let stat = client.stat("data", key).await.unwrap();
    let shapes = stat.segments.iter().map(|it| ParityGeometry::of_layout(it).unwrap());
    let originals: u64 = shapes.clone().map(|shape| shape.capacity_bytes()).sum();
    let all: u64 = shapes.map(|shape| u64::from(shape.chunks) * shape.chunk_bytes()).sum();
    // An empty object has a segment of zeros, which is not worth a node's while.
    let sent = if original.is_empty() { all } else { originals };
    (report.offloaded_bytes, report.sent_bytes, report.stored_bytes) == (size, sent, all)
}

/// Segments that a change stores anew go the way of a put's; a drain's, too.
#[test]
fn what_a_change_stores_anew_is_handed_over() {
    let mut bed = Bed::with_bucket(&shape(8, 1), "parity:code=rs(6,4),segment=16MiB");
    let mut content = bytes(50 * MIB, seed());
    let original = bed.dir.path().join("original");
    fs::write(&original, &content).unwrap();
    bed.put(&original, "object");
    let handed_over = |bed: &Bed| -> f64 {
        let ports = bed.cluster.admin_ports().skip(1);
        let of = |port: &str| {
            Metrics::scrape(port).sum("steadfast_node_admitted_streams_total", &[("kind", "ingest")])
        };
        ports.map(|(_, port)| of(port)).sum()
    };
    assert_eq!(handed_over(&bed), 0.0);
    // More than goes in place of the first three segments, and nothing of the last.
    let (from, patch) = (MIB + 17, bytes(46 * MIB, seed() + 1));
    content[from..from + patch.len()].copy_from_slice(&patch);
    let file = bed.dir.path().join("patch");
    fs::write(&file, &patch).unwrap();
    let range = format!("{from}-");
    let arguments = ["put", file.to_str().unwrap(), "data/object", "--range", &range, "--ingest", "primary"];
    bed.settled(&arguments);
    // One that has no memory at this moment leaves it to the client.
    assert!(handed_over(&bed) > 0.0);
    bed.get_equals("object", &content);
    let drained = bed.cluster.node_address(2).to_owned();
    bed.settled(&["device", "drain", &drained, "--ingest", "primary"]);
    bed.cluster.kill_node(1).unwrap();
    bed.cluster.kill_node(4).unwrap();
    bed.get_equals("object", &content);
}

#[test]
fn a_put_outlives_its_primaries() {
    once_of("a primary dies with a segment in hand", outlives_a_primary);
}

/// Whether one died that was storing a segment: where this test is held up, all may be stored by then.
fn outlives_a_primary() -> bool {
    // One more than must be when two have died: the put is made once.
    let mut bed = Bed::with_bucket(&shape(9, 1), "parity:code=rs(6,4),segment=16MiB");
    let original = bytes(48 * MIB, seed());
    let address = bed.cluster.address().to_owned();
    let ports: Vec<String> = bed.cluster.admin_ports().skip(1).map(|(_, port)| port.to_owned()).collect();
    // It was handed a segment, and has some of it.
    let is_storing = |port: &String| {
        let metrics = Metrics::scrape(port);
        let handed_over = metrics.sum("steadfast_node_admitted_streams_total", &[("kind", "ingest")]);
        let received = metrics.sum("steadfast_node_received_payload_bytes_total", &[]);
        handed_over > 0.0 && received > MIB as f64
    };
    let cluster = &mut bed.cluster;
    let report = std::thread::scope(|scope| {
        let putting = scope.spawn(|| {
            block_on(async {
                let mut options = Options {
                    ingest: Ingest::Primary,
                    patience: Duration::from_secs(20),
                    ..Options::default()
                };
                // 16 MiB take eight seconds: servers die in the middle.
                options.net.link.rate_bytes_per_s = Some(2 << 20);
                let client = Client::connect(&address, options).await.unwrap();
                client.put("data", "object", Cursor::new(original.clone()), Some(48 << 20)).await.unwrap()
            })
        });
        let mut primary = None;
        while primary.is_none() && !putting.is_finished() {
            std::thread::sleep(Duration::from_millis(50));
            primary = ports.iter().position(is_storing);
        }
        if let Some(primary) = primary {
            cluster.kill_node(primary).unwrap();
            cluster.kill_node((primary + 4) % ports.len()).unwrap();
        }
        putting.join().unwrap()
    });
    println!("{report:?}");
    assert_eq!(report.size, 48 << 20);
    bed.get_equals("object", &original);
    // What it had in hand the client has stored.
    report.offloaded_bytes < report.size
}

#[test]
fn a_client_whose_segments_no_node_has_memory_for_stores_them_itself() {
    // A segment and its parity are 192 MiB, more than a node sets aside.
    let bed = Bed::with_bucket(&shape(6, 1), "parity:code=rs(6,2),segment=64MiB");
    let original = bytes(64 * MIB, seed());
    block_on(async {
        let client = handing_over(&bed, None).await;
        let report = put(&client, "object", &original).await;
        println!("{report:?}");
        assert_eq!((report.size, report.offloaded_bytes), (64 << 20, 0));
    });
    bed.get_equals("object", &original);
}
