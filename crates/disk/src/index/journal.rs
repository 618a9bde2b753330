//! The journal: a ring of frames, one frame a group commit, each on pages of its own.
//!
//! ```text
//!  0 magic u32    4 crc32c u32 of all that follows, payload included    8 device u128
//! 24 sequence u64 32 base u64 (checkpoint in force)    40 durable through u64 (last frame known flushed)
//! 48 payload length u32    52 format version u32    56 zero    64 payload: records    padded to 4 KiB
//! ```
//!
//! **Which frames count.** Replay starts where the checkpoint says and accepts a frame when its checksum, its
//! device and the next sequence number are right and its base is not older than that of the frame before (or of
//! the checkpoint). What follows the first missing frame was never flushed, hence never acknowledged: it is cut.
//! A frame left over from before such a cut has an older base than the frames written after the recovery (each
//! open writes a checkpoint), so it can never be joined to them.
//!
//! **Which loss is damage.** A frame says through which sequence number everything was flushed when it was
//! written. If any whole frame in the ring says so of a number that replay did not reach, acknowledged
//! records are missing, and the open fails instead of forgetting them. So it does where a frame was written behind a
//! newer checkpoint than the one that was read: that one was durable, and is gone. A page that the medium does not give is damage
//! only where the next frame may be on it; where there are too many of them to look at each, only if it is known that the checkpoint is
//! the newest one, as a frame that says otherwise may be on any.
//!
//! **A page that takes no writes** is stepped around: no replay would come behind it, so a checkpoint says where frames go on
//! (`device::commit`). From then on it is as the end of the ring is, until the device is opened again and meets it once more.
//!
//! **What is no frame.** Payloads hold what users wrote, and pages of a payload stay behind when the frame's first page is lost or
//! written over. So no page of a payload may begin as a frame of this device does, whoever made it up: records that change
//! nothing are put in front of such a payload, which moves it. Each place in it that begins so, counted by its byte in a page,
//! spoils one distance; a redo with more than [`LIKE_MAX`] of them is refused, anything else goes to a checkpoint instead, and does so
//! before a redo for which it leaves too few.

use std::{collections::BTreeSet, io, ops::Range};

use super::{
    FORMAT_VERSION, Malformed, Record,
    codec::{Put, Reader},
    superblock::Superblock,
};
use crate::{
    checksum::crc32c,
    ids::{DeviceId, Epoch, SegmentId},
    media::{Medium, MediumError, read_what_is_there},
};

const MAGIC: u32 = u32::from_le_bytes(*b"SFJ1");
const HEADER: usize = 64;
const PAGE: u64 = 4096;
/// What each frame of a device begins with: magic, checksum, device.
const BEGINNING: usize = 4 + 4 + 16;
/// A redo may hold so many beginnings of frames at different bytes of a page.
pub(crate) const LIKE_MAX: usize = 16;
/// Distances by which a payload is moved: as many as a frame with one such redo can spoil, and some for what its records look like
/// where they meet.
const MOVES: usize = LIKE_MAX + MEETING;
/// Those for where records meet: more than a redo spoils that holds no beginnings itself.
const MEETING: usize = 8;
/// A record that changes nothing, whatever is there.
const NOTHING: Record = Record::Epoch { segment: SegmentId(0), epoch: Epoch(0) };
const NOTHING_BYTES: usize = 1 + 8 + 8;
/// The most that is put in front of a payload.
pub(crate) const PADDING_MAX: usize = (MOVES - 1) * NOTHING_BYTES;

/// Where the journal's next frame goes and what it will say.
#[derive(Debug, Clone)]
pub(crate) struct Journal {
    device: DeviceId,
    start: u64,
    pages: u64,
    /// Page of the next frame.
    pub(crate) head: u64,
    /// Pages that a replay from the checkpoint in force needs.
    used: u64,
    pub(crate) next_sequence: u64,
    durable_through: u64,
    base: u64,
    /// Pages that took no writes since the open.
    bad: BTreeSet<u64>,
}

