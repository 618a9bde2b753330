//! Two parities in one pass: every packet of every source is added to a plain and to a weighted sum. Both stay in registers and each
//! packet is read once, or the plain sum of a few packets comes first, and the weighted one reads them again from the first cache
//! ([`rows`]): where registers are too few, and from memory.
//!
//! ```text
//!   S[r] = sum over columns c of d_c[r]              r: packet of a block, one register of it at a time
//!   T    = sum over columns c of x^w(c) * d_c        w: the column's weight
//! ```
//!
//! Multiplying all packets of a block by x costs next to nothing where packets are registers:
//!
//! - [`Ring::Field`]: 8 packets are the bits of elements of GF(2^8). They move up by one; the highest is added in
//!   again in four places. Cauchy-Reed-Solomon with the rows 1 and x^c: [`field`].
//! - [`Ring::Cyclic`]: p packets modulo x^p - 1, the last of a column being zero. They move round by one. Row-diagonal
//!   parity: `T[g]` is the sum on diagonal g: [`cyclic`].
//!
//! So a word costs one load and two additions, and what to make of S and T is decided once a block: [`Finish`]. For p = 17,
//! and from p = 11 on where stripes leave the nearer caches and registers are few, the sums are kept out of registers:
//! [`diagonals`].
//!
//! Soundness: [`Double::run`] checks every length and place before the first address is formed.

mod blocks;
mod cyclic;
mod diagonals;
mod field;
mod rows;
mod strip;
#[cfg(test)]
mod tests;

use diagonals::Run;

use super::{STREAM_FROM, Tier, first_cache_ways};

/// Bytes of a packet of a whole block: one line of the caches, so that a block is one stretch of every chunk.
pub(crate) const PACKET: usize = 64;
/// Primes that have a kernel: as far as stripes are wide.
pub(crate) const PRIMES: [usize; 6] = [3, 5, 7, 11, 13, 17];
/// Packets of a block at most.
pub(crate) const PACKETS_MAX: usize = PRIMES[PRIMES.len() - 1] - 1;
/// Packets from which the sums of a cyclic ring may be kept out of registers.
const SPILLED: usize = 10;

/// What packets are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Bits of elements of GF(2^8).
    Field,
    /// p - 1 of the p coefficients modulo x^p - 1, for one of [`PRIMES`].
    Cyclic(usize),
}

impl Ring {
    /// Packets of a block.
    pub(crate) fn packets(self) -> usize {
        match self {
            Ring::Field => 8,
            Ring::Cyclic(prime) => prime - 1,
        }
    }
}

/// A source that counts in both sums.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    /// Place in the list of sources.
    pub(crate) source: usize,
    /// What power of x it has in T.
    pub(crate) weight: usize,
}

/// What is made of the sums; places are those in the list of outputs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Finish {
    /// `output = a S + b T` for each.
    Combine([Option<Combination>; 2]),
    /// S is the one column that lacks, and goes to `sum`; T with it goes to `weighted`.
    Column { column: usize, sum: Option<usize>, weighted: Option<usize> },
    /// S is what was added to a data column, and goes to `sum`; what that adds to Q goes to `weighted`.
    Update { column: usize, sum: Option<usize>, weighted: usize },
    /// Two columns lack, the first below the second; each packet found leads to the next (Corbett et al. 2004, section 4).
    Chain { columns: [usize; 2], outputs: [Option<usize>; 2] },
}

/// `output = a S + b T`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Combination {
    pub(crate) output: usize,
    pub(crate) a: u8,
    pub(crate) b: u8,
}

/// What is read and what is made of it.
#[derive(Clone, Debug)]
pub(crate) struct Double {
    ring: Ring,
    /// Descending weights.
    columns: Vec<Column>,
    /// Counts in S only, in T only.
    others: [Option<usize>; 2],
    finish: Finish,
    /// The steps of a chain.
    links: Vec<Link>,
    /// Columns that are added at once, of the columns in ascending order of their weights; of a ring whose sums are kept out of
    /// registers.
    runs: Vec<Run>,
}

/// A step of a chain: `packet row of the one column = what was found of the other before + T[diagonal]`, then
/// `packet row of the other = that + S[row]`.
#[derive(Clone, Copy, Debug)]
struct Link {
    diagonal: usize,
    row: usize,
    /// Places of the one column and the other in the finish.
    one: usize,
    other: usize,
    /// Nothing was found before: the other column's packet p - 1 is zero.
    first: bool,
}

/// The links of a chain of columns `x < y` modulo p. Diagonal p - 1 is unknown: one walk begins at each of the two zeros
/// and ends at that diagonal.
fn links(p: usize, [x, y]: [usize; 2]) -> Vec<Link> {
    let mut links = Vec::new();
    for ([one, other], [one_column, other_column]) in [([0, 1], [x, y]), ([1, 0], [y, x])] {
        let mut row = p - 1;
        loop {
            let first = row == p - 1;
            let diagonal = (row + other_column) % p;
            row = (diagonal + p - one_column) % p;
            if diagonal == p - 1 || row == p - 1 {
                break;
            }
            links.push(Link { diagonal, row, one, other, first });
        }
    }
    assert_eq!(links.len(), p - 1, "every row of two columns");
    links
}

