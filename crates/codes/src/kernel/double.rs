//! Two parities in one pass: every packet of every source is added to a plain and to a weighted sum. Both stay in registers and each
//! packet is read once, or the plain sum of a few packets comes first, and the weighted one reads them again from the first cache
//! ([`rows`]): where registers are too few, and from memory.
//!
//! ```text
//!   S[r] = sum over columns c of d_c[r]              r: packet of a block, one register of it at a time
//!   T    = sum over columns c of x^w(c) * d_c        by Horner's rule, columns in descending order of their weights:
//!                                                    T = x^(difference of weights) * T + d_c
//! ```
//!
//! Multiplying all packets of a block by x costs next to nothing where packets are registers:
//!
//! - [`Ring::Field`]: 8 packets are the bits of elements of GF(2^8). They move up by one; the highest is added in
//!   again in four places. Cauchy-Reed-Solomon with the rows 1 and x^c.
//! - [`Ring::Cyclic`]: p packets modulo x^p - 1, the last of a column being zero. They move round by one. Row-diagonal
//!   parity: `T[g]` is the sum on diagonal g.
//!
//! So a word costs one load and two additions, and what to make of S and T is decided once a block: [`Finish`]. For p = 17,
//! and from p = 11 on where stripes leave the nearer caches, the sums are kept out of registers:
//! [`diagonals`].
//!
//! Soundness: [`Double::run`] checks every length and place before the first address is formed.

use super::diagonals::{self, Run, Sums};
#[cfg(not(target_arch = "x86_64"))]
use super::register::Plain;
use super::register::{Byte, Register};
use super::rows::{self, RowSums};
use super::{STREAM_FROM, Tier};

/// Bytes of a packet of a whole block: one line of the caches, so that a block is one stretch of every chunk.
pub(crate) const PACKET: usize = 64;
/// Primes that have a kernel: as far as stripes are wide.
pub(crate) const PRIMES: [usize; 6] = [3, 5, 7, 11, 13, 17];
/// Packets of a block at most.
pub(crate) const PACKETS_MAX: usize = PRIMES[PRIMES.len() - 1] - 1;
/// Packets from which the sums of a cyclic ring may be kept out of registers.
const SPILLED: usize = 10;
/// Columns up to which the plain sum is formed apart from memory: of more, a power of two apart, the first cache does not keep a block
/// until the other sum reads it (16 + 2: 0.50 of reading speed, 0.60 at once).
const APART_MAX: usize = rows::GROUP;

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
            #[cfg(target_arch = "x86_64")]
            super::steps::double_at(tier.supported(), &job);
            #[cfg(not(target_arch = "x86_64"))]
            body::<Plain>(&job);
            rest(&job);
        }
        let _ = tier;
    }
}

/// A run, its addresses checked.
pub(super) struct Job<'a> {
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
    /// Whether the plain sum is formed apart, if there is one: from memory, or where both do not `fit` the registers.
    fn apart(&self, fit: bool) -> bool {
        let columns = self.double.columns.len();
        let wanted = match self.double.finish {
            Finish::Combine(pair) => pair.iter().flatten().any(|one| one.b != 0),
            Finish::Column { .. } | Finish::Chain { .. } => true,
            Finish::Update { .. } => false,
        };
        wanted && columns > 0 && (!fit || self.large && columns <= APART_MAX)
    }

    /// Whether outputs are written past the caches.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn stream(&self) -> bool {
        self.stream
    }
}

/// Multiplication by x; `T` packets in registers, of which sources have `N`.
trait Shift<R, const T: usize> {
    /// # Safety
    /// The processor has the tier's instructions.
    unsafe fn times_x(packets: [R; T]) -> [R; T];
}

struct Field;
struct Cyclic;

