//! Codes that reach the Singleton bound: k data chunks, m parity chunks of the same length, any k of the k + m give
//! everything.
//!
//! | kind | shape | arithmetic | chunk length |
//! |---|---|---|---|
//! | [`Kind::ReedSolomon`] | k + m <= 255 | products over GF(2^8) | any |
//! | [`Kind::Cauchy`] | k + m <= 255 | XOR of packets, 8 a chunk | a multiple of 8 |
//! | [`Kind::Rdp`] | m = 2, k <= 253 | XOR of packets, p - 1 a chunk | a multiple of p - 1, p the prime above k |
//!
//! Reed-Solomon is the one to take where the processor multiplies bytes (GFNI, shuffles) and for m above 2. With m = 2
//! Cauchy (any k) and RDP (k up to 16) run as one pass of two XORs a word, on any processor; measured on Zen 4 from a
//! second-level cache, GB/s of data (Reed-Solomon beside it): Cauchy 4 + 2: 74 (71), 10 + 2: 87 (79), 16 + 2: 88 (60); RDP
//! 4 + 2: 73 (72), 10 + 2: 65 (90). On Zen 5, which multiplies as fast as it adds: Cauchy 131 (135), 148 (160), 110 (110); RDP 134
//! (134), 126 (168), 109 (112); from memory, 1 MiB chunks: Cauchy 33 (35), 38 (40), 25 (26); RDP 34 (34), 29 (39), 25 (26). A
//! small write changes more of RDP's diagonal parity.
//!
//! ```
//! use steadfast_codes::mds::{Code, Kind};
//!
//! let code = Code::new(Kind::ReedSolomon, 3, 2)?;
//! let data: [&[u8]; 3] = [b"some", b"four", b"byte"];
//! let (mut p, mut q) = ([0; 4], [0; 4]);
//! code.encode(&data, &mut [&mut p, &mut q])?;
//! let mut lost = [0; 4];
//! code.reconstruct(&[(0, data[0]), (3, &p), (4, &q)], &mut [(2, &mut lost)])?;
//! assert_eq!(&lost, b"byte");
//! # Ok::<(), steadfast_codes::mds::MdsError>(())
//! ```
//!
//! A small write needs no other chunk: [`Code::delta`] gives what it adds to a parity chunk, [`apply`] adds it,
//! [`fold`] merges several.

mod cauchy;
mod delta;
mod double;
mod error;
mod packets;
mod rdp;
mod reed_solomon;
mod update;

use std::ops::Range;

pub use delta::{DeltaRanges, apply, fold, fold_into};
pub use error::MdsError;

use crate::kernel::Tier;
use crate::kernel::double::Double;
use crate::kernel::matrix::{Matrix, Mode};
use double::Pass;
use packets::{Layout, Program, Sum, Unit};

/// Chunks of a code at most: numbers are field elements, and one is kept free.
pub const CHUNKS_MAX: usize = 255;
/// Bytes of each chunk in a strip of [`Code::encode_strips`]: of 4 to 64 KiB, the fastest with checksums at 10 + 4.
const STRIP: usize = 16 * 1024;
/// Bytes of all parity chunks formed and compared at once by [`Code::verify`]: they stay in the first-level cache.
const VERIFY_LEN: usize = 16 * 1024;
/// The same where a block of each has no room there: Cauchy's m is 254 at most, a block then 8 packets of a line.
const VERIFY_LEN_MAX: usize = 128 * 1024;

/// The codes there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Systematic Reed-Solomon over GF(2^8).
    ReedSolomon,
    /// Reed-Solomon from a Cauchy matrix, run as XORs of packets (Blömer et al. 1995, Plank and Xu 2006).
    Cauchy,
    /// Row-diagonal parity, m = 2 (Corbett et al. 2004).
    Rdp,
}

