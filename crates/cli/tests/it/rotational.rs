//! Disks of which it is said whether they rotate, whatever those that the tests run on claim: updates in place on real processes that are
//! killed.

use crate::common::{Bed, block_on, bytes, once_of, put, seed, settled, shape};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use std::{io::Cursor, time::Duration};
use steadfast_client::Client;
use steadfast_lab::cluster::Shape;

const LENGTH: usize = 2 << 20;
/// Updates of each of two writers from one loss of servers to the next.
const UPDATES: u64 = 15;

#[test]
fn what_was_answered_survives_on_disks_that_are_said_not_to_rotate() {
    once_of("updates are in place", || updates_and_kills("rotational=no"));
}

#[test]
fn what_was_answered_survives_on_disks_that_are_said_to_rotate() {
    once_of("updates are in place", || updates_and_kills("rotational=yes"));
}

/// Whether most updates with all servers up were in place: what a server that is held up does not take is stored anew.
fn updates_and_kills(disks: &str) -> bool {
    let seed = seed();
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let shape = Shape { emulate: Some(disks.to_owned()), ..shape(6, 1) };
    let mut bed = Bed::with_bucket(&shape, "parity:segment=2MiB,reserve=512KiB");
    let mut model = bytes(LENGTH, seed);
    block_on(async { put(&patient(&bed).await, "object", &model).await });
    let mut in_place = Vec::new();
    for (first, second) in [(0, 1), (2, 5), (3, 4)] {
        in_place.push(block_on(async {
            let client = patient(&bed).await;
            let (one, other) = model.split_at_mut(LENGTH / 2);
            let (of_one, of_other) = tokio::join!(
                change(&client, 0, one, random.next_u64()),
                change(&client, LENGTH / 2, other, random.next_u64()),
            );
            of_one + of_other
        }));
        // What was logged last is merged by nobody yet.
        bed.cluster.kill_node(first).unwrap();
        bed.cluster.kill_node(second).unwrap();
        bed.get_equals("object", &model);
        bed.restart(first);
        bed.restart(second);
    }
    println!("{disks}: in place {in_place:?} of {} each", 2 * UPDATES);
    // After a restart a server may count as out of reach for a while.
    in_place[0] >= UPDATES
}

/// Changes bytes of a part of `data/object` that begins at byte `base`, and of its model; how many updates were in place.
async fn change(client: &Client, base: usize, part: &mut [u8], seed: u64) -> u64 {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let mut in_place = 0;
    for _ in 0..UPDATES {
        let length = 1 + (random.next_u64() % 9000) as usize;
        let at = (random.next_u64() % (part.len() - length) as u64) as usize;
        let new = bytes(length, random.next_u64());
        part[at..at + length].copy_from_slice(&new);
        let offset = (base + at) as u64;
        let update = async || client.update("data", "object", offset, Cursor::new(new.clone())).await;
        in_place += u64::from(settled(update).await.in_place_bytes == length as u64);
    }
    in_place
}

async fn patient(bed: &Bed) -> Client {
    bed.client_of_patience(Duration::from_secs(60)).await
}