impl<R: Register> Shift<R, 8> for Field {
    #[inline(always)]
    unsafe fn times_x([a, b, c, d, e, f, g, h]: [R; 8]) -> [R; 8] {
        // x^8 = x^4 + x^3 + x^2 + 1. SAFETY: the caller's promise.
        unsafe { [h, a, b.xor(h), c.xor(h), d.xor(h), e, f, g] }
    }
}

impl<R: Register, const T: usize> Shift<R, T> for Cyclic {
    #[inline(always)]
    unsafe fn times_x(packets: [R; T]) -> [R; T] {
        core::array::from_fn(|at| packets[if at == 0 { T - 1 } else { at - 1 }])
    }
}

/// # Safety
/// As [`Double::run`] has checked; the processor has the tier's instructions.
#[inline(always)]
pub(super) unsafe fn body<R: Register>(job: &Job) {
    // SAFETY: the caller's promise; `N` packets are the ring's.
    unsafe {
        match job.double.ring {
            Ring::Field => blocks::<R, Field, 8, 8>(job),
            Ring::Cyclic(3) => blocks::<R, Cyclic, 2, 3>(job),
            Ring::Cyclic(5) => blocks::<R, Cyclic, 4, 5>(job),
            Ring::Cyclic(7) => blocks::<R, Cyclic, 6, 7>(job),
            Ring::Cyclic(11) if job.large => spilled::<R, 10, 11>(job),
            Ring::Cyclic(11) => blocks::<R, Cyclic, 10, 11>(job),
            Ring::Cyclic(13) if job.large => spilled::<R, 12, 13>(job),
            Ring::Cyclic(13) => blocks::<R, Cyclic, 12, 13>(job),
            Ring::Cyclic(17) => spilled::<R, 16, 17>(job),
            Ring::Cyclic(_) => unreachable!("`Double::new` takes only primes that have a kernel"),
        }
    }
}

/// How both sums are formed: at once.
const HELD: u8 = 0;
/// At once, the next block asked for meanwhile: many columns from memory (16 + 2 on Zen 5: 0.60 of reading speed, 0.54 without).
const FETCHED: u8 = 1;
/// The plain one apart ([`rows`]), the first cache keeping what the other needs: where both do not fit the registers, and few columns
/// from memory (4 + 2: 0.83 of reading speed, 10 + 2: 0.93; at once 0.58 and 0.64).
const APART: u8 = 2;

/// All whole blocks.
///
/// # Safety
/// As for [`body`]; the ring has `N` packets and `T` coefficients.
#[inline(always)]
unsafe fn blocks<R: Register, X: Shift<R, T>, const N: usize, const T: usize>(job: &Job) {
    // SAFETY: the caller's promise.
    unsafe {
        if job.apart(R::REGISTERS >= N + T + 2) {
            strips::<R, X, N, T, APART>(job);
        } else if job.large {
            strips::<R, X, N, T, FETCHED>(job);
        } else {
            strips::<R, X, N, T, HELD>(job);
        }
    }
}

/// All whole blocks, one `WAY`.
///
/// # Safety
/// As for [`blocks`].
#[inline(always)]
unsafe fn strips<R: Register, X: Shift<R, T>, const N: usize, const T: usize, const WAY: u8>(job: &Job) {
    // SAFETY: the caller's promise; runs of blocks end at `len`.
    unsafe {
        let whole = job.len / (N * PACKET) * (N * PACKET);
        let mut plain = RowSums::new();
        for run in rows::runs::<N>(whole) {
            if WAY == APART {
                let (sources, columns) = (job.sources, &job.double.columns[..]);
                if job.large {
                    plain.form::<R, true>(sources, columns, run.clone());
                } else {
                    plain.form::<R, false>(sources, columns, run.clone());
                }
            }
            for block in run.clone().step_by(N * PACKET) {
                for offset in (0..PACKET).step_by(R::BYTES) {
                    let sum = plain.at(block + offset - run.start);
                    strip::<R, X, N, T, WAY>(job, block + offset, PACKET, sum);
                }
            }
        }
    }
}

