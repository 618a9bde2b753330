//! Places that take no writes: they cost what was to be written there and was not answered, once, and nothing that was.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::sync::{Arc, atomic::Ordering};

use common::{one_page::OnePage, *};
use steadfast_disk::{
    Device, Epoch, Granule, Medium, SegmentId, checksum,
    device::{Apply, DeviceError, LogError, NewBlock, Spend, UpdateError, WriteError},
    media::{CrashMedium, Event, MediumError},
};

const S: SegmentId = SegmentId(5);
const CAPACITY: u64 = 4 << 20;

/// Changes granules of a chunk of `S`, whose content this is, and flushes.
fn change(device: &mut Device, content: &mut [u8], granules: &[usize], fill: u8) {
    let patch = |&granule: &usize| {
        content[granule << 12..(granule + 1) << 12].fill(fill);
        ((granule as u64) << 12, vec![fill; 4096].into())
    };
    let patches = granules.iter().map(patch).collect();
    device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
    device.flush().unwrap();
}

/// Writes back all that waits: each step ends at a place that is found to take no writes.
fn put_all(device: &mut Device) -> Result<u64, DeviceError> {
    let mut bytes = 0;
    loop {
        match device.write_back(u64::MAX)? {
            0 => return Ok(bytes),
            more => bytes += more,
        }
    }
}

/// Whoever meets it fails, and its writer goes elsewhere; whoever comes next must not be sent there again.
#[test]
fn a_page_that_takes_no_writes_is_met_once() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    small(&*medium);
    let mut device = open(medium.clone());
    device.create_extent(spec(S, 4096, 8)).unwrap();
    write(&mut device, S, 0).unwrap();
    // The next slot's.
    medium.unwritable.store(device.locate(S, 0).unwrap() + 4096, Ordering::Relaxed);
    let refused = write(&mut device, S, 1);
    assert!(matches!(refused, Err(WriteError::Medium(MediumError::Io { .. }))), "{refused:?}");
    let all = |device: &mut Device| {
        (0..12).for_each(|index| assert_eq!(write(device, S, index), Ok(()), "{index}"));
        device.flush().unwrap();
        device.self_check();
        (0..12).for_each(|index| assert_eq!(read(device, S, index), Ok(()), "{index}"));
    };
    all(&mut device);
    // A seal leaves it to nobody either, nor does a delete.
    device.seal(S, EPOCH, &[0..1, 4..5]).unwrap();
    for _ in 0..2 {
        device.flush().unwrap();
        device.self_check();
        assert_eq!(device.delete(S, EPOCH), Ok(true));
        device.flush().unwrap();
        device.self_check();
        let usage = device.usage();
        assert_eq!((usage.free, device.failed()), (usage.capacity - 4096, None));
        device.create_extent(spec(S, 4096, 8)).unwrap();
        all(&mut device);
    }
    // Blocks that are written together, with the page among them: their slots are one place.
    device.create_extent(spec(SegmentId(6), 4096, 8)).unwrap();
    write(&mut device, SegmentId(6), 0).unwrap();
    medium.unwritable.store(device.locate(SegmentId(6), 0).unwrap() + 8192, Ordering::Relaxed);
    let contents: Vec<_> = (1..5).map(|index| block(SegmentId(6), index, 4096)).collect();
    let sums: Vec<_> = (1..)
        .zip(&contents)
        .map(|(index, bytes)| checksum::sums(bytes, Granule::KIB_4, SegmentId(6), VERSION, index))
        .collect();
    let blocks: Vec<_> = (1..)
        .zip(contents.iter().zip(&sums))
        .map(|(index, (bytes, sums))| NewBlock { index, pieces: vec![&bytes[..]], sums, checked: None })
        .collect();
    let answers = device.write_blocks(SegmentId(6), EPOCH, &blocks);
    assert!(answers.iter().all(Result::is_err), "{answers:?}");
    let answers = device.write_blocks(SegmentId(6), EPOCH, &blocks);
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    device.flush().unwrap();
    // An open knows nothing of it, and finds all that was written beside it.
    let mut device = reopen(device);
    (0..5).for_each(|index| assert_eq!(read(&mut device, SegmentId(6), index), Ok(()), "{index}"));
    (0..12).for_each(|index| assert_eq!(read(&mut device, S, index), Ok(()), "{index}"));
}

