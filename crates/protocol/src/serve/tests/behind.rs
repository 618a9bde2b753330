//! Two logs that are full of what waits for the other: several data chunks and two parity chunks, whose messages are late as they like.

use super::super::parity_log::*;
use super::rng;
use crate::{Epoch, Time};
use core::time::Duration;
use rand_core::Rng;
use std::collections::VecDeque;

const DATA: usize = 3;
const LOGS: usize = 2;
/// Of every record: two pages with its head.
const BYTES: u32 = 4096;
const LOGGED: u64 = 8192;
/// Records of one chunk that may be uncommitted.
const WINDOW: u64 = 2;
const RESERVE: u64 = 2 * DATA as u64 * WINDOW * LOGGED;
const UPDATES: u64 = 40;

/// A message between a data chunk's node and a parity chunk's.
#[derive(Clone, Copy)]
enum Message {
    Difference { version: u64, committed: u64 },
    Committed { through: u64 },
    Acked { through: u64 },
}

/// A data chunk whose every update is durable at home at once.
#[derive(Default)]
struct Chunk {
    staged: u64,
    acked: [u64; LOGS],
    committed: u64,
}

struct World {
    chunks: [Chunk; DATA],
    logs: [ParityChunk; LOGS],
    /// Answers of each log's device, in order.
    answers: [VecDeque<ParityInput>; LOGS],
    merging: [bool; LOGS],
    /// To logs, and back, by data chunk and log.
    to: [[VecDeque<Message>; LOGS]; DATA],
    back: [[VecDeque<Message>; LOGS]; DATA],
}

impl World {
    fn new(behind: Behind) -> Self {
        let log = |_| {
            let mut log =
                ParityChunk::new(Mode::Logged, ParityState::default(), u64::MAX).unwrap().with_bound(behind);
            for chunk in 0..DATA {
                let (epoch, chunk) = (Epoch(0), chunk as u16);
                log.handle(ParityInput::Ask { reply: 0, epoch, session: 1, chunk });
            }
            core::iter::from_fn(|| log.poll()).for_each(drop);
            log
        };
        Self {
            chunks: Default::default(),
            logs: [0; LOGS].map(log),
            answers: Default::default(),
            merging: [false; LOGS],
            to: Default::default(),
            back: Default::default(),
        }
    }

    fn stage(&mut self, chunk: usize) -> bool {
        let of = &mut self.chunks[chunk];
        if of.staged == UPDATES || of.staged - of.committed == WINDOW {
            return false;
        }
        of.staged += 1;
        let difference = Message::Difference { version: of.staged, committed: of.committed };
        self.to[chunk].iter_mut().for_each(|link| link.push_back(difference));
        true
    }

    /// The first message of a link arrives.
    fn arrives(&mut self, chunk: usize, log: usize, back: bool) -> bool {
        let link = if back { &mut self.back } else { &mut self.to };
        let Some(message) = link[chunk][log].pop_front() else { return false };
        let (epoch, of) = (Epoch(0), chunk as u16);
        match message {
            Message::Difference { version, committed } => {
                let (reply, session) = (version * DATA as u64 + chunk as u64, 1);
                self.logs[log].handle(ParityInput::Difference {
                    reply,
                    epoch,
                    session,
                    chunk: of,
                    version,
                    bytes: BYTES,
                    committed,
                });
            }
            Message::Committed { through } => {
                self.logs[log].handle(ParityInput::Committed { epoch, chunk: of, through });
            }
            Message::Acked { through } => {
                let chunk_now = &mut self.chunks[chunk];
                chunk_now.acked[log] = chunk_now.acked[log].max(through);
                let through = *chunk_now.acked.iter().min().unwrap();
                if through > chunk_now.committed {
                    chunk_now.committed = through;
                    self.to[chunk].iter_mut().for_each(|link| link.push_back(Message::Committed { through }));
                }
            }
        }
        self.carry_out(log);
        true
    }

