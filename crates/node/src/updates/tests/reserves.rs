//! Reserves of parity chunks that no host serves.

use super::{
    super::{QUIET_MAX, Shrunk, medium},
    *,
};

/// The first parity chunk.
const PARITY: u32 = SHAPE.data;

/// A device with a parity chunk of each of these segments, and room for them.
fn stored_all(segments: &[SegmentId]) -> Vec<u8> {
    let medium = Arc::new(CrashMedium::new(8 << 20));
    let options = FormatOptions {
        checkpoint_bytes: Some(JOURNAL_BYTES),
        journal_bytes: Some(JOURNAL_BYTES),
        ..FormatOptions::new(CLUSTER, device_of(PARITY))
    };
    Device::format(&*medium, options).unwrap();
    let mut device = Device::open(medium.clone(), None).unwrap();
    segments.iter().for_each(|&segment| store(&mut device, segment, PARITY, RESERVE_BYTES));
    drop(device);
    medium.image()
}

/// One after the other, of thousands: a host begins for each of them, and nothing was logged there for as long as it is.
#[tokio::test]
async fn reserves_of_segments_that_are_never_updated_are_given_back_without_waiting() {
    let segments: Vec<SegmentId> = (100..108).map(SegmentId).collect();
    let image = |chunk| if chunk == PARITY { stored_all(&segments) } else { stored(chunk, RESERVE_BYTES) };
    let life = Life::begin((0..SHAPE.chunks).map(image).collect(), SHAPE.chunks).await;
    let (device, updates) = (life.device(PARITY), &life.service.updates);
    let begun = std::time::Instant::now();
    for &segment in &segments {
        let shrunk = updates.shrink_reserve(device.clone(), segment, 0).await;
        assert!(matches!(shrunk, Shrunk::Done), "{segment}");
    }
    let took = begun.elapsed();
    // A log counts as quiet after half a second.
    assert!(took < Duration::from_millis(500) * segments.len() as u32, "{took:?}");
    life.end().await;
}

/// Who changes it is not done for long, and others are waited for after it.
#[tokio::test]
async fn the_reserve_of_a_chunk_that_is_in_use_is_not_waited_for_as_long_as_a_merge() {
    let life =
        Life::begin((0..SHAPE.chunks).map(|chunk| stored(chunk, RESERVE_BYTES)).collect(), SHAPE.chunks)
            .await;
    let (device, updates) = (life.device(PARITY), &life.service.updates);
    let changing = async {
        for value in 0.. {
            let bytes = Bytes::from(vec![value as u8; 100]);
            make(&life, &Update { chunk: 0, offset: 0, bytes, version: None }).await.unwrap();
        }
    };
    let shrinking = tokio::time::timeout(QUIET_MAX / 2, async {
        // Once the first change came.
        while updates.parity.lock().is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        updates.shrink_reserve(device.clone(), SEGMENT, 0).await
    });
    tokio::select! {
        () = changing => unreachable!("it goes on"),
        shrunk = shrinking => assert!(matches!(shrunk, Ok(Shrunk::NotNow)), "it is in use"),
    }
    life.end().await;
}

/// Nobody else would give it back before the segment is stored anew.
#[tokio::test]
async fn the_reserve_of_a_chunk_that_no_host_can_serve_is_given_back_unless_its_log_has_something() {
    for used in [false, true] {
        let image = |chunk| {
            let medium = Arc::new(CrashMedium::from_image(stored(chunk, RESERVE_BYTES)));
            let mut device = Device::open(medium.clone(), None).unwrap();
            store(&mut device, MOVED, chunk, RESERVE_BYTES);
            if used && chunk == PARITY {
                device.log_append(MOVED, EPOCH, &[1; 100]).unwrap();
                device.flush().unwrap();
            }
            drop(device);
            medium.image()
        };
        let life = Life::begin((0..SHAPE.chunks).map(image).collect(), SHAPE.chunks).await;
        let (device, updates) = (life.device(PARITY), &life.service.updates);
        let shrunk = updates.shrink_reserve(device.clone(), MOVED, 0).await;
        assert_eq!(matches!(shrunk, Shrunk::Done), !used);
        let lane = (life.service.lane_stream(), Priority::Normal);
        let left = medium::describe(&device, lane, MOVED).await.unwrap().reserve_bytes;
        assert_eq!(left, if used { RESERVE_BYTES } else { 0 });
        life.end().await;
    }
}
