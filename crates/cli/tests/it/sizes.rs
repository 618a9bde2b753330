//! Files that grow and shrink, on real processes: any order of writes, extensions and truncations against a plain vector while
//! servers die; what a log costs; what lies behind an end; several writers; and the commands.

use crate::{
    amended::addresses,
    common::{Bed, WITHIN, block_on, bytes, eventually, once_of, seed, settled, shape},
    files::{check, close, open, patient, put, sync},
    raw::Raw,
    watch::Metrics,
};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    collections::BTreeSet,
    io::{self, Cursor, Read},
    process::Stdio,
    sync::{Arc, mpsc},
    time::Duration,
};
use steadfast_client::{AmendError, Client, File, FileError, FileOptions, Options};
use steadfast_lab::cluster::Shape;
use steadfast_protocol::layout::ParityGeometry;

const MIB: usize = 1 << 20;

pub(crate) const CREATE: FileOptions = FileOptions {
    write: true,
    create: true,
    truncate: false,
    cache_bytes: 64 << 20,
    read_cache_bytes: 64 << 20,
    fresh_for: Duration::ZERO,
};

async fn create(client: &Arc<Client>) -> File {
    client.open_file_with("data", "object", &CREATE).await.unwrap()
}

/// Writes to the file and to its model, which becomes as long as it takes.
async fn write(file: &File, model: &mut Vec<u8>, offset: usize, new: &[u8]) {
    settled(async || file.write_at(offset as u64, new).await).await;
    if model.len() < offset + new.len() {
        model.resize(offset + new.len(), 0);
    }
    model[offset..offset + new.len()].copy_from_slice(new);
}

/// Bytes that fit the cache are taken whole or not at all; where they begin.
async fn append(file: &File, bytes: &[u8]) -> u64 {
    settled(async || file.append(bytes).await).await
}

async fn truncate(file: &File, size: usize) {
    settled(async || file.truncate(size as u64).await).await;
}

/// Starts a server again and waits until it is known.
async fn restart(bed: &mut Bed, client: &Client, node: usize) {
    bed.cluster.restart_node(node).unwrap();
    let address = bed.cluster.node_address(node);
    eventually("the server is registered", WITHIN, async || {
        let registry = client.registry().await.unwrap();
        registry.nodes.iter().any(|node| node.record.address == address)
    })
    .await;
}

/// Decoded from any four of the six chunks of each segment, it is the same.
pub(crate) async fn survives_any_two(client: &Client, model: &[u8]) {
    let found = client.stat("data", "object").await.unwrap();
    let devices: BTreeSet<_> =
        found.segments.iter().flat_map(|layout| &layout.holders).map(|holder| holder.device).collect();
    let devices: Vec<_> = devices.into_iter().collect();
    for (number, &first) in devices.iter().enumerate() {
        for &second in &devices[number + 1..] {
            let lost = [first, second].into();
            let read = client.decoded_without("data", "object", &lost).await.unwrap();
            assert!(read == model, "without {first} and {second}");
        }
    }
}

