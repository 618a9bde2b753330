//! Room for what is held: segments whose updates need it on the same devices.

use super::*;
use std::time::Instant;

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

/// A chunk that comes back with old data takes what its log has beside writers that never let the device's room be.
#[tokio::test]
async fn what_is_brought_forward_gets_room_beside_steady_writers() {
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
    let mut writers = JoinSet::new();
    for (writer, chunk) in (0..8).zip([0, 1].into_iter().cycle()) {
        let life = life.clone();
        writers.spawn(async move {
            loop {
                // One that is told that there is no room comes again.
                let _ = change(&life, CROSSED, chunk, writer, LARGE).await;
            }
        });
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let made = change(&life, SEGMENT, 0, 9, 100);
    let made = tokio::time::timeout(Duration::from_secs(10), made).await;
    writers.shutdown().await;
    assert_eq!(made.expect("it waits for the writers"), Ok(2));
    Arc::into_inner(life).unwrap().end().await;
}
