//! Chunks that change in place: what a caller sees, what the medium does, what damage gives.

#![allow(clippy::single_range_in_vec_init, reason = "a list of one range is what is meant")]
#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::{
    sync::{Arc, mpsc},
    time::{Duration, Instant},
};

use bytes::Bytes;
use common::*;
use steadfast_disk::{
    AlignedBuf, Device, EmulatedMedium, EmulationSpec, Epoch, ExtentSpec, FormatOptions, Lane, LaneConfig,
    LaneHandle, Medium, MemoryMedium, Op, OpError, OpOutput, Priority, SegmentId, Updates,
    device::{
        Apply, ChangeError, CreateError, DeviceError, LogError, OpenError, ReadError, Spend, UpdateError,
        WriteError,
    },
    media::{CrashMedium, Event},
};

const S: SegmentId = SegmentId(5);
const T: SegmentId = SegmentId(6);
const JOURNAL: u64 = 4096 + 2 * (128 << 10);

fn device() -> (Device, Arc<MemoryMedium>) {
    let medium = Arc::new(MemoryMedium::new(4 << 20));
    updatable(&*medium, false);
    (open(medium.clone()), medium)
}

fn flip(medium: &MemoryMedium, at: u64) {
    let mut page = [0; 4096];
    medium.read_at(at / 4096 * 4096, &mut page).unwrap();
    page[(at % 4096) as usize] ^= 4;
    medium.write_at(at / 4096 * 4096, &page).unwrap();
}

#[test]
fn a_staged_update_costs_one_read_one_write_and_one_flush() {
    let (mut device, medium) = device();
    chunk(&mut device, S, 4, 0);
    let before = medium.counters();
    device.stage(S, EPOCH, 4096, &[1; 4096]).unwrap();
    assert_eq!(spent(&*medium, before), (1, 0, 0));
    device.flush().unwrap();
    assert_eq!(spent(&*medium, before), (1, 1, 1));
    let before = medium.counters();
    device.stage(S, EPOCH, 4100, &[2; 10]).unwrap();
    device.flush().unwrap();
    assert_eq!(spent(&*medium, before), (0, 1, 1), "its old content is in memory");
    // A release goes with the next group, writing back needs no flush, and neither makes the next update dearer.
    device.release(S, 2).unwrap();
    device.stage(S, EPOCH, 8192, &[3; 4096]).unwrap();
    device.flush().unwrap();
    let before = medium.counters();
    assert_eq!(device.write_back(u64::MAX).unwrap(), 4096);
    assert_eq!(spent(&*medium, before), (0, 1, 0));
    assert_eq!((device.write_back(u64::MAX).unwrap(), device.is_clean()), (0, true));
    device.stage(S, EPOCH, 4096, &[4; 4096]).unwrap();
    device.flush().unwrap();
    assert_eq!(spent(&*medium, before), (1, 2, 1));
    // Across two blocks that are neighbours on the medium it is still one read.
    let before = medium.counters();
    device.stage(S, EPOCH, 24 << 10, &[5; 8192]).unwrap();
    assert_eq!(spent(&*medium, before), (1, 0, 0));
}

#[test]
fn a_chunk_is_its_blocks_and_shows_the_newest_content() {
    let (mut device, _) = device();
    let old = chunk(&mut device, S, 4, 0);
    let staged = device.stage(S, EPOCH, 8000, &[9; 1000]).unwrap();
    let mut new = old.clone();
    new[8000..9000].fill(9);
    assert_eq!((staged.version, staged.offset, staged.sums.len()), (1, 4096, 2));
    assert_eq!(staged.difference[..], xor(&old[4096..12288], &new[4096..12288])[..]);
    for _ in 0..2 {
        assert_eq!(chunk_content(&mut device, S).unwrap(), new);
        let mut buf = AlignedBuf::zeroed(0);
        let read = device.read_block(S, 4, 0..10, &mut buf).unwrap();
        assert_eq!((&buf[..], &read.sums[..]), (&new[8192..12288], &staged.sums[1..]));
        let read = device.read_chunk(S, 9999..10_000, &mut buf).unwrap();
        assert_eq!((read.range, &buf[..]), (8192..12288, &new[8192..12288]));
        device.release(S, 1).unwrap();
        device.flush().unwrap();
        device.write_back(u64::MAX).unwrap();
    }
    // A block that was changed is another block to a writer.
    assert_eq!(write(&mut device, S, 4), Err(WriteError::Exists { segment: S, index: 4 }));
    assert_eq!(write(&mut device, S, 5), Ok(()));
    device.seal(S, EPOCH, &[3..7, 9..10]).unwrap();
    assert_eq!(device.stage(S, EPOCH, 0, &[1]).unwrap().version, 2, "a seal changes nothing of it");
    device.flush().unwrap();
    let mut device = reopen(device);
    new[0] = 1;
    assert_eq!(chunk_content(&mut device, S).unwrap(), new);
    assert_eq!(device.held(S).unwrap().len(), 1);
    assert_eq!(device.held_segments(), [(S, 2)]);
}

