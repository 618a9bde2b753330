//! Chunks that change in place: small updates of parity buckets on real processes, read while servers are down, and storms of
//! them while servers are killed.

use crate::{
    amended::addresses,
    common::{Bed, WITHIN, block_on, bytes, eventually, once_of, put, seed, settled, shape},
    raw::Raw,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    io::{self, Cursor, Read, Seek, SeekFrom},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};
use steadfast_client::{Client, Options};
use steadfast_lab::cluster::Shape;
use steadfast_protocol::{
    layout::ParityGeometry,
    message::{Change, MetaAnswer},
};
use tokio::sync::oneshot;

const MIB: usize = 1 << 20;
const GRANULE: usize = 4096;

/// Changes bytes of `data/object` and of its model; how many in place: all, unless a server is held up, or none.
pub(crate) async fn change(client: &Client, model: &mut [u8], offset: usize, new: Vec<u8>) -> u64 {
    model[offset..offset + new.len()].copy_from_slice(&new);
    let update = async || client.update("data", "object", offset as u64, Cursor::new(new.clone())).await;
    settled(update).await.in_place_bytes
}

async fn get(client: &Client) -> Vec<u8> {
    let (sink, whole) = Collected::new();
    client.get("data", "object", None, sink).await.unwrap();
    whole.lock().unwrap().clone()
}

/// A sink that can be looked into.
#[derive(Clone, Default)]
struct Collected(Arc<std::sync::Mutex<Vec<u8>>>);

impl Collected {
    fn new() -> (Self, Arc<std::sync::Mutex<Vec<u8>>>) {
        let sink = Self::default();
        (sink.clone(), sink.0)
    }
}