#[test]
fn a_medium_of_which_ever_more_places_take_no_writes_has_failed() {
    let medium = Arc::new(CrashMedium::new(CAPACITY));
    small(&*medium);
    let mut device = open(medium.clone());
    device.create_extent(spec(S, 4096, 100)).unwrap();
    write(&mut device, S, 0).unwrap();
    device.flush().unwrap();
    medium.fail_writes(true);
    let mut places = 0;
    while device.failed().is_none() {
        places += 1;
        assert!(places < 100, "{:?}", device.usage());
        let refused = write(&mut device, S, places);
        assert!(matches!(refused, Err(WriteError::Medium(MediumError::Io { .. }))), "{refused:?}");
    }
    assert!(places > 8, "{places}");
    medium.fail_writes(false);
    assert!(matches!(write(&mut device, S, 1), Err(WriteError::Device(DeviceError::Failed { .. }))));
    assert_eq!(read(&mut device, S, 0), Ok(()));
}

/// Nobody needs it before a record gets there. Those that do stay in the journal, as many as may be held, and a merge makes room for more.
#[test]
fn a_log_goes_past_a_page_ahead_of_it_that_takes_no_writes() {
    const OTHER: SegmentId = SegmentId(6);
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let content = chunk(&mut device, S, 2, 600 << 10);
    let reserve = device.locate(S, 3).unwrap() + content.len() as u64;
    medium.unwritable.store(reserve + 100 * 4096, Ordering::Relaxed);
    device.log_append(S, EPOCH, &[1; 5000]).unwrap();
    device.flush().unwrap();
    assert_eq!((device.has_to_prepare(), device.prepare_ahead()), (true, Ok(true)));
    assert_eq!((device.has_to_prepare(), device.failed()), (false, None));
    // Two pages each, of 150: it goes round.
    let (mut logged, mut merged, mut merges) = (1, 0, 0);
    while logged < 100 {
        match device.log_append(S, EPOCH, &[1; 5000]) {
            Ok(sequence) => logged = sequence,
            Err(refused) => {
                assert!(matches!(refused, LogError::Medium(MediumError::Io { .. })), "{refused}");
                assert!(
                    device.reserve(1, 0, u64::MAX) < 6000,
                    "no record was refused for which there was room"
                );
                device.unreserve(1, u64::MAX);
                (merged, merges) = (logged, merges + 1);
                device.apply(S, EPOCH, Apply { log_start: Some(logged + 1), ..Apply::default() }).unwrap();
                device.flush().unwrap();
                assert_eq!(device.reserve(1, 0, u64::MAX), device.held_bytes_max(), "nothing is kept");
                device.unreserve(1, u64::MAX);
            }
        }
        // As the lane does where it has time.
        device.prepare_ahead().unwrap();
    }
    assert!((4..=6).contains(&merges) && merged < 66, "{merges} merges, the last of {merged}");
    assert_eq!((medium.unwritten.load(Ordering::Relaxed), device.to_write_back()), (1, 0), "it is known");
    device.create_extent(spec(OTHER, 4096, 4)).unwrap();
    write(&mut device, OTHER, 0).unwrap();
    device.flush().unwrap();
    device.self_check();
    let mut device = reopen(device);
    assert_eq!(device.log_entries(S).unwrap().len() as u64, logged - merged);
    for sequence in merged + 1..=logged {
        assert_eq!(device.log_read(S, sequence).unwrap(), &[1; 5000][..], "{sequence}");
    }
    assert_eq!((read(&mut device, OTHER, 0), chunk_content(&mut device, S)), (Ok(()), Ok(content)));
}

/// It is nobody else's to find either.
#[test]
fn a_page_ahead_of_a_log_that_takes_no_writes_is_left_alone_when_its_extent_is_gone() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let content = chunk(&mut device, S, 2, 600 << 10);
    let reserve = device.locate(S, 3).unwrap() + content.len() as u64;
    medium.unwritable.store(reserve + 100 * 4096, Ordering::Relaxed);
    device.log_append(S, EPOCH, &[1; 5000]).unwrap();
    assert_eq!((device.prepare_ahead(), medium.unwritten.load(Ordering::Relaxed)), (Ok(true), 1));
    device.self_check();
    assert_eq!(device.delete(S, EPOCH), Ok(true));
    device.flush().unwrap();
    device.self_check();
    // With all that was to be zeroed at once.
    let usage = device.usage();
    assert_eq!((usage.capacity - usage.free, device.failed()), (64 * 4096, None));
}

