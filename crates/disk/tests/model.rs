//! The disk models: properties that hold whatever the seed, and the dissertation's Table 6-1 and Figure 6-5.

#![allow(clippy::unwrap_used, reason = "a test stops where something fails")]

mod common;

use std::{borrow::Cow, sync::Arc};

use common::{below, random, seed};
use rand_pcg::Pcg64;
use steadfast_disk::model::{
    ATA_7200, Background, Drive, Geometry, Layout, Load, Mechanics, Placement,
    mechanics::{self, DiskParameters, SECTOR_BYTES, SeekCurve, Zone},
};
use steadfast_disk::queue::{Estimate, Kind, Priority, Request, RequestId};

/// Small enough that random requests meet the buffer, zone borders and the disk's end all the time.
fn tiny() -> DiskParameters {
    let zone = |sectors| Zone {
        cylinders: 3,
        sectors_per_track: sectors,
        track_skew_sectors: 5,
        cylinder_skew_sectors: 9,
    };
    DiskParameters {
        zones: Cow::Owned(vec![zone(64), zone(50), zone(33)]),
        heads: 2,
        seek: SeekCurve::SquareRoot { base_ns: 300_000, root_ns: 900_000 },
        ..ATA_7200
    }
}

fn disks() -> [Mechanics; 3] {
    let geometry = |parameters| Arc::new(Geometry::new(parameters).unwrap());
    let ahead = DiskParameters { read_ahead_on_hit: true, write_settle_ns: 100_000, ..tiny() };
    [Mechanics::new(geometry(tiny())), Mechanics::new(geometry(ahead)), Mechanics::ata_7200()]
}

fn request(random: &mut Pcg64, disk: &Mechanics, last: mechanics::Request) -> mechanics::Request {
    let sectors = 1 + below(random, 40) as u32;
    let lba = match below(random, 3) {
        0 => below(random, disk.geometry().sectors() - 40),
        1 => last.lba + u64::from(last.sectors),
        _ => last.lba + below(random, 60),
    };
    mechanics::Request { lba, sectors, write: below(random, 4) == 0 }
}

/// What `serve` does follows from what `estimate` said; no request ends before it could, and none waits longer
/// than its moves and revolutions allow. Out of range requests are served at the end of the disk.
#[test]
fn estimates_are_kept_and_times_are_possible() {
    let mut random = random(seed());
    for mut disk in disks() {
        let p = disk.geometry().parameters().clone();
        let longest_seek = disk.geometry().seek_ns(disk.geometry().cylinders()) + p.write_settle_ns;
        let (mut now, mut last) = (0, mechanics::Request { lba: 0, sectors: 1, write: false });
        let mut hits = 0;
        for _ in 0..50_000 {
            let request = request(&mut random, &disk, last);
            let twin = disk.clone();
            let positioning = disk.estimate(now, request);
            let end = disk.serve(now, request);
            assert!(end >= now + positioning.min(p.hit_overhead_ns), "{request:?}");
            hits += u32::from(positioning == p.hit_overhead_ns);
            let sectors = u64::from(request.sectors);
            // Few tracks, those of the read-ahead with them, each with a switch and at most one revolution of waiting.
            let tracks = (sectors + p.read_ahead_sectors) / 33 + 2;
            let bound = p.hit_overhead_ns + longest_seek + (3 * tracks + 2) * p.revolution_ns;
            assert!(end - now < bound, "{request:?} takes {}", end - now);
            if positioning != p.hit_overhead_ns {
                // The media cannot give sectors faster than the densest track.
                let densest = p.zones.iter().map(|z| u64::from(z.sectors_per_track)).max().unwrap();
                assert!(end - now - positioning + 2 >= sectors * p.revolution_ns / densest, "{request:?}");
            }
            // The same disk does the same, and a moment's estimate is the request's.
            let mut again = twin.clone();
            assert_eq!(again.serve(now, request), end);
            assert_eq!(twin.moment(now).estimate(&twin.candidate(request)), positioning);
            now = end + below(&mut random, 3) * below(&mut random, 2_000_000);
            last = request;
        }
        assert!(hits > 1000, "the buffer served {hits}");
    }
}

