//! File handles on real processes: reads and writes against a model, what others see and when, segments that are stored anew
//! under a handle, and what is refused. `steadfast write` beside them.

use crate::common::{self, Bed, WITHIN, block_on, bytes, eventually, once_of, seed, settled, shape};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{io::Cursor, sync::Arc, time::Duration};
use steadfast_client::{AmendError, Client, File, FileError, FileOptions, Options};
use steadfast_protocol::layout::PARITY_GRANULE_BYTES;

const MIB: usize = 1 << 20;
/// What changes at once, or not at all.
const GRANULE: usize = PARITY_GRANULE_BYTES as usize;

pub(crate) async fn patient(bed: &Bed) -> Arc<Client> {
    let options = Options { patience: Duration::from_secs(60), ..Options::default() };
    Arc::new(Client::connect(bed.cluster.address(), options).await.unwrap())
}

pub(crate) async fn put(client: &Client, model: &[u8]) {
    common::put(client, "object", model).await;
}

/// A handle that reads what is stored and keeps none of it, so that what is checked is what was stored.
pub(crate) async fn open(client: &Arc<Client>) -> File {
    let options = FileOptions { fresh_for: Duration::ZERO, ..FileOptions::default() };
    client.open_file_with("data", "object", &options).await.unwrap()
}

pub(crate) async fn write(file: &File, model: &mut [u8], offset: usize, new: &[u8]) {
    settled(async || file.write_at(offset as u64, new).await).await;
    model[offset..offset + new.len()].copy_from_slice(new);
}

/// However often that takes: what could not be stored is kept.
pub(crate) async fn sync(file: &File) {
    settled(async || file.sync().await).await;
}

pub(crate) async fn close(file: File) {
    sync(&file).await;
    file.close().await.unwrap();
}

pub(crate) async fn check(file: &File, model: &[u8], what: &str) {
    assert_eq!(file.size(), model.len() as u64);
    assert!(file.read_at(0, model.len()).await.unwrap() == model, "{what}");
}

#[test]
fn reads_and_writes_are_those_of_a_plain_array_and_others_see_them_after_a_close() {
    let seed = seed();
    // What a server that is held up does not take in place is stored anew.
    once_of("nearly all is stored in place", || reads_and_writes(seed));
}

/// Whether nearly all was stored in place.
fn reads_and_writes(seed: u64) -> bool {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut below = move |most: usize| (random.next_u64() % most as u64) as usize;
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=2MiB");
    let mut model = bytes(7 * MIB + 12_345, seed);
    block_on(async {
        let client = patient(&bed).await;
        put(&client, &model).await;
        let other = patient(&bed).await;
        let before = client.stat("data", "object").await.unwrap();
        let (mut all_written, mut in_place, mut anew, mut lookups) = (0, 0, 0, 0);
        for round in 0..3 {
            // Some of the rounds have to make room.
            let options =
                FileOptions { cache_bytes: [64 << 10, 128 << 10, 64 << 20][round], ..Default::default() };
            // Some of them read from memory what they have read before.
            let fresh_for = if round == 1 { options.fresh_for } else { Duration::ZERO };
            let options = FileOptions { fresh_for, ..options };
            let file = client.open_file_with("data", "object", &options).await.unwrap();
            let (mut written, mut reads) = (0, 0);
            for step in 0..150 {
                let length = 1 + below(if step % 10 == 0 { 100_000 } else { 9000 });
                let offset = below(model.len() - length);
                if below(3) > 0 {
                    let new = bytes(length, step ^ seed << 8);
                    write(&file, &mut model, offset, &new).await;
                    written += length as u64;
                } else {
                    let read = file.read_at(offset as u64, length).await.unwrap();
                    assert!(read == model[offset..offset + length], "{length} at {offset}");
                    reads += 1;
                }
                if step % 40 == 39 {
                    sync(&file).await;
                    let whole = open(&other).await.read_at(0, model.len()).await.unwrap();
                    assert!(whole == model, "another client after a sync");
                }
            }
            assert!(reads > 10);
            check(&file, &model, "own writes, synced and not").await;
            let last = below(model.len() - 5000);
            write(&file, &mut model, last, &[round as u8; 5000]).await;
            sync(&file).await;
            let counts = file.counts();
            println!("{written} bytes written, {counts:?}");
            written += 5000;
            assert!(counts.in_place_bytes <= written);
            assert_eq!(counts.evictions == 0, round == 2);
            sync(&file).await;
            assert_eq!(file.counts(), counts, "nothing is stored twice");
            write(&file, &mut model, 777, b"the last words").await;
            sync(&file).await;
            let counts = file.counts();
            all_written += written;
            in_place += counts.in_place_bytes;
            anew += counts.segments_anew;
            lookups += counts.lookups;
            close(file).await;
            check(&open(&other).await, &model, "another client after a close").await;
            check(&open(&client).await, &model, "opened again").await;
        }
        let after = client.stat("data", "object").await.unwrap();
        // In place is no new version.
        let as_counted = (after.object.version == before.object.version) == (anew == 0);
        // At the end and behind it.
        let file = open(&client).await;
        let size = model.len() as u64;
        assert_eq!(file.read_at(size - 10, 100).await.unwrap(), model[model.len() - 10..]);
        assert!(file.read_at(size, 1).await.unwrap().is_empty());
        assert!(file.read_at(u64::MAX, 1).await.unwrap().is_empty());
        for (offset, length) in [(1 << 50, 1), (u64::MAX - 99, 100), (u64::MAX, 100)] {
            let refused = file.write_at(offset, &vec![1; length]).await.unwrap_err();
            assert!(matches!(refused, FileError::Write(AmendError::TooLong(_))), "{refused}");
        }
        file.write_at(size + 1000, &[]).await.unwrap();
        assert_eq!(file.size(), size, "no bytes make nothing longer");
        // What was not synced goes with the handle.
        file.write_at(0, &[9; 100]).await.unwrap();
        drop(file);
        check(&open(&client).await, &model, "a dropped handle").await;
        // Some of the bytes were written over before they were stored. Where none are stored anew the metadata server is not asked.
        as_counted && in_place * 10 >= all_written * 9 && anew <= 6 && lookups <= anew + 2
    })
}