/// It costs its log that record alone, and what was answered is there at the next open.
#[test]
fn a_page_that_takes_no_record_is_met_once() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let content = chunk(&mut device, S, 2, 64 << 10);
    let reserve = device.locate(S, 3).unwrap() + content.len() as u64;
    for fill in 1..=2 {
        device.log_append(S, EPOCH, &[fill; 5000]).unwrap();
    }
    medium.unwritable.store(reserve + 4 * 4096, Ordering::Relaxed);
    let refused = device.log_append(S, EPOCH, &[9; 5000]);
    assert!(matches!(refused, Err(LogError::Medium(MediumError::Io { .. }))), "{refused:?}");
    assert_eq!(device.log_append(S, EPOCH, &[3; 6000]), Ok(3));
    assert_eq!(device.log_append(S, EPOCH, &[4; 100]), Ok(4));
    assert_eq!((medium.unwritten.load(Ordering::Relaxed), device.failed()), (1, None));
    device.flush().unwrap();
    device.self_check();
    medium.unwritable.store(u64::MAX, Ordering::Relaxed);
    let mut device = reopen(device);
    assert_eq!(device.log_read(S, 3).unwrap(), &[3; 6000][..]);
    assert_eq!(device.log_read(S, 4).unwrap(), &[4; 100][..]);
    assert_eq!(device.log_append(S, EPOCH, &[5; 5000]), Ok(5));
}

/// A scan would come to it first, and to nothing that has its number elsewhere.
#[test]
fn a_record_that_is_there_though_its_write_failed_hides_none_that_was_answered() {
    for positions in [false, true] {
        let medium = OnePage::new(vec![0; CAPACITY as usize]);
        updatable(&*medium, false);
        let mut device = open(medium.clone());
        let content = chunk(&mut device, S, 2, 64 << 10);
        let reserve = device.locate(S, 3).unwrap() + content.len() as u64;
        // Of 16 pages two are left at the head, and the first twelve.
        for fill in 1..=7 {
            device.log_append(S, EPOCH, &[fill; 5000]).unwrap();
        }
        device.apply(S, EPOCH, Apply { log_start: Some(7), ..Apply::default() }).unwrap();
        device.flush().unwrap();
        medium.unwritable.store(reserve + 14 * 4096, Ordering::Relaxed);
        medium.written_all_the_same.store(true, Ordering::Relaxed);
        assert!(device.log_append(S, EPOCH, &[99; 100]).is_err());
        medium.positions.store(positions, Ordering::Relaxed);
        let elsewhere = device.log_append(S, EPOCH, &[8; 10_000]);
        assert!(matches!(elsewhere, Err(LogError::Medium(MediumError::Io { .. }))), "{elsewhere:?}");
        assert_eq!(device.log_append(S, EPOCH, &[8; 100]), Ok(8), "in front of it, in the journal");
        assert_eq!(device.log_append(S, EPOCH, &[9; 10_000]), Ok(9));
        device.flush().unwrap();
        put_all(&mut device).unwrap();
        let mut device = reopen(device);
        let first = |sequence| device.log_read(S, sequence).map(|record| (record[0], record.len()));
        assert_eq!([7, 8, 9].map(first), [Ok((7, 5000)), Ok((8, 100)), Ok((9, 10_000))]);
    }
}

/// A log must not come to begin with it, and nobody is to wait for it with each read of the chunk.
#[test]
fn a_stale_record_that_cannot_be_zeroed_costs_its_log_once() {
    let crashed = Arc::new(CrashMedium::new(CAPACITY));
    updatable(&*crashed, false);
    crashed.set_positions(false);
    let mut device = open(crashed.clone());
    let content = chunk(&mut device, S, 2, 32 << 10);
    let reserve = device.locate(S, 3).unwrap() + content.len() as u64;
    let before = crashed.len();
    for fill in 1..=2 {
        device.log_append(S, EPOCH, &[fill; 5000]).unwrap();
    }
    // Only the second survives.
    let is_write = |event: &Event| matches!(event, Event::Write { .. });
    let first = before + crashed.events()[before..].iter().position(is_write).unwrap();
    let medium = OnePage::new(crashed.crash_image(crashed.len(), |event, _| event != first));
    medium.unwritable.store(reserve + 2 * 4096, Ordering::Relaxed);
    let mut device = open(medium.clone());
    for _ in 0..2 {
        let lost = device.log_entries(S);
        assert!(matches!(lost, Err(LogError::Damaged { .. })), "{lost:?}");
        assert_eq!((medium.unwritten.load(Ordering::Relaxed), device.failed()), (1, None));
    }
    assert_eq!(chunk_content(&mut device, S), Ok(content));
}

