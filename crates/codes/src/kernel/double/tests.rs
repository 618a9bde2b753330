//! Two parities at every tier, against twins that follow the codes' definitions bit by bit.

use super::super::Tier;
use super::super::tests::{Ending, bytes, naive_mul};
use super::{Column, Combination, Double, Finish, Ring};
use crate::mds::{Code, Kind};

/// Around every output, to be found unchanged.
const GUARD: usize = 64;
/// Bytes of a packet of a whole block: part of what the codes are.
const PACKET: usize = 64;

/// Code, data chunks; every prime with a kernel, with and without columns of imagined zeros.
const SHAPES: [(Kind, usize); 13] = [
    (Kind::Cauchy, 1),
    (Kind::Cauchy, 3),
    (Kind::Cauchy, 10),
    (Kind::Rdp, 1),
    (Kind::Rdp, 2),
    (Kind::Rdp, 3),
    (Kind::Rdp, 4),
    (Kind::Rdp, 6),
    (Kind::Rdp, 8),
    (Kind::Rdp, 10),
    (Kind::Rdp, 12),
    (Kind::Rdp, 13),
    (Kind::Rdp, 16),
];

/// An output that begins so many bytes after a line of the caches.
struct Placed {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Placed {
    fn empty(len: usize, shift: usize) -> Self {
        let mut memory = vec![0x6b; len + 2 * 64 + 2 * GUARD];
        let start = memory.as_ptr().align_offset(64) + GUARD + shift % 64;
        memory[start..start + len].fill(0xa5);
        Self { memory, start, len }
    }

    fn view(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.len]
    }

    fn view_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.len]
    }

    fn holds(&self, content: &[u8]) -> bool {
        let outside = self.memory[..self.start].iter().chain(&self.memory[self.start + self.len..]);
        self.view() == content && outside.copied().all(|byte| byte == 0x6b)
    }
}

fn prime(k: usize) -> usize {
    *[3, 5, 7, 11, 13, 17].iter().find(|prime| **prime > k).expect("a prime with a kernel")
}

fn packets(kind: Kind, k: usize) -> usize {
    if kind == Kind::Cauchy { 8 } else { prime(k) - 1 }
}

/// x to this power, in GF(2^8).
fn power(exponent: usize) -> u8 {
    (0..exponent).fold(1, |product, _| naive_mul(product, 2))
}

/// Calls `each` with the place of every packet's byte of an offset: blocks of whole packets, then one of shorter ones.
fn offsets(len: usize, count: usize, mut each: impl FnMut(&dyn Fn(usize) -> usize)) {
    let mut start = 0;
    while start < len {
        let packet = PACKET.min((len - start) / count);
        (start..start + packet).for_each(|offset| each(&|row| offset + row * packet));
        start += packet * count;
    }
}

/// What data `columns` (number, bytes) add to P and Q.
fn naive(kind: Kind, k: usize, columns: &[(usize, &[u8])]) -> [Vec<u8>; 2] {
    let len = columns[0].1.len();
    let count = packets(kind, k);
    let [mut p, mut q] = [vec![0; len], vec![0; len]];
    let tables: Vec<[u8; 256]> = columns
        .iter()
        .map(|(column, _)| std::array::from_fn(|byte| naive_mul(power(*column), byte as u8)))
        .collect();
    offsets(len, count, |at| {
        for row in 0..count {
            p[at(row)] = columns.iter().fold(0, |sum, (_, data)| sum ^ data[at(row)]);
        }
        if kind == Kind::Cauchy {
            // Bit `row` of an element lies in packet `row`.
            for bit in 0..8 {
                let element =
                    |data: &[u8]| (0..8).fold(0, |sum, row| sum | (data[at(row)] >> bit & 1) << row);
                let sum =
                    columns.iter().zip(&tables).fold(0, |sum, ((_, d), t)| sum ^ t[usize::from(element(d))]);
                (0..8).for_each(|row| q[at(row)] |= (sum >> row & 1) << bit);
            }
        } else {
            let prime = count + 1;
            for diagonal in 0..count {
                let mut packet = 0;
                for (column, data) in columns.iter().copied().chain([(prime - 1, &*p)]) {
                    let row = (diagonal + prime - column) % prime;
                    packet ^= if row < count { data[at(row)] } else { 0 };
                }
                q[at(diagonal)] = packet;
            }
        }
    });
    [p, q]
}

/// All chunks of random data, parity by the naive twin.
fn chunks(kind: Kind, k: usize, len: usize) -> Vec<Vec<u8>> {
    let mut chunks: Vec<Vec<u8>> = (0..k as u64).map(|seed| bytes(seed + len as u64, len)).collect();
    let columns: Vec<(usize, &[u8])> = chunks.iter().map(Vec::as_slice).enumerate().collect();
    let parity = naive(kind, k, &columns);
    chunks.extend(parity);
    chunks
}

