//! Pages of checksum tables in memory: the ones that changed since the last flush, and a bounded number of
//! others, least recently used out first.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::IoSlice,
    ops::Range,
};

use crate::{
    allocator::UNIT_BYTES,
    buffer::AlignedBuf,
    media::{Medium, MediumError},
};

struct Page {
    bytes: AlignedBuf,
    /// Changed: it stays in memory.
    dirty: bool,
    used: u64,
}

pub(super) struct Tables {
    pages: HashMap<u64, Page>,
    /// Clean pages by their last use.
    clean: BTreeMap<u64, u64>,
    /// Changed pages that the next flush is to find on the medium.
    dirty: Vec<u64>,
    /// Pages that only need to be there before the next checkpoint: at most one a granule of redo in the journal
    /// and the checkpoint in force.
    late: BTreeSet<u64>,
    clean_max: usize,
    clock: u64,
}

impl Tables {
    pub(super) fn new(clean_max: usize) -> Tables {
        let (pages, clean, dirty, late) = Default::default();
        Tables { pages, clean, dirty, late, clean_max, clock: 0 }
    }

    /// Whether the next flush needs nothing of it.
    pub(super) fn is_clean(&self) -> bool {
        self.dirty.is_empty()
    }

    /// Checksums in the bytes `range` of the table that starts at unit `table`.
    pub(super) fn get(
        &mut self,
        medium: &dyn Medium,
        table: u64,
        range: Range<u64>,
    ) -> Result<Vec<u32>, MediumError> {
        let mut sums = Vec::with_capacity(((range.end - range.start) / 4) as usize);
        let mut at = range.start;
        while at < range.end {
            let within = (at % UNIT_BYTES) as usize;
            let len = (UNIT_BYTES as usize - within).min((range.end - at) as usize);
            let page = self.page(medium, table + at / UNIT_BYTES, false)?;
            let (words, _) = page.bytes[within..within + len].as_chunks::<4>();
            sums.extend(words.iter().map(|w| u32::from_le_bytes(*w)));
            at += len as u64;
        }
        Ok(sums)
    }

    /// Puts the checksums of new slots at byte `at` of the table that starts at unit `table`. Slots are written in
    /// order, so a page that begins at or behind `at` holds nothing yet and is not read.
    pub(super) fn put(
        &mut self,
        medium: &dyn Medium,
        table: u64,
        at: u64,
        sums: &[u32],
    ) -> Result<(), MediumError> {
        self.set(medium, table, at, sums, Some(at))
    }

    /// Changes checksums of slots that are there. A redo in the journal has the new ones, too, so the pages are
    /// only written by [`Tables::write_all`], unless they change otherwise.
    pub(super) fn change(
        &mut self,
        medium: &dyn Medium,
        table: u64,
        at: u64,
        sums: &[u32],
    ) -> Result<(), MediumError> {
        self.set(medium, table, at, sums, None)
    }

    /// `empty_from`: the pages that begin at or behind this byte of the table hold nothing yet. `None`: a late change.
    fn set(
        &mut self,
        medium: &dyn Medium,
        table: u64,
        mut at: u64,
        sums: &[u32],
        empty_from: Option<u64>,
    ) -> Result<(), MediumError> {
        let mut bytes = sums.iter().flat_map(|s| s.to_le_bytes()).peekable();
        while bytes.peek().is_some() {
            let unit = table + at / UNIT_BYTES;
            let within = (at % UNIT_BYTES) as usize;
            let fresh = empty_from.is_some_and(|from| at - within as u64 >= from);
            if empty_from.is_none() {
                self.begin_anew_if_unreadable(medium, unit)?;
            }
            let page = self.page(medium, unit, fresh)?;
            let mut filled = 0;
            for (to, from) in page.bytes[within..].iter_mut().zip(&mut bytes) {
                *to = from;
                filled += 1;
            }
            at += filled;
            let was_dirty = std::mem::replace(&mut page.dirty, true);
            let used = page.used;
            if !was_dirty {
                self.clean.remove(&used);
            }
            match empty_from {
                None if !was_dirty => drop(self.late.insert(unit)),
                Some(_) if self.late.remove(&unit) || !was_dirty => self.dirty.push(unit),
                _ => {}
            }
        }
        Ok(())
    }

