//! Updates whose content is made up to be read back as frames of the journal that takes them.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::sync::Arc;

use common::*;
use steadfast_disk::{
    Device, Epoch, ExtentSpec, SegmentId, Version, checksum,
    device::{Apply, UpdateError},
    media::{CrashMedium, Event, SECTOR_BYTES},
};

const S: SegmentId = SegmentId(5);
const JOURNAL: u64 = 4096 + 2 * (128 << 10);

/// A whole frame that says this, of a device's journal.
fn frame(sequence: u64, base: u64, durable_through: u64, payload: &[u8]) -> Vec<u8> {
    let mut rest = DEVICE.0.to_le_bytes().to_vec();
    for number in [sequence, base, durable_through] {
        rest.extend(number.to_le_bytes());
    }
    for number in [payload.len() as u32, 2, 0, 0] {
        rest.extend(number.to_le_bytes());
    }
    rest.extend(payload);
    [&b"SFJ1"[..], &checksum::crc32c(&rest).to_le_bytes(), &rest].concat()
}

/// Two granules with these bytes wherever the second page of a frame that has them alone may begin.
fn granules(fake: &[u8]) -> Vec<u8> {
    // Frame and record, with an epoch and a chunk's number or without.
    let beginning = 4096 - 64 - (1 + 8 + 8 + 8 + 4);
    let mut bytes = vec![7; 8192];
    bytes[beginning..beginning + fake.len()].copy_from_slice(fake);
    bytes
}

fn device() -> (Device, Arc<CrashMedium>) {
    let medium = Arc::new(CrashMedium::new(4 << 20));
    updatable(&*medium, false);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 8, 64 << 10);
    (device, medium)
}

/// The next number of a frame and the checkpoint in force, as the last frame says it.
fn last_frame(medium: &CrashMedium) -> (u64, u64) {
    let image = medium.image();
    let pages = image[JOURNAL as usize..][..512 << 10].chunks(4096).filter(|page| page.starts_with(b"SFJ1"));
    let number = |page: &[u8], at| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    pages.map(|page| (number(page, 24), number(page, 32))).max().unwrap()
}

/// The update is in the journal; what its frame's first page is lost, the others are there.
fn torn(medium: &CrashMedium) -> Arc<CrashMedium> {
    let events = medium.events();
    let frame = events.iter().rposition(|event| matches!(event, Event::Write { .. })).unwrap();
    let first_page = 0..4096 / SECTOR_BYTES;
    let image = medium.crash_image(frame + 1, |event, sector| event < frame || !first_page.contains(&sector));
    Arc::new(CrashMedium::from_image(image))
}

#[test]
fn content_that_looks_like_a_lost_frame_is_none() {
    let (mut device, medium) = device();
    let bytes = granules(&frame(1 << 40, 1 << 40, u64::MAX, &[]));
    let staged = device.stage(S, EPOCH, 0, &bytes).unwrap();
    device.flush().unwrap();
    // Its frame without the first page: the update is absent.
    assert_eq!(open(torn(&medium)).updates(S).unwrap().version, 0);
    let mut device = reopen(device);
    assert_eq!(device.held(S).unwrap(), [staged]);
    assert_eq!(chunk_content(&mut device, S).unwrap()[..8192], bytes);
}

#[test]
fn content_that_looks_like_the_next_frame_is_none() {
    for lost in [false, true] {
        let (mut device, medium) = device();
        let (sequence, base) = last_frame(&medium);
        // The update's own frame is the next but for the one that is lost, and a frame of one page follows that.
        let deleted = [&[5][..], &S.0.to_le_bytes(), &u64::MAX.to_le_bytes()].concat();
        let fake = frame(sequence + 2, base + 1, 0, &deleted);
        device.stage(S, EPOCH, 0, &granules(&fake)).unwrap();
        device.flush().unwrap();
        let medium = if lost { torn(&medium) } else { medium };
        drop(device);
        let mut device = open(medium);
        device.fence(SegmentId(77), EPOCH).unwrap();
        device.flush().unwrap();
        let device = reopen(device);
        assert!(device.extent(S).is_some(), "the frame that was made up deleted it");
    }
}