#[test]
fn what_is_held_stays_held_through_checkpoints() {
    let (mut device, medium) = device();
    let old = chunk(&mut device, S, 4, 0);
    let first = device.stage(S, EPOCH, 0, &[1; 5000]).unwrap();
    let second = device.stage(S, EPOCH, 4096, &[2; 100]).unwrap();
    // The journal goes round more than twice.
    for epoch in 2..300 {
        device.fence(T, Epoch(epoch)).unwrap();
        device.flush().unwrap();
    }
    assert_eq!(device.held(S).unwrap(), [first.clone(), second.clone()]);
    let at = device.locate(S, 3).unwrap() as usize;
    assert_eq!(medium.image()[at..at + 4096], old[..4096], "not in place");
    let mut device = reopen(reopen(device));
    assert_eq!(device.held(S).unwrap(), [first, second.clone()]);
    device.release(S, 1).unwrap();
    device.release(S, 1).unwrap();
    assert_eq!(device.write_back(u64::MAX).unwrap(), 0, "the release is not durable");
    device.flush().unwrap();
    assert_eq!(device.write_back(4096).unwrap(), 4096);
    assert_eq!(device.to_write_back(), 4096);
    // Once out of the journal, then out of the checkpoint that the first open made.
    let mut device = reopen(reopen(device));
    assert_eq!(device.held(S).unwrap(), [second]);
    assert_eq!(device.to_write_back(), 8192, "an open does not wait for it");
    device.write_back(u64::MAX).unwrap();
    assert_eq!(medium.image()[at..at + 4096], [1; 4096]);
    assert_eq!(device.to_write_back(), 0);
}

/// Room that was reserved is there for whom it was reserved, and for nobody else; who waits without keeps others from reserving more.
#[test]
fn what_is_reserved_is_kept_for_its_owner() {
    let (mut device, _) = device();
    chunk(&mut device, S, 16, 0);
    chunk(&mut device, T, 16, 0);
    let max = device.updates(S).unwrap().held_bytes_max;
    let (mine, others, one) = (1, 2, 4096 + 256);
    assert_eq!((device.reserve(mine, 0, 2 * one), device.reserve(others, max, max)), (2 * one, 0));
    assert_eq!(device.reserve(others, one, max), max - 2 * one, "as much as there is");
    let is_full = |made: Result<_, UpdateError>| matches!(made, Err(UpdateError::Held { .. }));
    assert!(is_full(device.stage(T, EPOCH, 0, &[1; 4096])), "nothing is left for what was not reserved");
    let mut version = 0;
    let mut overwrite = |device: &mut Device, owner, bytes| {
        let spend = Some(Spend { owner, bytes });
        let made = device.overwrite_from(S, EPOCH, (0, &[1; 4096]), (0, version + 1), spend);
        version += u64::from(made.is_ok());
        made
    };
    overwrite(&mut device, mine, one).unwrap();
    overwrite(&mut device, mine, one).unwrap();
    assert!(is_full(overwrite(&mut device, mine, one)), "what was reserved is spent");
    // It waits without a reservation: what is given back is not for new ones.
    device.unreserve(others, 3 * one);
    assert_eq!(device.reserve(others, 0, one), 0);
    overwrite(&mut device, mine, 0).unwrap();
    assert_eq!(device.reserve(others, one, one), one, "it waits no more");
    device.unreserve(others, u64::MAX);
    device.unreserve(others, one);
    assert!(device.reserve(others, 0, max) > max - 4 * one);
    // One that gives up waits no more either.
    assert!(is_full(overwrite(&mut device, mine, 0)));
    device.unreserve(others, u64::MAX);
    assert_eq!(device.reserve(others, 0, one), 0);
    device.unreserve(mine, 0);
    assert_eq!(device.reserve(others, one, one), one);
    // A change of a data chunk leaves a mark where it is to, and none else.
    device.unreserve(others, u64::MAX);
    let rest = device.reserve(others, 0, max);
    let stage = |device: &mut Device, spend| device.stage_from(T, EPOCH, (0, &[1; 4096]), spend);
    assert!(is_full(stage(&mut device, None)));
    device.unreserve(others, one);
    assert_eq!(device.reserve(others, one, one), one);
    assert!(is_full(stage(&mut device, Some(Spend { owner: mine, bytes: 0 }))));
    device.unreserve(others, one);
    assert_eq!(device.reserve(others, one, one), 0, "what is given back is for the change");
    stage(&mut device, Some(Spend { owner: mine, bytes: 0 })).unwrap();
    device.unreserve(others, rest - one);
    assert_eq!(device.reserve(others, one, one), one);
    // What spends a reservation goes past what waits without one, and leaves its mark.
    device.unreserve(others, u64::MAX);
    assert_eq!((device.reserve(mine, one, one), device.reserve(others, one, max) > 2 * one), (one, true));
    assert!(is_full(stage(&mut device, Some(Spend { owner: mine, bytes: 0 }))));
    stage(&mut device, Some(Spend { owner: mine, bytes: one })).unwrap();
    device.unreserve(others, 2 * one);
    assert_eq!(device.reserve(others, one, one), 0, "the other one waits still");
    // A crash leaves no reservation.
    let mut device = reopen(device);
    assert_eq!(device.reserve(mine, one, one), one);
}