#[test]
fn any_order_of_sizes_is_that_of_a_plain_vector_while_servers_die() {
    const LONGEST: usize = 5 * MIB;
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut below = move |most: usize| (random.next_u64() % most.max(1) as u64) as usize;
    let mut bed = Bed::with_bucket(&shape(8, 1), "parity:segment=1MiB");
    let (mut model, mut synced) = (Vec::new(), Vec::new());
    let mut dead: Vec<usize> = Vec::new();
    let (mut longest, mut extended, mut cut, mut gaps) = (0, 0, 0, 0);
    block_on(async {
        let (client, other) = (patient(&bed).await, patient(&bed).await);
        let options = FileOptions { cache_bytes: 1 << 20, ..CREATE };
        let mut file = client.open_file_with("data", "object", &options).await.unwrap();
        for step in 0..110u64 {
            let size = model.len();
            match below(12) {
                0..3 if size > 0 => {
                    let offset = below(size);
                    let length = (1 + below(60_000)).min(size - offset);
                    write(&file, &mut model, offset, &bytes(length, step)).await;
                }
                3 | 4 => {
                    let most = [300, 9000, 700_000][below(3)];
                    let length = 1 + below(most);
                    let new = bytes(length.min(LONGEST - size.min(LONGEST - 1)), step);
                    assert_eq!(append(&file, &new).await, size as u64);
                    model.extend_from_slice(&new);
                    extended += 1;
                }
                5 => {
                    let most = [20_000, 1_500_000][below(2)];
                    let offset = size + below(most);
                    if offset + 5000 < LONGEST {
                        write(&file, &mut model, offset, &bytes(1 + below(5000), step)).await;
                        gaps += 1;
                    }
                }
                6 => {
                    let to = match below(4) {
                        0 => below(LONGEST),
                        1 => size / MIB * MIB,
                        2 => size.saturating_sub(below(3000)),
                        _ => below(size + 1),
                    };
                    truncate(&file, to).await;
                    cut += usize::from(to < size);
                    model.resize(to, 0);
                    // What was written before below the end is kept, and not stored by that.
                    let found = other.stat("data", "object").await.unwrap();
                    assert_eq!(found.object.size, to as u64);
                }
                7 | 8 => {
                    let offset = below(size + 10_000);
                    let length = below(200_000);
                    let read = file.read_at(offset as u64, length).await.unwrap();
                    let end = size.min(offset + length);
                    assert!(read == model[offset.min(end)..end], "{length} at {offset} of {size}");
                }
                9 => {
                    sync(&file).await;
                    synced.clone_from(&model);
                    check(&open(&other).await, &synced, "another client after a sync").await;
                }
                10 => {
                    close(file).await;
                    synced.clone_from(&model);
                    file = client.open_file_with("data", "object", &options).await.unwrap();
                    check(&file, &synced, "opened again").await;
                }
                _ if dead.is_empty() => {
                    dead = vec![below(8)];
                    dead.push((dead[0] + 1 + below(7)) % 8);
                    dead.iter().for_each(|node| bed.cluster.kill_node(*node).unwrap());
                }
                _ => {
                    for node in dead.drain(..) {
                        restart(&mut bed, &other, node).await;
                    }
                }
            }
            assert_eq!(file.size(), model.len() as u64, "step {step}");
            longest = longest.max(model.len());
        }
        check(&file, &model, "synced or not").await;
        close(file).await;
        check(&open(&other).await, &model, "closed").await;
        println!("{longest} bytes at most, {extended} appended, {gaps} gaps, {cut} cut");
        assert!(longest > 2 * MIB && extended > 5 && gaps > 2 && cut > 2, "hardly visited");
    });
    dead.into_iter().for_each(|node| bed.restart(node));
    block_on(async { survives_any_two(&*patient(&bed).await, &model).await });
}

#[test]
fn a_log_grows_where_it_lies() {
    once_of("a log grows in place", log_grows);
}

/// Whether it grew in place: what a server that is held up does not take so is stored anew.
fn log_grows() -> bool {
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let mut model = Vec::new();
    let in_place = block_on(async {
        let client = patient(&bed).await;
        let file = create(&client).await;
        let (mut records, start) = (0u64, std::time::Instant::now());
        while model.len() < MIB + 300_000 {
            // Some are long, so that this ends.
            let length =
                1 + (random.next_u64() % if records.is_multiple_of(3) { 20_000 } else { 900 }) as usize;
            let record = bytes(length, records);
            assert_eq!(append(&file, &record).await, model.len() as u64);
            model.extend_from_slice(&record);
            sync(&file).await;
            records += 1;
            if records.is_multiple_of(100) {
                check(&open(&patient(&bed).await).await, &model, "a reader meanwhile").await;
            }
        }
        let (counts, took) = (file.counts(), start.elapsed());
        println!("{records} records in {took:?}: {counts:?}");
        assert!(records > 200);
        assert_eq!(counts.segments_added, 2);
        let found = client.stat("data", "object").await.unwrap();
        assert_eq!(found.object.size, model.len() as u64);
        let lengths: Vec<u64> = found.segments.iter().map(|layout| layout.length).collect();
        assert_eq!(lengths, [MIB as u64, (model.len() - MIB) as u64]);
        survives_any_two(&client, &model).await;
        // Each of two segments is stored when it begins and once more when it has grown; some records are, where a server is held
        // up. Else the metadata server is hardly asked.
        let most = counts.in_place_bytes > model.len() as u64 * 8 / 10;
        let anew = counts.segments_anew;
        most && anew <= 2 + records / 20 && counts.lookups <= 5 + anew
    });
    bed.cluster.kill_node(2).unwrap();
    bed.cluster.kill_node(3).unwrap();
    block_on(async { check(&open(&patient(&bed).await).await, &model, "without two servers").await });
    in_place
}

