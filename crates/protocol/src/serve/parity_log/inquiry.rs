//! One question about a chunk before it is read: what the nodes of its parity hold of it; of a parity chunk, what those of all other chunks
//! hold. When it is asked, and what follows from the answers, is [`Levels`]' to say; here is whom it is put to, who is waited for how long,
//! and when whoever reads is told.
//!
//! ```text
//!             the others are found            all have answered, one has more, or there was time enough
//!   Locating ─────────────────────▶ Asking ────────────────────────────────────────────────────▶ told
//!      │                              │ all that are asked were silent a moment ago              │ ▲ │ with each that
//!      └── nobody knows ──▶ in vain ◀─┘                                                          │ └─┘ answers later
//!                              │         it lacks changes, all have answered, or nobody is heard │
//!                              └─────────────────────────▶ over ◀────────────────────────────────┘
//! ```
//!
//! Once those have answered who know, the others have a while. What was acknowledged of a data chunk its own node knows, and that of each
//! parity chunk. About a parity chunk, whose kind may be as old as it, the word of the others of its kind counts for those data chunks alone
//! whose own nodes do not say. Who is waited for beyond that keeps no other chunk from its turn
//! ([`InquiryAction::GiveTurn`]), and is told as silent when a read's whole patience is over. Who was waited for in vain a moment ago, with
//! any chunk of the device, is not asked about this one beside others: once that one is back, it is ([`Levels::told`]).
//!
//! A data chunk's number in the answers says at once whether it lacks changes. A parity chunk is compared with each of the others: what is
//! on its way to it comes a little later, and hosts of data chunks send what it lost, if anybody keeps that. So where it lacks any
//! it is looked at again, ever less often, before that counts. Nobody reads it meanwhile, also where it was read before somebody answered
//! late ([`Levels::may_lag`]); and what it was not found to have by the end of whoever reads' patience it lacks. Where nobody has answered
//! for one of the data chunks, that it has all changes of the others is no answer at all.
//!
//! Invariants: by [`Levels::PATIENCE`] its turn is given back, or it is over; nobody is told as silent who has said something, or who had
//! no time to; a parity chunk that was found to lack changes is served only once it was found to have them; [`InquiryAction::Over`] is the last action, and comes at [`Levels::HEARD_FOR`] at the latest, where the metadata server has
//! said by then whether it knows where the chunks lie.
//!
//! Left out: how nodes are asked, and when those are again that have no room for it ([`InquiryInput::Refused`]); connections that are lost.

use super::{Asked, ChunkNumber, Levels};
use crate::{DeviceId, Epoch, SegmentId, Time, layout::ParityGeometry, message::ChunkVersions};
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Once one that knows has answered the others have so many times as long as it took: each of them has all that was acknowledged, unless
/// it lost some, too, and one that stands still is not to be waited for with every chunk. Picked by eye: one that has to read its log first
/// takes some ten times longer.
const OTHERS_HAVE: u32 = 64;
/// And this part of [`Levels::PATIENCE`] at least. Picked by eye: a rotating disk reads a whole reserve in that time.
const OTHERS_HAVE_PART: u32 = 8;
/// The part of [`Levels::PATIENCE`] after which a parity chunk that lacks changes is looked at again. Doubled each time, while it is less
/// than half of it: half of the time of whoever reads in all.
const FIRST_PAUSE_PART: u32 = 64;

/// Why somebody does not say what was asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsaid {
    /// It cannot tell.
    Fault,
    /// It said nothing.
    Silent,
}

/// Where the chunks of a segment lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Located {
    /// The epoch of its layout.
    pub epoch: Epoch,
    /// Its shape.
    pub shape: ParityGeometry,
    /// Which of its chunks is asked about.
    pub number: u32,
    /// The devices of all chunks, in the chunks' order.
    pub holders: Vec<DeviceId>,
}

impl Located {
    /// The chunk's number, where it is a data chunk.
    fn data_number(&self) -> Option<ChunkNumber> {
        // At most 255 chunks.
        (self.number < self.shape.data).then_some(self.number as ChunkNumber)
    }

    /// The devices of those that know what the chunk is to have: of parity chunks; of a parity chunk also of data chunks.
    fn others(&self) -> Vec<DeviceId> {
        let own = self.holders.get(self.number as usize);
        let first = self.data_number().map_or(0, |_| self.shape.data as usize);
        let others = self.holders.iter().skip(first).filter(|&holder| Some(holder) != own);
        others.copied().collect()
    }

