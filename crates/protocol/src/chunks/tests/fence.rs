use super::{SHAPE, of_data, of_parity, unreachable};
use crate::{
    chunks::Fence,
    message::{ChunkVersions, Fault, NodeAnswer, NodeFault},
    read::Cause,
};

/// Of the chunks whose places say so; the others are out of reach.
fn fence(fenced: [bool; 4]) -> Option<Fence> {
    Fence::of(SHAPE, &fenced.map(|fenced| if fenced { Ok(NodeAnswer::Done) } else { Err(unreachable()) }))
}

fn none_leaves(_: u32) -> bool {
    false
}

/// As a put has left them.
fn as_stored() -> [Option<ChunkVersions>; 4] {
    [of_data(0), of_data(0), of_parity([0, 0]), ChunkVersions::default()].map(Some)
}

#[test]
fn it_holds_with_one_parity_node_or_all_data_nodes() {
    for reached in 0..16u32 {
        let fenced = [0, 1, 2, 3].map(|chunk| reached >> chunk & 1 == 1);
        let holds = fenced[2] || fenced[3] || fenced[0] && fenced[1];
        assert_eq!(fence(fenced).is_some(), holds, "{fenced:?}");
    }
    assert_eq!(Fence::of(SHAPE, &[]), None, "nobody was asked");
}

#[test]
fn a_node_that_knows_a_later_epoch_is_fenced_and_one_that_says_something_else_is_not() {
    let stale = NodeFault::StaleEpoch { given: 3, current: 4 };
    let later = || Err(Cause::Fault(Fault::Node(stale.clone())));
    let refused = || Err(Cause::Fault(Fault::Node(NodeFault::Invalid("no".to_owned()))));
    let fence = Fence::of(SHAPE, &[refused(), refused(), later(), refused()]).unwrap();
    assert_eq!(fence.unfenced().collect::<Vec<_>>(), [3]);
    let other = || Ok(NodeAnswer::Updated { version: 1 });
    assert_eq!(Fence::of(SHAPE, &[other(), other(), other(), other()]), None);
}

#[test]
fn what_all_say_was_never_changed_is_not_and_anything_less_may_be() {
    let all = fence([true; 4]).unwrap();
    assert!(!all.changed(&as_stored(), none_leaves));
    for (chunk, held) in [
        (0, Some(of_data(1))),
        (1, None),
        (2, Some(of_parity([0, 1]))),
        (3, Some(of_parity([1, 0]))),
        (3, None),
    ] {
        let mut versions = as_stored();
        versions[chunk] = held.clone();
        assert!(all.changed(&versions, none_leaves), "{chunk}: {held:?}");
    }
    // One that could not be told may take updates still, whatever it says that it holds.
    for unfenced in 0..4 {
        let fence = fence([0, 1, 2, 3].map(|chunk| chunk != unfenced)).unwrap();
        assert!(fence.changed(&as_stored(), none_leaves), "{unfenced}");
        assert!(!fence.changed(&as_stored(), |chunk| chunk == unfenced as u32), "{unfenced} leaves");
    }
}

#[test]
fn of_what_leaves_only_a_parity_chunk_that_stays_known_tells() {
    // A data chunk on a dead device: parity says that it was not changed.
    let fenced = fence([false, true, true, true]).unwrap();
    let mut versions = as_stored();
    versions[0] = None;
    assert!(!fenced.changed(&versions, |chunk| chunk == 0));
    // No parity node says so: it may have been.
    let fenced = fence([true, true, false, false]).unwrap();
    assert!(fenced.changed(&as_stored(), |chunk| chunk >= 2));
    assert_eq!(fenced.unfenced().collect::<Vec<_>>(), [2, 3]);
}

/// Its device has an update whose difference came to parity after the fence, or may have one: its bytes are not what parity is made of.
#[test]
fn what_leaves_is_moved_alone_only_where_its_bytes_are_what_parity_holds() {
    let first_leaves = |chunk: u32| chunk == 0;
    let without = |fence: &Fence, versions: &[Option<ChunkVersions>]| -> Vec<u32> {
        fence.without(versions, first_leaves).into_iter().collect()
    };
    let all = fence([true; 4]).unwrap();
    assert!(!all.changed(&as_stored(), first_leaves));
    assert!(without(&all, &as_stored()).is_empty());
    let mut versions = as_stored();
    versions[0] = Some(of_data(1));
    assert!(all.changed(&versions, first_leaves));
    assert!(without(&all, &versions).is_empty(), "all is stored anew");
    // It does not say, or may take updates yet: it is decoded of the others.
    versions[0] = None;
    assert!(!all.changed(&versions, first_leaves));
    assert_eq!(without(&all, &versions), [0]);
    let first_not_told = fence([false, true, true, true]).unwrap();
    assert!(!first_not_told.changed(&as_stored(), first_leaves));
    assert_eq!(without(&first_not_told, &as_stored()), [0]);
}

#[test]
fn all_is_stored_anew_where_too_few_are_left_to_read_without_what_nobody_knows() {
    let fenced = fence([true, true, true, false]).unwrap();
    let mut versions = as_stored();
    versions[..2].fill(None);
    let leaves = |chunk: u32| chunk != 2;
    assert!(fenced.changed(&versions, leaves));
    assert_eq!(fenced.without(&versions, leaves).into_iter().collect::<Vec<_>>(), [3]);
    let all = fence([true; 4]).unwrap();
    let leaves = |chunk: u32| chunk < 2;
    assert!(!all.changed(&versions, leaves));
    assert_eq!(all.without(&versions, leaves).into_iter().collect::<Vec<_>>(), [0, 1]);
}
