//! When blocks will be here, by the pace and the delay seen of each device. Plain arithmetic in seconds from now.
//!
//! A device first sends what it was granted: the first of those blocks needs `first_bytes` more, each other a whole
//! block. What it is granted now follows, `fresh_s` from now at the earliest. So every block that could be had has an
//! expected arrival, and the n-th soonest of them all is the soonest that n blocks can be there: the any-K ideal of
//! what is seen, from now on. Who should be asked for how much follows from it: those blocks that arrive by then.

/// One device, as seen now.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Outlook {
    /// Bytes per second; positive.
    pub(super) pace: f64,
    /// Seconds until the next granted byte flows; negative for the time that it has been flowing unseen.
    pub(super) lead_s: f64,
    /// Blocks granted and still to come.
    pub(super) granted: u32,
    /// Bytes that the first of them still needs.
    pub(super) first_bytes: f64,
    /// Seconds until the first byte of what would be granted now.
    pub(super) fresh_s: f64,
    /// Blocks that could be granted beyond those.
    pub(super) fresh: u32,
    /// Bytes in each block.
    pub(super) block_bytes: f64,
    /// By how much it may be faster than `pace`, which few arrivals tell: a factor from 1.
    pub(super) doubt: f64,
}

impl Outlook {
    /// Granted blocks that will be here within `seconds`.
    pub(super) fn granted_by(&self, seconds: f64) -> u32 {
        whole((self.pace * (seconds - self.lead_s) - self.first_bytes) / self.block_bytes + 1.0, self.granted)
    }

    /// Granted blocks that may have been sent within `seconds`, as far as its pace is in doubt.
    pub(super) fn sent_by(&self, seconds: f64) -> u32 {
        Outlook { pace: self.pace * self.doubt, ..*self }.granted_by(seconds)
    }

    /// Granted blocks, and such as were granted now, that would be here within `seconds`.
    pub(super) fn by(&self, seconds: f64) -> u32 {
        self.granted_by(seconds) + whole(self.pace * (seconds - self.fresh_s) / self.block_bytes, self.fresh)
    }

    /// Seconds until the last granted block.
    pub(super) fn drained_s(&self) -> f64 {
        let bytes = self.first_bytes + f64::from(self.granted.saturating_sub(1)) * self.block_bytes;
        if self.granted == 0 { 0.0 } else { self.lead_s + bytes / self.pace }
    }

    /// Seconds until the first block that would be granted now.
    pub(super) fn next_fresh_s(&self) -> f64 {
        self.fresh_s + self.block_bytes / self.pace
    }
}

/// Whole blocks, at most `most`. The billionth keeps a block whose time has come from missing it by a rounding error.
fn whole(blocks: f64, most: u32) -> u32 {
    if blocks <= 0.0 { 0 } else { most.min((blocks + 1e-9) as u32) }
}

/// Seconds until `blocks` blocks will be here, counting for each device what `count` says; none when they never will.
pub(super) fn arrival_of(
    outlooks: &[Outlook],
    blocks: u32,
    count: impl Fn(&Outlook, f64) -> u32,
) -> Option<f64> {
    let enough =
        |seconds| outlooks.iter().map(|one| u64::from(count(one, seconds))).sum::<u64>() >= u64::from(blocks);
    let pace: f64 = outlooks.iter().map(|one| one.pace).sum();
    let block_bytes = outlooks.first()?.block_bytes;
    let mut late = f64::from(blocks.max(1)) * block_bytes / pace;
    let mut doublings = 0;
    while !enough(late) {
        late *= 2.0;
        doublings += 1;
        if doublings > 48 {
            return None;
        }
    }
    let mut early = if doublings > 0 { late / 2.0 } else { 0.0 };
    // To a thousandth of itself: paces are not known better.
    while late - early > late * 1e-3 {
        let middle = f64::midpoint(early, late);
        if enough(middle) { late = middle } else { early = middle }
    }
    Some(late)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(pace: f64, granted: u32) -> Outlook {
        let (lead_s, first_bytes, fresh_s, fresh, block_bytes) = (0.0, 1.0, 0.0, 100, 1.0);
        Outlook { pace, lead_s, granted, first_bytes, fresh_s, fresh, block_bytes, doubt: 1.0 }
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
        slow.first_bytes = 0.5;
        assert_eq!(slow.granted_by(1.05), 1);
    }
}