/// A code of one kind and shape. Immutable and cheap to share; chunks are numbered 0..k (data), then k..k+m (parity).
#[derive(Clone, Debug)]
pub struct Code {
    kind: Kind,
    k: usize,
    m: usize,
    engine: Engine,
    /// For codes of packets; of no use to products.
    layout: Layout,
    /// By data chunk, what whole blocks of it add to Q, and to P and Q; of codes with a kernel for two parities.
    updates: Vec<[Double; 2]>,
}

#[derive(Clone, Debug)]
enum Engine {
    Products(Matrix),
    /// The generator over GF(2^8) whose coefficients the packets' sums spell out.
    Cauchy(Matrix, Encoder),
    Rdp {
        prime: usize,
        encode: Encoder,
    },
}

/// How parity packets are formed.
#[derive(Clone, Debug)]
enum Encoder {
    Program(Program),
    Double(Double),
}

impl Encoder {
    /// # Panics
    /// When that is another pass: our own broken invariant.
    fn double(pass: Option<Pass>) -> Self {
        match pass {
            Some(Pass::Double(double)) => Self::Double(double),
            other => panic!("two parities are two sums, not {other:?}"),
        }
    }
}

impl Code {
    /// A code of `k` data and `m` parity chunks.
    ///
    /// # Errors
    /// [`MdsError::Parameters`] where the kind has no such code.
    pub fn new(kind: Kind, k: usize, m: usize) -> Result<Self, MdsError> {
        let mut layout = Layout::new(1, 1);
        let engine = match kind {
            Kind::ReedSolomon => Engine::Products(reed_solomon::generator(k, m)?),
            Kind::Cauchy => {
                let generator = cauchy::generator(k, m)?;
                let data = Vec::from_iter(0..k);
                let encode = if m == 2 {
                    layout = Layout::lines(cauchy::PACKETS);
                    Encoder::double(double::cauchy(k, &data, &[k, k + 1]))
                } else {
                    layout = Layout::new(k + m, cauchy::PACKETS);
                    Encoder::Program(Program::new(layout, &cauchy::sums(&generator, &data)))
                };
                Engine::Cauchy(generator, encode)
            }
            Kind::Rdp => {
                let prime = rdp::prime(k, m)?;
                let unit = |chunk: usize, packet: usize| match chunk.checked_sub(k) {
                    None => Unit::Source(chunk, packet),
                    Some(parity) => Unit::Output(parity, packet),
                };
                let encode = if rdp::has_kernel(prime) {
                    layout = Layout::lines(prime - 1);
                    Encoder::double(double::rdp(k, prime, &Vec::from_iter(0..k), &[k, k + 1]))
                } else {
                    layout = Layout::new(k + m, prime - 1);
                    Encoder::Program(Program::new(layout, &rdp::sums(k, prime, unit)))
                };
                Engine::Rdp { prime, encode }
            }
        };
        let ring = match &engine {
            Engine::Cauchy(_, Encoder::Double(double)) => Some(double.ring()),
            Engine::Rdp { encode: Encoder::Double(double), .. } => Some(double.ring()),
            _ => None,
        };
        let updates = ring.map_or(Vec::new(), |ring| {
            let both = |data| [false, true].map(|both| double::update(ring, data, both));
            (0..k).map(both).collect()
        });
        Ok(Self { kind, k, m, engine, layout, updates })
    }

    /// Reed-Solomon's coefficient of a data chunk in a parity chunk.
    ///
    /// # Panics
    /// For another kind, or numbers beyond the shape: our own broken invariant.
    pub(crate) fn coefficient(&self, parity: usize, data: usize) -> u8 {
        match &self.engine {
            Engine::Products(generator) => generator.coefficient(parity, data),
            other => panic!("no product of bytes: {other:?}"),
        }
    }

    /// Data chunks.
    pub fn k(&self) -> usize {
        self.k
    }

    /// Parity chunks: how many may be lost.
    pub fn m(&self) -> usize {
        self.m
    }

