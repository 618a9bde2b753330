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
//! Soundness: [`Packets::new`] checks every number of a slot; [`Packets::run`] checks and borrows the chunks, and an
//! output is written only by sums it is no term of.

use super::Tier;
use super::register::{Plain, Register};

/// Bytes touched from which outputs go past the caches. From memory that gives a tenth, from a second-level cache it
/// costs up to a third: twice such a cache.
const STREAM_FROM: usize = 2 * 1024 * 1024;

/// A slot: inputs first, then outputs, then scratch.
pub(crate) type Slot = u32;

/// `dst = sum of sources`, the sources by their places in the program's list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PacketSum {
    /// An output or scratch.
    pub(crate) dst: Slot,
    /// Where another copy goes, for sums that read it: outputs are never read back.
    pub(crate) copy: Option<Slot>,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// A checked program.
#[derive(Clone, Debug)]
pub(crate) struct Packets {
    /// Chunk (of the list of sources, of the list of outputs) and packet of each input and output.
    inputs: Vec<[usize; 2]>,
    outputs: Vec<[usize; 2]>,
    scratch: usize,
    sums: Vec<PacketSum>,
    sources: Vec<Slot>,
}

impl Packets {
    /// Checks the sums.
    ///
    /// # Panics
    /// When a sum has no terms, names a slot that is not there, writes an input, or reads an output or itself: our own
    /// broken invariant.
    pub(crate) fn new(
        inputs: Vec<[usize; 2]>,
        outputs: Vec<[usize; 2]>,
        scratch: usize,
        sums: Vec<PacketSum>,
        sources: Vec<Slot>,
    ) -> Self {
        let [read, written] = [inputs.len(), inputs.len() + outputs.len()];
        let slots = written + scratch;
        let is_scratch = |slot: &Slot| (written..slots).contains(&(*slot as usize));
        for sum in &sums {
            let terms = &sources[sum.start as usize..sum.end as usize];
            assert!(!terms.is_empty(), "a sum of nothing");
            assert!(
                terms.iter().all(|slot| (*slot as usize) < read || is_scratch(slot)),
                "reads no input or scratch"
            );
            assert!((read..slots).contains(&(sum.dst as usize)), "writes no output or scratch");
            assert!(sum.copy.is_none_or(|slot| is_scratch(&slot)), "copies into no scratch");
            assert!(
                !terms.contains(&sum.dst) && sum.copy.is_none_or(|slot| !terms.contains(&slot)),
                "reads itself"
            );
        }
        Self { inputs, outputs, scratch, sums, sources }
    }

    /// Chunks of the list of sources that are read, ascending where inputs are.
    pub(crate) fn used(&self) -> Vec<usize> {
        let mut used: Vec<usize> = self.inputs.iter().map(|[chunk, _]| *chunk).collect();
        used.dedup();
        used
    }

    /// Runs over outputs of one length, in blocks of `count` packets of `packet` bytes; sources that are read at all
    /// have that length.
    ///
    /// # Panics
    /// When chunks are missing or of another length, the length is no multiple of `count`, or a packet of the program
    /// is not below `count`.
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
        let all = self.inputs.iter().chain(&self.outputs);
        assert!(all.clone().all(|[_, at]| *at < count), "packets of a block");
        assert!(self.inputs.iter().all(|[chunk, _]| sources[*chunk].len() == len), "sources of one length");
        assert!(self.outputs.iter().all(|[chunk, _]| *chunk < outputs.len()), "outputs of the program");
        let starts: Vec<(*mut u8, usize)> = self
            .inputs
            .iter()
            .map(|[chunk, at]| (sources[*chunk].as_ptr().cast_mut(), *at))
            .chain(self.outputs.iter().map(|[chunk, at]| (outputs[*chunk].as_mut_ptr(), *at)))
            .collect();
        let mut scratch = vec![0u8; self.scratch * packet];
        let mut slots: Vec<*mut u8> = starts.iter().map(|(start, _)| *start).collect();
        slots.extend(scratch.chunks_exact_mut(packet).map(<[u8]>::as_mut_ptr));
        let large = all.count() * (len / count) >= STREAM_FROM;
        let lined = outputs.iter().all(|output| output.as_ptr().addr().is_multiple_of(64));
        let block = count * packet;
        let stream = large && lined && packet.is_multiple_of(64);
        for start in (0..len).step_by(block) {
            let packet = packet.min((len - start) / count);
            for (slot, (first, at)) in slots.iter_mut().zip(&starts) {
                *slot = first.wrapping_add(start + at * packet);
            }
            let whole = start + block <= len;
            run_block(tier.supported(), self, &slots, packet, stream && whole);
        }
        #[cfg(target_arch = "x86_64")]
        if stream {
            super::steps::fence();
        }
    }
}

/// One block in packets of `len` bytes.
fn run_block(tier: Tier, program: &Packets, slots: &[*mut u8], len: usize, stream: bool) {
    // SAFETY: `Packets::run` borrows every chunk for as long and has checked that each slot has `len` bytes, aligned
    // where streamed; `Packets::new` has checked the slots' numbers. `tier` is supported.
    unsafe {
        #[cfg(target_arch = "x86_64")]
        if tier != Tier::Portable {
            return super::steps::packets_at(tier, program, slots, len, stream);
        }
        let _ = tier;
        block_body::<Plain>(program, slots, len, stream);
    }
}

/// # Safety
/// As [`run_block`] says; the processor has the tier's instructions.
#[inline(always)]
pub(super) unsafe fn block_body<R: Register>(program: &Packets, slots: &[*mut u8], len: usize, stream: bool) {
    for sum in &program.sums {
        let terms = &program.sources[sum.start as usize..sum.end as usize];
        let dst = slots[sum.dst as usize];
        let copy = sum.copy.map(|slot| slots[slot as usize]);
        let stream = stream && (sum.dst as usize) < program.inputs.len() + program.outputs.len();
        let mut offset = 0;
        // SAFETY: the caller's promise; each call stays within `len`.
        unsafe {
            while offset + 8 * R::BYTES <= len {
                add::<R, 8>(slots, terms, dst, copy, offset, stream);
                offset += 8 * R::BYTES;
            }
            while offset + 4 * R::BYTES <= len {
                add::<R, 4>(slots, terms, dst, copy, offset, stream);
                offset += 4 * R::BYTES;
            }
            while offset + R::BYTES <= len {
                add::<R, 1>(slots, terms, dst, copy, offset, stream);
                offset += R::BYTES;
            }
            for offset in offset..len {
                let byte =
                    terms.iter().fold(0, |sum, slot| sum ^ *slots[*slot as usize].wrapping_add(offset));
                *dst.wrapping_add(offset) = byte;
                if let Some(copy) = copy {
                    *copy.wrapping_add(offset) = byte;
                }
            }
        }
    }
}

/// `N` registers at `offset`.
///
/// # Safety
/// All slots have so many bytes there; `terms` are numbers of slots and not empty; the processor has the tier's
/// instructions; where `stream`, `dst` is a multiple of a register there.
#[inline(always)]
unsafe fn add<R: Register, const N: usize>(
    slots: &[*mut u8],
    terms: &[Slot],
    dst: *mut u8,
    copy: Option<*mut u8>,
    offset: usize,
    stream: bool,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let at = |slot: Slot| slots.get_unchecked(slot as usize).wrapping_add(offset);
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
