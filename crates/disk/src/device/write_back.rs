//! Writing changes in place, once their redo is durable: sorted by place, with their checksums.
//!
//! What is written here stays in the journal until a checkpoint, so a granule that a crash tears is healed by replay. A checkpoint
//! takes the redo of what is not in place yet with it: nobody waits for that on a disk that positions for each granule. Log records that
//! only the journal has (`appended`) go into their reserves by the same rules.
//!
//! A place that takes no writes costs nothing of what was answered: what belongs there is *kept*, in memory and in every checkpoint, and
//! counts as held. It is tried again by the next open, as an open knows of no bad places. Granules that were only written with their
//! neighbours have no redo in the journal: of those whose place fails there is some from the next checkpoint on, and a crash before it
//! leaves what the failed write did.

use std::{cmp::Reverse, io::IoSlice, ops::Range};

use bytes::Bytes;

use super::{Device, DeviceError, write::check_not_given_up};
use crate::{
    allocator::UNIT_BYTES,
    ids::SegmentId,
    index::{Place, checkpoint},
    media::MediumError,
};

/// Pieces of one write, and their bytes: well below the 1024 pieces that the system takes at once, two of them a log record's.
const RUN_PIECES_MAX: usize = 256;
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Pages of a reserve that are zeroed at once: 256 KiB, 2.5 ms of a disk of 100 MB/s for 64 small records.
pub(super) const PREPARE_PAGES: u64 = 64;
/// Places, one after the other, of which none took what belongs there, after which it is the medium that takes nothing: each costs a disk
/// seconds. Picked by eye: more granules of 4 KiB than lie in one damaged spot.
const REFUSALS_MAX: u32 = 16;

/// What fills the last page of a log record.
static ZEROS: [u8; UNIT_BYTES as usize] = [0; UNIT_BYTES as usize];

/// Something that goes in place.
struct Piece {
    segment: SegmentId,
    /// Its first byte on the medium.
    at: u64,
    bytes: Bytes,
    home: Home,
}

/// Where it belongs.
enum Home {
    Granule {
        position: u64,
        place: Place,
        sum: u32,
    },
    /// Of a log: the record's first page in the reserve.
    Page(u64),
}

impl Piece {
    /// Bytes on the medium.
    fn len(&self) -> u64 {
        (self.bytes.len() as u64).next_multiple_of(UNIT_BYTES)
    }

    /// Where it goes.
    fn units(&self) -> Range<u64> {
        self.at / UNIT_BYTES..(self.at + self.len()) / UNIT_BYTES
    }

    /// Whether one write can have both, with their checksums.
    fn is_followed_by(&self, next: &Piece) -> bool {
        let sums = match (&self.home, &next.home) {
            (Home::Granule { place: a, .. }, Home::Granule { place: b, .. }) => {
                (a.table, a.table_byte + 4) == (b.table, b.table_byte)
            }
            (Home::Page(_), Home::Page(_)) => true,
            _ => false,
        };
        sums && self.segment == next.segment && self.at + self.len() == next.at
    }
}

/// Pieces in the order of the medium as writes.
fn runs(pieces: &[Piece]) -> Vec<&[Piece]> {
    let mut runs = Vec::new();
    let (mut from, mut bytes) = (0, 0);
    for (number, piece) in pieces.iter().enumerate() {
        let fits = number == from
            || pieces[number - 1].is_followed_by(piece)
                && number - from < RUN_PIECES_MAX
                && bytes + piece.len() <= RUN_BYTES_MAX;
        if !fits {
            runs.push(&pieces[from..number]);
            (from, bytes) = (number, 0);
        }
        bytes += piece.len();
    }
    if from < pieces.len() {
        runs.push(&pieces[from..]);
    }
    runs
}

impl Device {
    /// Bytes of changes, of what lies between them, and of log records that are not in place, and neither held nor kept. Some may wait for
    /// a flush first.
    pub fn to_write_back(&self) -> u64 {
        self.overlay.ready_bytes() + self.appended.bytes()
    }

    /// Writes changes in place, at most `max_bytes` of them (but one piece at least, and on a medium that positions a run to its end):
    /// those whose redo and release are durable. Returns how many bytes wait for it no more, beside what belongs to places known to take no
    /// writes; they need no flush of their own. It ends at a place that is found to take none, which costs a disk seconds: the next call
    /// goes on behind it, and one that returns 0 has found nothing to do.
    ///
    /// # Errors
    /// Where the medium fails, and not just at one place; the device only reads from then on.
    pub fn write_back(&mut self, max_bytes: u64) -> Result<u64, DeviceError> {
        self.check_alive()?;
        let outcome = self.put_in_place(max_bytes);
        self.or_fail(outcome)
    }

    /// The same for the first that are neighbours, and never more than `max_bytes` of them (but one at least): one operation, and one
    /// for their checksums; where it fails, one for each of them up to a place that takes no writes. Log records come after all else: where
    /// there is time for it their log may be merged before.
    ///
    /// # Errors
    /// As [`Device::write_back`].
    pub fn write_back_run(&mut self, max_bytes: u64) -> Result<u64, DeviceError> {
        self.check_alive()?;
        let mut pieces = self.all_granules();
        if pieces.is_empty() {
            pieces = self.all_records();
        }
        let outcome = self.put(pieces, max_bytes, 1);
        self.or_fail(outcome)
    }

