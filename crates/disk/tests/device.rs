//! A device without crashes: checks, epochs, growth, sealing, fullness, failure.

#![allow(clippy::single_range_in_vec_init, reason = "a list of one range is what is meant")]
#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::sync::Arc;

use common::*;
use steadfast_disk::{
    AlignedBuf, Device, EmulatedMedium, EmulationSpec, Epoch, ExtentSpec, FormatOptions, Medium,
    MemoryMedium, SegmentId, Updates, Version, checksum,
    device::{ChangeError, CreateError, DeviceError, NewBlock, ReadError, WriteError},
    media::CrashMedium,
};

const S: SegmentId = SegmentId(5);

fn device(capacity: u64) -> (Device, Arc<MemoryMedium>) {
    let medium = Arc::new(MemoryMedium::new(capacity));
    Device::format(&*medium, FormatOptions::new(CLUSTER, DEVICE)).unwrap();
    (open(medium.clone()), medium)
}

#[test]
fn a_flipped_bit_is_found_and_counted() {
    let (mut device, medium) = device(4 << 20);
    device.create_extent(spec(S, 10_000, 4)).unwrap();
    for index in 0..4 {
        write(&mut device, S, index).unwrap();
    }
    device.flush().unwrap();
    // The next group says that this one was flushed.
    device.fence(SegmentId(99), EPOCH).unwrap();
    device.flush().unwrap();
    let at = device.locate(S, 2).unwrap() + 5000;
    let mut page = vec![0; 4096];
    medium.read_at(at / 4096 * 4096, &mut page).unwrap();
    page[(at % 4096) as usize] ^= 4;
    medium.write_at(at / 4096 * 4096, &page).unwrap();
    for _ in 0..2 {
        assert_eq!(read(&mut device, S, 2), Err(ReadError::Corrupt { segment: S, index: 2, granule: 1 }));
        assert_eq!(device.corrupt_blocks(), 1, "a block, however often it is read");
    }
    for index in [0, 1, 3] {
        assert_eq!(read(&mut device, S, index), Ok(()));
    }
    // The other granules of the block are still good.
    let mut buf = AlignedBuf::zeroed(0);
    device.read_block(S, 2, 9000..9001, &mut buf).unwrap();
    assert_eq!(buf[..], block(S, 2, 10_000)[8192..]);
    assert!(matches!(device.read_block(S, 2, 5..10_001, &mut buf), Err(ReadError::OutOfRange { .. })));
    // An acknowledged block that rots stays listed: the open does not quietly forget it.
    drop(device);
    let mut device = open(medium);
    assert_eq!(device.extent(S).unwrap().block_count(), 4);
    assert!(matches!(read(&mut device, S, 2), Err(ReadError::Corrupt { .. })));
}

#[test]
fn swapped_blocks_do_not_pass() {
    let (mut device, medium) = device(4 << 20);
    device.create_extent(spec(S, 4096, 2)).unwrap();
    write(&mut device, S, 0).unwrap();
    write(&mut device, S, 1).unwrap();
    device.flush().unwrap();
    let (a, b) = (device.locate(S, 0).unwrap(), device.locate(S, 1).unwrap());
    let (mut one, mut two) = (vec![0; 4096], vec![0; 4096]);
    medium.read_at(a, &mut one).unwrap();
    medium.read_at(b, &mut two).unwrap();
    medium.write_at(a, &two).unwrap();
    medium.write_at(b, &one).unwrap();
    assert!(matches!(read(&mut device, S, 0), Err(ReadError::Corrupt { .. })));
    assert!(matches!(read(&mut device, S, 1), Err(ReadError::Corrupt { .. })));
}

