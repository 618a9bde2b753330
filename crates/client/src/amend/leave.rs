//! Making an object independent of some devices, and completing one that is degraded: what a drain, the repair after a loss, and
//! that after writes while a device was missing do to each object.

use super::{
    AmendError, AmendReport,
    fences::Left,
    session::{Amendment, Contents, code, tolerating},
};
use crate::{
    Client, ObjectStat,
    moves::Room,
    turns::{Parts, side_by_side},
};
use bytes::BytesMut;
use core::cmp::Reverse;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};
use steadfast_codes::rateless::Kind;
use steadfast_protocol::{
    DeviceId, IndexRanges,
    durability::Rule,
    layout::{CodeKind, Holder, ParityGeometry, SegmentLayout},
    plan::{self, PlanError, Replaced, Wish, dialled},
    policy::Policy,
};
use steadfast_transfer::Originals;

/// How segments of an object are changed whose bytes stay the same.
#[derive(Clone, Copy)]
struct Terms<'a> {
    /// None but the first is begun after this, where it is given; nor is anybody awaited then.
    until: Option<Instant>,
    /// Devices that do not come back, of which the registry may not say so yet.
    gone: &'a BTreeSet<DeviceId>,
    /// Memory that segments of other objects take, too.
    room: Option<&'a Room>,
}

impl Client {
    /// Makes an object independent of `leaving`: blocks are written elsewhere until the durability rule holds without those
    /// devices, at the redundancy that the object has, and they are listed no more. Originals among their blocks are
    /// rebuilt under their own index, so that ranges are read as before; the devices may be gone already. Nothing is done
    /// where they hold nothing of it.
    ///
    /// # Errors
    /// When the rule cannot hold without them (the last copy among these): the object is what it was before, or, of several segments,
    /// some have been moved.
    pub async fn without_devices(
        &self,
        bucket: &str,
        key: &str,
        leaving: &BTreeSet<DeviceId>,
    ) -> Result<AmendReport, AmendError> {
        self.leave_devices((bucket, key), leaving, false, None).await
    }

    /// The same, in this `room`. Those that are `lost` do not come back: what only they made up for is given up.
    pub(crate) async fn leave_devices(
        &self,
        (bucket, key): (&str, &str),
        leaving: &BTreeSet<DeviceId>,
        lost: bool,
        room: Option<&Room>,
    ) -> Result<AmendReport, AmendError> {
        let lies = |layout: &SegmentLayout| layout.pieces().any(|(device, _)| leaving.contains(&device));
        let gone = if lost { leaving } else { &BTreeSet::new() };
        self.segments_of(
            (bucket, key),
            Terms { until: None, gone, room },
            |_, layout| Ok(u32::from(lies(layout))),
            async |amendment, layout, offset| {
                let moved = leave(amendment, (layout, offset), leaving).await?;
                // Others of a segment that is stored anew are dropped, too.
                let left = blocks_on(layout, leaving);
                amendment.count(|report| {
                    report.left_blocks += left;
                    report.left_bytes += u64::from(left) * u64::from(layout.block_bytes);
                });
                Ok(moved)
            },
        )
        .await
    }

    /// Stores those segments of an object anew that are degraded, with more parity chunks.
    ///
    /// # Errors
    /// While there are not devices enough for that of any of them; the object is what it was before, or, where it fails later, some of
    /// its segments have more.
    pub async fn complete(&self, bucket: &str, key: &str) -> Result<AmendReport, AmendError> {
        self.complete_until((bucket, key), None, None).await
    }

    /// The same in this `room`, but of several segments only those that it comes to before `until`, and the first in any case.
    pub(crate) async fn complete_until(
        &self,
        (bucket, key): (&str, &str),
        until: Option<Instant>,
        room: Option<&Room>,
    ) -> Result<AmendReport, AmendError> {
        self.segments_of(
            (bucket, key),
            Terms { until, gone: &BTreeSet::new(), room },
            |policy, layout| {
                let missing = layout.missing_chunks(policy);
                if missing > 0 {
                    // Fenced in vain, it would not be changed in place for a while.
                    self.has_devices_for(policy, layout.length, tolerates(layout) + 1)?;
                }
                Ok(missing)
            },
            async |amendment, layout, offset| {
                amendment.fence(layout, &BTreeSet::new()).await?;
                anew(amendment, (layout, offset), &BTreeSet::new(), tolerates(layout) + 1).await
            },
        )
        .await
    }

