//! What chunks hold that others have lost: of which nothing is read, and which parity stands in.

use super::{SHAPE, of_data, of_parity, unreachable};
use crate::{
    DeviceId, SegmentId,
    chunks::{Fence, Gather, GatherAction, GatherInput},
    layout::ParityGeometry,
    message::{ChunkVersions, Fault, NodeAnswer, NodeFault, RowsAt},
    read::{Cause, ReadError},
    serve::parity_log::{ChunkNumber, VersionsByChunk},
};
use core::{ops::Range, time::Duration};
use std::collections::BTreeSet;

const HOLDERS: [DeviceId; 4] = [DeviceId(10), DeviceId(11), DeviceId(12), DeviceId(13)];
const AGAIN: GatherAction = GatherAction::AskVersions { after: Duration::from_millis(10) };

const NONE: [u32; 0] = [];

/// Without what is to be read, where the chunks that `fenced` names were told and nodes said this.
fn without(fenced: [bool; 4], versions: [Option<ChunkVersions>; 4]) -> Vec<u32> {
    let told = |fenced: bool| if fenced { Ok(NodeAnswer::Done) } else { Err(unreachable()) };
    let fence = Fence::of(SHAPE, &fenced.map(told)).unwrap();
    fence.without(&versions, |_| false).into_iter().collect()
}

#[test]
fn nothing_is_read_of_a_data_chunk_that_lacks_versions_that_parity_has() {
    let versions = |data: [u64; 2], parity: [[u64; 2]; 2]| {
        let ([first, second], [one, other]) = (data.map(of_data), parity.map(of_parity));
        [first, second, one, other].map(Some)
    };
    let all = [true; 4];
    assert_eq!(without(all, versions([5, 7], [[5, 7]; 2])), NONE);
    assert_eq!(without(all, versions([5, 8], [[5, 7]; 2])), NONE, "what parity lacks was never acknowledged");
    // Its device came back with an old image, after both had merged what it lacks.
    assert_eq!(without(all, versions([4, 7], [[5, 7]; 2])), [0]);
    assert_eq!(without(all, versions([5, 6], [[5, 6], [5, 7]])), [1, 2], "one that has it is enough");
    // What may take differences still says nothing, and is not read either.
    let second_not_told = [true, true, true, false];
    assert_eq!(without(second_not_told, versions([4, 7], [[4, 7], [5, 7]])), [3]);
    assert_eq!(without(second_not_told, versions([4, 7], [[5, 7], [5, 7]])), [0, 3]);
}

#[test]
fn no_more_is_done_without_than_the_others_make_up_for() {
    let all = [true; 4];
    let outdated = || [Some(of_data(4)), Some(of_data(6)), Some(of_parity([5, 7])), Some(of_parity([5, 7]))];
    assert_eq!(without(all, outdated()), [0, 1]);
    // Of a parity chunk nobody knows.
    let mut versions = outdated();
    versions[3] = None;
    assert_eq!(without(all, versions.clone()), [0]);
    let told = all.map(|_| Ok(NodeAnswer::Done));
    assert_eq!(Fence::of(SHAPE, &told).unwrap().lacking(&versions), [0, 1], "which is told");
    // Of the other data chunk neither, and a parity chunk could not be told.
    let mut versions = outdated();
    versions[1] = None;
    assert_eq!(without([true, true, true, false], versions), [3]);
}

/// A parity chunk's device came back with an old image, in which it had merged what it held then.
#[test]
fn nothing_is_decoded_of_parity_that_lacks_versions_that_others_have() {
    let (all, of_data) = ([true; 4], |version| Some(of_data(version)));
    let of_parity = |held: [u64; 2]| Some(of_parity(held));
    // The data chunk whose versions it lacks is lost.
    assert_eq!(without(all, [None, of_data(0), of_parity([3, 0]), of_parity([5, 0])]), [2]);
    assert_eq!(without(all, [None, of_data(0), of_parity([5, 0]), of_parity([3, 0])]), [3]);
    // Or may be late; where the other parity chunk is lost, too, it shows beside that which is not.
    assert_eq!(without(all, [of_data(5), of_data(0), of_parity([3, 0]), of_parity([5, 0])]), [2]);
    assert_eq!(without(all, [of_data(5), of_data(0), of_parity([3, 0]), None]), NONE, "one may fail yet");
    assert_eq!(without(all, [of_data(5), None, of_parity([3, 0]), None]), NONE, "nobody makes up for more");
}

