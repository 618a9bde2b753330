//! The graph's rows by index: made in order by walking permutations, kept once made.
//!
//! Rows come in epochs, each with its own walk. The first epoch is [`FIRST_EPOCH`] K rows, more than the largest
//! redundancy a policy can ask for, and is made and kept piece by piece. Later epochs are short, so that any
//! index is reached in about K steps; only the last one used is kept. Invariant: a row depends on nothing but
//! the seed and its number.

use super::cover::Cover;
use super::mix::{CLASSES_FROM, Parities};
use super::permutation::{Walk, below, generator};
use super::soliton::Soliton;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Rows of the first epoch, in K. The largest redundancy of a policy is 15, so N is at most 16 K; twice that.
const FIRST_EPOCH: u32 = 32;
/// The fewest rows made at once: so that the walk's state, kept with every piece, weighs little.
const PIECE_ROWS_MIN: u32 = 256;
/// Pieces of later epochs that are kept: as many as a writer and a few readers are at.
const LATEST_PIECES: usize = 4;
/// Rows that complete each other, in K: those of N = 4 K. More are stored only where few disks hold them.
const COVERED: u32 = 3;
/// How far ahead in its permutation a row looks for the item that adds most.
const LOOK_AHEAD: usize = 64;
const STREAM_WALK: u64 = 1;

/// How one row is drawn.
pub(crate) enum Drawing {
    /// `degree` originals, the degree from the distribution.
    Lt(Soliton),
    /// 2 or 3 originals and some parity columns.
    Repair(Repair, Arc<Parities>),
}

/// How many columns a repair row of mix has.
#[derive(Clone, Copy)]
pub(crate) enum Repair {
    /// 2 originals and 1 or 2 parity columns (.6, .4).
    A,
    /// 2 or 3 originals (1/2, 1/2) and 3 or 4 parity columns in the first K rows, then 1.
    ///
    /// findings §1 has 1, 2 or 3 (.4, .4, .2) for all rows, at the same cost of an update at N = 4 K. An original is
    /// found once a row that holds it is there, and rows are stored and read in order: those that are stored at any
    /// redundancy and arrive first had best hold the most. The numbers follow a fixed pattern, so that no column is
    /// drawn more than 22 times up to row 3 K and no update touches more than 75 of N = 4 K blocks; odd and even
    /// ones are mixed, since rows that hold an even number of one class's columns do not see a change of all of
    /// them. Below [`CLASSES_FROM`] each has one column more: on 64 unequal disks K = 128 then needs 0.44 instead of
    /// 0.50 %, and an update touches up to 87 blocks.
    B,
    /// 2 or 3 originals (1/2, 1/2) and 1 parity column (.2) or 2 to 12, drawn with weights 1/(d (d - 1)).
    C,
}

impl Repair {
    fn originals(self, generator: &mut Pcg64Mcg) -> usize {
        match self {
            Repair::A => 2,
            Repair::B | Repair::C => 2 + below(generator, 2) as usize,
        }
    }

    /// For row `number` of a code of `k`.
    fn parities(self, number: u32, k: u32, generator: &mut Pcg64Mcg) -> usize {
        let small = usize::from(k < CLASSES_FROM);
        match self {
            Repair::A => [1, 1, 1, 2, 2][below(generator, 5) as usize],
            Repair::B if number < k => [3, 4, 3, 4, 3, 4, 3][number as usize % 7] + small,
            Repair::B => 1,
            Repair::C if below(generator, 5) == 0 => 1,
            Repair::C => {
                // The weights of 2..=d add up to 1 - 1/d; in units of 1/27720, the least common multiple up to 12.
                let draw = below(generator, 27_720 / 12 * 11);
                (2..12).find(|d| draw < 27_720 - 27_720 / d).unwrap_or(12) as usize
            }
        }
    }
}

/// Every row of a code, each a list of distinct columns.
pub(crate) struct Rows {
    drawing: Drawing,
    originals: u32,
    /// The classes of parity columns; one where there are none.
    classes: Vec<Range<usize>>,
    seed: u64,
    piece_rows: u32,
    first: Box<[OnceLock<Piece>]>,
    /// The last made of later epochs, the newest at the end.
    latest: RwLock<VecDeque<(u32, Arc<Piece>)>>,
    /// What the first so many rows hold, for the piece that goes on from there.
    covered: RwLock<Option<(u32, Cover)>>,
}

struct Piece {
    columns: Vec<u16>,
    ends: Vec<u32>,
    after: State,
}

#[derive(Clone)]
struct State {
    originals: Walk,
    /// One for each class.
    parities: Vec<Walk>,
    generator: Pcg64Mcg,
}

