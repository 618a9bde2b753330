//! Keys that are replaced and removed while they are read, by several clients at once.

use crate::common::{Bed, block_on, bytes, eventually, seed, shape};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{
    cell::Cell,
    io::{self, Cursor, Write},
    rc::Rc,
    sync::{Arc, Mutex},
    time::Duration,
};
use steadfast_client::{Client, ClientError, GetError};
use steadfast_protocol::message::MetaFault;
use tokio::task::LocalSet;

const KEYS: u64 = 3;
const READERS: u64 = 4;
const CHANGES: u64 = 60;

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
        let over = Rc::new(Cell::new(false));
        let mut readers = Vec::new();
        for number in 0..READERS {
            let client = bed.client().await;
            readers.push(tokio::task::spawn_local(read(client, number, seed, over.clone())));
        }
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        for number in 0..CHANGES {
            let key = format!("key-{}", random.next_u64() % KEYS);
            if random.next_u64().is_multiple_of(3) {
                match writer.remove("data", &key).await {
                    Ok(()) | Err(ClientError::Refused(MetaFault::NoObject { .. })) => {}
                    Err(error) => panic!("{key} cannot be removed: {error}"),
                }
            } else {
                let version = version(number);
                let size = Some(version.len() as u64);
                writer.put("data", &key, Cursor::new(version), size).await.unwrap();
            }
        }
        over.set(true);
        let (mut whole, mut absent, mut overtaken) = (0, 0, 0);
        for reader in readers {
            let seen = reader.await.unwrap();
            (whole, absent, overtaken) = (whole + seen.0, absent + seen.1, overtaken + seen.2);
        }
        println!("{whole} whole, {absent} absent, {overtaken} overtaken");
        assert!(whole > 20 && absent > 0 && overtaken * 10 <= whole, "{whole}, {absent}, {overtaken}");
        for key in 0..KEYS {
            // Some are gone already.
            let _ = writer.remove("data", &format!("key-{key}")).await;
        }
        eventually("all space is free again", Duration::from_secs(60), async || {
            bed.used_bytes(&writer).await <= empty
        })
        .await;
    }));
}

/// Reads until it is over: how many versions came whole, how often there was none, and how often a get gave up because
/// the key changed under it again and again.
async fn read(client: Client, number: u64, seed: u64, over: Rc<Cell<bool>>) -> (u64, u64, u64) {
    let mut random = Pcg64Mcg::seed_from_u64(seed ^ (number + 1));
    let (mut whole, mut absent, mut overtaken) = (0, 0, 0);
    while !over.get() {
        let key = format!("key-{}", random.next_u64() % KEYS);
        let sink = Sink::default();
        match client.get("data", &key, None, sink.clone()).await {
            Ok(report) => {
                let got = sink.0.lock().unwrap();
                let number = u64::from_le_bytes(got[..8].try_into().unwrap());
                assert!(number < CHANGES && *got == version(number), "{key} is no version as a whole");
                assert_eq!(report.size, got.len() as u64);
                whole += 1;
            }
            Err(GetError::Metadata(ClientError::Refused(MetaFault::NoObject { .. }))) => absent += 1,
            Err(GetError::Changed { .. }) => overtaken += 1,
            Err(error) => panic!("{key}: {error}"),
        }
    }
    (whole, absent, overtaken)
}