/// Full overwrite: the versions of data chunks change with the content, and what it replaced is held until its release.
#[test]
fn parity_overwritten_in_place_knows_whose_version_it_is_and_can_be_taken_back() {
    let (mut device, _) = device();
    let mut content = chunk(&mut device, S, 4, 0);
    let old = content.clone();
    let given = [(0, vec![1; 5000], (3, 1)), (4096, vec![7; 100], (0, 1)), (0, vec![9; 4096], (3, 2))];
    for (number, (offset, product, of)) in given.iter().enumerate() {
        let staged = device.overwrite(S, EPOCH, *offset, product, *of).unwrap();
        assert_eq!((staged.version, staged.of), (number as u64 + 1, Some(*of)));
        let at = *offset as usize;
        content[at..at + product.len()].iter_mut().zip(product).for_each(|(byte, other)| *byte ^= other);
    }
    assert_eq!(
        device.overwrite(S, EPOCH, 0, &[1], (3, 2)),
        Err(UpdateError::Backwards { segment: S, held: 2, given: 2 })
    );
    assert!(device.overwrite(S, EPOCH, 0, &[1], (1, 2)).is_err(), "version 1 is missing");
    device.flush().unwrap();
    // The journal goes round, and the device is opened again: by checkpoint and by frames.
    for epoch in 2..300 {
        for _ in 0..2 {
            assert_eq!(chunk_content(&mut device, S).unwrap(), content);
            assert_eq!(device.updates(S).unwrap().merged, [(0, 1), (3, 2)]);
            let held = device.held(S).unwrap();
            let of: Vec<_> = held.iter().map(|staged| staged.of.unwrap()).collect();
            assert_eq!(of, [(3, 1), (0, 1), (3, 2)]);
            let mut back = content.clone();
            for staged in &held {
                let at = staged.offset as usize;
                let changed = &mut back[at..at + staged.difference.len()];
                changed.iter_mut().zip(&staged.difference).for_each(|(byte, other)| *byte ^= other);
            }
            assert_eq!(back, old);
            if epoch % 100 != 0 {
                break;
            }
            device = reopen(device);
        }
        device.fence(T, Epoch(epoch)).unwrap();
        device.flush().unwrap();
    }
    device.release(S, 2).unwrap();
    device.flush().unwrap();
    device.write_back(u64::MAX).unwrap();
    let mut device = reopen(device);
    assert_eq!(device.held(S).unwrap().len(), 1);
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);
}

#[test]
fn bounds_are_errors_with_numbers() {
    let (mut device, _) = device();
    chunk(&mut device, S, 6, 0);
    assert_eq!(device.update_bytes_max(), 16 << 10);
    let large = UpdateError::TooLarge { given: 20 << 10, max: 16 << 10 };
    assert_eq!(device.stage(S, EPOCH, 1, &[0; 16 << 10]), Err(large));
    device.stage(S, EPOCH, 0, &[1; 16 << 10]).unwrap();
    device.stage(S, EPOCH, 0, &[1; 8 << 10]).unwrap();
    let held = device.stage(S, EPOCH, 0, &[1; 16 << 10]);
    assert!(matches!(held, Err(UpdateError::Held { max: 32768, .. })), "{held:?}");
    device.release(S, 2).unwrap();
    device.stage(S, EPOCH, 0, &[1; 16 << 10]).unwrap();
    let chunk_bytes = 48 << 10;
    for (offset, len) in [(0, 0), (chunk_bytes, 1), (chunk_bytes - 1, 2), (u64::MAX, 1)] {
        let refused = device.stage(S, EPOCH, offset, &vec![0; len]);
        assert!(matches!(refused, Err(UpdateError::OutOfRange { .. })), "{offset} {len}: {refused:?}");
    }
    let patch =
        |offset, len: usize| Apply { patches: vec![(offset, vec![0; len].into())], ..Apply::default() };
    for (offset, len) in [(1, 4096), (0, 100), (4096, 5000)] {
        let refused = device.apply(S, EPOCH, patch(offset, len));
        assert!(matches!(refused, Err(UpdateError::Misaligned { granule: 4096, .. })), "{refused:?}");
    }
    assert!(matches!(device.apply(S, EPOCH, patch(0, 20 << 10)), Err(UpdateError::TooLarge { .. })));
    let version = |version| Apply { merged: vec![(3, version)], ..Apply::default() };
    device.apply(S, EPOCH, version(7)).unwrap();
    let back = UpdateError::Backwards { segment: S, held: 7, given: 6 };
    assert_eq!(device.apply(S, EPOCH, version(6)), Err(back));
    assert_eq!(device.stage(T, EPOCH, 0, &[1]), Err(UpdateError::NoExtent { segment: T }));
    device.create_extent(spec(T, 4096, 2)).unwrap();
    assert_eq!(device.stage(T, EPOCH, 0, &[1]), Err(UpdateError::NotUpdatable { segment: T }));
    assert_eq!(device.log_append(T, EPOCH, &[1]), Err(LogError::NotUpdatable { segment: T }));
    let mut buf = AlignedBuf::zeroed(0);
    assert_eq!(device.read_chunk(T, 0..1, &mut buf), Err(UpdateError::NotUpdatable { segment: T }));
}

#[test]
fn older_epochs_are_refused_and_newer_ones_kept() {
    let (mut device, _) = device();
    chunk(&mut device, S, 2, 8 << 10);
    device.stage(S, Epoch(4), 0, &[1]).unwrap();
    device.flush().unwrap();
    let mut device = reopen(device);
    let (held, given) = (Epoch(4), Epoch(3));
    let stale = UpdateError::StaleEpoch { segment: S, held, given };
    assert_eq!(device.stage(S, given, 0, &[1]), Err(stale.clone()));
    assert_eq!(device.apply(S, given, Apply::default()), Err(stale.clone()));
    assert_eq!(device.shrink_reserve(S, given, 0), Err(stale));
    let stale = LogError::StaleEpoch { segment: S, held, given };
    assert_eq!(device.log_append(S, given, &[1]), Err(stale));
    device.log_append(S, Epoch(6), &[1]).unwrap();
    assert_eq!(device.updates(S).unwrap().epoch, Epoch(6));
    assert!(matches!(device.seal(S, given, &[]), Err(ChangeError::StaleEpoch { .. })));
}

