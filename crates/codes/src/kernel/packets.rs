//! XOR programs over chunks of packets.
//!
//! ```text
//!   chunk  = blocks one after the other, the last perhaps shorter
//!   block  = [ packet 0 | packet 1 | .. | packet r-1 ]     packets of one length, neighbours in memory
//!   sum    : one packet of a block = XOR of packets of the same block of any chunks
//! ```
//!
//! A block of all chunks fits the nearer caches, and every chunk is walked from beginning to end, which is what
//! the processor's prefetcher follows; packets that lie a power of two apart would fall on one another in its caches.
//! Fetching the next block while one is worked on costs more than it brings (measured: a tenth to a fifth).
//!
//! A packet's address is formed where it is read: a table of all packets' addresses would have to be allocated.
//!
//! Soundness: [`Packets::new`] checks every place but the packets' numbers, which [`Packets::run`] checks; it borrows the
//! chunks, and an output is written only by sums it is no term of.

use core::mem::MaybeUninit;

use super::register::{Plain, Register};
use super::{STREAM_FROM, Tier};

/// Chunks in a list at most: one more than any code has.
const LIST_MAX: usize = 256;
/// Bytes of scratch at most: two chunks of the largest ring, 256 packets of a line each.
const SCRATCH_MAX: usize = 2 * 256 * 64;

/// A packet of a block, by its number, in a chunk of either list, or in scratch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// Sources, then outputs, then scratch, in a table of `LIST_MAX` each.
    chunk: u16,
    packet: u16,
}

impl Place {
    /// Packet `packet` of the source at this place of its list.
    pub(crate) fn source(place: usize, packet: usize) -> Self {
        assert!(place < LIST_MAX && packet < LIST_MAX, "a code's source and packet");
        Self { chunk: place as u16, packet: packet as u16 }
    }

    /// Packet `packet` of the output at this place of its list.
    pub(crate) fn output(place: usize, packet: usize) -> Self {
        assert!(place < LIST_MAX && packet < LIST_MAX, "a code's output and packet");
        Self { chunk: (LIST_MAX + place) as u16, packet: packet as u16 }
    }

    /// Packet `packet` of scratch.
    pub(crate) fn scratch(packet: usize) -> Self {
        assert!(packet < 2 * LIST_MAX, "scratch of two chunks");
        Self { chunk: 2 * LIST_MAX as u16, packet: packet as u16 }
    }

    fn is_source(self) -> bool {
        (self.chunk as usize) < LIST_MAX
    }

    fn is_output(self) -> bool {
        (LIST_MAX..2 * LIST_MAX).contains(&(self.chunk as usize))
    }

    fn is_scratch(self) -> bool {
        self.chunk as usize == 2 * LIST_MAX
    }
}

/// `dst = sum of sources`, the sources by their places in the program's list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketSum {
    /// In an output or scratch.
    pub(crate) dst: Place,
    /// Where in scratch another copy goes, for sums that read it: outputs are never read back.
    pub(crate) copy: Option<Place>,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// A checked program.
#[derive(Clone, Debug)]
pub(crate) struct Packets {
    sums: Vec<PacketSum>,
    sources: Vec<Place>,
    /// Chunks of the list of sources that are read, ascending.
    used: Vec<usize>,
    /// Chunks of the list of outputs from the first to the last that is written, and packets of a block likewise.
    outputs: usize,
    packets: usize,
    /// Packets of scratch.
    scratch: usize,
    /// Different packets of sources and outputs, to tell how many bytes are touched.
    touched: usize,
}

