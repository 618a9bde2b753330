use super::*;
use crate::{
    NodeId,
    layout::{CodeKind, CodeSpec, GRANULE_BYTES},
};

const BLOCK: u32 = 64 << 10;

pub(in crate::plan) fn candidate(device: u128) -> Candidate {
    Candidate {
        device: DeviceId(device),
        node: NodeId(device / 10),
        site: String::new(),
        free_bytes: 1 << 30,
        queue_length: 0,
        read_bytes_per_s: 0,
        write_bytes_per_s: 1000 + device as u64,
        alive: true,
        health: DeviceHealth::Ok,
        reserved_read_bytes_per_s: 0,
        reserved_write_bytes_per_s: 0,
        sharing_ppm: Default::default(),
        refused: false,
        given: 0,
    }
}

/// A name and the blocks stored under it.
pub(in crate::plan) type Named<'a> = &'a [(u64, core::ops::Range<u32>)];

pub(in crate::plan) fn layout(k: u32, held: &[(u128, Named)]) -> SegmentLayout {
    let holder = |&(device, pieces): &(u128, Named)| Holder {
        device: DeviceId(device),
        pieces: pieces
            .iter()
            .map(|(name, blocks)| Piece {
                segment: SegmentId(*name),
                version: Version(*name),
                blocks: blocks.clone().into(),
            })
            .collect(),
    };
    SegmentLayout {
        segment: SegmentId(7),
        version: Version(7),
        epoch: Epoch(1),
        length: u64::from(k * BLOCK),
        code: CodeSpec { kind: CodeKind::Mix, originals: k, seed: 1 },
        block_bytes: BLOCK,
        granule_bytes: GRANULE_BYTES,
        holders: held.iter().map(holder).collect(),
    }
}

fn names(targets: &[Target]) -> Vec<u128> {
    targets.iter().map(|target| target.device.0).collect()
}

#[test]
fn an_amended_layout_lists_what_stays_and_what_is_new() {
    let before = layout(40, &[(10, &[(7, 0..16), (9, 40..44)]), (20, &[(7, 16..32)]), (30, &[(7, 32..40)])]);
    let dropped: IndexRanges = [3, 40, 41, 42, 43].into_iter().chain(32..40).collect();
    let share =
        |device, blocks: core::ops::Range<u32>| Share { device: DeviceId(device), blocks: blocks.into() };
    let name = (SegmentId(12), Version(11));
    let after = amended(&before, Epoch(5), &dropped, name, &[share(10, 3..4), share(40, 32..41)]);
    let expected =
        layout(40, &[(10, &[(7, 0..16), (12, 3..4)]), (20, &[(7, 16..32)]), (40, &[(12, 32..41)])]);
    assert_eq!((after.segment, after.version, after.epoch), (SegmentId(7), Version(7), Epoch(5)));
    assert_eq!(names_of(&after), names_of(&expected));
    assert_eq!(after.holders[0].pieces[0].blocks, (0..16).filter(|&index| index != 3).collect());
    assert_eq!(after.holders[0].pieces[1].version, Version(11));
    // The piece that was dropped whole is gone, and so is the holder of nothing.
    assert_eq!(stored(&after), (0..41).collect());
}

fn names_of(layout: &SegmentLayout) -> Vec<(u128, Vec<u64>)> {
    let holder =
        |holder: &Holder| (holder.device.0, holder.pieces.iter().map(|piece| piece.segment.0).collect());
    layout.holders.iter().map(holder).collect()
}

#[test]
fn devices_out_of_reach_are_not_counted_on() {
    let before =
        layout(40, &[(10, &[(7, 0..16)]), (20, &[(7, 16..32)]), (30, &[(7, 32..48)]), (99, &[(7, 48..50)])]);
    let mut candidates: Vec<Candidate> = [10, 11, 20, 30, 40, 50].map(candidate).into();
    candidates[2].alive = false;
    candidates[3].health = DeviceHealth::Full;
    candidates[5].health = DeviceHealth::Failed;
    let policy = "rateless".parse().unwrap();
    let places = Places::new(&candidates, (&policy, 0), &BTreeSet::new(), BLOCK);
    assert_eq!(places.domains, 5);
    let existing = places.existing(&before, &(0..4).into());
    // The dead one and the unknown one are left out; the full one has what it has.
    let seen: Vec<_> = existing.iter().map(|held| (held.device.0, held.blocks.count())).collect();
    assert_eq!(seen, [(10, 12), (30, 16)]);
    assert!(places.reach(&before, &(4..16).into()) && !places.reach(&before, &(4..17).into()));
    // 10 first, since it holds some; then a domain that has none before a domain that has.
    let (devices, spares) = places.targets(&before, &existing);
    assert_eq!((names(&devices), names(&spares)), (vec![10, 40, 11], vec![]));
}

