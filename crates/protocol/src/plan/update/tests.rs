use super::*;
use steadfast_codes::kernel::gf256::mul_acc;

const BLOCK: usize = 48;

fn originals(k: u32, seed: u8) -> Vec<Vec<u8>> {
    (0..k).map(|i| (0..BLOCK).map(|at| (i as usize * 31 + at * 7) as u8 ^ seed).collect()).collect()
}

fn encode(code: &Code, originals: &[Vec<u8>], indices: &[u32]) -> Vec<Vec<u8>> {
    let originals: Vec<&[u8]> = originals.iter().map(Vec::as_slice).collect();
    let mut out = vec![vec![0; BLOCK]; indices.len()];
    let mut slices: Vec<&mut [u8]> = out.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(indices, &originals, &mut slices).unwrap();
    out
}

/// Every stored block after the update, made from the blocks that were to be read, equals the block encoded anew; what is
/// not touched did not change.
#[test]
fn blocks_read_and_changed_are_the_blocks_encoded_anew() {
    for (kind, k, n, first, count) in [
        (Kind::Mix, 1024, 4096, 300, 1),
        (Kind::Mix, 1024, 1600, 511, 3),
        (Kind::Mix, 200, 400, 0, 2),
        (Kind::Mix, 40, 60, 39, 1),
        (Kind::MixA, 600, 1000, 17, 1),
        (Kind::Replicated, 1, 3, 0, 1),
        (Kind::Replicated, 20, 20, 4, 2),
        (Kind::Replicated, 20, 80, 4, 2),
    ] {
        let code = Code::new(kind, k, 3).unwrap();
        let before = originals(k, 0);
        let mut after = before.clone();
        // From the middle of the first to the middle of the last.
        let range = (first * BLOCK + BLOCK / 2) as u64..((first + count) * BLOCK - 5) as u64;
        for at in range.clone() {
            after[at as usize / BLOCK][at as usize % BLOCK] ^= 0x5a;
        }
        let stored = IndexRanges::from(0..n);
        let update = update(&code, BLOCK as u32, &stored, range);
        assert_eq!(update.originals, first as u32..(first + count) as u32);
        assert!(!update.decode, "{kind:?} {k}");
        let indices: Vec<u32> = (0..n).collect();
        let (old, new) = (encode(&code, &before, &indices), encode(&code, &after, &indices));
        println!(
            "{kind:?}, K = {k}, N = {n}: {} read, {} written",
            update.read.count(),
            update.touched.len()
        );
        for index in indices {
            let (old, new) = (&old[index as usize], &new[index as usize]);
            let Some(difference) = update.touched.get(&index) else {
                assert_eq!(old, new, "block {index} is not touched");
                continue;
            };
            match difference {
                Difference::Original(original) => assert_eq!(new, &after[*original as usize]),
                Difference::Gains(gains) => {
                    assert!(update.read.contains(index));
                    let mut changed = old.clone();
                    for &(original, coefficient) in gains {
                        let original = original as usize;
                        let delta: Vec<u8> =
                            before[original].iter().zip(&after[original]).map(|(a, b)| a ^ b).collect();
                        mul_acc(&mut changed, &delta, coefficient);
                    }
                    assert_eq!(&changed, new, "block {index}");
                }
            }
        }
        // Each original is read, from one copy.
        for original in update.originals.clone() {
            let copies =
                update.read.iter().filter(|&index| update.touched[&index] == Difference::Original(original));
            assert_eq!(copies.count(), 1);
        }
    }
}

/// §4.3.4: LT at N = 4K touches about 20 blocks, B about 75 (`codes` counts them), not thousands.
#[test]
fn one_original_of_a_large_segment_touches_few_blocks() {
    let code = Code::new(Kind::Mix, 1024, 3).unwrap();
    let stored = IndexRanges::from(0..4096);
    let touched: Vec<usize> = (0u64..1024)
        .step_by(64)
        .map(|original| {
            let bytes = original * 64..original * 64 + 1;
            update(&code, 64, &stored, bytes).touched.len()
        })
        .collect();
    let mean = touched.iter().sum::<usize>() as f64 / touched.len() as f64;
    println!("{mean:.1} blocks of 4096");
    assert!((60.0..90.0).contains(&mean), "{mean}");
}

#[test]
fn much_or_missing_is_decoded() {
    let code = Code::new(Kind::Mix, 512, 3).unwrap();
    let stored = IndexRanges::from(0..768);
    // A third of all originals touch nearly every repair block: more than K to read.
    assert!(update(&code, 64, &stored, 0..64 * 400).decode);
    assert!(!update(&code, 64, &stored, 0..64).decode);
    // An original that is not stored cannot be read.
    let mut lacking = stored.clone();
    lacking.remove(7);
    assert!(update(&code, 64, &lacking, 7 * 64..8 * 64).decode);
    assert!(!update(&code, 64, &lacking, 8 * 64..9 * 64).decode);
    // LT stores none as it is.
    let lt = Code::new(Kind::Lt { c: 1.0, delta: 0.5 }, 256, 3).unwrap();
    assert!(update(&lt, 64, &IndexRanges::from(0..768), 0..1).decode);
}

#[test]
#[should_panic(expected = "of 4 blocks")]
fn bytes_behind_the_end_are_a_mistake() {
    update(&Code::new(Kind::Mix, 4, 3).unwrap(), 64, &IndexRanges::from(0..8), 250..257);
}
