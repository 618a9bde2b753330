//! What is asked about a chunk before it is read, of whom, who is waited for how long, and what whoever reads learns when.

use super::super::parity_log::{
    Asked, BeforeRead, Inquiry, InquiryAction, InquiryInput, Levels, Located, Unsaid,
};
use crate::{DeviceId, Epoch, SegmentId, Time, layout::ParityGeometry, message::ChunkVersions};
use core::time::Duration;
use rand_core::Rng;

const CHUNK: SegmentId = SegmentId(7);
const OTHER: SegmentId = SegmentId(8);
const EPOCH: Epoch = Epoch(3);
/// Chunks 0 and 1 are data, 2 to 4 parity.
const SHAPE: ParityGeometry = ParityGeometry { chunks: 5, data: 2, blocks: 4, block_bytes: 4096 };
/// How many changes the data chunk has.
const VERSION: u64 = 4;

const NOTHING: [InquiryAction; 0] = [];
const LEARNED: InquiryAction = InquiryAction::Learned { lags: false };
const LAGS: InquiryAction = InquiryAction::Learned { lags: true };

fn at(millis: u64) -> Time {
    Time(0) + Duration::from_millis(millis)
}

fn device(chunk: u32) -> DeviceId {
    DeviceId(10 + u128::from(chunk))
}

fn ask(chunk: u32) -> InquiryAction {
    InquiryAction::AskVersions { device: device(chunk) }
}

/// Of parity, which has so many changes of the two data chunks.
fn held(versions: [u64; 2]) -> ChunkVersions {
    ChunkVersions { version: 0, held: (0..).zip(versions).collect() }
}

fn are_silent(levels: &Levels, now: Time, who: Asked) -> bool {
    levels.clone().are_silent(now, &[who])
}

/// An inquiry about one chunk, and what is known of its device's.
#[derive(Clone)]
struct Script {
    levels: Levels,
    core: Inquiry,
    number: u32,
}

impl Script {
    /// A chunk is read for the first time, at 0 ms.
    fn begin(number: u32) -> Self {
        Self::begin_by(Levels::default(), at(0), CHUNK, number)
    }

    fn begin_by(mut levels: Levels, now: Time, segment: SegmentId, number: u32) -> Self {
        assert_eq!(levels.before_read(now, segment), BeforeRead::Ask);
        let version = if number < SHAPE.data { VERSION } else { 0 };
        let core = Inquiry::new(now, &mut levels, segment, version);
        Self { levels, core, number }
    }

    /// Parity is asked about the chunk, since this time; about a parity chunk all others.
    fn asking(number: u32, millis: u64) -> Self {
        Self::asking_in(SHAPE, number, millis)
    }

    fn asking_in(shape: ParityGeometry, number: u32, millis: u64) -> Self {
        let mut script = Self::begin(number);
        assert_eq!(script.actions(), [InquiryAction::Locate]);
        let first = if number < shape.data { shape.data } else { 0 };
        let asked = (first..shape.chunks).filter(|&chunk| chunk != number);
        assert_eq!(script.locate_in(shape, millis), asked.map(ask).collect::<Vec<InquiryAction>>());
        script
    }

    fn actions(&mut self) -> Vec<InquiryAction> {
        core::iter::from_fn(|| self.core.poll()).collect()
    }

    fn tell(&mut self, now: Time, input: InquiryInput) -> Vec<InquiryAction> {
        self.core.handle(now, &mut self.levels, input);
        self.actions()
    }

    /// The metadata server says where the chunks lie.
    fn locate(&mut self, millis: u64) -> Vec<InquiryAction> {
        self.locate_in(SHAPE, millis)
    }

    fn locate_in(&mut self, shape: ParityGeometry, millis: u64) -> Vec<InquiryAction> {
        let holders = (0..shape.chunks).map(device).collect();
        let located = Located { epoch: EPOCH, shape, number: self.number, holders };
        self.tell(at(millis), InquiryInput::Located(Ok(located)))
    }

    /// A parity chunk's node says what it holds.
    fn said(&mut self, millis: u64, chunk: u32, versions: [u64; 2]) -> Vec<InquiryAction> {
        let input = InquiryInput::Versions { device: device(chunk), held: Ok(held(versions)) };
        self.tell(at(millis), input)
    }

