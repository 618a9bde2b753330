//! Changing many places of an object at once, for an open file: in place by a layout that is known, without a word to the
//! metadata server; where that fails by the object's own layout, found anew, and what cannot be changed in place even so is
//! stored anew, all places of a segment at once.
//!
//! What ends behind the object's end makes it longer. Bytes that follow the last one go behind it in place, where the last segment
//! has room, and are counted in then ([`Change::Grow`]); else that segment is stored anew, and others behind it. Segments between the end and
//! what is written are holes.

use super::{
    AmendError, AmendReport,
    fences::Left,
    in_place, log_unmade,
    parts::{Becomes, Part, Ranges, over, parts, recut, slice},
    session::Amendment,
    update::anew_of,
};
use crate::{
    Client, ObjectStat,
    turns::{Parts, side_by_side},
    unexpected,
};
use bytes::BytesMut;
use core::future::ready;
use std::{collections::BTreeSet, time::Instant};
use steadfast_protocol::{
    Time, Version,
    layout::SegmentLayout,
    message::{Change, MetaAnswer, ObjectRecord},
    plan::{self, Again, Attempts, ChunkChange, SegmentPlan, Wish},
};
use steadfast_transfer::Originals;

/// What became of a change of many places.
#[derive(Clone, Debug, Default)]
pub(crate) struct Changed {
    /// Bytes changed where they lie, or written behind them.
    pub(crate) in_place_bytes: u64,
    /// Segments that were stored anew.
    pub(crate) segments_anew: u64,
    /// Segments that came behind the last one, but for holes.
    pub(crate) segments_added: u64,
    /// Payload bytes of blocks written for those.
    pub(crate) written_bytes: u64,
    /// The object as it was found in the end, where that was not by the layout known before.
    pub(crate) now: Option<ObjectStat>,
    /// How it grew in place, where that was by the layout known before.
    pub(crate) grown: Option<Grown>,
}

/// Growth in place: the last segment has the bytes by which the object is longer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grown {
    pub(crate) base: Version,
    pub(crate) version: Version,
    pub(crate) size: u64,
}

impl ObjectStat {
    /// Takes a growth in place into what is known, if it was of this version.
    pub(crate) fn grow(&mut self, grown: &Grown) {
        let Some(last) = self.segments.last_mut().filter(|_| self.object.version == grown.base) else {
            return;
        };
        last.length += grown.size.saturating_sub(self.object.size);
        // Its contents stay those of the version that last changed bytes that were there.
        (self.object.size, self.object.version) = (grown.size, grown.version);
    }

    /// What a change of bytes made of it when it was committed: these segments, `size` bytes of them.
    pub(super) fn committed(self, segments: Vec<SegmentLayout>, size: u64, version: Version) -> Self {
        let names = segments.iter().map(|layout| layout.segment).collect();
        let object = ObjectRecord { size, version, contents: version, segments: names, ..self.object };
        Self { object, segments, ..self }
    }
}

/// A segment's layout, and where its devices' servers listen.
type Known = (SegmentLayout, Vec<Option<String>>);

impl Client {
    /// Changes bytes of an object of which `known` is what was last seen.
    ///
    /// # Errors
    /// What is stored is in part as it was, and in part as it was to be.
    pub(crate) async fn change_ranges(
        &self,
        (bucket, key): (&str, &str),
        known: &ObjectStat,
        ranges: &Ranges,
        one_at_a_time: &tokio::sync::Mutex<()>,
    ) -> Result<Changed, AmendError> {
        let mut changed = Changed::default();
        let (mut rest, mut tried) = (Vec::new(), Vec::new());
        for part in parts(known, ranges, 0)?.0 {
            let left = match self.part_in_place((bucket, key), known, &part, ranges, &mut changed).await {
                Ok(Some(grown)) => {
                    changed.grown = grown.or(changed.grown);
                    false
                }
                Ok(None) => {
                    tried.extend(known.segments.get(part.position).map(|layout| self.known(layout)));
                    true
                }
                // Another writer has made it longer, or shorter.
                Err(error) if error.is_conflict() => true,
                Err(error) => return Err(error),
            };
            if left {
                rest.extend(part.of(ranges));
            }
        }
        if rest.is_empty() {
            return Ok(changed);
        }
        // Each is a new version of the object: two at a time would have one of them made again. Who waits for its turn has as much
        // patience as the one before.
        let start = Instant::now();
        let _alone = one_at_a_time.lock().await;
        let (changed, now) = self.change_found((bucket, key), (&rest, 0), start, &tried, changed).await?;
        Ok(Changed { now: Some(now), ..changed })
    }