impl std::io::Write for Collected {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn patient(bed: &Bed) -> Client {
    let options = Options { patience: Duration::from_secs(60), ..Options::default() };
    Client::connect(bed.cluster.address(), options).await.unwrap()
}

#[test]
fn small_updates_go_where_the_chunks_are_and_any_two_servers_may_be_lost_after() {
    once_of("updates are in place", || small_updates("parity:segment=4MiB"));
}

#[test]
fn small_updates_overwrite_parity_and_any_two_servers_may_be_lost_after() {
    once_of("updates are in place", || small_updates("parity:segment=4MiB,update=fo"));
}

/// Whether nearly all updates with all servers up were in place: what a server that is held up does not take is stored anew.
fn small_updates(policy: &str) -> bool {
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut bed = Bed::with_bucket(&shape(6, 1), policy);
    // Two full segments and a short one.
    let mut model = bytes(9 * MIB + 12_345, seed);
    let in_place = block_on(async {
        let client = patient(&bed).await;
        put(&client, "object", &model).await;
        let before = client.stat("data", "object").await.unwrap();
        let mut anew = 0;
        for _ in 0..60 {
            let length = 1 + (random.next_u64() % 20_000) as usize;
            let offset = (random.next_u64() % (model.len() - length) as u64) as usize;
            let new = bytes(length, random.next_u64());
            anew += u32::from(change(&client, &mut model, offset, new).await < length as u64);
        }
        // In place is no new version.
        let after = client.stat("data", "object").await.unwrap();
        let as_counted = (after.object.version == before.object.version) == (anew == 0);
        // Two at once, of the same bytes and others.
        let at = MIB - 20_000;
        let (mut one, mut two) = (model.clone(), model.clone());
        tokio::join!(
            change(&client, &mut one, at, vec![1; 30_000]),
            change(&client, &mut two, at, vec![2; 30_000]),
        );
        change(&client, &mut model, at, vec![3; 30_000]).await;
        assert!(get(&client).await == model, "healthy");
        println!("{anew} of 60 stored anew");
        as_counted && anew <= 6
    });
    // Data and parity, with logs that nobody merged yet and logs that somebody did.
    let mut at_once = 0;
    for (first, second) in [(0, 1), (2, 5), (3, 4)] {
        block_on(async {
            let client = patient(&bed).await;
            // Soon after a restart a server may count as out of reach: then the segment is stored anew.
            let mut tries = 0;
            eventually("a change is in place", WITHIN, async || {
                tries += 1;
                let new = bytes(5000, random.next_u64());
                let offset = (random.next_u64() % (model.len() - 5000) as u64) as usize;
                change(&client, &mut model, offset, new).await == 5000
            })
            .await;
            at_once += u32::from(tries == 1);
        });
        bed.cluster.kill_node(first).unwrap();
        bed.cluster.kill_node(second).unwrap();
        block_on(async {
            let client = patient(&bed).await;
            assert!(get(&client).await == model, "without {first} and {second}");
        });
        bed.restart(first);
        bed.restart(second);
    }
    // The first of them at least before anything was stored anew after a restart.
    in_place && at_once >= 1
}

#[test]
fn an_update_with_a_server_down_stores_the_segment_anew_and_the_next_one_is_in_place_again() {
    once_of("a chunk that was moved is changed in place", anew_and_in_place);
}

/// Whether a segment one of whose chunks was moved was changed in place after it.
fn anew_and_in_place() -> bool {
    let mut bed = Bed::with_bucket(&shape(8, 1), "parity:segment=4MiB");
    let mut model = bytes(4 * MIB, seed());
    let dead = block_on(async {
        let client = patient(&bed).await;
        put(&client, "object", &model).await;
        eventually("a change is in place", WITHIN, async || {
            change(&client, &mut model, 777, vec![7; 5000]).await == 5000
        })
        .await;
        // The server of the chunk that is changed, and one of parity.
        let stat = client.stat("data", "object").await.unwrap();
        let shape = ParityGeometry::of_layout(&stat.segments[0]).unwrap();
        let holders = shape.holders(&stat.segments[0]).unwrap();
        [bed.server_of(&client, holders[0]).await, bed.server_of(&client, holders[5]).await]
    });
    dead.iter().for_each(|&node| bed.cluster.kill_node(node).unwrap());
    block_on(async {
        let client = patient(&bed).await;
        let before = client.stat("data", "object").await.unwrap().object.version;
        assert_eq!(change(&client, &mut model, 4000, vec![9; 6000]).await, 0, "two servers of it are down");
        assert!(client.stat("data", "object").await.unwrap().object.version > before);
        assert!(get(&client).await == model);
        // They hold nothing of it any more.
        eventually("the next change is in place", WITHIN, async || {
            change(&client, &mut model, 2000, vec![4; 6000]).await == 6000
        })
        .await;
        assert!(get(&client).await == model);
    });
    dead.iter().for_each(|&node| bed.restart(node));
    block_on(async {
        let client = patient(&bed).await;
        assert!(get(&client).await == model, "what comes back is not asked");
        // A device that leaves: what was changed goes along.
        let stat = client.stat("data", "object").await.unwrap();
        let leaving = stat.segments[0].holders[1].device;
        let moved = settled(async || client.without_devices("data", "object", &[leaving].into()).await).await;
        assert!(moved.written_blocks > 0);
        let stat = client.stat("data", "object").await.unwrap();
        assert!(stat.segments[0].holders.iter().all(|holder| holder.device != leaving));
        assert!(get(&client).await == model, "after a move");
        let in_place = change(&client, &mut model, 1 << 20, vec![5; 6000]).await == 6000;
        assert!(get(&client).await == model);
        in_place
    })
}

/// Changes a few bytes in place, with a server down that has nothing to do with them.
async fn change_beside_a_dead_server(client: &Client, model: &mut [u8]) {
    // What cannot be made in place is not begun otherwise then.
    eventually("a server is known to be dead", WITHIN, async || {
        client.registry().await.unwrap().nodes.iter().any(|node| !node.alive)
    })
    .await;
    // By itself it is tried in place again, whatever the first try finds.
    model[777..5777].fill(7);
    let changed = client.update("data", "object", 777, Cursor::new(vec![7; 5000])).await.unwrap();
    assert_eq!(changed.in_place_bytes, 5000);
    assert!(get(client).await == model);
}

#[test]
fn a_change_of_most_of_a_segment_reads_what_stays_alone() {
    // A device that is late has others asked beside it.
    once_of("a chunk of four is read", || {
        let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=4MiB");
        let mut model = bytes(4 * MIB, seed());
        block_on(async {
            let client = patient(&bed).await;
            put(&client, "object", &model).await;
            model[..3 * MIB].fill(7);
            let new = vec![7; 3 * MIB];
            let changed = client.update("data", "object", 0, Cursor::new(new)).await.unwrap();
            assert!(get(&client).await == model);
            assert_eq!((changed.in_place_bytes, changed.decoded_segments), (0, 1));
            println!("{} bytes read", changed.read_bytes);
            changed.read_bytes >= MIB as u64 && changed.read_bytes < 3 * MIB as u64 / 2
        })
    });
}

/// A writer is gone between its fence and its commit, and with a server down the segment has nowhere to be stored anew.
#[test]
fn a_segment_that_somebody_fenced_and_left_is_changed_in_place() {
    let mut bed = Bed::with_bucket(&shape(6, 1), "parity:segment=4MiB");
    let mut model = bytes(4 * MIB, seed());
    let dead = block_on(async {
        let client = patient(&bed).await;
        put(&client, "object", &model).await;
        let found = client.stat("data", "object").await.unwrap();
        let layout = &found.segments[0];
        let holders = ParityGeometry::of_layout(layout).unwrap().updatable(layout).unwrap();
        let (mut raw, addresses) = (Raw::new(), addresses(&client).await);
        let (bucket, key, base) = ("data".into(), "object".into(), found.object.version);
        let begin = Change::BeginAmend { bucket, key, base, segments: 1, rewrites: true };
        let begun = raw.change(bed.cluster.address(), begin).await.unwrap();
        let MetaAnswer::Begun(begun) = begun else { panic!("{begun:?}") };
        for &device in &holders {
            raw.fence(&addresses[&device], (device, layout.segment, begun.epoch)).await;
        }
        let abort = Change::Abort { intent: begun.intent };
        assert_eq!(raw.change(bed.cluster.address(), abort).await, Ok(MetaAnswer::Done));
        bed.server_of(&client, holders[3]).await
    });
    bed.cluster.kill_node(dead).unwrap();
    block_on(async { change_beside_a_dead_server(&patient(&bed).await, &mut model).await });
}

/// New bytes of which the first read says that it has begun, and waits for a word.
struct Held {
    bytes: Cursor<Vec<u8>>,
    gate: Option<(oneshot::Sender<()>, mpsc::Receiver<()>)>,
}

impl Read for Held {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some((begun, word)) = self.gate.take() {
            begun.send(()).unwrap();
            word.recv().unwrap();
        }
        self.bytes.read(into)
    }
}