#[test]
fn wrong_blocks_are_refused() {
    let (mut device, _) = device(4 << 20);
    let data = block(S, 1, 4096);
    let sums = checksum::sums(&data, steadfast_disk::Granule::KIB_4, S, VERSION, 1);
    assert_eq!(device.write_block(S, EPOCH, 1, &data, &sums), Err(WriteError::NoExtent { segment: S }));
    device.create_extent(spec(S, 4096, 2)).unwrap();
    assert!(matches!(device.write_block(S, EPOCH, 1, &data[1..], &sums), Err(WriteError::Length { .. })));
    assert!(matches!(device.write_block(S, EPOCH, 2, &data, &sums), Err(WriteError::Mismatch(_))));
    assert!(matches!(device.write_block(S, EPOCH, 1, &data, &[]), Err(WriteError::Mismatch(_))));
    device.write_block(S, EPOCH, 1, &data, &sums).unwrap();
    device.write_block(S, EPOCH, 1, &data, &sums).expect("the same again is the same");
    let other = vec![7; 4096];
    let other_sums = checksum::sums(&other, steadfast_disk::Granule::KIB_4, S, VERSION, 1);
    let refused = device.write_block(S, EPOCH, 1, &other, &other_sums);
    assert_eq!(refused, Err(WriteError::Exists { segment: S, index: 1 }));
    assert_eq!(device.flush().unwrap().blocks, [(S, 1..2)]);
    for block_bytes in [0, (1 << 20) + 1] {
        let spec = spec(SegmentId(6), block_bytes, 1);
        assert_eq!(device.create_extent(spec), Err(CreateError::BlockSize { block_bytes }));
    }
    assert_eq!(device.create_extent(spec(S, 8192, 2)), Err(CreateError::Exists { segment: S }));
    device.seal(S, EPOCH, &[0..10]).unwrap();
    assert_eq!(write(&mut device, S, 3), Err(WriteError::Sealed { segment: S }));
}

