//! The code of one segment: its kind, K and seed, and from them the row of every index.

use super::encoder::{EncodeError, Encoder};
use super::mix::Parities;
use super::permutation::{below, generator, mix, shuffle};
use super::rank::RankTracker;
use super::rows::{Drawing, Repair, Rows};
use super::soliton::Soliton;
use super::stripes::Stripes;
use crate::kernel::gf256;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The most originals a code takes; findings §1 measured up to 1024, columns are 16-bit numbers.
pub const K_MAX: u32 = 8192;
/// Below this, mix has dense repair rows: 4-cycle-free parities need K <= S(S - 1)/6.
pub(super) const SPARSE_FROM: u32 = 128;
/// Below this, mix's repair rows carry GF(256) coefficients: GF(2)'s own floor of 1.6 extra blocks is 1.3 % there.
pub(super) const BINARY_FROM: u32 = 512;
/// Indices that are elements of GF(256).
const BYTE_INDICES: u32 = 256;
/// The largest redundancy of a policy: N is at most 16 K.
const REDUNDANCY_MAX: u32 = 15;
/// Seeds tried by [`Code::checked`] before it gives up.
const SEEDS_MAX: u32 = 1000;
const STREAM_COEFFICIENTS: u64 = 3;
const STREAM_ARRIVALS: u64 = 4;

/// Which code.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Block i is original i mod K: a stripe when N = K, replicas when K = 1.
    Replicated,
    /// The dissertation's improved LT (§5.2.3): robust soliton degrees, originals walked by permutations so that
    /// their degrees differ by at most one, peeling only.
    Lt {
        /// Scales the spike, R = c ln(K/delta) sqrt(K). Above 0, and so far below the largest number (1e300 at any K) that
        /// the degrees' weights have a finite sum.
        c: f64,
        /// Bound on the probability that decoding stalls, above 0 and at most 1.
        delta: f64,
    },
    /// Systematic and near the any-K ideal: blocks below K are the originals, then repair blocks without end.
    /// Variant B of findings §1, with more parity columns in the first rows.
    Mix,
    /// Variant A: 7 % fewer XORs at random arrival and a fifth fewer from disks with originals first; twice the overhead, and
    /// many more blocks where originals come first.
    MixA,
    /// Variant C: half as many parity columns more and longer rows; the least overhead, the most XORs.
    MixC,
    /// Reed-Solomon's parity chunks beside data chunks of c blocks each, block r of a parity chunk over block r of
    /// every data chunk, by the coefficients of [`mds`](crate::mds): K = `data` c, any `data` blocks of a row give it,
    /// and there is no block from (`data` + `parity`) c on ([`Code::end`]).
    ReedSolomon {
        /// k: data chunks.
        data: u32,
        /// n - k: parity chunks.
        parity: u32,
    },
}

impl Kind {
    /// Whether this is one of the mix codes.
    pub fn is_mix(self) -> bool {
        matches!(self, Kind::Mix | Kind::MixA | Kind::MixC)
    }
}

/// Why there is no such code.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum CodeError {
    /// K is zero or above [`K_MAX`].
    #[error("{k} originals: a code takes 1 to {K_MAX}")]
    BlockCount {
        /// What was asked.
        k: u32,
    },
    /// The robust soliton's parameters are out of range.
    #[error(
        "robust soliton with c = {c}, delta = {delta}: c must be above 0 and leave the weights a finite sum, delta above 0 \
         and at most 1"
    )]
    Parameters {
        /// What was asked.
        c: f64,
        /// What was asked.
        delta: f64,
    },
    /// No such chunks, or K originals do not fill them.
    #[error(
        "{k} originals in {data} data chunks beside {parity} of parity: data chunks are equally long, each kind has one at \
         least, and both together 255 at most"
    )]
    Chunks {
        /// Data chunks asked for.
        data: u32,
        /// Parity chunks asked for.
        parity: u32,
        /// K.
        k: u32,
    },
    /// No 4-cycle-free parity columns were found; another seed finds others.
    #[error("no parity graph for {k} originals from seed {seed}: try another seed")]
    Graph {
        /// K.
        k: u32,
        /// The seed.
        seed: u64,
    },
    /// None of the seeds tried makes the first n blocks decode; ask for more blocks.
    #[error(
        "the first {n} blocks of {k} originals decode for none of the {seeds} seeds tried: store more blocks"
    )]
    Undecodable {
        /// K.
        k: u32,
        /// Blocks that should decode.
        n: u32,
        /// Seeds tried.
        seeds: u32,
    },
}

