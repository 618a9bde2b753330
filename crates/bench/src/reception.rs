//! Reception overhead: how many blocks beyond K a reader needs, by code and order of arrival; each draw is a new graph
//! and a new arrival.

use crate::arrival::{Arrival, STORED};
use anyhow::{Context, Result};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_codes::rateless::{Code, CodeError, Decoder, Kind, RankTracker};

/// One code, K and arrival.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Which code.
    pub kind: Kind,
    /// K: originals.
    pub k: u32,
    /// The order in which blocks come.
    pub arrival: Arrival,
}

/// What decoding and updates take, in block operations.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Blocks read by the sums of one decoding, as a share of K. What is resolved is among them, so it takes one XOR less.
    pub xors: f64,
    /// Blocks of the N stored that an update of one original touches, its own among them.
    pub update: f64,
}

impl Case {
    /// Its name in reports, for instance `mix-b K=1024 arrival=random`.
    pub fn name(self) -> String {
        format!("{} K={} arrival={}", kind_name(self.kind), self.k, self.arrival.name())
    }

    /// A new graph.
    ///
    /// # Errors
    /// When there is no such code.
    pub fn code(self, random: &mut Pcg64Mcg) -> Result<Code, CodeError> {
        loop {
            let seed = random.next_u64();
            // LT's graphs are checked when they are made (§5.2.3 (1)); mix's are not worth it.
            let made = if self.kind.is_mix() {
                Code::new(self.kind, self.k, seed)
            } else {
                Code::checked(self.kind, self.k, seed, STORED * self.k)
            };
            match made {
                Err(CodeError::Graph { .. }) => continue,
                other => return other,
            }
        }
    }

    /// The overhead of one draw, a share of K.
    ///
    /// # Errors
    /// When there is no such code, or all N blocks together do not decode.
    pub fn draw(self, random: &mut Pcg64Mcg) -> Result<f64, CodeError> {
        let code = self.code(random)?;
        let mut tracker = RankTracker::new(&code);
        let mut taken = 0;
        for index in self.arrival.draw(self.k, random) {
            tracker.push(index);
            taken += 1;
            if tracker.missing() == 0 {
                return Ok(f64::from(taken - self.k) / f64::from(self.k));
            }
        }
        Err(CodeError::Undecodable { k: self.k, n: taken, seeds: 1 })
    }

    /// Overheads of `draws` draws, ascending. Draw i is the same on any number of threads.
    ///
    /// # Errors
    /// As for [`Case::draw`].
    pub fn draws(self, draws: u32, seed: u64) -> Result<Vec<f64>> {
        let name = self.name();
        let case =
            name.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = |thread: usize| -> Result<Vec<f64>> {
            (0..draws)
                .skip(thread)
                .step_by(threads)
                .map(|draw| {
                    let seed = case ^ u64::from(draw).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    let overhead = self.draw(&mut Pcg64Mcg::seed_from_u64(seed));
                    overhead.with_context(|| format!("{name}, draw {draw}"))
                })
                .collect()
        };
        let mut all = Vec::with_capacity(draws as usize);
        std::thread::scope(|scope| -> Result<()> {
            let part = &part;
            let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || part(thread))).collect();
            for thread in threads {
                all.extend(thread.join().expect("a draw does not panic")?);
            }
            Ok(())
        })?;
        all.sort_unstable_by(f64::total_cmp);
        Ok(all)
    }

    /// The mean cost of `draws` decodings, on one graph each: what the decoder's program reads, and what it folded while
    /// the blocks came.
    ///
    /// # Errors
    /// As for [`Case::draw`].
    pub fn cost(self, draws: u32, seed: u64) -> Result<Cost> {
        let mut random = Pcg64Mcg::seed_from_u64(seed);
        let (mut reads, mut touched, mut originals) = (0.0, 0, 0);
        for _ in 0..draws.max(1) {
            let code = self.code(&mut random)?;
            let mut decoder = Decoder::new(&code, 1);
            for index in self.arrival.draw(self.k, &mut random) {
                decoder.push(index, vec![0])?;
                if decoder.missing() == 0 {
                    break;
                }
            }
            let (_, read, _) = decoder.cost().context("all blocks together do not decode")?;
            reads += read as f64 + decoder.folded() as f64;
            for original in (0..self.k).step_by((self.k / UPDATES).max(1) as usize) {
                touched += code.touched_by(original, 0..STORED * self.k).len();
                originals += 1;
            }
        }
        let per_block = f64::from(draws.max(1)) * f64::from(self.k);
        Ok(Cost { xors: reads / per_block, update: touched as f64 / f64::from(originals) })
    }
}

/// The name of a code in reports.
pub fn kind_name(kind: Kind) -> String {
    match kind {
        Kind::Lt { c, delta } => format!("lt C={c} delta={delta}"),
        Kind::MixA => "mix-a".to_owned(),
        Kind::MixC => "mix-c".to_owned(),
        Kind::Mix => "mix-b".to_owned(),
        Kind::Replicated => "replicated".to_owned(),
        Kind::ReedSolomon { data, parity } => format!("rs({},{data})", data + parity),
    }
}

/// Originals of each graph whose updates are counted.
const UPDATES: u32 = 8;