impl Double {
    /// # Panics
    /// When the ring has no kernel, the finish is another ring's, or a column is not one of the ring's: our own broken
    /// invariants.
    pub(crate) fn new(
        ring: Ring,
        mut columns: Vec<Column>,
        others: [Option<usize>; 2],
        finish: Finish,
    ) -> Self {
        columns.sort_by_key(|column| std::cmp::Reverse(column.weight));
        assert!(columns.is_sorted_by(|a, b| a.weight > b.weight), "columns of different weights");
        match (ring, finish) {
            (Ring::Field, Finish::Combine(_)) => {}
            (Ring::Cyclic(prime), Finish::Column { column, .. } | Finish::Update { column, .. }) => {
                assert!(PRIMES.contains(&prime) && column < prime, "a column of the ring");
                assert!(!matches!(finish, Finish::Update { .. }) || columns.len() == 2, "old and new bytes");
            }
            (Ring::Cyclic(prime), Finish::Chain { columns: [x, y], .. }) => {
                assert!(PRIMES.contains(&prime) && x < y && y < prime, "columns of the ring");
            }
            _ => panic!("{finish:?} is not of {ring:?}"),
        }
        let links = match (ring, finish) {
            (Ring::Cyclic(prime), Finish::Chain { columns, .. }) => links(prime, columns),
            _ => Vec::new(),
        };
        let weights: Vec<usize> = columns.iter().map(|column| column.weight).collect();
        let runs = if ring.packets() >= SPILLED { diagonals::runs(&weights) } else { Vec::new() };
        Self { ring, columns, others, finish, links, runs }
    }

    /// What its packets are.
    pub(crate) fn ring(&self) -> Ring {
        self.ring
    }

    /// Places of the sources that are read, ascending.
    pub(crate) fn used(&self) -> Vec<usize> {
        let columns = self.columns.iter().map(|column| column.source);
        let mut used: Vec<usize> = columns.chain(self.others.into_iter().flatten()).collect();
        used.sort_unstable();
        used
    }

    /// Runs over chunks, or whole blocks of them; allocates nothing. The last block may have shorter packets.
    ///
    /// # Panics
    /// When a source or an output that belongs is not there, or their lengths differ or are no multiple of the
    /// ring's packets.
    pub(crate) fn run(&self, tier: Tier, sources: &[&[u8]], outputs: &mut [&mut [u8]]) {
        let Some(len) = outputs.first().map(|output| output.len()) else { return };
        let count = self.ring.packets();
        assert!(len.is_multiple_of(count), "packets of one length");
        assert!(outputs.iter().all(|output| output.len() == len), "outputs of one length");
        let length_of = |place: usize| sources[place].len();
        assert!(self.columns.iter().all(|column| length_of(column.source) == len), "sources of one length");
        assert!(self.others.iter().flatten().all(|place| length_of(*place) == len), "sources of one length");
        let lined = outputs.iter().all(|output| output.as_ptr().addr().is_multiple_of(PACKET));
        let large = (self.columns.len() + outputs.len()) * len >= STREAM_FROM;
        let mut to = |place: Option<usize>| place.map(|place| outputs[place].as_mut_ptr());
        let to = match self.finish {
            Finish::Combine(pair) => pair.map(|one| to(one.map(|one| one.output))),
            Finish::Column { sum, weighted, .. } => [to(sum), to(weighted)],
            Finish::Update { sum, weighted, .. } => [to(sum), to(Some(weighted))],
            Finish::Chain { outputs, .. } => outputs.map(to),
        };
        let job = Job { double: self, sources, to, len, large, stream: large && lined };
        // SAFETY: all places were looked up just now, all of them have `len` bytes, the outputs borrowed uniquely;
        // `stream` only where outputs begin at lines. The tier is supported.
        unsafe {
            blocks::run(tier.supported(), &job);
            blocks::rest(&job);
        }
        #[cfg(target_arch = "x86_64")]
        if job.stream {
            super::steps::fence();
        }
    }
}

/// A run, its addresses checked.
struct Job<'a> {
    double: &'a Double,
    sources: &'a [&'a [u8]],
    /// Outputs in the order of the finish.
    to: [Option<*mut u8>; 2],
    len: usize,
    /// More than the nearer caches hold.
    large: bool,
    stream: bool,
}

impl Job<'_> {
    /// Where a cyclic ring's columns begin.
    fn columns(&self) -> strip::Columns {
        let mut columns = [core::ptr::null(); diagonals::PRIME_MAX + 1];
        if matches!(self.double.ring, Ring::Cyclic(_)) {
            for column in &self.double.columns {
                columns[column.weight] = self.sources[column.source].as_ptr();
            }
        }
        columns
    }

    /// Whether a weighted sum is wanted.
    fn weighted(&self) -> bool {
        match self.double.finish {
            Finish::Combine(pair) => pair.iter().flatten().any(|one| one.b != 0),
            Finish::Column { .. } | Finish::Chain { .. } => true,
            Finish::Update { .. } => false,
        }
    }

    /// Whether the plain sum is formed apart, if there is one: where both do not `fit` the registers, or from memory, where the first
    /// cache has ways for as many columns as may lie a power of two apart, so that it keeps their blocks until the other sum reads
    /// them. On Zen 5, of 12 ways, 10 + 2 has 0.93 of reading speed so and 0.64 at once; on Zen 4, of 8, 0.48 and 0.85, and 4 + 2 0.9 of
    /// Reed-Solomon's speed and 1.05 at once.
    fn apart(&self, fit: bool) -> bool {
        let columns = self.double.columns.len();
        let sources = columns + self.double.others.iter().flatten().count();
        let kept = sources <= rows::GROUP && rows::GROUP <= first_cache_ways();
        self.weighted() && columns > 0 && (!fit || self.large && kept)
    }
}
