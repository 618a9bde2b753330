//! The log in an extent's reserve: a ring of self-describing records, each on pages of its own. No I/O here.
//!
//! PLR keeps the deltas of a parity chunk in reserved space right behind it, so that a merge reads chunk and deltas
//! in one pass (Chan et al., FAST'14, §4.2). What a record holds is the caller's.
//!
//! ```text
//!  0 magic u32    4 crc32c u32 of all that follows, payload included    8 device u128
//! 24 segment u64 32 created u64 (of the extent)    40 version u64 (of the segment)    48 sequence u64
//! 56 base u64 (checkpoint in force)    64 durable through u64    72 payload length u32
//! 76 format version u32    80 payload    padded to 4 KiB
//! ```
//!
//! **Which records count**, and **which loss is damage**: as in `journal`. The scan starts where the extent's index
//! entry says, takes a record at the head or, behind the end of the ring, at page 0, with the next sequence and a
//! base not older than that of the record before; the first miss cuts. A whole record that says something beyond
//! the cut was durable makes the log damaged: its extent refuses to use it, everything else goes on. So does a page that the medium
//! does not give, where the next record may be on it.
//!
//! A log that is empty has no record whose base could tell a stale one, so those from before a cut are zeroed when it is read back.
//!
//! **Invariants.** A page that holds a record in force, or one whose end is not durable yet, is never written. Pages
//! from `prepared` on were never written since the extent was created, so zeroing them ahead of the head hurts nothing.

use std::{
    collections::{BTreeSet, VecDeque},
    ops::Range,
};

use super::{
    FORMAT_VERSION,
    codec::{Put, Reader},
    updating::LogStart,
};
use crate::{
    checksum::crc32c,
    ids::{DeviceId, SegmentId, Version},
};

const MAGIC: u32 = u32::from_le_bytes(*b"SFL1");
/// Bytes in front of the payload.
pub(crate) const HEADER: usize = 80;
const PAGE: u64 = 4096;

/// Whose log it is: all of it stands in every record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) device: DeviceId,
    pub(crate) segment: SegmentId,
    pub(crate) version: Version,
    pub(crate) created: u64,
}

/// A record in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) sequence: u64,
    /// Its first page.
    pub(crate) page: u64,
    /// Bytes of its payload.
    pub(crate) bytes: u32,
}

impl Entry {
    /// The page behind it.
    pub(crate) fn end(&self) -> u64 {
        self.page + record_pages(self.bytes as usize)
    }
}

/// One extent's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ring {
    owner: Owner,
    pages: u64,
    head: u64,
    /// Whether the next record could not be written there: it may be there all the same.
    head_is_doubtful: bool,
    next_sequence: u64,
    durable_through: u64,
    entries: VecDeque<Entry>,
    /// Records before the start, and the commit that makes it durable that they are.
    leaving: VecDeque<Entry>,
    leaving_commit: u64,
    prepared: u64,
    /// Pages of all that was appended since the log was read back.
    appended: u64,
    /// Records that are missing although they were durable.
    damaged: Option<Range<u64>>,
    /// Pages with whole records from before a cut, and those that may have some, which are to be zeroed before anything is appended: the
    /// log may come to begin right there.
    stale: Vec<u64>,
}

struct Found {
    sequence: u64,
    base: u64,
    durable_through: u64,
    bytes: u32,
}

/// Pages of a record with such a payload.
pub(crate) fn record_pages(payload: usize) -> u64 {
    ((HEADER + payload) as u64).div_ceil(PAGE)
}

impl Ring {
    /// An empty log of so many pages.
    pub(crate) fn new(owner: Owner, pages: u64, start: LogStart) -> Ring {
        Ring {
            owner,
            pages,
            head: start.page,
            head_is_doubtful: false,
            next_sequence: start.sequence,
            durable_through: start.sequence - 1,
            entries: VecDeque::new(),
            leaving: VecDeque::new(),
            leaving_commit: 0,
            prepared: start.page,
            appended: 0,
            damaged: None,
            stale: Vec::new(),
        }
    }