impl Rows {
    pub(crate) fn new(drawing: Drawing, originals: u32, parity_ends: &[usize], seed: u64) -> Self {
        let piece_rows = (originals / 4).max(PIECE_ROWS_MIN);
        let pieces = (FIRST_EPOCH * originals).div_ceil(piece_rows);
        let first = (0..pieces).map(|_| OnceLock::new()).collect();
        let starts = std::iter::once(0).chain(parity_ends.iter().copied());
        let classes = starts.zip(parity_ends).map(|(start, end)| start..*end).collect();
        let (latest, covered) = Default::default();
        Self { drawing, originals, classes, seed, piece_rows, first, latest, covered }
    }

    /// Calls `f` with the columns of row `number`.
    pub(crate) fn with<R>(&self, number: u32, f: impl FnOnce(&[u16]) -> R) -> R {
        let (piece, place) = (number / self.piece_rows, (number % self.piece_rows) as usize);
        if (piece as usize) < self.first.len() {
            return f(self.first_epoch(piece as usize).row(place));
        }
        let latest = self.latest.read().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, rows)) = latest.iter().rev().find(|(kept, _)| *kept == piece) {
            return f(rows.row(place));
        }
        drop(latest);
        let rows = Arc::new(self.make(number - place as u32, self.start(u64::from(piece))));
        let mut latest = self.latest.write().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have made it meanwhile.
        if latest.iter().all(|(kept, _)| *kept != piece) {
            if latest.len() == LATEST_PIECES {
                latest.pop_front();
            }
            latest.push_back((piece, Arc::clone(&rows)));
        }
        drop(latest);
        f(rows.row(place))
    }

    fn first_epoch(&self, piece: usize) -> &Piece {
        if let Some(made) = self.first[piece].get() {
            return made;
        }
        let made = self.first[..piece].iter().rposition(|slot| slot.get().is_some());
        for next in made.map_or(0, |last| last + 1)..=piece {
            self.first[next].get_or_init(|| {
                let state = match next.checked_sub(1).and_then(|before| self.first[before].get()) {
                    Some(before) => before.after.clone(),
                    None => self.start(0),
                };
                self.make(next as u32 * self.piece_rows, state)
            });
        }
        self.first[piece].get().expect("the loop above made every piece up to this one")
    }

    fn start(&self, epoch: u64) -> State {
        State {
            originals: Walk::new(self.originals as usize),
            parities: self.classes.iter().map(|class| Walk::new(class.len())).collect(),
            generator: generator(self.seed, STREAM_WALK, epoch),
        }
    }

    /// The class of parity columns that row `number` takes its own from.
    ///
    /// What one disk holds, and an unequal one sends all or nearly nothing of, are rows that follow one another or
    /// lie a fixed stride apart. They had best hold as many originals as they can: so they are of one class, whose
    /// columns have no original in common, and [`Cover`] names the ones that add most. Every K/2 rows the classes
    /// change places: with a disk's rows all of one class, the few fast disks of a draw bring many rows of
    /// one class and hardly any of another, and 0.4 % of the draws needed more than 5 %.
    fn class_of(&self, number: u32) -> usize {
        let (classes, round) = (self.classes.len() as u32, self.round());
        ((number % round * classes / round + number / self.stage()) % classes) as usize
    }

    /// Rows after which the classes change places.
    fn stage(&self) -> u32 {
        (self.originals / 2).max(1)
    }

    /// Rows that use every column once when they have four each: K/16, which is also the stride at which 64 disks
    /// hold 1024 originals dealt one by one.
    fn round(&self) -> u32 {
        let columns = self.classes.last().map_or(0, |class| class.end);
        (columns as u32 / 4).max(4)
    }

    /// What the rows before `first`, the start of a piece, hold; None where rows are as they come.
    fn cover(&self, first: u32) -> Option<Cover> {
        let Drawing::Repair(_, parities) = &self.drawing else { return None };
        if self.classes.len() == 1 || first >= COVERED * self.originals {
            return None;
        }
        // Pieces are mostly made one after the other.
        let kept = self.covered.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some((_, cover)) = kept.filter(|(rows, _)| *rows == first) {
            return Some(cover);
        }
        let mut cover = Cover::new(self.originals, Arc::clone(parities));
        for number in 0..first {
            let piece = self.first[(number / self.piece_rows) as usize].get();
            let piece = piece.expect("pieces of the first epoch are made in order");
            let row = piece.row((number % self.piece_rows) as usize);
            let groups = cover.groups_of(number);
            row.iter().for_each(|column| cover.add(groups, *column));
        }
        Some(cover)
    }

    /// The piece whose first row is `first`.
    fn make(&self, first: u32, mut state: State) -> Piece {
        let (mut columns, mut ends) = (Vec::new(), Vec::with_capacity(self.piece_rows as usize));
        let mut cover = self.cover(first);
        for place in 0..self.piece_rows {
            let number = first.saturating_add(place);
            match &self.drawing {
                Drawing::Lt(soliton) => {
                    let degree = soliton.degree(state.generator.next_u32()) as usize;
                    state.originals.take(degree, 0, &mut state.generator, &mut columns);
                }
                Drawing::Repair(repair, _) => {
                    let originals = repair.originals(&mut state.generator);
                    let parities = repair.parities(number, self.originals, &mut state.generator);
                    let class = self.class_of(number);
                    let offset = (self.originals as usize + self.classes[class].start) as u16;
                    let State { originals: own, parities: walks, generator } = &mut state;
                    let walk = &mut walks[class];
                    if let Some(cover) = cover.as_mut().filter(|_| number < COVERED * self.originals) {
                        // Columns first: the row's own originals fill in what no column of the class adds.
                        let kinds = [(walk, parities, offset, u16::MAX), (own, originals, 0, 2)];
                        for (walk, count, offset, most) in kinds {
                            let (start, groups) = (columns.len(), cover.groups_of(number));
                            for _ in 0..count {
                                let row = &columns[start..];
                                let gain = cover.gain(groups);
                                let column = walk.take_best(LOOK_AHEAD, offset, row, generator, most, gain);
                                cover.add(groups, column);
                                columns.push(column);
                            }
                        }
                    } else {
                        own.take(originals, 0, generator, &mut columns);
                        walk.take(parities, offset, generator, &mut columns);
                    }
                }
            }
            ends.push(columns.len() as u32);
        }
        let next = first.saturating_add(self.piece_rows);
        if let Some(cover) = cover.filter(|_| next < COVERED * self.originals) {
            *self.covered.write().unwrap_or_else(PoisonError::into_inner) = Some((next, cover));
        }
        Piece { columns, ends, after: state }
    }
}

