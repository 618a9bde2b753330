//! An open object: bytes from any place of one version, with read-ahead for those who read on.
//!
//! A read that begins where the last one ended finds its bytes here or on their way: each such read doubles what is read
//! ahead, up to [`READ_AHEAD_BYTES_MAX`]. A read anywhere else ends that, and fetches what it was asked for and no more
//! than the blocks that hold it.
//!
//! With a wish for a bandwidth the devices that hold the object keep it for as long as it is open.
//!
//! Invariants: every byte is of the contents that the object had when it was opened, with changes in place of then or later: what
//! was read ahead may be older than what others have changed since; what is ahead is in one piece and begins where the last
//! read ended.

use crate::{
    Client, GetError, GetOptions, ObjectStat, chunks,
    get::{CHANGES_MAX, SegmentReader, parts},
    reserve::{Lasting, Reading},
};
use bytes::{Buf, Bytes, BytesMut};
use std::{
    collections::VecDeque,
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};
use steadfast_protocol::{
    Version,
    layout::{BLOCK_BYTES_MAX, CodeKind},
    plan::{PlanError, Wish},
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
    wish: Wish,
    /// How it is read, with what is kept for that while it is open.
    lasting: Lasting,
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
    /// When there is no such object; for what the client wants of every access as [`Client::open_with`].
    pub async fn open(self: &Arc<Self>, bucket: &str, key: &str) -> Result<ObjectReader, GetError> {
        self.open_with(bucket, key, &GetOptions::default()).await
    }

    /// As [`Client::open`], with wishes of its own (dissertation App. B): the devices that hold the object keep the bandwidth until the
    /// reader is dropped.
    ///
    /// # Errors
    /// When there is no such object; [`GetError::Plan`] for a wish that the holders cannot meet, and for any latency, as nobody knows how
    /// much will be read; [`GetError::Busy`] for a wish that they cannot meet now.
    pub async fn open_with(
        self: &Arc<Self>,
        bucket: &str,
        key: &str,
        options: &GetOptions,
    ) -> Result<ObjectReader, GetError> {
        let start = Instant::now();
        let quality = options.quality.or(self.options.quality);
        if quality.latency.is_some() {
            return Err(PlanError::Unforeseen {
                wish: "latency",
                access: "an open object, of which nobody knows how much will be read",
                instead: "wish for a bandwidth, or for the latency of a get",
            }
            .into());
        }
        let found = self.locate(bucket, key).await?;
        let round_trip = self.metadata.way(start.elapsed());
        ObjectReader::new(self, (bucket, key), found, Wish { quality, round_trip }).await
    }
}