/// A small file that nobody appends to takes no more than a put would have taken.
#[test]
fn small_files_stay_small() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity");
    block_on(async {
        let client = patient(&bed).await;
        let file = create(&client).await;
        close(file).await;
        let empty = client.stat("data", "object").await.unwrap();
        assert_eq!((empty.object.size, empty.segments.len()), (0, 0));
        assert!(open(&client).await.read_at(0, 100).await.unwrap().is_empty());
        let file = create(&client).await;
        let mut model = Vec::new();
        for part in 0..10 {
            write(&file, &mut model, part * 1000, &bytes(1000, part as u64)).await;
        }
        close(file).await;
        let found = client.stat("data", "object").await.unwrap();
        let chunks: Vec<u64> = found
            .segments
            .iter()
            .map(|layout| ParityGeometry::of_layout(layout).unwrap().chunk_bytes())
            .collect();
        assert_eq!(chunks, [4096]);
        // It is found, not made again, and what it has is kept or dropped as asked.
        check(&create(&client).await, &model, "it is there").await;
        let emptied = FileOptions { truncate: true, ..CREATE };
        let file = client.open_file_with("data", "object", &emptied).await.unwrap();
        assert_eq!(file.size(), 0);
        drop(file);
        assert_eq!(client.stat("data", "object").await.unwrap().object.size, 0);
        check(&open(&client).await, &[], "emptied").await;
        put(&client, &model).await;
        check(&open(&client).await, &model, "put over it").await;
    });
}

/// A writer that died between its bytes and the word that counts them in has left them behind the end.
#[test]
fn what_a_dead_writer_left_behind_the_end_is_never_seen() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let mut model = bytes(600_000, seed());
    block_on(async {
        let client = patient(&bed).await;
        // All of the segment's room, in the last data chunks, as of the layout that is there.
        let leave = async || {
            let found = client.stat("data", "object").await.unwrap();
            let layout = found.segments.last().unwrap();
            let shape = ParityGeometry::of_layout(layout).unwrap();
            let holders = shape.updatable(layout).unwrap();
            let (raw, addresses) = (Raw::new(), addresses(&client).await);
            for part in shape.parts(layout.length..shape.capacity_bytes()) {
                let device = holders[part.chunk as usize];
                let (mut at, of) = (part.within.start, (device, layout.segment, layout.epoch));
                while at < part.within.end {
                    let to = part.within.end.min((at / 8192 + 1) * 8192);
                    raw.update(&addresses[&device], of, at, vec![0xdd; (to - at) as usize]).await;
                    at = to;
                }
            }
        };
        // Bytes that follow are written over it; where a server is held up they are stored anew instead, which shows nothing.
        let mut tries = 0..6;
        let file = loop {
            assert!(tries.next().is_some(), "bytes that follow are never written in place");
            model.truncate(600_000);
            put(&client, &model).await;
            leave().await;
            check(&open(&client).await, &model, "behind the end").await;
            survives_any_two(&client, &model).await;
            let file = open(&client).await;
            write(&file, &mut model, 600_000, &[1; 5000]).await;
            sync(&file).await;
            if (file.counts().segments_anew, file.counts().in_place_bytes) == (0, 5000) {
                break file;
            }
        };
        check(&open(&client).await, &model, "in place over it").await;
        // A gap, and what a truncation adds, is zero.
        write(&file, &mut model, 700_000, &[2; 5000]).await;
        sync(&file).await;
        assert!(file.counts().segments_anew >= 1, "a gap is stored anew");
        check(&open(&client).await, &model, "behind a gap").await;
        leave().await;
        truncate(&file, 800_000).await;
        model.resize(800_000, 0);
        check(&open(&client).await, &model, "made longer").await;
        leave().await;
        // Into the next segment.
        write(&file, &mut model, MIB + 10, b"far").await;
        sync(&file).await;
        check(&open(&client).await, &model, "in the next segment").await;
        survives_any_two(&client, &model).await;
        // Cut and made longer again there is nothing of what it had.
        for to in [MIB, 900_000, 400_001] {
            truncate(&file, to).await;
            model.truncate(to);
            check(&open(&client).await, &model, "cut").await;
            truncate(&file, MIB + 5).await;
            model.resize(MIB + 5, 0);
            check(&open(&client).await, &model, "cut and made longer").await;
        }
        survives_any_two(&client, &model).await;
    });
}