/// Where more chunks hold less than can have lost something, as differences were on their way when the fence came.
#[test]
fn what_nothing_else_would_show_is_left_out_first() {
    let of_data = |version| Some(of_data(version));
    let of_parity = |held: [u64; 2]| Some(of_parity(held));
    let without = |shape, versions: [Option<ChunkVersions>; 5]| -> Vec<u32> {
        let told = [(); 5].map(|()| Ok(NodeAnswer::Done));
        let fence = Fence::of(shape, &told).unwrap();
        fence.without(&versions, |_| false).into_iter().collect()
    };
    let three_of_parity = ParityGeometry { chunks: 5, ..SHAPE };
    let of_first = |last| [None, of_data(7), of_parity([5, 6]), of_parity([4, 7]), last];
    assert_eq!(without(three_of_parity, of_first(of_parity([5, 7]))), [3], "one may fail yet");
    // What parity lacks of a chunk that is read beside it shows.
    assert_eq!(without(three_of_parity, of_first(None)), [3]);
    // Not so what a data chunk lacks.
    let three_of_data = ParityGeometry { chunks: 5, data: 3, ..SHAPE };
    let of_second = |third| [of_data(3), of_data(7), third, of_parity([5, 7]), of_parity([5, 6])];
    assert_eq!(without(three_of_data, of_second(of_data(0))), [0]);
    assert_eq!(without(three_of_data, of_second(None)), [0]);
}

/// Under load each parity chunk may miss a difference that was on its way when the fence came.
#[test]
fn parity_that_lacks_what_is_read_beside_it_is_left_out_while_another_chunk_may_fail_yet() {
    let all = [true; 4];
    let versions = |data: [u64; 2], parity: [[u64; 2]; 2]| {
        let ([first, second], [one, other]) = (data.map(of_data), parity.map(of_parity));
        [first, second, one, other].map(Some)
    };
    assert_eq!(without(all, versions([6, 7], [[6, 6], [5, 7]])), [2]);
    // First what lacks the most: its device may have come back with an old image.
    assert_eq!(without(all, versions([6, 7], [[6, 6], [3, 7]])), [3]);
    let mut one_is_lost = versions([6, 7], [[6, 6], [5, 7]]);
    one_is_lost[2] = None;
    assert_eq!(without(all, one_is_lost), NONE);
}

/// A device that came back with an old image, an update whose difference did not come to both, or parity that says nothing.
#[test]
fn what_parity_that_is_read_lacks_of_a_chunk_is_told() {
    let ahead = |shape: ParityGeometry, fenced: [bool; 4], versions: [Option<ChunkVersions>; 4]| {
        let told = |fenced: bool| if fenced { Ok(NodeAnswer::Done) } else { Err(unreachable()) };
        let (answers, chunks) = (fenced.map(told), shape.chunks as usize);
        let fence = Fence::of(shape, &answers[..chunks]).unwrap();
        let without = fence.without(&versions[..chunks], |_| false);
        fence.ahead(&versions[..chunks], &without).into_iter().collect::<Vec<(ChunkNumber, u64)>>()
    };
    let (all, of_data) = ([true; 4], |version| Some(of_data(version)));
    let of_parity = |held: [u64; 2]| Some(of_parity(held));
    let old = [of_data(5), of_data(0), of_parity([3, 0]), None];
    assert_eq!(ahead(SHAPE, [true, true, true, false], old.clone()), [(0, 5)]);
    // The only parity chunk.
    assert_eq!(ahead(ParityGeometry { chunks: 3, ..SHAPE }, all, old), [(0, 5)]);
    // One of them is left out.
    let under_load = [of_data(6), of_data(7), of_parity([6, 6]), of_parity([5, 7])];
    assert_eq!(ahead(SHAPE, all, under_load), [(0, 6)]);
    let one_says_nothing = [of_data(6), of_data(0), of_parity([6, 0]), None];
    assert_eq!(ahead(SHAPE, all, one_says_nothing), [(0, 6)]);
    // Nothing more is known of what is gone, or lacks changes itself.
    let gone = [None, of_data(0), of_parity([3, 0]), of_parity([3, 0])];
    assert!(ahead(SHAPE, all, gone).is_empty());
    let outdated = [of_data(4), of_data(7), of_parity([5, 7]), of_parity([5, 7])];
    assert!(ahead(SHAPE, all, outdated).is_empty());
}