    /// A data chunk's node says how many changes that has.
    fn counted(&mut self, millis: u64, chunk: u32, version: u64) -> Vec<InquiryAction> {
        let held = Ok(ChunkVersions { version, held: Vec::new() });
        self.tell(at(millis), InquiryInput::Versions { device: device(chunk), held })
    }

    /// Its answer never comes.
    fn unsaid(&mut self, millis: u64, chunk: u32, why: Unsaid) -> Vec<InquiryAction> {
        self.tell(at(millis), InquiryInput::Versions { device: device(chunk), held: Err(why) })
    }

    /// This parity chunk's own node says what it holds.
    fn own(&mut self, now: Time, versions: [u64; 2]) -> Vec<InquiryAction> {
        self.tell(now, InquiryInput::Own { held: Ok(held(versions)) })
    }

    /// Nothing happens before this time, when it wants to be woken.
    fn wake(&mut self, millis: u64) -> Vec<InquiryAction> {
        assert_eq!(self.core.wake_at(), Some(at(millis)));
        self.tell(at(millis), InquiryInput::Tick)
    }

    /// It is looked at as often as it wants to be, and holds the same each time, until something is told; and when.
    fn look_until_told(&mut self, mut now: Time, versions: [u64; 2]) -> (Vec<InquiryAction>, Time) {
        loop {
            now = now.max(self.core.wake_at().expect("it is looked at again"));
            let mut told = self.tell(now, InquiryInput::Tick);
            if told == [InquiryAction::AskOwn] {
                told = self.own(now, versions);
            }
            if !told.is_empty() {
                return (told, now);
            }
        }
    }

    fn read(&mut self, millis: u64) -> BeforeRead {
        self.levels.before_read(at(millis), CHUNK)
    }

    /// Whether a chunk's node would not be waited for with another one.
    fn is_silent(&self, millis: u64, chunk: u32) -> bool {
        are_silent(&self.levels, at(millis), Asked::Chunk(device(chunk)))
    }
}

#[test]
fn a_chunk_that_all_of_its_parity_has_no_more_of_is_level() {
    let mut script = Script::asking(0, 1);
    assert_eq!(script.said(2, 2, [4, 9]), NOTHING);
    // It lacks changes itself.
    assert_eq!(script.said(3, 3, [3, 9]), NOTHING);
    assert_eq!(script.read(3), BeforeRead::Wait { until: at(1000) });
    assert_eq!(script.said(4, 4, [4, 9]), [InquiryAction::GiveTurn, LEARNED, InquiryAction::Over]);
    assert_eq!(script.read(1_000_000), BeforeRead::Serve);
    assert_eq!(script.core.wake_at(), None);
}

#[test]
fn a_chunk_that_one_has_more_of_is_brought_forward_without_waiting_for_others() {
    let mut script = Script::asking(1, 1);
    let told = script.said(2, 3, [9, 5]);
    assert_eq!(told, [InquiryAction::GiveTurn, LEARNED, InquiryAction::BringForward, InquiryAction::Over]);
    assert_eq!(script.read(2), BeforeRead::Wait { until: at(1000) }, "for its host");
    assert_eq!(script.said(3, 2, [9, 4]), NOTHING, "it is over");
    assert_eq!((script.core.wake_at(), script.locate(4)), (None, Vec::new()));
}

/// The longer the first takes the longer the others have, and an eighth of a second at least.
#[test]
fn one_slow_parity_node_is_waited_for_as_long_as_others_took_a_few_times() {
    for (answered, until) in [(11, 135), (12, 138), (14, 266), (40, 1000)] {
        let mut script = Script::asking(0, 10);
        assert_eq!(script.core.wake_at(), Some(at(1000)));
        assert_eq!(script.said(answered, 4, [4, 9]), NOTHING);
        assert_eq!(script.core.wake_at(), Some(at(until)));
        assert_eq!(script.said(answered + 1, 2, [4, 9]), NOTHING);
        assert_eq!(script.wake(until), [InquiryAction::GiveTurn, LEARNED]);
        assert_eq!(script.read(until), BeforeRead::Serve);
        // It is silent when a read's patience is over, and not before.
        assert!(!script.is_silent(until, 3));
        assert_eq!(script.wake(1000), NOTHING);
        assert_eq!([2, 3, 4].map(|chunk| script.is_silent(1000, chunk)), [false, true, false]);
    }
}

