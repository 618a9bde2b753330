//! An open object: bytes from any place of one version, with read-ahead for those who read on.
//!
//! A read that begins where the last one ended finds its bytes here or on their way: each such read doubles what is read
//! ahead, up to [`READ_AHEAD_BYTES_MAX`]. A read anywhere else ends that, and fetches what it was asked for and no more
//! than the blocks that hold it.
//!
//! Invariants: every byte is of the contents that the object had when it was opened, with changes in place of then or later: what
//! was read ahead may be older than what others have changed since; what is ahead is in one piece and begins where the last
//! read ended.

use crate::{
    Client, ClientError, GetError, ObjectStat, chunks,
    get::{CHANGES_MAX, SegmentReader, parts},
};
use bytes::{Buf, Bytes, BytesMut};
use std::{collections::VecDeque, ops::Range, sync::Arc};
use steadfast_protocol::{
    Version,
    layout::{BLOCK_BYTES_MAX, CodeKind},
    plan::Wish,
};
use tokio::task::JoinHandle;

/// The most that is read ahead, and a quarter of the client's memory at most. Picked by eye: 64 MiB keep 600 MB/s going
/// over 100 ms.
const READ_AHEAD_BYTES_MAX: u64 = 64 << 20;
/// Spans end at multiples of this, which all blocks divide: no block is fetched for two spans.
const ALIGN_BYTES: u64 = BLOCK_BYTES_MAX as u64;

/// An object as it was when it was opened.
#[derive(Debug)]
pub struct ObjectReader {
    client: Arc<Client>,
    bucket: String,
    key: String,
    found: Arc<ObjectStat>,
    /// Where the last read ended.
    position: u64,
    /// How much is read ahead now, in bytes; 0 until a read follows another.
    window_bytes: u64,
    /// From `position` on, in order and without gaps.
    ahead: VecDeque<Span>,
}

/// Bytes of the object that are here or on their way.
#[derive(Debug)]
struct Span {
    bytes: Range<u64>,
    state: State,
}

#[derive(Debug)]
enum State {
    Coming(Fetch),
    Here(VecDeque<Bytes>),
}

/// A fetch that is given up with its reader.
#[derive(Debug)]
struct Fetch(JoinHandle<Result<VecDeque<Bytes>, GetError>>);

impl Drop for Fetch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Client {
    /// Opens an object for reading at any place.
    ///
    /// # Errors
    /// When there is no such object.
    pub async fn open(self: &Arc<Self>, bucket: &str, key: &str) -> Result<ObjectReader, ClientError> {
        let found = self.locate(bucket, key).await?;
        Ok(ObjectReader {
            client: Arc::clone(self),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            found: Arc::new(found),
            position: 0,
            window_bytes: 0,
            ahead: VecDeque::new(),
        })
    }
}

impl ObjectReader {
    /// Bytes in the object.
    pub fn size(&self) -> u64 {
        self.found.object.size
    }

    /// The version that the bytes read are those of.
    pub fn contents(&self) -> Version {
        self.found.object.contents
    }

    /// Where [`ObjectReader::read`] goes on: behind the last read's bytes.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// How much is read ahead now, in bytes.
    pub fn read_ahead_bytes(&self) -> u64 {
        self.window_bytes
    }

    /// The next `length` bytes; fewer at the object's end, and none behind it.
    ///
    /// # Errors
    /// As [`ObjectReader::read_at`].
    pub async fn read(&mut self, length: usize) -> Result<Bytes, GetError> {
        self.read_at(self.position, length).await
    }

    /// `length` bytes from `offset` on; fewer at the object's end, and none behind it. They may lie in a large page of the client's
    /// (2 MiB), which stays with them: what is kept for long is better copied.
    ///
    /// # Errors
    /// [`GetError::Changed`] when the object was replaced or removed and what was opened is gone, [`GetError::Read`] when
    /// too little of it can be had now. The same read can be tried again; after one that was dropped before its end,
    /// [`ObjectReader::read`] goes on somewhere in it.
    pub async fn read_at(&mut self, offset: u64, length: usize) -> Result<Bytes, GetError> {
        let end = offset.saturating_add(length as u64).min(self.size());
        if offset >= end {
            return Ok(Bytes::new());
        }
        if offset == self.position && offset > 0 {
            let most = READ_AHEAD_BYTES_MAX.min(self.client.options.memory_bytes / 4);
            self.window_bytes = (2 * self.window_bytes.max(end - offset)).min(most);
        } else {
            self.window_bytes = 0;
            if offset != self.position {
                self.ahead.clear();
            }
        }
        self.position = offset;
        for change in 1.. {
            self.fetch_to(end);
            let error = match self.take(end).await {
                Ok(bytes) => return Ok(bytes),
                Err(error) => error,
            };
            self.ahead.clear();
            self.position = offset;
            if !matches!(error, GetError::Read(_)) || change > CHANGES_MAX {
                return Err(error);
            }
            // Blocks may have moved; other contents are another object. How much was read before, and where, is the caller's to know.
            let now = self.client.changed(&self.bucket, &self.key, &self.found, Some(0), error).await?;
            self.found = Arc::new(now);
        }
        unreachable!("it returns at the last change")
    }