/// The graph of one segment. Cloning shares it; rows are made when first asked for and kept.
#[derive(Clone)]
pub struct Code {
    inner: Arc<Inner>,
}

struct Inner {
    kind: Kind,
    k: u32,
    seed: u64,
    shape: Shape,
    /// LT: mean and guard measured on this graph, on first use.
    reception: OnceLock<(u32, u32)>,
}

enum Shape {
    Replicated,
    Lt(Rows),
    /// Repair rows name every original. Those below [`BYTE_INDICES`] are of a Cauchy matrix, 1/(index - column) in
    /// GF(256): every square part of it is invertible, so any K of these blocks decode. Later ones are drawn.
    Dense,
    Sparse {
        parities: Arc<Parities>,
        rows: Rows,
        binary: bool,
    },
    Stripes(Stripes),
}

/// A nonzero entry of a row: columns below K are originals, K + s is parity column s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) column: u16,
    pub(crate) coefficient: u8,
}

/// What an update of one original does to one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delta {
    /// The block.
    pub index: u32,
    /// The original's coefficient in it (GF(2^8), 0x11d); 1 for every code over GF(2).
    pub coefficient: u8,
}

impl Code {
    /// The code of `kind` over `k` originals that `seed` names. The same arguments give the same rows everywhere.
    ///
    /// # Errors
    /// K, a soliton's parameters or chunks that the kind has no code of; [`CodeError::Graph`] when this seed gives none.
    pub fn new(kind: Kind, k: u32, seed: u64) -> Result<Code, CodeError> {
        if k == 0 || k > K_MAX {
            return Err(CodeError::BlockCount { k });
        }
        let shape = match kind {
            Kind::Replicated => Shape::Replicated,
            Kind::ReedSolomon { data, parity } => Shape::Stripes(Stripes::new(data, parity, k)?),
            Kind::Lt { c, delta } => {
                let sound = c > 0.0 && c.is_finite() && delta > 0.0 && delta <= 1.0;
                let soliton = if sound { Soliton::new(k, c, delta) } else { None };
                let soliton = soliton.ok_or(CodeError::Parameters { c, delta })?;
                Shape::Lt(Rows::new(Drawing::Lt(soliton), k, &[0], seed))
            }
            Kind::Mix | Kind::MixA | Kind::MixC if k < SPARSE_FROM => Shape::Dense,
            Kind::Mix | Kind::MixA | Kind::MixC => {
                let (repair, columns) = match kind {
                    Kind::MixA => (Repair::A, k / 4),
                    Kind::MixC => (Repair::C, 3 * k / 8),
                    _ => (Repair::B, k / 4),
                };
                let parities = Parities::new(k, columns, seed).ok_or(CodeError::Graph { k, seed })?;
                let parities = Arc::new(parities);
                let rows =
                    Rows::new(Drawing::Repair(repair, parities.clone()), k, parities.class_ends(), seed);
                Shape::Sparse { parities, rows, binary: k >= BINARY_FROM }
            }
        };
        Ok(Code { inner: Arc::new(Inner { kind, k, seed, shape, reception: OnceLock::new() }) })
    }

    /// Like [`Code::new`], with the first of the seeds derived from `seed` (itself the first) whose blocks `0..n`
    /// decode (dissertation §5.2.3 (1)). The one found is [`Code::seed`].
    ///
    /// # Errors
    /// As for [`Code::new`], but for graphs; [`CodeError::Undecodable`] when none of the seeds tried does.
    pub fn checked(kind: Kind, k: u32, seed: u64, n: u32) -> Result<Code, CodeError> {
        let mut tried = 0;
        for attempt in 0..SEEDS_MAX {
            let derived = if attempt == 0 { seed } else { mix(seed ^ mix(u64::from(attempt))) };
            let code = match Code::new(kind, k, derived) {
                Err(CodeError::Graph { .. }) => continue,
                other => other?,
            };
            if n < k {
                break;
            }
            tried += 1;
            // In order already, and far fewer than n where that is large.
            let mut tracker = RankTracker::new(&code);
            if (0..n).any(|index| {
                tracker.push(index);
                tracker.missing() == 0
            }) {
                return Ok(code);
            }
            if matches!(kind, Kind::Replicated | Kind::ReedSolomon { .. }) {
                break;
            }
        }
        Err(CodeError::Undecodable { k, n, seeds: tried })
    }