/// Writers with clients of their own fill slots of their own in turn, far behind each other's ends and at them.
#[test]
fn writers_that_make_a_file_longer_at_a_time_lose_nothing_of_each_other() {
    const WRITERS: usize = 3;
    const SLOT: usize = 3000;
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let address = bed.cluster.address().to_owned();
    block_on(async {
        create(&patient(&bed).await).await.close().await.unwrap();
    });
    let slots = 1_500_000 / SLOT / WRITERS;
    let threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let address = address.clone();
            std::thread::spawn(move || {
                block_on(async {
                    let options = Options { patience: Duration::from_secs(60), ..Options::default() };
                    let client = Arc::new(Client::connect(&address, options).await.unwrap());
                    let file = client.open_file("data", "object").await.unwrap();
                    for slot in 0..slots {
                        let at = (slot * WRITERS + writer) * SLOT;
                        let new = bytes(SLOT, at as u64);
                        settled(async || file.write_at(at as u64, &new).await).await;
                        if slot % 5 == writer {
                            sync(&file).await;
                            assert!(file.size() >= (at + SLOT) as u64);
                        }
                    }
                    sync(&file).await;
                    println!("writer {writer}: {:?}", file.counts());
                });
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let model: Vec<u8> = (0..slots * WRITERS).flat_map(|slot| bytes(SLOT, (slot * SLOT) as u64)).collect();
    block_on(async {
        let client = patient(&bed).await;
        check(&open(&client).await, &model, "all of them").await;
        survives_any_two(&client, &model).await;
    });
}

#[test]
fn a_handle_goes_on_with_a_file_that_others_cut_or_made_longer() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let mut model = bytes(3 * MIB + 5000, seed());
    block_on(async {
        let (client, other) = (patient(&bed).await, patient(&bed).await);
        put(&client, &model).await;
        let file = open(&client).await;
        // Cut under it: its bytes make it longer again, and nothing that it acknowledges is lost.
        for (to, offset) in [(2 * MIB + 100, 2 * MIB + 700), (MIB, 3 * MIB), (0, 1000), (5, 500)] {
            let cut = settled(async || other.truncate("data", "object", to as u64).await).await;
            assert_eq!((cut.size_before, cut.size), (model.len() as u64, to as u64));
            model.truncate(to);
            write(&file, &mut model, offset, &bytes(400, offset as u64)).await;
            sync(&file).await;
            check(&file, &model, "its own").await;
            check(&open(&other).await, &model, "as others see it").await;
        }
        // Made longer by another, beside what this one adds.
        let second = open(&other).await;
        let end = model.len();
        write(&second, &mut model, end, &[7; 3000]).await;
        sync(&second).await;
        write(&file, &mut model, end + 3000, &[8; 3000]).await;
        sync(&file).await;
        check(&file, &model, "behind what another added").await;
        // What is read behind the new end is not there.
        let cut = file.size() - 4000;
        truncate(&second, cut as usize).await;
        model.truncate(cut as usize);
        eventually("a read finds the new end", WITHIN, async || {
            file.read_at(cut - 10, 4000).await.unwrap();
            file.size() == cut
        })
        .await;
        check(&file, &model, "cut by another").await;
        // Removed, it is gone for who has it open, too.
        other.remove("data", "object").await.unwrap();
        append(&file, b"late").await;
        let gone = file.sync().await.unwrap_err();
        assert!(gone.to_string().contains("no object"), "{gone}");
    });
}

/// A source that says when it is first read, and waits then.
struct Held {
    begun: Option<mpsc::Sender<()>>,
    go_on: mpsc::Receiver<()>,
    bytes: Cursor<Vec<u8>>,
}

impl Read for Held {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Some(begun) = self.begun.take() {
            begun.send(()).unwrap();
            self.go_on.recv().unwrap();
        }
        self.bytes.read(buffer)
    }
}

