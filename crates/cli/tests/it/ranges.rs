//! Parts of objects: what a range touches, what it falls back to, where ranges end; open objects that are read on; and
//! objects of many segments.

use crate::common::{Bed, WITHIN, block_on, bytes, eventually, put, seed, settled, shape};
use std::{
    io::{self, Cursor, Write},
    ops::Range,
    sync::{Arc, Mutex},
    time::Duration,
};
use steadfast_client::{Client, GetError, ObjectStat, Options};

const MIB: u64 = 1 << 20;

/// A sink whose bytes can be looked at.
#[derive(Clone, Default)]
struct Sink(Arc<Mutex<Vec<u8>>>);

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink {
    fn bytes(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

async fn client(bed: &Bed, options: Options) -> Arc<Client> {
    Arc::new(Client::connect(bed.cluster.address(), options).await.unwrap())
}

/// Patience that no busy machine exhausts: without an answer a range falls back after a part of it.
fn patient() -> Options {
    Options { patience: Duration::from_secs(120), ..Options::default() }
}

/// Ranges of `length` bytes in one run of originals that are held as they are, each on one device: a write may have left
/// the originals of a slow device out.
pub(crate) fn ranges_on_one_device(stat: &ObjectStat, length: u64) -> Vec<Range<u64>> {
    let layout = &stat.segments[0];
    let block = u64::from(layout.block_bytes);
    // Begins in the middle of a block.
    let blocks = (length / block) as u32 + 1;
    let holder = |index| layout.holder_of(index).filter(|_| index < layout.code.originals);
    (0..layout.code.originals)
        .filter(|&first| {
            let device = holder(first);
            device.is_some() && (first..first + blocks).all(|index| holder(index) == device)
        })
        .map(|first| u64::from(first) * block + block / 2)
        .map(|from| from..from + length)
        .collect()
}

#[test]
fn a_range_reads_its_blocks_and_no_more_until_servers_die() {
    let mut bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    // One segment.
    let original = bytes(64 << 20, seed());
    block_on(async {
        let client = client(&bed, patient()).await;
        put(&client, "object", &original).await;
        let stat = client.stat("data", "object").await.unwrap();
        // Disks, not the page cache: there a decode is so quick that a busy machine's jitter is worth one.
        for node in client.registry().await.unwrap().nodes {
            client.emulate(node.record.devices[0].0, "rate=200MB").await.unwrap();
        }
        // Up to a thousand, on a machine whose other work made the write leave most originals out a few.
        let ranges = ranges_on_one_device(&stat, MIB);
        assert!(ranges.len() >= 8, "{} ranges lie on one device", ranges.len());
        let sink = Sink::default();
        let get = async |range: &Range<u64>| {
            let wanted = Some((range.start, Some(range.end - 1)));
            let report = client.get("data", "object", wanted, sink.clone()).await.unwrap();
            let expected = &original[range.start as usize..range.end as usize];
            assert!(sink.bytes() == expected, "{range:?} came back different");
            report
        };
        // Five blocks of 256 KiB hold it. A machine that stands still for half a second makes a device late.
        let picked: Vec<_> = ranges.iter().step_by(ranges.len() / 8).collect();
        let mut least = 0;
        for range in &picked {
            client.drop_caches(stat.segments[0].holders[0].device).await.unwrap();
            let report = get(range).await;
            assert!(report.received_bytes >= 5 * MIB / 4, "{report:?}");
            let most = 5 * MIB / 4;
            // What the servers say they read from their media and sent.
            least += usize::from(report.medium_bytes == most && report.sent_bytes == most);
        }
        assert!(least * 2 > picked.len(), "{least} of {} read their blocks and no more", picked.len());
        // Whatever the dead servers held, the rest decodes: the first range lay on one of them.
        let block = (picked[0].start / u64::from(stat.segments[0].block_bytes)) as u32;
        let device = stat.segments[0].holder_of(block).unwrap();
        let nodes = client.registry().await.unwrap().nodes;
        let holds = |address: &str| {
            nodes.iter().any(|node| node.record.address == address && node.record.devices[0].0 == device)
        };
        let first = (0..6).find(|&node| holds(bed.cluster.node_address(node))).unwrap();
        for node in [first, (first + 3) % 6] {
            bed.cluster.kill_node(node).unwrap();
        }
        let mut decoded = 0;
        for range in &picked {
            let report = get(range).await;
            decoded += usize::from(report.received_bytes >= 64 * MIB * 9 / 10);
        }
        assert!(decoded > 0, "none of the ranges lay on the dead servers");
    });
}

#[test]
fn ranges_end_where_they_must_in_objects_of_every_kind() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    bed.ok(&[
        "bucket",
        "create",
        "data-lt",
        "--policy",
        "rateless:code=lt,c=1,delta=0.5,redundancy=1.5,tolerate=1",
    ]);
    bed.ok(&["bucket", "create", "stripe", "--policy", "stripe:devices=6"]);
    block_on(async {
        let client = client(&bed, Options { segment_bytes: 2 * MIB, ..patient() }).await;
        for (bucket, length) in [
            ("data", 0),
            ("data", 1),
            ("data", 4097),
            ("data", 5 * MIB + 12_345),
            ("data-lt", 5 * MIB),
            ("stripe", 5 * MIB),
        ] {
            let original = bytes(length as usize, seed ^ length);
            let store =
                async || client.put(bucket, "object", Cursor::new(original.clone()), Some(length)).await;
            settled(store).await;
            let sink = Sink::default();
            // In the first block, across blocks and segments, to and past the end, single bytes, everything.
            let ranges = [
                (0, Some(0)),
                (0, Some(99)),
                (65_000, Some(66_000)),
                (2 * MIB - 1, Some(2 * MIB)),
                (MIB + 7, Some(4 * MIB + 7)),
                (length.saturating_sub(1), None),
                (length / 2, Some(u64::MAX)),
                (0, None),
            ];
            for (first, last) in ranges {
                let got = client.get(bucket, "object", Some((first, last)), sink.clone()).await;
                if first >= length {
                    assert!(matches!(got, Err(GetError::Range { .. })), "{first} of {length}: {got:?}");
                    continue;
                }
                let end = last.map_or(length, |last| length.min(last.saturating_add(1)));
                assert_eq!(got.unwrap().size, end - first);
                let expected = &original[first as usize..end as usize];
                assert!(sink.bytes() == expected, "{first} to {last:?} of {bucket}, {length} bytes");
            }
            let whole = client.get(bucket, "object", None, sink.clone()).await.unwrap();
            assert!(sink.bytes() == original && whole.size == length);
        }
    });
}

/// However whole objects of the bucket are read, of a range of copies each block is read once.
#[test]
fn a_range_of_copies_reads_its_blocks_and_no_more() {
    let seed = seed();
    let mut bed = Bed::start(&shape(6, 1));
    let buckets = ["speculative", "adaptive"];
    for bucket in buckets {
        bed.ok(&["bucket", "create", bucket, "--policy", &format!("replicated:copies=3,read={bucket}")]);
    }
    let original = bytes(11 * MIB as usize, seed);
    block_on(async {
        let client = client(&bed, patient()).await;
        let sink = Sink::default();
        let get = async |bucket: &str, first: u64, length: u64| {
            let wanted = Some((first, Some(first + length - 1)));
            let report = client.get(bucket, "object", wanted, sink.clone()).await.unwrap();
            let expected = &original[first as usize..(first + length) as usize];
            assert!(sink.bytes() == expected, "{length} bytes at {first} of {bucket} came back different");
            report
        };
        let mut block = 0;
        for bucket in buckets {
            let size = Some(original.len() as u64);
            let store = async || client.put(bucket, "object", Cursor::new(original.clone()), size).await;
            settled(store).await;
            let stat = client.stat(bucket, "object").await.unwrap();
            block = u64::from(stat.segments[0].block_bytes);
            assert!(stat.segments[0].code.originals > 100, "{stat:?}");
            // A server that says nothing for seconds is raced by another.
            let report = get(bucket, 5 * MIB + 7, 1000).await;
            assert!(report.received_bytes <= 2 * block && report.segment_bytes == block, "{report:?}");
        }
        // Two of the three servers that have a block may be gone.
        bed.cluster.kill_node(1).unwrap();
        bed.cluster.kill_node(4).unwrap();
        for bucket in buckets {
            for first in (0..6).map(|number| number * block + 100) {
                get(bucket, first, block).await;
            }
        }
    });
}

#[test]
fn objects_of_many_segments_overlap_within_their_memory_and_keep_their_order() {
    let seed = seed();
    let mut bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    let original = bytes(25 * MIB as usize + 4321, seed);
    block_on(async {
        let size = original.len() as u64;
        // Memory for two segments and more, and for none: one is always allowed.
        for (key, memory_bytes, announced) in [
            ("two", 4 * MIB, Some(size)),
            ("none", 0, Some(size)),
            ("pipe", 64 * MIB, None),
            ("slow-pipe", MIB, None),
        ] {
            let options = Options { segment_bytes: 2 * MIB, memory_bytes, ..patient() };
            let client = client(&bed, options).await;
            let store = async || client.put("data", key, Cursor::new(original.clone()), announced).await;
            assert_eq!(settled(store).await.size, size);
            assert_eq!(client.stat("data", key).await.unwrap().segments.len(), 13);
            let sink = Sink::default();
            let got = client.get("data", key, None, sink.clone()).await.unwrap();
            assert!(sink.bytes() == original && got.size == size, "{key}");
        }
        // A source that gives less than it announced leaves nothing behind, wherever that shows.
        let client = client(&bed, Options { segment_bytes: 2 * MIB, ..patient() }).await;
        for announced in [size + 1, size + 3 * MIB] {
            let put = client.put("data", "wrong", Cursor::new(original.clone()), Some(announced)).await;
            let error = put.unwrap_err().to_string();
            assert!(error.contains(&format!("announced {announced} bytes")), "{error}");
        }
        assert!(client.stat("data", "wrong").await.is_err());
        // Of one that has more, as much is stored as was announced.
        for announced in [size - 1, 2 * MIB] {
            let source = || Cursor::new(original.clone());
            let store = async || client.put("data", "less", source(), Some(announced)).await;
            assert_eq!(settled(store).await.size, announced);
            let sink = Sink::default();
            client.get("data", "less", None, sink.clone()).await.unwrap();
            assert!(sink.bytes() == original[..announced as usize], "{announced}");
        }
    });
    bed.cluster.kill_node(2).unwrap();
    bed.cluster.kill_node(5).unwrap();
    bed.get_equals("two", &original);
}

#[test]
fn an_open_object_is_read_on_ahead_and_anywhere() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    let original = bytes(21 * MIB as usize + 99, seed);
    block_on(async {
        let options = Options { segment_bytes: 6 * MIB, memory_bytes: 16 * MIB, ..patient() };
        let client = client(&bed, options).await;
        put(&client, "object", &original).await;
        let mut reader = client.open("data", "object").await.unwrap();
        assert_eq!(reader.size(), original.len() as u64);
        // From the start to the end in odd lengths.
        let (mut at, mut step, mut window) = (0, 1, 0);
        loop {
            let part = reader.read(step).await.unwrap();
            assert!(part == original[at..original.len().min(at + step)], "{step} bytes at {at}");
            assert!(reader.read_ahead_bytes() >= window && reader.read_ahead_bytes() <= 4 * MIB);
            window = reader.read_ahead_bytes();
            at += part.len();
            if part.is_empty() {
                break;
            }
            step = step * 3 % 500_009;
        }
        assert_eq!((at, window), (original.len(), 4 * MIB));
        // Anywhere, longer than is ever read ahead, and past the end.
        for (offset, length) in
            [(9 * MIB, 7), (3, 20 * MIB as usize), (21 * MIB, 5000), (22 * MIB, 1), (0, 0)]
        {
            let part = reader.read_at(offset, length).await.unwrap();
            let (from, to) = (offset as usize, offset as usize + length);
            assert!(
                part == original[from.min(original.len())..to.min(original.len())],
                "{length} at {offset}"
            );
            assert_eq!(reader.read_ahead_bytes(), 0);
        }
        // One version throughout: the old bytes, or word that they are gone.
        let mut again = client.open("data", "object").await.unwrap();
        assert!(again.read(100).await.unwrap() == original[..100]);
        let second = bytes(9 * MIB as usize, seed + 1);
        put(&client, "object", &second).await;
        client.tidy().await;
        // Where a server does not answer in time, its sweep frees them.
        let mut gone = None;
        eventually("the old bytes are gone", WITHIN, async || {
            gone = again.read_at(13 * MIB, 1000).await.err();
            gone.is_some()
        })
        .await;
        assert!(matches!(gone, Some(GetError::Changed { .. })), "{gone:?}");
        let mut fresh = client.open("data", "object").await.unwrap();
        assert!(
            fresh.read_at(5 * MIB, 2 * MIB as usize).await.unwrap()
                == second[5 * MIB as usize..7 * MIB as usize]
        );
        client.remove("data", "object").await.unwrap();
        client.tidy().await;
        eventually("what was removed is gone", WITHIN, async || {
            gone = fresh.read_at(MIB, 10).await.err();
            gone.is_some()
        })
        .await;
        assert!(matches!(gone, Some(GetError::Changed { .. })), "{gone:?}");
    });
}
