//! When blocks will be here, by the pace and the delay seen of each device. Plain arithmetic in blocks and in seconds from now.
//!
//! A device first sends what it was granted: of the first of those blocks it still owes a part, of each other the
//! whole. What it is granted now follows, `fresh_s` from now at the earliest. So every block that could be had has an
//! expected arrival, and the n-th soonest of them all is the soonest that n blocks can be there: the any-K ideal of
//! what is seen, from now on. Who should be asked for how much follows from it: those blocks that arrive by then.

/// One device, as seen now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Outlook {
    /// Blocks per second; positive.
    pub(super) pace: f64,
    /// Seconds until the next granted byte flows; negative for the time that it has been flowing unseen.
    pub(super) lead_s: f64,
    /// Blocks granted and still to come.
    pub(super) granted: u32,
    /// What the first of them still needs, as a share of a block.
    pub(super) first: f64,
    /// Seconds from a grant to a dry device until its first byte flows.
    pub(super) delay_s: f64,
    /// Seconds until the first byte of what would be granted now.
    pub(super) fresh_s: f64,
    /// Blocks that could be granted beyond those ...
    pub(super) fresh: u32,
    /// ... of which the first are originals.
    pub(super) fresh_originals: u32,
    /// By how much it may be faster than `pace`, which few arrivals tell: a factor from 1.
    pub(super) doubt: f64,
}

impl Outlook {
    /// Granted blocks that will be here within `seconds`.
    pub(super) fn granted_by(&self, seconds: f64) -> u32 {
        whole(self.pace * (seconds - self.lead_s) - self.first + 1.0, self.granted)
    }

    /// Granted blocks that may have been sent within `seconds`, as far as its pace is in doubt.
    pub(super) fn sent_by(&self, seconds: f64) -> u32 {
        Outlook { pace: self.pace * self.doubt, ..*self }.granted_by(seconds)
    }

    /// Granted blocks, and such as were granted now, that would be here within `seconds`.
    pub(super) fn by(&self, seconds: f64) -> u32 {
        self.granted_by(seconds) + whole(self.pace * (seconds - self.fresh_s), self.fresh)
    }

    /// The same with nothing granted now but originals.
    pub(super) fn originals_by(&self, seconds: f64) -> u32 {
        self.of_originals().by(seconds)
    }

    /// As if it had no other blocks to be granted.
    pub(super) fn of_originals(&self) -> Outlook {
        Outlook { fresh: self.fresh_originals, ..*self }
    }

    /// Seconds until the last granted block.
    pub(super) fn drained_s(&self) -> f64 {
        let blocks = self.first + f64::from(self.granted.saturating_sub(1));
        if self.granted == 0 { 0.0 } else { self.lead_s + blocks / self.pace }
    }

    /// Seconds until the first block that would be granted now.
    pub(super) fn next_fresh_s(&self) -> f64 {
        self.fresh_s + 1.0 / self.pace
    }
}

/// Whole blocks, at most `most`. The billionth keeps a block whose time has come from missing it by a rounding error.
pub(super) fn whole(blocks: f64, most: u32) -> u32 {
    if blocks <= 0.0 { 0 } else { most.min((blocks + 1e-9) as u32) }
}

/// Seconds until `blocks` blocks will be here, counting for each device what `count` says; none when they never will.
pub(super) fn arrival_of(
    outlooks: &[Outlook],
    blocks: u32,
    count: impl Fn(&Outlook, f64) -> u32,
) -> Option<f64> {
    let wanted = f64::from(blocks);
    // More of them than 2^32 would be more than there are indices.
    let count = |seconds| f64::from(outlooks.iter().map(|one| count(one, seconds)).sum::<u32>());
    let pace: f64 = outlooks.iter().map(|one| one.pace).sum();
    let (mut early, mut early_count) = (0.0, 0.0);
    let mut late = wanted.max(1.0) / pace;
    let mut late_count = count(late);
    let mut doublings = 0;
    while late_count < wanted {
        (early, early_count) = (late, late_count);
        late *= 2.0;
        late_count = count(late);
        doublings += 1;
        if doublings > 48 {
            return None;
        }
    }
    // To a thousandth of itself: paces are not known better. Between the two, blocks come nearly evenly: where they would
    // be enough if they did, just beside it, is asked first; the middle, where that did not halve what is in doubt.
    let mut halve = false;
    while late - early > late * 1e-3 {
        let doubt = late - early;
        let margin = late * 0.5e-3;
        let even = early + doubt * (wanted - early_count) / (late_count - early_count);
        let even = if even - early < late - even { even + margin } else { even - margin };
        let probe =
            if halve { f64::midpoint(early, late) } else { even.clamp(early + margin, late - margin) };
        let there = count(probe);
        if there >= wanted {
            (late, late_count) = (probe, there);
        } else {
            (early, early_count) = (probe, there);
        }
        halve = late - early > doubt / 2.0;
    }
    Some(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(pace: f64, granted: u32) -> Outlook {
        let (lead_s, first, delay_s, fresh_s, fresh, fresh_originals, doubt) =
            (0.0, 1.0, 0.0, 0.0, 100, 40, 1.0);
        Outlook { pace, lead_s, granted, first, delay_s, fresh_s, fresh, fresh_originals, doubt }
    }

    #[test]
    fn equal_devices_share_and_unequal_ones_finish_together() {
        let nothing = [device(10.0, 0); 4];
        // 20 blocks at 40 a second; whole blocks of a tenth of a second each.
        assert!((arrival_of(&nothing, 20, Outlook::by).unwrap() - 0.5).abs() < 0.002);
        let unequal = [device(30.0, 0), device(10.0, 0), device(0.1, 0)];
        let at = arrival_of(&unequal, 40, Outlook::by).unwrap();
        assert!((at - 1.0).abs() < 0.002);
        assert_eq!(unequal.map(|one| one.by(at)), [30, 10, 0]);
        assert_eq!(arrival_of(&unequal, 301, Outlook::by), None);
        // Forty each of them are originals: of the third they come last.
        assert_eq!(arrival_of(&unequal, 121, Outlook::originals_by), None);
        let at = arrival_of(&unequal, 80, Outlook::originals_by).unwrap();
        assert!((at - 4.0).abs() < 0.004, "{at}");
    }

    #[test]
    fn what_was_granted_comes_first_and_silence_puts_it_off() {
        let mut slow = device(10.0, 3);
        slow.fresh_s = slow.drained_s();
        assert!((slow.drained_s() - 0.3).abs() < 1e-9);
        assert_eq!((slow.granted_by(0.25), slow.granted_by(9.0), slow.by(0.5)), (2, 3, 5));
        slow.lead_s = 1.0;
        assert_eq!((slow.granted_by(1.05), slow.granted_by(1.1)), (0, 1));
        // Half of the first block is there.
        slow.first = 0.5;
        assert_eq!(slow.granted_by(1.05), 1);
    }
}