/// The journal goes round, so that only a checkpoint has what is not in place.
fn forget_frames(device: &mut Device) {
    let before = device.epoch(SegmentId(7)).map_or(1, |epoch| epoch.0);
    for epoch in before + 1..before + 299 {
        device.fence(SegmentId(7), Epoch(epoch)).unwrap();
        device.flush().unwrap();
    }
}

#[test]
fn a_change_whose_place_takes_no_writes_stays_in_the_journal() {
    const OTHER: SegmentId = SegmentId(6);
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 4, 0);
    let mut beside = chunk(&mut device, OTHER, 4, 0);
    let first = device.locate(S, 3).unwrap();
    let bad = first + 4096;
    let byte = |at: u64| medium.below.image()[at as usize];
    let unwritten = || medium.unwritten.load(Ordering::Relaxed);
    medium.unwritable.store(bad, Ordering::Relaxed);
    // Three granules that are neighbours; of the second time the bad one is known.
    for (fill, in_place) in [(0xab, 12 << 10), (0xcd, 8 << 10)] {
        content[..12 << 10].fill(fill);
        let patches = vec![(0, vec![fill; 12 << 10].into())];
        device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
        device.flush().unwrap();
        assert_eq!(put_all(&mut device), Ok(in_place));
        assert_eq!((device.to_write_back(), device.failed(), unwritten()), (0, None, 2));
        assert_eq!([first, bad + 4096].map(byte), [fill; 2]);
        assert_eq!(chunk_content(&mut device, S).unwrap(), content);
    }
    // All others go on.
    device.stage(OTHER, EPOCH, 0, &[2; 100]).unwrap();
    device.release(OTHER, 1).unwrap();
    device.flush().unwrap();
    assert_eq!(device.write_back(u64::MAX), Ok(4096));
    beside[..100].fill(2);
    forget_frames(&mut device);
    // Nor can it be read, and it is tried once more by the next start.
    medium.lose(bad..bad + 4096);
    let mut device = reopen(device);
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);
    assert_eq!((device.to_write_back(), device.write_back(u64::MAX)), (4096, Ok(4096)));
    assert_eq!((device.to_write_back(), device.failed(), unwritten()), (0, None, 3));
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);
    assert_eq!(chunk_content(&mut device, OTHER).unwrap(), beside);
    device.self_check();
    forget_frames(&mut device);
    drop(device);

    // With its extent all of it goes, but for the place.
    let copy = OnePage::new(medium.below.image());
    copy.unwritable.store(bad, Ordering::Relaxed);
    let mut device = open(copy);
    assert_eq!(device.write_back(u64::MAX), Ok(4096));
    for segment in [S, OTHER] {
        assert_eq!(device.delete(segment, EPOCH), Ok(true));
    }
    device.flush().unwrap();
    device.self_check();
    let usage = device.usage();
    assert_eq!((usage.capacity - usage.free, device.failed()), (4096, None));
    assert_eq!(device.reserve(1, 0, u64::MAX), device.held_bytes_max(), "nothing is kept any more");

    // Once it takes writes again it is as any other.
    medium.unwritable.store(u64::MAX, Ordering::Relaxed);
    medium.lose(0..0);
    let mut device = open(medium.clone());
    assert_eq!(device.write_back(u64::MAX), Ok(4096));
    assert_eq!(byte(bad), 0xcd);
    forget_frames(&mut device);
    assert_eq!(chunk_content(&mut reopen(device), S).unwrap(), content);
}

#[test]
fn what_stays_in_the_journal_takes_room_of_what_is_held() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 4, 0);
    medium.unwritable.store(device.locate(S, 3).unwrap(), Ordering::Relaxed);
    content[..4096].fill(1);
    let patches = vec![(0, vec![1; 4096].into())];
    device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
    device.flush().unwrap();
    device.write_back(u64::MAX).unwrap();
    let room = device.reserve(1, 0, u64::MAX);
    assert!(room < device.held_bytes_max() - 4096 && room > device.held_bytes_max() - 8192, "{room}");
    device.unreserve(1, room);
    // A checkpoint has that and all that may be held beside it.
    let mut version = 0;
    while let Ok(staged) = device.stage(S, EPOCH, 8192, &[version as u8; 8192]) {
        content[8192..16_384].fill(version as u8);
        version = staged.version;
    }
    assert!(version > 1);
    forget_frames(&mut device);
    let mut device = reopen(device);
    assert_eq!((device.held(S).unwrap().len() as u64, device.failed()), (version, None));
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);
}