impl ObjectReader {
    /// Of an object as found, once what is wished for is kept.
    async fn new(
        client: &Arc<Client>,
        (bucket, key): (&str, &str),
        found: ObjectStat,
        wish: Wish,
    ) -> Result<Self, GetError> {
        let reading = client.plan_read(&found, 0..found.object.size, &wish).await?;
        Ok(Self {
            client: Arc::clone(client),
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            found: Arc::new(found),
            wish,
            lasting: Lasting::new(reading),
            position: 0,
            window_bytes: 0,
            ahead: VecDeque::new(),
        })
    }

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
    /// too little of it can be had now; [`GetError::Plan`] and [`GetError::Busy`] where it was moved to devices that cannot keep the
    /// bandwidth wished for. The same read can be tried again; after one that was dropped before its end,
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
            if self.wish.quality.wants_pace() {
                // What is kept on the devices that had it would stand in the way of what those that have it now are to keep.
                self.lasting = Lasting::new(self.client.reading(self.wish.quality.class()));
                let reading = self.client.plan_read(&now, 0..now.object.size, &self.wish).await?;
                self.lasting = Lasting::new(reading);
            }
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
        let (reading, way) = (Arc::clone(&self.lasting.reading), self.wish.round_trip);
        let wanted = bytes.clone();
        let fetch = tokio::spawn(async move { fetch(&client, &found, wanted, (&reading, way)).await });
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

/// Bytes `wanted` of the object, in pieces; a round trip takes as long as `way`.
pub(crate) async fn fetch(
    client: &Client,
    found: &ObjectStat,
    wanted: Range<u64>,
    (reading, way): (&Reading, Duration),
) -> Result<VecDeque<Bytes>, GetError> {
    let mut pieces = VecDeque::new();
    let reserved = &reading.reserved;
    if !reserved.wants_pace()
        && let Some(few) = chunks::direct(client, found, wanted.clone(), reserved.priority()).await
    {
        return Ok(few.into());
    }
    for (layout, part) in parts(found, wanted) {
        let mut reader = SegmentReader::new(client, layout, part, &found.policy, Some(way), reading)?;
        let block_bytes = u64::from(layout.block_bytes);
        let (from, to) = reader.part_of_blocks();
        let originals = reader.run().await;
        reader.account(originals.is_ok(), way);
        let originals = originals?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Quality,
        reserve::tests::{client, device_of, found, serving_opened},
    };
    use std::{
        collections::BTreeMap,
        sync::{Mutex, PoisonError},
    };
    use steadfast_protocol::{
        DeviceId, Epoch, ReservationId, SegmentId,
        layout::{CodeSpec, Holder, SegmentLayout},
        message::{self, Fault, NodeAnswer, NodeRequest, Priority, RefusalReason},
    };
    use tokio::sync::mpsc;

    /// A client whose node keeps what it is asked to keep and reads nothing; what that hears.
    async fn heard() -> (Arc<Client>, mpsc::UnboundedReceiver<(NodeRequest, Priority)>) {
        let (tell, told) = mpsc::unbounded_channel();
        let reading = Mutex::new(Vec::new());
        let address = serving_opened(move |request, opened, stream| {
            match &request {
                NodeRequest::Reserve(_) => {
                    let _ = stream.end(message::encode(&NodeAnswer::Reserved { lease_ms: 10_000 }));
                }
                NodeRequest::Release { .. } => {
                    let _ = stream.end(message::encode(&NodeAnswer::Done));
                }
                NodeRequest::ReadRows(_) => {
                    stream.fail(&Fault::Refused { reason: RefusalReason::Overloaded, retry_after_ms: 1 });
                }
                _ => reading.lock().unwrap_or_else(PoisonError::into_inner).push(stream),
            }
            // Nobody counts them any more.
            let _ = tell.send((request, opened.priority));
        })
        .await;
        let client = client(&address, Vec::new());
        client.pool.connection(&address).await.unwrap();
        (Arc::new(client), told)
    }

    async fn opened(client: &Arc<Client>, quality: &str) -> Result<ObjectReader, GetError> {
        let quality: Quality = quality.parse().unwrap();
        let round_trip = Duration::from_millis(1);
        ObjectReader::new(client, ("data", "object"), found(), Wish { quality, round_trip }).await
    }

    #[tokio::test]
    async fn nobody_waits_for_what_is_read_in_the_background() {
        let (client, mut told) = heard().await;
        let mut reader = opened(&client, "priority=background").await.unwrap();
        let asked = async {
            let (mut few, mut streams) = (false, false);
            while !(few && streams) {
                let (request, priority) = told.recv().await.unwrap();
                match request {
                    NodeRequest::ReadRows(_) => few = true,
                    NodeRequest::Read { .. } => streams = true,
                    // What is short is asked as ever.
                    _ => continue,
                }
                assert_eq!(priority, Priority::Background, "{request:?}");
            }
        };
        tokio::select! {
            read = reader.read_at(0, 100) => panic!("{read:?}"),
            () = asked => {}
        }
    }

    #[tokio::test]
    async fn the_bandwidth_of_an_open_object_is_kept_until_it_is_dropped() {
        let (client, mut told) = heard().await;
        let mut reader = opened(&client, "bandwidth=1MB").await.unwrap();
        let mut kept = BTreeMap::<DeviceId, ReservationId>::new();
        for _ in 0..4 {
            match told.recv().await.unwrap().0 {
                NodeRequest::Reserve(wish) => kept.insert(wish.device, wish.reservation),
                other => panic!("{other:?}"),
            };
        }
        assert_eq!(kept.len(), 4);
        let asked = async {
            loop {
                match told.recv().await.unwrap().0 {
                    NodeRequest::UnderReservation { reservation, .. } => return reservation,
                    // Renewed meanwhile.
                    NodeRequest::Reserve(_) => {}
                    other => panic!("{other:?}"),
                }
            }
        };
        tokio::select! {
            read = reader.read_at(0, 100) => panic!("{read:?}"),
            reservation = asked => assert_eq!(reservation, kept[&device_of(0)]),
        }
        drop(reader);
        while !kept.is_empty() {
            match told.recv().await.unwrap().0 {
                NodeRequest::Release { device, reservation } => {
                    assert_eq!(kept.remove(&device), Some(reservation));
                }
                // It may have asked others, too, or renewed.
                NodeRequest::UnderReservation { .. } | NodeRequest::Reserve(_) => {}
                other => panic!("{other:?}"),
            }
        }
    }

    const BLOCK: u32 = 64 << 10;

    /// An object of one coded segment: of 64 originals and half as many more blocks each of four devices has a quarter.
    fn coded() -> ObjectStat {
        let (segment, version) = (SegmentId(7), Version(1));
        let holder = |part: u32| {
            let blocks = (16 * part..16 * part + 16).chain(64 + 8 * part..64 + 8 * part + 8).collect();
            Holder::whole(device_of(part), segment, version, blocks)
        };
        let layout = SegmentLayout {
            segment,
            version,
            epoch: Epoch(1),
            length: 64 * u64::from(BLOCK),
            code: CodeSpec { kind: CodeKind::Mix, originals: 64, seed: 0 },
            block_bytes: BLOCK,
            granule_bytes: BLOCK,
            holders: (0..4).map(holder).collect(),
        };
        ObjectStat { segments: vec![layout.clone()], ..crate::amend::found(&[layout.length]) }
    }

    /// Where it is far, devices are to be busy while the next grant is on its way, as in a get.
    #[tokio::test]
    async fn what_is_asked_for_at_a_time_follows_the_way_there() {
        let (tell, mut told) = mpsc::unbounded_channel();
        let reading = Mutex::new(Vec::new());
        let address = serving_opened(move |_, opened, stream| {
            reading.lock().unwrap_or_else(PoisonError::into_inner).push(stream);
            // Nobody counts them any more.
            let _ = tell.send(opened.credit / BLOCK);
        })
        .await;
        let client = client(&address, Vec::new());
        client.pool.connection(&address).await.unwrap();
        let client = Arc::new(client);
        let mut blocks = Vec::new();
        for round_trip in [Duration::ZERO, Duration::from_secs(1)] {
            let wish = Wish { quality: Quality::default(), round_trip };
            let mut reader = ObjectReader::new(&client, ("data", "object"), coded(), wish).await.unwrap();
            let size = usize::try_from(reader.size()).unwrap();
            let asked = async {
                let mut most = 0;
                for _ in 0..4 {
                    most = told.recv().await.unwrap().max(most);
                }
                most
            };
            tokio::select! {
                read = reader.read_at(0, size) => panic!("{read:?}"),
                most = asked => blocks.push(most),
            }
        }
        // Two keep a device busy; all that it is to send, where it takes a second to ask for more.
        assert!(blocks[0] <= 4 && blocks[1] >= 12, "{blocks:?}");
    }

    #[tokio::test]
    async fn what_cannot_be_kept_is_refused() {
        let (client, _told) = heard().await;
        let more = opened(&client, "bandwidth=1GB").await.map(|_| ());
        assert!(matches!(more, Err(GetError::Plan(PlanError::Bandwidth { .. }))), "{more:?}");
        let quality = Quality { latency: Some(Duration::from_secs(9)), ..Quality::default() };
        let late = client.open_with("data", "object", &GetOptions { quality }).await.map(|_| ());
        assert!(matches!(late, Err(GetError::Plan(PlanError::Unforeseen { .. }))), "{late:?}");
    }
}