/// A gather of the first block, whose chunk is lost; the other data chunk says that it is at `version`.
struct First {
    core: Gather,
    version: u64,
    held: [[u64; 2]; 2],
}

impl First {
    fn new(version: u64, held: [[u64; 2]; 2]) -> Self {
        Self::of(0..1, VersionsByChunk::new(), version, held)
    }

    /// The same of other blocks, where parity is to have so much at least.
    fn of(wanted: Range<u32>, least: VersionsByChunk, version: u64, held: [[u64; 2]; 2]) -> Self {
        let mut core = Gather::new(SHAPE, &HOLDERS, &BTreeSet::new(), wanted).at_least(least);
        assert_eq!(core.poll(), Some(GatherAction::AskVersions { after: Duration::ZERO }));
        Self { core, version, held }
    }

    fn drain(&mut self) -> Vec<GatherAction> {
        core::iter::from_fn(|| self.core.poll()).collect()
    }

    /// Nodes say what they hold.
    fn answer(&mut self) -> Vec<GatherAction> {
        self.answer_beside(None)
    }

    /// The same, and that of the first chunk says this.
    fn answer_beside(&mut self, first: Option<ChunkVersions>) -> Vec<GatherAction> {
        let [one, other] = self.held.map(of_parity);
        let held = [first, Some(of_data(self.version)), Some(one), Some(other)];
        for (chunk, held) in (0..).zip(held) {
            self.core.handle(GatherInput::Versions { chunk, held });
        }
        self.drain()
    }

    fn row(&mut self, chunk: u32, version: u64) -> Vec<GatherAction> {
        self.core.handle(GatherInput::Row { chunk, version });
        self.drain()
    }

    fn overtaken(&mut self, chunk: u32) -> Vec<GatherAction> {
        let (device, segment) = (HOLDERS[chunk as usize], SegmentId(1));
        self.failed(chunk, NodeFault::Overtaken { device, segment })
    }

    fn lacks_changes(&mut self, chunk: u32) -> Vec<GatherAction> {
        let (device, segment) = (HOLDERS[chunk as usize], SegmentId(1));
        self.failed(chunk, NodeFault::LacksChanges { device, segment })
    }

    fn failed(&mut self, chunk: u32, fault: NodeFault) -> Vec<GatherAction> {
        self.failed_by(chunk, Cause::Fault(Fault::Node(fault)))
    }

    fn failed_by(&mut self, chunk: u32, cause: Cause) -> Vec<GatherAction> {
        self.core.handle(GatherInput::Failed { chunk, cause });
        self.drain()
    }
}

fn data(at: RowsAt) -> GatherAction {
    GatherAction::Read { chunk: 1, row: 0, at }
}

fn parity(number: u16, versions: [u64; 2]) -> GatherAction {
    let at = RowsAt::Parity { data: 2, parity: 2, number, versions: (0..).zip(versions).collect() };
    GatherAction::Read { chunk: 2 + u32::from(number), row: 0, at }
}

fn done() -> [GatherAction; 2] {
    [GatherAction::Row { row: 0, wanted: vec![0], lost: vec![0] }, GatherAction::Done]
}