#[test]
fn tasks_share_a_handle() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let mut model = bytes(4 * MIB, seed());
    block_on(tokio::task::LocalSet::new().run_until(async {
        let client = patient(&bed).await;
        put(&client, &model).await;
        let file = Arc::new(open(&client).await);
        let part = MIB / 2;
        let mut writing = tokio::task::JoinSet::new();
        for writer in 0..8usize {
            let file = Arc::clone(&file);
            writing.spawn_local(async move {
                let mut random = Pcg64Mcg::seed_from_u64(writer as u64);
                let mut mine = vec![None; part];
                for step in 0..40u8 {
                    let length = 1 + random.next_u64() as usize % 6000;
                    let at = random.next_u64() as usize % (part - length);
                    let byte = step ^ (writer as u8) << 5;
                    file.write_at((writer * part + at) as u64, &vec![byte; length]).await.unwrap();
                    mine[at..at + length].fill(Some(byte));
                    if step % 4 == 3 {
                        sync(&file).await;
                    }
                    let read = file.read_at((writer * part + at) as u64, length).await.unwrap();
                    assert!(read.iter().all(|read| *read == byte));
                }
                (writer, mine)
            });
        }
        while let Some(written) = writing.join_next().await {
            let (writer, mine) = written.unwrap();
            for (place, byte) in model[writer * part..].iter_mut().zip(mine) {
                *place = byte.unwrap_or(*place);
            }
        }
        sync(&file).await;
        check(&open(&patient(&bed).await).await, &model, "all that the tasks wrote").await;
    }));
}

#[test]
fn segments_that_are_stored_anew_under_a_handle_are_found() {
    once_of("no more is stored anew than must be", segments_anew);
}

