//! The graph's rows by index: made in order by walking permutations, kept once made.
//!
//! Rows come in epochs, each with its own walk. The first epoch is [`FIRST_EPOCH`] K rows, more than the largest
//! redundancy a policy can ask for, and is made and kept piece by piece. Later epochs are short, so that any
//! index is reached in about K steps; only the last one used is kept. Invariant: a row depends on nothing but
//! the seed and its number.

use super::permutation::{Walk, below, generator};
use super::soliton::Soliton;
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

/// Rows of the first epoch, in K. The largest redundancy of a policy is 15, so N is at most 16 K; twice that.
const FIRST_EPOCH: u32 = 32;
/// The fewest rows made at once: so that the walk's state, kept with every piece, weighs little.
const PIECE_ROWS_MIN: u32 = 256;
const STREAM_WALK: u64 = 1;

/// How one row is drawn.
pub(crate) enum Drawing {
    /// `degree` originals, the degree from the distribution.
    Lt(Soliton),
    /// 2 or 3 originals and some parity columns.
    Repair(Repair),
}

/// How many columns a repair row of mix has.
#[derive(Clone, Copy)]
pub(crate) enum Repair {
    /// 2 originals and 1 or 2 parity columns (.6, .4).
    A,
    /// 2 or 3 originals (1/2, 1/2) and 4 parity columns in the first K/2 rows, 3 up to row K, then 1.
    ///
    /// findings §1 has 1, 2 or 3 (.4, .4, .2) for all rows, at the same cost of an update at N = 4 K. An original is
    /// found once a row that holds it is there, and rows are stored and read in order: those that are stored at any
    /// redundancy and arrive first had best hold the most.
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
        match self {
            Repair::A => [1, 1, 1, 2, 2][below(generator, 5) as usize],
            Repair::B if number < k / 2 => 4,
            Repair::B if number < k => 3,
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
    /// Where the classes of parity columns end.
    parity_ends: Vec<usize>,
    seed: u64,
    piece_rows: u32,
    first: Box<[OnceLock<Piece>]>,
    latest: RwLock<Option<(u32, Arc<Piece>)>>,
}

struct Piece {
    columns: Vec<u16>,
    ends: Vec<u32>,
    after: State,
}

#[derive(Clone)]
struct State {
    originals: Walk,
    parities: Walk,
    generator: Pcg64Mcg,
}

impl Rows {
    pub(crate) fn new(drawing: Drawing, originals: u32, parity_ends: &[usize], seed: u64) -> Self {
        let piece_rows = (originals / 4).max(PIECE_ROWS_MIN);
        let pieces = (FIRST_EPOCH * originals).div_ceil(piece_rows);
        let first = (0..pieces).map(|_| OnceLock::new()).collect();
        let parity_ends = parity_ends.to_vec();
        Self { drawing, originals, parity_ends, seed, piece_rows, first, latest: RwLock::new(None) }
    }

    /// Calls `f` with the columns of row `number`.
    pub(crate) fn with<R>(&self, number: u32, f: impl FnOnce(&[u16]) -> R) -> R {
        let (piece, place) = (number / self.piece_rows, (number % self.piece_rows) as usize);
        if (piece as usize) < self.first.len() {
            return f(self.first_epoch(piece as usize).row(place));
        }
        if let Some((kept, rows)) = &*self.latest.read().unwrap_or_else(PoisonError::into_inner)
            && *kept == piece
        {
            return f(rows.row(place));
        }
        let rows = Arc::new(self.make(number - place as u32, self.start(u64::from(piece))));
        *self.latest.write().unwrap_or_else(PoisonError::into_inner) = Some((piece, Arc::clone(&rows)));
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
            originals: Walk::new(self.originals),
            parities: Walk::of_classes(&self.parity_ends),
            generator: generator(self.seed, STREAM_WALK, epoch),
        }
    }

    /// The piece whose first row is `first`.
    fn make(&self, first: u32, mut state: State) -> Piece {
        let (mut columns, mut ends) = (Vec::new(), Vec::with_capacity(self.piece_rows as usize));
        for place in 0..self.piece_rows {
            let number = first.saturating_add(place);
            match &self.drawing {
                Drawing::Lt(soliton) => {
                    let degree = soliton.degree(state.generator.next_u32()) as usize;
                    state.originals.take(degree, 0, &mut state.generator, &mut columns);
                }
                Drawing::Repair(repair) => {
                    let originals = repair.originals(&mut state.generator);
                    let parities = repair.parities(number, self.originals, &mut state.generator);
                    state.originals.take(originals, 0, &mut state.generator, &mut columns);
                    let offset = self.originals as u16;
                    state.parities.take(parities, offset, &mut state.generator, &mut columns);
                }
            }
            ends.push(columns.len() as u32);
        }
        Piece { columns, ends, after: state }
    }
}

impl Piece {
    fn row(&self, place: usize) -> &[u16] {
        let start = place.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.columns[start as usize..self.ends[place] as usize]
    }
}