    /// The kind.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// What a chunk's length must be a multiple of, in bytes.
    pub fn chunk_multiple(&self) -> usize {
        match self.engine {
            Engine::Products(_) => 1,
            Engine::Cauchy(..) => cauchy::PACKETS,
            Engine::Rdp { prime, .. } => prime - 1,
        }
    }

    /// The parity chunks of `data`: k slices in, m slices of the same length out, which are not read.
    /// Allocates nothing.
    ///
    /// # Errors
    /// Wrong counts or lengths.
    pub fn encode(&self, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), MdsError> {
        self.encode_at(Tier::detect(), data, parity)
    }

    /// [`Code::encode`] at a given tier, or at the widest below it that the processor has.
    ///
    /// # Errors
    /// As for [`Code::encode`].
    pub fn encode_at(&self, tier: Tier, data: &[&[u8]], parity: &mut [&mut [u8]]) -> Result<(), MdsError> {
        count(data.len(), self.k)?;
        count(parity.len(), self.m)?;
        let length = data[0].len();
        self.lengths(length, data.iter().map(|chunk| chunk.len()))?;
        self.lengths(length, parity.iter().map(|chunk| chunk.len()))?;
        match &self.engine {
            Engine::Products(generator) => generator.run(tier, data, parity, Mode::Set),
            Engine::Cauchy(_, encode) | Engine::Rdp { encode, .. } => match encode {
                Encoder::Program(program) => program.run(tier, data, parity),
                Encoder::Double(double) => double.run(tier, data, parity),
            },
        }
        Ok(())
    }

    /// [`Code::encode`] strip by strip, calling `each` with the strip's place in the chunks, its data and its parity while
    /// all of them are in the nearer caches: for checksums, or to send what is made while the rest is. Strips are 16 KiB a
    /// chunk, or the multiple of a code's blocks next to that; the last may be shorter. Allocates nothing.
    ///
    /// With a CRC-32C of every chunk, GB/s of data of Reed-Solomon with 1 MiB chunks from memory, against a second pass
    /// over the chunks and without checksums (Zen 4, busy machine, lower quartiles of times): 10 + 4: 7.4, 3.5, 8.1;
    /// 4 + 2: 8.3, 8.5, 14.0, the stripe being in the last-level cache still. On Zen 5, whose memory is as quick as its caches let
    /// strips be, it saves nothing: 10 + 4: 14.9, 18.5, 37.5; 4 + 2: 15.4, 18.0, 36.5.
    ///
    /// # Errors
    /// As for [`Code::encode`]; `each` is not called then.
    pub fn encode_strips(
        &self,
        data: &[&[u8]],
        parity: &mut [&mut [u8]],
        mut each: impl FnMut(Range<usize>, &[&[u8]], &[&mut [u8]]),
    ) -> Result<(), MdsError> {
        count(data.len(), self.k)?;
        count(parity.len(), self.m)?;
        let length = data[0].len();
        self.lengths(length, data.iter().map(|chunk| chunk.len()))?;
        self.lengths(length, parity.iter().map(|chunk| chunk.len()))?;
        let block = self.layout.block();
        let strip = (STRIP / block).max(1) * block;
        for start in (0..length).step_by(strip) {
            let range = start..length.min(start + strip);
            let mut sources: [&[u8]; CHUNKS_MAX] = [&[]; CHUNKS_MAX];
            for (source, chunk) in sources.iter_mut().zip(data) {
                *source = &chunk[range.clone()];
            }
            let mut outputs: [&mut [u8]; CHUNKS_MAX] = std::array::from_fn(|_| Default::default());
            for (output, chunk) in outputs.iter_mut().zip(parity.iter_mut()) {
                *output = &mut chunk[range.clone()];
            }
            self.encode(&sources[..self.k], &mut outputs[..self.m])?;
            each(range, &sources[..self.k], &outputs[..self.m]);
        }
        Ok(())
    }

