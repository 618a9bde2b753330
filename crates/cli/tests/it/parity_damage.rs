//! Bits that flip on the disks of a parity bucket: in data that a small update changes, in parity, and in the logs beside it. Nobody
//! reads a wrong byte for it as long as two of six chunks at most are damaged or out of reach, and no server ends by it.

use crate::{
    common::{Bed, WITHIN, block_on, bytes, eventually, once_of, put, seed, shape},
    in_place::change,
};
use std::{
    fs::{self, File},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use steadfast_client::Client;
use steadfast_lab::cluster::Shape;
use steadfast_protocol::layout::{PARITY_GRANULE_BYTES, ParityGeometry, SegmentLayout};

/// Parity is logged; a few changes fill a log.
const LOGS: &str = "parity:segment=1MiB,reserve=256KiB";
const OVERWRITES: &str = "parity:segment=1MiB,update=fo";
const RESERVE: usize = 256 << 10;
const SEGMENT: usize = 1 << 20;
const CHUNK: usize = SEGMENT / 4;
const GRANULE: usize = PARITY_GRANULE_BYTES as usize;
/// The first parity chunk.
const PARITY: usize = 4;
/// The granule that a bit of is flipped, of whichever chunk; and others.
const DAMAGED: usize = 5;
const LOGGED: usize = 20;
const BEHIND: usize = 30;
/// What was logged so lately nobody has merged: a log is quiet for half a second first.
const UNMERGED: Duration = Duration::from_millis(400);

/// A cluster that has `data/object`: one segment, each of whose chunks is a block on a server of its own.
struct Stored {
    bed: Bed,
    /// The object as it is to be.
    model: Vec<u8>,
    layout: SegmentLayout,
    /// The servers of the chunks.
    servers: Vec<usize>,
}

impl Stored {
    fn new(policy: &str) -> Self {
        // Records of logs lie in their reserves at once then, and nowhere else.
        let shape = Shape { emulate: Some("rotational=no".to_owned()), ..shape(6, 1) };
        let bed = Bed::with_bucket(&shape, policy);
        let model = bytes(SEGMENT, seed());
        let (layout, servers) = block_on(async {
            let client = bed.client_of_patience(WITHIN).await;
            put(&client, "object", &model).await;
            lies(&bed, &client).await
        });
        Self { bed, model, layout, servers }
    }

    /// The file that a chunk lies in.
    fn space(&self, chunk: usize) -> PathBuf {
        self.bed.cluster.device_dirs(self.servers[chunk])[0].join("space")
    }

    /// What a granule of the first parity chunk is to be.
    fn parity(&self, granule: usize) -> Vec<u8> {
        let within = granule * GRANULE..(granule + 1) * GRANULE;
        let data: Vec<&[u8]> = self.model.chunks(CHUNK).map(|chunk| &chunk[within.clone()]).collect();
        let mut parity = vec![0; GRANULE];
        let code = self.layout.code.code().unwrap();
        code.encoder().encode(&[PARITY as u32], &data, &mut [&mut parity[..]]).unwrap();
        parity
    }

    /// Changes bytes; whether where they lie.
    async fn update(&mut self, offset: usize, new: Vec<u8>) -> bool {
        let client = self.bed.client_of_patience(WITHIN).await;
        let length = new.len() as u64;
        let in_place_bytes = change(&client, &mut self.model, offset, new).await;
        assert!(in_place_bytes == 0 || in_place_bytes == length, "{in_place_bytes} of {length}");
        in_place_bytes > 0
    }

    /// Makes changes until one of them has the segment stored anew, which ends all damage.
    fn update_until_anew(&mut self) {
        block_on(async {
            let mut made = 0;
            eventually("the segment is stored anew", WITHIN, async || {
                made += 1;
                // As much as one record takes of such a log.
                !self.update(4 * GRANULE, bytes(4 * GRANULE, made)).await
            })
            .await;
            println!("stored anew with change {made}");
        });
    }

    /// Every byte is right while the server of a chunk is gone.
    fn read_without(&mut self, chunk: usize) {
        let server = self.servers[chunk];
        self.bed.cluster.kill_node(server).unwrap();
        self.bed.get_equals("object", &self.model);
        self.bed.restart(server);
    }

    /// The servers live, all of them, and none has found itself broken.
    fn all_serve(&mut self) {
        assert_eq!(self.bed.cluster.ended(), Vec::<String>::new());
        for (name, ..) in self.bed.cluster.processes() {
            let said = fs::read_to_string(self.bed.cluster.log(name)).unwrap();
            assert!(!said.contains("panicked"), "{name}: {said}");
        }
    }

    /// No damage is left: without two servers the first data chunk, which was changed, is made of the first parity chunk.
    fn ends_well(&mut self) {
        self.all_serve();
        let (_, servers) = block_on(async {
            let client = self.bed.client_of_patience(WITHIN).await;
            lies(&self.bed, &client).await
        });
        for chunk in [0, PARITY + 1] {
            self.bed.cluster.kill_node(servers[chunk]).unwrap();
        }
        self.bed.get_equals("object", &self.model);
    }
}

/// The segment's layout, and the servers of its chunks.
async fn lies(bed: &Bed, client: &Client) -> (SegmentLayout, Vec<usize>) {
    let layout = client.stat("data", "object").await.unwrap().segments.swap_remove(0);
    let shape = ParityGeometry::of_layout(&layout).unwrap();
    assert_eq!((shape.data as usize, shape.blocks, shape.block_bytes as usize), (PARITY, 1, CHUNK));
    let mut servers = Vec::new();
    for device in shape.holders(&layout).unwrap() {
        servers.push(bed.server_of(client, device).await);
    }
    (layout, servers)
}

fn read(space: &Path, part: Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; part.len()];
    File::open(space).unwrap().read_exact_at(&mut bytes, part.start as u64).unwrap();
    bytes
}