    /// What the reserve with this content holds; of these pages nothing is known. Where the content is durable, so are its records:
    /// [`Ring::flushed`].
    pub(crate) fn scan(owner: Owner, reserve: &[u8], unknown: &BTreeSet<u64>, start: LogStart) -> Ring {
        let pages = reserve.len() as u64 / PAGE;
        let mut ring = Ring::new(owner, pages, start);
        let mut base = 0;
        while let Some((page, found)) = [ring.head, 0].into_iter().find_map(|page| {
            let found = owner.find(reserve, page)?;
            let next = found.sequence == ring.next_sequence && found.base >= base;
            (next && ring.entries.iter().all(|e| page >= e.end() || page < e.page)).then_some((page, found))
        }) {
            base = found.base;
            ring.durable_through = ring.durable_through.max(found.durable_through);
            ring.push(page, found.bytes);
        }
        for page in 0..pages {
            // What a payload looks like is nothing to us.
            let within = |entry: &Entry| entry.page < page && page < entry.end();
            let Some(found) = owner.find(reserve, page).filter(|_| !ring.entries.iter().any(within)) else {
                continue;
            };
            ring.prepared = ring.prepared.max(page + record_pages(found.bytes as usize));
            if found.durable_through >= ring.next_sequence {
                ring.lack(found.durable_through);
            }
            if found.sequence >= ring.next_sequence {
                ring.stale.push(page);
            }
        }
        let may_go_on = |page: u64| {
            let end =
                page + record_pages(owner.begun(reserve, page, ring.next_sequence).unwrap_or(0) as usize);
            unknown.range(page..end).next().is_some()
        };
        if may_go_on(ring.head) || may_go_on(0) {
            ring.lack(ring.next_sequence);
        }
        ring.stale.extend(unknown);
        ring.appended = 0;
        ring
    }

    /// All up to this record were durable, and the scan did not find them.
    pub(crate) fn lack(&mut self, through: u64) {
        let missing = self.next_sequence..through.saturating_add(1);
        self.damaged.get_or_insert(missing);
    }

    /// Pages to be zeroed; none where the log is damaged, as what is there may be of use.
    pub(crate) fn take_stale(&mut self) -> Vec<u64> {
        let stale = std::mem::take(&mut self.stale);
        if self.damaged.is_some() { Vec::new() } else { stale }
    }

    /// The records that are missing, if any.
    pub(crate) fn damaged(&self) -> Option<Range<u64>> {
        self.damaged.clone()
    }

    /// Number of the next record.
    pub(crate) fn next_sequence(&self) -> u64 {
        self.next_sequence
    }

    /// Where the next record goes, unless it finds room at page 0 alone.
    pub(crate) fn head(&self) -> u64 {
        self.head
    }