/// The last block, whose packets are shorter than a line.
///
/// # Safety
/// As [`Double::run`] has checked.
unsafe fn rest(job: &Job) {
    let count = job.double.ring.packets();
    let start = job.len / (count * PACKET) * (count * PACKET);
    let packet = (job.len - start) / count;
    for offset in start..start + packet {
        // SAFETY: the caller's promise; every processor has bytes.
        unsafe {
            match job.double.ring {
                Ring::Field => bytes::<Field, 8, 8>(job, offset, packet),
                Ring::Cyclic(3) => bytes::<Cyclic, 2, 3>(job, offset, packet),
                Ring::Cyclic(5) => bytes::<Cyclic, 4, 5>(job, offset, packet),
                Ring::Cyclic(7) => bytes::<Cyclic, 6, 7>(job, offset, packet),
                Ring::Cyclic(11) => bytes::<Cyclic, 10, 11>(job, offset, packet),
                Ring::Cyclic(13) => bytes::<Cyclic, 12, 13>(job, offset, packet),
                Ring::Cyclic(17) => bytes::<Cyclic, 16, 17>(job, offset, packet),
                Ring::Cyclic(_) => unreachable!("`Double::new` takes only primes that have a kernel"),
            }
        }
    }
}

/// One byte of each packet.
///
/// # Safety
/// As for [`strip`].
unsafe fn bytes<X: Shift<Byte, T>, const N: usize, const T: usize>(job: &Job, start: usize, stride: usize) {
    // SAFETY: the caller's promise; nothing lies apart.
    unsafe { strip::<Byte, X, N, T, HELD>(job, start, stride, core::ptr::null()) }
}

/// One register of each packet, of the first at `start`, packets `stride` apart. The plain sum of the columns, where it was formed
/// [`APART`], lies at `plain` alike.
///
/// # Safety
/// As for [`blocks`]; all chunks have those bytes, and `plain` has them in that `WAY`.
#[inline(always)]
unsafe fn strip<R: Register, X: Shift<R, T>, const N: usize, const T: usize, const WAY: u8>(
    job: &Job,
    start: usize,
    stride: usize,
    plain: *const u8,
) {
    // SAFETY: the caller's promise; `Double::run` has looked every source up.
    unsafe {
        let out = Out { to: job.to.map(|to| to.map(|to| to.add(start))), stride, stream: job.stream };
        match job.double.finish {
            Finish::Update { column, .. } if T > N => update::<R, N, T>(job, start, column, &out),
            // A change: nobody asks for T.
            Finish::Combine(pair) if T == N && pair.iter().flatten().all(|one| one.a != 0 && one.b == 0) => {
                let mut sum = [R::zero(); N];
                for column in &job.double.columns {
                    add_to(&mut sum, job, column.source, start, stride);
                }
                if let Some(place) = job.double.others[0] {
                    add_to(&mut sum, job, place, start, stride);
                }
                multiples::<R, X, N, T>(pair, &sum, &out);
            }
            finish => {
                let (sum, weighted) = both::<R, X, N, T, WAY>(job, start, stride, plain);
                match finish {
                    Finish::Combine(pair) if T == N => combine::<R, X, N, T>(pair, &sum, &weighted, &out),
                    Finish::Column { column, .. } if T > N && column + 1 == T => {
                        // The row parity: row r of it is on diagonal r - 1.
                        for row in 0..N {
                            out.write::<R>(0, row, sum[row]);
                            let other =
                                if row + 1 < N { weighted[row].xor(sum[row + 1]) } else { weighted[row] };
                            out.write::<R>(1, row, other);
                        }
                    }
                    _ if T > N => {
                        let (mut kept, mut diagonals) = (Sums::new(), Sums::new());
                        (0..N).for_each(|at| kept.set(at, sum[at]));
                        (0..T).for_each(|at| diagonals.set(at, weighted[at]));
                        finish_cyclic::<R, N, T>(job, &kept, &diagonals, &out);
                    }
                    _ => unreachable!("`Double::new` takes only a finish of the ring"),
                }
            }
        }
    }
}