#[test]
fn an_updatable_extent_is_whole_or_not_there() {
    let (mut device, medium) = device();
    let free = device.usage();
    let spec = |blocks, reserve_bytes| ExtentSpec {
        updates: Some(Updates { reserve_bytes }),
        ..spec(S, 8 << 10, blocks)
    };
    // Free, but not in one piece.
    let other = ExtentSpec { segment: T, ..spec(1, 0) };
    let blocks = (free.longest / 2 / 8192) as u32;
    device.create_extent(ExtentSpec { segment: SegmentId(7), ..spec(blocks, 0) }).unwrap();
    device.create_extent(other).unwrap();
    device.flush().unwrap();
    device.delete(SegmentId(7), EPOCH).unwrap();
    device.flush().unwrap();
    let before = device.usage();
    let refused = device.create_extent(spec(blocks + blocks / 2, 0));
    assert_eq!(refused, Err(CreateError::Full { free: before.free, longest: before.longest }));
    device.flush().unwrap();
    assert_eq!((device.extent(S), device.usage()), (None, before));
    device.self_check();
    device.create_extent(spec(2, 64 << 10)).unwrap();
    assert_eq!(device.usage().free, before.free - (4096 + 16384 + 65536));
    device.create_extent(spec(2, 64 << 10)).expect("the same again is the same");
    assert_eq!(device.create_extent(spec(2, 0)), Err(CreateError::Exists { segment: S }));
    for index in 0..2 {
        write(&mut device, S, index).unwrap();
    }
    assert!(matches!(write(&mut device, S, 2), Err(WriteError::Full { .. })), "no growth");
    for (segment, block_bytes, blocks, reserve_bytes) in
        [(9, 5000, 1, 0), (9, 8192, 0, 0), (9, 8192, 1, 5000), (9, 8192, 1, 1 << 60)]
    {
        let spec = ExtentSpec { segment: SegmentId(segment), block_bytes, ..spec(blocks, reserve_bytes) };
        assert!(matches!(device.create_extent(spec), Err(CreateError::Updates { .. })));
    }
    // Blocks that leave a gap are no chunk.
    device.delete(S, EPOCH).unwrap();
    device.flush().unwrap();
    device.create_extent(spec(3, 0)).unwrap();
    write(&mut device, S, 0).unwrap();
    write(&mut device, S, 2).unwrap();
    assert_eq!(device.stage(S, EPOCH, 0, &[1]), Err(UpdateError::Gaps { segment: S, blocks: 2 }));
    write(&mut device, S, 1).unwrap();
    // Written in another order, and changed across their borders before they were flushed.
    let before = medium.counters().flushes;
    assert_eq!(device.stage(S, EPOCH, 8000, &[7; 9000]).unwrap().version, 1);
    assert_eq!(medium.counters().flushes, before + 1, "the redo of a block must not outlive the block");
    let flushed = device.flush().unwrap();
    assert_eq!(flushed.blocks.iter().map(|(_, r)| r.len()).sum::<usize>(), 3, "none is forgotten");
    let mut device = reopen(device);
    assert_eq!(chunk_content(&mut device, S).unwrap()[8000..17_000], [7; 9000]);
    device.self_check();
    let small = Arc::new(MemoryMedium::new(8 << 20));
    Device::format(&*small, FormatOptions::new(CLUSTER, DEVICE)).unwrap();
    let refused = open(small).create_extent(spec(1, 0));
    let capacity = 128 << 20;
    let expected = CreateError::JournalTooSmall { journal_bytes: 64 << 10, needed: 512 << 10, capacity };
    assert_eq!(refused, Err(expected));
}