    /// The records in force, in order.
    pub(crate) fn entries(&self) -> impl ExactSizeIterator<Item = Entry> + '_ {
        self.entries.iter().copied()
    }

    /// One of them.
    pub(crate) fn entry(&self, sequence: u64) -> Option<Entry> {
        let first = self.entries.front()?.sequence;
        self.entries.get(usize::try_from(sequence.checked_sub(first)?).ok()?).copied()
    }

    /// The first of these records and those of them in force that lie behind it without a gap, of so many pages together at most but
    /// one record at least; and their pages. `None`: the first is not in force.
    pub(crate) fn run(&self, sequences: Range<u64>, pages_max: u64) -> Option<(Range<u64>, Vec<Entry>)> {
        let entry = self.entry(sequences.start)?;
        let (mut pages, mut run) = (entry.page..entry.end(), vec![entry]);
        for sequence in sequences.skip(1) {
            let fits = |next: &Entry| next.page == pages.end && next.end() - pages.start <= pages_max;
            let Some(next) = self.entry(sequence).filter(fits) else { break };
            pages.end = next.end();
            run.push(next);
        }
        Some((pages, run))
    }

    /// Runs of pages that a record could take now: at the head, and at page 0 behind the end.
    fn room(&self, commits: u64) -> [Range<u64>; 2] {
        let leaving = self.leaving.front().filter(|_| self.leaving_commit >= commits);
        match leaving.or(self.entries.front()).map(|e| e.page) {
            None => [self.head..self.pages, 0..self.pages],
            Some(first) if self.head > first => [self.head..self.pages, 0..first],
            Some(first) => [self.head..first, 0..0],
        }
    }

    /// Bytes of the reserve that records in force take, and bytes that all records took which were appended since the log was
    /// read back.
    pub(crate) fn use_bytes(&self) -> (u64, u64) {
        let held: u64 = self.entries.iter().map(|entry| entry.end() - entry.page).sum();
        (held * PAGE, self.appended * PAGE)
    }

    /// Bytes of the largest payload that would be taken now, where so many commits are durable.
    pub(crate) fn free(&self, commits: u64) -> u64 {
        let pages = self.room(commits).into_iter().map(|r| r.end - r.start).max().unwrap_or(0);
        (pages * PAGE).saturating_sub(HEADER as u64)
    }

    /// Where a record with such a payload goes.
    pub(crate) fn place(&self, payload: usize, commits: u64) -> Option<u64> {
        let needed = record_pages(payload);
        self.room(commits).into_iter().find(|r| r.end - r.start >= needed).map(|r| r.start)
    }

    /// The next record, as it is to be written.
    pub(crate) fn encode(&self, base: u64, payload: &[u8]) -> Vec<u8> {
        let bytes = (record_pages(payload.len()) * PAGE) as usize;
        let mut record = Vec::with_capacity(bytes);
        record.put_u32(MAGIC);
        record.put_u32(0);
        record.put_u128(self.owner.device.0);
        record.put_u64(self.owner.segment.0);
        record.put_u64(self.owner.created);
        record.put_u64(self.owner.version.0);
        record.put_u64(self.next_sequence);
        record.put_u64(base);
        record.put_u64(self.durable_through);
        record.put_u32(payload.len() as u32);
        record.put_u32(FORMAT_VERSION);
        record.put(payload);
        let crc = crc32c(&record[8..]);
        record[4..8].copy_from_slice(&crc.to_le_bytes());
        record.resize(bytes, 0);
        record
    }

    /// A write of the next record at this page failed.
    pub(crate) fn was_refused(&mut self, page: u64) {
        self.head_is_doubtful |= page == self.head;
    }

    /// Whether a scan may not come to the next record at this page, but take one of the same number that lies at the head: there it could
    /// not be written.
    pub(crate) fn is_hidden(&self, page: u64) -> bool {
        self.head_is_doubtful && page != self.head
    }

    /// The next record stands at this page now.
    pub(crate) fn push(&mut self, page: u64, bytes: u32) {
        let entry = Entry { sequence: self.next_sequence, page, bytes };
        self.entries.push_back(entry);
        self.next_sequence += 1;
        self.prepared = self.prepared.max(entry.end());
        self.appended += entry.end() - page;
        self.head = if entry.end() >= self.pages { 0 } else { entry.end() };
        self.head_is_doubtful = false;
    }

    /// The last record, where none says that it is durable.
    pub(crate) fn unflushed(&self) -> Option<Entry> {
        self.entries.back().copied().filter(|last| last.sequence > self.durable_through)
    }

    /// All that was written is durable.
    pub(crate) fn flushed(&mut self) {
        self.durable_through = self.next_sequence - 1;
    }

    /// Where the log begins when everything before `sequence` goes. `None`: neither a record in force nor the next.
    pub(crate) fn start_at(&self, sequence: u64) -> Option<LogStart> {
        let page = match self.entry(sequence) {
            Some(entry) => entry.page,
            None if sequence == self.next_sequence => self.head,
            None => return None,
        };
        Some(LogStart { sequence, page })
    }

    /// Everything before `sequence` is out of force; its space is free once `commit` is durable.
    pub(crate) fn begin_at(&mut self, sequence: u64, commit: u64, commits: u64) {
        if self.leaving_commit < commits {
            self.leaving.clear();
        }
        while let Some(entry) = self.entries.pop_front_if(|e| e.sequence < sequence) {
            self.leaving.push_back(entry);
            self.leaving_commit = commit;
        }
    }

    /// The ring has only so many pages from now on and starts at page 0; it must be empty.
    pub(crate) fn shrink(&mut self, pages: u64) {
        self.pages = pages;
        self.head = 0;
        self.head_is_doubtful = false;
        self.prepared = self.prepared.min(pages);
        self.leaving.clear();
    }

    /// Pages that should be zeroed before a record of so many pages is written at `page`: up to a multiple of `step`
    /// pages, so that it is done once for many records.
    pub(crate) fn to_prepare(&self, page: u64, pages: u64, step: u64) -> Range<u64> {
        if page + pages <= self.prepared {
            return self.prepared..self.prepared;
        }
        let end = (page + pages).next_multiple_of(step).min(self.pages);
        self.prepared.min(end)..end
    }

    /// Pages ahead of the head that should be zeroed while there is time.
    pub(crate) fn ahead(&self, step: u64) -> Range<u64> {
        // A reserve that nothing was logged in may never be: it is left alone.
        if self.damaged.is_some() || self.prepared == 0 {
            return 0..0;
        }
        self.to_prepare(self.head, step.min(self.pages - self.head), step)
    }

    /// They are zeros.
    pub(crate) fn was_prepared(&mut self, pages: &Range<u64>) {
        self.prepared = self.prepared.max(pages.end);
    }

    /// The payload of a record that was read back. `None`: it is not that record, or not whole.
    pub(crate) fn payload<'a>(&self, entry: &Entry, record: &'a [u8]) -> Option<&'a [u8]> {
        let found = self.owner.find(record, 0)?;
        let same = (found.sequence, found.bytes) == (entry.sequence, entry.bytes);
        same.then(|| &record[HEADER..HEADER + entry.bytes as usize])
    }
}