/// # Safety
/// As for [`strip`]; there is a source at that place.
#[inline(always)]
unsafe fn add_to<R: Register, const N: usize>(
    sum: &mut [R; N],
    job: &Job,
    place: usize,
    start: usize,
    stride: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let from = job.sources.get_unchecked(place).as_ptr().add(start);
        for (row, sum) in sum.iter_mut().enumerate() {
            *sum = sum.xor(R::load(from.add(row * stride)));
        }
    }
}

/// S and T in registers.
///
/// # Safety
/// As for [`strip`].
#[inline(always)]
unsafe fn both<R: Register, X: Shift<R, T>, const N: usize, const T: usize, const WAY: u8>(
    job: &Job,
    start: usize,
    stride: usize,
    plain: *const u8,
) -> ([R; N], [R; T]) {
    // SAFETY: the caller's promise; `Double::run` has looked every source up.
    unsafe {
        let source = |place: usize| job.sources.get_unchecked(place).as_ptr().add(start);
        let read = |from: *const u8, row: usize| R::load(from.add(row * stride));
        let (mut sum, mut weighted) = ([R::zero(); N], [R::zero(); T]);
        let mut last = 0;
        for column in &job.double.columns {
            let from = source(column.source);
            // Multiplying nothing before the first column costs nothing worth a branch.
            for _ in column.weight + 1..last {
                weighted = X::times_x(weighted);
            }
            weighted = X::times_x(weighted);
            last = column.weight;
            for row in 0..N {
                let packet = read(from, row);
                if WAY != APART {
                    sum[row] = sum[row].xor(packet);
                    if WAY == FETCHED {
                        super::xor::fetch(from.wrapping_add((row + N) * stride));
                    }
                }
                weighted[row] = weighted[row].xor(packet);
            }
        }
        if WAY == APART {
            for (row, sum) in sum.iter_mut().enumerate() {
                *sum = R::load(plain.add(row * stride));
            }
        }
        for _ in 0..last {
            weighted = X::times_x(weighted);
        }
        if let Some(place) = job.double.others[0] {
            add_to(&mut sum, job, place, start, stride);
        }
        if let Some(place) = job.double.others[1] {
            let from = source(place);
            for (row, weighted) in weighted.iter_mut().take(N).enumerate() {
                *weighted = weighted.xor(read(from, row));
            }
        }
        (sum, weighted)
    }
}

/// All whole blocks of a ring whose sums are kept out of registers.
///
/// # Safety
/// As for [`blocks`].
#[inline(always)]
unsafe fn spilled<R: Register, const N: usize, const T: usize>(job: &Job) {
    let whole = job.len / (N * PACKET) * (N * PACKET);
    // SAFETY: the caller's promise; blocks end at `len`, and `Double::run` has looked every source up.
    unsafe {
        let strips =
            (0..whole).step_by(N * PACKET).flat_map(|block| (block..block + PACKET).step_by(R::BYTES));
        for start in strips {
            let out =
                Out { to: job.to.map(|to| to.map(|to| to.add(start))), stride: PACKET, stream: job.stream };
            if let Finish::Update { column, .. } = job.double.finish {
                update::<R, N, T>(job, start, column, &out);
                continue;
            }
            let (mut sum, mut weighted) = (Sums::new(), Sums::new());
            let Double { columns, runs, .. } = job.double;
            let source = |place: usize| {
                let column = columns.get_unchecked(columns.len() - 1 - place);
                job.sources.get_unchecked(column.source).as_ptr().add(start)
            };
            let end = diagonals::add::<R, N, T>(runs, source, PACKET, job.large, [&mut sum, &mut weighted]);
            match job.double.finish {
                // The row parity, nothing else: row r of it is on diagonal r - 1.
                Finish::Column { column, .. } if column + 1 == T => {
                    for row in 0..N {
                        let own: R = sum.get(row);
                        out.write::<R>(0, row, own);
                        let mut other: R = weighted.get(row);
                        if row + T < end {
                            other = other.xor(weighted.get(row + T));
                        }
                        out.write::<R>(1, row, if row + 1 < N { other.xor(sum.get(row + 1)) } else { other });
                    }
                }
                _ => {
                    for number in T..end {
                        let both = weighted.get::<R>(number - T).xor(weighted.get(number));
                        weighted.set(number - T, both);
                    }
                    if let Some(place) = job.double.others[1] {
                        let from = job.sources.get_unchecked(place).as_ptr().add(start);
                        for row in 0..N {
                            weighted.set(row, weighted.get::<R>(row).xor(R::load(from.add(row * PACKET))));
                        }
                    }
                    finish_cyclic::<R, N, T>(job, &sum, &weighted, &out);
                }
            }
        }
    }
}