    /// Whether `parity` is what [`Code::encode`] would make of `data`. Allocates nothing.
    ///
    /// # Errors
    /// Wrong counts or lengths.
    pub fn verify(&self, data: &[&[u8]], parity: &[&[u8]]) -> Result<bool, MdsError> {
        count(data.len(), self.k)?;
        count(parity.len(), self.m)?;
        let length = data[0].len();
        self.lengths(length, data.iter().chain(parity).map(|chunk| chunk.len()))?;
        if self.m * self.layout.block() <= VERIFY_LEN {
            self.verify_by::<VERIFY_LEN>(data, parity)
        } else {
            self.verify_by::<VERIFY_LEN_MAX>(data, parity)
        }
    }

    /// The same, `LEN` bytes of all parity chunks at once; at least a block of each has room there.
    fn verify_by<const LEN: usize>(&self, data: &[&[u8]], parity: &[&[u8]]) -> Result<bool, MdsError> {
        let length = data[0].len();
        let unit = self.layout.block().max(64);
        let piece = (LEN / self.m / unit * unit).max(self.layout.block());
        let mut formed = [0; LEN];
        let mut sources: [&[u8]; CHUNKS_MAX] = [&[]; CHUNKS_MAX];
        for start in (0..length).step_by(piece) {
            let range = start..length.min(start + piece);
            for (source, chunk) in sources.iter_mut().zip(data) {
                *source = &chunk[range.clone()];
            }
            let mut outputs: [&mut [u8]; CHUNKS_MAX] = std::array::from_fn(|_| Default::default());
            for (output, chunk) in outputs.iter_mut().zip(formed.chunks_exact_mut(piece)).take(self.m) {
                *output = &mut chunk[..range.len()];
            }
            self.encode(&sources[..self.k], &mut outputs[..self.m])?;
            if outputs.iter().zip(parity).any(|(formed, parity)| **formed != parity[range.clone()]) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Computes the `wanted` chunks from any k or more `available` ones, each with its number; only what is wanted is
    /// computed, only what it takes is read.
    ///
    /// # Errors
    /// Numbers that are no chunk's or come twice in a list, too few chunks, wrong lengths.
    pub fn reconstruct(
        &self,
        available: &[(usize, &[u8])],
        wanted: &mut [(usize, &mut [u8])],
    ) -> Result<(), MdsError> {
        self.reconstruct_at(Tier::detect(), available, wanted)
    }

    /// [`Code::reconstruct`] at a given tier, or at the widest below it that the processor has.
    ///
    /// # Errors
    /// As for [`Code::reconstruct`].
    pub fn reconstruct_at(
        &self,
        tier: Tier,
        available: &[(usize, &[u8])],
        wanted: &mut [(usize, &mut [u8])],
    ) -> Result<(), MdsError> {
        let (numbers, sources): (Vec<usize>, Vec<&[u8]>) = available.iter().copied().unzip();
        let targets: Vec<usize> = wanted.iter().map(|(chunk, _)| *chunk).collect();
        let plan = self.plan(&numbers, &targets)?;
        let mut outputs: Vec<&mut [u8]> = wanted.iter_mut().map(|(_, bytes)| &mut **bytes).collect();
        plan.run_at(tier, &sources, &mut outputs)
    }

    /// Works out how to compute the `wanted` chunks from the `available` ones, to be run any number of times.
    ///
    /// # Errors
    /// Numbers that are no chunk's or come twice in a list, too few chunks.
    pub fn plan(&self, available: &[usize], wanted: &[usize]) -> Result<Reconstruction, MdsError> {
        self.distinct(available)?;
        self.distinct(wanted)?;
        if available.len() < self.k {
            return Err(MdsError::TooFew { given: available.len(), needed: self.k });
        }
        let pass = self.pass(available, wanted);
        let method = match &self.engine {
            _ if pass.is_some() => Method::pass(pass.expect("there is one")),
            Engine::Products(generator) => {
                let reed_solomon::Solution { used, matrix } =
                    reed_solomon::solve(self.k, generator, available, wanted);
                Method::Products { used, matrix }
            }
            Engine::Cauchy(generator, _) => {
                let solution = reed_solomon::solve(self.k, generator, available, wanted);
                Method::packets(self.layout, &cauchy::sums(&solution.matrix, &solution.used))
            }
            Engine::Rdp { prime, .. } => {
                let place = |list: &[usize], chunk| list.iter().position(|other| *other == chunk);
                let sources: Vec<_> = (0..self.k + 2).map(|chunk| place(available, chunk)).collect();
                let outputs: Vec<_> = (0..self.k + 2).map(|chunk| place(wanted, chunk)).collect();
                let unit = |chunk: usize, packet| match (sources[chunk], outputs[chunk]) {
                    (Some(source), _) => Unit::Source(source, packet),
                    (None, Some(output)) => Unit::Output(output, packet),
                    (None, None) => Unit::Passing(chunk, packet),
                };
                let mut sums: Vec<Sum> = rdp::sums(self.k, *prime, unit);
                for (source, output) in sources.iter().zip(&outputs) {
                    if let (Some(source), Some(output)) = (source, output) {
                        let copy = |at| (Unit::Output(*output, at), vec![Unit::Source(*source, at)]);
                        sums.extend((0..prime - 1).map(copy));
                    }
                }
                Method::packets(self.layout, &sums)
            }
        };
        let [available, wanted] = [available.len(), wanted.len()];
        let (multiple, layout) = (self.chunk_multiple(), self.packets());
        Ok(Reconstruction { available, wanted, multiple, layout, method })
    }

    /// The bytes of each available chunk that [`Code::reconstruct_range`] reads for `range` of the wanted ones: the
    /// same for Reed-Solomon, the blocks around it for codes of packets.
    ///
    /// # Errors
    /// A range that leaves the chunk, a chunk length that is no multiple or more than a slice's.
    pub fn source_range(&self, chunk_len: usize, range: Range<usize>) -> Result<Range<usize>, MdsError> {
        bytes_read(self.packets(), self.chunk_multiple(), chunk_len, range)
    }

    /// How chunks divide into packets; none where they are bytes.
    fn packets(&self) -> Option<Layout> {
        (self.kind != Kind::ReedSolomon).then_some(self.layout)
    }

    /// Computes bytes `range` of the `wanted` chunks, given slices of just that length, from `available` chunks' bytes
    /// [`source_range`](Self::source_range), in chunks of `chunk_len` bytes. [`Reconstruction::run_range`] does the same of many
    /// ranges without planning anew.
    ///
    /// # Errors
    /// As for [`Code::reconstruct`] and [`Code::source_range`].
    pub fn reconstruct_range(
        &self,
        available: &[(usize, &[u8])],
        chunk_len: usize,
        range: Range<usize>,
        wanted: &mut [(usize, &mut [u8])],
    ) -> Result<(), MdsError> {
        let read = self.source_range(chunk_len, range.clone())?;
        lengths(read.len(), available.iter().map(|(_, bytes)| bytes.len()))?;
        lengths(range.len(), wanted.iter().map(|(_, bytes)| bytes.len()))?;
        let (numbers, sources): (Vec<usize>, Vec<&[u8]>) = available.iter().copied().unzip();
        let targets: Vec<usize> = wanted.iter().map(|(chunk, _)| *chunk).collect();
        let plan = self.plan(&numbers, &targets)?;
        let mut outputs: Vec<&mut [u8]> = wanted.iter_mut().map(|(_, bytes)| &mut **bytes).collect();
        plan.run_range(chunk_len, range, &sources, &mut Vec::new(), &mut outputs)
    }

    /// Checks a chunk length, and that others equal it.
    fn lengths(&self, expected: usize, others: impl IntoIterator<Item = usize>) -> Result<(), MdsError> {
        multiple(expected, self.chunk_multiple())?;
        lengths(expected, others)
    }

    /// The one pass that gives `wanted`, if it is one.
    fn pass(&self, available: &[usize], wanted: &[usize]) -> Option<Pass> {
        match self.engine {
            Engine::Cauchy(..) if self.m == 2 => double::cauchy(self.k, available, wanted),
            Engine::Rdp { prime, .. } => double::rdp(self.k, prime, available, wanted),
            _ => None,
        }
    }

    fn distinct(&self, chunks: &[usize]) -> Result<(), MdsError> {
        let mut seen = [false; CHUNKS_MAX];
        for &chunk in chunks {
            if chunk >= self.k + self.m {
                return Err(MdsError::NoSuchChunk { chunk, count: self.k + self.m });
            }
            if std::mem::replace(&mut seen[chunk], true) {
                return Err(MdsError::Duplicate { chunk });
            }
        }
        Ok(())
    }
}

/// How some chunks follow from others. Depends on their numbers only.
#[derive(Clone, Debug)]
pub struct Reconstruction {
    available: usize,
    wanted: usize,
    multiple: usize,
    /// Of codes of packets.
    layout: Option<Layout>,
    method: Method,
}

#[derive(Clone, Debug)]
enum Method {
    Products {
        /// Positions in the list of available chunks of those that are read.
        used: Vec<usize>,
        matrix: Matrix,
    },
    Packets {
        used: Vec<usize>,
        program: Program,
    },
    Double {
        used: Vec<usize>,
        double: Double,
    },
}

impl Method {
    fn pass(pass: Pass) -> Self {
        match pass {
            // Bytes, not packets: the sum of rows is the sum of bytes.
            Pass::Sum(used) => Self::Products { matrix: Matrix::new(1, used.len(), |_, _| 1), used },
            Pass::Double(double) => Self::Double { used: double.used(), double },
        }
    }

    fn packets(layout: Layout, sums: &[Sum]) -> Self {
        let program = Program::new(layout, sums);
        Self::Packets { used: program.used().to_vec(), program }
    }
}

impl Reconstruction {
    /// Positions, in the list of available chunks the plan was made for, of those that are read at all.
    pub fn used(&self) -> &[usize] {
        match &self.method {
            Method::Products { used, .. } | Method::Packets { used, .. } | Method::Double { used, .. } => {
                used
            }
        }
    }

    /// Computes the wanted chunks. Both lists are in the order of the plan's; slices of available chunks that are not
    /// [`used`](Self::used) may be empty. Allocates nothing.
    ///
    /// # Errors
    /// Wrong counts or lengths.
    pub fn run(&self, available: &[&[u8]], wanted: &mut [&mut [u8]]) -> Result<(), MdsError> {
        self.run_at(Tier::detect(), available, wanted)
    }

    /// [`Reconstruction::run`] at a given tier, or at the widest below it that the processor has.
    ///
    /// # Errors
    /// As for [`Reconstruction::run`].
    pub fn run_at(&self, tier: Tier, available: &[&[u8]], wanted: &mut [&mut [u8]]) -> Result<(), MdsError> {
        count(available.len(), self.available)?;
        count(wanted.len(), self.wanted)?;
        let Some(length) = wanted.first().map(|chunk| chunk.len()) else { return Ok(()) };
        multiple(length, self.multiple)?;
        lengths(length, wanted.iter().map(|chunk| chunk.len()))?;
        lengths(length, self.used().iter().map(|position| available[*position].len()))?;
        match &self.method {
            Method::Products { used, matrix } => {
                let mut sources: [&[u8]; CHUNKS_MAX] = [&[]; CHUNKS_MAX];
                for (source, position) in sources.iter_mut().zip(used) {
                    *source = available[*position];
                }
                matrix.run(tier, &sources[..used.len()], wanted, Mode::Set);
            }
            Method::Packets { program, .. } => program.run(tier, available, wanted),
            Method::Double { double, .. } => double.run(tier, available, wanted),
        }
        Ok(())
    }

    /// Computes bytes `range` of the wanted chunks, given slices of just that length, from the sources' bytes
    /// [`Code::source_range`], in chunks of `chunk_len` bytes; lists are as in [`run`](Self::run). Where that is more than `range`,
    /// whole blocks of the wanted chunks are formed in `scratch`, whatever it holds. Allocates nothing but what `scratch` lacks of as
    /// many bytes for each wanted chunk as are read of a source.
    ///
    /// # Errors
    /// As for [`Reconstruction::run`] and [`Code::source_range`].
    pub fn run_range(
        &self,
        chunk_len: usize,
        range: Range<usize>,
        sources: &[&[u8]],
        scratch: &mut Vec<u8>,
        wanted: &mut [&mut [u8]],
    ) -> Result<(), MdsError> {
        let read = bytes_read(self.layout, self.multiple, chunk_len, range.clone())?;
        count(sources.len(), self.available)?;
        count(wanted.len(), self.wanted)?;
        lengths(read.len(), self.used().iter().map(|position| sources[*position].len()))?;
        lengths(range.len(), wanted.iter().map(|bytes| bytes.len()))?;
        if read == range {
            return self.run(sources, wanted);
        }
        let room = wanted.len() * read.len();
        if scratch.len() < room {
            scratch.resize(room, 0);
        }
        let mut blocks: [&mut [u8]; CHUNKS_MAX] = std::array::from_fn(|_| Default::default());
        let formed = scratch.chunks_exact_mut(read.len()).take(wanted.len());
        for (block, formed) in blocks.iter_mut().zip(formed) {
            *block = formed;
        }
        let blocks = &mut blocks[..wanted.len()];
        self.run(sources, blocks)?;
        let inner = range.start - read.start..range.end - read.start;
        for (output, block) in wanted.iter_mut().zip(blocks) {
            output.copy_from_slice(&block[inner.clone()]);
        }
        Ok(())
    }
}

/// The bytes of other chunks that bytes `range` of one are computed from: the blocks around it, where chunks are packets.
fn bytes_read(
    layout: Option<Layout>,
    chunk_multiple: usize,
    chunk_len: usize,
    range: Range<usize>,
) -> Result<Range<usize>, MdsError> {
    multiple(chunk_len, chunk_multiple)?;
    within(&range, chunk_len)?;
    Ok(match layout {
        Some(layout) => layout.blocks_around(chunk_len, range),
        None => range,
    })
}

fn count(given: usize, expected: usize) -> Result<(), MdsError> {
    if given == expected { Ok(()) } else { Err(MdsError::Count { given, expected }) }
}

/// Checks a chunk's length. What slices can have leaves room to round a place in it up to a block.
fn multiple(length: usize, multiple: usize) -> Result<(), MdsError> {
    if length > isize::MAX as usize {
        return Err(MdsError::TooLong { length });
    }
    // Most codes' multiple is one, and a division is a tenth of what a short delta takes beside its bytes.
    if multiple == 1 || length.is_multiple_of(multiple) {
        Ok(())
    } else {
        Err(MdsError::Multiple { length, multiple })
    }
}

fn lengths(expected: usize, others: impl IntoIterator<Item = usize>) -> Result<(), MdsError> {
    match others.into_iter().find(|given| *given != expected) {
        None => Ok(()),
        Some(given) => Err(MdsError::Length { given, expected }),
    }
}

fn within(range: &Range<usize>, length: usize) -> Result<(), MdsError> {
    if range.start <= range.end && range.end <= length {
        Ok(())
    } else {
        Err(MdsError::Range { start: range.start, end: range.end, length })
    }
}

#[cfg(test)]
mod tests;