impl Owner {
    /// Bytes of the payload of what begins as this record of the log at a page, whole or not.
    fn begun(&self, reserve: &[u8], page: u64, sequence: u64) -> Option<u32> {
        let header = reserve.get((page * PAGE) as usize..)?.get(..HEADER)?;
        let mut expected = Vec::with_capacity(HEADER);
        expected.put_u128(self.device.0);
        expected.put_u64(self.segment.0);
        expected.put_u64(self.created);
        expected.put_u64(self.version.0);
        expected.put_u64(sequence);
        let ours = header[..4] == MAGIC.to_le_bytes() && header[8..8 + expected.len()] == expected[..];
        ours.then(|| u32::from_le_bytes(header[72..76].try_into().expect("4 bytes")))
    }

    fn find(&self, reserve: &[u8], page: u64) -> Option<Found> {
        let bytes = reserve.get((page * PAGE) as usize..)?;
        let mut reader = Reader(bytes.get(..HEADER)?);
        if reader.u32().ok()? != MAGIC {
            return None;
        }
        let crc = reader.u32().ok()?;
        let device = DeviceId(reader.u128().ok()?);
        let (segment, created) = (SegmentId(reader.u64().ok()?), reader.u64().ok()?);
        let owner = Owner { device, segment, created, version: Version(reader.u64().ok()?) };
        let (sequence, base, durable_through) = (reader.u64().ok()?, reader.u64().ok()?, reader.u64().ok()?);
        let len = reader.u32().ok()?;
        let end = HEADER.checked_add(len as usize)?;
        let sound = owner == *self && bytes.len() >= end && crc32c(&bytes[8..end]) == crc;
        sound.then_some(Found { sequence, base, durable_through, bytes: len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner =
        Owner { device: DeviceId(7), segment: SegmentId(3), version: Version(1), created: 9 };
    const START: LogStart = LogStart { sequence: 1, page: 0 };

    fn append(ring: &mut Ring, reserve: &mut [u8], base: u64, payload: &[u8]) -> Option<u64> {
        append_after(ring, reserve, base, payload, 1)
    }

    fn append_after(
        ring: &mut Ring,
        reserve: &mut [u8],
        base: u64,
        payload: &[u8],
        commits: u64,
    ) -> Option<u64> {
        let page = ring.place(payload.len(), commits)?;
        let record = ring.encode(base, payload);
        reserve[(page * PAGE) as usize..][..record.len()].copy_from_slice(&record);
        ring.push(page, payload.len() as u32);
        Some(page)
    }

    #[test]
    fn a_ring_wraps_and_is_read_back() {
        let mut reserve = vec![0; 8 * PAGE as usize];
        let mut ring = Ring::new(OWNER, 8, START);
        assert_eq!(ring.free(1), 8 * PAGE - 80);
        assert_eq!(append(&mut ring, &mut reserve, 1, &[1; 5000]), Some(0));
        assert_eq!(append(&mut ring, &mut reserve, 1, &[2; 9000]), Some(2));
        assert_eq!(append(&mut ring, &mut reserve, 1, &[3; 9000]), Some(5));
        assert_eq!((append(&mut ring, &mut reserve, 1, &[4; 1]), ring.free(1)), (None, 0));
        let start = ring.start_at(2).expect("in force");
        assert_eq!(start, LogStart { sequence: 2, page: 2 });
        ring.begin_at(2, 1, 1);
        assert_eq!(ring.free(1), 0, "its end is not durable yet");
        assert_eq!(ring.free(2), 2 * PAGE - 80);
        ring.flushed();
        assert_eq!(append_after(&mut ring, &mut reserve, 2, &[4; 5000], 2), Some(0));
        let again = Ring::scan(OWNER, &reserve, &BTreeSet::new(), start);
        assert_eq!(
            again.entries().map(|e| (e.sequence, e.page)).collect::<Vec<_>>(),
            [(2, 2), (3, 5), (4, 0)]
        );
        assert_eq!((again.damaged(), again.head, again.next_sequence), (None, 2, 5));
        let entry = again.entry(4).expect("in force");
        assert_eq!(again.payload(&entry, &reserve), Some(&[4; 5000][..]));
        let pages_to = |first, end, max| {
            again
                .run(first..end, max)
                .map(|(pages, run)| (pages, run.iter().map(|e| e.sequence).collect::<Vec<_>>()))
        };
        let pages = |first, max| pages_to(first, 5, max);
        assert_eq!(pages_to(2, 3, 8), Some((2..5, vec![2])), "no more than asked for");
        assert_eq!(pages(2, 8), Some((2..8, vec![2, 3])), "the next one is at the ring's begin");
        assert_eq!((pages(2, 5), pages(3, 0)), (Some((2..5, vec![2])), Some((5..8, vec![3]))));
        assert_eq!((pages(1, 8), pages(5, 8)), (None, None), "not in force");
        let other = Owner { created: 10, ..OWNER };
        assert_eq!(
            Ring::scan(other, &reserve, &BTreeSet::new(), START).entries().len(),
            0,
            "an earlier extent's records"
        );
        // Record 3 was durable when record 4 was written.
        reserve[(5 * PAGE) as usize + 100] ^= 1;
        assert_eq!(Ring::scan(OWNER, &reserve, &BTreeSet::new(), start).damaged(), Some(3..4));
    }

    #[test]
    fn a_record_from_before_a_cut_is_not_joined() {
        let mut reserve = vec![0; 8 * PAGE as usize];
        let mut ring = Ring::new(OWNER, 8, START);
        for fill in 1..=3 {
            append(&mut ring, &mut reserve, 5, &[fill; 100]);
        }
        // The second of three unflushed records did not survive.
        reserve[PAGE as usize..2 * PAGE as usize].fill(0);
        let mut cut = Ring::scan(OWNER, &reserve, &BTreeSet::new(), START);
        assert_eq!((cut.next_sequence, cut.damaged()), (2, None));
        append(&mut cut, &mut reserve, 6, &[9; 100]);
        let again = Ring::scan(OWNER, &reserve, &BTreeSet::new(), START);
        assert_eq!((again.next_sequence, again.damaged()), (3, None));
    }

    #[test]
    fn a_payload_that_looks_like_a_record_is_none() {
        let mut reserve = vec![0; 8 * PAGE as usize];
        // As a record of the same log would be, far ahead of all others, at the begin of the payload's second page.
        let mut ahead = Ring::new(OWNER, 8, LogStart { sequence: 9, page: 0 });
        ahead.push(0, 1);
        let mut payload = vec![7; PAGE as usize - HEADER];
        payload.extend(ahead.encode(1, &[1; 100]));
        let mut ring = Ring::new(OWNER, 8, START);
        append(&mut ring, &mut reserve, 1, &payload);
        let mut again = Ring::scan(OWNER, &reserve, &BTreeSet::new(), START);
        assert_eq!((again.next_sequence, again.damaged(), again.take_stale()), (2, None, vec![]));
        // Where that record is not in force it is what it looks like.
        let mut again = Ring::scan(OWNER, &reserve, &BTreeSet::new(), LogStart { sequence: 2, page: 2 });
        assert_eq!((again.damaged(), again.take_stale()), (Some(2..9), vec![]));
    }

    #[test]
    fn an_empty_ring_takes_a_record_as_long_as_itself() {
        let mut reserve = vec![0; 8 * PAGE as usize];
        let mut ring = Ring::new(OWNER, 8, LogStart { sequence: 4, page: 5 });
        assert_eq!(append(&mut ring, &mut reserve, 1, &[1; 8 * PAGE as usize - HEADER]), Some(0));
        let again = Ring::scan(OWNER, &reserve, &BTreeSet::new(), LogStart { sequence: 4, page: 5 });
        assert_eq!(again.entries().len(), 1);
        assert_eq!(Ring::new(OWNER, 0, START).place(0, 0), None, "no reserve, no log");
    }
}