impl Seek for Held {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.bytes.seek(to)
    }
}

#[test]
fn what_a_change_has_fenced_that_was_overtaken_and_failed_is_open_again() {
    let mut bed = Bed::with_bucket(&shape(6, 1), "parity:segment=4MiB");
    let mut model = bytes(8 * MIB, seed());
    block_on(async {
        let client = patient(&bed).await;
        put(&client, "object", &model).await;
        let before = client.stat("data", "object").await.unwrap().segments.swap_remove(0);
        let holders = ParityGeometry::of_layout(&before).unwrap().updatable(&before).unwrap();
        let dead = bed.server_of(&client, holders[3]).await;
        let failed = loop {
            let ((begun, has_begun), (word, gate)) = (oneshot::channel(), mpsc::channel());
            // Too much to be changed in place. It is read when the segment was fenced and decoded.
            let held = Held { bytes: Cursor::new(vec![1; 2 * MIB]), gate: Some((begun, gate)) };
            let overtaking = async {
                if has_begun.await.is_err() {
                    return false;
                }
                // Another writer stores the other segment anew, and a server of this one dies.
                let other = patient(&bed).await;
                let new = || Cursor::new(vec![2; 2 * MIB]);
                settled(async || other.update("data", "object", 4 * MIB as u64, new()).await).await;
                bed.cluster.kill_node(dead).unwrap();
                word.send(()).unwrap();
                true
            };
            match tokio::join!(client.update("data", "object", 0, held), overtaking) {
                (failed, true) => break failed,
                (early, false) => println!("again: {early:?}"),
            }
        };
        assert!(failed.is_err(), "{failed:?}");
        model[4 * MIB..6 * MIB].fill(2);
        let now = client.stat("data", "object").await.unwrap().segments.swap_remove(0);
        assert_eq!(now.segment, before.segment);
        assert!(now.epoch > before.epoch, "it is listed under an epoch that its nodes take");
        change_beside_a_dead_server(&client, &mut model).await;
    });
}