#[test]
fn a_large_cluster_lends_an_amendment_a_few_spares() {
    let before = layout(40, &[(10, &[(7, 0..16)]), (20, &[(7, 16..32)])]);
    // On each of a hundred nodes ten devices.
    let candidates: Vec<Candidate> = (0..1000).map(candidate).collect();
    let places = Places::new(&candidates, (&"rateless".parse().unwrap(), 0), &BTreeSet::new(), BLOCK);
    let (devices, spares) = places.targets(&before, &places.existing(&before, &IndexRanges::new()));
    assert_eq!((names(&devices), spares.len()), (vec![20, 10], 2 + 2 * 2 + 8));
    let domains: BTreeSet<u32> = devices.iter().chain(&spares).map(|target| target.domain).collect();
    assert_eq!(domains.len(), devices.len() + spares.len(), "each spare is of a domain of its own");
}

#[test]
fn what_is_to_be_left_is_neither_counted_nor_written_to() {
    let before = layout(40, &[(10, &[(7, 0..16)]), (20, &[(7, 16..32)])]);
    let candidates: Vec<Candidate> = [10, 20, 30, 31].map(candidate).into();
    let leaving = BTreeSet::from([DeviceId(20)]);
    let places = Places::new(&candidates, (&"rateless".parse().unwrap(), 0), &leaving, BLOCK);
    let existing = places.existing(&before, &IndexRanges::new());
    assert_eq!(existing.len(), 1);
    let (devices, spares) = places.targets(&before, &existing);
    assert_eq!((names(&devices), names(&spares)), (vec![10, 31], vec![30]));
}

#[test]
fn one_more_copy_goes_to_a_domain_without_one() {
    let mut before = layout(1, &[(10, &[(7, 0..1)]), (20, &[(7, 1..2)])]);
    before.code.kind = CodeKind::Replicated;
    let candidates: Vec<Candidate> = [10, 11, 20, 30].map(candidate).into();
    let places =
        Places::new(&candidates, (&"rateless".parse().unwrap(), 0), &BTreeSet::from([DeviceId(20)]), BLOCK);
    let (devices, spares) = places.targets(&before, &places.existing(&before, &IndexRanges::new()));
    assert_eq!((names(&devices), names(&spares)), (vec![30], vec![]));
}

/// A device holds so many pieces of these sizes.
fn in_pieces(sizes: &[u32]) -> SegmentLayout {
    let mut next = 0;
    let pieces: Vec<(u64, core::ops::Range<u32>)> = sizes
        .iter()
        .zip(7..)
        .map(|(&size, name)| {
            next += size;
            (name, next - size..next)
        })
        .collect();
    layout(40, &[(10, &pieces), (20, &[(7, 5000..5010)])])
}

#[test]
fn small_pieces_are_merged_before_there_are_too_many() {
    let none = IndexRanges::new();
    let places = |devices: &[u128]| {
        let candidates: Vec<Candidate> = devices.iter().map(|&device| candidate(device)).collect();
        Places::new(&candidates, (&"rateless".parse().unwrap(), 0), &BTreeSet::new(), BLOCK)
    };
    let here = places(&[10, 20]);
    let limit = PIECES_MERGED_AT as u32;
    // One more piece is still allowed.
    let few = in_pieces(&[3; PIECES_MERGED_AT - 1]);
    assert!(here.merged(&few, &none).is_empty());
    // The first is large and stays, with as many of the others as half of what is allowed.
    let sizes: Vec<u32> = [90].into_iter().chain(1..limit).collect();
    let many = in_pieces(&sizes);
    let merged = here.merged(&many, &none);
    assert_eq!(merged.count(), (1..=limit / 2).sum::<u32>());
    let kept: Vec<u64> = many.holders[0]
        .pieces
        .iter()
        .filter(|piece| piece.blocks.difference(&merged).count() == piece.blocks.count())
        .map(|piece| piece.segment.0)
        .collect();
    assert_eq!((kept.len() as u32, kept[0]), (limit / 2, 7));
    // What the change drops anyway is not merged, and a piece that it drops whole does not count.
    let whole = many.holders[0].pieces[5].blocks.clone();
    assert!(here.merged(&many, &whole).is_empty());
    let part: IndexRanges = [90].into_iter().collect();
    assert!(!here.merged(&many, &part).contains(90));
    // One that cannot be written to gets no piece either.
    assert!(places(&[20]).merged(&many, &none).is_empty());
}

