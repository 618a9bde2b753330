//! Reads of a few bytes whose device stalls or whose server is dead: the same few bytes of other chunks stand in.

use crate::common::{Bed, block_on, bytes, once_of, seed, shape};
use crate::files::{open, patient, put, sync, write};
use std::{sync::Arc, time::Duration};
use steadfast_client::Client;
use steadfast_protocol::layout::ParityGeometry;

const MIB: usize = 1 << 20;
const READ: usize = 5000;
const READS: usize = 24;

async fn medium_bytes(bed: &Bed, client: &Client) -> u64 {
    let statuses = bed.statuses(client).await;
    statuses.iter().flat_map(|status| &status.devices).map(|device| device.medium_read_bytes).sum()
}

#[test]
fn few_bytes_of_a_late_or_lost_device_are_decoded_from_as_few_of_others() {
    for update in ["plr", "fo"] {
        once_of("few bytes of media are read", || few_bytes(update));
    }
}

/// Whether few bytes of media were read: more are where others are late, too.
fn few_bytes(update: &str) -> bool {
    let mut bed = Bed::with_bucket(&shape(6, 1), &format!("parity:code=rs(6,4),update={update}"));
    let mut model = bytes(16 * MIB, seed());
    let (late, are_few) = block_on(async {
        let client = patient(&bed).await;
        put(&client, &model).await;
        let stat = client.stat("data", "object").await.unwrap();
        let shape = ParityGeometry::of_layout(&stat.segments[0]).unwrap();
        let late = shape.holder(&stat.segments[0], 1).unwrap();
        let file = open(&client).await;
        // Some of what is read is in logs alone; more updates would have the chunk read ahead.
        for at in 0..READS / 3 {
            write(&file, &mut model, 4 * MIB + at * 150_000, &bytes(READ / 2, at as u64)).await;
        }
        sync(&file).await;
        client.emulate(late, "stall").await.unwrap();
        let before = medium_bytes(&bed, &client).await;
        for at in 0..READS {
            let offset = 4 * MIB + at * 150_000;
            let read = file.read_at(offset as u64, READ).await.unwrap();
            assert!(read == model[offset..offset + READ], "{update}: bytes at {offset}");
        }
        let read = medium_bytes(&bed, &client).await - before;
        println!("{update}: {read} bytes of media for {READS} reads of {READ}");
        client.emulate(late, "off").await.unwrap();
        // Three granules of each of four chunks make 1.2 MB. Blocks, which have 1 MiB here, would make 96 MiB.
        (late, read < 2 << 20)
    });
    let dead = block_on(async {
        let client = patient(&bed).await;
        bed.server_of(&client, late).await
    });
    bed.cluster.kill_node(dead).unwrap();
    block_on(async {
        let client = patient(&bed).await;
        let file = open(&client).await;
        for at in 0..READS {
            // Over the borders of blocks and chunks, too.
            let offset = 4 * MIB - 2000 + at * (MIB / 4);
            let read = file.read_at(offset as u64, READ).await.unwrap();
            assert!(read == model[offset..offset + READ], "{update}: bytes at {offset} of a dead server");
        }
    });
    are_few
}

#[test]
fn a_change_waits_for_a_device_that_stalls_for_a_while() {
    once_of("a device that stalls for a while is waited for", is_waited_for);
}

/// Whether it was waited for, longer than a node is, before the segment is to be stored anew: there is no device for its chunk but
/// this one.
fn is_waited_for() -> bool {
    let bed = Bed::with_bucket(&shape(6, 1), "parity:segment=4MiB");
    let mut model = bytes(4 * MIB, seed());
    block_on(async {
        let client = Arc::new(bed.client_of_patience(Duration::from_secs(24)).await);
        put(&client, &model).await;
        let stat = client.stat("data", "object").await.unwrap();
        let shape = ParityGeometry::of_layout(&stat.segments[0]).unwrap();
        let late = shape.holder(&stat.segments[0], 0).unwrap();
        let file = open(&client).await;
        write(&file, &mut model, 1000, &bytes(READ, 1)).await;
        sync(&file).await;
        client.emulate(late, "stall").await.unwrap();
        write(&file, &mut model, 9000, &bytes(READ, 2)).await;
        let ending = async {
            tokio::time::sleep(Duration::from_secs(8)).await;
            client.emulate(late, "off").await.unwrap();
        };
        let (synced, ()) = tokio::join!(file.sync(), ending);
        // What was not stored then is kept.
        sync(&file).await;
        let read = file.read_at(0, 4 * MIB).await.unwrap();
        assert!(read == model, "what was written is there");
        synced.inspect_err(|error| println!("{error}")).is_ok()
    })
}