/// Writers of a storm.
const WRITERS: usize = 4;
/// Granules that all of them change, half of them in either of two chunks.
const SHARED: usize = 8;
const SHARED_BYTES: usize = SHARED * GRANULE;

/// A write to granules that all writers of a storm change. Each of those says all over whose write it is, and which: so parts of two are
/// told from one, and what is there at the end from what should be.
#[derive(Debug)]
struct SharedWrite {
    writer: usize,
    number: u64,
    /// Of those that are shared.
    granules: Range<usize>,
    begun: Instant,
    /// None where its writer was not told that it is done: it may be there or not.
    acknowledged: Option<Instant>,
}

impl SharedWrite {
    fn stamp(&self) -> [u8; 8] {
        ((self.writer as u64) << 32 | self.number).to_le_bytes()
    }

    fn bytes(&self) -> Vec<u8> {
        self.stamp().repeat(self.granules.len() * GRANULE / 8)
    }

    /// Whether it is another writer's, of some of the same bytes, and both were under way at once.
    fn met(&self, other: &Self) -> bool {
        let (Some(own_end), Some(end)) = (self.acknowledged, other.acknowledged) else { return false };
        self.writer != other.writer
            && self.granules.start < other.granules.end
            && other.granules.start < self.granules.end
            && self.begun < end
            && other.begun < own_end
    }

    /// Whether it was begun when the other was known to be done, and is done itself.
    fn has_replaced(&self, other: &Self) -> bool {
        self.acknowledged.is_some() && other.acknowledged.is_some_and(|at| at < self.begun)
    }
}

/// Every granule is of one write, and of none that another is known to have replaced.
fn check_shared(bytes: &[u8], writes: &[SharedWrite]) {
    for (number, granule) in bytes.chunks(GRANULE).enumerate() {
        let stamp = &granule[..8];
        assert!(granule.chunks(8).all(|part| part == stamp), "granule {number} is of several writes");
        let of_it: Vec<&SharedWrite> =
            writes.iter().filter(|write| write.granules.contains(&number)).collect();
        let there = of_it.iter().find(|write| write.stamp() == *stamp);
        let there = there.unwrap_or_else(|| panic!("nobody wrote {stamp:?} to granule {number}"));
        let lost = of_it.iter().find(|write| write.has_replaced(there));
        assert!(lost.is_none(), "granule {number} has {there:?}, and not {lost:?} or a later one");
    }
}

/// A client of a storm.
struct Writer {
    number: usize,
    /// Bytes that it alone changes.
    own: Range<usize>,
    /// Bytes that all change.
    shared: Range<usize>,
    random: Pcg64Mcg,
    /// The object, but for what is shared.
    model: Arc<Mutex<Vec<u8>>>,
    writes: Arc<Mutex<Vec<SharedWrite>>>,
    shared_writes: u64,
    updates: u64,
    in_place: u64,
}

impl Writer {
    async fn run(&mut self, address: &str, stop: &AtomicBool) {
        let options = Options { patience: Duration::from_secs(8), ..Options::default() };
        let client = Client::connect(address, options).await.unwrap();
        while !stop.load(Ordering::Relaxed) {
            match self.random.next_u64() % 2 {
                0 => self.change_own(&client).await,
                _ => self.change_shared(&client).await,
            }
        }
    }

    /// Until it is done: what an update that failed has done nobody knows, but this writer alone changes these bytes.
    async fn change_own(&mut self, client: &Client) {
        let size = 1 + (self.random.next_u64() % 9000) as usize;
        let at = self.own.start + (self.random.next_u64() % (self.own.len() - size) as u64) as usize;
        let new = bytes(size, self.random.next_u64());
        while !self.update(client, at, new.clone()).await {}
        self.model.lock().unwrap()[at..at + size].copy_from_slice(&new);
    }