    /// Begins a page anew that cannot be read, while others can: nobody waits for the change, and one bad page must not keep the device
    /// from all others. The granules whose checksums it had cannot be verified without it, and read as damaged from now on; written, it can
    /// be read.
    fn begin_anew_if_unreadable(&mut self, medium: &dyn Medium, unit: u64) -> Result<(), MediumError> {
        let mut unreadable = None;
        for _ in 0..2 {
            match self.page(medium, unit, false) {
                Err(error @ MediumError::Io { .. }) => unreadable = Some(error),
                page => return page.map(|_| ()),
            }
            // Where the way to the medium is gone, so is this, and what the page has is still there.
            medium.probe(0, &mut AlignedBuf::zeroed(UNIT_BYTES as usize))?;
        }
        tracing::warn!(medium = %medium.describe(), ?unreadable, "a page of checksums is begun anew");
        self.page(medium, unit, true).map(|_| ())
    }

    /// Writes all changed pages, late ones, too: before a checkpoint.
    pub(super) fn write_all(&mut self, medium: &dyn Medium) -> Result<(), MediumError> {
        self.dirty.extend(std::mem::take(&mut self.late));
        self.write(medium)
    }

    /// Writes the pages that the next flush is to find, neighbours together. They stay marked until
    /// [`Tables::flushed`].
    pub(super) fn write(&mut self, medium: &dyn Medium) -> Result<(), MediumError> {
        self.dirty.sort_unstable();
        for run in self.dirty.chunk_by(|a, b| a + 1 == *b) {
            let slices: Vec<IoSlice<'_>> =
                run.iter().filter_map(|u| self.pages.get(u)).map(|p| IoSlice::new(&p.bytes)).collect();
            medium.write_vectored_at(run[0] * UNIT_BYTES, &slices)?;
        }
        Ok(())
    }

    /// The pages that were written are durable.
    pub(super) fn flushed(&mut self) {
        for unit in std::mem::take(&mut self.dirty) {
            if let Some(page) = self.pages.get_mut(&unit) {
                page.dirty = false;
                self.clean.insert(page.used, unit);
            }
        }
        self.evict(self.clean_max);
    }

    /// These units have another use now.
    pub(super) fn forget(&mut self, range: &Range<u64>) {
        let clean = &mut self.clean;
        self.pages.retain(|unit, page| {
            let keep = !range.contains(unit);
            if !keep {
                clean.remove(&page.used);
            }
            keep
        });
        self.dirty.retain(|unit| !range.contains(unit));
        self.late.retain(|unit| !range.contains(unit));
    }

    fn page(&mut self, medium: &dyn Medium, unit: u64, fresh: bool) -> Result<&mut Page, MediumError> {
        self.clock += 1;
        let clock = self.clock;
        if !self.pages.contains_key(&unit) {
            let mut bytes = AlignedBuf::zeroed(UNIT_BYTES as usize);
            if !fresh {
                medium.read_at(unit * UNIT_BYTES, &mut bytes)?;
            }
            self.evict(self.clean_max.saturating_sub(1));
            self.pages.insert(unit, Page { bytes, dirty: false, used: clock });
            self.clean.insert(clock, unit);
        } else if fresh && let Some(page) = self.pages.get_mut(&unit) {
            page.bytes.fill(0);
        }
        let page = self.pages.get_mut(&unit).expect("just looked up or inserted");
        if !page.dirty {
            self.clean.remove(&page.used);
            self.clean.insert(clock, unit);
        }
        page.used = clock;
        Ok(page)
    }

    fn evict(&mut self, keep: usize) {
        while self.clean.len() > keep
            && let Some((_, unit)) = self.clean.pop_first()
        {
            self.pages.remove(&unit);
        }
    }
}