#[test]
fn who_answers_late_is_heard() {
    let mut script = Script::asking(0, 1);
    assert_eq!(script.said(2, 2, [4, 9]), NOTHING);
    assert_eq!(script.wake(126), [InquiryAction::GiveTurn, LEARNED]);
    assert_eq!(script.said(500, 3, [4, 9]), [LEARNED], "its turn was given before");
    assert_eq!(script.wake(1000), NOTHING);
    assert_eq!(script.read(1400), BeforeRead::Serve);
    // Which shows what the two had lost, too.
    let told = script.said(1500, 4, [5, 9]);
    assert_eq!(told, [LEARNED, InquiryAction::BringForward, InquiryAction::Over]);
    assert_eq!(script.read(1500), BeforeRead::Refuse);
    assert!(!script.is_silent(1500, 4));
}

#[test]
fn who_says_nothing_is_waited_for_as_long_as_a_read_and_heard_for_a_while() {
    let mut script = Script::asking(0, 1);
    assert_eq!(script.wake(1000), [InquiryAction::GiveTurn, LEARNED]);
    assert_eq!(script.read(1000), BeforeRead::Serve);
    assert_eq!(script.wake(1000), NOTHING);
    assert!((2..5).all(|chunk| script.is_silent(1000, chunk)));
    // Nobody waits for them with another chunk.
    let mut other = Script::begin_by(script.levels.clone(), at(1001), OTHER, 0);
    assert_eq!(other.actions(), [InquiryAction::Locate]);
    assert_eq!(other.locate(1002), [LEARNED, InquiryAction::Over]);
    assert_eq!(other.levels.before_read(at(1002), OTHER), BeforeRead::Serve);
    assert_eq!(script.wake(5000), [InquiryAction::Over]);
    assert_eq!(script.core.wake_at(), None);
}

#[test]
fn nodes_that_cannot_tell_are_not_waited_for() {
    let mut script = Script::asking(0, 1);
    assert_eq!(script.unsaid(2, 2, Unsaid::Fault), NOTHING);
    assert_eq!(script.unsaid(3, 3, Unsaid::Silent), NOTHING);
    assert_eq!(script.core.wake_at(), Some(at(1000)), "that is no answer");
    let told = script.unsaid(4, 4, Unsaid::Fault);
    assert_eq!(told, [InquiryAction::GiveTurn, LEARNED, InquiryAction::Over]);
    assert_eq!(script.read(4), BeforeRead::Serve);
    assert_eq!(script.read(5004), BeforeRead::Ask);
    // Nobody has waited for them.
    assert!((2..5).all(|chunk| !script.is_silent(4, chunk)));
}

#[test]
fn who_was_silent_a_moment_ago_is_not_asked_beside_others_before_it_is_back() {
    let mut levels = Levels::default();
    levels.told(at(0), Asked::Chunk(device(4)), false);
    let mut script = Script::begin_by(levels, at(10), CHUNK, 0);
    assert_eq!(script.actions(), [InquiryAction::Locate]);
    assert_eq!(script.locate(11), [ask(2), ask(3)]);
    assert_eq!(script.said(12, 2, [4, 9]), NOTHING);
    let told = script.said(13, 3, [4, 9]);
    assert_eq!(told, [InquiryAction::GiveTurn, LEARNED, InquiryAction::Over]);
    // It may have what both have lost.
    assert_eq!(script.read(14), BeforeRead::Serve);
    script.levels.told(at(20), Asked::Chunk(device(4)), true);
    assert_eq!(script.read(20), BeforeRead::Ask);
}

