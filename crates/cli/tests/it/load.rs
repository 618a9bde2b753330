//! Keys that are replaced and removed while they are read, by several clients at once.

use crate::common::{Bed, WITHIN, block_on, bytes, eventually, put, seed, shape};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    cell::Cell,
    io::{self, Write},
    rc::Rc,
    sync::{Arc, Mutex},
    time::Instant,
};
use steadfast_client::{Client, ClientError, GetError};
use steadfast_protocol::{message::MetaFault, read::ReadError};
use tokio::task::LocalSet;

const KEYS: u64 = 3;
const READERS: u64 = 4;
/// So many at least, and more until the readers have seen enough; never as many as this.
const CHANGES: u64 = 60;
const CHANGES_MAX: u64 = 10_000;

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

/// What readers saw: versions that came whole, that there was none, and gets that gave up because the key changed under them again
/// and again, or everybody was held up.
#[derive(Default)]
struct Seen {
    whole: Cell<u64>,
    absent: Cell<u64>,
    overtaken: Cell<u64>,
}

/// A version says in its first bytes what the rest must be; small ones are copies, others coded.
fn version(number: u64) -> Vec<u8> {
    let length = [50_000, 1 << 20, 3 << 20][number as usize % 3] + number as usize;
    let mut version = bytes(length, number);
    version[..8].copy_from_slice(&number.to_le_bytes());
    version
}

#[test]
fn readers_see_whole_versions_or_none_and_space_comes_back() {
    let seed = seed();
    let bed = Bed::with_bucket(&shape(6, 1), "rateless:redundancy=0.5,tolerate=2");
    block_on(LocalSet::new().run_until(async {
        let writer = bed.client().await;
        let empty = bed.used_bytes(&writer).await;
        let (over, seen) = (Rc::new(Cell::new(false)), Rc::new(Seen::default()));
        let mut readers = Vec::new();
        for number in 0..READERS {
            let client = bed.client().await;
            readers.push(tokio::task::spawn_local(read(client, number, seed, over.clone(), seen.clone())));
        }
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let deadline = Instant::now() + WITHIN;
        for number in 0..CHANGES_MAX {
            let enough = seen.whole.get() > 20 && seen.absent.get() > 0;
            if number >= CHANGES && (enough || Instant::now() > deadline) {
                break;
            }
            let key = format!("key-{}", random.next_u64() % KEYS);
            if random.next_u64().is_multiple_of(3) {
                match writer.remove("data", &key).await {
                    Ok(()) | Err(ClientError::Refused(MetaFault::NoObject { .. })) => {}
                    Err(error) => panic!("{key} cannot be removed: {error}"),
                }
            } else {
                put(&writer, &key, &version(number)).await;
            }
        }
        over.set(true);
        for reader in readers {
            reader.await.unwrap();
        }
        let (whole, absent, overtaken) = (seen.whole.get(), seen.absent.get(), seen.overtaken.get());
        println!("{whole} whole, {absent} absent, {overtaken} overtaken");
        // Hardly any is overtaken where readers are not held up.
        assert!(whole > 20 && absent > 0 && overtaken <= whole, "{whole}, {absent}, {overtaken}");
        for key in 0..KEYS {
            // Some are gone already.
            let _ = writer.remove("data", &format!("key-{key}")).await;
        }
        eventually("all space is free again", WITHIN, async || bed.used_bytes(&writer).await <= empty).await;
    }));
}

/// Reads until it is over.
async fn read(client: Client, number: u64, seed: u64, over: Rc<Cell<bool>>, seen: Rc<Seen>) {
    let mut random = Pcg64Mcg::seed_from_u64(seed ^ (number + 1));
    let count = |of: &Cell<u64>| of.set(of.get() + 1);
    while !over.get() {
        let key = format!("key-{}", random.next_u64() % KEYS);
        let sink = Sink::default();
        match client.get("data", &key, None, sink.clone()).await {
            Ok(report) => {
                let got = sink.0.lock().unwrap();
                let number = u64::from_le_bytes(got[..8].try_into().unwrap());
                assert!(number < CHANGES_MAX && *got == version(number), "{key} is no version as a whole");
                assert_eq!(report.size, got.len() as u64);
                count(&seen.whole);
            }
            Err(GetError::Metadata(ClientError::Refused(MetaFault::NoObject { .. }))) => count(&seen.absent),
            Err(GetError::Changed { .. } | GetError::Read(ReadError::Stalled { .. })) => {
                count(&seen.overtaken);
            }
            Err(error) => panic!("{key}: {error}"),
        }
    }
}