#[test]
fn a_lost_chunk_is_decoded_of_parity_that_holds_the_most_of_it() {
    for (held, number) in [([[3, 4], [9, 4]], 1), ([[9, 4], [3, 4]], 0), ([[9, 4], [9, 8]], 0)] {
        let mut gather = First::new(4, held);
        assert_eq!(gather.answer(), [data(RowsAt::Newest)]);
        assert_eq!(gather.row(1, 4), [parity(number, [9, 4])], "{held:?}");
        assert_eq!(gather.row(2 + u32::from(number), 0), done());
    }
}

/// It lost a difference of a chunk that is there, whose node keeps it no more.
#[test]
fn parity_that_never_gets_there_gives_way_to_other_parity() {
    let mut gather = First::new(5, [[3, 4], [3, 5]]);
    assert_eq!(gather.answer(), [data(RowsAt::Newest)]);
    assert_eq!(gather.row(1, 5), [parity(0, [3, 5])]);
    assert_eq!(gather.overtaken(2), [AGAIN]);
    assert_eq!(gather.answer(), [data(RowsAt::Data(4))]);
    assert_eq!(gather.overtaken(1), [AGAIN]);
    assert_eq!(gather.answer(), [data(RowsAt::Newest)]);
    assert_eq!(gather.row(1, 5), [parity(1, [3, 5])]);
    assert_eq!(gather.row(3, 0), done());
}

#[test]
fn parity_that_holds_less_of_what_is_lost_is_read_where_the_other_never_gets_there() {
    let mut gather = First::new(5, [[9, 4], [3, 5]]);
    let mut attempts = 0;
    loop {
        let asked = gather.answer();
        let [GatherAction::Read { chunk: 1, row: 0, at }] = &asked[..] else { panic!("{asked:?}") };
        let version = if let RowsAt::Data(version) = at { *version } else { 5 };
        let asked = gather.row(1, version);
        if matches!(asked[..], [GatherAction::Read { chunk: 3, .. }]) {
            assert_eq!(asked, [parity(1, [3, 5])]);
            break;
        }
        assert!(matches!(asked[..], [GatherAction::Read { chunk: 2, .. }]), "{asked:?}");
        assert_eq!(gather.overtaken(2), [AGAIN]);
        attempts += 1;
    }
    assert!(attempts >= 8, "after {attempts}");
    assert_eq!(gather.row(3, 0), done());
}

/// Its own node named more behind a fence, and is late.
#[test]
fn parity_that_has_less_than_a_chunk_named_does_not_stand_in_for_it() {
    let at_least = |least: VersionsByChunk, held| First::of(0..1, least, 4, held);
    let mut gather = at_least([(0, 5)].into(), [[3, 4], [5, 4]]);
    for attempt in 0..15 {
        assert_eq!(gather.answer(), [data(if attempt % 2 == 0 { RowsAt::Newest } else { RowsAt::Data(4) })]);
        assert_eq!(gather.row(1, 4), [parity(1, [5, 4])]);
        assert_eq!(gather.overtaken(3), [AGAIN], "nor does it later");
    }
    let mut gather = at_least([(0, 5)].into(), [[3, 4], [4, 9]]);
    assert_eq!(gather.answer(), [AGAIN]);
    let end = gather.answer();
    assert!(matches!(end[..], [GatherAction::Failed(ReadError::NotEnough { .. })]), "{end:?}");
    // What it lacks of the other one shows where that is read.
    let mut gather = at_least([(1, 5)].into(), [[3, 4], [3, 4]]);
    assert_eq!(gather.answer(), [data(RowsAt::Newest)]);
    // And of one that nobody wants nothing is decoded.
    let mut gather = First::of(3..4, [(0, 5)].into(), 4, [[3, 4], [3, 4]]);
    assert_eq!(gather.answer(), [data(RowsAt::Newest)]);
    let end = [GatherAction::Row { row: 0, wanted: vec![1], lost: Vec::new() }, GatherAction::Done];
    assert_eq!(gather.row(1, 4), end);
}