/// What a cyclic ring makes of both sums but [`update`].
///
/// # Safety
/// As for [`strip`]; all `N` and `T` sums are there.
#[inline(always)]
unsafe fn finish_cyclic<R: Register, const N: usize, const T: usize>(
    job: &Job,
    sum: &Sums,
    weighted: &Sums,
    out: &Out,
) {
    // SAFETY: the caller's promise.
    unsafe {
        match job.double.finish {
            Finish::Column { column, .. } => {
                for row in 0..N {
                    let own: R = sum.get(row);
                    out.write::<R>(0, row, own);
                    let on = row + T - column;
                    let on = if on >= T { on - T } else { on };
                    let other: R = weighted.get(row);
                    out.write::<R>(1, row, if on < N { other.xor(sum.get(on)) } else { other });
                }
            }
            Finish::Chain { .. } => chain::<R>(&job.double.links, sum, weighted, out),
            _ => unreachable!("`Double::new` takes only a finish of the ring"),
        }
    }
}

/// A change of a column: it counts on the column's own diagonal and, by the row parity, on the one before.
///
/// # Safety
/// As for [`strip`].
#[inline(always)]
unsafe fn update<R: Register, const N: usize, const T: usize>(
    job: &Job,
    start: usize,
    column: usize,
    out: &Out,
) {
    // SAFETY: the caller's promise; `Double::run` has looked every source up, and an update has two.
    unsafe {
        let mut kept = Sums::new();
        let [old, new] = [0, 1].map(|at| {
            let place = job.double.columns.get_unchecked(at).source;
            job.sources.get_unchecked(place).as_ptr().add(start)
        });
        for row in 0..N {
            let at = row * out.stride;
            kept.set(row, R::load(old.add(at)).xor(R::load(new.add(at))));
        }
        if out.to[0].is_some() {
            for row in 0..N {
                out.write::<R>(0, row, kept.get(row));
            }
        }
        // Past the last row there is nothing.
        kept.set(N, R::zero());
        for row in 0..N {
            let on = row + T - column;
            let on = if on >= T { on - T } else { on };
            out.write::<R>(1, row, kept.get::<R>(on).xor(kept.get(row + 1)));
        }
    }
}

/// `a S` for each, of which none is zero.
///
/// # Safety
/// As for [`strip`].
#[inline(always)]
unsafe fn multiples<R: Register, X: Shift<R, T>, const N: usize, const T: usize>(
    pair: [Option<Combination>; 2],
    sum: &[R; N],
    out: &Out,
) {
    // SAFETY: the caller's promise.
    unsafe {
        for (place, one) in pair.into_iter().enumerate() {
            let Some(Combination { a, .. }) = one else { continue };
            let highest = 7 - a.leading_zeros();
            let mut made: [R; T] = core::array::from_fn(|row| sum[row % N]);
            for bit in (0..highest).rev() {
                made = X::times_x(made);
                if a >> bit & 1 != 0 {
                    for row in 0..N {
                        made[row] = made[row].xor(sum[row]);
                    }
                }
            }
            for (row, made) in made.iter().enumerate().take(N) {
                out.write::<R>(place, row, *made);
            }
        }
    }
}