/// At each event, with all, some, and nothing of what was not flushed.
#[test]
fn what_stays_in_the_journal_survives_a_power_loss() {
    let medium = Arc::new(CrashMedium::new(1216 << 10));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 3, 0);
    let mut epochs = 2..;
    let mut other_groups = |device: &mut Device, count: usize| {
        for epoch in epochs.by_ref().take(count) {
            device.fence(SegmentId(7), Epoch(epoch)).unwrap();
            device.flush().unwrap();
        }
    };
    // The ring is nearly full, so that a checkpoint follows.
    other_groups(&mut device, 115);
    content[..12 << 10].fill(1);
    let patches = vec![(0, vec![1; 12 << 10].into())];
    device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
    device.flush().unwrap();
    let start = medium.len();
    medium.fail_writes(true);
    // Each step ends at such a place: somebody may wait for the device.
    for left in [8 << 10, 4 << 10, 0] {
        assert_eq!((device.write_back(u64::MAX), device.to_write_back()), (Ok(4 << 10), left));
    }
    medium.fail_writes(false);
    other_groups(&mut device, 20);
    let slots = 4096..4096 + 2 * (128 << 10);
    let in_slot = |event: &Event| matches!(event, Event::Write { offset, .. } if slots.contains(offset));
    assert!(medium.events()[start..].iter().any(in_slot), "no checkpoint");
    for at in start..=medium.len() {
        for part in 0..3 {
            let image = medium.crash_image(at, |event, sector| {
                part == 0 || part == 1 && (event + sector).is_multiple_of(2)
            });
            let mut device = open(Arc::new(CrashMedium::from_image(image)));
            assert!(chunk_content(&mut device, S).unwrap() == content, "{part} at {at}");
        }
    }
}

/// Where places are dear records come to their reserve long after they were answered.
#[test]
fn a_log_record_whose_pages_take_no_writes_stays_in_the_journal_until_it_is_merged() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    medium.positions.store(true, Ordering::Relaxed);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let content = chunk(&mut device, S, 2, 64 << 10);
    let unwritten = || medium.unwritten.load(Ordering::Relaxed);
    // Each record takes two pages: it is the second one's.
    let bad = device.locate(S, 3).unwrap() + content.len() as u64 + 2 * 4096;
    medium.unwritable.store(bad, Ordering::Relaxed);
    let append = |device: &mut Device, fill: u8| {
        assert_eq!(device.log_append(S, EPOCH, &[fill; 5000]), Ok(u64::from(fill)));
    };
    (1..=5).for_each(|fill| append(&mut device, fill));
    device.flush().unwrap();
    assert_eq!(put_all(&mut device), Ok(40 << 10));
    assert_eq!((device.to_write_back(), device.failed(), unwritten()), (0, None, 2));
    forget_frames(&mut device);
    // Nor can they be read.
    medium.lose(bad..bad + 8192);
    let mut device = reopen(device);
    let run = |device: &mut Device, first, end| -> Vec<u8> {
        device.log_read_run(S, first..end, 1 << 20).unwrap().iter().map(|record| record[0]).collect()
    };
    let runs = [1, 2, 3].map(|first| run(&mut device, first, 6));
    assert_eq!(runs, [vec![1], vec![2], vec![3, 4, 5]]);
    assert_eq!((device.to_write_back(), device.write_back(u64::MAX), unwritten()), (8192, Ok(8192), 3));

    device.apply(S, EPOCH, Apply { log_start: Some(6), ..Apply::default() }).unwrap();
    device.flush().unwrap();
    assert_eq!(device.reserve(1, 0, u64::MAX), device.held_bytes_max(), "nothing is kept any more");
    device.unreserve(1, u64::MAX);
    // The ring goes round: the last of these is where the second one was.
    (6..=10).for_each(|fill| append(&mut device, fill));
    device.flush().unwrap();
    assert_eq!((device.write_back(u64::MAX), unwritten()), (Ok(32 << 10), 3), "it is known");
    assert_eq!((device.to_write_back(), device.failed()), (0, None));
    forget_frames(&mut device);
    let mut device = reopen(device);
    assert_eq!([6, 9, 10].map(|first| run(&mut device, first, first + 1)), [vec![6], vec![9], vec![10]]);
    assert_eq!(chunk_content(&mut device, S), Ok(content));
}