impl Packets {
    /// Checks the sums.
    ///
    /// # Panics
    /// When a sum has no terms, writes a source, or reads an output, itself or scratch that no sum before it wrote: our own
    /// broken invariant.
    pub(crate) fn new(sums: Vec<PacketSum>, sources: Vec<Place>) -> Self {
        let mut written = [false; 2 * LIST_MAX];
        for sum in &sums {
            let terms = &sources[sum.start as usize..sum.end as usize];
            assert!(!terms.is_empty(), "a sum of nothing");
            let known =
                |place: &Place| place.is_source() || (place.is_scratch() && written[place.packet as usize]);
            assert!(terms.iter().all(known), "reads what is not there");
            assert!(sum.dst.is_output() || sum.dst.is_scratch(), "writes no output or scratch");
            assert!(sum.copy.is_none_or(Place::is_scratch), "copies into no scratch");
            assert!(
                !terms.contains(&sum.dst) && sum.copy.is_none_or(|place| !terms.contains(&place)),
                "reads itself"
            );
            for place in [Some(sum.dst), sum.copy].into_iter().flatten().filter(|place| place.is_scratch()) {
                written[place.packet as usize] = true;
            }
        }
        let read = sources.iter().filter(|place| place.is_source());
        let made = sums.iter().map(|sum| sum.dst).filter(|place| place.is_output());
        let mut used: Vec<usize> = read.clone().map(|place| place.chunk as usize).collect();
        used.sort_unstable();
        used.dedup();
        let outputs = made.clone().map(|place| place.chunk as usize + 1 - LIST_MAX).max().unwrap_or(0);
        let mut all: Vec<(u16, u16)> =
            read.copied().chain(made).map(|place| (place.chunk, place.packet)).collect();
        all.sort_unstable();
        all.dedup();
        let packets = all.iter().map(|(_, packet)| *packet as usize + 1).max().unwrap_or(0);
        let scratch = written.iter().rposition(|written| *written).map_or(0, |last| last + 1);
        Self { touched: all.len(), sums, sources, used, outputs, packets, scratch }
    }

    /// Chunks of the list of sources that are read, ascending.
    pub(crate) fn used(&self) -> &[usize] {
        &self.used
    }

    /// Runs over outputs of one length, in blocks of `count` packets of `packet` bytes; sources that are read at all
    /// have that length. Allocates nothing.
    ///
    /// # Panics
    /// When chunks are missing or of another length, the length is no multiple of `count`, a packet of the program
    /// is not below `count`, or scratch has no room for packets of that length.
    pub(crate) fn run(
        &self,
        tier: Tier,
        [count, packet]: [usize; 2],
        sources: &[&[u8]],
        outputs: &mut [&mut [u8]],
    ) {
        let Some(len) = outputs.first().map(|output| output.len()) else { return };
        assert!(
            outputs.iter().all(|output| output.len() == len) && len.is_multiple_of(count),
            "chunks of one length"
        );
        assert!(self.packets <= count, "packets of a block");
        assert!(self.used.iter().all(|chunk| sources[*chunk].len() == len), "sources of one length");
        assert!(self.outputs <= outputs.len() && outputs.len() <= LIST_MAX, "outputs of the program");
        assert!(self.scratch * packet <= SCRATCH_MAX, "scratch has room");
        let mut scratch = [MaybeUninit::<u8>::uninit(); SCRATCH_MAX];
        let mut chunks = [core::ptr::null_mut::<u8>(); CHUNKS];
        chunks[2 * LIST_MAX] = scratch.as_mut_ptr().cast();
        let [lined, large] = [
            outputs.iter().all(|output| output.as_ptr().addr().is_multiple_of(64)),
            self.touched * (len / count) >= STREAM_FROM,
        ];
        let block = count * packet;
        let stream = large && lined && packet.is_multiple_of(64);
        for start in (0..len).step_by(block) {
            for chunk in &self.used {
                chunks[*chunk] = sources[*chunk].as_ptr().wrapping_add(start).cast_mut();
            }
            for (chunk, output) in chunks[LIST_MAX..].iter_mut().zip(outputs.iter_mut()) {
                *chunk = output.as_mut_ptr().wrapping_add(start);
            }
            let packet = packet.min((len - start) / count);
            let whole = start + block <= len;
            run_block(tier.supported(), self, &chunks, packet, stream && whole);
        }
        #[cfg(target_arch = "x86_64")]
        if stream {
            super::steps::fence();
        }
    }
}