/// Where a device has a granule.
fn place_of(space: &Path, granule: &[u8]) -> usize {
    let whole = fs::read(space).unwrap();
    let page = whole.chunks(GRANULE).position(|page| page == granule);
    page.expect("granules are stored as they are") * GRANULE
}

/// Flips a bit of a byte, as a bad disk does.
fn flip(space: &Path, at: usize) {
    let byte = read(space, at..at + 1)[0];
    let file = File::options().write(true).open(space).unwrap();
    file.write_all_at(&[byte ^ 0x10], at as u64).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_damaged_granule_of_data_is_not_what_an_update_is_made_of() {
    damaged_data(LOGS);
}

#[test]
fn a_damaged_granule_of_data_is_not_what_parity_is_overwritten_for() {
    damaged_data(OVERWRITES);
}

fn damaged_data(policy: &str) {
    let mut stored = Stored::new(policy);
    let (at, space) = (DAMAGED * GRANULE, stored.space(0));
    flip(&space, place_of(&space, &stored.model[at..at + GRANULE]) + 7);
    stored.read_without(1);
    // The rest of the granule stays, and its own device has it no more.
    let in_place = block_on(stored.update(at + 50, bytes(100, 1)));
    assert!(!in_place, "its old bytes are not to be had there");
    stored.ends_well();
}

#[test]
fn nothing_is_merged_into_a_damaged_granule_of_parity() {
    once_of("an update is logged", damaged_parity_of_a_log);
}

/// Whether an update was logged that was to be merged into damaged parity.
fn damaged_parity_of_a_log() -> bool {
    let mut stored = Stored::new(LOGS);
    let space = stored.space(PARITY);
    flip(&space, place_of(&space, &stored.parity(DAMAGED)) + 7);
    // What logs it does not read what is there.
    if !block_on(stored.update(DAMAGED * GRANULE + 50, bytes(100, 1))) {
        return false;
    }
    block_on(async {
        let client = stored.bed.client().await;
        let address = stored.bed.cluster.node_address(stored.servers[PARITY]);
        eventually("a merge has met the damage", WITHIN, async || {
            let status = client.node_status(address).await;
            status.is_ok_and(|status| status.devices.iter().any(|device| device.corrupt_blocks > 0))
        })
        .await;
    });
    // Of the new bytes the other parity chunk alone says anything then.
    stored.read_without(0);
    stored.all_serve();
    stored.update_until_anew();
    stored.ends_well();
    true
}

#[test]
fn a_damaged_granule_of_parity_is_not_overwritten() {
    let mut stored = Stored::new(OVERWRITES);
    let space = stored.space(PARITY);
    flip(&space, place_of(&space, &stored.parity(DAMAGED)) + 7);
    stored.read_without(1);
    let in_place = block_on(stored.update(DAMAGED * GRANULE + 50, bytes(100, 1)));
    assert!(!in_place, "what is damaged would become whole with wrong bytes");
    stored.ends_well();
}

/// A record of a log that is damaged.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Record {
    /// While its server runs.
    Running,
    /// While its server is down; the one behind it tells that it was there.
    BeforeAnother,
    /// While its server is down, and nothing in the log tells that it was ever there.
    Last,
}