    /// Which code this is.
    pub fn kind(&self) -> Kind {
        self.inner.kind
    }

    /// K: how many originals there are.
    pub fn k(&self) -> u32 {
        self.inner.k
    }

    /// The first index that is no block's; none for codes without end. Such an index adds nothing, has no row and cannot
    /// be encoded.
    pub fn end(&self) -> Option<u32> {
        self.stripes().map(Stripes::end)
    }

    /// Blocks of one chunk; 1 for codes without chunks.
    pub fn chunk_blocks(&self) -> u32 {
        self.stripes().map_or(1, Stripes::rows)
    }

    pub(super) fn stripes(&self) -> Option<&Stripes> {
        if let Shape::Stripes(stripes) = &self.inner.shape { Some(stripes) } else { None }
    }

    /// The seed that names this graph.
    pub fn seed(&self) -> u64 {
        self.inner.seed
    }

    /// Blocks beyond K that decode with good probability: what the durability rule adds to K before its rank tests.
    ///
    /// - Replicated: 0. No count suffices unless K = 1; the rank test decides.
    /// - Reed-Solomon: 0. K blocks in whole chunks suffice, and the rank test decides where they are not.
    /// - LT: mean and three standard deviations of sixteen seeded arrivals on this graph, each of 16 K blocks at most: what
    ///   those do not decode counts as 15 K extra.
    /// - Mix up to 16: 0, any K of the 256 blocks of the largest redundancy decode. Below 128: 2; where blocks from 256
    ///   on are among them one extra block fails with probability 1/255, two with about 1/255 squared.
    /// - Mix from 128: 2 % of K, at least 4; on 64 unequal disks with originals first B at K = 1024 needs more than 2 %
    ///   in 39 of 10^5 draws, 2.7 % in the worst. A: 6 %.
    pub fn guard(&self) -> u32 {
        match self.inner.shape {
            Shape::Replicated | Shape::Stripes(_) => 0,
            Shape::Lt(_) => self.reception().1,
            Shape::Dense if self.k() <= BYTE_INDICES / (REDUNDANCY_MAX + 1) => 0,
            Shape::Dense => 2,
            Shape::Sparse { .. } if self.kind() == Kind::MixA => (3 * self.k()).div_ceil(50).max(4),
            Shape::Sparse { .. } => self.k().div_ceil(50).max(4),
        }
    }

    /// Blocks beyond K needed on random arrival, expected value rounded up.
    ///
    /// - Replicated: 0, meaning stripes read whole. Reed-Solomon: 0, meaning chunks.
    /// - LT: measured on this graph; 0.38 K for (1, 0.5), 0.52 K for (1, 0.1) at K = 1024.
    /// - Mix: 0 below 128 (1/255), 0.08 % of K below 512 over GF(256), from there 0.24 % (A: 0.38 %, C: 0.17 %).
    pub fn expected_extra(&self) -> u32 {
        match self.inner.shape {
            Shape::Replicated | Shape::Dense | Shape::Stripes(_) => 0,
            Shape::Lt(_) => self.reception().0,
            Shape::Sparse { binary, .. } => {
                let per_ten_thousand = match self.kind() {
                    _ if !binary => 8,
                    Kind::MixA => 38,
                    Kind::MixC => 17,
                    _ => 24,
                };
                (self.k() * per_ten_thousand).div_ceil(10_000)
            }
        }
    }

    /// Makes the blocks of `indices` into `out`, in that order: every byte of them is written, whatever they hold. All blocks have the
    /// length of the originals; a short last original is padded by the caller. Sums that several blocks share are made once.
    ///
    /// # Errors
    /// Not K originals, not an output for each index, blocks of several lengths, an index from [`Code::end`] on; nothing is
    /// written then.
    pub fn encode(
        &self,
        indices: &[u32],
        originals: &[&[u8]],
        out: &mut [&mut [u8]],
    ) -> Result<(), EncodeError> {
        Encoder::new(self).encode(indices, originals, out)
    }

    /// An encoder over this code, which can keep the parity columns of originals between calls.
    pub fn encoder(&self) -> Encoder {
        Encoder::new(self)
    }

    /// How many originals' worth the blocks give: the rank, and for LT the originals that peeling recovers. One set of blocks is one
    /// elimination; of what many losses leave of one set, [`LossRanks`](super::LossRanks) shares most. At K = 1024 it keeps 200 patterns
    /// below 100 ms where most originals are among the blocks (some 0.1 ms a pattern), as they are in what a writer stores, but not
    /// where hardly any is (up to 1 ms).
    pub fn rank_of(&self, indices: &mut dyn Iterator<Item = u32>) -> u32 {
        self.track(indices).rank()
    }