/// A change that no parity chunk has was never acknowledged, and a disk may have a bad place besides.
#[test]
fn a_damaged_row_is_decoded_of_what_there_is_and_not_so_that_of_a_chunk_that_is_late() {
    let damaged = || {
        let (device, detail) = (HOLDERS[0], "EIO".to_owned());
        Cause::Fault(Fault::Node(NodeFault::Medium { device, detail }))
    };
    for (held, cause, stands_in) in [
        ([[3, 4], [4, 4]], damaged(), Some([4, 4])),
        ([[3, 4], [5, 4]], damaged(), Some([5, 4])),
        ([[3, 4], [4, 4]], unreachable(), None),
    ] {
        let mut gather = First::of(0..1, [(0, 5)].into(), 4, held);
        for _ in 0..2 {
            let own = GatherAction::Read { chunk: 0, row: 0, at: RowsAt::Newest };
            assert_eq!(gather.answer_beside(Some(of_data(5))), [own]);
            assert_eq!(gather.failed_by(0, cause.clone()), [AGAIN]);
        }
        let asked = gather.answer_beside(Some(of_data(5)));
        let Some(versions) = stands_in else {
            assert_eq!(asked, [AGAIN]);
            continue;
        };
        assert_eq!(asked, [data(RowsAt::Newest)]);
        assert_eq!(gather.row(1, 4), [parity(1, versions)]);
        if versions[0] == 5 {
            for attempt in 3..15 {
                assert_eq!(gather.overtaken(3), [AGAIN]);
                let at = if attempt % 2 == 0 { RowsAt::Newest } else { RowsAt::Data(4) };
                assert_eq!(gather.answer_beside(Some(of_data(5))), [data(at)]);
                assert_eq!(gather.row(1, 4), [parity(1, versions)], "the other one has less than was named");
            }
        }
        assert_eq!(gather.row(3, 0), done());
    }
}

#[test]
fn parity_whose_node_says_that_it_lacks_changes_gives_way_to_other_parity() {
    let mut gather = First::new(4, [[5, 4], [5, 4]]);
    assert_eq!(gather.answer(), [data(RowsAt::Newest)]);
    assert_eq!(gather.row(1, 4), [parity(0, [5, 4])]);
    assert_eq!(gather.lacks_changes(2), [AGAIN]);
    assert_eq!(gather.answer(), [data(RowsAt::Data(4))]);
    assert_eq!(gather.row(1, 4), [parity(1, [5, 4])]);
    assert_eq!(gather.lacks_changes(3), [AGAIN]);
    assert_eq!(gather.answer(), [AGAIN]);
    let end = gather.answer();
    let [GatherAction::Failed(ReadError::NotEnough { failed, .. })] = &end[..] else { panic!("{end:?}") };
    let named: Vec<DeviceId> = failed.iter().map(|(device, _)| *device).collect();
    assert_eq!(named, HOLDERS[2..], "which is told");
}

#[test]
fn that_a_chunk_lacks_changes_is_told_also_where_it_says_no_more_or_had_failed_before() {
    let lacks = |chunk: u32| {
        let (device, segment) = (HOLDERS[chunk as usize], SegmentId(1));
        Cause::Fault(Fault::Node(NodeFault::LacksChanges { device, segment }))
    };
    let mut gather = First::new(4, [[5, 4], [5, 4]]);
    assert_eq!(gather.answer(), [data(RowsAt::Newest)]);
    assert_eq!(gather.row(1, 4), [parity(0, [5, 4])]);
    assert_eq!(gather.failed_by(2, unreachable()), [AGAIN]);
    for asked in 0..2 {
        let held = [(0, None), (1, Some(of_data(4)))];
        for (chunk, held) in held {
            gather.core.handle(GatherInput::Versions { chunk, held });
        }
        for chunk in [2, 3] {
            gather.core.handle(GatherInput::Lacks { chunk, cause: lacks(chunk) });
        }
        let told = gather.drain();
        if asked == 0 {
            assert_eq!(told, [AGAIN]);
            continue;
        }
        let [GatherAction::Failed(ReadError::NotEnough { failed, .. })] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(*failed, [2, 3].map(|chunk| (HOLDERS[chunk as usize], lacks(chunk))));
    }
}