/// Whether no more was stored anew than was meant to be: a server that is held up has more of it made so.
fn segments_anew() -> bool {
    let mut bed = Bed::with_bucket(&shape(8, 1), "parity:segment=1MiB");
    let mut model = bytes(5 * MIB + 1000, seed());
    let as_meant = block_on(async {
        let client = patient(&bed).await;
        put(&client, &model).await;
        let (file, other) = (open(&client).await, patient(&bed).await);
        write(&file, &mut model, 10, &[1; 100]).await;
        sync(&file).await;
        // Another client stores the first segment anew.
        model[2000..MIB].fill(7);
        let large = async || other.update("data", "object", 2000, Cursor::new(vec![7; MIB - 2000])).await;
        let large = settled(large).await;
        assert_eq!(large.in_place_bytes, 0);
        write(&file, &mut model, 500, &[2; 100]).await;
        write(&file, &mut model, 3 * MIB + 500, &[2; 100]).await;
        sync(&file).await;
        let counts = file.counts();
        check(&file, &model, "by the layout found anew").await;
        if (counts.in_place_bytes, counts.segments_anew, counts.lookups) != (300, 0, 1) {
            return false;
        }
        let before = file.counts().lookups;
        write(&file, &mut model, 600, &[3; 100]).await;
        sync(&file).await;
        // It is known now.
        let known = file.counts().lookups == before;
        // Much of a segment is stored anew through the handle itself, beside ranges that are not.
        write(&file, &mut model, MIB + 9, &vec![4; MIB / 2]).await;
        write(&file, &mut model, MIB / 2 * 3 + 9000, &[5; 100]).await;
        write(&file, &mut model, 2 * MIB, &vec![6; MIB]).await;
        write(&file, &mut model, 4 * MIB + 1, &[5; 100]).await;
        sync(&file).await;
        // One more where a server is held up.
        let two = (2..=3).contains(&file.counts().segments_anew);
        check(&file, &model, "own segments anew").await;
        check(&open(&other).await, &model, "as others see them").await;
        // An object that was put anew is what the handle goes on with.
        model = bytes(model.len(), 99);
        put(&other, &model).await;
        // Until the chunks of what it replaced are gone, the handle may change those.
        other.tidy().await;
        write(&file, &mut model, 4 * MIB, &[8; 100]).await;
        sync(&file).await;
        // A server that was held up for longer has changed what nobody sees any more.
        let another = file.read_at(0, model.len()).await.unwrap() == model;
        known && two && another
    });
    if !as_meant {
        return false;
    }
    bed.cluster.kill_node(0).unwrap();
    bed.cluster.kill_node(5).unwrap();
    block_on(async {
        let client = patient(&bed).await;
        let file = open(&client).await;
        for segment in 0..5 {
            write(&file, &mut model, segment * MIB + 70_000, &[segment as u8; 3000]).await;
        }
        check(&file, &model, "with two servers down").await;
        sync(&file).await;
        let counts = file.counts();
        println!("{counts:?}");
        assert!(counts.segments_anew > 0, "some of six lay on a dead one");
        for segment in 0..5 {
            write(&file, &mut model, segment * MIB + 90_000, &[segment as u8; 3000]).await;
        }
        sync(&file).await;
        // But for one whose server is held up.
        let in_place = file.counts().segments_anew <= counts.segments_anew + 1;
        check(&file, &model, "synced").await;
        close(file).await;
        in_place
    })
}