    /// Changes each segment of an object that is `concerned` (above 0), whose bytes stay the same, in one amendment or in several: what
    /// another writer undoes is one lot and not all, of chunks that change in place none is fenced for long, and what was replaced is freed
    /// in between; the most concerned go first. Those that cannot be changed now are an error where there are no others.
    async fn segments_of(
        &self,
        (bucket, key): (&str, &str),
        terms: Terms<'_>,
        concerned: impl Fn(&Policy, &SegmentLayout) -> Result<u32, PlanError>,
        change: impl AsyncFn(&Amendment<'_>, &SegmentLayout, u64) -> Result<SegmentLayout, AmendError>,
    ) -> Result<AmendReport, AmendError> {
        let (start, until) = (Instant::now(), terms.until);
        let left = &Left::of(self, (bucket, key));
        // Who has so little time for it comes again.
        let patience = until.map_or(self.options.patience, |_| Duration::ZERO);
        let mut lots = Lots::default();
        let mut report: Option<AmendReport> = None;
        loop {
            let (mut more, first) = (false, report.is_none());
            let lot = self.amend_within(patience, (bucket, key), left, async |client, found| {
                let (mut affected, mut lacking) = (Vec::new(), None);
                for (position, layout) in found.segments.iter().enumerate() {
                    match concerned(&found.policy, layout) {
                        Ok(0) => {}
                        Ok(urgency) => affected.push((position, urgency)),
                        Err(error) => lacking = lacking.or(Some(error)),
                    }
                }
                if let Some(error) = lacking.filter(|_| first && affected.is_empty()) {
                    return Err(error.into());
                }
                let all = affected.len();
                let grows = matches!(found.policy, Policy::Parity(_));
                affected = next_lot(affected, found.segments.len(), grows);
                affected.truncate(lots.most);
                more = affected.len() < all;
                let size = affected.len();
                let affected = affected.into_iter().map(|(position, _)| position).collect();
                let changed = change_some((client, left), (bucket, key), found, (affected, terms), &change);
                match changed.await {
                    // Whoever was first may be the next at the same: to begin again would undo that.
                    Err(error) if error.is_conflict() && is_over(until) => {
                        Err(AmendError::Contended { attempts: 1 })
                    }
                    Err(error) if error.is_conflict() => {
                        lots.undone(size);
                        Err(error)
                    }
                    changed => changed,
                }
            });
            let lot = lot.await?;
            lots.made();
            let so_far = report.map_or(lot, |before| both(before, lot));
            if !more || is_over(until) {
                // An attempt that was in vain may have fenced what the last one has not come to, or has found nothing to do with.
                left.reopen().await;
                return Ok(AmendReport { latency: start.elapsed(), ..so_far });
            }
            report = Some(so_far);
        }
    }
}

/// The segments, by position and urgency, that go into the next amendment of an object of `segments`, which may be one that `grows`.
fn next_lot(mut affected: Vec<(usize, u32)>, segments: usize, grows: bool) -> Vec<(usize, u32)> {
    let all = affected.len();
    let is_last = |position: usize| grows && position + 1 == segments;
    // While a file is appended to its last segment is not moved easily: the others do not wait for that.
    let last_too = all > 1 && affected.iter().any(|&(position, _)| is_last(position));
    affected.sort_by_key(|&(position, urgency)| (is_last(position), Reverse(urgency), position));
    affected.truncate(lot_of(segments).min(all - usize::from(last_too)));
    affected
}

/// Segments that are changed in one amendment of an object of so many: each commit lists them all, so that a large one has larger
/// lots, and is through after 16 or 17. Picked by eye.
fn lot_of(segments: usize) -> usize {
    (segments / 16).max(8)
}

/// How many segments go into an amendment at most, by how others fare: each one that is first undoes all of a lot, the sooner the longer that
/// keeps segments fenced.
struct Lots {
    most: usize,
}

impl Default for Lots {
    fn default() -> Self {
        Self { most: usize::MAX }
    }
}

impl Lots {
    /// Another writer was first while so many were changed.
    fn undone(&mut self, segments: usize) {
        self.most = (segments / 2).max(1);
    }

