//! How late a chunk must be before parity is asked for in its place: learned from how often that was for nothing.
//!
//! By pace alone a device is late that pauses for longer than a decode would take. Where many share a processor or a disk all pause in
//! turn, and what stands in comes beside what it stood in for. So each read says how many of the blocks that were asked for because
//! others were late came before those: where they seldom do, more is waited for, where they do, less again. A device that is slow
//! indeed teaches nothing but haste.

use super::ReadDone;

/// Times a decode's time that are waited for at least: once would begin one for ordinary jitter, where all is fast.
pub(super) const LATE_FACTOR: u32 = 2;
/// And at most. Picked by eye: a device that has stopped costs this many decodes of one segment, and half as many of the next.
const LATE_FACTOR_MAX: u32 = 16;

/// What reads of chunks have learned; of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caution {
    factor: u32,
}

impl Default for Caution {
    fn default() -> Self {
        Self { factor: LATE_FACTOR }
    }
}

impl Caution {
    /// How many times the time of a decode a device may keep the next read waiting ([`super::ReadPlan::late_factor`]).
    pub fn factor(&self) -> u32 {
        self.factor
    }

    /// A read has ended so.
    pub fn learn(&mut self, read: &ReadDone) {
        if read.extra_blocks == 0 {
            return;
        }
        let won = 2 * u64::from(read.extra_won) >= u64::from(read.extra_blocks);
        let factor = if won { self.factor / 2 } else { self.factor * 2 };
        self.factor = factor.clamp(LATE_FACTOR, LATE_FACTOR_MAX);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_for_nothing_makes_it_wait_and_what_was_not_makes_it_hurry() {
        let read = |extra_blocks, extra_won| ReadDone { extra_blocks, extra_won, ..ReadDone::default() };
        let mut caution = Caution::default();
        let mut after = |read| {
            caution.learn(&read);
            caution.factor()
        };
        let heard = [
            (0, 0),
            (16, 7),
            (16, 8),
            (16, 0),
            (16, 0),
            (0, 0),
            (4, 1),
            (4, 0),
            (4, 4),
            (1, 1),
            (1, 1),
            (9, 9),
        ];
        let factors = [2, 4, 2, 4, 8, 8, 16, 16, 8, 4, 2, 2];
        assert_eq!(heard.map(|(extra, won)| after(read(extra, won))), factors);
    }
}