/// Its version is older than those of the changes that were made while it was stored.
#[test]
fn a_handle_goes_on_with_an_object_whose_put_began_before() {
    // More servers than must be: the put is made once.
    let bed = Bed::with_bucket(&shape(8, 1), "parity:segment=1MiB");
    block_on(async {
        let (client, other) = (patient(&bed).await, patient(&bed).await);
        let file = create(&client).await;
        append(&file, &[1; 10_000]).await;
        sync(&file).await;
        let (say, begun) = mpsc::channel();
        let (release, go_on) = mpsc::channel();
        let mut model = bytes(50_000, 9);
        let source = Held { begun: Some(say), go_on, bytes: Cursor::new(model.clone()) };
        let putting = tokio::spawn(async move { other.put("data", "object", source, Some(50_000)).await });
        eventually("the put has begun", WITHIN, async || begun.try_recv().is_ok()).await;
        for _ in 0..3 {
            append(&file, &[2; 10_000]).await;
            sync(&file).await;
        }
        let grown = client.stat("data", "object").await.unwrap().object.version;
        release.send(()).unwrap();
        let put = putting.await.unwrap().unwrap();
        assert!(put.version < grown, "else this shows nothing");
        write(&file, &mut model, 60_000, &[3; 100]).await;
        sync(&file).await;
        check(&file, &model, "what was put").await;
        write(&file, &mut model, 60_100, &[4; 100]).await;
        sync(&file).await;
        // Once more where a server is held up, and what it does not take is stored anew.
        eventually("what was put is known", WITHIN, async || {
            let lookups = file.counts().lookups;
            write(&file, &mut model, 7, &[5; 100]).await;
            sync(&file).await;
            file.counts().lookups == lookups
        })
        .await;
        check(&open(&patient(&bed).await).await, &model, "as others see it").await;
    });
}

#[test]
fn tasks_append_through_one_handle() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    block_on(tokio::task::LocalSet::new().run_until(async {
        let client = patient(&bed).await;
        let options = FileOptions { cache_bytes: 64 << 10, ..CREATE };
        let file = Arc::new(client.open_file_with("data", "object", &options).await.unwrap());
        let mut writing = tokio::task::JoinSet::new();
        for task in 0..6u64 {
            let file = Arc::clone(&file);
            writing.spawn_local(async move {
                let mut places = Vec::new();
                for step in 0..40 {
                    let record = bytes(1000 + step as usize * 100, task << 8 | step);
                    places.push((append(&file, &record).await, record));
                    if step % 10 == task {
                        sync(&file).await;
                    }
                }
                places
            });
        }
        let mut model = Vec::new();
        while let Some(places) = writing.join_next().await {
            for (at, record) in places.unwrap() {
                let end = at as usize + record.len();
                model.resize(model.len().max(end), 0);
                assert!(model[at as usize..end].iter().all(|byte| *byte == 0), "two at {at}");
                model[at as usize..end].copy_from_slice(&record);
            }
        }
        sync(&file).await;
        println!("{} bytes, {:?}", model.len(), file.counts());
        assert!(file.counts().evictions > 0);
        check(&file, &model, "the handle").await;
        check(&open(&patient(&bed).await).await, &model, "as others see it").await;
    }));
}

#[test]
fn what_a_file_cannot_be_is_said() {
    let small = Shape { capacity_bytes: Some(32 << 20), ..shape(6, 1) };
    let bed = Bed::with_bucket(&small, "parity:segment=1MiB");
    bed.ok(&["bucket", "create", "fixed", "--policy", "rateless:redundancy=0.5,tolerate=1"]);
    block_on(async {
        let client = patient(&bed).await;
        let file = create(&client).await;
        append(&file, b"some bytes").await;
        for size in [1 << 50, u64::MAX] {
            let refused = file.truncate(size).await.unwrap_err();
            assert!(matches!(refused, FileError::Write(AmendError::TooLong(_))), "{refused}");
            let refused = client.truncate("data", "object", size).await.unwrap_err();
            assert!(matches!(refused, FileError::Write(AmendError::TooLong(_))), "{refused}");
        }
        assert_eq!(file.size(), 10);
        close(file).await;
        // More than the devices have: a hole takes nothing, and what is written into it is stored as far as there is room.
        client.truncate("data", "object", 1 << 30).await.unwrap();
        let file = open(&client).await;
        let full = async {
            file.write_at(MIB as u64, &bytes(160 * MIB, seed())).await?;
            file.sync().await
        };
        let full = full.await.unwrap_err();
        println!("{full}");
        assert!(matches!(full, FileError::Write(AmendError::Plan(_) | AmendError::Write(_))), "{full:?}");
        drop(file);
        assert!(open(&client).await.read_at(0, 11).await.unwrap() == b"some bytes\0"[..]);
        // Between two segments, so that nothing is stored for it; what that frees is soon there.
        client.truncate("data", "object", MIB as u64).await.unwrap();
        let cut = eventually("there is room again", WITHIN, async || {
            client.truncate("data", "object", 10).await.is_ok()
        });
        cut.await;
        check(&open(&client).await, b"some bytes", "after what did not fit").await;
        let reading = FileOptions { write: false, ..CREATE };
        let refused = client.open_file_with("data", "nothing", &reading).await.unwrap_err();
        assert!(matches!(refused, FileError::ReadOnly { .. }), "{refused}");
        let reading = FileOptions { write: false, create: false, ..CREATE };
        let file = client.open_file_with("data", "object", &reading).await.unwrap();
        for refused in [file.truncate(0).await, file.append(b"x").await.map(|_| ())] {
            assert!(matches!(refused, Err(FileError::ReadOnly { .. })), "{refused:?}");
        }
        for refused in [
            client.open_file_with("fixed", "nothing", &CREATE).await.map(|_| ()),
            client.truncate("fixed", "nothing", 5).await.map(|_| ()),
        ] {
            let Err(FileError::Policy { bucket, .. }) = refused else { panic!("{refused:?}") };
            assert_eq!(bucket, "fixed");
        }
        let none = client.truncate("data", "nothing", 5).await.unwrap_err();
        assert!(none.to_string().contains("no object"), "{none}");
    });
}