    /// Changes bytes of an object as it is found now, and makes it longer where it has fewer than `size_min`; not in place
    /// what was `tried` so. Patience began at `start`. And the object as it is then.
    pub(super) async fn change_found(
        &self,
        (bucket, key): (&str, &str),
        (ranges, size_min): (&Ranges, u64),
        start: Instant,
        tried: &[Known],
        changed: Changed,
    ) -> Result<(Changed, ObjectStat), AmendError> {
        let left = Left::of(self, (bucket, key));
        let what = (ranges, size_min);
        let made = self.change_in_turn((bucket, key), &left, what, start, tried, changed).await;
        if made.is_err() {
            left.reopen().await;
        }
        made
    }

    /// As [`Client::change_found`]; what it leaves fenced is `left`.
    async fn change_in_turn(
        &self,
        (bucket, key): (&str, &str),
        left: &Left<'_>,
        (ranges, size_min): (&Ranges, u64),
        start: Instant,
        mut tried: &[Known],
        mut changed: Changed,
    ) -> Result<(Changed, ObjectStat), AmendError> {
        let now = || Time(0) + start.elapsed();
        let mut attempts = Attempts::in_place(Time(0), self.options.patience);
        loop {
            let found = self.to_amend(bucket, key).await?;
            let base = found.object.version;
            let (what, by) = ((ranges, size_min), (attempts.is_next_in_place(), tried));
            let error = match self.attempt((bucket, key), left, found, what, by, &mut changed).await {
                Ok(made) => return Ok((changed, made)),
                Err(error) => error,
            };
            let why = error.unmade(self.any_stalled());
            match attempts.unmade(now(), why) {
                Again::AtOnce => {
                    log_unmade((bucket, key), base, why);
                    continue;
                }
                Again::After(pause) => tokio::time::sleep(pause).await,
                Again::InPlace(pause) => {
                    if !self.may_be_in_place((bucket, key), what).await {
                        return Err(error);
                    }
                    tokio::time::sleep(pause).await;
                }
                Again::Served(pause) => {
                    while self.any_stalled() && attempts.has_patience(now()) {
                        tokio::time::sleep(pause).await;
                        self.registry().await?;
                    }
                }
                Again::Contended { attempts } => return Err(AmendError::Contended { attempts }),
                Again::Never => return Err(error),
            }
            // What could not be made in place may be now.
            tried = &[];
        }
    }

    /// Whether all of a change that could be made in no way may be made in place yet, as far as is known now.
    async fn may_be_in_place(&self, (bucket, key): (&str, &str), (ranges, size_min): (&Ranges, u64)) -> bool {
        let Ok(found) = self.to_amend(bucket, key).await else { return false };
        let may = |part: &Part| {
            let changes = changes_of(&found, part);
            changes.is_some_and(|(layout, changes)| in_place::worth_another_try(self, layout, &changes))
        };
        parts(&found, ranges, size_min).is_ok_and(|(parts, _)| parts.iter().all(may))
    }

