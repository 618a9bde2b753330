use super::{SHAPE, of_data, of_parity, unreachable};
use crate::{
    DeviceId, SegmentId,
    chunks::{Gather, GatherAction, GatherInput},
    message::{ChunkVersions, Fault, NodeFault, RefusalReason, RowsAt},
    read::{Cause, ReadError},
};
use core::{ops::Range, time::Duration};
use rand_core::Rng;
use rand_pcg::Pcg64Mcg;
use std::collections::{BTreeMap, BTreeSet};

const HOLDERS: [DeviceId; 4] = [DeviceId(10), DeviceId(11), DeviceId(12), DeviceId(13)];
const FIRST: GatherAction = GatherAction::AskVersions { after: Duration::ZERO };
const AGAIN: GatherAction = GatherAction::AskVersions { after: Duration::from_millis(10) };

fn gather(excluded: &[u128], wanted: Range<u32>) -> Gather {
    Gather::new(SHAPE, &HOLDERS, &excluded.iter().copied().map(DeviceId).collect(), wanted)
}

fn drain(core: &mut Gather) -> Vec<GatherAction> {
    core::iter::from_fn(|| core.poll()).collect()
}

fn answer(core: &mut Gather, versions: [Option<ChunkVersions>; 4]) -> Vec<GatherAction> {
    for (chunk, held) in (0..).zip(versions) {
        assert_eq!(core.poll(), None, "all are waited for");
        core.handle(GatherInput::Versions { chunk, held });
    }
    drain(core)
}

fn row(core: &mut Gather, chunk: u32, version: u64) -> Vec<GatherAction> {
    core.handle(GatherInput::Row { chunk, version });
    drain(core)
}

fn failed(core: &mut Gather, chunk: u32, cause: Cause) -> Vec<GatherAction> {
    core.handle(GatherInput::Failed { chunk, cause });
    drain(core)
}

fn overtaken(chunk: u32) -> Cause {
    let device = HOLDERS[chunk as usize];
    Cause::Fault(Fault::Node(NodeFault::Overtaken { device, segment: SegmentId(1) }))
}

fn lacks_changes(chunk: u32) -> Cause {
    let device = HOLDERS[chunk as usize];
    Cause::Fault(Fault::Node(NodeFault::LacksChanges { device, segment: SegmentId(1) }))
}

fn refused(retry_after_ms: u32) -> Cause {
    Cause::Fault(Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms })
}

fn later(ms: u64) -> GatherAction {
    GatherAction::AskVersions { after: Duration::from_millis(ms) }
}

fn read(chunk: u32, row: u32, at: RowsAt) -> GatherAction {
    GatherAction::Read { chunk, row, at }
}

fn parity(number: u16, versions: [u64; 2]) -> RowsAt {
    RowsAt::Parity { data: 2, parity: 2, number, versions: (0..).zip(versions).collect() }
}

fn done(row: u32, wanted: &[u32], lost: &[u32]) -> GatherAction {
    GatherAction::Row { row, wanted: wanted.to_vec(), lost: lost.to_vec() }
}

#[test]
fn what_lies_on_data_nodes_that_answer_is_read_of_just_those() {
    // Blocks 2 (row 2 of chunk 0) and 3 (row 0 of chunk 1).
    let mut core = gather(&[], 2..4);
    assert_eq!(drain(&mut core), [FIRST]);
    let held = [Some(of_data(4)), Some(of_data(0)), None, None];
    assert_eq!(answer(&mut core, held), [read(1, 0, RowsAt::Newest)]);
    assert_eq!(row(&mut core, 1, 7), [done(0, &[1], &[]), read(0, 2, RowsAt::Newest)]);
    assert_eq!(row(&mut core, 0, 5), [done(2, &[0], &[]), GatherAction::Done]);
}