/// The angle of the platters follows from absolute time: the same request one revolution later takes the same
/// time, a little later a little less, until it has just missed its sector.
#[test]
fn rotation_is_absolute() {
    let disk = Mechanics::ata_7200();
    let revolution = disk.geometry().parameters().revolution_ns;
    let request = mechanics::Request { lba: 300_000_000, sectors: 8, write: false };
    let times: Vec<u64> = (0..16).map(|i| disk.estimate(i * revolution / 16, request)).collect();
    assert_eq!(disk.estimate(5 * revolution, request), times[0]);
    let growths = times.windows(2).filter(|t| t[1] > t[0]).count();
    assert_eq!(growths, 1, "{times:?}");
    let spread = times.iter().max().unwrap() - times.iter().min().unwrap();
    assert!(spread > revolution * 14 / 16 && spread < revolution, "{spread}");
}

/// Of a request that is partly in the buffer the rest is waited for, also where it ends with the disk.
#[test]
fn the_rest_of_a_request_at_the_end_of_the_disk_begins_where_the_buffer_ends() {
    let mut disk = Mechanics::ata_7200();
    let sectors = disk.geometry().sectors();
    let read = |lba, sectors| mechanics::Request { lba, sectors: sectors as u32, write: false };
    // The heads stop 400 sectors before the end, and rest there.
    let read_ahead = disk.geometry().parameters().read_ahead_sectors;
    let limit = sectors - 400;
    let at_ns = disk.serve(0, read(limit - read_ahead - 8, 8)) + 100_000_000;
    let ends = [1, 40, 280].map(|buffered| disk.clone().serve(at_ns, read(limit - buffered, 400 + buffered)));
    assert!(ends.iter().all(|&end| end == ends[0]), "{ends:?}");
}

#[test]
fn impossible_disks_are_refused() {
    let bad = |change: &dyn Fn(&mut DiskParameters)| {
        let mut parameters = tiny();
        change(&mut parameters);
        Geometry::new(parameters).unwrap_err().to_string()
    };
    assert!(bad(&|p| p.heads = 0).contains("heads"));
    assert!(bad(&|p| p.revolution_ns = 0).contains("revolution"));
    assert!(bad(&|p| p.zones = Cow::Owned(Vec::new())).contains("zones"));
    assert!(bad(&|p| p.zones.to_mut()[1].sectors_per_track = 0).contains("sectors a track"));
    assert!(bad(&|p| p.zones.to_mut()[0].cylinder_skew_sectors = 65).contains("skew"));
    assert!(bad(&|p| p.zones.to_mut()[2].cylinders = u32::MAX).contains("cylinders"));
    assert!(bad(&|p| p.seek = SeekCurve::Table(Cow::Owned(vec![(5, 1), (3, 2)]))).contains("seek table"));
}

/// The same offset is always at the same place, inside the layout's span; runs are as long as the probability says.
#[test]
fn placement_is_a_function_of_the_offset() {
    let disk = Mechanics::ata_7200();
    let sectors = disk.geometry().sectors();
    for sequential in [0.0, 0.5, 0.9, 0.999, 1.0] {
        let layout = Layout { span: 0.25, ..Layout::new(64, sequential, seed()) };
        let mut placement = Placement::new(&layout, disk.geometry());
        let in_order: Vec<u64> = (0..20_000).map(|chunk| placement.chunk_lba(chunk)).collect();
        let mut random = random(seed());
        for _ in 0..2_000 {
            let chunk = below(&mut random, 20_000);
            assert_eq!(placement.chunk_lba(chunk), in_order[chunk as usize], "{sequential} {chunk}");
        }
        assert!(in_order.iter().all(|lba| *lba >= sectors / 8 * 3 - 64 && *lba + 64 <= sectors / 8 * 5 + 64));
        let follow = in_order.windows(2).filter(|w| w[1] == w[0] + 64).count() as f64 / 19_999.0;
        assert!((follow - sequential).abs() < 0.02, "{follow} of {sequential}");
    }
}