/// A cut that was committed is known: nothing is asked after it whose failure would say that it had not been made.
#[test]
fn a_cut_is_done_when_it_is_committed() {
    once_of("a cut asks once what there is", cuts);
}

/// Whether each cut asked once what there is: again where the answer is late.
fn cuts() -> bool {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let meta = bed.cluster.admin_ports().next().unwrap().1.to_owned();
    let lookups = || Metrics::scrape(&meta).sum("steadfast_meta_requests_total", &[("kind", "lookup")]);
    let mut model = bytes(3 * MIB + 5000, seed());
    let mut asked_once = true;
    block_on(async {
        let client = patient(&bed).await;
        put(&client, &model).await;
        let file = open(&client).await;
        for size in [2 * MIB + 70_000, MIB, 300, 0] {
            model.truncate(size);
            let mut before = lookups();
            let cut = async || {
                before = lookups();
                file.truncate(size as u64).await
            };
            settled(cut).await;
            asked_once &= lookups() - before == 1.0;
            let found = client.stat("data", "object").await.unwrap();
            assert_eq!((found.object.size, file.size()), (size as u64, size as u64));
            check(&file, &model, "by what the handle knows").await;
            // In place, or behind it, by what is known of the layout.
            model.extend(bytes(100, size as u64));
            append(&file, &model[size..]).await;
            sync(&file).await;
            check(&open(&client).await, &model, "as others see it").await;
        }
    });
    asked_once
}