#[test]
fn parity_is_asked_for_what_the_data_shows_and_of_the_lost_for_what_it_has() {
    let mut core = gather(&[], 0..1);
    drain(&mut core);
    let held = [None, Some(of_data(5)), Some(of_parity([9, 4])), Some(of_parity([3, 9]))];
    assert_eq!(answer(&mut core, held), [read(1, 0, RowsAt::Newest)]);
    // It went on since it was asked: parity will follow.
    assert_eq!(row(&mut core, 1, 6), [read(2, 0, parity(0, [9, 6]))]);
    assert_eq!(row(&mut core, 2, 0), [done(0, &[0], &[0]), GatherAction::Done]);
}

#[test]
fn where_parity_never_gets_there_the_oldest_state_is_read() {
    let mut core = gather(&[10], 0..3);
    drain(&mut core);
    let held = || [Some(of_data(8)), Some(of_data(5)), Some(of_parity([3, 4])), None];
    answer(&mut core, held());
    assert_eq!(row(&mut core, 1, 5), [read(2, 0, parity(0, [3, 5]))]);
    assert_eq!(failed(&mut core, 2, overtaken(2)), [AGAIN]);
    assert_eq!(answer(&mut core, held()), [read(1, 0, RowsAt::Data(4))]);
    assert_eq!(row(&mut core, 1, 4), [read(2, 0, parity(0, [3, 4]))]);
    assert_eq!(row(&mut core, 2, 0), [done(0, &[0], &[0]), read(1, 1, RowsAt::Data(4))]);
    // From the first row again, and as new as can be.
    assert_eq!(failed(&mut core, 1, overtaken(1)), [AGAIN]);
    assert_eq!(answer(&mut core, held()), [read(1, 0, RowsAt::Newest)]);
}

#[test]
fn without_any_data_node_parity_is_read_at_the_lowest_versions_that_it_has() {
    let mut core = gather(&[10, 11], 3..4);
    drain(&mut core);
    let held = [None, Some(of_data(5)), Some(of_parity([3, 6])), Some(of_parity([4, 5]))];
    let at = |number| parity(number, [3, 5]);
    assert_eq!(answer(&mut core, held), [read(2, 0, at(0)), read(3, 0, at(1))]);
    assert_eq!(row(&mut core, 3, 0), []);
    assert_eq!(row(&mut core, 2, 0), [done(0, &[1], &[1]), GatherAction::Done]);
}

#[test]
fn all_that_was_asked_is_waited_for_and_one_that_failed_twice_is_left_out() {
    let mut core = gather(&[], 0..4);
    drain(&mut core);
    let held = || [Some(of_data(1)), Some(of_data(1)), Some(of_parity([1, 1])), Some(of_parity([1, 1]))];
    assert_eq!(answer(&mut core, held()), [read(0, 0, RowsAt::Newest), read(1, 0, RowsAt::Newest)]);
    let damaged = || Cause::Fault(Fault::Protocol("rows arrived damaged".to_owned()));
    assert_eq!(failed(&mut core, 0, damaged()), []);
    // Nobody asked for it.
    assert_eq!(row(&mut core, 3, 1), []);
    assert_eq!(row(&mut core, 1, 1), [AGAIN]);
    assert_eq!(answer(&mut core, held()).len(), 2);
    assert_eq!(row(&mut core, 1, 1), []);
    // One that is busy is not one that fails.
    assert_eq!(failed(&mut core, 0, refused(1)), [AGAIN]);
    assert_eq!(answer(&mut core, held()).len(), 2);
    row(&mut core, 1, 1);
    assert_eq!(failed(&mut core, 0, damaged()), [AGAIN]);
    assert_eq!(answer(&mut core, held()), [read(1, 0, RowsAt::Newest)]);
    assert_eq!(row(&mut core, 1, 1), [read(3, 0, parity(1, [1, 1]))]);
}