/// It has no room for the question for longer than a read waits: it is there all the same.
#[test]
fn who_has_no_room_for_the_question_is_not_told_as_silent() {
    let mut levels = Levels::default();
    // It was, some time ago; the question finds out whether it is back.
    levels.told(at(0), Asked::Chunk(device(3)), false);
    let mut script = Script::begin_by(levels, at(6000), CHUNK, 0);
    assert_eq!(script.actions(), [InquiryAction::Locate]);
    assert_eq!(script.locate(6001), [ask(2), ask(3), ask(4)]);
    for millis in [6010, 6110] {
        assert_eq!(script.tell(at(millis), InquiryInput::Refused { device: device(3) }), NOTHING);
        assert!(!script.is_silent(millis, 3));
    }
    assert_eq!(script.said(6120, 2, [4, 9]), NOTHING);
    assert_eq!(script.wake(7000), [InquiryAction::GiveTurn, LEARNED]);
    assert_eq!(script.wake(7000), NOTHING);
    assert_eq!([2, 3, 4].map(|chunk| script.is_silent(7000, chunk)), [false, false, true]);
    // What it says once it has room counts as any late answer does.
    let told = script.said(7500, 3, [5, 9]);
    assert_eq!(told, [LEARNED, InquiryAction::BringForward, InquiryAction::Over]);
}

#[test]
fn a_silent_metadata_server_keeps_no_other_chunk_from_its_turn() {
    let mut script = Script::begin(0);
    assert_eq!(script.actions(), [InquiryAction::Locate]);
    assert_eq!(script.wake(1000), [InquiryAction::GiveTurn]);
    assert_eq!(script.core.wake_at(), None);
    assert!(are_silent(&script.levels, at(1000), Asked::Metadata));
    assert_eq!(script.read(1000), BeforeRead::Serve);
    let mut other = Script::begin_by(script.levels.clone(), at(1001), OTHER, 0);
    assert_eq!(other.actions(), [LEARNED, InquiryAction::Over], "it is not asked again");
    // Parity had none of the time.
    assert_eq!(script.locate(1500), [ask(2), ask(3), ask(4)]);
    assert!(!are_silent(&script.levels, at(1500), Asked::Metadata));
    assert_eq!(script.core.wake_at(), Some(at(1000)), "at once");
    assert_eq!(script.tell(at(1500), InquiryInput::Tick), [LEARNED]);
    assert!((2..5).all(|chunk| !script.is_silent(1500, chunk)));
    assert_eq!(script.core.wake_at(), Some(at(5000)));
    let told = script.said(1600, 2, [5, 9]);
    assert_eq!(told, [LEARNED, InquiryAction::BringForward, InquiryAction::Over]);
}

#[test]
fn where_nobody_knows_where_parity_lies_the_chunk_is_read() {
    for (why, is_silent) in [(Unsaid::Silent, true), (Unsaid::Fault, false)] {
        let mut script = Script::begin(0);
        assert_eq!(script.actions(), [InquiryAction::Locate]);
        let told = script.tell(at(300), InquiryInput::Located(Err(why)));
        assert_eq!(told, [LEARNED, InquiryAction::Over]);
        assert_eq!(script.read(300), BeforeRead::Serve);
        assert_eq!(are_silent(&script.levels, at(300), Asked::Metadata), is_silent);
    }
}

#[test]
fn a_parity_chunk_that_lacks_what_another_one_has_is_refused_after_a_while_for_it() {
    let mut script = Script::asking(2, 0);
    assert_eq!(script.said(0, 3, [5, 7]), [InquiryAction::AskOwn]);
    let (mut now, mut looks) = (at(0), 1);
    loop {
        let told = script.own(now, [5, 6]);
        if told.contains(&InquiryAction::Over) {
            assert_eq!(told, [InquiryAction::GiveTurn, LAGS, InquiryAction::Over]);
            break;
        }
        let level = InquiryAction::Level { device: device(1), epoch: EPOCH };
        assert_eq!(told, if looks == 1 { vec![level] } else { Vec::new() }, "its host sends it once");
        now = script.core.wake_at().expect("it is looked at again");
        assert_eq!(script.tell(now, InquiryInput::Tick), [InquiryAction::AskOwn]);
        looks += 1;
    }
    // Of 1, 2, 4, 8 and 16 parts of 64 of a read's patience.
    assert_eq!((looks, now), (6, at(0) + Levels::PATIENCE * 31 / 64));
    assert_eq!(script.read(500), BeforeRead::Refuse);
}