    /// Once: again it would be another write, and others change the same bytes.
    async fn change_shared(&mut self, client: &Client) {
        let first = (self.random.next_u64() % SHARED as u64) as usize;
        let end = (first + 1 + (self.random.next_u64() % 3) as usize).min(SHARED);
        self.shared_writes += 1;
        let mut write = SharedWrite {
            writer: self.number,
            number: self.shared_writes,
            granules: first..end,
            begun: Instant::now(),
            acknowledged: None,
        };
        if self.update(client, self.shared.start + first * GRANULE, write.bytes()).await {
            write.acknowledged = Some(Instant::now());
        }
        self.writes.lock().unwrap().push(write);
    }

    /// Whether it is told to be done.
    async fn update(&mut self, client: &Client, at: usize, new: Vec<u8>) -> bool {
        match client.update("data", "object", at as u64, Cursor::new(new)).await {
            Ok(report) => {
                self.updates += 1;
                self.in_place += u64::from(report.in_place_bytes > 0);
                true
            }
            Err(error) => {
                println!("writer {}: {error}", self.number);
                tokio::time::sleep(Duration::from_millis(100)).await;
                false
            }
        }
    }
}

/// Writers change bytes of their own and granules that they share, often the same at once, while any two servers are killed and started
/// again. What a writer was told to be done is there at the end, whoever was killed when, unless another has replaced it.
#[test]
fn nothing_acknowledged_is_lost_in_a_storm_of_updates_and_kills() {
    storm("parity:segment=2MiB,reserve=512KiB");
}

#[test]
fn nothing_acknowledged_is_lost_in_a_storm_where_parity_is_overwritten() {
    storm("parity:segment=2MiB,update=fo");
}

fn storm(policy: &str) {
    const ROUNDS: usize = 6;
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    // Reserves shrink meanwhile, where there are any.
    let mut bed = Bed::with_bucket(&Shape { reserve_period_s: 1, ..shape(6, 1) }, policy);
    let length = 2 * MIB;
    let part = (length - SHARED_BYTES) / WRITERS;
    // In the midst of the object, where its second data chunk ends.
    let shared = WRITERS / 2 * part..WRITERS / 2 * part + SHARED_BYTES;
    let mut original = bytes(length, seed);
    let (begun, acknowledged) = (Instant::now(), None);
    let mut first = SharedWrite { writer: WRITERS, number: 0, granules: 0..SHARED, begun, acknowledged };
    original[shared.clone()].copy_from_slice(&first.bytes());
    block_on(async {
        let client = patient(&bed).await;
        put(&client, "object", &original).await;
    });
    first.acknowledged = Some(Instant::now());
    let (model, writes) = (Arc::new(Mutex::new(original)), Arc::new(Mutex::new(vec![first])));
    let stop = Arc::new(AtomicBool::new(false));
    let address = bed.cluster.address().to_owned();
    let threads: Vec<_> = (0..WRITERS)
        .map(|number| {
            let start = number * part + if number < WRITERS / 2 { 0 } else { SHARED_BYTES };
            let mut writer = Writer {
                number,
                own: start..start + part,
                shared: shared.clone(),
                random: Pcg64Mcg::seed_from_u64(seed ^ (number as u64 + 1)),
                model: model.clone(),
                writes: writes.clone(),
                shared_writes: 0,
                updates: 0,
                in_place: 0,
            };
            let (stop, address) = (stop.clone(), address.clone());
            std::thread::spawn(move || {
                block_on(writer.run(&address, &stop));
                writer
            })
        })
        .collect();
    for round in 0..ROUNDS {
        std::thread::sleep(Duration::from_millis(300 + random.next_u64() % 700));
        let first = (random.next_u64() % 6) as usize;
        let second = (first + 1 + (random.next_u64() % 5) as usize) % 6;
        println!("round {round}: {first} and {second} are killed");
        bed.cluster.kill_node(first).unwrap();
        bed.cluster.kill_node(second).unwrap();
        std::thread::sleep(Duration::from_millis(random.next_u64() % 1500));
        bed.restart(first);
        bed.restart(second);
    }
    std::thread::sleep(Duration::from_millis(500));
    stop.store(true, Ordering::Relaxed);
    for thread in threads {
        let Writer { number, updates, in_place, .. } = thread.join().unwrap();
        println!("writer {number}: {updates} updates, {in_place} in place");
        assert!(updates > 0);
    }
    let mut model = std::mem::take(&mut *model.lock().unwrap());
    let writes = std::mem::take(&mut *writes.lock().unwrap());
    let met = writes.iter().filter(|write| writes.iter().any(|other| write.met(other))).count();
    println!("{met} of {} writes met others in the same granules", writes.len());
    assert!(met > 0, "no two writers changed the same bytes at once");
    block_on(async {
        let client = patient(&bed).await;
        eventually("all servers answer", WITHIN, async || {
            client.get("data", "object", None, std::io::sink()).await.is_ok()
        })
        .await;
        // What nobody was told of may be under way yet, but not behind a later change of its chunk that is acknowledged. The midst of
        // each of the four chunks is some writer's own.
        for chunk in 0..4 {
            change(&client, &mut model, (2 * chunk + 1) * length / 8, vec![7]).await;
        }
        let there = get(&client).await;
        check_shared(&there[shared.clone()], &writes);
        model[shared.clone()].copy_from_slice(&there[shared.clone()]);
        assert!(there == model, "with all servers");
    });
    for (first, second) in [(0, 3), (1, 4), (2, 5)] {
        bed.cluster.kill_node(first).unwrap();
        bed.cluster.kill_node(second).unwrap();
        block_on(async {
            let client = patient(&bed).await;
            assert!(get(&client).await == model, "without {first} and {second}");
        });
        bed.restart(first);
        bed.restart(second);
    }
}

