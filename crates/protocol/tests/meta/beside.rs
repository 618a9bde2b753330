//! Amendments of different segments of one object that are under way at once.

use crate::support::{World, base_of, chunked, node_record};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use steadfast_protocol::{
    Version,
    layout::{ParityGeometry, SegmentLayout},
    message::{AmendBase, Change, Freed, MetaAnswer, MetaFault, PutBegun, SegmentState},
    policy::{Parity, Pledge},
};

const MIB: u64 = 1 << 20;

/// A writer of an object: what it began from, and what it lists.
struct Writer {
    begun: PutBegun,
    pledge: Pledge,
    base: Vec<SegmentLayout>,
    segments: Vec<SegmentLayout>,
}

impl Writer {
    /// One who begins now, and is to store so many segments.
    fn begin(world: &mut World, segments: u32) -> Self {
        let (object, base) = world.object("k");
        let begun = world.amend("k", object.version, segments, true).unwrap();
        Self { begun, pledge: object.pledge, segments: base.clone(), base }
    }

    /// Stores a segment of so many bytes anew, or the first time, behind holes.
    fn store(mut self, at: usize, length: u64) -> Self {
        while self.segments.len() < at {
            self = self.hole(MIB);
        }
        let layout = self.chunks(at, length);
        match self.segments.get_mut(at) {
            Some(replaced) => *replaced = layout,
            None => self.segments.push(layout),
        }
        self
    }

    /// Makes it longer by a hole.
    fn hole(mut self, length: u64) -> Self {
        let stored = self.chunks(self.segments.len(), length);
        self.segments.push(SegmentLayout { holders: Vec::new(), ..stored });
        self
    }

    /// Makes a segment that is stored a hole.
    fn punch(mut self, at: usize) -> Self {
        let length = self.segments[at].length;
        self.segments[at] = SegmentLayout { holders: Vec::new(), ..self.chunks(at, length) };
        self
    }

    fn chunks(&self, at: usize, length: u64) -> SegmentLayout {
        let shape = ParityGeometry::of(&Parity { segment_bytes: MIB, ..Parity::default() }, MIB);
        chunked(&self.begun, self.begun.segments[at], shape, length)
    }

    fn made_from(&self) -> AmendBase {
        base_of(self.pledge, &self.base, &self.segments)
    }

    fn commit(&self, world: &mut World) -> Result<(Version, Vec<Freed>), MetaFault> {
        self.commit_from(world, Some(self.made_from()), Pledge::default())
    }

    fn commit_from(
        &self,
        world: &mut World,
        base: Option<AmendBase>,
        pledge: Pledge,
    ) -> Result<(Version, Vec<Freed>), MetaFault> {
        let (intent, segments) = (self.begun.intent, self.segments.clone());
        let size = segments.iter().map(|layout| layout.length).sum();
        let base = base.map(Box::new);
        match world.change(Change::Commit { intent, size, segments, pledge, base })? {
            MetaAnswer::Committed { version, freed } => Ok((version, freed)),
            other => panic!("{other:?}"),
        }
    }
}

/// A file of whole segments, and a last one of so many bytes where that is not 0.
fn file(whole: u32, last: u64) -> World {
    let mut world = World::empty();
    for node in 1..=7 {
        world.register(&node_record(node, &[node])).unwrap();
    }
    world.create("data", "parity:segment=1MiB").unwrap();
    world.change(Change::Create { bucket: "data".into(), key: "k".into() }).unwrap();
    let mut first = Writer::begin(&mut world, whole + 1);
    for at in 0..whole as usize {
        first = first.store(at, MIB);
    }
    if last > 0 {
        first = first.store(whole as usize, last);
    }
    first.commit(&mut world).unwrap();
    world
}

fn names(layouts: &[SegmentLayout]) -> Vec<u64> {
    layouts.iter().map(|layout| layout.segment.0).collect()
}

fn is_overtaken<T: core::fmt::Debug>(answer: Result<T, MetaFault>) {
    assert!(matches!(answer, Err(MetaFault::Conflict { .. })), "{answer:?}");
}

#[test]
fn writers_of_different_segments_do_not_overtake_each_other() {
    let mut world = file(4, 100);
    let (before, was) = world.object("k");
    let [first, second, third] = [2, 0, 4].map(|at| {
        let length = if at == 4 { 200 } else { MIB };
        Writer::begin(&mut world, 5).store(at, length)
    });
    let (own, _) = first.commit(&mut world).unwrap();
    assert_eq!(own, first.begun.version);
    let (version, freed) = second.commit(&mut world).unwrap();
    // Above all that were given, so that of two the later is seen.
    assert!(version > own && version > third.begun.version);
    assert_eq!(freed.len(), 6);
    assert!(freed.iter().all(|freed| freed.segment == was[0].segment && freed.keep.is_empty()));
    third.commit(&mut world).unwrap();
    let (object, now) = world.object("k");
    let expected =
        [&second.segments[0], &was[1], &first.segments[2], &was[3], &third.segments[4]].map(Clone::clone);
    assert_eq!(now, expected);
    assert_eq!((object.size, object.contents), (before.size + 100, object.version));
    assert_eq!(world.records(0x30), 5);
}