#[test]
fn a_block_may_come_in_pieces_of_whole_granules() {
    let (mut device, _) = device(4 << 20);
    device.create_extent(spec(S, 10_000, 3)).unwrap();
    let data = block(S, 1, 10_000);
    let sums = checksum::sums(&data, steadfast_disk::Granule::KIB_4, S, VERSION, 1);
    let mut write = |cuts: &[usize], sums: &[u32], checked: Option<Version>| {
        let mut pieces = Vec::new();
        let mut rest = &data[..];
        for &cut in cuts {
            let (piece, after) = rest.split_at(cut);
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        device.write_blocks(S, EPOCH, &[NewBlock { index: 1, pieces, sums, checked }]).pop().unwrap()
    };
    let mismatch = |granule| Err(WriteError::Mismatch(checksum::Mismatch { granule }));
    // How many there are is looked at of what was checked before, too.
    for checked in [None, Some(VERSION)] {
        assert_eq!(write(&[4095], &sums, checked), mismatch(1), "a granule that does not end with its piece");
        assert_eq!(write(&[4096, 5000], &sums, checked), mismatch(3));
        assert_eq!(write(&[4096], &sums[..1], checked), mismatch(1));
        assert_eq!(write(&[8192], &sums[..1], checked), mismatch(1));
        let more = [&sums[..], &[0]].concat();
        assert_eq!(write(&[4096, 4096], &more, checked), mismatch(3));
    }
    let mut wrong = sums.clone();
    wrong[2] ^= 1;
    assert_eq!(write(&[8192], &wrong, None), mismatch(2));
    assert_eq!(
        write(&[8192], &wrong, Some(Version(VERSION.0 + 1))),
        mismatch(2),
        "checked as another extent's"
    );
    assert_eq!(write(&[4096, 4096], &sums, Some(VERSION)), Ok(()));
    assert_eq!(write(&[8192], &sums, None), Ok(()), "the same again is the same");
    assert_eq!(read(&mut device, S, 1), Ok(()));
}

#[test]
fn what_was_checked_before_is_not_looked_at_again_and_a_reader_still_finds_it_wrong() {
    let (mut device, _) = device(4 << 20);
    device.create_extent(spec(S, 10_000, 3)).unwrap();
    let data = block(S, 1, 10_000);
    let mut wrong = checksum::sums(&data, steadfast_disk::Granule::KIB_4, S, VERSION, 1);
    wrong[2] ^= 1;
    let block = NewBlock { index: 1, pieces: vec![&data], sums: &wrong, checked: Some(VERSION) };
    assert_eq!(device.write_blocks(S, EPOCH, &[block]), [Ok(())]);
    assert_eq!(read(&mut device, S, 1), Err(ReadError::Corrupt { segment: S, index: 1, granule: 2 }));
}

#[test]
fn older_epochs_are_refused_even_after_a_delete_and_a_restart() {
    let (mut device, medium) = device(4 << 20);
    device.create_extent(spec(S, 4096, 2)).unwrap();
    device.fence(S, Epoch(5)).unwrap();
    let data = block(S, 1, 4096);
    let sums = checksum::sums(&data, steadfast_disk::Granule::KIB_4, S, VERSION, 1);
    let stale = Err(WriteError::StaleEpoch { segment: S, held: Epoch(5), given: Epoch(4) });
    assert_eq!(device.write_block(S, Epoch(4), 1, &data, &sums), stale);
    device.write_block(S, Epoch(6), 1, &data, &sums).unwrap();
    assert!(matches!(device.seal(S, Epoch(5), &[]), Err(ChangeError::StaleEpoch { .. })));
    assert_eq!(device.delete(S, Epoch(7)), Ok(true));
    device.flush().unwrap();
    drop(device);
    let mut device = open(medium);
    let stale = CreateError::StaleEpoch { segment: S, held: Epoch(7), given: EPOCH };
    assert_eq!(device.create_extent(spec(S, 4096, 2)), Err(stale));
    assert_eq!(device.delete(S, Epoch(7)), Ok(false));
    assert!(matches!(device.delete(S, Epoch(1)), Err(ChangeError::StaleEpoch { .. })));
}

#[test]
fn a_full_device_still_reads_and_deletes() {
    let (mut device, medium) = device(2 << 20);
    device.create_extent(spec(S, 4096, 4)).unwrap();
    let mut written = 0;
    let error = loop {
        match write(&mut device, S, written) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
        device.flush().unwrap();
    };
    assert!(matches!(error, WriteError::Full { .. }), "{error}");
    assert!(device.usage().free < 64 << 10, "{:?}", device.usage());
    assert!(matches!(device.create_extent(spec(SegmentId(9), 1 << 20, 1)), Err(CreateError::Full { .. })));
    device.self_check();
    for index in 0..written {
        assert_eq!(read(&mut device, S, index), Ok(()));
    }
    device.delete(S, EPOCH).unwrap();
    device.flush().unwrap();
    device.self_check();
    let usage = device.usage();
    assert_eq!((usage.free, usage.fragments), (usage.capacity, 1));
    drop(device);
    assert_eq!(open(medium).usage(), usage);
}

#[test]
fn what_is_not_created_leaves_nothing_and_no_fence_goes_for_it() {
    let medium = Arc::new(MemoryMedium::new(4 << 20));
    small(&*medium);
    let mut device = open(medium);
    let fenced = SegmentId(7);
    device.fence(fenced, Epoch(9)).unwrap();
    device.flush().unwrap();
    device.create_extent(spec(S, 4096, 4)).unwrap();
    for index in 0.. {
        match write(&mut device, S, index) {
            Ok(()) => {}
            Err(WriteError::Full { .. }) => break,
            Err(error) => panic!("{error}"),
        }
    }
    device.flush().unwrap();
    // More than the fences that such a device remembers.
    for number in 1000..1200 {
        let refused = device.create_extent(spec(SegmentId(number), 4096, 1));
        assert!(matches!(refused, Err(CreateError::Full { .. })), "{refused:?}");
    }
    assert!(device.is_clean(), "nothing waits for a flush");
    let stale = CreateError::StaleEpoch { segment: fenced, held: Epoch(9), given: EPOCH };
    assert_eq!(device.create_extent(spec(fenced, 4096, 1)), Err(stale));
    device.self_check();
}

/// The same of extents that change in place, which take all of their space or none.
#[test]
fn what_does_not_fit_whole_leaves_nothing_either() {
    let medium = Arc::new(MemoryMedium::new(4 << 20));
    updatable(&*medium, false);
    let mut device = open(medium);
    device.fence(SegmentId(7), Epoch(9)).unwrap();
    device.flush().unwrap();
    for number in 10_000..12_000 {
        let updates = Some(Updates { reserve_bytes: 0 });
        let refused = device.create_extent(ExtentSpec { updates, ..spec(SegmentId(number), 4096, 2000) });
        assert!(matches!(refused, Err(CreateError::Full { .. })), "{refused:?}");
    }
    // Nor is a reserve made that memory has no room for when it is read.
    let updates = Some(Updates { reserve_bytes: (64 << 20) + 4096 });
    let refused = device.create_extent(ExtentSpec { updates, ..spec(SegmentId(9), 4096, 1) });
    assert!(matches!(refused, Err(CreateError::Updates { .. })), "{refused:?}");
    assert!(device.is_clean(), "nothing waits for a flush");
    let stale = CreateError::StaleEpoch { segment: SegmentId(7), held: Epoch(9), given: EPOCH };
    assert_eq!(device.create_extent(spec(SegmentId(7), 4096, 1)), Err(stale));
    device.self_check();
}

/// Its space is taken at once, so a device could be taken whole by saying that very many blocks come.
#[test]
fn no_extent_that_changes_in_place_is_larger_than_a_segment() {
    let medium = Arc::new(MemoryMedium::new(160 << 20));
    updatable(&*medium, false);
    let mut device = open(medium);
    let updates = Some(Updates { reserve_bytes: 4096 });
    let of = |number, blocks| ExtentSpec { updates, ..spec(SegmentId(number), 1 << 20, blocks) };
    for blocks in [65, 4096, u32::MAX] {
        let refused = device.create_extent(of(1, blocks));
        assert!(matches!(refused, Err(CreateError::Updates { .. })), "{refused:?}");
    }
    device.create_extent(of(1, 64)).unwrap();
    device.self_check();
}

/// How many blocks come somebody says who may be wrong.
#[test]
fn one_extent_does_not_reserve_what_others_need() {
    let (mut device, _) = device(16 << 20);
    let capacity = device.usage().capacity;
    for number in 0..3 {
        device.create_extent(spec(SegmentId(number), 64 << 10, u32::MAX)).unwrap();
    }
    let free = device.usage().free;
    assert!(free > capacity / 8 * 5, "{free} of {capacity} bytes are left");
    // It gets what it then really needs.
    let mut written = 0;
    while write(&mut device, SegmentId(1), written).is_ok() {
        written += 1;
    }
    assert!(u64::from(written) * (64 << 10) > capacity / 4 * 3 - (1 << 20), "{written}");
    device.self_check();
}

#[test]
fn many_small_extents_fill_the_index_cleanly() {
    let medium = Arc::new(MemoryMedium::new(4 << 20));
    small(&*medium);
    let mut device = open(medium.clone());
    let mut count = 0u64;
    while device.create_extent(spec(SegmentId(count), 100, 1)).is_ok() {
        write(&mut device, SegmentId(count), 0).unwrap_or_else(|e| panic!("{count}: {e}"));
        device.flush().unwrap();
        count += 1;
        assert!(count < 1000, "the index has 12 KiB");
    }
    assert!(count > 50, "{count}");
    for segment in 0..count {
        device.delete(SegmentId(segment), Epoch(2)).unwrap();
        device.flush().unwrap();
    }
    drop(device);
    let device = open(medium);
    assert_eq!(device.usage().free, device.usage().capacity);
}

/// Blocks with gaps between their indices, all in one call, each a run of its own.
#[test]
fn a_batch_does_not_outgrow_the_index() {
    let medium = Arc::new(MemoryMedium::new(8 << 20));
    small(&*medium);
    let mut device = open(medium.clone());
    device.create_extent(spec(S, 100, 1200)).unwrap();
    let data: Vec<_> = (0..1200).map(|number| block(S, 2 * number, 100)).collect();
    let sum =
        |index: u32, data: &[u8]| checksum::sums(data, steadfast_disk::Granule::KIB_4, S, VERSION, index);
    let sums: Vec<_> = (0..).step_by(2).zip(&data).map(|(index, data)| sum(index, data)).collect();
    let blocks: Vec<_> = (0..)
        .step_by(2)
        .zip(data.iter().zip(&sums))
        .map(|(index, (data, sums))| NewBlock { index, pieces: vec![data], sums, checked: None })
        .collect();
    let answers = device.write_blocks(S, EPOCH, &blocks);
    let written = answers.iter().filter(|answer| answer.is_ok()).count();
    assert!((600..1000).contains(&written), "{written} of 10 KiB of runs");
    assert!(answers[written..].iter().all(|answer| matches!(answer, Err(WriteError::Full { .. }))));
    device.flush().unwrap();
    let mut device = reopen(device);
    for number in 0..written as u32 {
        assert_eq!(read(&mut device, S, 2 * number), Ok(()));
    }
    device.delete(S, EPOCH).unwrap();
    device.flush().unwrap();
}

/// A power loss keeps every second block of a group, so that its one run falls apart, and the index has no room for the parts.
#[test]
fn what_an_open_forgets_does_not_outgrow_the_index() {
    let medium = Arc::new(CrashMedium::new(8 << 20));
    small(&*medium);
    let mut device = open(medium.clone());
    device.create_extent(spec(S, 4096, 300)).unwrap();
    write(&mut device, S, 7).unwrap();
    let mut others = 0;
    while device.create_extent(spec(SegmentId(100 + others), 100, 1)).is_ok() {
        others += 1;
    }
    for other in 0..4 {
        device.delete(SegmentId(100 + other), EPOCH).unwrap();
    }
    device.flush().unwrap();
    let data: Vec<_> = (0..280).map(|index| block(S, 1000 + index, 4096)).collect();
    let sum = |index, data: &[u8]| checksum::sums(data, steadfast_disk::Granule::KIB_4, S, VERSION, index);
    let sums: Vec<_> = (1000..).zip(&data).map(|(index, data)| sum(index, data)).collect();
    let blocks: Vec<_> = (1000..)
        .zip(data.iter().zip(&sums))
        .map(|(index, (data, sums))| NewBlock { index, pieces: vec![data], sums, checked: None })
        .collect();
    let before = medium.len();
    assert!(device.write_blocks(S, EPOCH, &blocks).iter().all(|answer| answer.is_ok()));
    let write_event = before;
    device.flush().unwrap();
    let image =
        medium.crash_image(medium.len() - 1, |event, sector| event != write_event || sector / 8 % 2 == 0);
    let mut device = open(Arc::new(CrashMedium::from_image(image)));
    let kept: Vec<u32> = device.extent(S).unwrap().blocks.into_iter().flatten().collect();
    assert!(kept.len() > 40 && kept.len() < 140, "{} of those that are whole", kept.len());
    for &index in &kept {
        assert_eq!(read(&mut device, S, index), Ok(()));
    }
    let mut device = reopen(device);
    assert_eq!(read(&mut device, S, 7), Ok(()), "it was acknowledged");
    for other in 4..others {
        device.delete(SegmentId(100 + other), EPOCH).unwrap();
    }
    write(&mut device, S, 1279).unwrap();
    device.flush().unwrap();
    reopen(device);
}

#[test]
fn an_emulated_full_medium_refuses_only_new_space() {
    let below = Arc::new(MemoryMedium::new(4 << 20));
    let medium = Arc::new(EmulatedMedium::new(below, EmulationSpec::OFF));
    Device::format(&*medium, FormatOptions::new(CLUSTER, DEVICE)).unwrap();
    let mut device = open(medium.clone());
    device.create_extent(spec(S, 4096, 2)).unwrap();
    medium.control().redraw("full".parse().unwrap());
    assert!(matches!(device.create_extent(spec(SegmentId(6), 4096, 2)), Err(CreateError::Full { .. })));
    write(&mut device, S, 0).unwrap();
    write(&mut device, S, 1).unwrap();
    assert!(matches!(write(&mut device, S, 2), Err(WriteError::Full { .. })));
    device.flush().unwrap();
    assert_eq!(read(&mut device, S, 1), Ok(()));
    device.delete(S, EPOCH).unwrap();
    device.flush().unwrap();
    device.self_check();
}

#[test]
fn a_failed_flush_is_final() {
    let medium = Arc::new(CrashMedium::new(4 << 20));
    Device::format(&*medium, FormatOptions::new(CLUSTER, DEVICE)).unwrap();
    let mut device = open(medium.clone());
    device.create_extent(spec(S, 4096, 4)).unwrap();
    write(&mut device, S, 0).unwrap();
    device.flush().unwrap();
    write(&mut device, S, 1).unwrap();
    medium.fail_flushes(true);
    assert!(matches!(device.flush(), Err(DeviceError::Failed { .. })));
    medium.fail_flushes(false);
    let writes = medium.counters();
    assert!(matches!(device.flush(), Err(DeviceError::Failed { .. })), "never retried");
    assert!(matches!(write(&mut device, S, 2), Err(WriteError::Device(DeviceError::Failed { .. }))));
    assert!(matches!(device.delete(S, EPOCH), Err(ChangeError::Device(_))));
    assert_eq!(medium.counters(), writes);
    assert_eq!(read(&mut device, S, 0), Ok(()), "reads still work");
    assert!(matches!(read(&mut device, S, 1), Err(ReadError::NoBlock { .. })), "never acknowledged");
    drop(device);
    let mut device = open(medium);
    assert_eq!(read(&mut device, S, 0), Ok(()));
    write(&mut device, S, 2).unwrap();
    device.flush().unwrap();
}

#[test]
fn growth_stays_next_to_the_last_range_and_a_seal_gives_the_rest_back() {
    let (mut device, _) = device(16 << 20);
    device.create_extent(spec(S, 65_536, 8)).unwrap();
    for index in 0..40 {
        write(&mut device, S, index).unwrap();
    }
    let places: Vec<u64> = (0..40).map(|i| device.locate(S, i).unwrap()).collect();
    let jumps = places.windows(2).filter(|w| w[1] != w[0] + 65_536).count();
    assert!(jumps <= 3, "{jumps} jumps: {places:?}");
    assert!(places.windows(2).all(|w| w[1] <= w[0] + 65_536 + 4096), "only tables lie between");
    device.flush().unwrap();
    let before = device.usage().free;
    let sealed = device.seal(S, EPOCH, &[0..10, 20..25]).unwrap();
    assert_eq!(sealed.kept, 15);
    assert_eq!(device.usage().free, before, "not before the flush");
    device.flush().unwrap();
    assert_eq!(device.usage().free, before + sealed.freed_bytes);
    device.self_check();
    assert_eq!(device.extent(S).unwrap().blocks, [0..10, 20..25]);
    let used = device.usage().capacity - device.usage().free;
    assert!(used <= 15 * 65_536 + 3 * 4096, "{used}");
    assert_eq!(read(&mut device, S, 24), Ok(()));
    assert!(matches!(read(&mut device, S, 25), Err(ReadError::NoBlock { .. })));
}

#[test]
fn a_thick_device_keeps_the_room_of_what_it_freed_and_a_thin_one_gives_it_back() {
    for thick in [false, true] {
        let medium = Arc::new(MemoryMedium::new(4 << 20));
        Device::format(&*medium, FormatOptions { thick, ..FormatOptions::new(CLUSTER, DEVICE) }).unwrap();
        // Opened anew, it still knows.
        let mut device = open(medium.clone());
        device.create_extent(spec(S, 128 << 10, 1)).unwrap();
        write(&mut device, S, 0).unwrap();
        device.flush().unwrap();
        let at = device.locate(S, 0).unwrap();
        assert_eq!(device.delete(S, EPOCH), Ok(true));
        device.flush().unwrap();
        let mut page = vec![0; 4096];
        medium.read_at(at, &mut page).unwrap();
        let kept = page == block(S, 0, 128 << 10)[..4096];
        assert_eq!((kept, page.iter().all(|&byte| byte == 0)), (thick, !thick));
        // It is free either way.
        device.create_extent(spec(SegmentId(6), 128 << 10, 1)).unwrap();
        write(&mut device, SegmentId(6), 0).unwrap();
        assert_eq!(read(&mut device, SegmentId(6), 0), Ok(()));
    }
}

/// Random operations against a plain model, with reopens.
#[test]
fn agrees_with_a_plain_model() {
    use std::collections::{BTreeMap, BTreeSet};
    let seed = seed();
    for round in 0..6 {
        let mut random = random(seed + round);
        let medium = Arc::new(MemoryMedium::new(2 << 20));
        small(&*medium);
        let mut device = open(medium.clone());
        let mut model: BTreeMap<u64, (u32, bool, BTreeSet<u32>)> = BTreeMap::new();
        let mut created = 0;
        for _ in 0..400 {
            let id = below(&mut random, 6);
            // A segment's name is never used twice.
            let (segment, key) = (SegmentId(id + 10 * created / 50 * 10), id + 10 * created / 50 * 10);
            match below(&mut random, 10) {
                0 | 1 => {
                    let block_bytes = [1, 4096, 5000, 20_000][below(&mut random, 4) as usize];
                    if !model.contains_key(&key) && device.epoch(segment).is_none() {
                        let expected = below(&mut random, 8) as u32;
                        if device.create_extent(spec(segment, block_bytes, expected)).is_ok() {
                            model.insert(key, (block_bytes, false, BTreeSet::new()));
                        }
                    }
                    created += 1;
                }
                2..=6 => {
                    if let Some((_, false, blocks)) = model.get_mut(&key) {
                        let index = below(&mut random, 64) as u32;
                        if write(&mut device, segment, index).is_ok() {
                            blocks.insert(index);
                        }
                    }
                }
                7 => {
                    if let Some((_, sealed, blocks)) = model.get_mut(&key) {
                        let end = below(&mut random, 64) as u32;
                        let keep = [end / 2..end, end..end / 2, 60..64];
                        if device.seal(segment, EPOCH, &keep).is_ok() {
                            blocks.retain(|b| keep.iter().any(|k| k.contains(b)));
                            *sealed = true;
                        }
                    }
                }
                8 => {
                    device.delete(segment, EPOCH).unwrap();
                    model.remove(&key);
                }
                _ => {
                    device.flush().unwrap();
                    if below(&mut random, 4) == 0 {
                        drop(device);
                        device = open(medium.clone());
                    }
                }
            }
            device.self_check();
        }
        device.flush().unwrap();
        drop(device);
        let mut device = open(medium);
        let listed: BTreeMap<u64, BTreeSet<u32>> =
            device.extents().map(|e| (e.segment.0, e.blocks.into_iter().flatten().collect())).collect();
        assert_eq!(listed, model.iter().map(|(k, (_, _, b))| (*k, b.clone())).collect());
        for (key, (_, _, blocks)) in &model {
            for &index in blocks {
                assert_eq!(read(&mut device, SegmentId(*key), index), Ok(()));
            }
        }
    }
}
