//! Making an object independent of some devices: what a drain, and the repair after a loss, do to each object.

use super::{
    AmendError, AmendReport,
    session::{Amendment, Contents, Replaced, code, dialled, given},
};
use crate::{Client, ObjectStat};
use bytes::BytesMut;
use std::{collections::BTreeSet, time::Instant};
use steadfast_codes::rateless::Kind;
use steadfast_protocol::{
    DeviceId, IndexRanges,
    durability::Rule,
    layout::{CodeKind, SegmentLayout},
    plan::Wish,
    policy::Policy,
};
use steadfast_transfer::Originals;

impl Client {
    /// Makes an object independent of `leaving`: blocks are written elsewhere until the durability rule holds without those
    /// devices, at the redundancy that the object has, and they are listed no more. Originals among their blocks are
    /// rebuilt under their own index, so that ranges are read as before; the devices may be gone already. Nothing is done
    /// where they hold nothing of it.
    ///
    /// # Errors
    /// When the rule cannot hold without them (the last copy among these): the object is what it was before, or, of a file, some
    /// of its segments have been moved.
    pub async fn without_devices(
        &self,
        bucket: &str,
        key: &str,
        leaving: &BTreeSet<DeviceId>,
    ) -> Result<AmendReport, AmendError> {
        let start = Instant::now();
        let mut last_too = false;
        let first = self.amend(bucket, key, async |client, found| {
            let mut affected = affected(&found, leaving);
            // While a file is appended to its last segment is not moved easily: the others do not wait for that.
            let grows = matches!(found.policy, Policy::Parity(_));
            last_too = grows && affected.len() > 1 && affected.last() == Some(&(found.segments.len() - 1));
            if last_too {
                affected.pop();
            }
            leave_some(client, (bucket, key), found, affected, leaving).await
        });
        let mut report = first.await?;
        if last_too {
            let last = self.amend(bucket, key, async |client, found| {
                let affected = affected(&found, leaving);
                leave_some(client, (bucket, key), found, affected, leaving).await
            });
            report = both(report, last.await?);
        }
        report.latency = start.elapsed();
        Ok(report)
    }
}

/// Which of an object's segments have anything on devices that are left.
fn affected(found: &ObjectStat, leaving: &BTreeSet<DeviceId>) -> Vec<usize> {
    let lies = |layout: &SegmentLayout| layout.pieces().any(|(device, _)| leaving.contains(&device));
    (0..found.segments.len()).filter(|&position| lies(&found.segments[position])).collect()
}

/// Makes these segments of an object as found independent of `leaving`, in one amendment.
async fn leave_some(
    client: &Client,
    object: (&str, &str),
    found: ObjectStat,
    affected: Vec<usize>,
    leaving: &BTreeSet<DeviceId>,
) -> Result<AmendReport, AmendError> {
    let start = Instant::now();
    if affected.is_empty() {
        return Ok(AmendReport::unchanged(&found, start));
    }
    let of = (affected.len(), false);
    let amendment = Amendment::begin(client, object, found, of, Default::default()).await?;
    amendment
        .finish(start, async |amendment| {
            for position in affected {
                let layout = amendment.layouts[position].clone();
                let before = &amendment.layouts[..position];
                let offset = before.iter().map(|layout| layout.length).sum();
                amendment.layouts[position] = leave(amendment, (&layout, offset), leaving).await?;
            }
            Ok(true)
        })
        .await
}

/// What two amendments of an object took, one after the other.
fn both(first: AmendReport, second: AmendReport) -> AmendReport {
    AmendReport {
        version: second.version,
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
    }
}

async fn leave(
    amendment: &mut Amendment<'_>,
    (layout, offset): (&SegmentLayout, u64),
    leaving: &BTreeSet<DeviceId>,
) -> Result<SegmentLayout, AmendError> {
    if matches!(layout.code.kind, CodeKind::ReedSolomon { .. }) && amendment.fence(layout, leaving).await? {
        // Versions go with the chunk that they count: one that is moved alone would not be what parity holds.
        let originals = amendment.decode(layout).await?.into_iter().map(BytesMut::freeze).collect();
        let originals = Originals::whole(originals, layout.block_bytes, layout.code.originals);
        return amendment.store_anew(layout, offset, originals, &Wish::default(), leaving).await;
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
        rule.redundancy = dialled(layout);
    }
    let _memory = amendment.client.memory.hold(layout.length);
    let originals = amendment.decode(layout).await?.into_iter().map(BytesMut::freeze).collect();
    let contents =
        Contents::Originals(Originals::whole(originals, layout.block_bytes, layout.code.originals));
    let replaced = Replaced::of(&places, layout, dropped);
    let given = given(&places, layout, &replaced, &wanted);
    let written = amendment.write(layout, rule, &places, given, contents).await?;
    let written = written.expect("any block can be made of the originals");
    Ok(amendment.amended(layout, &replaced, &written))
}
