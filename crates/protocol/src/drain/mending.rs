//! When a storage server looks for degraded segments without being asked, and whether it completes them itself.
//!
//! Every server looks now and then, and those that are alive take turns: two at once would be no harm, as of two changes of one version
//! one wins, but twice the work; and one that does not work holds nobody up for long. Nobody says that it is at it, so a turn ends with
//! its time, whatever is left: the next server goes on with that. As long as nothing can be completed looks become rare.
//!
//! ```text
//!   turn 7, server A                 turn 8, server B                 turn 9, server C
//!   ├─ looks, completes ──┬─ ends ───├─ looks, completes ──┬─ ends ───├─
//!                         └ begins nothing more: what it has begun is there before B looks
//! ```

use crate::{NodeId, message::Registry};
use core::time::Duration;

/// Where nothing could be completed so many looks are left out at the most, twice as many each time: at ten seconds each a few
/// minutes.
const LEFT_OUT_MAX: u32 = 16;
/// The part of a turn in which nothing more is begun: at ten seconds each 2.5 s for a segment. Picked by eye. Where that, or the
/// difference of two clocks, is longer, two are at it for a while.
const ENDING_PART: u128 = 4;

/// What came of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looked {
    /// It is another server's turn.
    Others,
    /// Nothing is degraded, or something was completed.
    Well,
    /// Nothing could be completed, and there was no time for all.
    More,
    /// Nothing could be completed.
    InVain,
}

/// A server's turn, as long as the time from one look to the next. All servers count them from the same moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Those before it.
    pub number: u64,
    /// Until the next one begins.
    pub left: Duration,
    /// For how long whose turn it is begins with something.
    pub begins: Duration,
}

impl Turn {
    /// The turn of a moment, so long after the one from which they are counted, where each has this length.
    pub fn at(since: Duration, length: Duration) -> Self {
        let (since, length) = (since.as_nanos(), length.as_nanos().max(1));
        let (number, gone) = (since / length, since % length);
        let span = |nanos: u128| Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        Self {
            number: u64::try_from(number).unwrap_or(u64::MAX),
            left: span(length - gone),
            begins: span((length - length / ENDING_PART).saturating_sub(gone)),
        }
    }
}

/// The looks of one server.
#[derive(Clone, Debug, Default)]
pub struct Mending {
    /// Looks to be left out from now on.
    left_out: u32,
    /// Looks left out after the last that was in vain.
    in_vain: u32,
}

impl Mending {
    /// A period has passed: whether to look now.
    pub fn looks(&mut self) -> bool {
        let looks = self.left_out == 0;
        self.left_out = self.left_out.saturating_sub(1);
        looks
    }

    /// Whether it is the turn of server `own`, where turns are counted.
    pub fn is_turn(registry: &Registry, own: NodeId, turn: u64) -> bool {
        let alive = registry.nodes.iter().filter(|node| node.alive);
        let mut alive: Vec<NodeId> = alive.map(|node| node.record.node).collect();
        alive.sort_unstable();
        let whose = turn.checked_rem(alive.len() as u64);
        whose.is_some_and(|whose| alive[whose as usize] == own)
    }

    /// Takes what came of a look.
    pub fn looked(&mut self, looked: Looked) {
        match looked {
            // Whether it was in vain is told by who comes to the end of what there is.
            Looked::Others | Looked::More => {}
            Looked::Well => self.in_vain = 0,
            Looked::InVain => {
                self.in_vain = (2 * self.in_vain).clamp(1, LEFT_OUT_MAX);
                self.left_out = self.in_vain;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan;

    #[test]
    fn servers_that_are_alive_take_turns() {
        let mut registry = plan::tests::registry(4, 1);
        let nodes: Vec<NodeId> = registry.nodes.iter().map(|node| node.record.node).collect();
        registry.nodes.iter_mut().for_each(|node| node.alive = node.record.node != nodes[2]);
        let whose = |turn| -> Vec<NodeId> {
            nodes.iter().copied().filter(|&node| Mending::is_turn(&registry, node, turn)).collect()
        };
        for turn in 0..30 {
            assert_eq!(whose(turn).len(), 1, "one at a time");
            assert_ne!(whose(turn), [nodes[2]]);
            assert_eq!(whose(turn), whose(turn + 3));
            assert_ne!(whose(turn), whose(turn + 1));
        }
        registry.nodes.iter_mut().for_each(|node| node.alive = false);
        assert!(!Mending::is_turn(&registry, nodes[0], 0));
    }

    #[test]
    fn a_turn_begins_nothing_more_before_the_next_one() {
        let at = |ms: u64| {
            let Turn { number, left, begins } = Turn::at(Duration::from_millis(ms), Duration::from_secs(10));
            (number, left.as_millis(), begins.as_millis())
        };
        assert_eq!(at(0), (0, 10_000, 7500));
        assert_eq!(at(30_000), (3, 10_000, 7500));
        assert_eq!(at(37_400), (3, 2600, 100));
        assert_eq!([at(37_500), at(39_999)], [(3, 2500, 0), (3, 1, 0)]);
        assert_eq!(at(40_000), (4, 10_000, 7500));
    }

    #[test]
    fn looks_become_rare_while_they_are_in_vain_and_no_rarer_than_that() {
        let mut mending = Mending::default();
        let mut periods = |looked| {
            let mut passed = 1;
            while !mending.looks() {
                passed += 1;
            }
            mending.looked(looked);
            passed
        };
        assert_eq!([(); 3].map(|()| periods(Looked::Well)), [1; 3]);
        assert_eq!([(); 8].map(|()| periods(Looked::InVain)), [1, 2, 3, 5, 9, 17, 17, 17]);
        // Another's turn says nothing.
        assert_eq!([(); 3].map(|()| periods(Looked::Others)), [17, 1, 1]);
        assert_eq!(
            [Looked::InVain, Looked::Well, Looked::InVain, Looked::Well].map(&mut periods),
            [1, 17, 1, 2]
        );
        // Nor does a turn that ended before all were tried.
        assert_eq!([Looked::InVain, Looked::More, Looked::InVain, Looked::More].map(periods), [1, 2, 1, 3]);
    }
}