/// Nobody waits for changes to be put in place, so nobody else may find it.
#[test]
fn a_medium_that_takes_no_change_at_one_place_after_the_other_has_failed() {
    for (changes, has_failed) in [(16, false), (17, true)] {
        let medium = Arc::new(CrashMedium::new(CAPACITY));
        updatable(&*medium, false);
        let mut device = open(medium.clone());
        let mut content = chunk(&mut device, S, 64, 0);
        (0..changes).for_each(|number| change(&mut device, &mut content, &[4 * number], 7));
        medium.fail_writes(true);
        let outcome = put_all(&mut device);
        assert_eq!(matches!(outcome, Err(DeviceError::Failed { .. })), has_failed, "{outcome:?}");
        assert_eq!(device.failed().is_some(), has_failed);
        medium.fail_writes(false);
        assert!(chunk_content(&mut device, S).unwrap() == content);
        let mut device = reopen(device);
        assert_eq!(device.write_back(u64::MAX), Ok(changes as u64 * 4096));
        assert!(chunk_content(&mut device, S).unwrap() == content);
    }
}

/// One that takes a change in between is no row, but ever more places are.
#[test]
fn a_medium_of_which_ever_more_places_take_no_change_has_failed() {
    let medium = Arc::new(CrashMedium::new(16 << 20));
    format_large(&*medium);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 128, 0);
    let mut granules = (0..256).step_by(2);
    for row in 0..5 {
        change(&mut device, &mut content, &[granules.next().unwrap()], 1);
        assert_eq!(device.write_back(u64::MAX), Ok(4096));
        let bad = granules.by_ref().take(16);
        bad.for_each(|granule| change(&mut device, &mut content, &[granule], 2));
        medium.fail_writes(true);
        let outcome = put_all(&mut device);
        medium.fail_writes(false);
        assert_eq!(outcome.is_err(), row == 4, "row {row}: {outcome:?}");
        assert!(chunk_content(&mut device, S).unwrap() == content);
    }
    assert!(device.failed().is_some());
    assert!(chunk_content(&mut reopen(device), S).unwrap() == content);
}

/// Index, held changes, and what is kept.
#[test]
fn a_medium_for_which_a_checkpoint_cannot_keep_all_has_failed() {
    let medium = Arc::new(CrashMedium::new(CAPACITY));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 2, 256 << 10);
    for sequence in 1..=10 {
        assert_eq!(device.log_append(S, EPOCH, &[sequence as u8; 15_000]), Ok(sequence));
        device.flush().unwrap();
    }
    medium.fail_writes(true);
    let mut kept = 0;
    let failed = loop {
        match device.write_back(u64::MAX) {
            Ok(bytes) => assert_eq!(bytes, 16 << 10, "after {kept}"),
            Err(failed) => break failed,
        }
        kept += 1;
    };
    assert!(matches!(failed, DeviceError::Failed { cause: MediumError::Io { .. } }), "{failed}");
    assert!((5..9).contains(&kept), "{kept}");
    medium.fail_writes(false);
    let mut device = reopen(device);
    put_all(&mut device).unwrap();
    for sequence in 1..=10 {
        assert_eq!(device.log_read(S, sequence).unwrap(), &[sequence as u8; 15_000][..]);
    }
}

/// What a checkpoint has no room for goes in place before it, behind the bad place, too.
#[test]
fn a_checkpoint_with_too_little_room_goes_past_a_place_that_takes_no_writes() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 64, 0);
    medium.unwritable.store(device.locate(S, 3).unwrap(), Ordering::Relaxed);
    for first in (0..40).step_by(2) {
        change(&mut device, &mut content, &[first, first + 1], 5);
    }
    assert_eq!(device.to_write_back(), 40 * 4096);
    forget_frames(&mut device);
    assert_eq!((device.to_write_back(), device.failed()), (0, None));
    assert!(chunk_content(&mut reopen(device), S).unwrap() == content);
}