    pub(super) fn put_in_place(&mut self, max_bytes: u64) -> Result<u64, MediumError> {
        let mut pieces = self.all_granules();
        pieces.extend(self.all_records());
        self.put(pieces, max_bytes, usize::MAX)
    }

    fn all_granules(&mut self) -> Vec<Piece> {
        let segments: Vec<_> = self.overlay.ready_by_segment().map(|(segment, _)| segment).collect();
        self.granules_of(&segments)
    }

    fn all_records(&self) -> Vec<Piece> {
        let segments: Vec<_> = self.appended.by_segment().map(|(segment, _)| segment).collect();
        self.records_of(&segments)
    }

    /// At most `runs_max` operations, of the segments that have most of it: neighbours are one operation, and near ones one
    /// positioning. Log records wait for others of their log until they are half of all that waits: only they gain by it.
    pub(super) fn put_densest(&mut self, max_bytes: u64, runs_max: usize) -> Result<u64, MediumError> {
        let logs = 2 * self.appended.bytes() > self.ready_bound;
        let mut segments: Vec<_> = if logs {
            self.appended.by_segment().collect()
        } else {
            self.overlay.ready_by_segment().collect()
        };
        segments.sort_by_key(|&(_, bytes)| Reverse(bytes));
        let (mut bytes, mut densest) = (0, Vec::new());
        for (segment, of_it) in segments {
            if bytes >= max_bytes {
                break;
            }
            bytes += of_it;
            densest.push(segment);
        }
        let pieces = if logs { self.records_of(&densest) } else { self.granules_of(&densest) };
        self.put(pieces, max_bytes, runs_max)
    }

    /// Changed granules that may go in place.
    fn granules_of(&mut self, segments: &[SegmentId]) -> Vec<Piece> {
        let (mut pieces, mut gone) = (Vec::new(), Vec::new());
        for &segment in segments {
            let extent = self.index.get(segment);
            for (position, ready) in self.overlay.ready(segment, self.commits) {
                match extent.and_then(|extent| extent.granule_place(position)) {
                    Some(place) => {
                        let home = Home::Granule { position, place, sum: ready.sum };
                        pieces.push(Piece { segment, at: place.data, bytes: ready.bytes.clone(), home });
                    }
                    None => gone.push((segment, position)),
                }
            }
        }
        for (segment, position) in gone {
            self.overlay.written(segment, position);
        }
        pieces
    }