#[test]
fn a_log_beside_the_chunk() {
    let (mut device, medium) = device();
    chunk(&mut device, S, 2, 32 << 10);
    assert_eq!(device.log_free(S).unwrap(), (32 << 10) - 80);
    let before = medium.counters();
    assert_eq!(device.log_append(S, EPOCH, &[1; 5000]).unwrap(), 1);
    device.flush().unwrap();
    let (reads, writes, flushes) = spent(&*medium, before);
    assert_eq!((reads, writes, flushes), (0, 1, 1), "and the space ahead of it was zeroed");
    assert_eq!(device.log_append(S, EPOCH, &[2; 12_000]).unwrap(), 2);
    assert_eq!(device.log_append(S, EPOCH, &[3; 8000]).unwrap(), 3);
    let free = 4096 - 80;
    assert_eq!(device.log_append(S, EPOCH, &[4; 5000]), Err(LogError::Full { needed: 5000, free }));
    let entries: Vec<_> = device.log_entries(S).unwrap().iter().map(|e| (e.sequence, e.bytes)).collect();
    assert_eq!(entries, [(1, 5000), (2, 12_000), (3, 8000)]);
    assert_eq!(device.log_read(S, 2).unwrap(), &[2; 12_000][..]);
    let missing = LogError::NoRecord { segment: S, sequence: 5, first: 1, next: 4 };
    assert_eq!(device.log_read(S, 5), Err(missing.clone()));
    let apply = |log_start| Apply { log_start: Some(log_start), merged: vec![(1, 9)], ..Apply::default() };
    assert_eq!(device.apply(S, EPOCH, apply(5)), Err(missing.into()));
    assert!(matches!(device.shrink_reserve(S, EPOCH, 0), Err(UpdateError::LogInUse { records: 3, .. })));
    device.apply(S, EPOCH, apply(2)).unwrap();
    assert_eq!(device.log_free(S).unwrap(), free, "not before the start is durable");
    assert_eq!(device.log_append(S, EPOCH, &[4; 5000]).unwrap(), 4, "so the device makes it durable");
    device.flush().unwrap();
    let mut device = reopen(device);
    let info = device.updates(S).unwrap();
    assert_eq!(info.log.iter().map(|e| e.sequence).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!((info.merged, info.reserve_bytes, info.chunk_bytes), (vec![(1, 9)], 32 << 10, 16 << 10));
    for (sequence, payload) in [(2, vec![2; 12_000]), (3, vec![3; 8000]), (4, vec![4; 5000])] {
        assert_eq!(device.log_read(S, sequence).unwrap(), payload);
    }
    let free = device.usage().free;
    device.apply(S, EPOCH, apply(5)).unwrap();
    assert_eq!(
        device.shrink_reserve(S, EPOCH, 5000),
        Err(UpdateError::Reserve { held: 32 << 10, given: 5000 })
    );
    device.shrink_reserve(S, EPOCH, 8 << 10).unwrap();
    device.flush().unwrap();
    device.self_check();
    assert_eq!(device.usage().free, free + (24 << 10));
    assert_eq!(device.reserves_after(None, 8).reserves, [], "nobody shrinks what is being written");
    assert_eq!(device.log_append(S, EPOCH, &[5; 8000]).unwrap(), 5);
    device.flush().unwrap();
    let mut device = reopen(device);
    assert_eq!(device.log_read(S, 5).unwrap(), &[5; 8000][..]);
    device.seal(S, EPOCH, &[0..100]).unwrap();
    device.flush().unwrap();
    assert_eq!(device.updates(S).unwrap().log.len(), 1, "a reserve stays after a seal");
    let listed = |device: &Device| {
        let page = device.reserves_after(None, 8);
        assert_eq!((page.last, device.reserves_after(page.last, 8).last), (Some(S), None));
        let [info] = page.reserves[..] else { panic!("{page:?}") };
        assert_eq!((info.segment, info.chunk_bytes, info.reserve_bytes), (S, 16 << 10, 8 << 10));
        (info.held_bytes, info.logged_bytes)
    };
    assert_eq!(listed(&device), (8 << 10, 0), "a record of two pages, logged before the open");
    device.apply(S, EPOCH, apply(6)).unwrap();
    device.flush().unwrap();
    assert_eq!(device.log_append(S, EPOCH, &[6; 10]).unwrap(), 6);
    assert_eq!(device.log_append(S, EPOCH, &[7; 10]).unwrap(), 7);
    assert_eq!(listed(&device), (8 << 10, 8 << 10));
    device.apply(S, EPOCH, apply(8)).unwrap();
    device.flush().unwrap();
    assert_eq!(listed(&device), (0, 8 << 10), "a merge frees pages, and they were used");
    let device_of_nobody = reopen(device);
    assert_eq!(listed(&device_of_nobody), (0, 0), "no log is read back for it");
    let mut device = device_of_nobody;
    device.delete(S, EPOCH).unwrap();
    device.flush().unwrap();
    device.self_check();
    assert_eq!(device.usage().free, device.usage().capacity);
}

#[test]
fn a_reserve_is_zeroed_ahead_of_its_log() {
    let medium = Arc::new(CrashMedium::new(4 << 20));
    updatable(&*medium, false);
    medium.set_positions(false);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 2, 512 << 10);
    let reserve = device.locate(S, 3).unwrap() + (16 << 10);
    let zeroed = |from: usize| {
        let events = medium.events();
        let zeros = events[from..].iter().filter_map(|event| match event {
            Event::Zero { range } => Some(range.start - reserve..range.end - reserve),
            _ => None,
        });
        zeros.collect::<Vec<_>>()
    };
    let start = medium.len();
    assert!(!device.has_to_prepare(), "what may never be used is left alone");
    device.log_append(S, EPOCH, &[1; 100]).unwrap();
    device.flush().unwrap();
    assert_eq!(zeroed(start), [0..256 << 10]);
    assert!(device.has_to_prepare() && device.prepare_ahead().unwrap());
    assert!(!device.has_to_prepare() && !device.prepare_ahead().unwrap());
    assert_eq!(zeroed(start), [0..256 << 10, 256 << 10..512 << 10]);
    let mut device = reopen(device);
    let start = medium.len();
    while device.log_append(S, EPOCH, &[1; 50_000]).is_ok() {}
    device.flush().unwrap();
    for entry in device.log_entries(S).unwrap() {
        device.log_read(S, entry.sequence).unwrap();
    }
    // An open knows of the pages with records only; zeroing the others again hurts nothing.
    assert!(zeroed(start).iter().all(|range| range.start >= 4096));
}

#[test]
fn a_new_extent_does_not_see_the_log_of_an_earlier_one() {
    let (mut device, _) = device();
    for _ in 0..2 {
        chunk(&mut device, S, 2, 32 << 10);
        let mut again = reopen(device);
        assert_eq!(again.log_entries(S).unwrap(), []);
        assert_eq!(again.log_append(S, EPOCH, &[1; 100]).unwrap(), 1);
        again.flush().unwrap();
        again = reopen(again);
        assert_eq!(again.log_entries(S).unwrap().len(), 1);
        again.delete(S, EPOCH).unwrap();
        again.flush().unwrap();
        device = again;
    }
}

