//! Giving an object of a parity bucket another size: a hole behind its end, or nothing of what is behind the new one.
//!
//! Both are one change of metadata, so that readers see the object before or after. What it loses is fenced first: a handle that
//! still knows it is refused, looks the object up, and makes it longer again by what it writes. The segment that the end
//! falls into is stored anew, so that nothing of what it had behind the end can come back when it grows.

use super::{AmendError, AmendReport, fences::Left, parts::recut, ranges::Changed, session::Amendment};
use crate::{Client, FileError, ObjectStat};
use bytes::BytesMut;
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};
use steadfast_protocol::{
    Version,
    plan::{self, TooLong, Wish, file_bytes_max},
    policy::{Parity, Policy},
};
use steadfast_transfer::Originals;

/// What a change of an object's size took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ResizeReport {
    /// The object's version: a new one, unless it had the size.
    pub version: Version,
    /// Bytes in it before.
    pub size_before: u64,
    /// Bytes in it now.
    pub size: u64,
    /// Segments stored anew: holes are not.
    pub segments_stored: u64,
    /// Payload bytes of blocks that were written.
    pub written_bytes: u64,
    /// From the call until the new size was committed.
    pub latency: Duration,
}

impl Client {
    /// Gives an object of a parity bucket `size` bytes: what is behind them is gone, what it lacks is zero.
    ///
    /// # Errors
    /// The object is what it was before, or where [`ClientError::Unknown`](crate::ClientError::Unknown) says that nobody answered
    /// may have its new size, or get it yet. [`FileError::Policy`] where the bucket's policy is not `parity`,
    /// [`AmendError::TooLong`] for more than a file of it can have.
    pub async fn truncate(&self, bucket: &str, key: &str, size: u64) -> Result<ResizeReport, FileError> {
        let most = file_bytes_max(&self.file_policy(bucket).await?);
        if size > most {
            return Err(AmendError::from(TooLong { size, most }).into());
        }
        Ok(self.set_size((bucket, key), size).await?.0)
    }

    /// The policy of a bucket that has files.
    pub(crate) async fn file_policy(&self, bucket: &str) -> Result<Parity, FileError> {
        match self.bucket(bucket).await?.policy {
            Policy::Parity(policy) => Ok(policy),
            policy => Err(FileError::Policy { bucket: bucket.to_owned(), policy }),
        }
    }

    /// As [`Client::truncate`] of an object in a parity bucket; and the object as it was found afterwards.
    pub(crate) async fn set_size(
        &self,
        (bucket, key): (&str, &str),
        size: u64,
    ) -> Result<(ResizeReport, ObjectStat), AmendError> {
        let (start, mut size_before, mut shorter) = (Instant::now(), None, None);
        let left = &Left::of(self, (bucket, key));
        let cut = self.amend((bucket, key), left, async |client, found| {
            size_before.get_or_insert(found.object.size);
            match found.policy {
                Policy::Parity(policy) if size < found.object.size => {
                    let (report, now) = client.shorten((bucket, key), left, found, &policy, size).await?;
                    shorter = Some(now);
                    Ok(report)
                }
                _ => Ok(AmendReport::unchanged(&found, start)),
            }
        });
        let cut = cut.await?;
        if let Some(now) = shorter {
            // That is done and known: nothing that fails after it makes it undone.
            let report = ResizeReport {
                version: cut.version,
                size_before: size_before.unwrap_or(size),
                size,
                segments_stored: u64::from(cut.written_blocks > 0),
                written_bytes: cut.written_bytes,
                latency: start.elapsed(),
            };
            return Ok((report, now));
        }
        // Where it has as many that is just a look.
        let (grown, now) =
            self.change_found((bucket, key), (&[], size), Instant::now(), &[], Changed::default()).await?;
        let report = ResizeReport {
            version: now.object.version,
            size_before: size_before.unwrap_or(now.object.size),
            size: now.object.size,
            segments_stored: grown.segments_anew + grown.segments_added,
            written_bytes: grown.written_bytes,
            latency: start.elapsed(),
        };
        Ok((report, now))
    }

    /// Drops what an object as found has behind its first `size` bytes; and the object as it is then.
    async fn shorten(
        &self,
        object: (&str, &str),
        left: &Left<'_>,
        found: ObjectStat,
        policy: &Parity,
        size: u64,
    ) -> Result<(AmendReport, ObjectStat), AmendError> {
        let start = Instant::now();
        let before = ObjectStat { object: found.object.clone(), segments: Vec::new(), policy: found.policy };
        let mut layouts = Vec::new();
        let cut = plan::cut(policy, &found.segments, size);
        let length = cut.last.map_or(0, |plan| plan.length);
        let of = (usize::from(cut.last.is_some()), true);
        let class = Wish { quality: self.options.quality.class(), ..Wish::default() };
        let amendment = Amendment::begin(self, left, object, found, of, (class, length)).await?;
        let wish = amendment.wish;
        let shortened = amendment.finish(start, async |amendment| {
            let mut dropped = amendment.layouts.split_off(cut.kept);
            let last = cut.last.map(|plan| (plan, dropped.remove(0)));
            let anew = last.as_ref().filter(|(_, layout)| !layout.is_hole());
            if let Some((plan, _)) = anew {
                self.check_devices(&amendment.begun.policy, plan.length, &wish)?;
            }
            amendment.fence_dropped(&dropped).await?;
            if let Some((plan, layout)) = anew {
                // Last: what could not be told of its parity holds for what is read now.
                amendment.fence(layout, &BTreeSet::new()).await?;
                let _memory = self.memory.hold(layout.length);
                let there = amendment.decode_part(layout, 0..plan.length).await?;
                amendment.count(|report| report.decoded_segments += 1);
                let block_bytes = plan.geometry.block_bytes;
                let blocks = recut(&there, plan.length, block_bytes, plan.length).into_iter();
                let blocks = blocks.map(BytesMut::freeze).collect();
                let blocks = Originals::whole(blocks, block_bytes, plan.geometry.originals);
                let stored = amendment.store(Some(layout), plan, blocks, &wish, &BTreeSet::new()).await?;
                amendment.layouts.push(stored);
            } else if let Some((plan, _)) = &last {
                let hole = amendment.holes(&[plan]).await?;
                amendment.layouts.extend(hole);
            }
            dropped.iter().for_each(|layout| amendment.dropped(layout));
            amendment.size = size;
            layouts.clone_from(&amendment.layouts);
            Ok(true)
        });
        let report = shortened.await?;
        let now = self.made_of(object, before, (layouts, size), &report).await;
        Ok((report, now))
    }
}