    /// The number of the data chunk that a device has; none of parity.
    fn data_on(&self, device: DeviceId) -> Option<ChunkNumber> {
        let data = self.holders.iter().take(self.shape.data as usize);
        data.zip(0..).find_map(|(&holder, number)| (holder == device).then_some(number))
    }

    /// The data chunks of which changes are asked for.
    fn concerned(&self) -> BTreeSet<ChunkNumber> {
        // At most 255 chunks.
        let all = 0..self.shape.data as ChunkNumber;
        self.data_number().map_or_else(|| all.collect(), |number| BTreeSet::from([number]))
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InquiryInput {
    /// The answer to [`InquiryAction::Locate`]; silent where the metadata server does not say now.
    Located(Result<Located, Unsaid>),
    /// The answer to [`InquiryAction::AskVersions`].
    Versions {
        /// Whose.
        device: DeviceId,
        /// What it holds.
        held: Result<ChunkVersions, Unsaid>,
    },
    /// The node that was asked by [`InquiryAction::AskVersions`] has no room for that now, and is asked again: it is there.
    Refused {
        /// Of which device.
        device: DeviceId,
    },
    /// The answer to [`InquiryAction::AskOwn`].
    Own {
        /// What the chunk itself holds.
        held: Result<ChunkVersions, Unsaid>,
    },
    /// It is as late as [`Inquiry::wake_at`] said, and nothing else was there.
    Tick,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InquiryAction {
    /// Ask the metadata server where the segment's chunks lie.
    Locate,
    /// Ask the node of another chunk what that holds.
    AskVersions {
        /// Its device.
        device: DeviceId,
    },
    /// Ask what the parity chunk itself holds, which is compared with what others said before.
    AskOwn,
    /// Ask the node of a data chunk to bring it and its parity to the same versions; nobody waits for the answer.
    Level {
        /// Its device.
        device: DeviceId,
        /// The epoch of the layout.
        epoch: Epoch,
    },
    /// Nobody waits for the rest: another chunk of the device may be asked about.
    GiveTurn,
    /// Something was learned of the chunk: whoever waits for that is to ask [`Levels::before_read`] again.
    Learned {
        /// Whether it is a parity chunk that lacks what another chunk has.
        lags: bool,
    },
    /// The chunk lacks changes: its host is to begin, which brings it forward.
    BringForward,
    /// The last action: what was asked and is not answered is of no use any more.
    Over,
}

/// Another chunk whose node has not said all that is asked of it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Awaited {
    /// It has said nothing.
    Answer,
    /// It has said that it has no room for the question.
    Room,
    /// It has said what it holds of data chunks, with which this parity chunk is compared.
    Comparison {
        theirs: Vec<(ChunkNumber, u64)>,
        /// How many changes of one data chunk this chunk lacked of that at most, when it was looked at last.
        lacks: u64,
        /// How long this chunk has next for what it lacks.
        pause: Duration,
        /// When it is looked at for that, unless it is.
        again: Time,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Locating,
    Asking(Asking),
    Over,
}

/// The others are asked.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Asking {
    located: Located,
    since: Time,
    /// When whoever reads is told at the latest.
    until: Time,
    /// Those that know what the chunk is to have, also those that are not asked.
    others: usize,
    waited_for: BTreeMap<DeviceId, Awaited>,
    /// What those that have answered hold of a data chunk, or how many changes they have that a parity chunk lacks.
    held: Vec<u64>,
    /// Data chunks whose own nodes have not answered.
    unheard: BTreeSet<ChunkNumber>,
    /// Whether the node of another parity chunk has.
    is_parity_heard: bool,
    is_own_asked: bool,
    /// How long it has for what it was last found to lack, once whoever reads was told something else.
    lacking_until: Time,
    /// Data chunks whose nodes were asked to send what the parity chunk lacks.
    levelled: BTreeSet<ChunkNumber>,
    is_told: bool,
}

impl Asking {
    /// Whether the parity chunk lacked changes when it was looked at last.
    fn lacks(&self) -> bool {
        self.waited_for.values().any(|awaited| matches!(awaited, Awaited::Comparison { lacks: 1.., .. }))
    }

    /// Whether somebody has answered for each data chunk of which changes are asked for: its own node, or that of other parity where its own
    /// is not waited for.
    fn are_all_heard_of(&self) -> bool {
        let own = |of: &ChunkNumber| self.located.holders.get(usize::from(*of));
        let is_waited_for = |of: &ChunkNumber| own(of).is_some_and(|own| self.waited_for.contains_key(own));
        self.unheard.iter().all(|of| self.is_parity_heard && !is_waited_for(of))
    }

    /// When the parity chunk is looked at next; none while it is.
    fn next_look(&self) -> Option<Time> {
        let again = self.waited_for.values().filter_map(|awaited| match awaited {
            Awaited::Comparison { again, .. } => Some(*again),
            Awaited::Answer | Awaited::Room => None,
        });
        again.min().filter(|_| !self.is_own_asked)
    }
}

/// The core; see the module's doc.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    segment: SegmentId,
    /// The chunk's when it was begun.
    version: u64,
    begun: Time,
    has_turn: bool,
    /// Whether who was silent for as long as a read has patience was told as such.
    is_silence_told: bool,
    step: Step,
    actions: VecDeque<InquiryAction>,
}

impl Inquiry {
    /// Chunks of a device that others are asked about at a time. Picked by eye: more than its readers keep busy, and few for those that
    /// answer.
    pub const AT_A_TIME: usize = 32;