/// Where a block begins in every source and output, and scratch.
type Chunks = [*mut u8; CHUNKS];
const CHUNKS: usize = 2 * LIST_MAX + 1;

/// One block in packets of `len` bytes.
fn run_block(tier: Tier, program: &Packets, chunks: &Chunks, len: usize, stream: bool) {
    // SAFETY: `Packets::run` borrows every chunk for as long and has checked that each place has `len` bytes, aligned
    // where streamed; `Packets::new` has checked that scratch is written before it is read. `tier` is supported.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if tier != Tier::Portable {
            return block_at(tier, program, chunks, len, stream);
        }
        let _ = tier;
        block_body::<Plain>(program, chunks, len, stream);
    }
}

#[cfg(target_arch = "x86_64")]
super::dispatch::by_tier! {
    /// # Safety
    /// As [`run_block`] says; the tier is supported.
    unsafe fn block_at = block_body(program: &Packets, chunks: &Chunks, len: usize, stream: bool)
}

/// # Safety
/// As [`run_block`] says; the processor has the tier's instructions.
#[inline(always)]
unsafe fn block_body<R: Register>(program: &Packets, chunks: &Chunks, len: usize, stream: bool) {
    for sum in &program.sums {
        let terms = &program.sources[sum.start as usize..sum.end as usize];
        let dst = address(chunks, sum.dst, len);
        let copy = sum.copy.map(|place| address(chunks, place, len));
        let stream = stream && sum.dst.is_output();
        let mut offset = 0;
        // SAFETY: the caller's promise; each call stays within `len`.
        unsafe {
            while offset + 8 * R::BYTES <= len {
                add::<R, 8>(chunks, terms, len, dst, copy, offset, stream);
                offset += 8 * R::BYTES;
            }
            while offset + 4 * R::BYTES <= len {
                add::<R, 4>(chunks, terms, len, dst, copy, offset, stream);
                offset += 4 * R::BYTES;
            }
            while offset + R::BYTES <= len {
                add::<R, 1>(chunks, terms, len, dst, copy, offset, stream);
                offset += R::BYTES;
            }
            for offset in offset..len {
                let byte = terms
                    .iter()
                    .fold(0, |sum, place| sum ^ *address(chunks, *place, len).wrapping_add(offset));
                *dst.wrapping_add(offset) = byte;
                if let Some(copy) = copy {
                    *copy.wrapping_add(offset) = byte;
                }
            }
        }
    }
}

/// Where a packet begins, packets being `len` bytes long.
#[inline(always)]
fn address(chunks: &Chunks, place: Place, len: usize) -> *mut u8 {
    chunks[place.chunk as usize].wrapping_add(place.packet as usize * len)
}

/// `N` registers at `offset`.
///
/// # Safety
/// All places have so many bytes there; `terms` are not empty; the processor has the tier's instructions; where
/// `stream`, `dst` is a multiple of a register there.
#[inline(always)]
unsafe fn add<R: Register, const N: usize>(
    chunks: &Chunks,
    terms: &[Place],
    len: usize,
    dst: *mut u8,
    copy: Option<*mut u8>,
    offset: usize,
    stream: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let at = |place: Place| address(chunks, place, len).wrapping_add(offset);
        let first = at(*terms.get_unchecked(0));
        let mut held = [R::zero(); N];
        for (place, held) in held.iter_mut().enumerate() {
            *held = R::load(first.wrapping_add(place * R::BYTES));
        }
        for term in terms.get_unchecked(1..) {
            let from = at(*term);
            for (place, held) in held.iter_mut().enumerate() {
                *held = held.xor(R::load(from.wrapping_add(place * R::BYTES)));
            }
        }
        for (place, held) in held.iter().enumerate() {
            let to = offset + place * R::BYTES;
            if stream {
                held.stream(dst.wrapping_add(to))
            } else {
                held.store(dst.wrapping_add(to))
            }
            if let Some(copy) = copy {
                held.store(copy.wrapping_add(to));
            }
        }
    }
}