#[test]
fn a_record_that_is_damaged_before_it_is_merged_changes_no_byte() {
    once_of("a logged update is damaged before it is merged", || damaged_record(Record::Running));
}

#[test]
fn a_log_that_lost_a_record_on_its_disk_changes_no_byte() {
    once_of("a logged update is damaged before it is merged", || damaged_record(Record::BeforeAnother));
}

#[test]
fn a_log_that_lost_its_last_record_on_its_disk_does_not_pass_for_the_newest() {
    once_of("a logged update is damaged before it is merged", || damaged_record(Record::Last));
}

/// Whether a record of the log was damaged before a merge could take it.
fn damaged_record(damaged: Record) -> bool {
    let mut stored = Stored::new(LOGS);
    let space = stored.space(PARITY);
    let place = place_of(&space, &stored.parity(DAMAGED));
    // Others are asked about parity that has merged something, and about no other.
    if !block_on(stored.update(DAMAGED * GRANULE, bytes(GRANULE, 1))) {
        return false;
    }
    let merged = stored.parity(DAMAGED);
    block_on(eventually("the first update is merged and in place", WITHIN, async || {
        read(&space, place..place + GRANULE) == merged
    }));
    let (at, new) = (LOGGED * GRANULE, bytes(GRANULE, 2));
    let difference: Vec<u8> = stored.model[at..].iter().zip(&new).map(|(old, new)| old ^ new).collect();
    let (begun, in_place) = block_on(async {
        let client = stored.bed.client_of_patience(WITHIN).await;
        let begun = Instant::now();
        let mut in_place = change(&client, &mut stored.model, at, new).await > 0;
        if damaged == Record::BeforeAnother {
            let behind = bytes(GRANULE, 3);
            in_place &= change(&client, &mut stored.model, BEHIND * GRANULE, behind).await > 0;
        }
        (begun, in_place)
    });
    if damaged != Record::Running {
        stored.bed.cluster.kill_node(stored.servers[PARITY]).unwrap();
    }
    if !in_place {
        return false;
    }
    // A reserve lies right behind its chunk.
    let reserve = place - DAMAGED * GRANULE + CHUNK;
    let log = read(&space, reserve..reserve + RESERVE);
    let record = log.windows(64).position(|window| window == &difference[..64]).expect("it is logged");
    flip(&space, reserve + record);
    if begun.elapsed() > UNMERGED {
        return false;
    }
    if damaged == Record::Running {
        stored.read_without(0);
    } else {
        // When the server of parity is back, that of the data that it lacks a change of is gone.
        let [data, parity] = [0, PARITY].map(|chunk| stored.servers[chunk]);
        stored.bed.cluster.kill_node(data).unwrap();
        stored.bed.restart(parity);
        stored.bed.get_equals("object", &stored.model);
        stored.bed.restart(data);
    }
    stored.all_serve();
    if damaged == Record::Last {
        // Either the log gets from others what it lost, or the segment is stored anew.
        let in_place = block_on(stored.update(at + 50, bytes(100, 4)));
        println!("the next update is in place: {in_place}");
    } else {
        stored.update_until_anew();
    }
    stored.ends_well();
    true
}