    /// Makes the change once; the object as it is then.
    async fn attempt(
        &self,
        object: (&str, &str),
        left_fenced: &Left<'_>,
        mut found: ObjectStat,
        (ranges, size_min): (&Ranges, u64),
        (in_place, tried): (bool, &[Known]),
        changed: &mut Changed,
    ) -> Result<ObjectStat, AmendError> {
        let start = Instant::now();
        let (parts, size) = parts(&found, ranges, size_min)?;
        let mut left = Vec::new();
        for part in parts {
            let layout = found.segments.get(part.position);
            let made = match layout.is_some_and(|layout| !in_place || tried.contains(&self.known(layout))) {
                true => None,
                false => self.part_in_place(object, &found, &part, ranges, changed).await?,
            };
            match made {
                Some(Some(grown)) => found.grow(&grown),
                Some(None) => {}
                None => left.push(part),
            }
        }
        if left.is_empty() {
            return Ok(found);
        }
        let bytes = left.iter().map(Part::bytes).sum();
        let of = (left.len(), true);
        let (holes, left): (Vec<Part>, Vec<Part>) = left.into_iter().partition(|part| part.hole().is_some());
        let anew = left.iter().filter(|part| !matches!(part.becomes, Becomes::New(_))).count();
        let before = ObjectStat { object: found.object.clone(), segments: Vec::new(), policy: found.policy };
        let class = Wish { quality: self.options.quality.class(), ..Wish::default() };
        let mut amendment = Amendment::begin(self, left_fenced, object, found, of, (class, bytes)).await?;
        let wish = amendment.wish;
        let (lease, mut added) = (amendment.lease(), 0);
        let committing = async {
            amendment.take_policy()?;
            let mut stored = self.store_parts(&amendment, left, ranges, &wish).await?;
            added = stored.len() - anew;
            let plans: Vec<&SegmentPlan> = holes.iter().filter_map(Part::hole).collect();
            let holes = holes.iter().map(|part| part.position).zip(amendment.holes(&plans).await?);
            stored.extend(holes);
            stored.sort_unstable_by_key(|(position, _)| *position);
            for (position, stored) in stored {
                match amendment.layouts.get_mut(position) {
                    Some(layout) => *layout = stored,
                    None => amendment.layouts.push(stored),
                }
            }
            amendment.size = size;
            amendment.commit().await.map(Some)
        };
        let committed = lease.during(committing).await;
        let layouts = amendment.layouts.clone();
        let report = amendment.end(start, committed).await?;
        changed.segments_anew += anew as u64;
        changed.segments_added += added as u64;
        changed.written_bytes += report.written_bytes;
        // That is done and known: nothing that fails after it makes it undone.
        Ok(self.made_of(object, before, (layouts, size), &report).await)
    }

    /// The object as a change left it that was made of what it was `before` and listed these segments, `size` bytes of them: looked up where
    /// others have changed other segments meanwhile.
    pub(super) async fn made_of(
        &self,
        (bucket, key): (&str, &str),
        before: ObjectStat,
        (layouts, size): (Vec<SegmentLayout>, u64),
        report: &AmendReport,
    ) -> ObjectStat {
        let base = before.object.version;
        let now = before.committed(layouts, size, report.version);
        if !report.beside_others {
            return now;
        }
        match self.stat(bucket, key).await {
            Ok(now) => now,
            Err(error) => {
                tracing::debug!(%error, "not looked up after a commit");
                // Whoever makes it longer by this is told to look first.
                let object = ObjectRecord { version: base, ..now.object };
                ObjectStat { object, ..now }
            }
        }
    }

    /// Stores the segments of parts, several at a time as a put does; their layouts by position, in order.
    pub(super) async fn store_parts(
        &self,
        amendment: &Amendment<'_>,
        parts: Vec<Part>,
        ranges: &Ranges,
        wish: &Wish,
    ) -> Result<Vec<(usize, SegmentLayout)>, AmendError> {
        let sized = |part: Part| (shape_of(amendment, &part).0, part);
        let parts: Vec<(u64, Part)> = parts.into_iter().map(sized).collect();
        let parts = Parts::new(&parts, self.options.memory_bytes, amendment.reserved.wants_pace());
        let mut stored = side_by_side(|| self.store_in_turn(amendment, &parts, ranges, wish)).await?;
        stored.sort_unstable_by_key(|(position, _)| *position);
        Ok(stored)
    }

    /// Stores one segment after the other, while there are any.
    async fn store_in_turn(
        &self,
        amendment: &Amendment<'_>,
        parts: &Parts<'_, Part>,
        ranges: &Ranges,
        wish: &Wish,
    ) -> Result<Vec<(usize, SegmentLayout)>, AmendError> {
        let mut stored = Vec::new();
        while let Some((part, _share)) = parts.next().await {
            stored.push((part.position, self.store_part(amendment, part, ranges, wish).await?));
        }
        Ok(stored)
    }

    /// Stores the segment of a part anew, or for the first time.
    async fn store_part(
        &self,
        amendment: &Amendment<'_>,
        part: &Part,
        ranges: &Ranges,
        wish: &Wish,
    ) -> Result<SegmentLayout, AmendError> {
        let replaced = amendment.layouts.get(part.position);
        let (length, block_bytes, originals) = shape_of(amendment, part);
        let _memory = self.memory.hold(length);
        let there = match (replaced, &part.becomes) {
            (Some(layout), Becomes::Same) => anew_of(amendment, layout, &part.ranges).await?,
            (Some(layout), Becomes::Longer(longer)) => {
                let there = anew_of(amendment, layout, &part.ranges).await?;
                // What lies behind the end may be anything.
                recut(&there, longer.from, block_bytes, length)
            }
            _ => recut(&[], 0, block_bytes, length),
        };
        let blocks = over(there, block_bytes, (part.at, length), ranges);
        let blocks = blocks.into_iter().map(BytesMut::freeze).collect();
        let blocks = Originals::whole(blocks, block_bytes, originals);
        let none = BTreeSet::new();
        match (replaced, &part.becomes) {
            (Some(layout), Becomes::Same) => amendment.store_anew(layout, part.at, blocks, wish, &none).await,
            (_, Becomes::Longer(longer)) => {
                amendment.store(replaced, &longer.anew, blocks, wish, &none).await
            }
            (_, Becomes::New(plan)) => amendment.store(None, plan, blocks, wish, &none).await,
            (None, Becomes::Same) => unreachable!("a segment that stays is there"),
        }
    }