    /// Whether the blocks give all originals back. Takes all of `indices` first, to go through them in ascending order: four
    /// bytes each. For a long run from 0 on a [`RankTracker`] stops as soon as they do.
    pub fn decodes(&self, indices: &mut dyn Iterator<Item = u32>) -> bool {
        self.track(indices).missing() == 0
    }

    /// The blocks pushed in ascending order until all originals can be computed.
    pub(super) fn track(&self, indices: &mut dyn Iterator<Item = u32>) -> RankTracker {
        // Low indices first: originals known early keep the rows to come short. The verdict has no order.
        let mut sorted: Vec<u32> = indices.collect();
        sorted.sort_unstable();
        let mut tracker = RankTracker::new(self);
        for index in sorted {
            tracker.push(index);
            if tracker.missing() == 0 {
                break;
            }
        }
        tracker
    }

    /// Those of the blocks `stored` that depend on `original`, ascending: what an update of it has to change. None do on one that is not
    /// below K.
    pub fn touched_by(&self, original: u32, stored: Range<u32>) -> Vec<u32> {
        self.deltas(original, stored).into_iter().map(|delta| delta.index).collect()
    }

    /// What an update of `original` does to the blocks `stored`, ascending by index: each block named gains its
    /// coefficient times (the original before XOR after), all others stay. Needs neither the other originals nor the
    /// parity columns. An original that is not below K is in no block.
    pub fn deltas(&self, original: u32, stored: Range<u32>) -> Vec<Delta> {
        if original >= self.k() {
            return Vec::new();
        }
        let mut row = Vec::new();
        stored
            .filter_map(|index| {
                let coefficient = match &self.inner.shape {
                    Shape::Replicated => u8::from(index % self.k() == original),
                    Shape::Dense | Shape::Sparse { .. } | Shape::Stripes(_) if index < self.k() => {
                        u8::from(index == original)
                    }
                    _ => {
                        row.clear();
                        self.row(index, &mut row);
                        self.coefficient_in(&row, original)
                    }
                };
                (coefficient != 0).then_some(Delta { index, coefficient })
            })
            .collect()
    }

    /// The coefficients (GF(2^8), 0x11d) of block `index` over the K originals, parity columns resolved.
    pub fn generator_row(&self, index: u32) -> Vec<u8> {
        let (mut row, mut dense) = (Vec::new(), vec![0; self.k() as usize]);
        self.row(index, &mut row);
        self.resolve(&row, |original, coefficient| dense[original as usize] ^= coefficient);
        dense
    }

    /// The originals each hidden parity column sums; empty for codes without.
    pub fn parity_columns(&self) -> Vec<Vec<u32>> {
        let members = |parity| self.parity_members(parity).iter().map(|member| u32::from(*member)).collect();
        (0..self.parity_count()).map(members).collect()
    }

    fn coefficient_in(&self, row: &[Entry], original: u32) -> u8 {
        let k = self.k() as u16;
        let columns = match &self.inner.shape {
            Shape::Sparse { parities, .. } => parities.of_original(original).as_slice(),
            _ => &[],
        };
        row.iter()
            .filter(|entry| match entry.column.checked_sub(k) {
                None => u32::from(entry.column) == original,
                Some(parity) => columns.contains(&parity),
            })
            .fold(0, |sum, entry| sum ^ entry.coefficient)
    }

    /// Calls `f` with every original of `row`, parity columns replaced by their members; an original may come
    /// several times, its coefficients add.
    #[inline]
    pub(crate) fn resolve(&self, row: &[Entry], mut f: impl FnMut(u16, u8)) {
        let k = self.k() as u16;
        for entry in row {
            match entry.column.checked_sub(k) {
                None => f(entry.column, entry.coefficient),
                Some(parity) => {
                    for member in self.parity_members(parity as usize) {
                        f(*member, entry.coefficient);
                    }
                }
            }
        }
    }

