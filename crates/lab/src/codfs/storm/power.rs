//! Nodes that lose power, at once or for a while, and what makes all of them whole again.

use super::{Counts, K, M, Progress, Storm, below, node::Disk, reader::SHAPE};
use anyhow::{Context, Result, anyhow};
use core::time::Duration;
use std::collections::BTreeSet;
use steadfast_protocol::{
    Epoch,
    chunks::Fence,
    message::NodeAnswer,
    read::Cause,
    serve::parity_log::{DataChunk, DataInput, Mode},
};

/// Steps for which a node stays away, most of the time and at most: beyond the patience of who waits for it.
const AWAY_STEPS_MAX: [u64; 2] = [300, 2000];
/// Between two looks at what waited for room, as with `steadfast_node`.
const TICK: Duration = Duration::from_millis(20);
/// Ticks after which nothing comes by itself where parity is overwritten in place: many times as long as room is waited for before a
/// segment is stored anew.
const TICKS_STUCK: u32 = 1000;

impl Storm {
    /// Some nodes lose power at once. Half of them have it again at once, too; the others stay away, as many as there is parity for.
    pub(super) fn power_loss(&mut self, counts: &mut Counts) -> Result<()> {
        counts.power_losses += 1;
        let up: Vec<usize> = (0..K + M).filter(|node| self.is_up(*node)).collect();
        let count = up.len() as u64;
        let first = below(&mut self.random, count) as usize;
        let victims: Vec<usize> = match below(&mut self.random, 4) {
            0 => up,
            1 => vec![up[first]],
            _ => {
                let second = first + 1 + below(&mut self.random, count - 1) as usize;
                vec![up[first], up[second % up.len()]]
            }
        };
        for &node in &victims {
            self.cut(node, counts)?;
        }
        for &node in &victims {
            self.miss(node, counts)?;
        }
        for &node in &victims {
            if self.back_at.len() < M && below(&mut self.random, 2) == 0 {
                counts.stayed_away += 1;
                let long = below(&mut self.random, 8) == 0;
                let steps = below(&mut self.random, AWAY_STEPS_MAX[usize::from(long)]);
                self.back_at.insert(node, self.steps + steps);
            } else {
                self.restore(node, counts)?;
            }
        }
        Ok(())
    }

    /// All, none or some of what was not flushed survives: a killed process, a careful disk, a torn one.
    fn cut(&mut self, node: usize, counts: &mut Counts) -> Result<()> {
        self.links.retain(|(from, to), _| *from != node && *to != node);
        let kept = below(&mut self.random, 4);
        *(if kept == 0 { &mut counts.nodes_killed } else { &mut counts.nodes_cut }) += 1;
        let random = &mut self.random;
        let survives = |_: usize, _: usize| match kept {
            0 => true,
            1 => false,
            _ => below(random, 2) == 0,
        };
        match node.checked_sub(K) {
            Some(number) => self.parity[number].crash(survives),
            None => self.data[node].crash(survives),
        }
        self.give_up(node, counts);
        self.reader_loses(node, counts)
    }

    /// The others find that a node is gone.
    fn miss(&mut self, node: usize, counts: &mut Counts) -> Result<()> {
        if let Some(number) = node.checked_sub(K) {
            let parity = number as u16;
            return (0..K).try_for_each(|chunk| self.input(chunk, DataInput::Lost { parity }, counts));
        }
        for number in 0..M {
            if self.is_up(K + number) {
                self.parity[number].closed(node as u16)?;
                self.run_parity(number, counts)?;
            }
        }
        Ok(())
    }

    /// A node has power again, and may lose it while it recovers.
    pub(super) fn restore(&mut self, node: usize, counts: &mut Counts) -> Result<()> {
        self.back_at.remove(&node);
        let again = below(&mut self.random, 4) == 0;
        counts.recoveries_cut += u64::from(again);
        let disk: &mut Disk = match node.checked_sub(K) {
            Some(number) => &mut self.parity[number].disk,
            None => &mut self.data[node].disk,
        };
        disk.reopen(again.then_some(&mut self.random))?;
        self.start(node, counts)
    }