    /// It is a chunk's turn, which is at `version`; 0 of parity.
    pub fn new(now: Time, levels: &mut Levels, segment: SegmentId, version: u64) -> Self {
        levels.begun(now, segment);
        let (step, actions) = (Step::Locating, VecDeque::new());
        let mut inquiry =
            Self { segment, version, begun: now, has_turn: true, is_silence_told: false, step, actions };
        match levels.are_silent(now, &[Asked::Metadata]) {
            true => inquiry.in_vain(now, levels),
            false => inquiry.actions.push_back(InquiryAction::Locate),
        }
        inquiry
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<InquiryAction> {
        self.actions.pop_front()
    }

    /// When it is to be told [`InquiryInput::Tick`], unless something else happens before; none where it waits for that alone.
    pub fn wake_at(&self) -> Option<Time> {
        let look = if let Step::Asking(asking) = &self.step { asking.next_look() } else { None };
        look.into_iter().chain(self.deadline()).min()
    }

    /// Tells it what happened; then [`Inquiry::poll`] until `None`. What follows for reads `levels` are told.
    pub fn handle(&mut self, now: Time, levels: &mut Levels, input: InquiryInput) {
        match input {
            InquiryInput::Located(found) => self.located(now, levels, found),
            InquiryInput::Versions { device, held } => self.said(now, levels, device, held),
            InquiryInput::Refused { device } => self.refused(now, levels, device),
            InquiryInput::Own { held } => self.compare(now, levels, &held),
            InquiryInput::Tick => self.tick(now, levels),
        }
    }

    /// When something is done that is not for an answer.
    fn deadline(&self) -> Option<Time> {
        let patience = self.begun + Levels::PATIENCE;
        match &self.step {
            Step::Locating => (!self.is_silence_told).then_some(patience),
            Step::Asking(asking) if !asking.is_told => {
                Some(if asking.lacks() { patience } else { asking.until })
            }
            Step::Asking(asking) => {
                let silence = if self.is_silence_told { self.heard_until() } else { patience };
                Some(if asking.lacks() { silence.min(asking.lacking_until) } else { silence })
            }
            Step::Over => None,
        }
    }

    fn heard_until(&self) -> Time {
        self.begun + Levels::HEARD_FOR
    }

    /// Who is silent may answer later, and whoever reads has waited for that.
    fn tick(&mut self, now: Time, levels: &mut Levels) {
        let is_due = self.deadline().is_some_and(|deadline| now >= deadline);
        let heard_until = self.heard_until();
        self.look(now);
        match &mut self.step {
            Step::Locating if is_due => {
                levels.told(now, Asked::Metadata, false);
                // Who is found later had none of the time, and is not silent for it.
                self.is_silence_told = true;
                self.give_turn();
            }
            Step::Asking(asking) if is_due => {
                let is_over = now >= heard_until;
                if !asking.is_told || asking.lacks() && (is_over || now >= asking.lacking_until) {
                    self.tell(now, levels);
                } else if is_over {
                    self.end();
                } else {
                    self.is_silence_told = true;
                    for (&device, awaited) in &asking.waited_for {
                        if *awaited == Awaited::Answer {
                            levels.told(now, Asked::Chunk(device), false);
                        }
                    }
                }
            }
            Step::Asking(_) | Step::Locating | Step::Over => {}
        }
    }

    fn located(&mut self, now: Time, levels: &mut Levels, found: Result<Located, Unsaid>) {
        if self.step != Step::Locating {
            return;
        }
        levels.told(now, Asked::Metadata, !matches!(found, Err(Unsaid::Silent)));
        let Ok(located) = found else { return self.in_vain(now, levels) };
        let others = located.others();
        let may_answer = others.iter().filter(|&&holder| !levels.are_silent(now, &[Asked::Chunk(holder)]));
        let asked: Vec<DeviceId> = may_answer.copied().collect();
        if asked.is_empty() {
            return self.in_vain(now, levels);
        }
        self.actions.extend(asked.iter().map(|&device| InquiryAction::AskVersions { device }));
        self.step = Step::Asking(Asking {
            since: now,
            until: self.begun + Levels::PATIENCE,
            others: others.len(),
            waited_for: asked.into_iter().map(|device| (device, Awaited::Answer)).collect(),
            held: Vec::new(),
            unheard: located.concerned(),
            is_parity_heard: false,
            is_own_asked: false,
            lacking_until: now,
            levelled: BTreeSet::new(),
            is_told: false,
            located,
        });
    }

    /// The node of another chunk has answered, or does not.
    fn said(
        &mut self,
        now: Time,
        levels: &mut Levels,
        device: DeviceId,
        held: Result<ChunkVersions, Unsaid>,
    ) {
        let Step::Asking(Asking { located, waited_for, .. }) = &mut self.step else { return };
        let Some(awaited) = waited_for.get_mut(&device) else { return };
        if matches!(awaited, Awaited::Comparison { .. }) {
            return;
        }
        if !matches!(held, Err(Unsaid::Silent)) {
            levels.told(now, Asked::Chunk(device), true);
        }
        let holds = match (held, located.data_number()) {
            (Err(_), _) => None,
            (Ok(theirs), Some(number)) => Some(held_of(&theirs, number)),
            (Ok(theirs), None) => {
                let theirs = match located.data_on(device) {
                    Some(number) => vec![(number, theirs.version)],
                    None => theirs.held,
                };
                let pause = Levels::PATIENCE / FIRST_PAUSE_PART;
                *awaited = Awaited::Comparison { theirs, lacks: 0, pause, again: now };
                return self.look(now);
            }
        };
        self.settle(now, levels, device, holds);
    }

    /// The node of another chunk has no room for the question: that may last, and it is not silent for it.
    fn refused(&mut self, now: Time, levels: &mut Levels, device: DeviceId) {
        let Step::Asking(Asking { waited_for, .. }) = &mut self.step else { return };
        if let Some(awaited @ (Awaited::Answer | Awaited::Room)) = waited_for.get_mut(&device) {
            *awaited = Awaited::Room;
            levels.told(now, Asked::Chunk(device), true);
        }
    }

    /// Looks at the parity chunk itself, where it is time for that.
    fn look(&mut self, now: Time) {
        let Step::Asking(asking) = &mut self.step else { return };
        if asking.next_look().is_some_and(|again| now >= again) {
            asking.is_own_asked = true;
            self.actions.push_back(InquiryAction::AskOwn);
        }
    }

    /// Compares what this parity chunk holds with what others have said. What counts is how many changes of one data chunk it lacks at
    /// most, of those of which it lacks any, once it had a while for them.
    fn compare(&mut self, now: Time, levels: &mut Levels, held: &Result<ChunkVersions, Unsaid>) {
        let Step::Asking(Asking { located, waited_for, is_own_asked, lacking_until, levelled, .. }) =
            &mut self.step
        else {
            return;
        };
        *is_own_asked = false;
        let mut is_found_to_lack = false;
        let Located { epoch, shape, holders, .. } = &*located;
        let mut settled = Vec::new();
        for (&beside, awaited) in waited_for {
            let Awaited::Comparison { theirs, lacks, pause, again } = awaited else { continue };
            let is_due = now >= *again;
            let is_last = is_due && *pause >= Levels::PATIENCE / 2;
            let mut lacking: Vec<(ChunkNumber, u64)> = Vec::new();
            // Where it cannot say, what it was found to lack last is what it lacks.
            let mut most = Some(*lacks).filter(|lacks| *lacks > 0);
            if let Ok(own) = held {
                let of_data = theirs.iter().filter(|(of, _)| u32::from(*of) < shape.data);
                let of_data = of_data.map(|&(of, version)| (of, version.saturating_sub(held_of(own, of))));
                lacking.extend(of_data.filter(|(_, lacks)| *lacks > 0));
                let now_lacks = lacking.iter().map(|(_, lacks)| *lacks).max().unwrap_or(0);
                is_found_to_lack |= now_lacks > 0 && *lacks == 0;
                (*lacks, most) = (now_lacks, Some(now_lacks));
            }
            if most == Some(0) || is_last {
                settled.push((beside, most));
            } else if is_due {
                let unasked = lacking.iter().filter(|(of, _)| levelled.insert(*of));
                let devices = unasked.filter_map(|(of, _)| holders.get(usize::from(*of)));
                self.actions.extend(devices.map(|&device| InquiryAction::Level { device, epoch: *epoch }));
                *again = now + *pause;
                *pause *= 2;
            }
        }
        if is_found_to_lack {
            // Whoever reads it waits for what comes of that, however late it was found.
            *lacking_until = now + Levels::PATIENCE;
            levels.may_lag(now, self.segment);
        }
        for (beside, holds) in settled {
            self.settle(now, levels, beside, holds);
        }
    }

    /// Nothing more is asked of another chunk's node, which holds so much, or does not say.
    fn settle(&mut self, now: Time, levels: &mut Levels, device: DeviceId, holds: Option<u64>) {
        let Step::Asking(asking) = &mut self.step else { return };
        asking.waited_for.remove(&device);
        if let Some(holds) = holds {
            asking.held.push(holds);
            match asking.located.data_on(device) {
                Some(number) => asking.unheard.retain(|of| *of != number),
                None => asking.is_parity_heard = true,
            }
        }
        if !asking.held.is_empty() && asking.are_all_heard_of() {
            let others_have = now.since(asking.since).saturating_mul(OTHERS_HAVE);
            let others_have = others_have.max(Levels::PATIENCE / OTHERS_HAVE_PART);
            asking.until = asking.until.min(asking.since + others_have);
        }
        let has_more = holds.is_some_and(|holds| holds > self.version);
        if has_more || asking.waited_for.is_empty() || asking.is_told && !asking.lacks() {
            self.tell(now, levels);
        }
    }

    /// Tells what is known now, for whoever reads, or for who reads next: there was time enough for all that is compared.
    fn tell(&mut self, now: Time, levels: &mut Levels) {
        // Nobody waits for the others: who asks about another chunk is not to wait for them either.
        self.give_turn();
        let Step::Asking(asking) = &mut self.step else { return };
        asking.is_told = true;
        let is_parity = asking.located.data_number().is_none();
        let lags = is_parity && (asking.lacks() || asking.held.iter().any(|lacks| *lacks > self.version));
        let mut is_over = lags || asking.waited_for.is_empty();
        self.actions.push_back(InquiryAction::Learned { lags });
        if lags {
            levels.lags(now, self.segment);
        } else if is_parity && !asking.are_all_heard_of() {
            levels.answered(now, self.segment, self.version, [None]);
        } else {
            let unsaid = core::iter::repeat_n(None, asking.others.saturating_sub(asking.held.len()));
            let held = asking.held.iter().copied().map(Some).chain(unsaid);
            if levels.answered(now, self.segment, self.version, held) {
                self.actions.push_back(InquiryAction::BringForward);
                is_over = true;
            }
        }
        if is_over {
            self.end();
        }
    }

    /// Nobody is there to ask.
    fn in_vain(&mut self, now: Time, levels: &mut Levels) {
        levels.answered(now, self.segment, self.version, [None]);
        self.actions.push_back(InquiryAction::Learned { lags: false });
        self.end();
    }

    fn give_turn(&mut self) {
        if core::mem::replace(&mut self.has_turn, false) {
            self.actions.push_back(InquiryAction::GiveTurn);
        }
    }

    fn end(&mut self) {
        self.step = Step::Over;
        self.actions.push_back(InquiryAction::Over);
    }
}

fn held_of(versions: &ChunkVersions, number: ChunkNumber) -> u64 {
    let of_it = versions.held.iter().find(|(of, _)| *of == number);
    of_it.map_or(0, |(_, version)| *version)
}
