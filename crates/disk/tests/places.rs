//! Where places on the medium are dear, as on a rotating disk: what shares a frame, what lies together, what is never written; and
//! what a log is after a power loss or damage, wherever its records were.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::*;
use steadfast_disk::{
    Device, Epoch, ExtentSpec, Medium, MemoryMedium, SegmentId, Updates,
    device::{Apply, LogEntry, LogError, UpdateError},
    media::{CrashMedium, Event},
};

const S: SegmentId = SegmentId(5);
const T: SegmentId = SegmentId(6);

#[test]
fn a_release_waits_for_a_frame_that_is_written_anyway() {
    let medium = Arc::new(CrashMedium::new(4 << 20));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    // Where logs have places of their own.
    medium.set_positions(false);
    let mut content = chunk(&mut device, S, 2, 0);
    chunk(&mut device, T, 2, 32 << 10);
    let staged = device.stage(S, EPOCH, 0, &[1; 4096]).unwrap();
    content[..4096].fill(1);
    device.flush().unwrap();
    device.release(S, 1).unwrap();
    device.log_append(T, EPOCH, &[2; 100]).unwrap();
    let before = medium.counters();
    device.flush().unwrap();
    assert_eq!(
        spent(&*medium, before),
        (0, 0, 1),
        "the record is where it belongs, and there is nothing else"
    );
    // The release is not durable: nothing goes in place, and after a power loss the update is held as before.
    assert_eq!((device.write_back(u64::MAX).unwrap(), device.to_write_back()), (0, 4096));
    let mut again = open(Arc::new(CrashMedium::from_image(medium.crash_image(medium.len(), |_, _| false))));
    assert_eq!(again.held(S).unwrap(), [staged]);
    assert_eq!(again.log_read(T, 1).unwrap(), &[2; 100][..]);
    // A flush of its own, or one that others need a frame for, makes it so.
    let before = medium.counters();
    device.flush().unwrap();
    assert_eq!((spent(&*medium, before), device.is_clean()), ((0, 1, 1), true));
    assert_eq!(device.write_back(u64::MAX).unwrap(), 4096);
    let mut device = reopen(device);
    assert_eq!((device.held(S).unwrap(), chunk_content(&mut device, S).unwrap()), (vec![], content));
    device.stage(S, EPOCH, 0, &[3; 4096]).unwrap();
    device.flush().unwrap();
    device.release(S, 2).unwrap();
    device.log_append(T, EPOCH, &[4; 100]).unwrap();
    device.fence(T, Epoch(9)).unwrap();
    device.flush().unwrap();
    assert_eq!((device.is_clean(), device.write_back(u64::MAX).unwrap()), (true, 4096));
}