#[test]
fn a_parity_chunk_that_gets_what_is_on_its_way_is_level() {
    let mut script = Script::asking(2, 0);
    assert_eq!(script.said(1, 4, [5, 7]), [InquiryAction::AskOwn]);
    // It is looked at for all that answer meanwhile.
    assert_eq!(script.counted(1, 0, 5), NOTHING);
    assert_eq!(script.own(at(2), [4, 6]).len(), 2, "the hosts of both data chunks are asked");
    let now = script.core.wake_at().expect("it is looked at again");
    assert_eq!(script.tell(now, InquiryInput::Tick), [InquiryAction::AskOwn]);
    // It has more than those by now.
    assert_eq!(script.own(now, [6, 7]), NOTHING);
    assert_eq!(script.said(18, 3, [6, 7]), [InquiryAction::AskOwn]);
    assert_eq!(script.own(at(19), [6, 7]), NOTHING);
    assert_eq!(script.counted(20, 1, 8), [InquiryAction::AskOwn]);
    let told = script.own(at(21), [6, 8]);
    assert_eq!(told, [InquiryAction::GiveTurn, LEARNED, InquiryAction::Over]);
    assert_eq!(script.read(1_000_000), BeforeRead::Serve);
}

/// It came back with an old image, and no other parity is there to say so.
#[test]
fn a_parity_chunk_that_lacks_what_a_data_chunk_counts_is_refused() {
    let only = ParityGeometry { chunks: 3, ..SHAPE };
    let mut script = Script::asking_in(only, 2, 0);
    assert_eq!(script.counted(1, 0, 5), [InquiryAction::AskOwn]);
    assert_eq!(script.counted(1, 1, 0), NOTHING);
    let level = InquiryAction::Level { device: device(0), epoch: EPOCH };
    assert_eq!(script.own(at(2), [3, 0]), [level]);
    loop {
        let now = script.core.wake_at().expect("it is looked at again");
        assert_eq!(script.tell(now, InquiryInput::Tick), [InquiryAction::AskOwn]);
        let told = script.own(now, [3, 0]);
        if told != NOTHING {
            assert_eq!(told, [InquiryAction::GiveTurn, LAGS, InquiryAction::Over]);
            break;
        }
    }
    assert_eq!(script.read(600), BeforeRead::Refuse);
}

/// What the other parity chunk says of it may be as old: its own node is waited for.
#[test]
fn a_silent_data_chunk_is_waited_for_as_long_as_a_read() {
    for shape in [ParityGeometry { chunks: 3, ..SHAPE }, ParityGeometry { chunks: 4, ..SHAPE }] {
        let is_alone = shape.chunks == 3;
        let mut script = Script::asking_in(shape, 2, 1);
        assert_eq!(script.counted(2, 1, 7), [InquiryAction::AskOwn]);
        assert_eq!(script.own(at(2), [5, 7]), NOTHING);
        if !is_alone {
            assert_eq!(script.said(3, 3, [5, 7]), [InquiryAction::AskOwn]);
            assert_eq!(script.own(at(3), [5, 7]), NOTHING);
        }
        assert_eq!(script.wake(1000), [InquiryAction::GiveTurn, LEARNED]);
        assert_eq!(script.read(1000), BeforeRead::Serve);
        // Nobody who knows has answered for it: who asks next waits once more.
        let mut levels = script.levels.clone();
        assert_eq!(levels.before_read(at(6000), CHUNK), BeforeRead::Ask);
        levels.begun(at(6000), CHUNK);
        assert_eq!(levels.before_read(at(6000), CHUNK), BeforeRead::Wait { until: at(7000) });
        assert_eq!(script.wake(1000), NOTHING);
        assert_eq!([0, 1].map(|chunk| script.is_silent(1000, chunk)), [true, false]);
        // It is heard all the same, and nobody reads what it shows to lack changes.
        assert_eq!(script.counted(1500, 0, 6), [InquiryAction::AskOwn]);
        let level = InquiryAction::Level { device: device(0), epoch: EPOCH };
        assert_eq!(script.own(at(1501), [5, 7]), [level]);
        assert_eq!(script.read(1502), BeforeRead::Wait { until: at(2501) });
        let mut lags = script.clone();
        assert_eq!(lags.look_until_told(at(1501), [5, 7]).0, [LAGS, InquiryAction::Over]);
        assert_eq!(lags.read(2300), BeforeRead::Refuse);
        assert_eq!(script.look_until_told(at(1501), [6, 7]).0, [LEARNED, InquiryAction::Over]);
        assert_eq!(script.read(2000), BeforeRead::Serve);
    }
}