/// It is written as it is there, and the write that fails may have destroyed that.
#[test]
fn what_lies_between_changes_and_takes_no_writes_stays_in_the_journal() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    medium.positions.store(true, Ordering::Relaxed);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 4, 0);
    let first = device.locate(S, 3).unwrap();
    let turns_bad = |granule: u64| medium.unwritable.store(first + (granule << 12), Ordering::Relaxed);
    turns_bad(2);
    change(&mut device, &mut content, &[2], 1);
    assert_eq!((put_all(&mut device), device.to_write_back()), (Ok(4096), 0));
    // Granule 1 lies between one that is written alone, and one whose place is known.
    turns_bad(1);
    let change_around = |device: &mut Device, content: &mut [u8], fill: u8| {
        let between = vec![(4096, content[4096..8192].to_vec().into())];
        let patches = vec![(0, vec![fill; 4096].into()), (8192, vec![fill; 4096].into())];
        device.apply(S, EPOCH, Apply { patches, between, ..Apply::default() }).unwrap();
        device.flush().unwrap();
        content[..4096].fill(fill);
        content[8192..12_288].fill(fill);
    };
    change_around(&mut device, &mut content, 2);
    assert_eq!((put_all(&mut device), device.to_write_back(), device.failed()), (Ok(8192), 0, None));
    medium.lose(first + 4096..first + 8192);
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);
    forget_frames(&mut device);
    let mut device = reopen(device);
    assert_eq!((chunk_content(&mut device, S).unwrap(), device.to_write_back()), (content.clone(), 8192));

    // All is well again, but for what is left alone.
    medium.lose(0..0);
    medium.unwritable.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(put_all(&mut device), Ok(8192));
    turns_bad(2);
    change(&mut device, &mut content, &[2], 3);
    assert_eq!(put_all(&mut device), Ok(4096));
    // Both it lies between stay, so that nothing else asks for it.
    turns_bad(0);
    change_around(&mut device, &mut content, 4);
    assert_eq!((device.write_back(u64::MAX), device.to_write_back()), (Ok(4096), 4096));
    medium.below.write_at(first + 4096, &[0; 4096]).unwrap();
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);
    assert_eq!((put_all(&mut device), device.to_write_back()), (Ok(4096), 0));
    device.flush().unwrap();
    assert_eq!(medium.below.image()[first as usize + 4096..][..4096], content[4096..8192]);
    assert_eq!(chunk_content(&mut reopen(device), S).unwrap(), content);
}

/// Of two writes the first leaves nothing that granules of the second lie between.
#[test]
fn what_lies_between_changes_of_other_writes_stays_in_the_journal() {
    const LAST: usize = 299;
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    medium.positions.store(true, Ordering::Relaxed);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, LAST as u32 / 2 + 1, 0);
    let first = device.locate(S, 3).unwrap();
    let turns_bad = |granule: u64| medium.unwritable.store(first + (granule << 12), Ordering::Relaxed);
    turns_bad(LAST as u64);
    change(&mut device, &mut content, &[LAST], 1);
    assert_eq!(put_all(&mut device), Ok(4096));
    // The first write has 256 pieces.
    turns_bad(270);
    let between =
        (1..LAST).map(|granule| ((granule as u64) << 12, content[granule << 12..][..4096].to_vec()));
    let between = between.map(|(at, bytes)| (at, bytes.into())).collect();
    let patches = [0, LAST as u64].map(|granule| (granule << 12, vec![2; 4096].into())).to_vec();
    device.apply(S, EPOCH, Apply { patches, between, ..Apply::default() }).unwrap();
    device.flush().unwrap();
    [0, LAST].into_iter().for_each(|granule| content[granule << 12..][..4096].fill(2));
    put_all(&mut device).unwrap();
    assert_eq!((device.to_write_back(), device.failed()), (0, None));
    medium.lose(first + (270 << 12)..first + (271 << 12));
    assert!(chunk_content(&mut device, S) == Ok(content.clone()));
    forget_frames(&mut device);
    assert!(chunk_content(&mut reopen(device), S) == Ok(content));
}

/// A try costs a disk seconds, and whoever comes meanwhile waits for one.
#[test]
fn a_step_ends_at_a_place_that_takes_no_writes() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 8, 0);
    medium.unwritable.store(device.locate(S, 3).unwrap(), Ordering::Relaxed);
    change(&mut device, &mut content, &[0, 2, 4], 1);
    assert_eq!((device.write_back(u64::MAX), device.to_write_back()), (Ok(4096), 2 * 4096));
    assert_eq!((device.write_back(u64::MAX), device.to_write_back()), (Ok(2 * 4096), 0));
}