#[test]
fn what_others_have_written_behind_the_end_stays() {
    let mut world = file(2, 0);
    let [changes, appends] = [0, 3].map(|at| Writer::begin(&mut world, 4).store(at, MIB));
    appends.commit(&mut world).unwrap();
    changes.commit(&mut world).unwrap();
    let (object, now) = world.object("k");
    let appended = &appends.segments;
    assert_eq!(now, [&changes.segments[0], &appended[1], &appended[2], &appended[3]].map(Clone::clone));
    assert_eq!(object.size, 4 * MIB);
}

#[test]
fn writers_behind_the_end_do_not_overtake_each_other_in_whatever_order() {
    for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2], [2, 0, 3, 1]] {
        let mut world = file(0, 0);
        let writers = [0, 1, 2, 3].map(|at| Writer::begin(&mut world, 4).store(at, MIB - at as u64 / 3));
        for at in order {
            let (_, freed) = writers[at].commit(&mut world).unwrap();
            assert_eq!(freed, [], "holes are nobody's");
        }
        let (object, now) = world.object("k");
        assert_eq!((object.size, now.len()), (4 * MIB - 1, 4));
        (0..4).for_each(|at| assert_eq!(now[at], writers[at].segments[at], "{order:?}"));
        assert_eq!(world.records(0x30), 4);
    }
}

#[test]
fn what_is_written_stands_whoever_has_a_hole_there() {
    let mut world = file(1, 0);
    let writers = [1, 3].map(|at| Writer::begin(&mut world, 4).store(at, MIB));
    let ahead = Writer::begin(&mut world, 5).hole(MIB).hole(MIB).hole(MIB).hole(5);
    writers.iter().chain([&ahead]).for_each(|writer| drop(writer.commit(&mut world).unwrap()));
    let (object, now) = world.object("k");
    let [low, high] = writers.each_ref().map(|writer| &writer.segments);
    let expected = [&low[0], &low[1], &high[2], &high[3], &ahead.segments[4]].map(Clone::clone);
    assert_eq!((object.size, &now[..]), (4 * MIB + 5, &expected[..]));
    // Two holes are one: that of who came first.
    assert!(now[2].is_hole() && now[4].is_hole());
    let gone = [high[1].segment, ahead.segments[1].segment];
    assert_eq!(world.states(&gone, 1), [SegmentState::Gone, SegmentState::Gone]);
}

#[test]
fn what_others_have_made_a_hole_is_one() {
    let mut world = file(3, 0);
    let punches = Writer::begin(&mut world, 4).punch(1);
    let changes = Writer::begin(&mut world, 4).store(0, MIB);
    punches.commit(&mut world).unwrap();
    changes.commit(&mut world).unwrap();
    let now = world.object("k").1;
    assert_eq!(now[..2], [&changes.segments[0], &punches.segments[1]].map(Clone::clone));
}

#[test]
fn a_hole_that_was_there_is_one_writers() {
    let mut world = file(1, 0);
    Writer::begin(&mut world, 4).hole(MIB).hole(MIB).hole(100).commit(&mut world).unwrap();
    let [first, second, late, longer] = [1, 2, 2, 3].map(|at| Writer::begin(&mut world, 4).store(at, MIB));
    first.commit(&mut world).unwrap();
    second.commit(&mut world).unwrap();
    is_overtaken(late.commit(&mut world));
    longer.commit(&mut world).unwrap();
    let (object, now) = world.object("k");
    assert_eq!(object.size, 4 * MIB);
    let stored = [&first.segments[1], &second.segments[2], &longer.segments[3]].map(Clone::clone);
    assert_eq!(now[1..], stored);
}

#[test]
fn who_changes_what_another_has_changed_is_overtaken() {
    // Anew, longer, shorter than a hole of the other's, and where the other made it shorter or put another object.
    type Does = fn(Writer) -> Writer;
    let cases: [(&str, Does, Does); 14] = [
        ("the same", |writer| writer.store(1, MIB), |writer| writer.store(1, MIB)),
        ("the end, twice", |writer| writer.store(2, 600), |writer| writer.store(2, 700)),
        (
            "behind the end, twice",
            |writer| writer.store(2, MIB).store(3, MIB),
            |writer| writer.store(2, MIB).store(3, MIB),
        ),
        ("behind an end that is another", |writer| writer.store(2, 600), |writer| writer.store(3, 10)),
        ("shorter than a hole", |writer| writer.store(4, 10), |writer| writer.store(3, 10)),
        ("shorter than a hole at the end", |writer| writer.hole(20), |writer| writer.store(3, 10)),
        ("a hole, of what is another", |writer| writer.store(1, MIB), |writer| writer.punch(1)),
        ("the same, of what is a hole", |writer| writer.punch(1), |writer| writer.store(1, MIB)),
        ("a longer hole", |writer| writer.store(3, 10), |writer| writer.hole(20)),
        (
            "an end behind which there is more",
            |writer| writer.store(2, MIB).store(3, 5),
            |writer| writer.store(2, 600),
        ),
        ("shorter, of what is longer", |writer| writer.store(2, 600), cut),
        ("shorter, of what is another", |writer| writer.store(0, MIB), cut),
        ("longer, of what is shorter", cut, |writer| writer.store(2, 600)),
        ("what is before the end, of what is shorter", cut, |writer| writer.store(0, MIB)),
    ];
    for (case, first, second) in cases {
        let mut world = file(2, 500);
        let [first, second] = [first, second].map(|does| does(Writer::begin(&mut world, 6)));
        let fresh = second.begun.version;
        first.commit(&mut world).unwrap();
        let now = world.object("k");
        let answer = second.commit(&mut world);
        assert!(matches!(answer, Err(MetaFault::Conflict { .. })), "{case}: {answer:?}");
        assert_eq!(world.object("k"), now, "{case}: {fresh}");
    }
}

