//! Reserves of parity chunks that no host serves.

use super::{
    super::{Shrunk, medium},
    *,
};

/// The first parity chunk.
const PARITY: u32 = SHAPE.data;

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