    /// Changes one segment in place, and counts in what it gains; how the object grew, or none where it cannot be done so.
    async fn part_in_place(
        &self,
        object: (&str, &str),
        found: &ObjectStat,
        part: &Part,
        ranges: &Ranges,
        changed: &mut Changed,
    ) -> Result<Option<Option<Grown>>, AmendError> {
        let Some((layout, changes)) = changes_of(found, part) else { return Ok(None) };
        let longer = match &part.becomes {
            Becomes::Longer(longer) => Some(part.at + longer.anew.length),
            _ => None,
        };
        let read = |at, length| ready(Ok(slice(ranges, at, length)));
        let priority = self.options.quality.priority();
        let sent = in_place::change(self, (layout, priority), part.at, changes, read).await;
        let Some(sent) = sent.map_err(AmendError::Source)? else { return Ok(None) };
        let grown = match longer {
            Some(size) => Some(self.count_in(object, found.object.version, size).await?),
            None => None,
        };
        // Those that were not counted in are sent again.
        changed.in_place_bytes += sent;
        Ok(Some(grown))
    }

    /// Counts in what was written behind the end of the last segment.
    async fn count_in(
        &self,
        (bucket, key): (&str, &str),
        base: Version,
        size: u64,
    ) -> Result<Grown, AmendError> {
        let grow = Change::Grow { bucket: bucket.to_owned(), key: key.to_owned(), base, size };
        match self.metadata.change(grow).await? {
            MetaAnswer::Committed { version, .. } => Ok(Grown { base, version, size }),
            other => Err(unexpected("Committed", &other).into()),
        }
    }

    fn known(&self, layout: &SegmentLayout) -> Known {
        let addresses = layout.holders.iter().map(|holder| self.address_of(holder.device));
        (layout.clone(), addresses.collect())
    }
}

/// A part's segment, and the changes that make the part in place; none where it cannot be made so.
fn changes_of<'a>(found: &'a ObjectStat, part: &Part) -> Option<(&'a SegmentLayout, Vec<ChunkChange>)> {
    let layout = found.segments.get(part.position)?;
    match &part.becomes {
        Becomes::Longer(longer) if !longer.in_place(&part.ranges) => None,
        _ => Some((layout, plan::in_place(&found.policy, layout, &part.ranges)?)),
    }
}

/// Bytes, bytes of a block, and K of the segment that a part makes.
fn shape_of(amendment: &Amendment<'_>, part: &Part) -> (u64, u32, u32) {
    let there = |layout: &SegmentLayout| (layout.length, layout.block_bytes, layout.code.originals);
    match &part.becomes {
        Becomes::Same => amendment.layouts.get(part.position).map_or((0, 1, 0), there),
        Becomes::Longer(longer) => of_plan(&longer.anew),
        Becomes::New(plan) => of_plan(plan),
    }
}