/// Every 4 KiB of the file has one number all over. A writer counts them up in an order of its own; readers that decode around
/// two dead servers must find each no older than what was acknowledged before they began, and never two numbers in one.
#[test]
fn degraded_reads_during_updates_show_what_was_acknowledged() {
    for policy in ["parity:segment=1MiB", "parity:segment=1MiB,update=fo"] {
        degraded_reads(policy);
    }
}

fn degraded_reads(policy: &str) {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(6, 1), policy);
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    block_on(async {
        let client = Arc::new(patient(&bed).await);
        let size = 1 << 20;
        put(&client, "object", &vec![0; size]).await;
        let stat = client.stat("data", "object").await.unwrap();
        let holders =
            ParityGeometry::of_layout(&stat.segments[0]).unwrap().holders(&stat.segments[0]).unwrap();
        let acknowledged = std::cell::RefCell::new(vec![0u32; size / GRANULE]);
        let chunk = size / GRANULE / 4;
        let (reads, done) = (std::cell::Cell::new(0), std::cell::Cell::new(false));
        let deadline = Instant::now() + WITHIN;
        let writing = async {
            // Longer where the readers are held up.
            for number in 1.. {
                if number >= 400 && (reads.get() > 10 || Instant::now() > deadline) {
                    break;
                }
                let at = (random.next_u64() % (size / GRANULE) as u64) as usize;
                let new = u32::to_le_bytes(number).repeat(GRANULE / 4);
                let offset = (at * GRANULE) as u64;
                let update = async || client.update("data", "object", offset, Cursor::new(new.clone())).await;
                settled(update).await;
                acknowledged.borrow_mut()[at] = number;
            }
            done.set(true);
        };
        let reading = async {
            while !done.get() {
                let before = acknowledged.borrow().clone();
                let turn = reads.get();
                // As a repair sees it: without two of the data chunks.
                let without = [holders[turn % 4], holders[(turn + 1 + turn / 4 % 3) % 4]];
                let bytes = client.decoded_without("data", "object", &without.into()).await.unwrap();
                for (at, granule) in bytes.chunks(GRANULE).enumerate() {
                    let number = u32::from_le_bytes(granule[..4].try_into().unwrap());
                    assert!(granule.chunks(4).all(|four| four == &granule[..4]), "granule {at} is torn");
                    assert!(
                        number >= before[at],
                        "granule {at} of chunk {}: {number} after {}",
                        at / chunk,
                        before[at]
                    );
                }
                reads.set(turn + 1);
            }
            println!("{policy}: {} degraded reads", reads.get());
            assert!(reads.get() > 10);
        };
        tokio::join!(writing, reading);
    });
}