#[test]
fn a_merge_on_a_disk_that_positions_reads_what_was_logged_from_memory() {
    let medium = Arc::new(CrashMedium::new(4 << 20));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 2, 64 << 10);
    for fill in 1..=5 {
        device.log_append(S, EPOCH, &[fill; 5000]).unwrap();
    }
    device.flush().unwrap();
    let before = medium.counters();
    let run =
        |device: &mut Device, sequences, bytes_max| device.log_read_run(S, sequences, bytes_max).unwrap();
    assert_eq!(run(&mut device, 1..6, 1 << 20).iter().map(|r| r[0]).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(run(&mut device, 2..6, 10_000).iter().map(|r| r[0]).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(spent(&*medium, before), (0, 0, 0));
    device.apply(S, EPOCH, Apply { log_start: Some(3), ..Apply::default() }).unwrap();
    let gone = LogError::NoRecord { segment: S, sequence: 2, first: 3, next: 6 };
    assert_eq!(device.log_read(S, 2), Err(gone), "out of force");
    // What an open finds comes from the medium, what follows it from memory, and both make a run.
    device.flush().unwrap();
    let mut device = reopen(device);
    // The journal had them still.
    device.write_back(u64::MAX).unwrap();
    device.log_append(S, EPOCH, &[6; 5000]).unwrap();
    device.flush().unwrap();
    let before = medium.counters();
    assert_eq!(run(&mut device, 3..7, 1 << 20).iter().map(|r| r[0]).collect::<Vec<_>>(), [3, 4, 5]);
    assert_eq!(run(&mut device, 6..7, 1 << 20).iter().map(|r| r[0]).collect::<Vec<_>>(), [6]);
    assert_eq!(spent(&*medium, before), (1, 0, 0));
    assert_eq!(run(&mut device, 3..5, 1 << 20).len(), 2, "none that was not asked for");
    // On the medium records have pages of their own.
    assert_eq!((run(&mut device, 3..7, 16 << 10).len(), run(&mut device, 3..7, 12 << 10).len()), (2, 1));
    assert_eq!(run(&mut device, 4..7, 0).len(), 1, "one at least");
    // A record that comes back under its number is another extent's.
    device.delete(S, EPOCH).unwrap();
    device.flush().unwrap();
    chunk(&mut device, S, 2, 64 << 10);
    device.log_append(S, EPOCH, &[7; 10]).unwrap();
    assert_eq!(run(&mut device, 1..2, 1 << 20), [vec![7; 10]]);
}

/// Logs of S and T on a medium that positions, with five records each of which nothing is in the reserves, and what has happened.
fn two_logs() -> (Device, Arc<CrashMedium>) {
    let medium = Arc::new(CrashMedium::new(4 << 20));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    [S, T].into_iter().for_each(|segment| drop(chunk(&mut device, segment, 2, 128 << 10)));
    device.flush().unwrap();
    for fill in 1..=5u8 {
        let before = medium.counters();
        for segment in [S, T] {
            assert_eq!(device.log_append(segment, EPOCH, &[fill; 5000]).unwrap(), u64::from(fill));
        }
        device.flush().unwrap();
        assert_eq!(spent(&*medium, before), (0, 1, 1), "records of both logs share a frame");
    }
    (device, medium)
}

fn logged(device: &mut Device, segment: SegmentId) -> Vec<(u64, u8, usize)> {
    let entries = device.log_entries(segment).unwrap();
    let read = |entry: &LogEntry| {
        let payload = device.log_read(segment, entry.sequence).unwrap();
        assert!(payload.iter().all(|byte| *byte == payload[0]));
        (entry.sequence, payload[0], payload.len())
    };
    entries.iter().map(read).collect()
}

#[test]
fn where_places_are_dear_logs_share_frames_and_lie_together_later() {
    let (mut device, medium) = two_logs();
    let all: Vec<_> = (1..=5).map(|fill| (u64::from(fill), fill, 5000)).collect();
    // Each record takes two pages.
    assert_eq!(device.to_write_back(), 80 << 10);
    let before = medium.counters();
    assert_eq!(device.write_back_run(24 << 10).unwrap(), 24 << 10, "of a run what was asked for");
    assert_eq!(device.write_back(4096).unwrap(), 16 << 10, "a run that was begun is finished");
    assert_eq!(device.write_back(u64::MAX).unwrap(), 40 << 10);
    assert_eq!((spent(&*medium, before), device.to_write_back()), ((0, 3, 0), 0));
    let mut device = reopen(device);
    assert_eq!((logged(&mut device, S), logged(&mut device, T)), (all.clone(), all.clone()));
    // Where there is time, what changed in place comes first: the logs may be merged meanwhile.
    let (mut device, medium) = two_logs();
    device.apply(T, EPOCH, Apply { patches: vec![(0, vec![9; 4096].into())], ..Apply::default() }).unwrap();
    device.flush().unwrap();
    let place = device.locate(T, 3).unwrap();
    let before = medium.len();
    assert_eq!(device.write_back_run(24 << 10).unwrap(), 4096);
    assert!(matches!(&medium.events()[before], Event::Write { offset, .. } if *offset == place));
    assert_eq!(device.write_back_run(24 << 10).unwrap(), 24 << 10);
    // With none of it in the reserves, and after a checkpoint that has it: an open writes one.
    let (device, medium) = two_logs();
    drop(device);
    let mut image = medium.image();
    for _ in 0..3 {
        let medium = Arc::new(CrashMedium::from_image(image));
        let mut device = open(medium.clone());
        assert_eq!((logged(&mut device, S), logged(&mut device, T)), (all.clone(), all.clone()));
        assert_eq!(device.to_write_back(), 80 << 10);
        image = medium.image();
    }
    // Half in place, the next record elsewhere: on a medium that does not position any more it goes to its reserve.
    let medium = Arc::new(CrashMedium::from_image(image));
    let mut device = open(medium.clone());
    device.write_back(40 << 10).unwrap();
    medium.set_positions(false);
    device.log_append(S, EPOCH, &[6; 100]).unwrap();
    device.log_append(T, EPOCH, &[6; 100]).unwrap();
    medium.set_positions(true);
    device.log_append(T, EPOCH, &[7; 9]).unwrap();
    device.flush().unwrap();
    let mut device = open(Arc::new(CrashMedium::from_image(medium.crash_image(medium.len(), |_, _| true))));
    let and = |more: &[(u64, u8, usize)]| [&all[..], more].concat();
    assert_eq!(logged(&mut device, S), and(&[(6, 6, 100)]));
    assert_eq!(logged(&mut device, T), and(&[(6, 6, 100), (7, 7, 9)]));
}

/// Of two records in one frame, where the later one does not say that the earlier was durable, the earlier rots in its reserve.
#[test]
fn a_log_without_what_the_journal_goes_on_from_is_damaged() {
    let medium = Arc::new(CrashMedium::new(4 << 20));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 2, 32 << 10);
    device.flush().unwrap();
    for fill in 1..=2u8 {
        device.log_append(S, EPOCH, &[fill; 5000]).unwrap();
    }
    device.flush().unwrap();
    assert_eq!(device.write_back_run(8 << 10).unwrap(), 8 << 10, "the first is in its place");
    let at = device.locate(S, 3).unwrap() + (16 << 10);
    // The journal goes round: it does not have that one any more.
    for epoch in 2..200 {
        device.fence(SegmentId(7), Epoch(epoch)).unwrap();
        device.flush().unwrap();
    }
    drop(device);
    let mut page = [0; 4096];
    medium.read_at(at, &mut page).unwrap();
    page[200] ^= 1;
    medium.write_at(at, &page).unwrap();
    let mut device = open(medium);
    assert_eq!(device.log_entries(S), Err(LogError::Damaged { segment: S, missing: 1..3 }));
    assert!(matches!(device.log_append(S, EPOCH, &[3]), Err(LogError::Damaged { .. })));
    device.delete(S, EPOCH).unwrap();
    device.flush().unwrap();
    assert_eq!(device.to_write_back(), 0);
}