/// A run ends where it has to, whatever the probability; nothing else changes.
#[test]
fn a_run_ends_after_its_sectors() {
    let disk = Mechanics::ata_7200();
    for sequential in [0.9, 1.0] {
        let layout = Layout { run_sectors: Some(1000), ..Layout::new(64, sequential, seed()) };
        let mut placement = Placement::new(&layout, disk.geometry());
        let lbas: Vec<u64> = (0..3000).map(|chunk| placement.chunk_lba(chunk)).collect();
        // 15 whole chunks of 64 sectors are a run.
        for (chunk, pair) in (1..).zip(lbas.windows(2)) {
            let follows = pair[1] == pair[0] + 64;
            assert!(!follows || chunk % 15 > 0, "{chunk} of {sequential}");
            assert!(follows || sequential < 1.0 || chunk % 15 == 0, "{chunk} of {sequential}");
        }
        assert_eq!(placement.chunk_lba(1234), lbas[1234]);
    }
}

/// A transfer's pieces cover the sectors of its range once and in order, and keep within chunks.
#[test]
fn requests_cover_the_range() {
    let disk = Mechanics::ata_7200();
    let mut random = random(seed());
    for _ in 0..500 {
        let bf = 1 + below(&mut random, 100) as u32;
        let mut placement = Placement::new(&Layout::new(bf, 0.5, 3), disk.geometry());
        let offset = below(&mut random, 1 << 30);
        let end = offset + below(&mut random, 200_000);
        let (mut at, mut sector) = (offset, offset / SECTOR_BYTES);
        while let Some((piece, next)) = placement.next(at, end, true) {
            let (chunk, within) = (sector / u64::from(bf), sector % u64::from(bf));
            assert_eq!(piece.inside, within > 0);
            assert_eq!(piece.request.lba, placement.chunk_lba(chunk) + within);
            assert!(within + u64::from(piece.request.sectors) <= u64::from(bf));
            sector += u64::from(piece.request.sectors);
            assert!(next > at);
            at = next;
            if at < end {
                assert_eq!(at, sector * SECTOR_BYTES);
            }
        }
        assert!(offset == end || sector == end.div_ceil(SECTOR_BYTES));
    }
}

fn drive(blocking_factor: u32, sequential: f64, seed: u64) -> Drive {
    let disk = Mechanics::ata_7200();
    let placement = Placement::new(&Layout::new(blocking_factor, sequential, seed), disk.geometry());
    Drive::new(disk, placement)
}

fn loaded(drive: Drive, interval_ms: u64, seed: u64) -> Drive {
    let disk = Mechanics::ata_7200();
    drive.with_background(Background::new(&Load::every(interval_ms * 1_000_000, seed), disk.geometry()))
}

/// Time never goes back, the same seed gives the same times, another seed others: alone and shared, by arrival and
/// by positioning time.
#[test]
fn drives_go_forward_and_repeat() {
    let seed = seed();
    let kinds: [fn(u64) -> Drive; 4] = [
        |s| drive(16, 0.5, s),
        |s| drive(16, 0.5, s).shortest_first(64),
        |s| loaded(drive(64, 1.0, s), 8, s),
        |s| loaded(drive(16, 0.0, s), 30, s).shortest_first(64),
    ];
    for (kind, make) in kinds.iter().enumerate() {
        let run = |drive_seed| {
            let mut random = random(seed);
            let mut drive = make(drive_seed);
            let mut now = 0;
            (0..300)
                .map(|_| {
                    now += below(&mut random, 2) * below(&mut random, 200_000_000);
                    let offset = below(&mut random, 1 << 32);
                    let bytes = below(&mut random, 1 << 18);
                    let end = drive.transfer(now, offset, bytes, below(&mut random, 3) == 0);
                    assert!(end >= now && (bytes == 0 || end > now));
                    assert!(bytes == 0 || end == drive.free_ns() || kind > 1);
                    assert!(drive.free_ns() >= end || bytes == 0);
                    let work = drive.work();
                    assert!(work.foreground_ns + work.background_ns <= drive.free_ns());
                    now = now.max(end.saturating_sub(5_000_000));
                    end
                })
                .collect::<Vec<_>>()
        };
        let first = run(1);
        assert_eq!(first, run(1), "kind {kind}");
        assert_ne!(first, run(2), "kind {kind}");
    }
}