/// Nobody else knows of it, and that one has it.
#[test]
fn what_other_parity_says_of_a_data_chunk_whose_own_node_cannot_counts() {
    // Whichever of them comes last.
    let mut script = Script::asking(2, 1);
    assert_eq!(script.said(2, 3, [5, 7]), [InquiryAction::AskOwn]);
    assert_eq!(script.counted(2, 1, 7), NOTHING);
    assert_eq!(script.own(at(2), [5, 7]), NOTHING);
    assert_eq!(script.core.wake_at(), Some(at(1000)));
    assert_eq!(script.unsaid(2, 0, Unsaid::Fault), NOTHING);
    assert_eq!(script.core.wake_at(), Some(at(126)));
    for parity_is_first in [true, false] {
        let mut script = Script::asking(2, 1);
        let other = |script: &mut Script, millis| {
            assert_eq!(script.said(millis, 3, [5, 7]), [InquiryAction::AskOwn]);
            assert_eq!(script.own(at(millis), [5, 7]), NOTHING);
        };
        if parity_is_first {
            other(&mut script, 2);
        }
        assert_eq!(script.unsaid(3, 0, Unsaid::Fault), NOTHING);
        assert_eq!(script.counted(4, 1, 7), [InquiryAction::AskOwn]);
        assert_eq!(script.own(at(4), [5, 7]), NOTHING);
        if !parity_is_first {
            other(&mut script, 5);
        }
        let until = if parity_is_first { 193 } else { 257 };
        assert_eq!(script.wake(until), [InquiryAction::GiveTurn, LEARNED]);
        let mut levels = script.levels.clone();
        assert_eq!(levels.before_read(at(6000), CHUNK), BeforeRead::Ask);
        assert_eq!(levels.before_read(at(6000), CHUNK), BeforeRead::Serve, "with nobody waiting");
    }
}

/// All that it lacks it is given a while for, however soon others have answered for it, and not beyond a read's patience.
#[test]
fn a_parity_chunk_is_not_served_before_what_it_lacks_is_there() {
    let mut script = Script::asking(2, 1);
    assert_eq!(script.said(2, 3, [5, 7]), [InquiryAction::AskOwn]);
    assert_eq!(script.own(at(3), [5, 7]), NOTHING);
    assert_eq!(script.said(100, 4, [6, 7]), [InquiryAction::AskOwn]);
    let level = InquiryAction::Level { device: device(0), epoch: EPOCH };
    assert_eq!(script.own(at(101), [5, 7]), [level]);
    // Long after the others had time enough.
    let (told, when) = script.look_until_told(at(101), [5, 7]);
    assert_eq!(told, [InquiryAction::GiveTurn, LAGS, InquiryAction::Over]);
    assert!(when > at(500), "{when:?}");
}

