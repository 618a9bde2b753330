//! What chunks hold that others have lost: of which nothing is read, and which parity stands in.

use super::{SHAPE, of_data, of_parity, unreachable};
use crate::{
    DeviceId, SegmentId,
    chunks::{Fence, Gather, GatherAction, GatherInput},
    layout::ParityGeometry,
    message::{ChunkVersions, Fault, NodeAnswer, NodeFault, RowsAt},
    read::Cause,
};
use core::time::Duration;
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

/// A gather of the first block, whose chunk is lost; the other data chunk says that it is at `version`.
struct First {
    core: Gather,
    version: u64,
    held: [[u64; 2]; 2],
}

impl First {
    fn new(version: u64, held: [[u64; 2]; 2]) -> Self {
        let mut core = Gather::new(SHAPE, &HOLDERS, &BTreeSet::new(), 0..1);
        assert_eq!(core.poll(), Some(GatherAction::AskVersions { after: Duration::ZERO }));
        Self { core, version, held }
    }

    fn drain(&mut self) -> Vec<GatherAction> {
        core::iter::from_fn(|| self.core.poll()).collect()
    }

    /// Nodes say what they hold.
    fn answer(&mut self) -> Vec<GatherAction> {
        let [one, other] = self.held.map(of_parity);
        let held = [None, Some(of_data(self.version)), Some(one), Some(other)];
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
        let cause = Cause::Fault(Fault::Node(NodeFault::Overtaken { device, segment }));
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