    /// Appends the row of block `index`, distinct columns with nonzero coefficients; nothing for an index at or behind
    /// [`Code::end`].
    pub(crate) fn row(&self, index: u32, row: &mut Vec<Entry>) {
        let k = self.k();
        let ones = |columns: &[u16], row: &mut Vec<Entry>| {
            row.extend(columns.iter().map(|column| Entry { column: *column, coefficient: 1 }));
        };
        let repair = match &self.inner.shape {
            Shape::Replicated => return ones(&[(index % k) as u16], row),
            Shape::Lt(rows) => return rows.with(index, |columns| ones(columns, row)),
            Shape::Dense | Shape::Sparse { .. } | Shape::Stripes(_) => match index.checked_sub(k) {
                None => return ones(&[index as u16], row),
                Some(repair) => repair,
            },
        };
        if let Shape::Stripes(stripes) = &self.inner.shape {
            return stripes.parity_row(index, row);
        }
        if let Shape::Sparse { rows, binary: true, .. } = &self.inner.shape {
            return rows.with(repair, |columns| ones(columns, row));
        }
        let mut coefficients = generator(self.inner.seed, STREAM_COEFFICIENTS, u64::from(repair));
        let mut drawn = |column| Entry { column, coefficient: 1 + below(&mut coefficients, 255) as u8 };
        match &self.inner.shape {
            Shape::Sparse { rows, .. } => {
                rows.with(repair, |columns| row.extend(columns.iter().map(|column| drawn(*column))))
            }
            _ => match u8::try_from(index) {
                Ok(index) => row.extend(
                    (0..k as u16)
                        .map(|column| Entry { column, coefficient: gf256::inverse(index ^ column as u8) }),
                ),
                Err(_) => row.extend((0..k as u16).map(drawn)),
            },
        }
    }

    /// S: hidden parity columns.
    pub(crate) fn parity_count(&self) -> usize {
        if let Shape::Sparse { parities, .. } = &self.inner.shape { parities.count() } else { 0 }
    }

    pub(crate) fn parity_members(&self, parity: usize) -> &[u16] {
        if let Shape::Sparse { parities, .. } = &self.inner.shape { parities.members(parity) } else { &[] }
    }

    /// Whether every coefficient is one.
    pub(crate) fn is_binary(&self) -> bool {
        !matches!(self.inner.shape, Shape::Dense | Shape::Stripes(_) | Shape::Sparse { binary: false, .. })
    }

    /// Whether repair rows name every original.
    pub(crate) fn is_dense(&self) -> bool {
        matches!(self.inner.shape, Shape::Dense)
    }

    /// Whether decoding is by peeling alone.
    pub(crate) fn peels(&self) -> bool {
        matches!(self.inner.shape, Shape::Lt(_) | Shape::Replicated)
    }

    /// LT: mean extra blocks and mean plus three standard deviations, over seeded random arrivals.
    fn reception(&self) -> (u32, u32) {
        *self.inner.reception.get_or_init(|| {
            let mut generator = generator(self.seed(), STREAM_ARRIVALS, 0);
            let extras: Vec<f64> =
                (0..ARRIVALS).map(|_| f64::from(self.extra_on_arrival(&mut generator))).collect();
            let mean = extras.iter().sum::<f64>() / extras.len() as f64;
            let variance =
                extras.iter().map(|extra| (extra - mean).powi(2)).sum::<f64>() / extras.len() as f64;
            (mean.ceil() as u32, (mean + 3.0 * variance.sqrt()).ceil() as u32)
        })
    }

    /// Blocks beyond K taken from ever larger random sets of blocks until they decode, or are all that a policy stores.
    fn extra_on_arrival(&self, generator: &mut rand_pcg::Pcg64Mcg) -> u32 {
        let mut tracker = RankTracker::new(self);
        let mut taken = 0;
        // N = 4 K as in the evaluation; a graph that those do not decode goes on to the blocks after them.
        let mut start = 0;
        while tracker.missing() > 0 && start < (REDUNDANCY_MAX + 1) * self.k() {
            let pool = 4 * self.k();
            let mut order: Vec<u16> = (0..pool.min(u32::from(u16::MAX)) as u16).collect();
            shuffle(&mut order, generator);
            for place in order {
                if tracker.missing() == 0 {
                    break;
                }
                tracker.push(start + u32::from(place));
                taken += 1;
            }
            start += pool;
        }
        taken - self.k()
    }
}

/// Arrivals that [`Code::guard`] of an LT code is measured on: the standard error of the mean is then a quarter of
/// the deviation, and the measurement takes a few milliseconds at K = 1024.
const ARRIVALS: u32 = 16;

impl core::fmt::Debug for Code {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Code")
            .field("kind", &self.kind())
            .field("k", &self.k())
            .field("seed", &self.seed())
            .finish()
    }
}