/// A record from before a cut lies where a log begins that is empty: nothing there could tell that it is stale.
#[test]
fn a_stale_record_is_not_taken_for_the_first_of_an_empty_log() {
    let medium = Arc::new(CrashMedium::new(4 << 20));
    updatable(&*medium, false);
    medium.set_positions(false);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 2, 32 << 10);
    device.flush().unwrap();
    let before = medium.len();
    for fill in 1..=2u8 {
        device.log_append(S, EPOCH, &[fill; 5000]).unwrap();
    }
    // Only the second survives.
    let writes = medium.events()[before..].iter().filter(|e| matches!(e, Event::Write { .. })).count();
    let first = medium.events()[before..].iter().position(|e| matches!(e, Event::Write { .. })).unwrap();
    assert_eq!(writes, 2);
    let image = medium.crash_image(medium.len(), |event, _| event != before + first);
    // Where the power is lost again while the log comes to begin there, with everything there but for zeros that were not flushed.
    let medium = Arc::new(CrashMedium::from_image(image.clone()));
    medium.set_positions(false);
    let mut device = open(medium.clone());
    assert_eq!(device.log_append(S, EPOCH, &[3; 5000]).unwrap(), 1);
    device.apply(S, EPOCH, Apply { log_start: Some(2), ..Apply::default() }).unwrap();
    device.flush().unwrap();
    let is_zeroing: Vec<_> =
        medium.events().iter().map(|event| matches!(event, Event::Zero { .. })).collect();
    assert!(is_zeroing.contains(&true));
    let crashed = medium.crash_image(is_zeroing.len() - 1, |event, _| !is_zeroing[event]);
    let mut device = open(Arc::new(CrashMedium::from_image(crashed)));
    assert_eq!(device.log_entries(S).unwrap(), [], "nobody appended a second one since");
    let medium = Arc::new(CrashMedium::from_image(image));
    medium.set_positions(false);
    let mut device = open(medium.clone());
    assert_eq!(device.log_entries(S).unwrap(), []);
    assert_eq!(device.log_append(S, EPOCH, &[3; 5000]).unwrap(), 1);
    device.flush().unwrap();
    device.apply(S, EPOCH, Apply { log_start: Some(2), ..Apply::default() }).unwrap();
    device.flush().unwrap();
    let mut device = reopen(device);
    assert_eq!(device.log_entries(S).unwrap(), [], "nobody appended a second one since");
    assert_eq!(device.log_append(S, EPOCH, &[4; 5000]).unwrap(), 2);
    device.flush().unwrap();
    assert_eq!(logged(&mut reopen(device), S), [(2, 4, 5000)]);
}