    /// Sees to it that everything before `end`, and the window behind it, is here or on its way.
    fn fetch_to(&mut self, end: u64) {
        let covered = self.covered();
        if covered < end {
            self.fetch(covered..end);
        }
        let covered = self.covered();
        // Few and large: the next fetch when half the window is used.
        if self.window_bytes > 0 && covered < end + self.window_bytes.div_ceil(2) {
            self.fetch(covered..end + self.window_bytes);
        }
    }

    fn covered(&self) -> u64 {
        self.ahead.back().map_or(self.position, |span| span.bytes.end)
    }

    /// Begins to fetch `bytes`, and what else the last of their blocks may hold.
    fn fetch(&mut self, bytes: Range<u64>) {
        let end = self.end_of_unit(bytes.end);
        let bytes = bytes.start..end.min(self.size());
        if bytes.is_empty() {
            return;
        }
        let (client, found) = (Arc::clone(&self.client), Arc::clone(&self.found));
        let wanted = bytes.clone();
        let fetch = tokio::spawn(async move { fetch(&client, &found, wanted).await });
        self.ahead.push_back(Span { bytes, state: State::Coming(Fetch(fetch)) });
    }

    /// Where a fetch up to `end` best ends: what comes with it anyway is kept, for a read that goes on.
    fn end_of_unit(&self, end: u64) -> u64 {
        let mut begin = 0;
        for layout in &self.found.segments {
            let segment = begin..begin + layout.length;
            if segment.contains(&(end - 1)) {
                let unit = match layout.code.kind {
                    // The first blocks of a segment are no nearer than the last.
                    CodeKind::Lt { .. } => return segment.end,
                    _ if self.window_bytes > 0 => ALIGN_BYTES,
                    CodeKind::ReedSolomon { .. } => u64::from(layout.granule_bytes.max(1)),
                    _ => u64::from(layout.block_bytes),
                };
                return segment.end.min(begin + (end - begin).next_multiple_of(unit));
            }
            begin = segment.end;
        }
        end
    }

    /// Takes everything up to `end` from what is ahead, which covers it.
    async fn take(&mut self, end: u64) -> Result<Bytes, GetError> {
        let mut taken: Vec<Bytes> = Vec::new();
        while self.position < end {
            let span = self.ahead.front_mut().expect("it was seen to before");
            if let State::Coming(fetch) = &mut span.state {
                let pieces =
                    (&mut fetch.0).await.expect("a fetch neither panics nor is given up by others")?;
                span.state = State::Here(pieces);
            }
            let State::Here(pieces) = &mut span.state else { unreachable!("it has come") };
            let piece = pieces.front_mut().expect("a span's pieces are as long as it is");
            let wanted = usize::try_from(end - self.position).unwrap_or(usize::MAX).min(piece.len());
            taken.push(piece.split_to(wanted));
            self.position += wanted as u64;
            if piece.is_empty() {
                pieces.pop_front();
            }
            span.bytes.start = self.position;
            if span.bytes.is_empty() {
                self.ahead.pop_front();
            }
        }
        if let [one] = &mut taken[..] {
            return Ok(std::mem::take(one));
        }
        let mut joined = BytesMut::with_capacity(taken.iter().map(Bytes::remaining).sum());
        taken.iter().for_each(|piece| joined.extend_from_slice(piece));
        Ok(joined.freeze())
    }
}

/// Bytes `wanted` of the object, in pieces.
pub(crate) async fn fetch(
    client: &Client,
    found: &ObjectStat,
    wanted: Range<u64>,
) -> Result<VecDeque<Bytes>, GetError> {
    let mut pieces = VecDeque::new();
    if let Some(few) = chunks::direct(client, found, wanted.clone()).await {
        return Ok(few.into());
    }
    // Nothing is reserved: how fast an open object will be read, and for how long, nobody knows.
    let wish = Wish::default();
    let reading = client.plan_read(&found.segments, wanted.end - wanted.start, &wish).await?;
    for (layout, part) in parts(found, wanted) {
        let mut reader = SegmentReader::new(client, layout, part, &found.policy, None, &reading)?;
        reader.arrive().await?;
        let block_bytes = u64::from(layout.block_bytes);
        let (from, to) = reader.part_of_blocks();
        let originals = reader.decode().await?;
        reader.account();
        for (at, block) in (0u64..).step_by(layout.block_bytes as usize).zip(originals) {
            let (from, to) = (from.max(at), to.min(at + block_bytes));
            if from < to {
                // Both lie within the block, which fits memory.
                pieces.push_back(block.freeze().slice((from - at) as usize..(to - at) as usize));
            }
        }
    }
    Ok(pieces)
}