/// What is known of records that wait for their frame, while others come behind them.
#[derive(Debug, Default)]
pub(crate) struct Searched {
    /// The moves that do not help them.
    spoiled: [bool; MOVES],
    /// How many bytes were searched for good.
    bytes: usize,
}

/// What replay found.
pub(crate) struct Replayed {
    /// Records with the sequence number of their frame.
    pub(crate) records: Vec<(u64, Vec<Record>)>,
    /// Everything through this number was flushed.
    pub(crate) durable_through: u64,
    pub(crate) journal: Journal,
}

struct Frame<'a> {
    sequence: u64,
    base: u64,
    durable_through: u64,
    payload: &'a [u8],
}

/// Where a checkpoint says that replay begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Start {
    pub(crate) head: u64,
    pub(crate) next_sequence: u64,
    pub(crate) base: u64,
}

fn frame_pages(payload: usize) -> u64 {
    ((HEADER + payload) as u64).div_ceil(PAGE)
}

impl Journal {
    /// An empty journal that goes on from `start`, where everything before is durable.
    pub(crate) fn new(superblock: &Superblock, start: Start) -> Journal {
        Journal {
            device: superblock.device,
            start: superblock.journal_start(),
            pages: superblock.journal_bytes / PAGE,
            head: start.head % (superblock.journal_bytes / PAGE),
            used: 0,
            next_sequence: start.next_sequence,
            durable_through: start.next_sequence - 1,
            base: start.base,
            bad: BTreeSet::new(),
        }
    }

    /// Pages the next frame takes, with those it skips up to the end of the ring; and where it starts. `None`: it has no place.
    ///
    /// It leaves a page in front of one that takes no writes: that may not be read either, and where a frame ends right before it an open
    /// cannot tell that the next one is not there.
    fn room(&self, payload: usize) -> Option<(u64, u64)> {
        let needed = frame_pages(payload);
        let places = [(needed, self.head), (self.pages - self.head + needed, 0)];
        places.into_iter().find(|&(taken, at)| {
            let in_ring = at + needed <= self.pages && self.used + taken <= self.pages;
            in_ring && self.bad.range(at..=at + needed).next().is_none()
        })
    }

    /// Whether a frame with such a payload can be appended before the next checkpoint.
    pub(crate) fn fits(&self, payload: usize) -> bool {
        self.room(payload).is_some()
    }

    /// How many pages took no writes since the open.
    pub(crate) fn bad_pages(&self) -> usize {
        self.bad.len()
    }

    /// Where there are such pages, frames begin anew with a checkpoint, behind the one that has most room behind it; page 0 comes after
    /// that.
    pub(crate) fn step_over_bad_pages(&mut self) {
        let ends = self.bad.iter().copied().skip(1).chain([self.pages]);
        let behind = self.bad.iter().map(|page| page + 1).zip(ends);
        if let Some((start, _)) = behind.max_by_key(|(start, end)| end - start) {
            self.head = start % self.pages;
        }
    }

    /// The same for this payload, with what is to be put in front of it: `false`, too, where that cannot be told from frames.
    pub(crate) fn takes(&self, payload: &[u8]) -> bool {
        self.padding(payload).is_some_and(|padding| self.fits(padding + payload.len()))
    }

    /// Whether a redo that holds no beginnings itself may follow these records in their frame: enough moves help them. Every redo asks, so
    /// only what came behind the last search is searched.
    pub(crate) fn takes_redo_behind(&self, records: &[u8], searched: &mut Searched) -> bool {
        // Whether the last bytes begin as a frame does depends on those to come: they are searched again.
        let sure = records.len().saturating_sub(BEGINNING - 1).max(searched.bytes);
        let mut helping = 0;
        for (number, spoiled) in searched.spoiled.iter_mut().enumerate() {
            let spoils = |part| self.has_beginning(records, number * NOTHING_BYTES, part);
            *spoiled = *spoiled || spoils(searched.bytes..sure);
            helping += usize::from(!*spoiled && !spoils(sure..records.len()));
        }
        searched.bytes = sure;
        helping >= MEETING
    }

