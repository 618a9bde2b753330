//! Two logs that are full of what waits for the other: several data chunks and two parity chunks, whose messages are late as they like.

use super::super::parity_log::*;
use super::rng;
use crate::Epoch;
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
                    let full = self.logs[log].logged_bytes() + LOGGED > RESERVE;
                    self.logs[log].handle(match full {
                        true => ParityInput::Full { chunk, version, reply },
                        false => ParityInput::Appended { chunk, version, sequence, bytes: BYTES },
                    });
                }
                ParityAction::Merge { .. } => self.logs[log].handle(ParityInput::Merged),
                ParityAction::Ack { chunk, through, .. } => {
                    self.back[usize::from(chunk)][log].push_back(Message::Acked { through });
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Whether all that is to be written is committed after many steps in any order, while some links carry nothing for long.
    fn ends(mut self, case: u64) -> bool {
        let mut rng = rng(case);
        let mut below = move |bound: usize| (rng.next_u64() % bound as u64) as usize;
        for phase in 0..6 {
            // Each chunk's way to one of the logs, or none.
            let frozen: [usize; DATA] = core::array::from_fn(|_| below(LOGS + 1));
            for _ in 0..400 {
                let (chunk, log) = (below(DATA), below(LOGS));
                match below(3) {
                    0 => self.stage(chunk),
                    1 if frozen[chunk] == log => false,
                    direction => self.arrives(chunk, log, direction == 2),
                };
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
    assert!((0..300).all(|case| World::new(bound).ends(case)));
    // Without the bound some do: this sees it.
    let unbounded = Behind::of(u64::MAX, u64::MAX / 8, 1);
    assert!(!(0..300).all(|case| World::new(unbounded).ends(case)));
}

#[test]
fn what_is_behind_an_uncommitted_record_is_bounded_for_each_chunk() {
    let mut world = World::new(Behind::of(RESERVE, WINDOW * LOGGED, DATA as u32));
    let appended =
        |world: &World| world.logs[0].log().map(|entry| (entry.chunk, entry.version)).collect::<Vec<_>>();
    // The first of chunk 0 reaches one log only.
    world.stage(0);
    world.arrives(0, 0, false);
    for _ in 0..4 {
        world.stage(1);
        for log in 0..LOGS {
            world.arrives(1, log, false);
            world.arrives(1, log, true);
        }
        for log in 0..LOGS {
            world.arrives(1, log, false);
        }
    }
    assert_eq!(appended(&world), [(0, 1), (1, 1), (1, 2)]);
    assert!(world.logs[0].is_held_back() && !world.logs[1].is_held_back(), "nothing is uncommitted there");
    // It waits for the other one, and whoever asks does not wait for it.
    world.logs[0].handle(ParityInput::Ask { reply: 99, epoch: Epoch(0), session: 2, chunk: 1 });
    let said: Vec<_> = core::iter::from_fn(|| world.logs[0].poll()).collect();
    assert!(said.contains(&ParityAction::Ack { reply: 99, chunk: 1, through: 2 }), "{said:?}");
    assert!(!world.logs[0].is_held_back());
}
