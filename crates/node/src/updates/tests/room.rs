//! Room for what is held: segments whose updates need it on the same devices.

use super::{super::device_room::DeviceRoom, *};
use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Instant,
};
use steadfast_disk::device::UpdateError;
use tokio::sync::oneshot;

/// Most of what a device holds: two are not held beside anything else.
const LARGE: usize = 60 << 10;

async fn begun() -> Arc<Life> {
    let with_both = |chunk| {
        let medium = Arc::new(CrashMedium::from_image(stored(chunk, 0)));
        let mut device = Device::open(medium.clone(), None).unwrap();
        store(&mut device, CROSSED, crossed(CROSSED, chunk), 0);
        drop(device);
        medium.image()
    };
    Arc::new(Life::begin((0..SHAPE.chunks).map(with_both).collect(), SHAPE.chunks).await)
}

/// Changes a data chunk of a segment: all of these bytes, `value` each.
async fn change(life: &Life, segment: SegmentId, chunk: u32, value: u8, length: usize) -> Result<u64, Fault> {
    let device = life.device(crossed(segment, chunk));
    life.service.updates.update(device, segment, EPOCH, 0, Bytes::from(vec![value; length])).await
}

#[tokio::test]
async fn devices_do_not_wait_for_the_room_that_each_holds_of_the_other() {
    let life = begun().await;
    for round in 0..8 {
        let mut under_way = JoinSet::new();
        let begun = Instant::now();
        for value in 0..4 {
            for (segment, chunk) in [(SEGMENT, 0), (CROSSED, 0), (SEGMENT, 1), (CROSSED, 1)] {
                let life = life.clone();
                under_way.spawn(async move { change(&life, segment, chunk, value, LARGE).await });
            }
        }
        // Their clients' patience ends after ten seconds.
        let all = tokio::time::timeout(Duration::from_secs(10), async {
            while let Some(made) = under_way.join_next().await {
                made.unwrap().unwrap();
            }
        });
        assert!(all.await.is_ok(), "round {round}: some wait for each other, {:?}", begun.elapsed());
    }
    Arc::into_inner(life).unwrap().end().await;
}

#[tokio::test]
async fn what_writers_that_are_gone_leave_behind_does_not_keep_the_room() {
    let life = begun().await;
    for round in 0..8 {
        let mut under_way = JoinSet::new();
        for value in 0..4 {
            for (segment, chunk) in [(SEGMENT, 0), (CROSSED, 0), (SEGMENT, 1), (CROSSED, 1)] {
                let life = life.clone();
                under_way.spawn(async move { change(&life, segment, chunk, value, LARGE).await });
            }
        }
        tokio::time::sleep(Duration::from_millis(2 * round)).await;
        under_way.shutdown().await;
        for (segment, chunk) in [(SEGMENT, 0), (CROSSED, 1)] {
            let made = change(&life, segment, chunk, 9, LARGE);
            let made = tokio::time::timeout(Duration::from_secs(10), made).await;
            made.unwrap_or_else(|_| panic!("round {round}: no room in {segment}")).unwrap();
        }
    }
    Arc::into_inner(life).unwrap().end().await;
}