/// What its device said when it was looked at first counts.
#[test]
fn a_parity_chunk_that_was_found_to_lack_changes_and_says_nothing_since_is_refused() {
    let lacks = || {
        let mut script = Script::asking(2, 0);
        assert_eq!(script.said(600, 3, [5, 7]), [InquiryAction::AskOwn]);
        assert_eq!(script.own(at(700), [5, 6]).len(), 1, "the host of a data chunk is asked");
        let again = script.core.wake_at().expect("it is looked at again");
        assert_eq!(script.tell(again, InquiryInput::Tick), [InquiryAction::AskOwn]);
        script
    };
    let refused = [InquiryAction::GiveTurn, LAGS, InquiryAction::Over];
    // Also where nobody else would have been waited for.
    let mut early = Script::asking(2, 0);
    assert_eq!(early.said(1, 3, [5, 7]), [InquiryAction::AskOwn]);
    assert_eq!(early.own(at(1), [5, 6]).len(), 1);
    let told = loop {
        let now = early.core.wake_at().expect("it is looked at again");
        assert_eq!(early.tell(now, InquiryInput::Tick), [InquiryAction::AskOwn]);
        let told = early.tell(now, InquiryInput::Own { held: Err(Unsaid::Silent) });
        if !told.is_empty() {
            break told;
        }
    };
    assert_eq!(told, refused);
    assert!(early.core.wake_at().is_none());
    // And where others say meanwhile what they have.
    let mut meanwhile = Script::asking(2, 1);
    assert_eq!(meanwhile.wake(1000), [InquiryAction::GiveTurn, LEARNED]);
    assert_eq!(meanwhile.wake(1000), NOTHING);
    assert_eq!(meanwhile.counted(1100, 0, 6), [InquiryAction::AskOwn]);
    assert_eq!(meanwhile.own(at(1100), [5, 7]).len(), 1);
    assert_eq!(meanwhile.counted(1101, 1, 7), [InquiryAction::AskOwn]);
    assert_eq!(meanwhile.own(at(1101), [5, 7]), NOTHING);
    assert!(matches!(meanwhile.read(1102), BeforeRead::Wait { .. }));
    // It is not waited for beyond a read's patience from then on, though it says nothing itself.
    let again = meanwhile.core.wake_at().expect("it is looked at again");
    assert_eq!(meanwhile.tell(again, InquiryInput::Tick), [InquiryAction::AskOwn]);
    assert_eq!(meanwhile.wake(2100), [LAGS, InquiryAction::Over]);
    assert_eq!(meanwhile.read(2100), BeforeRead::Refuse);
    let mut script = lacks();
    let mut now = at(800);
    loop {
        let told = script.tell(now, InquiryInput::Own { held: Err(Unsaid::Silent) });
        if !told.is_empty() {
            assert_eq!(told, refused);
            break;
        }
        assert_eq!(script.levels.clone().before_read(now, CHUNK), BeforeRead::Wait { until: at(1700) });
        now = script.core.wake_at().expect("it is asked once more");
        let told = script.tell(now, InquiryInput::Tick);
        if told != [InquiryAction::AskOwn] {
            assert_eq!((told, now), (refused.to_vec(), at(1000)));
            break;
        }
    }
    assert_eq!(script.read(1000), BeforeRead::Refuse);
    let mut script = lacks();
    assert_eq!(script.wake(1000), refused);
    assert_eq!(script.read(1000), BeforeRead::Refuse);
    // Where it is found to lack them when nobody hears the others any more.
    let mut script = Script::asking(2, 0);
    assert_eq!(script.wake(1000), [InquiryAction::GiveTurn, LEARNED]);
    assert_eq!(script.wake(1000), NOTHING);
    assert_eq!(script.said(4900, 3, [5, 7]), [InquiryAction::AskOwn]);
    assert_eq!(script.own(at(4990), [5, 6]).len(), 1);
    assert_eq!(script.wake(5000), [LAGS, InquiryAction::Over]);
}

/// Its own device stands still: the other one has said something all the same.
#[test]
fn who_has_answered_is_not_told_as_silent_while_it_is_compared() {
    let mut script = Script::asking(2, 0);
    assert_eq!(script.said(600, 3, [5, 7]), [InquiryAction::AskOwn]);
    assert_eq!(script.wake(1000), [InquiryAction::GiveTurn, LEARNED]);
    assert_eq!(script.wake(1000), NOTHING);
    assert_eq!([0, 3, 4].map(|chunk| script.is_silent(1000, chunk)), [true, false, true]);
    let (mut now, mut looks) = (at(1100), 1);
    loop {
        let told = script.tell(now, InquiryInput::Own { held: Err(Unsaid::Silent) });
        if !told.is_empty() {
            assert_eq!((told, looks), (vec![LEARNED], 6), "nobody has compared them");
            break;
        }
        now = script.core.wake_at().expect("it is asked once more");
        assert_eq!(script.tell(now, InquiryInput::Tick), [InquiryAction::AskOwn]);
        looks += 1;
    }
    assert_eq!(script.wake(5000), [InquiryAction::Over]);
}

#[test]
fn the_only_parity_chunk_that_has_what_data_chunks_count_is_level() {
    let mut script = Script::asking_in(ParityGeometry { chunks: 3, ..SHAPE }, 2, 1);
    assert_eq!(script.counted(2, 0, 5), [InquiryAction::AskOwn]);
    assert_eq!(script.own(at(3), [5, 7]), NOTHING);
    assert_eq!(script.counted(4, 1, 7), [InquiryAction::AskOwn]);
    assert_eq!(script.own(at(5), [5, 7]), [InquiryAction::GiveTurn, LEARNED, InquiryAction::Over]);
    assert_eq!(script.read(1_000_000), BeforeRead::Serve);
}