/// Without the last segment, as a file that was made shorter.
fn cut(mut writer: Writer) -> Writer {
    writer.segments.pop();
    writer
}

#[test]
fn who_says_too_little_or_promises_something_is_overtaken() {
    let mut world = file(3, 0);
    let [other, late] = [0, 1].map(|at| Writer::begin(&mut world, 3).store(at, MIB));
    other.commit(&mut world).unwrap();
    let (now, base) = (world.object("k"), late.made_from());
    let none = Pledge::default();
    let promised = Pledge { tolerate: 2, sites: 0 };
    is_overtaken(late.commit_from(&mut world, None, none));
    is_overtaken(late.commit_from(&mut world, Some(base.clone()), promised));
    // What was promised when it began others may have been made without.
    is_overtaken(late.commit_from(&mut world, Some(AmendBase { pledge: promised, ..base.clone() }), none));
    // It lists one anew, and fewer or more than were there.
    for segments in [0, 2, 4, u32::MAX] {
        is_overtaken(late.commit_from(&mut world, Some(AmendBase { segments, ..base.clone() }), none));
    }
    let replaced = Default::default();
    let lied = AmendBase { replaced, ..base.clone() };
    let (version, freed) = late.commit_from(&mut world, Some(lied), none).unwrap();
    // It has then said that it replaced nothing, and so nothing is.
    let (object, segments) = world.object("k");
    assert_eq!(freed, []);
    assert_eq!((segments, object.contents, object.version), (now.1, now.0.contents, version));
}

#[test]
fn who_says_that_it_replaced_what_was_not_there_is_overtaken() {
    let mut world = file(1, 0);
    let [other, late] = [0, 1].map(|at| Writer::begin(&mut world, 2).store(at, MIB));
    other.commit(&mut world).unwrap();
    let mut base = late.made_from();
    base.replaced.insert(1, (&late.base[0]).into());
    is_overtaken(late.commit_from(&mut world, Some(base), Pledge::default()));
    late.commit(&mut world).unwrap();
}

/// Any writers in any order, against what a plain list says.
#[test]
fn any_order_of_writers_is_one_after_the_other() {
    let mut random = Pcg64Mcg::seed_from_u64(0xbe51de);
    let mut below = move |most: usize| random.next_u32() as usize % most;
    let (mut beside, mut overtaken) = (0, 0);
    for _ in 0..20 {
        let mut world = file(2, 300);
        let mut open: Vec<(Writer, usize)> = Vec::new();
        for _ in 0..60 {
            if below(2) == 0 || open.is_empty() {
                let (_, now) = world.object("k");
                let at = below(now.len() + 3);
                let is_last = at + 1 >= now.len();
                let mut writer = Writer::begin(&mut world, 24);
                if at >= now.len() && now.last().is_some_and(|last| last.length < MIB) {
                    writer = writer.store(now.len() - 1, MIB);
                }
                let least = now.get(at).map_or(1, |layout| layout.length);
                let length = if is_last { least.max(MIB - below(2) as u64 * 77) } else { MIB };
                open.push((writer.store(at, length), at));
                continue;
            }
            let (writer, at) = open.swap_remove(below(open.len()));
            let (object, was) = world.object("k");
            let is_first = object.version != writer.begun.version && was == writer.base;
            match writer.commit(&mut world) {
                Ok((version, _)) => {
                    let (object, now) = world.object("k");
                    assert_eq!((object.version, version > object.contents), (version, false));
                    assert_eq!(now[at], writer.segments[at]);
                    // All else is as it was, or was not there.
                    for (position, layout) in now.iter().enumerate().filter(|&(position, _)| position != at) {
                        let is_own = writer.segments.get(position) == Some(layout);
                        assert!(
                            was.get(position) == Some(layout)
                                || is_own && !names(&was).contains(&layout.segment.0)
                        );
                    }
                    assert!(now[..now.len() - 1].iter().all(|layout| layout.length == MIB));
                    assert!(
                        now.len() >= was.len() && object.size >= was.iter().map(|layout| layout.length).sum()
                    );
                    beside += usize::from(!is_first);
                }
                Err(fault) => {
                    assert!(!is_first, "{fault}");
                    assert_eq!(world.object("k").1, was);
                    overtaken += 1;
                }
            }
        }
    }
    assert!(beside > 50 && overtaken > 50, "hardly visited: {beside}, {overtaken}");
}