/// `wanted` from all but `lost`, chunk n placed `shifts(n)` bytes after a line, or into an allocation that ends with it.
fn check(
    tier: Tier,
    code: &Code,
    chunks: &[Vec<u8>],
    [lost, wanted]: [&[usize]; 2],
    shifts: &dyn Fn(usize) -> usize,
) {
    let kept: Vec<usize> = (0..chunks.len()).filter(|chunk| !lost.contains(chunk)).collect();
    let sources: Vec<Ending> =
        kept.iter().map(|chunk| Ending::new(&chunks[*chunk], shifts(*chunk) % 64)).collect();
    let sources: Vec<&[u8]> = sources.iter().map(Ending::view).collect();
    let mut outputs: Vec<Placed> =
        wanted.iter().map(|chunk| Placed::empty(chunks[0].len(), shifts(*chunk))).collect();
    let mut views: Vec<&mut [u8]> = outputs.iter_mut().map(Placed::view_mut).collect();
    if *wanted == [code.k(), code.k() + 1] {
        code.encode_at(tier, &sources, &mut views).expect("as many as there are");
    } else {
        let plan = code.plan(&kept, wanted).expect("enough chunks");
        plan.run_at(tier, &sources, &mut views).expect("as many as planned");
    }
    for (output, chunk) in outputs.iter().zip(wanted) {
        assert!(
            output.holds(&chunks[*chunk]),
            "{tier:?}, {:?} {} + 2, {} bytes, chunk {chunk} without {lost:?}",
            code.kind(),
            code.k(),
            chunks[0].len()
        );
    }
}

/// The update of data chunk `data` by hand: of the second parity, or of `both`.
fn update(kind: Kind, k: usize, data: usize, both: bool) -> Double {
    let columns = [0, 1].map(|source| Column { source, weight: source }).to_vec();
    let weighted = usize::from(both);
    if kind == Kind::Cauchy {
        let sum = both.then_some(Combination { output: 0, a: 1, b: 0 });
        let combination = Combination { output: weighted, a: power(data), b: 0 };
        Double::new(Ring::Field, columns, [None, None], Finish::Combine([sum, Some(combination)]))
    } else {
        let finish = Finish::Update { column: data, sum: both.then_some(0), weighted };
        Double::new(Ring::Cyclic(prime(k)), columns, [None, None], finish)
    }
}

fn check_update(tier: Tier, (kind, k): (Kind, usize), data: usize, len: usize, shift: usize) {
    let [old, new] = [1, 2].map(|seed| bytes(seed, len));
    let change: Vec<u8> = old.iter().zip(&new).map(|(old, new)| old ^ new).collect();
    let expected = naive(kind, k, &[(data, &change)]);
    let [old, new] =
        [(old, shift), (new, shift * 5)].map(|(content, shift)| Ending::new(&content, shift % 64));
    for both in [false, true] {
        let expected = if both { &expected[..] } else { &expected[1..] };
        let mut made: Vec<Placed> =
            (0..expected.len()).map(|output| Placed::empty(len, shift * 3 + 1 + 7 * output)).collect();
        let mut views: Vec<&mut [u8]> = made.iter_mut().map(Placed::view_mut).collect();
        update(kind, k, data, both).run(tier, &[old.view(), new.view()], &mut views);
        for (made, expected) in made.iter().zip(expected) {
            assert!(
                made.holds(expected),
                "{tier:?}, {kind:?} {k} + 2, {len} bytes at {shift}, update of {data}, both: {both}"
            );
        }
    }
}

#[test]
fn every_tier_makes_two_parities_of_every_length_like_the_naive_twin() {
    for (kind, k) in SHAPES {
        let code = Code::new(kind, k, 2).expect("a code");
        let count = packets(kind, k);
        // Every length of the last block's packets, after no, one and two whole blocks.
        for packet in (0..=2 * PACKET).chain([3 * PACKET - 1, 3 * PACKET]) {
            let chunks = chunks(kind, k, count * packet);
            for (place, &tier) in Tier::available().iter().enumerate() {
                let shifts = |chunk| packet * 7 + chunk * 3;
                check(tier, &code, &chunks, [&[k, k + 1]; 2], &shifts);
                let lost = [packet % k, k + packet % 2];
                check(tier, &code, &chunks, [&lost; 2], &shifts);
                check_update(tier, (kind, k), (packet + place) % k, count * packet, packet);
            }
        }
    }
}

#[test]
fn every_tier_makes_two_parities_at_every_alignment() {
    for (kind, k) in [(Kind::Cauchy, 2), (Kind::Rdp, 4)] {
        let code = Code::new(kind, k, 2).expect("a code");
        let chunks = chunks(kind, k, packets(kind, k) * (PACKET + 21));
        for sources in 0..64 {
            for outputs in 0..64 {
                // The tiers take turns: each has every place of sources and every place of outputs.
                let tier = Tier::available()[(sources + outputs) % Tier::available().len()];
                let shifts = |chunk| if chunk < k { sources } else { outputs };
                check(tier, &code, &chunks, [&[k, k + 1]; 2], &shifts);
            }
            Tier::available().iter().for_each(|tier| check_update(*tier, (kind, k), 1, 8 * 91 * 4, sources));
        }
    }
}

