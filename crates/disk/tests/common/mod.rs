//! What the tests share: seeds, blocks, and a device on an image.
#![allow(
    dead_code,
    unreachable_pub,
    missing_docs,
    clippy::unwrap_used,
    reason = "each test file uses its part"
)]

pub mod one_page;

use std::sync::Arc;

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use steadfast_disk::{
    AlignedBuf, ClusterId, Device, DeviceId, Epoch, ExtentSpec, FormatOptions, Granule, MemoryMedium,
    SegmentId, Updates, Version, checksum,
    device::{ReadError, UpdateError, WriteError},
    media::{Counters, Medium},
};

pub const CLUSTER: ClusterId = ClusterId(0xc1);
pub const DEVICE: DeviceId = DeviceId(0xd1);
pub const EPOCH: Epoch = Epoch(1);
pub const VERSION: Version = Version(1);

/// The seed of this run: printed, and taken from `STEADFAST_SEED`.
pub fn seed() -> u64 {
    let seed = std::env::var("STEADFAST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(20_261_120);
    println!("STEADFAST_SEED={seed}");
    seed
}

pub fn random(seed: u64) -> Pcg64 {
    Pcg64::seed_from_u64(seed)
}

pub fn below(random: &mut Pcg64, n: u64) -> u64 {
    random.next_u64() % n
}

/// The content of a block: differs for every segment and index.
pub fn block(segment: SegmentId, index: u32, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    random(segment.0 << 32 | u64::from(index)).fill_bytes(&mut data);
    data
}

pub fn small(medium: &dyn Medium) {
    let options = FormatOptions {
        checkpoint_bytes: Some(16 << 10),
        journal_bytes: Some(12 << 10),
        ..FormatOptions::new(CLUSTER, DEVICE)
    };
    Device::format(medium, options).unwrap();
}

pub fn open(medium: Arc<dyn Medium>) -> Device {
    let device = Device::open(medium, Some(CLUSTER)).unwrap();
    device.self_check();
    device
}

pub fn spec(segment: SegmentId, block_bytes: u32, expected_blocks: u32) -> ExtentSpec {
    ExtentSpec {
        segment,
        version: VERSION,
        epoch: EPOCH,
        block_bytes,
        granule: Granule::KIB_4,
        expected_blocks,
        updates: None,
    }
}

pub fn write(device: &mut Device, segment: SegmentId, index: u32) -> Result<(), WriteError> {
    let info = device.extent(segment).expect("an extent");
    let data = block(segment, index, info.block_bytes as usize);
    let sums = checksum::sums(&data, info.granule, segment, info.version, index);
    device.write_block(segment, info.epoch, index, &data, &sums)
}

/// Reads a whole block. `Ok`: the bytes are the right ones.
pub fn read(device: &mut Device, segment: SegmentId, index: u32) -> Result<(), ReadError> {
    let len = device.extent(segment).ok_or(ReadError::NoExtent { segment })?.block_bytes;
    let mut buf = AlignedBuf::zeroed(0);
    device.read_block(segment, index, 0..len, &mut buf)?;
    assert!(buf[..] == block(segment, index, len as usize)[..], "wrong bytes in {segment} {index}");
    Ok(())
}

/// Formats a medium whose journal takes updates: 8 KiB at once, 32 KiB held. Where it is `thick`, what was freed lies there until
/// it is written over.
pub fn updatable(medium: &dyn Medium, thick: bool) {
    let options = FormatOptions {
        thick,
        checkpoint_bytes: Some(128 << 10),
        journal_bytes: Some(512 << 10),
        ..FormatOptions::new(CLUSTER, DEVICE)
    };
    Device::format(medium, options).unwrap();
}

/// An updatable extent of `blocks` blocks of 8 KiB with all its blocks, from index 3 on, flushed. Returns its content.
pub fn chunk(device: &mut Device, segment: SegmentId, blocks: u32, reserve_bytes: u64) -> Vec<u8> {
    let spec = ExtentSpec { updates: Some(Updates { reserve_bytes }), ..spec(segment, 8 << 10, blocks) };
    device.create_extent(spec).unwrap();
    let mut content = Vec::new();
    for index in 3..3 + blocks {
        write(device, segment, index).unwrap();
        content.extend(block(segment, index, 8 << 10));
    }
    device.flush().unwrap();
    content
}

/// All of a chunk, verified.
pub fn chunk_content(device: &mut Device, segment: SegmentId) -> Result<Vec<u8>, UpdateError> {
    let bytes = device.updates(segment)?.chunk_bytes;
    let mut buf = AlignedBuf::zeroed(0);
    let read = device.read_chunk(segment, 0..bytes, &mut buf)?;
    assert_eq!(read.range, 0..bytes);
    Ok(buf.to_vec())
}

pub fn random_bytes(random: &mut Pcg64, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    random.fill_bytes(&mut data);
    data
}

pub fn xor(a: &[u8], b: &[u8]) -> Vec<u8> {
    a.iter().zip(b).map(|(a, b)| a ^ b).collect()
}

/// Reads, writes and flushes of a medium since then.
pub fn spent(medium: &dyn Medium, before: Counters) -> (u64, u64, u64) {
    let now = medium.counters();
    (now.reads - before.reads, now.writes - before.writes, now.flushes - before.flushes)
}

/// The device again, as its medium has it.
pub fn reopen(device: Device) -> Device {
    let medium = device.medium().clone();
    drop(device);
    open(medium)
}

/// Makes a device with a journal of 4 MiB, of which half may wait to be written in place.
pub fn format_large(medium: &dyn Medium) {
    let (checkpoint_bytes, journal_bytes) = (Some(4 << 20), Some(4 << 20));
    let options = FormatOptions { checkpoint_bytes, journal_bytes, ..FormatOptions::new(CLUSTER, DEVICE) };
    Device::format(medium, options).unwrap();
}

/// Such a device in memory.
pub fn large_device() -> (Device, Arc<MemoryMedium>) {
    let medium = Arc::new(MemoryMedium::new(32 << 20));
    format_large(&*medium);
    (open(medium.clone()), medium)
}