/// What all is gathered of where all nodes answer, but cannot read these rows of their chunks: the rows, and of which chunks they are
/// decoded.
fn gathered(unreadable: &[(u32, u32)]) -> Result<Vec<(u32, Vec<u32>)>, ReadError> {
    let mut core = gather(&[], 0..6);
    let mut rows = Vec::new();
    loop {
        match core.poll().expect("it goes on, or is over") {
            GatherAction::AskVersions { .. } => {
                rows.clear();
                let held = [of_data(1), of_data(1), of_parity([1, 1]), of_parity([1, 1])];
                for (chunk, held) in (0..).zip(held.map(Some)) {
                    core.handle(GatherInput::Versions { chunk, held });
                }
            }
            GatherAction::Read { chunk, row, .. } if unreadable.contains(&(chunk, row)) => {
                let device = HOLDERS[chunk as usize];
                let fault = NodeFault::Medium { device, detail: "EIO".to_owned() };
                core.handle(GatherInput::Failed { chunk, cause: Cause::Fault(Fault::Node(fault)) });
            }
            GatherAction::Read { chunk, .. } => core.handle(GatherInput::Row { chunk, version: 1 }),
            GatherAction::Row { row, lost, .. } => rows.push((row, lost)),
            GatherAction::Done => return Ok(rows),
            GatherAction::Failed(error) => return Err(error),
        }
    }
}

#[test]
fn a_row_that_cannot_be_read_of_a_chunk_costs_that_row_of_it_alone() {
    // Of three of four chunks a row; two are enough for each.
    assert_eq!(gathered(&[(0, 0), (1, 1), (2, 1)]), Ok(vec![(0, vec![0]), (1, vec![1]), (2, vec![])]));
    // A chunk without any is not asked for each of them.
    let all = [(0, 0), (0, 1), (0, 2)];
    assert_eq!(gathered(&all), Ok(vec![(0, vec![0]), (1, vec![0]), (2, vec![0])]));
    let too_many = gathered(&[(0, 1), (1, 1), (2, 1)]);
    assert!(matches!(too_many, Err(ReadError::NotEnough { .. })), "{too_many:?}");
}

/// It came back with old data.
#[test]
fn a_chunk_that_lacks_changes_is_left_out_as_far_as_the_others_make_up_for_it() {
    let (old, other, of_both) = (|| Some(of_data(4)), || Some(of_data(2)), || Some(of_parity([5, 2])));
    let mut core = gather(&[], 0..1);
    drain(&mut core);
    let all = || [old(), other(), of_both(), of_both()];
    assert_eq!(answer(&mut core, all()), [read(0, 0, RowsAt::Newest)]);
    assert_eq!(failed(&mut core, 0, lacks_changes(0)), [AGAIN]);
    assert_eq!(answer(&mut core, all()), [read(1, 0, RowsAt::Data(2))]);
    assert_eq!(row(&mut core, 1, 2), [read(2, 0, parity(0, [5, 2]))]);
    assert_eq!(row(&mut core, 2, 0), [done(0, &[0], &[0]), GatherAction::Done]);
    // What is there of it is all there is.
    let mut core = gather(&[], 0..4);
    drain(&mut core);
    let two = || [old(), None, of_both(), None];
    assert_eq!(answer(&mut core, two()), [read(0, 0, RowsAt::Newest)]);
    assert_eq!(failed(&mut core, 0, lacks_changes(0)), [AGAIN]);
    assert_eq!(answer(&mut core, two()), [read(0, 0, RowsAt::Data(4))]);
    assert_eq!(row(&mut core, 0, 4), [read(2, 0, parity(0, [4, 2]))]);
    let next = [done(0, &[0, 1], &[1]), read(0, 1, RowsAt::Data(4))];
    assert_eq!(row(&mut core, 2, 0), next);
}

#[test]
fn who_ends_what_a_chunk_lacks_is_not_given_it_as_it_is() {
    let (old, of_both) = (|| Some(of_data(4)), || Some(of_parity([5, 2])));
    let mut core = gather(&[], 0..4).up_to_date();
    drain(&mut core);
    let two = || [old(), None, of_both(), None];
    assert_eq!(answer(&mut core, two()), [read(0, 0, RowsAt::Newest)]);
    assert_eq!(failed(&mut core, 0, lacks_changes(0)), [AGAIN]);
    assert_eq!(answer(&mut core, two()), [AGAIN], "others may be back by then");
    let mut again = core.clone();
    let end = answer(&mut core, two());
    assert!(matches!(end[..], [GatherAction::Failed(ReadError::NotEnough { .. })]), "{end:?}");
    // One is, and makes up for it.
    let three = [old(), Some(of_data(2)), of_both(), None];
    assert_eq!(answer(&mut again, three), [read(1, 0, RowsAt::Newest)]);
}