#[test]
fn commands_make_files_longer_and_shorter() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    bed.ok(&["bucket", "create", "fixed", "--policy", "rateless:redundancy=0.5,tolerate=1"]);
    let patch = bed.file("patch", 5000, 3);
    let path = patch.to_str().unwrap();
    bed.fails(3, &["write", "data/object", "--offset", "0", path]);
    let json = |said: String| serde_json::from_str::<serde_json::Value>(&said).unwrap();
    let made = json(bed.settled(&["write", "data/object", "--offset", "100", "--create", path, "--json"]));
    assert_eq!((made["size_before"].as_u64(), made["size"].as_u64()), (Some(0), Some(5100)));
    let mut model = [vec![0; 100], bytes(5000, 3)].concat();
    bed.get_equals("object", &model);
    let large = bed.file("large", 2 * MIB, 4);
    let said = bed.settled(&["write", "data/object", "--offset", "5100", large.to_str().unwrap()]);
    assert!(said.contains("2102252 bytes now, 5100 before"), "{said}");
    model.extend(bytes(2 * MIB, 4));
    bed.get_equals("object", &model);
    // Again, now that it is there: what is there is written over.
    let again = json(bed.settled(&["write", "data/object", "--offset", "0", "--create", path, "--json"]));
    assert_eq!(again["length"].as_u64(), Some(5000));
    model[..5000].copy_from_slice(&bytes(5000, 3));
    bed.get_equals("object", &model);
    for (size, bytes) in [("1.5MiB", 3 * MIB / 2), ("64k", 64_000), ("70000", 70_000), ("0", 0), ("7", 7)] {
        let cut = json(bed.settled(&["truncate", "data/object", size, "--json"]));
        assert_eq!(cut["size_before"].as_u64(), Some(model.len() as u64));
        assert_eq!(cut["size"].as_u64(), Some(bytes as u64));
        model.resize(bytes, 0);
        bed.get_equals("object", &model);
    }
    assert!(bed.ok(&["truncate", "data/object", "7"]).contains("7 bytes now, 7 before"));
    bed.settled_from(&["write", "data/piped", "--offset", "0", "--create", "-"], b"from standard input");
    bed.get_equals("piped", b"from standard input");
    let said = bed.fails(2, &["truncate", "data/object", "-1"]);
    assert!(said.contains("`-1` is not a size"), "{said}");
    let said = bed.fails(2, &["write", "data/object", "--offset", "-1", path]);
    assert!(said.contains("`-1` is no place in an object") && !said.contains("-- -1"), "{said}");
    bed.fails(2, &["truncate", "data/object", "1X"]);
    bed.fails(2, &["truncate", "data/object", "1000TB"]);
    bed.fails(3, &["truncate", "data/nothing", "5"]);
    // What is refused makes nothing.
    let far = ["write", "data/refused", "--offset", "1000000000000000000", "--create", path];
    assert!(bed.fails(2, &far).contains("can have"));
    bed.fails(3, &["stat", "data/refused"]);
    bed.fails(3, &["truncate", "nowhere/object", "5"]);
    let wish = ["write", "data/object", "--offset", "5", path, "--qos", "bandwidth=1MB"];
    assert!(bed.fails(2, &wish).contains("a wish is granted where"));
    // Objects of other policies do not grow, and what to choose is said.
    bed.settled(&["put", path, "fixed/object"]);
    for command in [
        &["write", "fixed/object", "--offset", "1", path][..],
        &["write", "fixed/new", "--offset", "0", "--create", path],
        &["truncate", "fixed/object", "5"],
    ] {
        let refused = bed.fails(2, command);
        assert!(refused.contains("choose policy `parity`") && refused.contains("put --range"), "{refused}");
        assert!(!refused.contains("handle"), "{refused}");
    }
}

#[test]
fn a_file_for_which_there_is_no_room_is_not_made() {
    let small = Shape { capacity_bytes: Some(32 << 20), ..shape(6, 1) };
    let bed = Bed::with_bucket(&small, "parity:code=rs(4,2),segment=64MiB");
    let patch = bed.file("patch", 5000, 3);
    // Chunks of half of it.
    bed.fails(6, &["write", "data/refused", "--offset", "67000000", "--create", patch.to_str().unwrap()]);
    bed.fails(3, &["stat", "data/refused"]);
}

/// A writer is killed while it makes a file longer: what was there is there, and what was added is a beginning of what it wrote.
#[test]
fn a_writer_that_dies_has_added_a_beginning_or_nothing() {
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let mut model = bytes(300_000, seed);
    block_on(async { put(&*patient(&bed).await, &model).await });
    let new = bytes(6 * MIB, seed ^ 1);
    let large = bed.file("large", new.len(), seed ^ 1);
    let mut lengths = Vec::new();
    for _ in 0..6 {
        let offset = model.len().to_string();
        let mut child = bed
            .command(&["write", "data/object", "--offset", &offset, large.to_str().unwrap()])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(10 + random.next_u64() % 100));
        child.kill().unwrap();
        child.wait().unwrap();
        block_on(async {
            let client = patient(&bed).await;
            let file = open(&client).await;
            let size = file.size() as usize;
            assert!(size >= model.len() && size <= model.len() + new.len());
            lengths.push(size - model.len());
            model.extend_from_slice(&new[..size - model.len()]);
            check(&file, &model, "after a kill").await;
            // It goes on from there.
            write(&file, &mut model, size, &[9; 777]).await;
            truncate(&file, model.len() - 77).await;
            model.truncate(model.len() - 77);
            close(file).await;
            check(&open(&client).await, &model, "after it went on").await;
        });
    }
    println!("{lengths:?} bytes added by writers that were killed");
    block_on(async { survives_any_two(&*patient(&bed).await, &model).await });
}