#[test]
fn what_cannot_be_stored_is_kept_for_the_next_sync() {
    let mut bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let mut model = bytes(2 * MIB, seed());
    block_on(async {
        let options = Options { patience: Duration::from_secs(4), ..Options::default() };
        let client = Arc::new(Client::connect(bed.cluster.address(), options).await.unwrap());
        put(&client, &model).await;
        let file = open(&client).await;
        write(&file, &mut model, 1000, &[1; 100]).await;
        write(&file, &mut model, MIB + 1000, &[2; 100]).await;
        (0..3).for_each(|node| bed.cluster.kill_node(node).unwrap());
        let failed = file.sync().await.unwrap_err();
        println!("{failed}");
        assert_eq!(file.read_at(1000, 100).await.unwrap()[..], [1; 100], "it is still here");
        (0..3).for_each(|node| bed.cluster.restart_node(node).unwrap());
        let mut tries = 0;
        while let Err(error) = file.sync().await {
            println!("{error}");
            tries += 1;
            assert!(tries < 100, "{error}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        check(&file, &model, "synced in the end").await;
        check(&open(&patient(&bed).await).await, &model, "as others see it").await;
    });
}

/// Of a file that another client changes meanwhile.
#[test]
fn what_was_read_is_read_from_memory_for_a_while_and_is_never_older_than_own_writes() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let mut model = bytes(3 * MIB, seed());
    block_on(async {
        let (client, other) = (patient(&bed).await, patient(&bed).await);
        put(&client, &model).await;
        let opened = async |fresh_for| {
            let options = FileOptions { fresh_for, ..FileOptions::default() };
            client.open_file_with("data", "object", &options).await.unwrap()
        };
        let (keeps, short, never) = (
            opened(Duration::MAX).await,
            opened(Duration::from_millis(50)).await,
            opened(Duration::ZERO).await,
        );
        let near = MIB - 2000..MIB + 3000;
        let read = async |file: &File| file.read_at(near.start as u64, near.len()).await.unwrap();
        for file in [&keeps, &short, &never] {
            assert!(read(file).await == model[near.clone()]);
        }
        assert!(read(&keeps).await == model[near.clone()] && read(&never).await == model[near.clone()]);
        assert_eq!(keeps.read_at(MIB as u64, 10).await.unwrap(), model[MIB..MIB + 10]);
        assert_eq!((keeps.counts().reads_kept, never.counts().reads_kept), (2, 0));
        // Of a page no more than its head.
        let page = MIB - 5 * GRANULE..MIB - 4 * GRANULE;
        assert_eq!(keeps.read_at(page.start as u64, 64).await.unwrap(), model[page.start..page.start + 64]);
        let before = model.clone();
        let writes = open(&other).await;
        write(&writes, &mut model, MIB - 500, &[9; 1000]).await;
        write(&writes, &mut model, page.start, &[9; GRANULE]).await;
        close(writes).await;
        assert!(read(&keeps).await == before[near.clone()], "it was open before");
        let whole = keeps.read_at(page.start as u64, page.len()).await.unwrap();
        assert!(whole == before[page], "not its head as it was and the rest as it is");
        assert!(read(&open(&client).await).await == model[near.clone()], "it is opened now");
        // Where it was stored anew the old chunks may be there for a while.
        for (file, why) in [(&never, "it keeps nothing"), (&short, "it is too old")] {
            eventually(why, WITHIN, async || read(file).await == model[near.clone()]).await;
        }
        // Its own writes it sees at once, before they are stored and after that.
        let (mut own, lookups) = (before, keeps.counts().lookups);
        write(&keeps, &mut own, MIB + 100, &[7; 50]).await;
        assert!(read(&keeps).await == own[near.clone()]);
        sync(&keeps).await;
        let now = read(&keeps).await;
        model[MIB + 100..MIB + 150].fill(7);
        // What others have stored of the granule shows beside them then, and what it has read of the one before is kept: unless it was
        // looked up anew, and that forgotten.
        let forgot = keeps.counts().lookups > lookups;
        let first = if forgot { &model } else { &own };
        assert!(now == [&first[near.start..MIB], &model[MIB..near.end]].concat(), "forgot: {forgot}");
        let far = 2 * MIB as u64;
        write(&keeps, &mut model, 2 * MIB, &[5; 100]).await;
        sync(&keeps).await;
        assert_eq!(keeps.read_at(far, 100).await.unwrap()[..], [5; 100]);
        settled(async || keeps.truncate(far + 10).await).await;
        settled(async || keeps.truncate(far + 50).await).await;
        assert_eq!(keeps.read_at(far, 100).await.unwrap()[..], [[5; 10].as_slice(), &[0; 40]].concat());
    });
}

#[test]
fn objects_of_other_policies_are_read_by_handle_and_not_written() {
    let bed = Bed::with_bucket(&shape(4, 1), "rateless:redundancy=0.5,tolerate=1");
    let model = bytes(3 * MIB, seed());
    block_on(async {
        let client = patient(&bed).await;
        put(&client, &model).await;
        let refused = client.open_file("data", "object").await.unwrap_err();
        assert!(matches!(refused, FileError::Policy { .. }));
        let said = refused.to_string();
        for word in ["`data`", "`rateless:", "policy `parity`", "--range"] {
            assert!(said.contains(word), "{said}");
        }
        let reading = FileOptions { write: false, ..FileOptions::default() };
        let file = client.open_file_with("data", "object", &reading).await.unwrap();
        check(&file, &model, "opened for reading").await;
        assert_eq!(file.read_at(1_234_567, 1000).await.unwrap(), model[1_234_567..1_235_567]);
        let refused = file.write_at(0, b"x").await.unwrap_err();
        assert!(matches!(refused, FileError::ReadOnly { .. }), "{refused}");
        close(file).await;
        let none = client.open_file("data", "nothing").await.unwrap_err();
        assert!(matches!(none, FileError::Metadata(_)), "{none}");
    });
}

#[test]
fn the_command_writes_over_bytes_that_are_there() {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=1MiB");
    let mut model = bytes(2 * MIB, seed());
    bed.put(&bed.file("whole", model.len(), seed()), "object");
    let patch = bed.file("patch", 5000, 3);
    once_of("bytes are changed in place", || {
        let write = ["write", "data/object", "--offset", "70000", patch.to_str().unwrap(), "--json"];
        let said: serde_json::Value = serde_json::from_str(&bed.settled(&write)).unwrap();
        assert_eq!((said["first"].as_u64(), said["length"].as_u64()), (Some(70_000), Some(5000)));
        said["in_place_bytes"].as_u64() == Some(5000)
    });
    model[70_000..75_000].copy_from_slice(&bytes(5000, 3));
    once_of("bytes from standard input are changed in place", || {
        let said = bed.settled_from(&["write", "data/object", "--offset", "0", "-"], b"from standard input");
        said.contains("where they lie")
    });
    model[..19].copy_from_slice(b"from standard input");
    bed.get_equals("object", &model);
    let path = patch.to_str().unwrap();
    let beyond = bed.fails(2, &["put", path, "data/object", "--range", &format!("{}-", 2 * MIB - 4999)]);
    assert!(beyond.contains("Put the whole object") && beyond.contains("`steadfast write`"), "{beyond}");
    bed.fails(2, &["write", "data/object", path]);
    bed.fails(2, &["write", "data/object", "--offset", "-1", path]);
    let far = bed.fails(2, &["write", "data/object", "--offset", &u64::MAX.to_string(), path]);
    assert!(far.contains("more than a file of this bucket can have"), "{far}");
    bed.fails(3, &["write", "data/nothing", "--offset", "0", path]);
    bed.get_equals("object", &model);
}

/// Writers with handles of their own change places of their own in segments that they share, while any two servers are killed and
/// started again. What was synced is there at the end, and what a handle reads is always its own.
#[test]
fn nothing_synced_is_lost_in_a_storm_of_handles_and_kills() {
    const WRITERS: usize = 3;
    const ROUNDS: usize = 4;
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut bed = Bed::with_bucket(&shape(7, 1), "parity:segment=1MiB");
    let original = bytes(WRITERS * MIB, seed);
    block_on(async { put(&*patient(&bed).await, &original).await });
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let address = bed.cluster.address().to_owned();
    let threads: Vec<_> = (0..WRITERS)
        .map(|writer| {
            let (original, stop, address) = (original.clone(), stop.clone(), address.clone());
            let mut random = Pcg64Mcg::seed_from_u64(seed ^ (writer as u64 + 1));
            // Stripes of 10000 bytes, in turn: every writer is in every segment.
            let stripe = move |number: usize| (number * WRITERS + writer) * 10_000;
            std::thread::spawn(move || {
                let mut model = original;
                let (mut syncs, mut failures) = (0, 0);
                let counts = block_on(async {
                    let options = Options { patience: Duration::from_secs(8), ..Options::default() };
                    let client = Arc::new(Client::connect(&address, options).await.unwrap());
                    let file = client.open_file("data", "object").await.unwrap();
                    while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                        for _ in 0..1 + random.next_u64() % 12 {
                            let number = random.next_u64() as usize % (model.len() / 10_000 / WRITERS);
                            let length = 1 + random.next_u64() as usize % 9000;
                            let new = bytes(length, random.next_u64());
                            write(&file, &mut model, stripe(number) + 500, &new).await;
                            let read = file.read_at((stripe(number) + 500) as u64, length).await.unwrap();
                            assert!(read == new, "its own write");
                        }
                        while let Err(error) = file.sync().await {
                            println!("writer {writer}: {error}");
                            failures += 1;
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                        syncs += 1;
                    }
                    file.counts()
                });
                println!("writer {writer}: {syncs} syncs, {failures} failed, {counts:?}");
                let mine = (0..model.len() / 10_000 / WRITERS).map(stripe);
                let mine = mine.map(|at| (at, model[at..at + 10_000].to_vec())).collect::<Vec<_>>();
                (mine, syncs, counts.in_place_bytes)
            })
        })
        .collect();
    for _ in 0..ROUNDS {
        std::thread::sleep(Duration::from_millis(300 + random.next_u64() % 500));
        let first = (random.next_u64() % 7) as usize;
        let second = (first + 1 + (random.next_u64() % 6) as usize) % 7;
        bed.cluster.kill_node(first).unwrap();
        bed.cluster.kill_node(second).unwrap();
        std::thread::sleep(Duration::from_millis(random.next_u64() % 1000));
        bed.restart(first);
        bed.restart(second);
    }
    std::thread::sleep(Duration::from_millis(500));
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let mut model = original;
    let (mut all_syncs, mut in_place) = (0, 0);
    for thread in threads {
        let (stripes, syncs, in_place_bytes) = thread.join().unwrap();
        all_syncs += syncs;
        in_place += in_place_bytes;
        for (at, stripe) in stripes {
            model[at..at + stripe.len()].copy_from_slice(&stripe);
        }
    }
    assert!(all_syncs > 0 && in_place > 0, "{all_syncs} syncs, {in_place} bytes in place");
    block_on(async {
        let file = open(&patient(&bed).await).await;
        check(&file, &model, "what was synced").await;
    });
    bed.cluster.kill_node(1).unwrap();
    bed.cluster.kill_node(4).unwrap();
    block_on(async {
        let file = open(&patient(&bed).await).await;
        check(&file, &model, "without two servers").await;
    });
}