    fn carry_out(&mut self, log: usize) {
        while let Some(action) = self.logs[log].poll() {
            match action {
                ParityAction::Append { chunk, version, sequence, reply } => {
                    let appended = |input: &&ParityInput| matches!(input, ParityInput::Appended { .. });
                    let under_way = self.answers[log].iter().filter(appended).count() as u64;
                    let next =
                        self.logs[log].log().last().map_or(sequence, |last| last.sequence + 1 + under_way);
                    let full = self.logs[log].logged_bytes() + (under_way + 1) * LOGGED > RESERVE;
                    self.answers[log].push_back(
                        match full || next != sequence && self.logs[log].log().len() > 0 {
                            true => ParityInput::Full { chunk, version, reply },
                            false => ParityInput::Appended { chunk, version, sequence, bytes: BYTES },
                        },
                    );
                }
                ParityAction::Merge { .. } => self.merging[log] = true,
                ParityAction::Ack { chunk, through, .. } => {
                    self.back[usize::from(chunk)][log].push_back(Message::Acked { through });
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// A log's device answers; or a merge is made.
    fn answered(&mut self, log: usize, merge: bool) -> bool {
        let input = match merge {
            true => std::mem::take(&mut self.merging[log]).then_some(ParityInput::Merged),
            false => self.answers[log].pop_front(),
        };
        let happens = input.is_some();
        input.into_iter().for_each(|input| self.logs[log].handle(input));
        self.carry_out(log);
        happens
    }

    /// Whether all that is to be written is committed after many steps in any order, while some links carry nothing for long.
    fn ends(mut self, case: u64, bounded: bool) -> bool {
        let mut rng = rng(case);
        let mut below = move |bound: usize| (rng.next_u64() % bound as u64) as usize;
        for phase in 0..6 {
            // Each chunk's way to one of the logs, or none.
            let frozen: [usize; DATA] = core::array::from_fn(|_| below(LOGS + 1));
            for _ in 0..800 {
                let (chunk, log) = (below(DATA), below(LOGS));
                match below(6) {
                    0 => self.stage(chunk),
                    3 | 4 => self.answered(log, false),
                    5 => self.answered(log, below(8) == 0),
                    1 if frozen[chunk] == log => false,
                    direction => self.arrives(chunk, log, direction == 2),
                };
                let uncommitted = self.logs[log].first_uncommitted().map(|entry| entry.sequence);
                let there = self.logs[log].log().filter(|entry| Some(entry.sequence) >= uncommitted).count();
                let most = RESERVE - LOGGED;
                assert!(uncommitted.is_none() || !bounded || there as u64 * LOGGED <= most, "case {case}");
            }
            if phase % 2 == 1 {
                self.calm_down();
            }
        }
        self.calm_down();
        self.chunks.iter().all(|chunk| chunk.committed == UPDATES)
    }

    /// Everything arrives, until nothing happens any more.
    fn calm_down(&mut self) {
        let mut happens = true;
        while std::mem::take(&mut happens) {
            for log in 0..LOGS {
                happens |= self.answered(log, false) | self.answered(log, true);
            }
            for chunk in 0..DATA {
                happens |= self.stage(chunk);
                for log in 0..LOGS {
                    happens |= self.arrives(chunk, log, false) | self.arrives(chunk, log, true);
                }
            }
        }
    }
}

#[test]
fn two_full_logs_never_wait_for_each_other() {
    let bound = Behind::of(RESERVE, WINDOW * LOGGED, DATA as u32);
    assert!((0..300).all(|case| World::new(bound).ends(case, true)));
    // Without the bound some do: this sees it.
    let unbounded = Behind::of(u64::MAX, u64::MAX / 8, 1);
    assert!(!(0..300).all(|case| World::new(unbounded).ends(case, false)));
}

#[test]
fn what_is_behind_an_uncommitted_record_is_bounded_for_each_chunk() {
    let mut world = World::new(Behind::of(RESERVE, WINDOW * LOGGED, DATA as u32));
    let appended =
        |world: &World| world.logs[0].log().map(|entry| (entry.chunk, entry.version)).collect::<Vec<_>>();
    // The first of chunk 0 reaches one log only.
    world.stage(0);
    world.arrives(0, 0, false);
    world.answered(0, false);
    for _ in 0..8 {
        world.stage(1);
        for log in 0..LOGS {
            world.arrives(1, log, false);
            world.answered(log, false);
            world.arrives(1, log, true);
        }
        for log in 0..LOGS {
            world.arrives(1, log, false);
        }
    }
    assert_eq!(appended(&world), [(0, 1), (1, 1), (1, 2)]);
    assert!(world.logs[0].is_held_back() && !world.logs[1].is_held_back(), "nothing is uncommitted there");
    // Whose record it waits for is asked at once; what is committed before that is merged meanwhile.
    let mut upkeep = Upkeep::new(Time(0), RESERVE);
    assert!(upkeep.merge_due(Time(0), &world.logs[0], false));
    let soon = Time(0) + Duration::from_millis(10);
    assert_eq!(
        (
            upkeep.ask_to_level(Time(0), &world.logs[0], false),
            upkeep.ask_to_level(soon, &world.logs[0], false)
        ),
        (None, Some(0))
    );
    // It waits for the other one, and whoever asks does not wait for it.
    world.logs[0].handle(ParityInput::Ask { reply: 99, epoch: Epoch(0), session: 2, chunk: 1 });
    let said: Vec<_> = core::iter::from_fn(|| world.logs[0].poll()).collect();
    assert!(said.contains(&ParityAction::Ack { reply: 99, chunk: 1, through: 2 }), "{said:?}");
    assert!(!world.logs[0].is_held_back());
}

/// An append of an earlier life that finds no room while the same versions of a later one are held back.
#[test]
fn what_an_earlier_life_had_no_room_for_does_not_come_before_what_is_held_back() {
    let entry = Entry { sequence: 0, chunk: 1, version: 1, bytes: BYTES };
    let state = ParityState { epoch: Epoch(0), merged: Vec::new(), log: vec![entry], log_next: 1 };
    let log = ParityChunk::new(Mode::Logged, state, u64::MAX).unwrap();
    let mut log = log.with_bound(Behind::of(0, 2 * LOGGED, 1));
    let epoch = Epoch(0);
    let ask = |session| ParityInput::Ask { reply: 100 + session, epoch, session, chunk: 0 };
    let difference = |session, version, bytes| ParityInput::Difference {
        reply: 10 * session + version,
        epoch,
        session,
        chunk: 0,
        version,
        bytes,
        committed: 0,
    };
    let full = |version| ParityInput::Full { chunk: 0, version, reply: 10 + version };
    let appends = |log: &mut ParityChunk| -> Vec<(u64, u64)> {
        let actions = core::iter::from_fn(|| log.poll());
        let append = |action| match action {
            ParityAction::Append { version, reply, .. } => Some((version, reply)),
            _ => None,
        };
        actions.filter_map(append).collect()
    };
    for input in [ask(1), difference(1, 1, BYTES), difference(1, 2, BYTES)] {
        log.handle(input);
    }
    assert_eq!(appends(&mut log), [(1, 11), (2, 12)]);
    // What waits for room will lie there before what comes after it.
    let mut other = log.clone();
    for input in [full(1), full(2), difference(1, 3, BYTES)] {
        other.handle(input);
    }
    assert!(appends(&mut other).is_empty() && other.is_stalled() && other.is_held_back());
    // Its next life sends others, which are larger.
    for input in [full(1), ask(2), difference(2, 1, 4 * BYTES), difference(2, 2, BYTES), full(2)] {
        log.handle(input);
    }
    assert!(appends(&mut log).is_empty() && log.is_held_back() && !log.is_stalled());
    for input in [
        ParityInput::Ask { reply: 200, epoch, session: 1, chunk: 1 },
        ParityInput::Committed { epoch, chunk: 1, through: 1 },
    ] {
        log.handle(input);
    }
    assert_eq!(appends(&mut log), [(1, 21)]);
    log.handle(ParityInput::Appended { chunk: 0, version: 1, sequence: 1, bytes: 4 * BYTES });
    log.handle(ParityInput::Committed { epoch, chunk: 0, through: 1 });
    assert_eq!(appends(&mut log), [(2, 22)]);
}