/// Amended for ever, a segment stays in few pieces, and a block is not written again and again for that.
#[test]
fn an_object_that_is_amended_for_ever_stays_in_few_pieces() {
    let candidates = [candidate(10), candidate(20)];
    let places = Places::new(&candidates, (&"rateless".parse().unwrap(), 0), &BTreeSet::new(), BLOCK);
    let mut now = layout(400, &[(10, &[(7, 0..300)]), (20, &[(7, 300..600)])]);
    let all = stored(&now);
    let (mut changed, mut written_again) = (0, 0);
    for round in 0..500u64 {
        // Seven blocks of each device, here and there.
        let touched: IndexRanges =
            (0..7).flat_map(|n| [0, 300].map(|base| base + ((round * 97 + n * 41) % 300) as u32)).collect();
        let merged = places.merged(&now, &touched);
        assert!(merged.intersection(&touched).is_empty());
        (changed, written_again) = (changed + touched.count(), written_again + merged.count());
        let mut replaced = touched.clone();
        replaced.insert_all(&merged);
        let shares: Vec<Share> = now
            .holders
            .iter()
            .map(|holder| Share { device: holder.device, blocks: holder.blocks().intersection(&replaced) })
            .collect();
        now = amended(
            &now,
            Epoch(round + 2),
            &replaced,
            (SegmentId(100 + round), Version(100 + round)),
            &shares,
        );
        assert_eq!(stored(&now), all);
        assert!(now.holders.iter().all(|holder| holder.pieces.len() <= PIECES_MERGED_AT));
    }
    assert!(written_again > 0 && written_again < 2 * changed, "{written_again} merged for {changed} changed");
}

#[test]
fn what_is_to_lie_on_several_sites_goes_to_those_that_it_left() {
    let before = layout(40, &[(10, &[(7, 0..16)]), (20, &[(7, 16..32)])]);
    let mut candidates: Vec<Candidate> = [10, 20, 30, 31, 40, 50].map(candidate).into();
    for (candidate, site) in
        candidates.iter_mut().zip(["here", "there", "here", "here", "there", "elsewhere"])
    {
        candidate.site = site.to_owned();
    }
    let leaving = BTreeSet::from([DeviceId(20)]);
    let names_for = |sites, leaving: &BTreeSet<DeviceId>| {
        let places = Places::new(&candidates, (&"rateless".parse().unwrap(), sites), leaving, BLOCK);
        let existing = places.existing(&before, &IndexRanges::new());
        let (devices, spares) = places.targets(&before, &existing);
        (names(&devices), names(&spares))
    };
    // Without a promise the fastest takes the place of the one that leaves.
    assert_eq!(names_for(0, &leaving), (vec![10, 50], vec![40, 31, 30]));
    assert_eq!(names_for(1, &leaving), (vec![10, 50], vec![40, 31, 30]));
    let without_50 = BTreeSet::from([DeviceId(20), DeviceId(50)]);
    assert_eq!(names_for(0, &without_50), (vec![10, 40], vec![31, 30]));
    // One that is slower, where only it is on another site.
    let slow_elsewhere = BTreeSet::from([DeviceId(20), DeviceId(40)]);
    assert_eq!(names_for(2, &slow_elsewhere), (vec![10, 50], vec![31, 30]));
    // All three, though it lay on two devices; where there are but two, those.
    assert_eq!(names_for(3, &leaving), (vec![10, 50, 40], vec![31, 30]));
    assert_eq!(names_for(3, &without_50), (vec![10, 40], vec![31, 30]));
    // What is there counts.
    assert_eq!(names_for(2, &BTreeSet::new()).0, [20, 10]);
    assert_eq!(names_for(3, &BTreeSet::new()), (vec![20, 10, 50], vec![40, 31, 30]));
}