/// A node without room for an answer is asked again when it says, many times, and not for ever.
#[test]
fn who_refuses_is_waited_for_as_long_as_it_says() {
    let held = || [Some(of_data(1)), Some(of_data(1)), Some(of_parity([1, 1])), None];
    let mut core = gather(&[], 0..1);
    drain(&mut core);
    for _ in 0..16 {
        assert_eq!(answer(&mut core, held()), [read(0, 0, RowsAt::Newest)]);
        assert_eq!(failed(&mut core, 0, refused(300)), [later(300)]);
    }
    let mut attempts = 0;
    loop {
        assert_eq!(answer(&mut core, held()), [read(0, 0, RowsAt::Newest)]);
        let next = failed(&mut core, 0, refused(300));
        if matches!(next[..], [GatherAction::Failed(_)]) {
            break;
        }
        assert_eq!(next, [AGAIN], "it is no reason to wait any more");
        attempts += 1;
    }
    assert_eq!(attempts, 15);
}

#[test]
fn of_two_that_refuse_the_one_that_says_later_is_waited_for() {
    let held = || [Some(of_data(1)), Some(of_data(1)), Some(of_parity([1, 1])), None];
    let mut core = gather(&[], 0..4);
    drain(&mut core);
    for says in [[300, 50], [50, 300]] {
        assert_eq!(answer(&mut core, held()), [read(0, 0, RowsAt::Newest), read(1, 0, RowsAt::Newest)]);
        assert_eq!(failed(&mut core, 0, refused(says[0])), []);
        assert_eq!(failed(&mut core, 1, refused(says[1])), [later(300)]);
    }
    // Another's failure is a reason to ask at once.
    answer(&mut core, held());
    assert_eq!(failed(&mut core, 0, refused(300)), []);
    assert_eq!(failed(&mut core, 1, overtaken(1)), [AGAIN]);
}

/// These hold what they say, or say after how many ms they are to be asked again.
fn answer_or_refuse(core: &mut Gather, versions: [Result<ChunkVersions, u64>; 4]) -> Vec<GatherAction> {
    for (chunk, held) in (0..).zip(versions) {
        core.handle(match held {
            Ok(held) => GatherInput::Versions { chunk, held: Some(held) },
            Err(ms) => GatherInput::Busy { chunk, after: Duration::from_millis(ms) },
        });
    }
    drain(core)
}

#[test]
fn who_has_no_room_to_say_what_it_holds_is_asked_again_when_it_says() {
    let (data, of_both) = (|| Ok(of_data(1)), || Ok(of_parity([1, 1])));
    // Too few without it: for as long as for rows, and not for ever.
    for (ms, times) in [(300, 16), (2000, 2)] {
        let mut core = gather(&[12, 13], 0..6);
        drain(&mut core);
        for _ in 0..times {
            assert_eq!(answer_or_refuse(&mut core, [Err(ms), data(), of_both(), of_both()]), [later(ms)]);
        }
        let mut back = core.clone();
        let both = [read(0, 0, RowsAt::Newest), read(1, 0, RowsAt::Newest)];
        assert_eq!(answer_or_refuse(&mut back, [data(), data(), of_both(), of_both()]), both);
        assert_eq!(answer_or_refuse(&mut core, [Err(ms), data(), of_both(), of_both()]), [AGAIN]);
        let end = answer_or_refuse(&mut core, [Err(ms), data(), of_both(), of_both()]);
        assert!(matches!(end[..], [GatherAction::Failed(ReadError::NotEnough { .. })]), "{end:?}");
    }
    // The longest that any of them says.
    let mut core = gather(&[], 0..1);
    drain(&mut core);
    assert_eq!(answer_or_refuse(&mut core, [Err(50), data(), Err(300), Err(70)]), [later(300)]);
}