    /// Bytes to be put in front of a payload so that none of its pages begins as a frame does. `None`: no move helps.
    fn padding(&self, payload: &[u8]) -> Option<usize> {
        let mut moves = (0..MOVES).map(|number| number * NOTHING_BYTES);
        moves.find(|&moved| !self.has_beginning(payload, moved, 0..payload.len()))
    }

    /// Whether a page that begins in this part of a payload, which is moved by so much, begins as a frame does.
    fn has_beginning(&self, payload: &[u8], moved: usize, part: Range<usize>) -> bool {
        let first = PAGE as usize - HEADER - moved;
        let before = part.start.saturating_sub(first).div_ceil(PAGE as usize);
        let mut pages = (first + before * PAGE as usize..part.end).step_by(PAGE as usize);
        pages.any(|at| self.begins(&payload[at..]))
    }

    /// Whether these bytes, with zeros behind them, begin as a frame of this device does.
    fn begins(&self, bytes: &[u8]) -> bool {
        let device = bytes.iter().skip(8).chain(std::iter::repeat(&0));
        bytes.starts_with(&MAGIC.to_le_bytes()) && self.device.0.to_le_bytes().iter().eq(device.take(16))
    }

    /// How many beginnings of frames are in these bytes, counting those once that stand at the same byte of a page.
    pub(crate) fn beginnings(&self, bytes: &[u8]) -> usize {
        let magic = MAGIC.to_le_bytes();
        let found = bytes.windows(4).enumerate().filter(|(_, word)| *word == magic).map(|(at, _)| at);
        let found = found.filter(|&at| bytes.len() - at < BEGINNING || self.begins(&bytes[at..]));
        found.map(|at| at % PAGE as usize).collect::<std::collections::BTreeSet<_>>().len()
    }

    /// Writes a frame; durable after the next flush, which the caller reports by [`Journal::flushed`].
    ///
    /// # Errors
    /// Where the medium fails; where there is no room between pages that take no writes; as invalid data where no move helps the payload,
    /// which the caller rules out before it records anything. A page that is found to take no writes is remembered.
    pub(crate) fn append(&mut self, medium: &dyn Medium, payload: &[u8]) -> Result<(), MediumError> {
        let fails = |kind| MediumError::Io { kind, offset: self.start + self.head * PAGE };
        let padding = self.padding(payload).ok_or_else(|| fails(io::ErrorKind::InvalidData))?;
        let len = padding + payload.len();
        assert!(self.fits(len) || !self.bad.is_empty(), "the caller checkpoints a full journal");
        let (taken, at) = self.room(len).ok_or_else(|| fails(io::ErrorKind::Other))?;
        let mut frame = Vec::with_capacity((frame_pages(len) * PAGE) as usize);
        frame.put_u32(MAGIC);
        frame.put_u32(0);
        frame.put_u128(self.device.0);
        frame.put_u64(self.next_sequence);
        frame.put_u64(self.base);
        frame.put_u64(self.durable_through);
        frame.put_u32(len as u32);
        frame.put_u32(FORMAT_VERSION);
        frame.put_u64(0);
        (0..padding / NOTHING_BYTES).for_each(|_| NOTHING.encode(&mut frame));
        frame.put(payload);
        let crc = crc32c(&frame[8..]);
        frame[4..8].copy_from_slice(&crc.to_le_bytes());
        frame.resize((frame_pages(len) * PAGE) as usize, 0);
        self.write(medium, at, &frame)?;
        self.head = (at + frame_pages(len)) % self.pages;
        self.used += taken;
        self.next_sequence += 1;
        Ok(())
    }