#[test]
fn the_copy_of_a_site_goes_to_that_site() {
    let mut before = layout(1, &[(10, &[(7, 0..1)]), (20, &[(7, 1..2)])]);
    before.code.kind = CodeKind::Replicated;
    let mut candidates: Vec<Candidate> = [10, 20, 30, 40].map(candidate).into();
    for (candidate, site) in candidates.iter_mut().zip(["here", "there", "there", "here"]) {
        candidate.site = site.to_owned();
    }
    let leaving = BTreeSet::from([DeviceId(20)]);
    let places = |sites| Places::new(&candidates, (&"rateless".parse().unwrap(), sites), &leaving, BLOCK);
    let names_for = |sites, dropped: &IndexRanges| {
        let places = places(sites);
        let (devices, spares) = places.targets(&before, &places.existing(&before, dropped));
        (names(&devices), names(&spares))
    };
    // One copy stays: one device is opened, and it is on the site that was left.
    assert_eq!(names_for(0, &IndexRanges::new()), (vec![40], vec![30]));
    assert_eq!(names_for(2, &IndexRanges::new()), (vec![30], vec![40]));
    // Both are written anew: the other one where it was.
    assert_eq!(names_for(2, &(0..2).into()), (vec![10, 30], vec![40]));
}

#[test]
fn copies_find_homes_where_their_originals_have_no_other_copy() {
    // K = 4 and three copies, rotated over six nodes; the second leaves.
    let held: [(u128, Named); 6] = [
        (10, &[(7, 0..1), (7, 5..6), (7, 10..11)]),
        (20, &[(7, 1..2), (7, 6..7), (7, 11..12)]),
        (30, &[(7, 2..3), (7, 7..8)]),
        (40, &[(7, 3..4), (7, 8..9)]),
        (50, &[(7, 4..5)]),
        (60, &[(7, 9..10)]),
    ];
    let mut before = layout(4, &held);
    before.code.kind = CodeKind::Replicated;
    let candidates: Vec<Candidate> = [10, 20, 30, 40, 50, 60].map(candidate).into();
    let leaving = BTreeSet::from([DeviceId(20)]);
    let places = Places::new(&candidates, (&"replicated:copies=3".parse().unwrap(), 0), &leaving, BLOCK);
    let copies = [1, 6, 11].into_iter().collect();
    let existing = places.existing(&before, &copies);
    let (devices, _) = places.targets(&before, &existing);
    let homes = places.homes(&before, (&existing, &[]), &copies, &devices);
    let mut all = IndexRanges::new();
    homes.iter().for_each(|(_, blocks)| all.insert_all(blocks));
    assert_eq!(all, copies);
    for (device, blocks) in &homes {
        let there = before.holder(*device).unwrap().blocks();
        for index in blocks.iter() {
            assert!(there.iter().all(|other| other % 4 != index % 4), "{index} on {device}");
        }
    }
    // Not all on the same: those with least come first.
    assert!(homes.len() >= 2, "{homes:?}");
    // With one on its way to 50, none of the same original goes there, and where there is no other it has no home.
    let placed = [(DeviceId(50), (5..6).into())];
    let only: Vec<Target> = devices.iter().filter(|target| target.device == DeviceId(50)).copied().collect();
    assert_eq!(places.homes(&before, (&existing, &placed), &(1..2).into(), &only), []);
    assert_eq!(
        places.homes(&before, (&existing, &placed), &(6..7).into(), &only),
        [(DeviceId(50), (6..7).into())]
    );
}

#[test]
fn sites_without_a_device_that_takes_data_are_not_insisted_on() {
    let mut candidates: Vec<Candidate> = [10, 20, 30].map(candidate).into();
    for (candidate, site) in candidates.iter_mut().zip(["here", "there", "elsewhere"]) {
        candidate.site = site.to_owned();
    }
    let had = |candidates: &[Candidate], sites| to_be_had(Pledge { tolerate: 3, sites }, candidates);
    assert_eq!(had(&candidates, 2), Pledge { tolerate: 3, sites: 2 });
    assert_eq!(had(&candidates, 9), Pledge { tolerate: 3, sites: 3 });
    candidates[0].alive = false;
    candidates[1].health = DeviceHealth::Full;
    assert_eq!(had(&candidates, 2), Pledge { tolerate: 3, sites: 1 });
}