    pub(super) fn start(&mut self, node: usize, counts: &mut Counts) -> Result<()> {
        if let Some(number) = node.checked_sub(K) {
            self.parity[number].start()?;
            for chunk in 0..K {
                if self.is_up(chunk) {
                    self.parity[number].opened(chunk as u16);
                    self.input(chunk, DataInput::Connected { parity: number as u16 }, counts)?;
                }
            }
            return Ok(());
        }
        let there: Vec<u16> = (0..M).filter(|number| self.is_up(K + number)).map(|it| it as u16).collect();
        there.iter().for_each(|parity| self.parity[usize::from(*parity)].opened(node as u16));
        self.data[node].start(self.now, node as u16, &there)?;
        self.run_data(node, counts)
    }

    /// Those whose time has come are back.
    pub(super) fn restore_due(&mut self, counts: &mut Counts) -> Result<()> {
        let steps = self.steps;
        let due: Vec<usize> =
            self.back_at.iter().filter(|(_, at)| **at <= steps).map(|(node, _)| *node).collect();
        due.into_iter().try_for_each(|node| self.restore(node, counts))
    }

    /// All are back, and everything that is on its way arrives; whether all is level then. Where parity is overwritten in place it may not
    /// be: what two nodes that died had sent to one parity node each may keep the other's from the room that it needs there.
    pub(super) fn calm_down(&mut self, counts: &mut Counts) -> Result<bool> {
        let away: Vec<usize> = self.back_at.keys().copied().collect();
        away.into_iter().try_for_each(|node| self.restore(node, counts))?;
        for tick in 0..100_000 {
            self.now = self.now + TICK;
            while let Some((from, to)) = self.links.keys().next().copied() {
                self.deliver(from, to, counts)?;
            }
            for node in 0..K + M {
                self.flush(node, counts)?;
            }
            for node in 0..K + M {
                self.tick(node, counts)?;
            }
            for node in self.asked() {
                self.answer(node, counts)?;
            }
            let flushed = (0..K + M).all(|node| !self.disk(node).is_dirty());
            let told = self.parity.iter().all(|node| node.done.is_empty());
            let answered = self.updates.iter().all(|update| update.progress != Progress::Sent);
            let quiet = self.links.is_empty() && self.reader.is_none() && flushed && told;
            if quiet && answered && self.level_chunks() == K {
                return Ok(true);
            }
            if self.reader.is_none() && tick >= TICKS_STUCK && self.is_stuck() {
                return Ok(false);
            }
        }
        let states: Vec<_> = self.data.iter().map(|node| &node.core).collect();
        Err(anyhow!("with all nodes up it never comes to rest: {states:?}"))
    }

    fn level_chunks(&self) -> usize {
        let level = |core: &DataChunk| core.is_idle() && core.is_serving();
        self.data.iter().filter(|node| node.core.as_ref().is_some_and(level)).count()
    }

    /// Whether chunks wait for each other: two at least, each on a parity node without room.
    fn is_stuck(&self) -> bool {
        let full = self.parity.iter().filter(|node| node.waits_for_room()).count();
        self.mode == Mode::InPlace && full > 1 && self.level_chunks() + 1 < K
    }

    /// The segment is stored anew from what is up, as whoever cannot change it in place does: no update is acknowledged any more under
    /// its epoch, and what is read then is all that was.
    pub(super) fn store_anew(&mut self, counts: &mut Counts) -> Result<()> {
        counts.stored_anew += 1;
        self.reader = None;
        let mut answers = Vec::new();
        for node in 0..K + M {
            answers.push(if self.is_up(node) {
                self.disk(node).fence(Epoch(2))?;
                Ok(NodeAnswer::Done)
            } else {
                Err(Cause::Unreachable("it is down".to_owned()))
            });
        }
        let fence = Fence::of(SHAPE, &answers).context("an update may still be acknowledged")?;
        let mut versions = Vec::new();
        for node in 0..K + M {
            let held = match node.checked_sub(K) {
                _ if !self.is_up(node) => None,
                Some(number) => Some(self.parity[number].versions()?),
                None => Some(self.data[node].versions()?),
            };
            versions.push(held);
        }
        let without: BTreeSet<usize> =
            fence.without(&versions, |_| false).into_iter().map(|chunk| chunk as usize).collect();
        let contents = self.read_at_rest(without, counts)?;
        for node in 0..K {
            self.give_up(node, counts);
        }
        (self.data, self.parity) = Self::stored(&self.code, self.mode, self.positions, &contents)?;
        (self.model, self.base) = (contents, vec![0; K]);
        self.updates.clear();
        self.links.clear();
        self.back_at.clear();
        (0..K + M).try_for_each(|node| self.start(node, counts))
    }
}