    /// Writes a frame at a page, where that fails by single pages: one of them may be bad, and is to cost the others nothing.
    fn write(&mut self, medium: &dyn Medium, at: u64, frame: &[u8]) -> Result<(), MediumError> {
        let error = match medium.write_at(self.start + at * PAGE, frame) {
            Err(error @ MediumError::Io { .. }) => error,
            written => return written,
        };
        for (page, bytes) in (at..).zip(frame.chunks(PAGE as usize)) {
            let written = if bytes.len() == frame.len() {
                Err(error.clone())
            } else {
                medium.write_at(self.start + page * PAGE, bytes)
            };
            if let Err(MediumError::Io { .. }) = written {
                tracing::warn!(device = %self.device, page, %error, "a page of the journal takes no writes");
                self.bad.insert(page);
            }
            written?;
        }
        Ok(())
    }

    /// All appended frames are durable.
    pub(crate) fn flushed(&mut self) {
        self.durable_through = self.next_sequence - 1;
    }

    /// A checkpoint of everything up to here is durable: the whole ring is free.
    pub(crate) fn checkpointed(&mut self, base: u64) {
        self.base = base;
        self.used = 0;
        self.flushed();
    }

    /// Reads all that follows a checkpoint; whether it is known to be the newest there was.
    pub(crate) fn replay(
        medium: &dyn Medium,
        superblock: &Superblock,
        start: Start,
        is_newest: bool,
    ) -> Result<Replayed, ReplayError> {
        let mut journal = Journal::new(superblock, start);
        let mut ring = crate::buffer::AlignedBuf::zeroed(superblock.journal_bytes as usize);
        let missing = read_what_is_there(medium, journal.start, &mut ring, journal.head)?;
        if let Some(error) = missing.ended.filter(|_| !is_newest) {
            return Err(error.into());
        }
        let mut records = Vec::new();
        let mut base = start.base;
        let mut durable_through = journal.durable_through;
        let mut inside = vec![false; journal.pages as usize];
        loop {
            let at_head = journal.frame(&ring, journal.head, &base);
            let Some((at, frame)) = at_head.or_else(|| journal.frame(&ring, 0, &base)) else { break };
            base = frame.base;
            durable_through = durable_through.max(frame.durable_through);
            let skipped = if at == journal.head { 0 } else { journal.pages - journal.head };
            records.push((frame.sequence, Record::decode_all(frame.payload)?));
            let end = at + frame_pages(frame.payload.len());
            inside[at as usize + 1..end as usize].fill(true);
            journal.used += skipped + end - at;
            journal.head = end % journal.pages;
            journal.next_sequence += 1;
        }
        if let Some(page) = journal.may_go_on_in(&ring, &missing.pages, base) {
            let offset = journal.start + page * PAGE;
            return Err(MediumError::Io { kind: io::ErrorKind::Other, offset }.into());
        }
        // Those that were replayed say so, too.
        for page in (0..journal.pages).filter(|page| !inside[*page as usize]) {
            let Some(frame) = journal.decode(&ring, page) else { continue };
            if frame.base > start.base {
                return Err(ReplayError::Checkpoint { lost: frame.base, found: start.base });
            }
            if frame.durable_through >= journal.next_sequence {
                let end = frame.durable_through.saturating_add(1);
                return Err(ReplayError::Lost { missing: journal.next_sequence..end });
            }
        }
        Ok(Replayed { records, durable_through, journal })
    }

    /// One of the missing pages that the next frame may be on, in part at least: where it would begin, or within what begins there.
    fn may_go_on_in(&self, ring: &[u8], missing: &BTreeSet<u64>, base: u64) -> Option<u64> {
        [self.head, 0].into_iter().find_map(|page| {
            let bytes = &ring[(page * PAGE) as usize..];
            let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
            // One of an older base was left where a page took no writes.
            let next = self.begins(bytes) && number(24) == self.next_sequence && number(32) >= base;
            let length = next.then(|| u32::from_le_bytes(bytes[48..52].try_into().expect("4 bytes")));
            let end = (page + frame_pages(length.unwrap_or(0) as usize)).min(self.pages);
            missing.range(page..end).next().copied()
        })
    }

