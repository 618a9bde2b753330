//! Changing bytes of an object: `put --range`.

use super::{
    AmendError, AmendReport,
    bytes::{NewBytes, Source},
    fences::Left,
    gather::gather,
    in_place,
    leave::tolerates,
    session::{Amendment, Contents, Written, code},
};
use crate::{
    Client, ObjectStat, PutOptions,
    turns::{Parts, side_by_side},
};
use bytes::{Bytes, BytesMut};
use std::{
    collections::{BTreeMap, BTreeSet},
    io::{Read, Seek},
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_protocol::{
    BlockIndex, IndexRanges, Time,
    durability::Rule,
    layout::{CodeKind, Holder, SegmentLayout},
    plan::{self, Again, Attempts, ChunkChange, Places, Quality, Replaced, Unmade, Update, Wish, dialled},
};
use steadfast_transfer::Originals;

impl Client {
    /// Replaces bytes of an object from `offset` on by what `source` gives from where it stands to its end. Only the coded
    /// blocks that hold those bytes are written; readers see the bytes before or after, all of them. In a bucket of policy `parity`
    /// a small change is made where the bytes lie: no part of a granule is ever seen, but some granules may be before others.
    ///
    /// # Errors
    /// The object is what it was before; of a change in place any part may have been made.
    pub async fn update(
        &self,
        bucket: &str,
        key: &str,
        offset: u64,
        source: impl Read + Seek + Send + 'static,
    ) -> Result<AmendReport, AmendError> {
        self.update_with(bucket, key, offset, source, &PutOptions::default()).await
    }

    /// As [`Client::update`], with wishes of its own: bandwidth and latency of this change; redundancy and failures to
    /// tolerate, no less than the bucket's, of what it changes.
    ///
    /// # Errors
    /// As there; [`AmendError::Plan`] for a wish that the devices cannot meet, [`AmendError::Busy`] for one that they
    /// cannot meet now, [`AmendError::Spread`] for one that takes storing the object whole.
    pub async fn update_with(
        &self,
        bucket: &str,
        key: &str,
        offset: u64,
        source: impl Read + Seek + Send + 'static,
        options: &PutOptions,
    ) -> Result<AmendReport, AmendError> {
        let start = Instant::now();
        for (wish, given) in [("devices", options.quality.devices), ("sites", options.quality.sites)] {
            if given.is_some() {
                return Err(AmendError::Spread { wish });
            }
        }
        // What the client wants of every put is no wish of this change.
        let defaults = Quality { devices: None, sites: None, ..self.options.quality };
        let quality = options.quality.or(defaults);
        let source = &Source::new(NewBytes::new(source, offset).map_err(AmendError::Source)?);
        let mut attempts = Attempts::in_place(Time(0), self.options.patience);
        let left = &Left::of(self, (bucket, key));
        loop {
            let turn = self.update_in_turn((bucket, key), left, (offset, source), quality, start);
            let error = match turn.await {
                Err(error) => error,
                made => return made,
            };
            // Others had their turns in that one, and who is awaited.
            let why = error.unmade(false);
            if !matches!(why, Unmade::LacksDevices { .. }) {
                return Err(error);
            }
            let again = attempts.unmade(Time(0) + start.elapsed(), why);
            let Again::InPlace(pause) = again else { return Err(error) };
            if !self.may_update_in_place((bucket, key), source, &quality).await {
                return Err(error);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// As [`Client::update_with`], by whatever way there is now.
    async fn update_in_turn(
        &self,
        (bucket, key): (&str, &str),
        left: &Left<'_>,
        (offset, source): (u64, &Source),
        quality: Quality,
        start: Instant,
    ) -> Result<AmendReport, AmendError> {
        self.amend((bucket, key), left, async |client, found| {
            let (length, size) = (source.length, found.object.size);
            if offset.checked_add(length).is_none_or(|end| end > size) {
                return Err(AmendError::Extends { offset, length, size });
            }
            let mut parts = parts(&found, source);
            quality.policy(&found.policy)?;
            if parts.is_empty() {
                return Ok(AmendReport::unchanged(&found, start));
            }
            let mut in_place_bytes = 0;
            if !quality.wants_pace() {
                let sent;
                (parts, sent) = change_in_place(client, &found, parts, source, &quality).await?;
                in_place_bytes = sent;
            }
            if parts.is_empty() {
                return Ok(AmendReport { in_place_bytes, ..AmendReport::unchanged(&found, start) });
            }
            let (object, of, asked) = ((bucket, key), (parts.len(), true), Instant::now());
            let wish = Wish { quality, round_trip: Duration::ZERO };
            let mut amendment = Amendment::begin(client, left, object, found, of, (wish, length)).await?;
            amendment.count(|report| report.in_place_bytes = in_place_bytes);
            // To begin is one round trip.
            amendment.wish.round_trip = client.metadata.way(asked.elapsed());
            amendment
                .finish(start, async |amendment| {
                    let changed = change_all(amendment, parts, source, length).await?;
                    for (position, changed) in changed {
                        amendment.layouts[position] = changed;
                    }
                    Ok(true)
                })
                .await
        })
        .await
    }

    /// Whether all of an update that could be made in no way may be made in place yet, as far as is known now.
    async fn may_update_in_place(
        &self,
        (bucket, key): (&str, &str),
        source: &Source,
        quality: &Quality,
    ) -> bool {
        let Ok(found) = self.to_amend(bucket, key).await else { return false };
        !quality.wants_pace()
            && parts(&found, source).iter().all(|part| {
                let layout = &found.segments[part.position];
                let changes = changes_of(&found, part, quality);
                changes.is_some_and(|changes| in_place::worth_another_try(self, layout, &changes))
            })
    }
}

/// What of an update falls into one segment.
struct Part {
    /// Which segment.
    position: usize,
    /// Where in the object it begins.
    at: u64,
    /// Bytes of it.
    range: Range<u64>,
}

fn parts(found: &ObjectStat, source: &Source) -> Vec<Part> {
    let (mut parts, mut at) = (Vec::new(), 0u64);
    for (position, layout) in found.segments.iter().enumerate() {
        parts.extend(source.within(at, layout.length).map(|range| Part { position, at, range }));
        at += layout.length;
    }
    parts
}

/// The changes that make a part in place; none where it cannot be made so, or would not survive as much as is wished for.
fn changes_of(found: &ObjectStat, part: &Part, quality: &Quality) -> Option<Vec<ChunkChange>> {
    let layout = &found.segments[part.position];
    let survives = tolerates(layout);
    let changes = plan::in_place(&found.policy, layout, core::slice::from_ref(&part.range));
    changes.filter(|_| quality.tolerate.is_none_or(|tolerate| survives >= tolerate))
}

/// Changes in place what can be, where it survives as much as is wished for; the parts that are left, and the bytes that were changed.
async fn change_in_place(
    client: &Client,
    found: &ObjectStat,
    parts: Vec<Part>,
    source: &Source,
    quality: &Quality,
) -> Result<(Vec<Part>, u64), AmendError> {
    let (mut left, mut bytes) = (Vec::new(), 0);
    for part in parts {
        let layout = &found.segments[part.position];
        let changed = match changes_of(found, &part, quality) {
            Some(changes) => {
                let read = |at, length| source.read(at, length);
                let of = (layout, quality.priority());
                in_place::change(client, of, part.at, changes, read).await.map_err(AmendError::Source)?
            }
            None => None,
        };
        match changed {
            Some(sent) => bytes += sent,
            None => left.push(part),
        }
    }
    Ok((left, bytes))
}

/// Changes the segments of these parts of an update of `length` bytes, several at a time where no bandwidth is kept for it; their layouts
/// as they are to be, by position.
async fn change_all(
    amendment: &Amendment<'_>,
    parts: Vec<Part>,
    source: &Source,
    length: u64,
) -> Result<Vec<(usize, SegmentLayout)>, AmendError> {
    let sized = |part: Part| (amendment.layouts[part.position].length, part);
    let parts: Vec<(u64, Part)> = parts.into_iter().map(sized).collect();
    let (memory_bytes, alone) = (amendment.client.options.memory_bytes, amendment.reserved.wants_pace());
    let parts = Parts::new(&parts, memory_bytes, alone);
    side_by_side(|| change_in_turn(amendment, &parts, source, length)).await
}

/// Changes one segment after the other, while there are any.
async fn change_in_turn(
    amendment: &Amendment<'_>,
    parts: &Parts<'_, Part>,
    source: &Source,
    length: u64,
) -> Result<Vec<(usize, SegmentLayout)>, AmendError> {
    let mut changed = Vec::new();
    while let Some((part, _share)) = parts.next().await {
        let layout = &amendment.layouts[part.position];
        let _memory = amendment.client.memory.hold(layout.length);
        let wish = amendment.wish.part(part.range.end - part.range.start, length);
        changed.push((part.position, change(amendment, layout, part, source, &wish).await?));
    }
    Ok(changed)
}

/// Changes one segment; its layout as it is to be.
async fn change(
    amendment: &Amendment<'_>,
    layout: &SegmentLayout,
    part: &Part,
    source: &Source,
    wish: &Wish,
) -> Result<SegmentLayout, AmendError> {
    // A chunk is whole in one piece: blocks of it are not replaced one by one.
    let (chunks, whole) = (is_parity(layout), part.range == (0..layout.length));
    if chunks || whole {
        let originals = anew_of(amendment, layout, core::slice::from_ref(&part.range)).await?;
        let originals = patched(source, part.at, layout, originals).await?;
        return amendment.store_anew(layout, part.at, originals, wish, &BTreeSet::new()).await;
    }
    let code = code(layout)?;
    let places = amendment.places(&BTreeSet::new(), layout);
    let update = plan::update(&code, layout.block_bytes, &plan::stored(layout), part.range.clone());
    let replaced = Replaced::of(&places, layout, update.blocks());
    let read = replaced.and_merged(&update.read);
    // A device that is known to be out of reach is not asked first; blocks that are minted take originals.
    let whole = update.decode || !places.reach(layout, &read) || raises(amendment, layout);
    let reads = if whole { some_of_all(layout) } else { read.clone() };
    let length = part.range.end - part.range.start;
    amendment.keep(&plan::parts(layout, &reads, &replaced.all()), length, wish).await?;
    if !whole
        && let Some(blocks) = differences(amendment, layout, part, &update, &replaced, source).await?
        && let Some(written) = write(amendment, layout, &places, &replaced, Contents::Blocks(blocks)).await?
    {
        return Ok(amendment.amended(layout, &replaced, &written));
    }
    let originals = amendment.decode(layout).await?;
    let originals = patched(source, part.at, layout, originals).await?;
    let contents = Contents::Originals(originals);
    let written = write(amendment, layout, &places, &replaced, contents).await?;
    let written = written.expect("any block can be made of the originals");
    Ok(amendment.amended(layout, &replaced, &written))
}

fn is_parity(layout: &SegmentLayout) -> bool {
    matches!(layout.code.kind, CodeKind::ReedSolomon { .. })
}

/// The originals that a segment is stored anew of, where these parts of it change: what stays is read, and is zeros elsewhere.
pub(super) async fn anew_of(
    amendment: &Amendment<'_>,
    layout: &SegmentLayout,
    changed: &[Range<u64>],
) -> Result<Vec<BytesMut>, AmendError> {
    let is_hole = layout.is_hole();
    if is_parity(layout) && !is_hole {
        amendment.check_devices(layout).await?;
        // What is changed in place from now on would be lost.
        amendment.fence(layout, &BTreeSet::new()).await?;
    }
    let block = || BytesMut::zeroed(layout.block_bytes as usize);
    let mut originals: Vec<BytesMut> = (0..layout.code.originals).map(|_| block()).collect();
    let staying = if is_hole { Vec::new() } else { staying(layout.length, layout.block_bytes, changed) };
    for part in &staying {
        let first = (part.start / u64::from(layout.block_bytes)) as usize;
        let there = amendment.decode_part(layout, part.clone()).await?;
        originals[first..].iter_mut().zip(there).for_each(|(original, there)| *original = there);
    }
    // Of one segment, in however many parts.
    amendment.count(|report| report.decoded_segments += u32::from(!staying.is_empty()));
    Ok(originals)
}

/// What is read of a segment of `length` bytes of which these parts change, in order: all but the blocks that lie whole within the longest
/// of them (CodFS §4.1.1: of what is not involved parity is made anew). The others are small beside that, or there is none.
fn staying(length: u64, block_bytes: u32, changed: &[Range<u64>]) -> Vec<Range<u64>> {
    let block_bytes = u64::from(block_bytes);
    let (mut longest, mut last) = (0..0, 0..0);
    for part in changed {
        let part = part.start.min(length)..part.end.min(length);
        // What is written piece by piece is one.
        last = if part.start == last.end { last.start..part.end } else { part };
        if last.end - last.start > longest.end - longest.start {
            longest = last.clone();
        }
    }
    let before = 0..longest.start.next_multiple_of(block_bytes).min(length);
    let behind = if longest.end == length { length } else { longest.end / block_bytes * block_bytes }..length;
    let parts = if before.end < behind.start { [before, behind] } else { [0..length, length..length] };
    parts.into_iter().filter(|part| !part.is_empty()).collect()
}

/// Whether more redundancy is wished for than the segment has.
fn raises(amendment: &Amendment<'_>, layout: &SegmentLayout) -> bool {
    amendment.wish.quality.redundancy.is_some_and(|redundancy| redundancy > dialled(layout))
}

/// About what a decode reads: K of the N blocks, of every device its part.
fn some_of_all(layout: &SegmentLayout) -> IndexRanges {
    let share = f64::from(layout.code.originals) / f64::from(layout.stored_blocks().max(1));
    let part = |holder: &Holder| -> Vec<BlockIndex> {
        let blocks = holder.blocks();
        let count = (f64::from(blocks.count()) * share).ceil() as usize;
        blocks.iter().take(count).collect()
    };
    layout.holders.iter().flat_map(part).collect()
}

async fn write(
    amendment: &Amendment<'_>,
    layout: &SegmentLayout,
    places: &Places,
    replaced: &Replaced,
    contents: Contents,
) -> Result<Option<Written>, AmendError> {
    let mut rule = Rule::of(&amendment.begun.policy);
    if layout.code.kind != CodeKind::Replicated && !raises(amendment, layout) {
        // It may have been tuned down; an update keeps what it finds and adds no more than the bucket promises.
        rule.redundancy = rule.redundancy.min(dialled(layout));
    }
    let given = plan::given(places, layout, replaced, &replaced.dropped);
    amendment.write(layout, rule, places, given, contents).await
}

/// The blocks that are replaced as they are to be, from the old ones; none when one of those cannot be had.
async fn differences(
    amendment: &Amendment<'_>,
    layout: &SegmentLayout,
    part: &Part,
    update: &Update,
    replaced: &Replaced,
    source: &Source,
) -> Result<Option<BTreeMap<BlockIndex, Bytes>>, AmendError> {
    let wanted = replaced.and_merged(&update.read);
    let mut read = match gather(amendment.client, layout, &wanted, &amendment.reserved).await {
        Ok(read) => read,
        Err(error) => {
            tracing::debug!(segment = %layout.segment, %error, "decoding instead");
            return Ok(None);
        }
    };
    amendment.count(|report| {
        report.read_blocks += wanted.count();
        report.read_bytes += u64::from(wanted.count()) * u64::from(layout.block_bytes);
    });
    let as_they_are: Vec<(BlockIndex, Bytes)> =
        replaced.merged.iter().filter_map(|index| Some((index, read.remove(&index)?.freeze()))).collect();
    let (at, update) = (part.at, update.clone());
    let changed = source.work(move |new| new.change(at, &update, read)).await;
    let mut changed = changed.map_err(AmendError::Source)?;
    changed.extend(as_they_are);
    Ok(Some(changed))
}

/// The originals of a segment that begins at `at`, with the new bytes over them.
async fn patched(
    source: &Source,
    at: u64,
    layout: &SegmentLayout,
    mut originals: Vec<BytesMut>,
) -> Result<Arc<Originals>, AmendError> {
    let (block_bytes, count) = (layout.block_bytes, layout.code.originals);
    let patched = source.work(move |new| {
        new.patch(at, 0, &mut originals)?;
        let blocks = originals.into_iter().map(BytesMut::freeze).collect();
        Ok(Originals::whole(blocks, block_bytes, count))
    });
    patched.await.map_err(AmendError::Source)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_stays_is_read() {
        let read = |changed: &[Range<u64>]| staying(1000, 64, changed);
        let one = |range: Range<u64>| vec![range];
        assert_eq!(read(&[]), one(0..1000));
        assert_eq!(read(&one(0..1000)), []);
        // What was cached piece by piece, and goes on behind the end.
        assert_eq!(read(&[0..300, 300..301, 301..2000]), []);
        assert_eq!(read(&one(0..768)), one(768..1000));
        assert_eq!(read(&one(0..767)), one(704..1000));
        assert_eq!(read(&one(65..1000)), one(0..128));
        assert_eq!(read(&[10..20, 100..800, 900..901]), [0..128, 768..1000]);
        // No whole block: one that is between two changed ones, or less.
        assert_eq!(read(&one(65..127)), one(0..1000));
        assert_eq!(read(&one(100..150)), one(0..1000));
        assert_eq!(read(&one(2000..3000)), one(0..1000));
    }
}