impl Piece {
    fn row(&self, place: usize) -> &[u16] {
        row_at(&self.columns, &self.ends, place)
    }
}

fn row_at<'a>(columns: &'a [u16], ends: &[u32], place: usize) -> &'a [u16] {
    let start = place.checked_sub(1).map_or(0, |before| ends[before]);
    &columns[start as usize..ends[place] as usize]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K = 1024 and 512, S about K/4 in three classes, as mix has them.
    fn shapes() -> impl Iterator<Item = (u32, Rows)> {
        [1024u32, 512].into_iter().flat_map(|k| {
            (0..4).map(move |seed| {
                let parities = Arc::new(Parities::new(k, k / 4, seed).expect("the deal succeeds"));
                let ends = parities.class_ends().to_vec();
                (k, Rows::new(Drawing::Repair(Repair::B, parities), k, &ends, seed))
            })
        })
    }

    fn parities(rows: &Rows, k: u32, number: u32) -> Vec<usize> {
        let columns = |row: &[u16]| row.iter().map(|column| usize::from(*column)).collect::<Vec<_>>();
        let row = rows.with(number, columns);
        row.into_iter().filter_map(|column| column.checked_sub(k as usize)).collect()
    }

    #[test]
    fn a_rows_parity_columns_are_of_one_class() {
        for (k, rows) in shapes() {
            for number in 0..3 * k {
                let columns = parities(&rows, k, number);
                let within = |class: &Range<usize>| columns.iter().all(|column| class.contains(column));
                assert!(rows.classes.iter().any(within), "K = {k}, row {number}: {columns:?}");
            }
        }
    }

    /// What makes any one disk's rows hold as many originals as they can.
    #[test]
    fn rows_of_one_disk_seldom_share_a_column() {
        let twice = |mut columns: Vec<usize>| {
            let all = columns.len();
            columns.sort_unstable();
            columns.dedup();
            all - columns.len()
        };
        for (k, rows) in shapes() {
            let (mut strided, mut runs) = (0, 0);
            for residue in 0..k / 16 {
                let stride = (0..k / 2).skip(residue as usize).step_by(k as usize / 16);
                strided += twice(stride.flat_map(|number| parities(&rows, k, number)).collect());
            }
            for run in 0..k / 32 {
                let run = run * 16..(run + 1) * 16;
                runs += twice(run.flat_map(|number| parities(&rows, k, number)).collect());
            }
            // Of 2 K columns drawn in each. Drawn freely from the class, about K/3 of a stride would come twice.
            assert!(strided < k as usize / 8, "K = {k}: {strided} columns come twice in strides");
            assert!(runs < k as usize / 3, "K = {k}: {runs} columns come twice in runs");
        }
    }

    #[test]
    fn a_row_is_the_same_in_whatever_order_rows_are_made() {
        let [(k, ahead), (_, back)] = [0, 1].map(|_| shapes().next().expect("there are shapes"));
        let far = [7, 40 * k, 3 * k, u32::MAX, 500, 40 * k + 1];
        let first = far.map(|number| parities(&ahead, k, number));
        let second = {
            let mut far = far;
            far.reverse();
            far.map(|number| parities(&back, k, number))
        };
        assert!(first.iter().eq(second.iter().rev()));
    }
}