/// An extent that was lost left a record where the next one of its segment has its log.
#[test]
fn no_two_creations_have_a_number() {
    let medium = Arc::new(MemoryMedium::new(4 << 20));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    let spec = ExtentSpec { updates: Some(Updates { reserve_bytes: 32 << 10 }), ..spec(S, 8 << 10, 2) };
    let mut numbers = Vec::new();
    for _ in 0..3 {
        numbers.push(device.create_extent(spec).unwrap().created);
        (3..5).for_each(|index| write(&mut device, S, index).unwrap());
        device.log_append(S, EPOCH, &[9; 100]).unwrap();
        device = reopen(device);
        assert_eq!(device.extent(S), None);
    }
    chunk(&mut device, S, 2, 32 << 10);
    device.flush().unwrap();
    let mut device = reopen(device);
    assert_eq!(device.log_entries(S).unwrap(), []);
    // What is durable keeps its number, whatever comes behind it.
    numbers.push(device.extent(S).unwrap().created);
    let mut device = reopen(device);
    assert_eq!(device.extent(S).unwrap().created, numbers[3]);
    chunk(&mut device, T, 2, 0);
    numbers.push(device.extent(T).unwrap().created);
    assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
}

#[test]
fn what_was_merged_before_it_had_a_place_never_gets_one() {
    let (mut device, medium) = two_logs();
    device.apply(S, EPOCH, Apply { log_start: Some(5), ..Apply::default() }).unwrap();
    device.flush().unwrap();
    assert_eq!(device.to_write_back(), 48 << 10);
    device.delete(T, EPOCH).unwrap();
    device.flush().unwrap();
    let before = medium.counters();
    assert_eq!(device.write_back(u64::MAX).unwrap(), 8 << 10);
    assert_eq!(spent(&*medium, before), (0, 1, 0));
    // The ring goes round: what comes later lies where it was.
    for fill in 6..40 {
        device.log_append(S, EPOCH, &[fill; 9000]).unwrap();
        device.apply(S, EPOCH, Apply { log_start: Some(u64::from(fill)), ..Apply::default() }).unwrap();
        device.flush().unwrap();
        if fill % 5 == 0 {
            device.write_back(u64::MAX).unwrap();
        }
        let mut again = open(Arc::new(CrashMedium::from_image(medium.image())));
        assert_eq!(logged(&mut again, S), [(u64::from(fill), fill, 9000)]);
    }
    device.apply(S, EPOCH, Apply { log_start: Some(40), ..Apply::default() }).unwrap();
    device.shrink_reserve(S, EPOCH, 32 << 10).unwrap();
    device.flush().unwrap();
    assert_eq!(device.to_write_back(), 0);
    device.log_append(S, EPOCH, &[40; 100]).unwrap();
    device.flush().unwrap();
    assert_eq!(logged(&mut reopen(device), S), [(40, 40, 100)]);
}