    /// Log records that may go into their reserves.
    fn records_of(&self, segments: &[SegmentId]) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for &segment in segments {
            let updating = self.index.get(segment).and_then(|extent| extent.updates.as_ref());
            let start = updating.expect("a log's extent is updatable").reserve.start;
            pieces.extend(self.appended.ready(segment, self.commits).map(|(page, record)| Piece {
                segment,
                at: (start + page) * UNIT_BYTES,
                bytes: record.bytes.clone(),
                home: Home::Page(page),
            }));
        }
        pieces
    }

    /// Writes pieces in the order of the medium, up to the first place that takes no writes: whoever comes meanwhile waits for no more of
    /// them.
    fn put(&mut self, waiting: Vec<Piece>, max_bytes: u64, runs_max: usize) -> Result<u64, MediumError> {
        let mut pieces = Vec::with_capacity(waiting.len());
        for piece in waiting {
            match check_not_given_up(&self.allocator, &piece.units()) {
                Ok(()) => pieces.push(piece),
                Err(error) => self.keep(&piece, error)?,
            }
        }
        pieces.sort_unstable_by_key(|piece| piece.at);
        // What follows in a run would position for itself. Of one run no more than was asked for: it is small for those who come
        // meanwhile.
        let whole = runs_max > 1 && self.medium.positions();
        let mut written = 0;
        for run in runs(&pieces).into_iter().take(runs_max) {
            let mut left = max_bytes.saturating_sub(written);
            let fits = run.iter().take_while(|piece| {
                let fits = piece.len() <= left;
                left = left.saturating_sub(piece.len());
                fits
            });
            let fits = fits.count().max(usize::from(written == 0));
            let count = if whole && written < max_bytes { run.len() } else { fits };
            written += self.put_run(&run[..count])?;
            if count < run.len() || self.refusals > 0 {
                break;
            }
        }
        Ok(written)
    }

    /// Writes neighbours and returns how many bytes they are. Where one of their places takes no writes, what belongs there is kept, and
    /// what comes behind it neither written nor counted.
    fn put_run(&mut self, run: &[Piece]) -> Result<u64, MediumError> {
        self.put_sums(run)?;
        let error = match self.write_run(run) {
            Err(error @ MediumError::Io { .. }) => error,
            written => return written.map(|()| run.iter().map(Piece::len).sum()),
        };
        for piece in run {
            if let Home::Granule { position, sum, .. } = piece.home {
                self.overlay.doubt(piece.segment, position, &piece.bytes, sum);
            }
        }
        if let [piece] = run {
            self.refuse(piece, error)?;
            return Ok(piece.len());
        }
        // One place of them may be bad, and is to cost the others nothing.
        let mut bytes = 0;
        for piece in run {
            bytes += self.put_run(std::slice::from_ref(piece))?;
            if self.refusals > 0 {
                break;
            }
        }
        Ok(bytes)
    }

    /// A place took no writes: it is left alone, and what belongs there is kept.
    ///
    /// # Errors
    /// This one, where there are too many such places, or checkpoints have no room for it.
    fn refuse(&mut self, piece: &Piece, error: MediumError) -> Result<(), MediumError> {
        let (device, segment, units) = (self.id(), piece.segment, piece.units());
        tracing::warn!(
            %device, %segment, ?units, %error,
            "a place takes no writes: what belongs there stays in the journal"
        );
        self.allocator.give_up(units);
        self.refusals += 1;
        self.keep(piece, error.clone())?;
        let too_many = self.refusals > REFUSALS_MAX || self.too_much_is_left_alone();
        if too_many { Err(error) } else { Ok(()) }
    }

    /// Puts the checksums of neighbours into their table, which is written later.
    fn put_sums(&mut self, run: &[Piece]) -> Result<(), MediumError> {
        let Some(Piece { home: Home::Granule { place, .. }, .. }) = run.first() else { return Ok(()) };
        let sum = |piece: &Piece| if let Home::Granule { sum, .. } = piece.home { Some(sum) } else { None };
        let sums: Vec<u32> = run.iter().filter_map(sum).collect();
        self.tables.change(&*self.medium, place.table, place.table_byte, &sums)
    }

    /// Writes neighbours by one operation.
    fn write_run(&mut self, run: &[Piece]) -> Result<(), MediumError> {
        let Some(first) = run.first() else { return Ok(()) };
        let mut slices = Vec::with_capacity(2 * run.len());
        for piece in run {
            slices.push(IoSlice::new(&piece.bytes));
            let filled = piece.len() as usize - piece.bytes.len();
            if filled > 0 {
                slices.push(IoSlice::new(&ZEROS[..filled]));
            }
        }
        self.medium.write_vectored_at(first.at, &slices)?;
        self.refusals = 0;
        for piece in run {
            match piece.home {
                Home::Granule { position, .. } => self.overlay.written(piece.segment, position),
                Home::Page(page) => self.appended.written(piece.segment, page),
            }
        }
        Ok(())
    }

    /// What belongs to a place that takes no writes stays in memory, and in checkpoints.
    ///
    /// # Errors
    /// The place's, which is given, where checkpoints have no room for it.
    fn keep(&mut self, piece: &Piece, error: MediumError) -> Result<(), MediumError> {
        match piece.home {
            Home::Granule { position, .. } => self.overlay.keep(piece.segment, position),
            Home::Page(page) => self.appended.keep(piece.segment, page),
        }
        let taken = self.index.full_bytes() + self.overlay.queued_bytes() + self.kept_bytes();
        if taken > checkpoint::body_max(&self.superblock) { Err(error) } else { Ok(()) }
    }

    /// Zeroes a reserve ahead of its log's head, by at most 512 KiB, so that no append has to. `false`: there is
    /// nothing to do. What finds no space is tried again behind the next record of the log, and pages that take no writes are not: nobody
    /// needs them yet, and the append that does goes to the journal.
    ///
    /// # Errors
    /// Where the medium fails in another way; the device only reads from then on.
    pub fn prepare_ahead(&mut self) -> Result<bool, DeviceError> {
        self.check_alive()?;
        let Some(segment) = self.logs_to_prepare.pop_first() else { return Ok(false) };
        let pages = self.logs.get(&segment).map_or(0..0, |ring| ring.ahead(PREPARE_PAGES));
        match self.prepare_reserve(segment, pages) {
            Err(MediumError::Full | MediumError::Io { .. }) => {}
            outcome => self.or_fail(outcome)?,
        }
        Ok(true)
    }

    /// Whether [`Device::prepare_ahead`] has something to do.
    pub fn has_to_prepare(&self) -> bool {
        !self.logs_to_prepare.is_empty()
    }

    pub(super) fn prepare_reserve(
        &mut self,
        segment: SegmentId,
        pages: Range<u64>,
    ) -> Result<(), MediumError> {
        if pages.is_empty() {
            return Ok(());
        }
        let reserve = self.index.get(segment).and_then(|e| e.updates.as_ref()).map(|u| u.reserve.start);
        let (Some(start), Some(ring)) = (reserve, self.logs.get_mut(&segment)) else { return Ok(()) };
        let units = start + pages.start..start + pages.end;
        check_not_given_up(&self.allocator, &units)?;
        let zeroed = self.medium.prepare(units.start * UNIT_BYTES..units.end * UNIT_BYTES);
        match &zeroed {
            Ok(()) => ring.was_prepared(&pages),
            Err(error @ MediumError::Io { .. }) => {
                self.leave_alone(units, error);
                self.fail_where_too_much_is_left_alone(error.clone());
            }
            Err(_) => {}
        }
        zeroed
    }
}