/// Whoever staged it forms its difference with what is in memory alone.
#[test]
fn a_change_is_staged_over_one_that_stays_in_the_journal() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 4, 0);
    let bad = device.locate(S, 3).unwrap();
    medium.unwritable.store(bad, Ordering::Relaxed);
    change(&mut device, &mut content, &[0], 1);
    assert_eq!(put_all(&mut device), Ok(4096));
    medium.lose(bad..bad + 4096);
    let difference = xor(&[1; 4096], &[2; 4096]);
    assert_eq!(device.stage(S, EPOCH, 0, &[2; 4096]).unwrap().difference, difference);
    forget_frames(&mut device);
    let mut device = reopen(device);
    assert_eq!(device.held(S).unwrap()[0].difference, difference);
    assert_eq!((put_all(&mut device), device.to_write_back()), (Ok(4096), 0), "what it was staged over");
    assert_eq!(device.held(S).unwrap()[0].difference, difference);
    device.release(S, 1).unwrap();
    device.flush().unwrap();
    assert_eq!((put_all(&mut device), device.to_write_back()), (Ok(0), 0), "its place is known");
    content[..4096].fill(2);
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);
    forget_frames(&mut device);
    assert_eq!(chunk_content(&mut reopen(device), S).unwrap(), content);
}

#[test]
fn a_seal_leaves_nothing_in_the_journal_of_blocks_that_it_drops() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 4, 0);
    // The first granule of the third block.
    medium.unwritable.store(device.locate(S, 5).unwrap(), Ordering::Relaxed);
    change(&mut device, &mut content, &[0, 4], 1);
    assert_eq!(put_all(&mut device), Ok(8192));
    assert!(device.reserve(1, 0, u64::MAX) < device.held_bytes_max());
    device.unreserve(1, u64::MAX);
    device.seal(S, EPOCH, &[3..4, 4..5]).unwrap();
    assert_eq!(device.reserve(1, 0, u64::MAX), device.held_bytes_max(), "nothing is kept any more");
    device.flush().unwrap();
    device.self_check();
    content.truncate(16 << 10);
    assert_eq!(chunk_content(&mut device, S).unwrap(), content);
    assert_eq!(chunk_content(&mut reopen(device), S).unwrap(), content);
}

/// Nobody who has room waits for it, or two would wait for each other.
#[test]
fn what_stays_in_the_journal_takes_no_room_that_was_reserved_before() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 4, 0);
    medium.unwritable.store(device.locate(S, 3).unwrap(), Ordering::Relaxed);
    assert_eq!(device.reserve(1, 0, u64::MAX), device.held_bytes_max());
    change(&mut device, &mut content, &[0], 1);
    assert_eq!(put_all(&mut device), Ok(4096));
    // A granule, and what a redo has beside it.
    let spend = Some(Spend { owner: 1, bytes: 4200 });
    let overwrite = |device: &mut Device, version| {
        device.overwrite_from(S, EPOCH, (8192, &[1; 4096]), (0, version), spend)
    };
    let reserved_for = device.held_bytes_max() / 4200;
    for version in 1..=reserved_for {
        overwrite(&mut device, version).unwrap();
    }
    let refused = overwrite(&mut device, reserved_for + 1);
    assert!(matches!(refused, Err(UpdateError::Held { .. })), "{refused:?}");
    forget_frames(&mut device);
    let mut device = reopen(device);
    assert_eq!((device.held(S).unwrap().len() as u64, device.failed()), (reserved_for, None));
}

/// Each open would meet it again, and be able to read alone for ever.
#[test]
fn a_page_of_the_journal_that_takes_no_writes_is_stepped_around() {
    let medium = OnePage::new(vec![0; CAPACITY as usize]);
    updatable(&*medium, false);
    // Behind two checkpoints.
    medium.unwritable.store(4096 + 2 * (128 << 10) + 40 * 4096, Ordering::Relaxed);
    let mut device = open(medium.clone());
    let content = chunk(&mut device, S, 4, 0);
    for open in 1..=3 {
        forget_frames(&mut device);
        assert_eq!((device.failed(), medium.unwritten.load(Ordering::Relaxed)), (None, open), "it is known");
        device = reopen(device);
        assert_eq!(device.epoch(SegmentId(7)), Some(Epoch(1 + 298 * open)));
        assert_eq!(chunk_content(&mut device, S).unwrap(), content);
    }
}