#[test]
fn log_records_wait_for_others_of_their_log_until_they_are_half_of_what_waits() {
    let medium = Arc::new(CrashMedium::new(32 << 20));
    format_large(&*medium);
    let mut device = open(medium.clone());
    let mut content = chunk(&mut device, S, 512, 0);
    chunk(&mut device, T, 2, 4 << 20);
    device.flush().unwrap();
    device.ease().unwrap();
    let mut placed = [0, 0];
    let reserve = device.locate(T, 3).unwrap() + (16 << 10);
    let mut random = random(seed());
    for fill in 1..=150u64 {
        device.log_append(T, EPOCH, &[fill as u8; 16_300]).unwrap();
        let at = below(&mut random, 256) as usize * (16 << 10);
        content[at..at + (16 << 10)].fill(fill as u8);
        let patches = vec![(at as u64, Bytes::from(vec![fill as u8; 16 << 10]))];
        device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
        let before = medium.len();
        device.flush().unwrap();
        device.ease().unwrap();
        for event in &medium.events()[before..] {
            match event {
                Event::Write { offset, data } if *offset >= reserve && *offset < reserve + (4 << 20) => {
                    assert!(data.len() >= 256 << 10, "{} bytes of a log at once", data.len());
                    placed[1] += data.len();
                }
                Event::Write { data, .. } if data.len() % (16 << 10) == 0 => placed[0] += data.len(),
                _ => {}
            }
        }
        assert!(device.to_write_back() <= (2 << 20) + (16 << 10), "half of the journal");
    }
    println!("in place: {} bytes of a chunk, {} of a log", placed[0], placed[1]);
    assert!(placed[0] > 0 && placed[1] > 0, "{placed:?}");
    let mut device = reopen(device);
    assert!(chunk_content(&mut device, S).unwrap() == content);
    let all: Vec<_> = (1..=150).map(|fill| (fill, fill as u8, 16_300)).collect();
    assert_eq!(logged(&mut device, T), all);
}

/// Somebody may come meanwhile; unless so much waits that it would never be less.
#[test]
fn where_places_are_dear_few_are_written_at_a_time_unless_much_waits() {
    const PLACE: u64 = 16 << 10;
    let half_of_the_journal = 2 << 20;
    let medium = Arc::new(CrashMedium::new(32 << 20));
    format_large(&*medium);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 1024, 0);
    device.flush().unwrap();
    device.ease().unwrap();
    let change = |device: &mut Device, place: u64| {
        let patches = vec![(2 * place * PLACE, Bytes::from(vec![7; PLACE as usize]))];
        device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
    };
    // Which is to say in no order, and none beside another.
    let mut places = (0..256).map(|number| number * 37 % 256);
    let (mut eased, mut most) = (0, 0);
    for place in places.by_ref().take(150) {
        change(&mut device, place);
        device.flush().unwrap();
        let before = medium.len();
        device.ease().unwrap();
        let in_place =
            |event: &&Event| matches!(event, Event::Write { data, .. } if data.len() as u64 == PLACE);
        let written = medium.events()[before..].iter().filter(in_place).count();
        (eased, most) = (eased + written, most.max(written));
        assert!(device.to_write_back() <= half_of_the_journal, "{} wait", device.to_write_back());
    }
    assert!(
        eased > 150 - half_of_the_journal as usize / PLACE as usize && most <= 3,
        "{eased}, {most} at a time"
    );
    places.for_each(|place| change(&mut device, place));
    device.flush().unwrap();
    assert!(device.to_write_back() > half_of_the_journal * 9 / 8);
    device.ease().unwrap();
    assert!(device.to_write_back() <= half_of_the_journal, "{} wait", device.to_write_back());
}

/// A device on a medium that positions, with a chunk of 512 KiB, and its content.
fn positioning() -> (Device, Arc<CrashMedium>, Vec<u8>) {
    let medium = Arc::new(CrashMedium::new(16 << 20));
    format_large(&*medium);
    let mut device = open(medium.clone());
    let content = chunk(&mut device, S, 64, 0);
    device.flush().unwrap();
    (device, medium, content)
}

/// Changes every fourth granule of a chunk, and gives what lies between as it is there.
fn every_fourth(content: &mut [u8], fill: u8) -> Apply {
    let mut apply = Apply::default();
    for at in (0..content.len()).step_by(16 << 10) {
        content[at..at + 4096].fill(fill);
        apply.patches.push((at as u64, vec![fill; 4096].into()));
        let rest = at + 4096..at + (16 << 10);
        if rest.end < content.len() {
            apply.between.push((rest.start as u64, content[rest].to_vec().into()));
        }
    }
    apply
}