    /// Nobody was.
    fn made(&mut self) {
        self.most = self.most.saturating_mul(2);
    }
}

/// How many blocks of a segment lie on these devices.
fn blocks_on(layout: &SegmentLayout, devices: &BTreeSet<DeviceId>) -> u32 {
    layout.holders.iter().filter(|holder| devices.contains(&holder.device)).map(Holder::count).sum()
}

/// Failures that a segment of chunks tolerates, as it is stored.
pub(super) fn tolerates(layout: &SegmentLayout) -> u32 {
    ParityGeometry::of_layout(layout).map_or(0, |shape| shape.parity())
}

/// Whether nothing more is to be begun.
fn is_over(until: Option<Instant>) -> bool {
    until.is_some_and(|until| Instant::now() >= until)
}

/// A segment that is to be changed.
struct Part {
    /// Which.
    position: usize,
    /// Where in the object it begins.
    offset: u64,
    /// Whether it is the first.
    is_first: bool,
}

/// The segments at these positions, in that order, with their lengths.
fn parts_at(layouts: &[SegmentLayout], positions: Vec<usize>) -> Vec<(u64, Part)> {
    let part = |(number, position): (usize, usize)| {
        let offset = layouts[..position].iter().map(|layout| layout.length).sum();
        (layouts[position].length, Part { position, offset, is_first: number == 0 })
    };
    positions.into_iter().enumerate().map(part).collect()
}

/// Changes these segments of an object as found, in one amendment, some at a time: those that it comes to before its end, and the first in any
/// case.
async fn change_some(
    (client, left): (&Client, &Left<'_>),
    object: (&str, &str),
    found: ObjectStat,
    (affected, terms): (Vec<usize>, Terms<'_>),
    change: &impl AsyncFn(&Amendment<'_>, &SegmentLayout, u64) -> Result<SegmentLayout, AmendError>,
) -> Result<AmendReport, AmendError> {
    let start = Instant::now();
    if affected.is_empty() {
        return Ok(AmendReport::unchanged(&found, start));
    }
    let of = (affected.len(), false);
    let wish = Wish { quality: client.options.quality.class(), ..Wish::default() };
    let mut amendment = Amendment::begin(client, left, object, found, of, (wish, 0)).await?;
    amendment.gone.clone_from(terms.gone);
    amendment
        .finish(start, async |amendment| {
            let (of, parts) = (&*amendment, parts_at(&amendment.layouts, affected));
            let parts = Parts::new(&parts, client.options.memory_bytes, of.reserved.wants_pace());
            let changed = side_by_side(|| change_in_turn(of, &parts, terms, change)).await?;
            for (position, layout) in changed {
                amendment.layouts[position] = layout;
            }
            Ok(true)
        })
        .await
}

/// Changes one segment after the other, while there are any and there is time; their layouts as they are to be, by position.
async fn change_in_turn(
    amendment: &Amendment<'_>,
    parts: &Parts<'_, Part>,
    terms: Terms<'_>,
    change: &impl AsyncFn(&Amendment<'_>, &SegmentLayout, u64) -> Result<SegmentLayout, AmendError>,
) -> Result<Vec<(usize, SegmentLayout)>, AmendError> {
    let mut changed = Vec::new();
    while let Some((part, _share)) = parts.next().await {
        let layout = &amendment.layouts[part.position];
        let _room = match terms.room {
            Some(room) => Some(room.take(layout.length).await),
            None => None,
        };
        if !part.is_first && is_over(terms.until) {
            break;
        }
        changed.push((part.position, change(amendment, layout, part.offset).await?));
    }
    Ok(changed)
}

/// What two amendments of an object took, one after the other.
fn both(first: AmendReport, second: AmendReport) -> AmendReport {
    AmendReport {
        version: second.version,
        beside_others: first.beside_others || second.beside_others,
        latency: first.latency + second.latency,
        originals: second.originals,
        stored_before: first.stored_before,
        stored_after: second.stored_after,
        read_blocks: first.read_blocks + second.read_blocks,
        read_bytes: first.read_bytes + second.read_bytes,
        decoded_segments: first.decoded_segments + second.decoded_segments,
        written_blocks: first.written_blocks + second.written_blocks,
        written_bytes: first.written_bytes + second.written_bytes,
        merged_blocks: first.merged_blocks + second.merged_blocks,
        in_place_bytes: first.in_place_bytes + second.in_place_bytes,
        dropped_blocks: first.dropped_blocks + second.dropped_blocks,
        freed_bytes: first.freed_bytes + second.freed_bytes,
        left_blocks: first.left_blocks + second.left_blocks,
        left_bytes: first.left_bytes + second.left_bytes,
    }
}

/// Stores a fenced segment anew, so that it tolerates so many failures at least: who moves an object leaves it as safe as it is.
async fn anew(
    amendment: &Amendment<'_>,
    (layout, offset): (&SegmentLayout, u64),
    leaving: &BTreeSet<DeviceId>,
    tolerate: u32,
) -> Result<SegmentLayout, AmendError> {
    let _memory = amendment.client.memory.hold(layout.length);
    let originals = amendment.decode(layout).await?.into_iter().map(BytesMut::freeze).collect();
    let originals = Originals::whole(originals, layout.block_bytes, layout.code.originals);
    let quality = tolerating(tolerate).quality.under(amendment.client.to_be_had(amendment.pledge));
    amendment.store_anew(layout, offset, originals, &Wish { quality, ..Wish::default() }, leaving).await
}

async fn leave(
    amendment: &Amendment<'_>,
    (layout, offset): (&SegmentLayout, u64),
    leaving: &BTreeSet<DeviceId>,
) -> Result<SegmentLayout, AmendError> {
    if matches!(layout.code.kind, CodeKind::ReedSolomon { .. }) && amendment.fence(layout, leaving).await? {
        // Versions go with the chunk that they count: one that is moved alone would not be what parity holds.
        return anew(amendment, (layout, offset), leaving, tolerates(layout)).await;
    }
    let code = code(layout)?;
    let places = amendment.places(leaving, layout);
    let mut dropped = IndexRanges::new();
    let in_reach = places.existing(layout, &dropped);
    // Of a fixed code no block can make up for those out of reach: they are written elsewhere, too.
    let left = layout.holders.iter().filter(|holder| {
        let lost = || in_reach.iter().all(|existing| existing.device != holder.device);
        leaving.contains(&holder.device) || (code.end().is_some() && lost())
    });
    left.for_each(|holder| dropped.insert_all(&holder.blocks()));
    let wanted: IndexRanges = match code.kind() {
        // Each is the only one of its kind, or one of as many copies as there have to be.
        Kind::Replicated | Kind::ReedSolomon { .. } => dropped.clone(),
        Kind::Lt { .. } => IndexRanges::new(),
        Kind::Mix | Kind::MixA | Kind::MixC => dropped.intersection(&(0..code.k()).into()),
    };
    let mut rule = Rule::of(&amendment.begun.policy);
    if layout.code.kind != CodeKind::Replicated {
        rule.redundancy = match code.end() {
            // What is out of reach is written elsewhere, too.
            Some(_) => dialled(layout),
            None => plan::to_be_kept(&places, layout, leaving, rule.redundancy),
        };
    }
    if let CodeKind::ReedSolomon { parity, .. } = layout.code.kind {
        // It may have been stored with fewer chunks than its bucket promises.
        rule.tolerate = parity;
    }
    let _memory = amendment.client.memory.hold(layout.length);
    let originals = amendment.decode(layout).await?.into_iter().map(BytesMut::freeze).collect();
    let contents =
        Contents::Originals(Originals::whole(originals, layout.block_bytes, layout.code.originals));
    let replaced = Replaced::of(&places, layout, dropped);
    let given = plan::given(&places, layout, &replaced, &wanted);
    let written = amendment.write(layout, rule, &places, given, contents).await?;
    let written = written.expect("any block can be made of the originals");
    Ok(amendment.amended(layout, &replaced, &written))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        amend::faked::{self, Heard, Store},
        reserve::tests::{client, device_of, layout, serving},
    };
    use core::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};
    use steadfast_protocol::{
        SegmentId,
        message::{self, Change, ChunkVersions, NodeAnswer, NodeRequest},
    };
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    const AWAITED: Duration = Duration::from_millis(30);
    /// Names that segments have once they are stored anew are as much higher.
    const ANEW: u64 = 1_000_000;

    /// A client of an object of so many segments, whose nodes take a little time for each fence.
    async fn cluster(segments: u64) -> (Client, Arc<Mutex<Store>>, UnboundedReceiver<Heard>) {
        let (heard, hears) = unbounded_channel();
        let address = serving(|request, stream| {
            tokio::spawn(async move {
                let answer = match request {
                    NodeRequest::Fence { .. } => {
                        tokio::time::sleep(AWAITED).await;
                        NodeAnswer::Done
                    }
                    _ => NodeAnswer::ChunkVersions(ChunkVersions::default()),
                };
                // The client may be gone.
                let _ = stream.end(message::encode(&answer));
            });
        })
        .await;
        let mut client = client(&address, Vec::new());
        let store = faked::metadata(&mut client, faked::object(segments), heard).await;
        (client, store, hears)
    }

    const NO_TERMS: Terms<'_> = Terms { until: None, gone: &BTreeSet::new(), room: None };

    fn is_old(layout: &SegmentLayout) -> bool {
        layout.segment < SegmentId(ANEW)
    }

    fn concerned(_: &Policy, layout: &SegmentLayout) -> Result<u32, PlanError> {
        Ok(u32::from(is_old(layout)))
    }

    /// Fences a segment, and says that it is stored anew.
    async fn stored(amendment: &Amendment<'_>, layout: &SegmentLayout) -> Result<SegmentLayout, AmendError> {
        amendment.fence(layout, &BTreeSet::new()).await?;
        let segment = SegmentId(layout.segment.0 + ANEW);
        Ok(SegmentLayout { segment, epoch: amendment.begun.epoch, ..layout.clone() })
    }

    /// How many segments each amendment was for that was begun.
    fn lots(heard: &[Heard]) -> Vec<u32> {
        let lot = |heard: &Heard| match heard {
            Heard::Meta(Change::BeginAmend { segments, .. }) => Some(*segments),
            _ => None,
        };
        heard.iter().filter_map(lot).collect()
    }

    /// Somebody else is first, and then there is time for some of them alone, or for none.
    #[tokio::test]
    async fn what_an_attempt_has_fenced_in_vain_is_opened_again_where_the_next_does_less() {
        for does_some in [true, false] {
            let (client, store, mut hears) = cluster(8).await;
            store.lock().unwrap().conflicts = 1;
            // Not over before the first attempt is.
            let until = Instant::now() + Duration::from_secs(3);
            let (first, attempts) = (Mutex::new(None), AtomicUsize::new(0));
            let terms = Terms { until: Some(until), ..NO_TERMS };
            let of = ("data", "object");
            let concerned = |policy: &Policy, layout: &SegmentLayout| {
                let attempt = attempts.fetch_add(1, Ordering::Relaxed) / 8;
                if attempt > 0 && !does_some { Ok(0) } else { concerned(policy, layout) }
            };
            let changed = client.segments_of(of, terms, concerned, async |amendment, layout, _| {
                let epoch = amendment.begun.epoch;
                if *first.lock().unwrap().get_or_insert(epoch) != epoch {
                    tokio::time::sleep_until(until.into()).await;
                }
                stored(amendment, layout).await
            });
            changed.await.unwrap();
            // Before its caller has the answer.
            let segments = store.lock().unwrap().object.segments.clone();
            let heard = faked::settled(&client, &mut hears).await;
            // The last one of a file is not in their lots.
            let left: Vec<SegmentId> = (if does_some { 4 } else { 1 }..8).map(SegmentId).collect();
            match heard.last() {
                Some(Heard::Meta(Change::GiveUp { fenced, .. })) => assert_eq!(*fenced, left),
                other => panic!("{other:?}"),
            }
            let first = first.lock().unwrap().unwrap();
            assert_eq!(segments.iter().filter(|layout| is_old(layout)).count(), left.len() + 1);
            assert!(segments[..7].iter().all(|layout| layout.epoch > first), "listed as they are taken");
        }
    }

    #[tokio::test]
    async fn segments_are_changed_side_by_side_within_the_memory_that_there_is() {
        let room = Room::of(2 * layout().length);
        for (room, at_once) in [(None, 4), (Some(&room), 2)] {
            let (client, store, mut hears) = cluster(8).await;
            let counts = [const { AtomicUsize::new(0) }; 2];
            let terms = Terms { room, ..NO_TERMS };
            let changed = client.segments_of(
                ("data", "object"),
                terms,
                concerned,
                async |amendment, layout, offset| {
                    let [now, most] = &counts;
                    most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
                    assert_eq!(offset, (layout.segment.0 - 1) * layout.length);
                    let stored = stored(amendment, layout).await;
                    now.fetch_sub(1, Ordering::Relaxed);
                    stored
                },
            );
            changed.await.unwrap();
            assert_eq!(counts[1].load(Ordering::Relaxed), at_once);
            let names: Vec<u64> =
                store.lock().unwrap().object.segments.iter().map(|layout| layout.segment.0).collect();
            assert_eq!(names, (ANEW + 1..ANEW + 9).collect::<Vec<_>>(), "each in its place");
            // The last one of a file goes alone.
            assert_eq!(lots(&faked::settled(&client, &mut hears).await), [7, 1]);
        }
    }

    #[tokio::test]
    async fn where_time_is_over_one_is_changed_and_no_more() {
        let (client, store, _hears) = cluster(8).await;
        let terms = Terms { until: Some(Instant::now()), ..NO_TERMS };
        let change =
            async |amendment: &Amendment<'_>, layout: &SegmentLayout, _| stored(amendment, layout).await;
        client.segments_of(("data", "object"), terms, concerned, change).await.unwrap();
        let stored: Vec<bool> = store.lock().unwrap().object.segments.iter().map(is_old).collect();
        assert_eq!(stored, [false, true, true, true, true, true, true, true]);
    }

    #[tokio::test]
    async fn each_time_that_others_are_first_half_as_many_are_changed_and_more_again_later() {
        let (client, store, mut hears) = cluster(16).await;
        store.lock().unwrap().conflicts = 2;
        let change =
            async |amendment: &Amendment<'_>, layout: &SegmentLayout, _| stored(amendment, layout).await;
        client.segments_of(("data", "object"), NO_TERMS, concerned, change).await.unwrap();
        assert_eq!(lots(&faked::settled(&client, &mut hears).await), [8, 4, 2, 4, 8, 1, 1]);
        assert!(!store.lock().unwrap().object.segments.iter().any(is_old));
        let mut lots = Lots::default();
        [3, 1, 0].iter().for_each(|&segments| lots.undone(segments));
        assert_eq!(lots.most, 1, "some progress is made each time");
    }

    #[tokio::test]
    async fn one_that_is_larger_than_all_memory_has_all_of_it() {
        let room = Room::of(1 << 20);
        let large = room.take(1 << 40).await;
        let small = tokio::time::timeout(AWAITED, room.take(1)).await;
        assert!(small.is_err());
        drop(large);
        let _both = [room.take(1 << 19).await, room.take(1 << 19).await];
    }

    #[test]
    fn what_lies_on_devices_that_are_left_is_less_than_the_segment() {
        let (layout, elsewhere) = (layout(), DeviceId(99));
        let on = |devices: &[DeviceId]| blocks_on(&layout, &devices.iter().copied().collect());
        assert_eq!((on(&[device_of(0)]), on(&[device_of(1), elsewhere, device_of(3)])), (4, 8));
        assert_eq!((on(&[elsewhere]), layout.stored_blocks()), (0, 16));
    }

    #[test]
    fn the_most_degraded_go_first_and_the_last_segment_when_it_is_alone() {
        let lot = |affected: &[(usize, u32)], segments, grows| -> Vec<usize> {
            next_lot(affected.to_vec(), segments, grows).into_iter().map(|(position, _)| position).collect()
        };
        let positions = |affected: &[(usize, u32)], segments| lot(affected, segments, true);
        assert_eq!(positions(&[(0, 1), (2, 2), (3, 1), (4, 2)], 5), [2, 0, 3]);
        assert_eq!(positions(&[(0, 1), (2, 2), (3, 1), (4, 2)], 6), [2, 4, 0, 3]);
        assert_eq!(positions(&[(4, 1)], 5), [4]);
        let many: Vec<(usize, u32)> = (0..20).map(|position| (position, 1 + position as u32 % 2)).collect();
        assert_eq!(positions(&many, 20), [1, 3, 5, 7, 9, 11, 13, 15]);
        // Nothing is appended to one that does not grow.
        assert_eq!(lot(&[(0, 1), (1, 1)], 2, false), [0, 1]);
        let all: Vec<(usize, u32)> = (0..1000).map(|position| (position, 1)).collect();
        assert_eq!(lot(&all, 1000, false).len(), 62);
        for grows in [false, true] {
            let (mut left, mut lots) = (all.clone(), 0);
            while !left.is_empty() {
                let moved = lot(&left, 1000, grows);
                left.retain(|(position, _)| !moved.contains(position));
                lots += 1;
            }
            assert_eq!(lots, 17 + u32::from(grows));
        }
    }
}