/// # Safety
/// As for [`strip`].
#[inline(always)]
unsafe fn combine<R: Register, X: Shift<R, T>, const N: usize, const T: usize>(
    pair: [Option<Combination>; 2],
    sum: &[R; N],
    weighted: &[R; T],
    out: &Out,
) {
    // SAFETY: the caller's promise.
    unsafe {
        if let [first, second] = pair.map(|one| one.map_or((2, 2), |one| (one.a, one.b)))
            && matches!(first, (1, 0) | (2, 2))
            && matches!(second, (0, 1) | (2, 2))
        {
            // Encoding; an output that nobody wants is none.
            for row in 0..N {
                out.write::<R>(0, row, sum[row]);
                out.write::<R>(1, row, weighted[row]);
            }
            return;
        }
        let mut before = None;
        for (place, one) in pair.into_iter().enumerate() {
            let Some(Combination { a, b, .. }) = one else { continue };
            let mut made = [R::zero(); T];
            match (a, b, before) {
                (1, 0, _) => made[..N].copy_from_slice(sum),
                (0, 1, _) => made = *weighted,
                // The second of two lost chunks: all that lacks in S but the first.
                (_, _, Some((first_a, first_b, first))) if (first_a ^ 1, first_b) == (a, b) => {
                    made = first;
                    for row in 0..N {
                        made[row] = made[row].xor(sum[row]);
                    }
                }
                _ => {
                    // From the highest bit there is.
                    for bit in (0..8 - (a | b).leading_zeros()).rev() {
                        made = X::times_x(made);
                        if a >> bit & 1 != 0 {
                            for row in 0..N {
                                made[row] = made[row].xor(sum[row]);
                            }
                        }
                        if b >> bit & 1 != 0 {
                            for row in 0..N {
                                made[row] = made[row].xor(weighted[row]);
                            }
                        }
                    }
                }
            }
            for (row, packet) in made.iter().take(N).enumerate() {
                out.write::<R>(place, row, *packet);
            }
            before = Some((a, b, made));
        }
    }
}

/// Two columns from their sums S and diagonals T.
///
/// # Safety
/// As for [`strip`].
#[inline(always)]
unsafe fn chain<R: Register>(links: &[Link], sum: &Sums, diagonals: &Sums, out: &Out) {
    // SAFETY: the caller's promise; rows and diagonals of links are below p - 1.
    unsafe {
        let mut found = R::zero();
        for link in links {
            let diagonal = diagonals.get(link.diagonal);
            let packet = if link.first { diagonal } else { found.xor(diagonal) };
            out.write::<R>(link.one, link.row, packet);
            found = packet.xor(sum.get(link.row));
            out.write::<R>(link.other, link.row, found);
        }
    }
}

/// Where a strip's packets go.
struct Out {
    to: [Option<*mut u8>; 2],
    stride: usize,
    stream: bool,
}

impl Out {
    /// # Safety
    /// The output has a packet `row`; the processor has the tier's instructions.
    #[inline(always)]
    unsafe fn write<R: Register>(&self, output: usize, row: usize, packet: R) {
        let Some(to) = self.to[output] else { return };
        // SAFETY: the caller's promise; whole blocks that begin at a line have packets that do. Narrower registers
        // would send each line in parts.
        unsafe {
            let to = to.add(row * self.stride);
            if self.stream && R::BYTES == PACKET && self.stride == PACKET {
                packet.stream(to);
            } else {
                packet.store(to);
            }
        }
    }
}