#[test]
fn who_has_no_room_is_waited_for_less_where_the_others_suffice() {
    let (data, of_both) = (|| Ok(of_data(1)), || Ok(of_parity([1, 1])));
    let mut core = gather(&[], 0..1);
    drain(&mut core);
    let without = || [Err(900), data(), of_both(), of_both()];
    for _ in 0..2 {
        assert_eq!(answer_or_refuse(&mut core, without()), [later(900)]);
    }
    assert_eq!(answer_or_refuse(&mut core, without()), [read(1, 0, RowsAt::Newest)]);
    // Nothing of it is wanted, nor of what it would stand in for.
    let mut core = gather(&[], 0..1);
    drain(&mut core);
    assert_eq!(
        answer_or_refuse(&mut core, [data(), Err(5), Err(5), of_both()]),
        [read(0, 0, RowsAt::Newest)]
    );
    // It may make up for one that lacks changes, which is read as it is only without it.
    let mut core = gather(&[13], 0..1);
    drain(&mut core);
    let all = || [data(), data(), of_both(), of_both()];
    assert_eq!(answer_or_refuse(&mut core, all()), [read(0, 0, RowsAt::Newest)]);
    assert_eq!(failed(&mut core, 0, lacks_changes(0)), [AGAIN]);
    let busy = || [data(), Err(1000), of_both(), of_both()];
    for _ in 0..4 {
        assert_eq!(answer_or_refuse(&mut core, busy()), [later(1000)]);
    }
    assert_eq!(answer_or_refuse(&mut core, busy()), [read(0, 0, RowsAt::Data(1))]);
}

/// It names no time.
#[test]
fn who_refuses_for_no_time_at_all_is_not_asked_for_ever() {
    let mut core = gather(&[12, 13], 0..6);
    drain(&mut core);
    let ended = (0..10_000).find(|_| {
        let next = answer_or_refuse(&mut core, [Err(0), Ok(of_data(1)), Err(0), Err(0)]);
        matches!(next[..], [GatherAction::Failed(_)])
    });
    assert!(ended.is_some());
}

#[test]
fn too_few_are_asked_twice_and_named() {
    let mut core = gather(&[11], 0..2);
    drain(&mut core);
    let held = || [None, Some(of_data(1)), Some(of_parity([1, 1])), None];
    assert_eq!(answer(&mut core, held()), [AGAIN]);
    // One comes back, and fails.
    answer(&mut core, [Some(of_data(1)), None, Some(of_parity([1, 1])), None]);
    assert_eq!(failed(&mut core, 0, unreachable()), [AGAIN]);
    let error = ReadError::NotEnough {
        missing: 2,
        originals: 6,
        reachable: 0,
        devices: 4,
        failed: vec![(DeviceId(10), unreachable())],
    };
    assert_eq!(answer(&mut core, held()), [GatherAction::Failed(error)]);
    assert_eq!(row(&mut core, 0, 1), [], "it is over");
}

#[test]
fn it_ends_where_chunks_go_on_for_ever() {
    let mut core = gather(&[], 0..1);
    let held = || [Some(of_data(1)), Some(of_data(1)), Some(of_parity([1, 1])), None];
    for _ in 0..15 {
        drain(&mut core);
        assert_eq!(answer(&mut core, held()).len(), 1);
        assert_eq!(failed(&mut core, 0, overtaken(0)), [AGAIN]);
    }
    answer(&mut core, held());
    let end = failed(&mut core, 0, overtaken(0));
    assert_eq!(end, [GatherAction::Failed(ReadError::Unsettled { attempts: 16 })]);
}