#[test]
fn damage_in_the_log_stops_its_extent_only() {
    let (mut device, medium) = device();
    chunk(&mut device, S, 2, 32 << 10);
    chunk(&mut device, T, 2, 32 << 10);
    for fill in 1..4 {
        device.log_append(S, EPOCH, &[fill; 100]).unwrap();
        device.log_append(T, EPOCH, &[fill; 100]).unwrap();
        device.flush().unwrap();
    }
    // The reserve is behind the two blocks.
    let reserve = device.locate(S, 3).unwrap() + (16 << 10);
    let mut device = reopen(device);
    assert_eq!(device.log_entries(S).unwrap().len(), 3);
    flip(&medium, reserve + 4096 + 90);
    assert_eq!(device.log_read(S, 2), Err(LogError::Corrupt { segment: S, sequence: 2 }));
    assert_eq!(device.log_read(S, 3).unwrap(), &[3; 100][..]);
    let mut device = reopen(device);
    let damaged = LogError::Damaged { segment: S, missing: 2..3 };
    assert_eq!(device.log_entries(S), Err(damaged.clone()));
    assert_eq!(device.log_read(S, 1), Err(damaged.clone()));
    assert_eq!(device.log_append(S, EPOCH, &[4]), Err(damaged.clone()));
    assert_eq!(device.apply(S, EPOCH, Apply::default()), Err(damaged.into()));
    assert!(device.updates(S).unwrap().damaged);
    chunk_content(&mut device, S).unwrap();
    assert_eq!(device.log_read(T, 3).unwrap(), &[3; 100][..]);
    device.delete(S, EPOCH).unwrap();
    device.flush().unwrap();
}