    /// The next frame, if it stands at this page.
    fn frame<'a>(&self, ring: &'a [u8], page: u64, base: &u64) -> Option<(u64, Frame<'a>)> {
        let frame = self.decode(ring, page)?;
        (frame.sequence == self.next_sequence && frame.base >= *base).then_some((page, frame))
    }

    fn decode<'a>(&self, ring: &'a [u8], page: u64) -> Option<Frame<'a>> {
        let bytes = ring.get((page * PAGE) as usize..)?;
        let mut reader = Reader(bytes.get(..HEADER)?);
        if reader.u32().ok()? != MAGIC {
            return None;
        }
        let crc = reader.u32().ok()?;
        let device = DeviceId(reader.u128().ok()?);
        let (sequence, base, durable_through) = (reader.u64().ok()?, reader.u64().ok()?, reader.u64().ok()?);
        let len = reader.u32().ok()? as usize;
        let end = HEADER.checked_add(len)?;
        let sound = device == self.device && bytes.len() >= end && crc32c(&bytes[8..end]) == crc;
        sound.then(|| Frame { sequence, base, durable_through, payload: &bytes[HEADER..end] })
    }
}

/// Why the journal could not be read back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReplayError {
    #[error(transparent)]
    Medium(#[from] MediumError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// Acknowledged frames are missing.
    #[error("journal frames {} to {} are lost", missing.start, missing.end - 1)]
    Lost { missing: Range<u64> },
    /// What frames were written behind is missing.
    #[error("checkpoint {lost} is lost, and {found} is older")]
    Checkpoint { lost: u64, found: u64 },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ClusterId;

    fn journal(device: DeviceId, start: Start) -> Journal {
        let superblock = Superblock::new(ClusterId(1), device, 4 << 20, None, Some(64 * PAGE), false);
        Journal::new(&superblock.expect("it is large enough"), start)
    }

    /// Of two pages it was to have the first was written, and the checkpoint that has it instead says that frames go on elsewhere.
    #[test]
    fn what_is_left_of_a_frame_from_before_the_checkpoint_is_not_where_the_next_one_may_be() {
        let device = DeviceId(7);
        let mut ring = vec![0; 64 * PAGE as usize];
        ring[..4].copy_from_slice(&MAGIC.to_le_bytes());
        ring[8..24].copy_from_slice(&device.0.to_le_bytes());
        ring[24..32].copy_from_slice(&7_u64.to_le_bytes());
        ring[32..40].copy_from_slice(&2_u64.to_le_bytes());
        ring[48..52].copy_from_slice(&5000_u32.to_le_bytes());
        let missing = BTreeSet::from([1]);
        for (base, page) in [(2, Some(1)), (3, None)] {
            let journal = journal(device, Start { head: 5, next_sequence: 7, base });
            assert_eq!(journal.may_go_on_in(&ring, &missing, base), page);
        }
    }

    #[test]
    fn records_that_are_searched_in_steps_leave_what_they_leave_at_once() {
        let device = DeviceId(7);
        let journal = journal(device, Start { head: 0, next_sequence: 1, base: 0 });
        let mut records = vec![1_u8; MOVES * PAGE as usize];
        let beginning_of = |number: usize| (number + 1) * PAGE as usize - HEADER - number * NOTHING_BYTES;
        for at in (0..MOVES).map(beginning_of) {
            records[at..at + 4].copy_from_slice(&MAGIC.to_le_bytes());
            records[at + 8..at + BEGINNING].copy_from_slice(&device.0.to_le_bytes());
        }
        // With zeros behind what is there it is one, and it is none any more once its last byte is there.
        records[beginning_of(LIKE_MAX) + BEGINNING - 1] = 1;
        let (mut searched, mut taken) = (Searched::default(), Vec::new());
        for end in (0..records.len()).step_by(7) {
            let at_once = journal.takes_redo_behind(&records[..end], &mut Searched::default());
            assert_eq!(journal.takes_redo_behind(&records[..end], &mut searched), at_once, "{end} bytes");
            taken.push(at_once);
        }
        taken.dedup();
        assert_eq!(taken, [true, false, true, false]);
        records.fill(1);
        assert!(!journal.takes_redo_behind(&records, &mut searched), "nothing is searched twice");
    }
}