/// Nodes that die, go on, refuse and forget at random, and a reader of any range: whatever is said to be there is of one state, and it
/// ends.
#[test]
fn whatever_nodes_do_a_row_is_of_one_state_and_it_ends() {
    let (mut ended_well, mut decoded) = (0, 0);
    for case in 0..2000u128 {
        let mut random = Pcg64Mcg::new(2 * case + 1);
        let mut below = |bound: u64| random.next_u64() % bound;
        let (one, other) = (below(6) as u32, below(6) as u32);
        let wanted = one.min(other)..one.max(other) + 1;
        let excluded: Vec<u128> = (10..14).filter(|_| below(5) == 0).collect();
        let trouble = 2 + below(30);
        let mut core = gather(&excluded, wanted.clone());
        let mut versions = [below(4), below(4)];
        // Of this attempt: what was read of the row, and the blocks that are done.
        let mut rows: BTreeMap<u32, RowsAt> = BTreeMap::new();
        let mut blocks: BTreeSet<u32> = BTreeSet::new();
        let mut hard: BTreeMap<u32, u32> = BTreeMap::new();
        let mut asked: Vec<(u32, RowsAt)> = Vec::new();
        let end = 'ends: loop {
            while let Some(action) = core.poll() {
                match action {
                    GatherAction::AskVersions { .. } => {
                        assert!(asked.is_empty(), "case {case}: what was asked is not answered");
                        (rows, blocks) = Default::default();
                        for chunk in 0..4u32 {
                            if below(trouble) == 0 {
                                let after = Duration::from_millis(below(600));
                                core.handle(GatherInput::Busy { chunk, after });
                                continue;
                            }
                            let held = match chunk {
                                _ if below(trouble) == 0 => None,
                                0..2 => Some(of_data(versions[chunk as usize])),
                                _ => {
                                    Some(of_parity(versions.map(|version| version.saturating_sub(below(2)))))
                                }
                            };
                            core.handle(GatherInput::Versions { chunk, held });
                        }
                    }
                    GatherAction::Read { chunk, at, .. } => {
                        assert!(!excluded.contains(&u128::from(10 + chunk)), "case {case}");
                        assert!(hard.get(&chunk).is_none_or(|times| *times < 2), "case {case}");
                        asked.push((chunk, at));
                    }
                    GatherAction::Row { row, wanted: of, lost } => {
                        let read = std::mem::take(&mut rows);
                        for chunk in &of {
                            assert_ne!(read.contains_key(chunk), lost.contains(chunk), "case {case}");
                            assert!(blocks.insert(chunk * SHAPE.blocks + row), "case {case}: once");
                        }
                        assert!(lost.is_empty() || read.len() == 2, "case {case}: any two decode");
                        decoded += lost.len();
                        let mut states = BTreeSet::new();
                        for at in read.values() {
                            let RowsAt::Parity { versions, .. } = at else { continue };
                            states.insert(versions.clone());
                            assert!(states.len() == 1, "case {case}: {states:?}");
                            for (chunk, version) in versions {
                                let shown = read.get(&u32::from(*chunk));
                                assert!(shown.is_none_or(|at| *at == RowsAt::Data(*version)), "case {case}");
                            }
                        }
                    }
                    GatherAction::Done => break 'ends true,
                    GatherAction::Failed(_) => break 'ends false,
                }
            }
            assert!(!asked.is_empty(), "case {case}: it waits for nothing");
            let (chunk, at) = asked.swap_remove(below(asked.len() as u64) as usize);
            if below(trouble) == 0 {
                let (cause, fails) = match below(3) {
                    0 => (overtaken(chunk), 0),
                    1 => (refused(below(600) as u32), 0),
                    _ => (unreachable(), 1),
                };
                *hard.entry(chunk).or_default() += fails;
                core.handle(GatherInput::Failed { chunk, cause });
                continue;
            }
            let version = match &at {
                RowsAt::Newest => {
                    versions[chunk as usize] += below(2);
                    versions[chunk as usize]
                }
                RowsAt::Data(version) => *version,
                RowsAt::Parity { .. } => 0,
            };
            // What a data chunk shows is what counts, however it was asked.
            rows.insert(chunk, if chunk < 2 { RowsAt::Data(version) } else { at });
            core.handle(GatherInput::Row { chunk, version });
        };
        if end {
            assert_eq!(blocks, wanted.collect::<BTreeSet<_>>(), "case {case}");
            ended_well += 1;
        }
    }
    assert!(ended_well > 500 && decoded > 500, "{ended_well} ended well, {decoded} blocks were decoded");
}