/// Whatever answers when, or never: the turn is given in time, and it ends.
#[test]
fn an_inquiry_ends_and_gives_its_turn_in_time() {
    for case in 0..500 {
        let mut random = super::rng(case);
        let mut below = |bound: u64| random.next_u64() % bound;
        let mut script = Script::begin([0, 2][below(2) as usize]);
        // What will happen, and when.
        let mut coming: Vec<(Time, InquiryInput)> = Vec::new();
        let (mut now, mut given, mut over, mut asked) = (at(0), None, None, Vec::new());
        // What others hold of the first data chunk, as far as they have said so, and whether the parity chunk last held less.
        let (mut others, mut own, mut lacks) = (0, 3, false);
        while over.is_none() {
            for action in script.actions() {
                assert_eq!(over, None, "case {case}: {action:?} after the end");
                let bits = 1 + below(20);
                let (after, is_answered) = (now + Duration::from_micros(below(1 << bits)), below(5) > 0);
                match action {
                    // That is said in the end.
                    InquiryAction::Locate => {
                        let holders = (0..SHAPE.chunks).map(device).collect();
                        let located = Located { epoch: EPOCH, shape: SHAPE, number: script.number, holders };
                        coming.push((after + after.since(now), InquiryInput::Located(Ok(located))));
                    }
                    InquiryAction::AskVersions { device } => {
                        assert!(!asked.contains(&device), "case {case}: asked twice");
                        asked.push(device);
                        let held = match below(8) {
                            0 => Err(Unsaid::Silent),
                            1 => Err(Unsaid::Fault),
                            // The first counts of a data chunk, the second of parity.
                            more => Ok(ChunkVersions { version: 3 + more % 3, ..held([3 + more % 3, 5]) }),
                        };
                        if is_answered {
                            coming.push((after, InquiryInput::Versions { device, held }));
                        }
                    }
                    InquiryAction::AskOwn => {
                        let held = match below(8) {
                            0 => Err(Unsaid::Silent),
                            _ => {
                                own = own.max(3 + below(3));
                                Ok(held([own, 5]))
                            }
                        };
                        if is_answered {
                            coming.push((after, InquiryInput::Own { held }));
                        }
                    }
                    InquiryAction::GiveTurn => {
                        assert_eq!(given, None, "case {case}: given twice");
                        given = Some(now);
                    }
                    InquiryAction::Over => over = Some(now),
                    InquiryAction::Level { .. }
                    | InquiryAction::Learned { .. }
                    | InquiryAction::BringForward => {}
                }
            }
            coming.sort_by_key(|(at, _)| *at);
            let wake_at = script.core.wake_at();
            match coming.first().map(|(at, _)| *at) {
                Some(at) if wake_at.is_none_or(|wake_at| at <= wake_at) => {
                    now = now.max(at);
                    let (_, input) = coming.remove(0);
                    let is_heard = over.is_none() && script.number >= SHAPE.data;
                    match &input {
                        InquiryInput::Versions { device: of, held: Ok(said) } if is_heard => {
                            let counts = if *of == device(0) { said.version } else { 0 };
                            let held =
                                said.held.iter().filter(|(of, _)| *of == 0).map(|(_, version)| *version);
                            let of_parity = if *of > device(1) { held.max() } else { None };
                            others = others.max(of_parity.unwrap_or(counts));
                        }
                        InquiryInput::Own { held: Ok(own) } if is_heard => lacks = own.held[0].1 < others,
                        _ => {}
                    }
                    script.core.handle(now, &mut script.levels, input);
                    let read = script.levels.clone().before_read(now, CHUNK);
                    assert!(!(lacks && read == BeforeRead::Serve), "case {case}: read at {now:?}");
                }
                _ if over.is_some() => {}
                _ => {
                    now = now.max(wake_at.expect("somebody is waited for"));
                    script.core.handle(now, &mut script.levels, InquiryInput::Tick);
                }
            }
        }
        let over = over.expect("it ends");
        assert!(given.unwrap_or(over) <= at(1000), "case {case}: its turn was given at {given:?}");
        assert!(over <= at(5000), "case {case}: over at {over:?}");
        assert!(!matches!(script.read(5000), BeforeRead::Wait { .. }), "case {case}");
    }
}