/// A chunk that comes back with old data takes what its log has beside others that reserve whatever is given back, and beside writers
/// that never let the device's room be.
#[tokio::test]
async fn what_is_brought_forward_gets_room_beside_steady_writers() {
    /// Whoever has all of the room, and others that would have some.
    const ALL: u64 = 7;
    const OTHERS: u64 = 8;
    const LEAST: u64 = 4096;
    let stored = |chunk| {
        let medium = Arc::new(CrashMedium::from_image(stored(chunk, 320 << 10)));
        let mut device = Device::open(medium.clone(), None).unwrap();
        store(&mut device, CROSSED, crossed(CROSSED, chunk), 0);
        drop(device);
        medium.image()
    };
    let before: Vec<_> = (0..SHAPE.chunks).map(stored).collect();
    let life = Life::begin(before.clone(), SHAPE.chunks).await;
    assert_eq!(change(&life, SEGMENT, 0, 1, LARGE).await, Ok(1));
    let mut images = life.power_loss(|_| true);
    life.end().await;
    images[0] = before[0].clone();

    let life = Arc::new(Life::begin(images, SHAPE.chunks).await);
    let device = life.device(0);
    let reserve = |owner, bytes| asked(&device, Op::Reserve { owner, least: LEAST, bytes });
    let unreserve = |bytes| asked(&device, Op::Unreserve { owner: ALL, bytes });
    let Ok(OpOutput::Reserved { bytes: all }) = reserve(ALL, u64::MAX).await else { panic!("no answer") };
    assert!(all >= 2 * LARGE as u64, "{all}");
    life.service.updates.begin(device.clone(), SEGMENT);
    // What is given back is reserved again at once, until there is something that found no room and keeps all from that. It needs more.
    let refused = async {
        loop {
            unreserve(LEAST).await.unwrap();
            match reserve(ALL, LEAST).await {
                Ok(OpOutput::Reserved { bytes: 0 }) => break,
                Ok(OpOutput::Reserved { bytes: LEAST }) => tokio::time::sleep(Duration::from_millis(1)).await,
                other => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(10), refused).await.expect("others have what it waits for");
    assert_eq!(reserve(OTHERS, LEAST).await, Ok(OpOutput::Reserved { bytes: 0 }));
    let made = Arc::new(AtomicUsize::new(0));
    let mut writers = JoinSet::new();
    for (writer, chunk) in (0..8).zip([0, 1].into_iter().cycle()) {
        let (life, made) = (life.clone(), made.clone());
        writers.spawn(async move {
            loop {
                match change(&life, CROSSED, chunk, writer, LARGE).await {
                    Ok(_) => {
                        made.fetch_add(1, Ordering::Relaxed);
                    }
                    // One that is told that there is no room comes again.
                    Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            }
        });
    }
    unreserve(u64::MAX).await.unwrap();
    let is_there = async {
        let describe = || asked(&device, Op::DescribeUpdates { segment: SEGMENT });
        while !matches!(describe().await, Ok(OpOutput::Updates(info)) if info.version > 0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), is_there).await.expect("it waits for the writers");
    let written = async {
        while made.load(Ordering::Relaxed) < writers.len() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), written).await.expect("and they do not wait for ever");
    writers.shutdown().await;
    let changed = tokio::time::timeout(Duration::from_secs(10), change(&life, SEGMENT, 0, 9, 100)).await;
    assert_eq!(changed.expect("nobody is in its way"), Ok(2));
    Arc::into_inner(life).unwrap().end().await;
}

async fn asked(device: &ServedDevice, op: Op) -> Result<OpOutput, OpError> {
    let (answer, answered) = oneshot::channel();
    device.lane.submit(1, Priority::Normal, op, Box::new(move |result| drop(answer.send(result))));
    answered.await.unwrap()
}

/// What a host found no room for keeps others from reserving any, as long as there is the host.
#[tokio::test]
async fn a_host_that_is_gone_keeps_nobody_from_reserving() {
    let life = begun().await;
    let device = life.device(0);
    let (owner, least) = (7, 4096);
    let reserve = |bytes| asked(&device, Op::Reserve { owner, least, bytes });
    let Ok(OpOutput::Reserved { bytes: all }) = reserve(u64::MAX).await else { panic!("no answer") };
    let mut room = DeviceRoom::new(8, device.lane.clone());
    let (spend, new) = (Some(room.spend(0)), Bytes::from_static(&[1; 4096]));
    let stage = Op::Stage { segment: SEGMENT, epoch: EPOCH, offset: 0, new, spend };
    let made = asked(&device, stage).await;
    assert!(matches!(made, Err(OpError::Update(UpdateError::Held { .. }))), "{made:?} beside {all} bytes");
    asked(&device, Op::Unreserve { owner, bytes: 2 * least }).await.unwrap();
    let Ok(OpOutput::Reserved { bytes: 0 }) = reserve(least).await else { panic!("the host waits for it") };
    drop(room);
    let reserved = async {
        while let Ok(OpOutput::Reserved { bytes: 0 }) = reserve(least).await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), reserved).await.expect("nobody waits for it any more");
    Arc::into_inner(life).unwrap().end().await;
}