/// A sequential layout is at least as fast as a random one, whatever the blocking factor and the seed.
#[test]
fn sequential_is_not_slower_than_random() {
    for bf in [8, 64, 256, 1024] {
        for draw in 0..5 {
            let time = |p| drive(bf, p, seed() + draw).transfer(0, 0, 8 << 20, false);
            assert!(time(1.0) < time(0.0), "{bf}");
            assert!(time(0.9) < time(0.0), "{bf}");
        }
    }
}

/// Read whole or in slices that were queued in time, a chunk takes the same time to within a sector's time on
/// the bus: the real lane reads slices where the simulator reads blocks.
#[test]
fn slices_take_the_time_of_the_whole() {
    let mut random = random(seed());
    let slice = 64 << 10;
    for (bf, sequential) in [(1024, 1.0), (1024, 0.0), (512, 0.5), (256, 0.0), (128, 1.0), (8, 1.0)] {
        for draw in 0..20 {
            let blocks = 20;
            let offset = below(&mut random, 1 << 20) << 20;
            let mut whole = drive(bf, sequential, draw);
            let end = whole.transfer(0, offset, blocks << 20, draw % 2 == 0);
            let mut sliced = drive(bf, sequential, draw);
            let ends: Vec<u64> = (0..(blocks << 20) / slice)
                .map(|i| sliced.transfer(0, offset + i * slice, slice, draw % 2 == 0))
                .collect();
            assert!(ends.is_sorted());
            assert_eq!(ends.last(), Some(&end), "{bf} {sequential} {draw}");
            assert_eq!(whole.work(), sliced.work());
        }
    }
}

/// A transfer that was never begun leaves the drive as it was; queueing one early does not let it start before the
/// one in front of it ends.
#[test]
fn transfers_begin_one_after_another() {
    let mut drive = drive(64, 0.0, seed());
    let first = drive.transfer(1_000_000, 0, 1 << 20, false);
    let mut twin = drive.clone();
    let late = drive.transfer(first, 5 << 20, 1 << 20, false);
    assert_eq!(twin.transfer(0, 5 << 20, 1 << 20, false), late);
    assert!(late > first);
}

/// What a drive estimates is what its transfers then take to their first sector: the shortest transfer there is takes
/// that and one sector's time on top.
#[test]
fn a_drives_estimates_are_kept() {
    let mut random = random(seed());
    let sector_ns = 15_000;
    for mut drive in [drive(8, 0.0, seed()), drive(1024, 1.0, seed())] {
        for number in 0..2_000 {
            let offset = below(&mut random, 1 << 25) * SECTOR_BYTES;
            let start = drive.free_ns() + below(&mut random, 10_000_000);
            let request = Request { id: RequestId(number), offset, ..request_of_a_sector() };
            let estimate = drive.estimates_at(start).service_ns(0, &request);
            assert_eq!(estimate, drive.estimate(start, offset, false));
            let end = drive.transfer(start, offset, SECTOR_BYTES, false);
            // A hit may wait for the heads that are on their way: up to the read-ahead's length.
            let hit = estimate == 950_000;
            let rest = end - start - estimate;
            assert!((1..sector_ns).contains(&rest) || hit && rest < 10_000_000, "{rest}");
        }
    }
}

fn request_of_a_sector() -> Request {
    Request {
        id: RequestId(0),
        stream: 1,
        class: Priority::Normal,
        kind: Kind::Read,
        offset: 0,
        bytes: SECTOR_BYTES,
        queued_at_ns: 0,
    }
}

/// 10,000 devices, each with a load and a queue, take megabytes: geometry is shared and layouts have no tables.
#[test]
fn a_drive_is_small() {
    assert!(size_of::<Drive>() <= 640, "{}", size_of::<Drive>());
    assert!(Arc::ptr_eq(Mechanics::ata_7200().geometry(), Mechanics::ata_7200().geometry()));
}
