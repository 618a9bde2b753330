//! A rival that computes nonsense quickly is no rival.

use super::{objects, stripes};
use crate::memory::{Memory, split, split_lost, split_writable};

#[test]
fn stripes_are_rebuilt_as_they_were() {
    let shard_len = 128;
    for (k, m) in [(4, 2), (10, 4)] {
        for mut rival in stripes(k, m, shard_len).unwrap() {
            let mut stripe = Memory::new((k + m) * shard_len, 5);
            let original = stripe.view().to_vec();
            split(stripe.all(), shard_len, k, |data, parity| rival.encode(data, parity)).unwrap();
            if !rival.rebuilds() || rival.name().starts_with("reed-solomon-simd") {
                continue;
            }
            stripe.all()[..m * shard_len].fill(0xee);
            if rival.wants_writable() {
                split_writable(stripe.all(), shard_len, |shards| rival.rebuild_writable(shards, m)).unwrap();
            } else {
                split_lost(stripe.all(), shard_len, m, |lost, others| rival.rebuild(lost, others)).unwrap();
            }
            assert_eq!(stripe.view()[..k * shard_len], original[..k * shard_len], "{} {k} {m}", rival.name());
        }
    }
}

#[test]
fn objects_are_decoded_as_they_were() {
    let (k, block_len) = (16, 64);
    let memory = Memory::new(k * block_len, 6);
    let order: Vec<u32> = (0..64).map(|at| at * 7 % 64).collect();
    let seconds = |work: &mut dyn FnMut()| {
        work();
        1.0
    };
    for mut rival in objects(k, block_len) {
        rival.prepare_decode(memory.view(), &order).unwrap();
        assert_eq!(rival.decode(memory.view(), &seconds).unwrap(), 1.0, "{}", rival.name());
        assert_eq!(rival.encode(memory.view(), 8, &seconds).unwrap(), 1.0, "{}", rival.name());
        assert!(rival.decode(&vec![0xee; k * block_len], &seconds).is_err(), "{}", rival.name());
    }
}