#[test]
fn however_much_of_it_looks_like_frames_no_page_of_the_journal_does() {
    let (mut device, medium) = device();
    let mut random = random(seed());
    let fake = frame(1 << 40, 1 << 40, u64::MAX, &[]);
    let (mut refused, mut last) = (0, 0);
    for _ in 0..200 {
        // A few copies, side by side: they meet what one move after the other makes of the payload.
        let mut bytes = vec![0; 8192];
        let copies = 1 + below(&mut random, 24) as usize;
        let apart = [64, 68, 17 * 4][below(&mut random, 3) as usize];
        for copy in 0..copies {
            let at = 4003 + copy * apart;
            let at = if below(&mut random, 2) == 0 { at } else { at - 2500 };
            bytes[at..at + 64].copy_from_slice(&fake);
        }
        let staged = match below(&mut random, 2) {
            0 => device.stage(S, EPOCH, 8192, &bytes).map(|staged| last = staged.version),
            _ => device.apply(S, EPOCH, Apply { patches: vec![(0, bytes.into())], ..Apply::default() }),
        };
        match staged {
            Ok(()) => {}
            Err(UpdateError::LikeJournal { found, max: 16 }) if found > 16 => refused += 1,
            Err(UpdateError::Held { .. }) => device.release(S, last).unwrap(),
            Err(error) => panic!("{error}"),
        }
        if below(&mut random, 3) == 0 {
            device.flush().unwrap();
            device.write_back(u64::MAX).unwrap();
        }
        if below(&mut random, 3) == 0 {
            device.log_append(S, EPOCH, &fake.repeat(copies)).unwrap();
            let next = device.updates(S).unwrap().log_next;
            device.apply(S, EPOCH, Apply { log_start: Some(next), ..Apply::default() }).unwrap();
        }
    }
    device.flush().unwrap();
    assert!((1..200).contains(&refused), "{refused}");
    let journal = JOURNAL..JOURNAL + (512 << 10);
    for event in medium.events() {
        if let Event::Write { offset, data } = event
            && journal.contains(&offset)
        {
            assert!(data.chunks(4096).all(|page| !page.starts_with(&fake)));
        }
    }
    reopen(device);
}

/// Names of extents are anybody's choice as well, and nothing of a redo that follows them looks like a frame.
#[test]
fn names_that_look_like_frames_are_in_none_with_a_redo_behind_them() {
    let medium = Arc::new(CrashMedium::new(32 << 20));
    format_large(&*medium);
    let mut device = open(medium.clone());
    chunk(&mut device, S, 2, 0);
    let before = medium.len();
    // With fences of 17 bytes between them, each stands where one of the 24 distances by which a frame's content is moved puts it at the
    // beginning of a page; what creates an extent takes 58 bytes, and names it behind the first.
    let mut distances: Vec<usize> = (0..24).map(|number| 4096 - 64 - number * 17).collect();
    let (mut bytes, mut fences, mut names) = (0usize, 0u64, 0u64);
    while !distances.is_empty() {
        match distances.iter().position(|distance| *distance == (bytes + 1) % 4096) {
            Some(found) => {
                distances.swap_remove(found);
                let segment = SegmentId(u64::from(u32::from_le_bytes(*b"SFJ1")) | names << 32);
                let (version, epoch) = (Version(DEVICE.0 as u64), Epoch(0));
                device.create_extent(ExtentSpec { version, epoch, ..spec(segment, 4096, 1) }).unwrap();
                names += 1;
                bytes += 58;
            }
            None => {
                fences += 1;
                device.fence(SegmentId(99), Epoch(fences)).unwrap();
                bytes += 17;
            }
        }
    }
    device.stage(S, EPOCH, 0, &[1; 100]).unwrap();
    device.flush().unwrap();
    let journal = 4096 + 2 * (4 << 20)..4096 + 3 * (4 << 20);
    let is_like = |page: &[u8]| page.starts_with(b"SFJ1") && page[8..24] == DEVICE.0.to_le_bytes();
    for event in &medium.events()[before..] {
        if let Event::Write { offset, data } = event
            && journal.contains(offset)
        {
            assert!(!data.chunks(4096).skip(1).any(is_like), "{} bytes at {offset}", data.len());
        }
    }
    let mut device = reopen(device);
    assert_eq!((device.extents().count(), device.updates(S).unwrap().version), (25, 1));
    assert_eq!(device.epoch(SegmentId(99)), Some(Epoch(fences)));
}

/// What is to be kept is a list of numbers that anybody may make up.
#[test]
fn a_seal_that_looks_like_frames_is_durable_in_another_way() {
    let (mut device, medium) = device();
    device.create_extent(spec(SegmentId(6), 4096, 4)).unwrap();
    write(&mut device, SegmentId(6), 1).unwrap();
    device.flush().unwrap();
    let fake = frame(1 << 40, 1 << 40, u64::MAX, &[]);
    // At every byte of a page, on one page or another.
    let mut bytes = Vec::new();
    for phase in 0..64 {
        bytes.resize(phase * 4096 + phase, 0);
        while bytes.len() + fake.len() <= (phase + 1) * 4096 {
            bytes.extend(&fake);
        }
    }
    let (numbers, _) = bytes.as_chunks::<4>();
    let mut keep: Vec<_> =
        numbers.chunks_exact(2).map(|n| u32::from_le_bytes(n[0])..u32::from_le_bytes(n[1])).collect();
    keep.push(1..2);
    assert_eq!(device.seal(SegmentId(6), EPOCH, &keep).unwrap().kept, 1);
    device.stage(S, EPOCH, 0, &[1; 100]).unwrap();
    device.flush().unwrap();
    let image = medium.image();
    let mut pages = image[JOURNAL as usize..][..512 << 10].chunks(4096);
    assert!(pages.all(|page| !page.starts_with(&fake)));
    let mut device = reopen(device);
    assert!(device.extent(SegmentId(6)).unwrap().sealed);
    assert_eq!((read(&mut device, SegmentId(6), 1), device.updates(S).unwrap().version), (Ok(()), 1));
}