#[test]
fn flipped_bits_are_errors() {
    let (mut device, medium) = device();
    chunk(&mut device, S, 2, 0);
    device.stage(S, EPOCH, 0, &[1; 10]).unwrap();
    device.flush().unwrap();
    // The bytes that a held update replaced.
    flip(&medium, device.locate(S, 3).unwrap() + 77);
    let corrupt = ReadError::Corrupt { segment: S, index: 3, granule: 0 };
    assert_eq!(device.held(S), Err(corrupt.clone().into()));
    assert_eq!(chunk_content(&mut device, S).unwrap()[..10], [1; 10], "the new content is whole");
    flip(&medium, device.locate(S, 3).unwrap() + 77);
    assert_eq!(device.held(S).unwrap().len(), 1);
    flip(&medium, device.locate(S, 4).unwrap() + 4096);
    let corrupt = ReadError::Corrupt { segment: S, index: 4, granule: 1 };
    assert_eq!(device.stage(S, EPOCH, 12_288, &[1]), Err(corrupt.into()));
    assert_eq!(device.updates(S).unwrap().version, 1, "nothing of it happened");
    // A redo that was acknowledged.
    device.stage(S, EPOCH, 0, &[2; 10]).unwrap();
    device.flush().unwrap();
    device.fence(T, EPOCH).unwrap();
    device.flush().unwrap();
    drop(device);
    let image = medium.image();
    let frames = (JOURNAL..JOURNAL + (512 << 10)).step_by(4096);
    let mut refused = 0;
    for at in frames.filter(|at| image[*at as usize..][..4] == *b"SFJ1") {
        let medium = Arc::new(MemoryMedium::from_image(image.clone()));
        flip(&medium, at + 100);
        match Device::open(medium, None) {
            Ok(_) => {}
            Err(OpenError::IndexDamaged { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused >= 2, "{refused}");
}

#[test]
fn a_failed_flush_is_final() {
    let medium = Arc::new(CrashMedium::new(4 << 20));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 2, 8 << 10);
    device.stage(S, EPOCH, 0, &[1; 10]).unwrap();
    medium.fail_flushes(true);
    assert!(device.flush().is_err());
    medium.fail_flushes(false);
    let failed = |error: &UpdateError| matches!(error, UpdateError::Device(DeviceError::Failed { .. }));
    assert!(failed(&device.stage(S, EPOCH, 0, &[1]).unwrap_err()));
    assert!(failed(&device.apply(S, EPOCH, Apply::default()).unwrap_err()));
    assert!(failed(&device.release(S, 1).unwrap_err()));
    assert!(matches!(device.log_append(S, EPOCH, &[1]), Err(LogError::Device(_))));
    assert!(device.write_back(1).is_err() && device.prepare_ahead().is_err());
    chunk_content(&mut device, S).unwrap();
}

#[test]
fn many_changes_of_few_granules_stay_bounded() {
    let (mut device, medium) = device();
    let mut content = chunk(&mut device, S, 64, 0);
    let mut random = random(seed());
    for _ in 0..400 {
        let granule = below(&mut random, 128) as usize * 4096;
        let new = random_bytes(&mut random, 4096);
        content[granule..granule + 4096].copy_from_slice(&new);
        let patches = vec![(granule as u64, Bytes::from(new))];
        device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
        if below(&mut random, 4) == 0 {
            device.flush().unwrap();
            device.ease().unwrap();
            assert!(device.to_write_back() <= 256 << 10);
        }
    }
    assert!(chunk_content(&mut device, S).unwrap() == content);
    device.flush().unwrap();
    device.ease().unwrap();
    while device.write_back(64 << 10).unwrap() > 0 {}
    assert_eq!(device.to_write_back(), 0);
    assert!(chunk_content(&mut device, S).unwrap() == content);
    // Without the flush of what was written back: the journal has it all.
    let mut device = open(Arc::new(MemoryMedium::from_image(medium.image())));
    assert!(chunk_content(&mut device, S).unwrap() == content);
}

#[test]
fn what_an_open_finds_is_worked_off_by_and_by() {
    let (mut device, _) = large_device();
    let mut content = chunk(&mut device, S, 512, 0);
    let mut device = reopen(device);
    for at in (0..3 << 20).step_by(128 << 10) {
        content[at..at + (128 << 10)].fill(0xab);
        let patches = vec![(at as u64, Bytes::from(vec![0xab; 128 << 10]))];
        device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
        device.flush().unwrap();
        device.ease().unwrap();
    }
    let mut device = reopen(device);
    // The journal has what is in place, too.
    let mut waiting = device.to_write_back();
    assert_eq!(waiting, 3 << 20);
    for at in (3 << 20..).step_by(4096).take(8) {
        content[at..at + 4096].fill(1);
        let patches = vec![(at as u64, vec![1; 4096].into())];
        device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
        device.flush().unwrap();
        device.ease().unwrap();
        let now = device.to_write_back();
        assert!(now <= waiting + 4096 && now + (512 << 10) >= waiting, "{now} of {waiting} in one commit");
        waiting = now;
    }
    assert!(waiting <= 2 << 20, "{waiting}");
    assert!(chunk_content(&mut device, S).unwrap() == content);
}

#[test]
fn what_lies_together_goes_in_place_first_and_a_checkpoint_waits_for_none_of_it() {
    let (mut device, medium) = large_device();
    let (scattered, together) = (T, S);
    let [mut few, mut many] = [(scattered, 128), (together, 256)].map(|(s, n)| chunk(&mut device, s, n, 0));
    let mut change = |segment, content: &mut Vec<u8>, at: usize, len: usize| {
        content[at..at + len].fill(0xab);
        let patches = vec![(at as u64, Bytes::from(vec![0xab; len]))];
        device.apply(segment, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
    };
    (0..64).for_each(|number| change(scattered, &mut few, number * 16384, 4096));
    (0..15).for_each(|number| change(together, &mut many, number << 17, 1 << 17));
    // More than half of the journal waits.
    device.flush().unwrap();
    device.ease().unwrap();
    let (waiting, all) = (device.to_write_back(), (64 << 12) + (15 << 17));
    assert!(waiting <= 2 << 20 && waiting >= all - (512 << 10), "{waiting}");
    let byte = |device: &Device, segment| medium.image()[device.locate(segment, 3).unwrap() as usize];
    assert_eq!((byte(&device, together) == 0xab, byte(&device, scattered) == 0xab), (true, false));
    // The journal goes round.
    for epoch in 2..1200 {
        device.fence(SegmentId(7), Epoch(epoch)).unwrap();
        device.flush().unwrap();
        device.ease().unwrap();
    }
    assert_eq!(device.to_write_back(), waiting, "a checkpoint has it");
    let mut device = reopen(device);
    assert_eq!(device.to_write_back(), waiting);
    for (segment, content) in [(scattered, &few), (together, &many)] {
        assert!(chunk_content(&mut device, segment).unwrap() == *content);
    }
    device.write_back(u64::MAX).unwrap();
    assert!(byte(&device, scattered) == 0xab && device.to_write_back() == 0);
    assert!(chunk_content(&mut device, scattered).unwrap() == few);
}

// On a lane.

const WAIT: Duration = Duration::from_secs(60);

fn submit(lane: &LaneHandle, op: Op) -> mpsc::Receiver<Result<OpOutput, OpError>> {
    let (sender, receiver) = mpsc::channel();
    lane.submit(1, Priority::Normal, op, Box::new(move |result| drop(sender.send(result))));
    receiver
}

fn call(lane: &LaneHandle, op: Op) -> Result<OpOutput, OpError> {
    submit(lane, op).recv_timeout(WAIT).expect("an answer")
}

/// A lane whose device has one staged update, of its block 3: that lies there. With what it cost, in writes and flushes.
fn staged() -> (LaneHandle, Arc<EmulatedMedium<MemoryMedium>>, u64, (u64, u64)) {
    let medium = Arc::new(EmulatedMedium::new(Arc::new(MemoryMedium::new(4 << 20)), EmulationSpec::OFF));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 4, 64 << 10);
    let at = device.locate(S, 3).unwrap();
    let lane = Lane::spawn(device, LaneConfig::default()).unwrap();
    let before = medium.counters();
    let new = Bytes::from(vec![1; 4096]);
    let staged = submit(&lane, Op::Stage { segment: S, epoch: EPOCH, offset: 0, new, spend: None });
    let barrier = submit(&lane, Op::Barrier);
    assert!(matches!(staged.recv().unwrap(), Ok(OpOutput::Staged(s)) if s.version == 1));
    assert_eq!(barrier.recv().unwrap(), Ok(OpOutput::Durable));
    let (_, writes, flushes) = spent(&*medium, before);
    (lane, medium, at, (writes, flushes))
}

#[test]
fn a_lane_stages_at_once_and_writes_back_when_idle() {
    // Where this thread is held up the lane is idle meanwhile, and prepares its reserve.
    let mut tries = (0..5).map(|_| staged());
    let (lane, medium, at, _) =
        tries.find(|(.., cost)| *cost == (1, 1)).expect("an update costs one write and one flush");
    let held = |lane: &LaneHandle| match call(lane, Op::Held { segment: Some(S) }) {
        Ok(OpOutput::Held(held)) => held.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(held(&lane), 1);
    assert_eq!(call(&lane, Op::Held { segment: None }), Ok(OpOutput::HeldSegments(vec![(S, 1)])));
    assert_eq!(call(&lane, Op::Release { segment: S, through_version: 1 }), Ok(OpOutput::Released));
    let mut page = vec![0; 4096];
    let deadline = Instant::now() + WAIT;
    while page != [1; 4096] && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
        medium.read_at(at, &mut page).unwrap();
    }
    assert_eq!(page, [1; 4096], "nobody asks, so it goes in place");
    assert_eq!(held(&lane), 0);
    let patches = vec![(4096, Bytes::from(vec![5; 4096]))];
    let apply = Apply { patches, merged: vec![(2, 8)], ..Apply::default() };
    assert_eq!(call(&lane, Op::Apply { segment: S, epoch: EPOCH, apply }), Ok(OpOutput::Applied));
    let payload = Bytes::from_static(b"a delta");
    let append = Op::LogAppend { segment: S, epoch: EPOCH, sequence: None, payload: payload.clone() };
    assert_eq!(call(&lane, append), Ok(OpOutput::Logged { sequence: 1 }));
    let read = Op::LogRead { segment: S, sequence: 1 };
    assert_eq!(call(&lane, read), Ok(OpOutput::LogRecord(payload.clone())));
    let second = Bytes::from(vec![6; 5000]);
    let append = Op::LogAppend { segment: S, epoch: EPOCH, sequence: Some(2), payload: second.clone() };
    assert_eq!(call(&lane, append), Ok(OpOutput::Logged { sequence: 2 }));
    let run_to =
        |first, end, bytes_max| call(&lane, Op::LogReadRun { segment: S, sequences: first..end, bytes_max });
    let run = |first, bytes_max| run_to(first, 9, bytes_max);
    let reads = medium.counters().reads;
    assert_eq!(run(1, 12 << 10), Ok(OpOutput::LogRecords(vec![payload.clone(), second.clone()])));
    assert_eq!(medium.counters().reads, reads + 1, "both by one read");
    assert_eq!(
        run_to(1, 2, 12 << 10),
        Ok(OpOutput::LogRecords(vec![payload.clone()])),
        "none that was not asked for"
    );
    assert_eq!(run(1, 8 << 10), Ok(OpOutput::LogRecords(vec![payload])));
    assert_eq!(run(2, 0), Ok(OpOutput::LogRecords(vec![second])), "one at least");
    assert!(matches!(run(3, 0), Err(OpError::Update(UpdateError::Log(LogError::NoRecord { .. })))));
    let Ok(OpOutput::Updates(info)) = call(&lane, Op::DescribeUpdates { segment: S }) else { panic!() };
    assert_eq!((info.version, info.merged, info.log.len()), (1, vec![(2, 8)], 2));
    let read = Op::ReadChunk { segment: S, offset: 4000, len: 100 };
    let Ok(OpOutput::Chunk { offset: 0, data, sums, .. }) = call(&lane, read) else { panic!() };
    assert_eq!((data.len(), sums.len(), data[4096]), (8192, 2, 5));
    let shrink = Op::ShrinkReserve { segment: S, epoch: EPOCH, reserve_bytes: 0 };
    let refused = call(&lane, shrink.clone());
    assert!(matches!(refused, Err(OpError::Update(UpdateError::LogInUse { .. }))), "{refused:?}");
    let apply = Apply { log_start: Some(3), ..Apply::default() };
    assert_eq!(call(&lane, Op::Apply { segment: S, epoch: EPOCH, apply }), Ok(OpOutput::Applied));
    assert_eq!(call(&lane, shrink), Ok(OpOutput::Shrunk));
    lane.shutdown();
    let mut device = open(medium);
    assert_eq!(device.updates(S).unwrap().reserve_bytes, 0);
    assert_eq!(chunk_content(&mut device, S).unwrap()[..8192], [[1; 4096], [5; 4096]].concat());
}

/// Who reads a version that a crash would lose must not name it.
#[test]
fn a_change_is_durable_once_it_is_flushed() {
    const OTHER: SegmentId = SegmentId(77);
    let medium = Arc::new(MemoryMedium::new(8 << 20));
    updatable(&*medium, false);
    let mut device = open(medium);
    for segment in [S, OTHER] {
        chunk(&mut device, segment, 2, 16 << 10);
    }
    let durable = |device: &Device| [S, OTHER].map(|segment| device.is_durable(segment));
    assert_eq!(durable(&device), [true, true]);
    device.stage(S, EPOCH, 0, &[1]).unwrap();
    assert_eq!(durable(&device), [false, true], "one says nothing of the other");
    assert_eq!([S, OTHER].map(|segment| device.updates(segment).unwrap().durable), [false, true]);
    device.flush().unwrap();
    assert_eq!(durable(&device), [true, true]);
    device.log_append(OTHER, EPOCH, &[2; 100]).unwrap();
    assert_eq!(durable(&device), [true, false]);
    device.flush().unwrap();
    device.apply(OTHER, EPOCH, Apply { merged: vec![(1, 9)], ..Apply::default() }).unwrap();
    assert_eq!(durable(&device), [true, false]);
    device.flush().unwrap();
    assert_eq!(durable(&device), [true, true]);
}