/// Short chunks of every length, sources at every alignment.
#[test]
fn every_tier_keeps_to_the_bytes_of_short_chunks() {
    const LEN_MAX: usize = 257;
    for (kind, k) in [(Kind::Cauchy, 3), (Kind::Rdp, 1), (Kind::Rdp, 4), (Kind::Rdp, 10), (Kind::Rdp, 16)] {
        let code = Code::new(kind, k, 2).expect("a code");
        for packet in 0..=LEN_MAX / packets(kind, k) {
            let chunks = chunks(kind, k, packets(kind, k) * packet);
            for shift in 0..64 {
                let shifts = |chunk: usize| shift + 5 * chunk;
                for &tier in Tier::available() {
                    check(tier, &code, &chunks, [&[k, k + 1]; 2], &shifts);
                }
                // The tiers take turns: each has every length and every place.
                let tier = Tier::available()[(packet + shift) % Tier::available().len()];
                let lost = [shift % k, k + packet % 2];
                check(tier, &code, &chunks, [&lost; 2], &shifts);
                check_update(tier, (kind, k), packet % k, chunks[0].len(), shift);
            }
        }
    }
}

#[test]
fn every_tier_finds_any_two_chunks_like_the_naive_twin() {
    for (kind, k) in SHAPES {
        let code = Code::new(kind, k, 2).expect("a code");
        let chunks = chunks(kind, k, packets(kind, k) * (PACKET + 5));
        for (x, y) in (0..k + 2).flat_map(|y| (0..y).map(move |x| (x, y))) {
            for &tier in Tier::available() {
                for wanted in [&[x, y][..], &[y, x], &[x], &[y]] {
                    check(tier, &code, &chunks, [&[x, y], wanted], &|chunk| chunk * 11);
                }
                check(tier, &code, &chunks, [&[x], &[x]], &|chunk| chunk);
            }
        }
        for data in 0..k {
            Tier::available()
                .iter()
                .for_each(|tier| check_update(*tier, (kind, k), data, chunks[0].len(), data));
        }
    }
}

#[test]
fn every_tier_writes_two_parities_past_the_caches_like_the_naive_twin() {
    // The plain sum apart, and both at once; more pairs of columns than have bodies of their own, and a last one alone.
    for (kind, k) in
        [(Kind::Cauchy, 3), (Kind::Rdp, 6), (Kind::Cauchy, 10), (Kind::Cauchy, 14), (Kind::Cauchy, 19)]
    {
        let code = Code::new(kind, k, 2).expect("a code");
        let count = packets(kind, k);
        // Over 2 MiB in all, and a shorter block at the end.
        // Of a decode k chunks count.
        let chunks = chunks(kind, k, ((2 << 20) / k / count + PACKET) * count);
        for &tier in Tier::available() {
            // Outputs at lines, which alone go past the caches, and one or both beside them.
            for [p, q] in [[0, 0], [0, 16], [32, 32]] {
                let shifts = |chunk: usize| [p, q].get(chunk.wrapping_sub(k)).copied().unwrap_or(chunk);
                check(tier, &code, &chunks, [&[k, k + 1]; 2], &shifts);
            }
            check(tier, &code, &chunks, [&[0, k - 1]; 2], &|_| 0);
        }
    }
}

/// Whose sums are kept out of registers from a length on.
#[test]
fn stripes_that_leave_the_caches_are_made_like_short_ones() {
    for (k, lost) in [(7, [0, 3]), (10, [0, 1]), (10, [4, 10]), (12, [2, 13]), (16, [0, 15]), (16, [3, 16])] {
        let code = Code::new(Kind::Rdp, k, 2).unwrap();
        let block = PACKET * code.chunk_multiple();
        let len = (3 << 20) / k / block * block;
        let data: Vec<Vec<u8>> = (0..k).map(|chunk| bytes((k + chunk) as u64, len)).collect();
        let mut short = [vec![0; len], vec![0; len]];
        for start in (0..len).step_by(4 * block) {
            let range = start..len.min(start + 4 * block);
            let data: Vec<&[u8]> = data.iter().map(|chunk| &chunk[range.clone()]).collect();
            let [p, q] = &mut short;
            code.encode(&data, &mut [&mut p[range.clone()], &mut q[range]]).unwrap();
        }
        let views: Vec<&[u8]> = data.iter().chain(&short).map(|chunk| &**chunk).collect();
        for tier in Tier::available() {
            let [mut p, mut q] = [vec![1; len], vec![2; len]];
            code.encode_at(*tier, &views[..k], &mut [&mut p, &mut q]).unwrap();
            assert!(p == short[0] && q == short[1], "{tier:?}, k = {k}");
            let there: Vec<_> =
                (0..k + 2).filter(|chunk| !lost.contains(chunk)).map(|c| (c, views[c])).collect();
            let mut found = [vec![3; len], vec![4; len]];
            let [first, second] = &mut found;
            code.reconstruct_at(*tier, &there, &mut [(lost[0], &mut **first), (lost[1], &mut **second)])
                .unwrap();
            assert!(found[0] == views[lost[0]] && found[1] == views[lost[1]], "{tier:?}, k = {k}, {lost:?}");
        }
    }
}
