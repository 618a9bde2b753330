//! One suite for every medium: what [`Medium`] promises, and a whole device on top.
//!
//! Public so that media outside this crate can be held to it. It panics where a promise is broken.

use std::{io::IoSlice, sync::Arc};

use crate::{
    buffer::AlignedBuf,
    checksum::{self, Granule},
    device::{Device, ExtentSpec, FormatOptions, ReadError},
    ids::{ClusterId, DeviceId, Epoch, SegmentId, Version},
    media::{Medium, MediumError},
};

/// Capacity the suite needs, in bytes.
pub const CAPACITY: u64 = 8 << 20;

fn pattern(seed: u32, len: usize) -> AlignedBuf {
    let mut buf = AlignedBuf::zeroed(len);
    for (number, word) in (0u32..).zip(buf.chunks_mut(4)) {
        let value = (seed.wrapping_mul(0x9e37_79b9) ^ number).wrapping_mul(0x85eb_ca6b) | 1;
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
    buf
}

/// Runs the whole suite on a blank medium of at least [`CAPACITY`] bytes.
///
/// # Panics
/// Where the medium breaks a promise.
pub fn run(medium: Arc<dyn Medium>) {
    reads_what_was_written(&*medium);
    refuses_what_leaves_the_capacity(&*medium);
    trims_and_prepares_to_zeros(&*medium);
    counts(&*medium);
    medium.trim(0..medium.capacity()).expect("trim of everything");
    carries_a_device(medium);
}

fn reads_what_was_written(medium: &dyn Medium) {
    let mut buf = AlignedBuf::zeroed(8192);
    buf.fill(9);
    medium.read_at(1 << 20, &mut buf).expect("read of a blank medium");
    assert!(buf.iter().all(|&b| b == 0), "a blank medium reads as zeros");
    let one = pattern(1, 12_288);
    medium.write_at(4096, &one).expect("write");
    let mut back = AlignedBuf::zeroed(12_288);
    medium.read_at(4096, &mut back).expect("read");
    assert!(back[..] == one[..]);
    back.fill(0);
    medium.probe(4096, &mut back).expect("read from the medium itself");
    assert!(back[..] == one[..]);
    // Over the middle, from buffers that are neither aligned nor whole pages: together they are.
    let (a, b) = (pattern(2, 4096 + 1000), pattern(3, 3096));
    medium.write_vectored_at(8192, &[IoSlice::new(&a), IoSlice::new(&b[..3096])]).expect("vectored write");
    medium.read_at(4096, &mut back).expect("read");
    assert!(back[..4096] == one[..4096] && back[4096..9192] == a[..] && back[9192..] == b[..]);
    let mut unaligned = vec![0u8; 4097];
    medium.read_at(8192, &mut unaligned[1..]).expect("read into an unaligned buffer");
    assert!(unaligned[1..] == a[..4096]);
    let large = pattern(4, 3 << 20);
    medium.write_at(1 << 20, &large).expect("large write");
    medium
        .write_vectored_at(5 << 20, &[IoSlice::new(&large[1..]), IoSlice::new(&large[..1])])
        .expect("large");
    medium.flush().expect("flush");
    let mut back = AlignedBuf::zeroed(3 << 20);
    medium.read_at(1 << 20, &mut back).expect("large read");
    assert!(back[..] == large[..]);
    medium.read_at(5 << 20, &mut back).expect("large read");
    assert!(back[..back.len() - 1] == large[1..]);
    // Aligned pieces, more than one system call takes.
    let pages: Vec<IoSlice<'_>> = large.chunks(4096).rev().take(700).map(IoSlice::new).collect();
    let many: Vec<IoSlice<'_>> = pages.iter().chain(&pages).map(|page| IoSlice::new(page)).collect();
    for pieces in [&pages, &many] {
        medium.write_vectored_at(2 << 20, pieces).expect("aligned pieces");
        let mut back = AlignedBuf::zeroed(pieces.len() * 4096);
        medium.read_at(2 << 20, &mut back).expect("read");
        assert!(back.chunks(4096).zip(pieces).all(|(page, piece)| page == &**piece));
    }
}

fn refuses_what_leaves_the_capacity(medium: &dyn Medium) {
    let capacity = medium.capacity();
    let mut buf = AlignedBuf::zeroed(8192);
    for offset in [capacity - 4096, capacity, u64::MAX - 4095] {
        let refused = |e: Result<(), MediumError>| matches!(e, Err(MediumError::OutOfRange { .. }));
        assert!(refused(medium.read_at(offset, &mut buf)), "read at {offset}");
        assert!(refused(medium.write_at(offset, &buf)), "write at {offset}");
    }
    assert!(medium.trim(capacity - 4096..capacity + 4096).is_err());
    assert!(medium.prepare(capacity..capacity + 4096).is_err());
    assert!(medium.allocate(capacity..capacity + 4096).is_err());
    assert!(medium.guarantee(capacity..capacity + 4096).is_err());
    medium.read_at(capacity - 4096, &mut buf[..4096]).expect("the last page is inside");
}

fn trims_and_prepares_to_zeros(medium: &dyn Medium) {
    let data = pattern(5, 65_536);
    let mut back = AlignedBuf::zeroed(65_536);
    type Zero = fn(&dyn Medium, std::ops::Range<u64>) -> Result<(), MediumError>;
    let zeroing: [Zero; 2] = [|m, range| m.trim(range), |m, range| m.prepare(range)];
    for zero in zeroing {
        medium.write_at(65_536, &data).expect("write");
        zero(medium, 69_632..126_976).expect("zero");
        medium.read_at(65_536, &mut back).expect("read");
        assert!(back[..4096] == data[..4096] && back[61_440..] == data[61_440..], "only the range");
        assert!(back[4096..61_440].iter().all(|&b| b == 0));
    }
    medium.write_at(65_536, &data).expect("write");
    medium.allocate(65_536..131_072).expect("allocate");
    medium.read_at(65_536, &mut back).expect("read");
    assert!(back[..] == data[..], "an allocation keeps the content");
    medium.trim(0..0).expect("an empty range is nothing");
    medium.guarantee(131_072..196_608).expect("space");
    medium.write_at(131_072, &data).expect("write of what has its space");
    medium.read_at(131_072, &mut back).expect("read");
    assert!(back[..] == data[..], "what has its space takes what is written");
}

fn counts(medium: &dyn Medium) {
    let before = medium.counters();
    let mut buf = AlignedBuf::zeroed(8192);
    medium.read_at(0, &mut buf).expect("read");
    medium.write_at(0, &buf[..4096]).expect("write");
    medium.flush().expect("flush");
    let after = medium.counters();
    assert_eq!((after.reads - before.reads, after.bytes_read - before.bytes_read), (1, 8192));
    assert_eq!((after.writes - before.writes, after.bytes_written - before.bytes_written), (1, 4096));
    assert_eq!(after.flushes - before.flushes, 1);
}

fn carries_a_device(medium: Arc<dyn Medium>) {
    let cluster = ClusterId(1);
    Device::format(&*medium, FormatOptions::new(cluster, DeviceId(2))).expect("format");
    let epoch = Epoch(1);
    let sizes = [1u32, 4096, 5000, 65_536, 262_144];
    let mut device = Device::open(medium.clone(), Some(cluster)).expect("open");
    let empty = device.usage();
    for (number, block_bytes) in (0u64..).zip(sizes) {
        let (segment, version) = (SegmentId(number), Version(7));
        let granule = if block_bytes > 100_000 { Granule::KIB_64 } else { Granule::KIB_4 };
        device
            .create_extent(ExtentSpec {
                segment,
                version,
                epoch,
                block_bytes,
                granule,
                expected_blocks: 3,
                updates: None,
            })
            .expect("create");
        for index in [4, 5, 9, 2] {
            let data = pattern(index + block_bytes, block_bytes as usize);
            let sums = checksum::sums(&data, granule, segment, version, index);
            device.write_block(segment, epoch, index, &data, &sums).expect("write");
        }
    }
    device.flush().expect("flush");
    device.self_check();
    drop(device);
    let mut device = Device::open(medium.clone(), Some(cluster)).expect("open again");
    device.self_check();
    let mut buf = AlignedBuf::zeroed(0);
    for (number, block_bytes) in (0u64..).zip(sizes) {
        let segment = SegmentId(number);
        let info = device.extent(segment).expect("extent");
        assert_eq!(info.blocks, [4..6, 9..10, 2..3]);
        for index in [4, 5, 9, 2] {
            let data = pattern(index + block_bytes, block_bytes as usize);
            let read = device.read_block(segment, index, 0..block_bytes, &mut buf).expect("read");
            assert!(buf[..] == data[..] && read.range == (0..block_bytes));
            let last = block_bytes - 1;
            let read =
                device.read_block(segment, index, last..block_bytes, &mut buf).expect("read of a part");
            assert!(buf[..] == data[read.range.start as usize..]);
            assert_eq!(read.range.start, last / info.granule.bytes() * info.granule.bytes());
        }
        let absent = device.read_block(segment, 3, 0..1, &mut buf);
        assert_eq!(absent, Err(ReadError::NoBlock { segment, index: 3 }));
        let sealed = device.seal(segment, epoch, &[5..8, 8..10]).expect("seal");
        assert_eq!(sealed.kept, 2);
    }
    device.flush().expect("flush");
    device.self_check();
    for number in 0..sizes.len() as u64 {
        assert!(device.delete(SegmentId(number), epoch).expect("delete"));
    }
    device.flush().expect("flush");
    device.self_check();
    assert_eq!(device.usage(), empty, "all space is back");
}