#[test]
fn a_medium_that_positions_writes_what_lies_between_changes_with_them() {
    let (mut device, medium, mut content) = positioning();
    let apply = every_fourth(&mut content, 0xab);
    device.apply(S, EPOCH, apply.clone()).unwrap();
    device.flush().unwrap();
    let before = medium.counters();
    // Of one run as much as was asked for; else, once begun, it is finished.
    assert_eq!(device.write_back_run(64 << 10).unwrap(), 64 << 10);
    assert_eq!(spent(&*medium, before), (0, 1, 0));
    let before = medium.counters();
    assert_eq!(device.write_back(64 << 10).unwrap(), (512 - 12 - 64) << 10);
    assert_eq!((spent(&*medium, before), device.to_write_back()), ((0, 1, 0), 0));
    assert!(chunk_content(&mut device, S).unwrap() == content);
    let mut device = reopen(device);
    assert!(chunk_content(&mut device, S).unwrap() == content);
    // A checkpoint carries what changed and is not in place, and nothing of what lies between.
    let (mut device, _, mut content) = positioning();
    let apply = every_fourth(&mut content, 0xab);
    device.apply(S, EPOCH, apply).unwrap();
    device.flush().unwrap();
    assert_eq!(device.to_write_back(), (512 - 12) << 10);
    for epoch in 2..1200 {
        device.fence(SegmentId(7), Epoch(epoch)).unwrap();
        device.flush().unwrap();
    }
    let mut device = reopen(device);
    assert_eq!(device.to_write_back(), 128 << 10);
    assert!(chunk_content(&mut device, S).unwrap() == content);
    // Any other medium is spared that.
    let (mut device, medium) = large_device();
    let mut content = chunk(&mut device, S, 64, 0);
    let apply = every_fourth(&mut content, 0xab);
    device.apply(S, EPOCH, apply).unwrap();
    device.flush().unwrap();
    let before = medium.counters();
    assert_eq!((device.to_write_back(), device.write_back(u64::MAX).unwrap()), (128 << 10, 128 << 10));
    assert_eq!(spent(&*medium, before), (0, 32, 0));
}

#[test]
fn what_lies_between_changes_never_replaces_anything() {
    let (mut device, medium, mut content) = positioning();
    // Granule 1 was changed and waits for its place; granule 2 is not what the caller believes.
    content[4096..8192].fill(1);
    let waiting = vec![(4096, Bytes::from(vec![1; 4096]))];
    device.apply(S, EPOCH, Apply { patches: waiting, ..Apply::default() }).unwrap();
    let mut apply = every_fourth(&mut content, 2);
    let wrong = vec![9; 4096].into();
    apply.between = vec![(4096, vec![8; 4096].into()), (8192, wrong), (0, vec![7; 4096].into())];
    apply.between.push((12_288, content[12_288..16_384].to_vec().into()));
    device.apply(S, EPOCH, apply).unwrap();
    assert_eq!(device.to_write_back(), 34 * 4096, "the one that lies between, beside what changed");
    assert!(chunk_content(&mut device, S).unwrap() == content);
    // It changes before it is written.
    content[12_288..16_384].fill(3);
    let patches = vec![(12_288, Bytes::from(vec![3; 4096]))];
    device.apply(S, EPOCH, Apply { patches, ..Apply::default() }).unwrap();
    device.flush().unwrap();
    // The redo of all of it survives a checkpoint, and there is none of what lies between.
    let mut again = open(Arc::new(CrashMedium::from_image(medium.image())));
    assert_eq!(again.to_write_back(), 34 * 4096);
    assert!(chunk_content(&mut again, S).unwrap() == content);
    while device.write_back(4096).unwrap() > 0 {}
    assert!(chunk_content(&mut device, S).unwrap() == content);
    assert!(chunk_content(&mut reopen(device), S).unwrap() == content);
    let (mut device, _, _) = positioning();
    let patches = vec![(0, Bytes::from(vec![1; 4096]))];
    let refused = |device: &mut Device, between| {
        device.apply(S, EPOCH, Apply { patches: patches.clone(), between, ..Apply::default() }).unwrap_err()
    };
    let misaligned = refused(&mut device, vec![(4096, vec![0; 100].into())]);
    assert_eq!(misaligned, UpdateError::Misaligned { offset: 4096, len: 100, granule: 4096 });
    let beyond = refused(&mut device, vec![(512 << 10, vec![0; 4096].into())]);
    assert!(matches!(beyond, UpdateError::OutOfRange { .. }), "{beyond}");
    assert_eq!(device.to_write_back(), 0, "refused whole");
}