/// Bytes, bytes of a block, and K of a segment as planned.
fn of_plan(plan: &SegmentPlan) -> (u64, u32, u32) {
    (plan.length, plan.geometry.block_bytes, plan.geometry.originals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        PutOptions,
        amend::{
            faked::{self, Heard},
            parts::tests::found,
        },
        reserve::tests::{client, layout, serving},
    };
    use bytes::Bytes;
    use core::sync::atomic::{AtomicU32, Ordering};
    use std::{io::Cursor, sync::Arc, time::Duration};
    use steadfast_protocol::message::{self, ChunkVersions, Fault, NodeAnswer, NodeFault, NodeRequest};
    use tokio::sync::mpsc::unbounded_channel;

    /// A client of a full cluster, in which so many changes in place are refused.
    async fn full(refused: u32) -> (Client, Arc<AtomicU32>) {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&asked);
        let address = serving(move |request, stream| {
            let answer = match request {
                NodeRequest::Update { segment, .. } => {
                    if counted.fetch_add(1, Ordering::Relaxed) < refused {
                        let detail = "its node restarts".to_owned();
                        let fault = NodeFault::NotInPlace { segment, detail };
                        return stream.fail(&Fault::Node(fault));
                    }
                    NodeAnswer::Updated { version: 1 }
                }
                NodeRequest::ChunkVersions { .. } => NodeAnswer::ChunkVersions(ChunkVersions::default()),
                _ => NodeAnswer::Done,
            };
            // The client may be gone.
            let _ = stream.end(message::encode(&answer));
        })
        .await;
        let mut client = client(&address, Vec::new());
        client.registry.lock().unwrap().nodes[0].devices.iter_mut().for_each(|device| device.free_bytes = 0);
        let mut object = faked::object(1);
        // So small a segment has no room for a log.
        object.policy = "parity:code=rs(4,2),segment=1MiB,domain=device,update=fo".parse().unwrap();
        faked::metadata(&mut client, object, unbounded_channel::<Heard>().0).await;
        (client, asked)
    }

    /// It needs no room.
    #[tokio::test]
    async fn a_change_that_is_refused_for_a_moment_is_made_in_place_on_a_full_cluster() {
        let bytes = Bytes::from(vec![7; 100]);
        let (client, asked) = full(1).await;
        let ranges = [(5000, bytes.clone())];
        let made = client
            .change_found(("data", "object"), (&ranges, 0), Instant::now(), &[], Changed::default())
            .await;
        assert_eq!(made.unwrap().0.in_place_bytes, 100);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
        // So is one that is no handle's.
        let (client, asked) = full(1).await;
        let source = Cursor::new(bytes.to_vec());
        let made = client.update_with("data", "object", 5000, source, &PutOptions::default()).await;
        assert_eq!(made.unwrap().in_place_bytes, 100);
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }

    #[tokio::test]
    async fn what_needs_room_fails_at_once_on_a_full_cluster() {
        let (client, asked) = full(u32::MAX).await;
        let length = layout().length;
        let whole = [(0, Bytes::from(vec![7; length as usize]))];
        let behind = [(length + 5, Bytes::from(vec![7; 10]))];
        for (ranges, size) in [(&[][..], 2 * length), (&[], 5 << 20), (&whole, 0), (&behind, 0)] {
            let start = Instant::now();
            let made =
                client.change_found(("data", "object"), (ranges, size), start, &[], Changed::default()).await;
            let error = made.map(|(changed, _)| changed).unwrap_err();
            assert!(matches!(error, AmendError::Plan(_)), "{error:?}");
            assert!(start.elapsed() < client.options.patience / 2, "{:?}", start.elapsed());
        }
        assert_eq!(asked.load(Ordering::Relaxed), 0);
        // What could be made in place is given up once patience is over.
        let (mut client, asked) = full(u32::MAX).await;
        client.options.patience = Duration::from_secs(1);
        let ranges = [(5000, Bytes::from(vec![7; 100]))];
        let made = client
            .change_found(("data", "object"), (&ranges, 0), Instant::now(), &[], Changed::default())
            .await;
        let error = made.map(|(changed, _)| changed).unwrap_err();
        assert!(matches!(error, AmendError::Plan(_)), "{error:?}");
        assert!(asked.load(Ordering::Relaxed) > 1);
    }

    #[test]
    fn what_grows_in_place_keeps_its_contents() {
        let mut file = found(&[100, 50]);
        let (base, version) = (file.object.version, Version(7));
        let contents = file.object.contents;
        file.grow(&Grown { base, version, size: 170 });
        assert_eq!((file.object.size, file.segments[1].length), (170, 70));
        assert_eq!((file.object.version, file.object.contents), (version, contents));
        // It was another by then.
        file.grow(&Grown { base, version: Version(8), size: 200 });
        assert_eq!((file.object.size, file.object.version), (170, version));
    }

    #[test]
    fn what_was_committed_is_known() {
        let before = found(&[100, 50]);
        let layouts = found(&[100, 80]).segments;
        let now = before.clone().committed(layouts.clone(), 180, Version(7));
        assert_eq!((now.object.size, now.object.version, now.object.contents), (180, Version(7), Version(7)));
        assert_eq!((now.object.segments.len(), &now.segments), (2, &layouts));
        assert_eq!((now.object.committed, now.policy), (before.object.committed, before.policy));
    }
}
