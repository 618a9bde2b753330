//! Checking and decoding off the runtime's thread, so that neither holds up what still arrives: slices go in, verdicts
//! on whole blocks come out in the same order, and idle time is used to take work off the end.
//!
//! ```text
//!             slice, state, last, solve
//!   resting ─────────────────────────────▶ on a thread of tokio's pool ──solve──▶ over
//!      ▲                                       │
//!      └── nothing asked, nothing to advance ──┘
//! ```
//!
//! A worker has a thread only while it has work. The pool is bounded and everybody's, sinks' too: readers that kept theirs while
//! they wait for blocks would wait for each other where there are many.
//!
//! Invariant: jobs are done one at a time, in the order in which they were asked for.

use crate::states::States;
use bytes::BytesMut;
use std::{
    collections::{BTreeMap, VecDeque},
    ops::Range,
    sync::{Arc, Mutex, MutexGuard},
};
use steadfast_codes::rateless::{Code, DecodeError, Decoder};
use steadfast_disk::checksum;
use steadfast_net::{payload_buffer, zeroed_buffer};
use steadfast_protocol::{
    BlockIndex, DeviceId,
    layout::{CodeKind, Holder, SegmentLayout},
    message::{ReadState, Slice},
    read::Cause,
    serve::parity_log::VersionsByChunk,
};
use steadfast_transfer::Event;
use tokio::sync::{mpsc, oneshot};

/// What became of what went in.
pub(crate) enum Verified {
    /// A slice of `bytes` was looked at: its device may send as much again. What arrives faster than it is looked at
    /// waits in the sockets, not in memory.
    Slice { device: DeviceId, index: BlockIndex, bytes: u32 },
    /// A whole intact block was taken; the decoder lacks at least `missing` now.
    Block { device: DeviceId, index: BlockIndex, missing: u32 },
    /// A block was damaged, out of order, or of another shape than the segment's.
    Corrupt { device: DeviceId, index: BlockIndex },
    /// The device's stream ended, after all its blocks.
    Ended { device: DeviceId },
    /// The device's stream failed, after all its blocks.
    Failed { device: DeviceId, cause: Cause },
}

enum Job {
    State(DeviceId, ReadState),
    Slice(DeviceId, Slice, BytesMut),
    Last(DeviceId, Event),
    Solve(usize, Range<BlockIndex>, oneshot::Sender<Result<Vec<BytesMut>, SolveError>>),
}

/// Why originals were not solved for.
#[derive(Debug)]
pub(crate) enum SolveError {
    /// What is here does not make them.
    Decode(DecodeError),
    /// Chunks that change in place were read at states that do not fit each other.
    Mixed,
}

/// The asking end.
pub(crate) struct Decoding {
    desk: Arc<Mutex<Desk>>,
    verified: mpsc::UnboundedReceiver<Told>,
    /// The second of what was told last.
    behind: Option<Verified>,
}

/// What became of one job, in this order: told as one, so that who waits wakes once.
type Told = (Option<Verified>, Option<Verified>);

/// What was asked for and is not begun, and the worker while it rests.
struct Desk {
    jobs: VecDeque<Job>,
    /// None while it works, and when it is over.
    resting: Option<Box<Worker>>,
    /// Whether it has solved or was given up: nothing more is done.
    over: bool,
}

/// A worker's time on a thread. However it ends, who waits for an answer learns of it.
struct Turn<'a> {
    desk: &'a Mutex<Desk>,
    rests: bool,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.rests {
            let mut desk = lock(self.desk);
            desk.over = true;
            desk.jobs.clear();
        }
    }
}

fn lock(desk: &Mutex<Desk>) -> MutexGuard<'_, Desk> {
    desk.lock().expect("never poisoned: no panic while held")
}

impl Decoding {
    /// A worker that checks and decodes blocks of this segment; it ends with this handle.
    /// Of originals that come as they are, those `wanted` are kept for [`Decoding::solve`] also where the decoder has no use for them.
    /// Parity that has fewer changes of a data chunk than `least` does not stand in for that.
    pub(crate) fn start(
        code: &Code,
        layout: &SegmentLayout,
        wanted: Range<BlockIndex>,
        least: VersionsByChunk,
    ) -> Self {
        let (say, verified) = mpsc::unbounded_channel();
        let worker = Worker {
            decoder: Decoder::new(code, layout.block_bytes as usize),
            partial: BTreeMap::new(),
            damaged: BTreeMap::new(),
            late: BTreeMap::new(),
            plain: if matches!(layout.code.kind, CodeKind::Lt { .. }) { 0..0 } else { wanted },
            holders: layout.holders.iter().map(|holder| (holder.device, holder.clone())).collect(),
            block_bytes: layout.block_bytes as usize,
            granule_bytes: layout.granule_bytes,
            states: States::new(layout, least),
            say,
        };
        let desk = Desk { jobs: VecDeque::new(), resting: Some(Box::new(worker)), over: false };
        Self { desk: Arc::new(Mutex::new(desk)), verified, behind: None }
    }

    /// What a device holds of its chunk, from now on.
    pub(crate) fn state(&self, device: DeviceId, state: ReadState) {
        self.ask(Job::State(device, state));
    }

    /// A slice has arrived.
    pub(crate) fn slice(&self, device: DeviceId, slice: Slice, payload: BytesMut) {
        self.ask(Job::Slice(device, slice, payload));
    }

    /// A stream's last event has arrived.
    pub(crate) fn last(&self, device: DeviceId, event: Event) {
        self.ask(Job::Last(device, event));
    }

    fn ask(&self, job: Job) {
        let mut desk = lock(&self.desk);
        // It is over only after it solved; what comes then is of no use.
        if desk.over {
            return;
        }
        desk.jobs.push_back(job);
        if let Some(worker) = desk.resting.take() {
            drop(desk);
            let desk = Arc::clone(&self.desk);
            tokio::task::spawn_blocking(move || worker.run(&desk));
        }
    }

    /// The next verdict.
    pub(crate) async fn next(&mut self) -> Verified {
        loop {
            if let Some(verified) = self.behind.take() {
                return verified;
            }
            match self.verified.recv().await {
                Some(told) => {
                    if let Some(verified) = self.first(told) {
                        return verified;
                    }
                }
                None => core::future::pending().await,
            }
        }
    }

    /// The next verdict that is here already.
    pub(crate) fn try_next(&mut self) -> Option<Verified> {
        self.behind.take().or_else(|| {
            let told = self.verified.try_recv().ok()?;
            self.first(told)
        })
    }

    fn first(&mut self, (first, second): Told) -> Option<Verified> {
        self.behind = second;
        first.or_else(|| self.behind.take())
    }

    /// The originals `wanted` in order, decoded only where they did not all come as they are; nothing can be decoded
    /// afterwards.
    pub(crate) async fn solve(
        &self,
        threads: usize,
        wanted: Range<BlockIndex>,
    ) -> Result<Vec<BytesMut>, SolveError> {
        let (say, solved) = oneshot::channel();
        self.ask(Job::Solve(threads, wanted, say));
        solved.await.expect("the decoder does not panic")
    }
}

struct Worker {
    decoder: Decoder<BytesMut>,
    /// Blocks of which not all slices have arrived.
    partial: BTreeMap<(DeviceId, BlockIndex), BytesMut>,
    /// The block of each device that came damaged last, until it begins another: its further slices say nothing new.
    damaged: BTreeMap<DeviceId, BlockIndex>,
    /// Originals that came as they are when the decoder had no use for them any more: those of a range may be wanted all the same.
    late: BTreeMap<BlockIndex, BytesMut>,
    /// Those that are wanted, of a code whose first blocks are originals.
    plain: Range<BlockIndex>,
    /// What each device holds: which piece a block is of decides what its checksums are seeded with.
    holders: BTreeMap<DeviceId, Holder>,
    block_bytes: usize,
    granule_bytes: u32,
    states: States,
    say: mpsc::UnboundedSender<Told>,
}

impl Worker {
    /// Does what was asked for, until there is nothing to do.
    fn run(mut self: Box<Self>, desk: &Mutex<Desk>) {
        let mut turn = Turn { desk, rests: false };
        loop {
            // Taken before the work: a lock that is held in a match lasts as long as that.
            let job = lock(desk).jobs.pop_front();
            let job = match job {
                Some(job) => job,
                None if self.say.is_closed() => return,
                None if self.decoder.advance(zeroed_buffer) => continue,
                None => {
                    let mut desk = lock(desk);
                    match desk.jobs.pop_front() {
                        Some(job) => job,
                        None => {
                            turn.rests = true;
                            desk.resting = Some(self);
                            return;
                        }
                    }
                }
            };
            let told = match job {
                Job::State(device, state) => {
                    self.states.now.insert(device, state);
                    continue;
                }
                Job::Slice(device, slice, payload) => {
                    let bytes = u32::try_from(payload.len()).expect("a frame's payload is at most 256 KiB");
                    let looked_at = Verified::Slice { device, index: slice.index, bytes };
                    (Some(looked_at), self.take(device, &slice, payload))
                }
                Job::Last(device, Event::Ended(_)) => (None, Some(Verified::Ended { device })),
                Job::Last(device, Event::Failed(cause)) => (None, Some(Verified::Failed { device, cause })),
                Job::Last(..) => (None, None),
                Job::Solve(threads, wanted, say) => {
                    // Nobody waits any more when the read was given up.
                    let _ = say.send(solve(self.decoder, self.late, threads, wanted, &self.states));
                    return;
                }
            };
            let says_nothing = matches!(told, (None, None));
            if !says_nothing && self.say.send(told).is_err() {
                return;
            }
        }
    }

    fn take(&mut self, device: DeviceId, slice: &Slice, payload: BytesMut) -> Option<Verified> {
        let index = slice.index;
        let offset = slice.offset as usize;
        if offset == 0 {
            self.damaged.remove(&device);
        } else if self.damaged.get(&device) == Some(&index) {
            // The rest of a block that was told already.
            return None;
        }
        // A stream that ended within a block is followed by one that begins it anew.
        let before = self.partial.remove(&(device, index)).filter(|_| offset > 0);
        let in_order = before.as_ref().map_or(0, BytesMut::len) == offset;
        if !in_order || offset + payload.len() > self.block_bytes || !self.intact(device, slice, &payload) {
            self.damaged.insert(device, index);
            return Some(Verified::Corrupt { device, index });
        }
        self.states.took(device, index);
        let mut block = match before {
            None => payload,
            Some(mut block) => {
                block.extend_from_slice(&payload);
                block
            }
        };
        if block.len() < self.block_bytes {
            if block.capacity() < self.block_bytes {
                let slice = std::mem::replace(&mut block, payload_buffer(self.block_bytes));
                block.extend_from_slice(&slice);
            }
            self.partial.insert((device, index), block);
            return None;
        }
        Some(match self.decoder.push(index, block) {
            Ok((_, back)) => {
                if let Some(block) =
                    back.filter(|_| self.plain.contains(&index) && self.decoder.original(index).is_none())
                {
                    self.late.insert(index, block);
                }
                Verified::Block { device, index, missing: self.decoder.missing() }
            }
            // Of a length that this segment's blocks do not have.
            Err(_) => Verified::Corrupt { device, index },
        })
    }

    /// Whether the device is to hold the block, and every granule of the slice is what was stored under the segment and
    /// version of the block's piece, its index and this place.
    fn intact(&self, device: DeviceId, slice: &Slice, payload: &[u8]) -> bool {
        let holder = self.holders.get(&device);
        let Some(piece) = holder.and_then(|holder| holder.piece_of(slice.index)) else { return false };
        let first = slice.offset / self.granule_bytes;
        let granule = self.granule_bytes as usize;
        slice.offset.is_multiple_of(self.granule_bytes)
            && slice.sums.len() == payload.len().div_ceil(granule)
            && payload.chunks(granule).zip(&slice.sums).zip(first..).all(|((bytes, &sum), number)| {
                let tag = checksum::Tag {
                    segment: piece.segment,
                    version: piece.version,
                    index: slice.index,
                    granule_number: number,
                };
                checksum::sum(bytes, &tag) == sum
            })
    }
}

fn solve(
    decoder: Decoder<BytesMut>,
    mut late: BTreeMap<BlockIndex, BytesMut>,
    threads: usize,
    wanted: Range<BlockIndex>,
    states: &States,
) -> Result<Vec<BytesMut>, SolveError> {
    if wanted.clone().all(|index| decoder.original(index).is_some() || late.contains_key(&index)) {
        let came = decoder.into_those_here(wanted.clone());
        let all = came.into_iter().zip(wanted).map(|(block, index)| block.or_else(|| late.remove(&index)));
        return Ok(all.map(|block| block.expect("they are all here")).collect());
    }
    if !states.fit() {
        return Err(SolveError::Mixed);
    }
    let mut originals = decoder.solve(threads).map_err(SolveError::Decode)?;
    originals.truncate(wanted.end as usize);
    originals.drain(..wanted.start as usize);
    Ok(originals)
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_protocol::{
        Epoch, SegmentId, Version,
        layout::{CodeSpec, Piece},
        message::{NodeAnswer, ReadDone},
    };

    const BLOCK: usize = 6000;

    fn start(code: &Code, layout: &SegmentLayout) -> Decoding {
        Decoding::start(code, layout, 0..2, VersionsByChunk::new())
    }

    fn piece(segment: u64, version: u64, index: BlockIndex) -> Piece {
        let blocks = [index].into_iter().collect();
        Piece { segment: SegmentId(segment), version: Version(version), blocks }
    }

    fn layout() -> SegmentLayout {
        let holder = |device, pieces| Holder { device: DeviceId(device), pieces };
        SegmentLayout {
            segment: SegmentId(1),
            version: Version(1),
            epoch: Epoch(2),
            length: 2 * BLOCK as u64,
            code: CodeSpec { kind: CodeKind::Replicated, originals: 2, seed: 0 },
            block_bytes: BLOCK as u32,
            granule_bytes: 4096,
            holders: vec![holder(1, vec![piece(1, 1, 0), piece(9, 2, 1)]), holder(2, vec![piece(9, 2, 3)])],
        }
    }

    fn slice(index: BlockIndex, segment: u64, version: u64) -> (Slice, BytesMut) {
        slice_of(index, segment, version, BLOCK)
    }

    fn slice_of(index: BlockIndex, segment: u64, version: u64, length: usize) -> (Slice, BytesMut) {
        let block = vec![index as u8; length];
        let granule = steadfast_disk::Granule::new(4096).expect("a granule");
        let sums = checksum::sums(&block, granule, SegmentId(segment), Version(version), index);
        (Slice { index, offset: 0, sums }, BytesMut::from(&block[..]))
    }

    /// What was dropped from a device may still lie there, whole and under its old name.
    #[tokio::test]
    async fn a_block_is_taken_only_under_the_name_that_the_layout_lists_it_by() {
        let layout = layout();
        let code = layout.code.code().expect("two originals");
        let mut decoding = start(&code, &layout);
        for (device, index, segment, version, taken) in [
            (1, 1, 1, 1, false),
            (1, 1, 9, 1, false),
            (1, 3, 9, 2, false),
            (2, 0, 1, 1, false),
            (2, 1, 9, 2, false),
            (3, 0, 1, 1, false),
            (1, 0, 1, 1, true),
            (1, 1, 9, 2, true),
        ] {
            let (slice, payload) = slice(index, segment, version);
            decoding.slice(DeviceId(device), slice, payload);
            assert!(matches!(decoding.next().await, Verified::Slice { .. }));
            let verdict = decoding.next().await;
            assert_eq!(
                matches!(verdict, Verified::Block { .. }),
                taken,
                "{device} {index} {segment} {version}"
            );
            assert!(taken || matches!(verdict, Verified::Corrupt { .. }));
        }
        let originals = decoding.solve(1, 0..2).await.expect("both originals came");
        assert!(originals[0][..] == [0; BLOCK] && originals[1][..] == [1; BLOCK]);
    }

    /// With one data chunk a parity chunk has its bytes, but for updates that lie in its log.
    #[tokio::test]
    async fn what_a_parity_chunk_gives_counts_only_at_the_state_that_all_agree_on() {
        let holder = |device, index| Holder { device: DeviceId(device), pieces: vec![piece(1, 1, index)] };
        let layout = SegmentLayout {
            length: 4096,
            code: CodeSpec { kind: CodeKind::ReedSolomon { data: 1, parity: 1 }, originals: 1, seed: 0 },
            block_bytes: 4096,
            holders: vec![holder(1, 0), holder(2, 1)],
            ..layout()
        };
        let code = layout.code.code().expect("one original and one block of parity");
        // Of the last its data chunk has named more, and is late.
        let cases = [(false, 0, 0, false), (true, 0, 0, true), (false, 5, 5, false), (false, 3, 5, true)];
        for (logged, has, least, is_mixed) in cases {
            let mut decoding = Decoding::start(&code, &layout, 0..2, [(0, least)].into());
            let parity = DeviceId(2);
            decoding.state(parity, ReadState { logged, merged: vec![(0, has)], ..ReadState::default() });
            let (slice, block) = slice_of(1, 1, 1, 4096);
            decoding.slice(parity, slice, block);
            while !matches!(decoding.next().await, Verified::Block { missing: 0, .. }) {}
            match decoding.solve(1, 0..1).await {
                Ok(originals) => assert!(!is_mixed && originals[0][..] == [1; 4096]),
                Err(error) => assert!(is_mixed && matches!(error, SolveError::Mixed), "{error:?}"),
            }
        }
    }

    #[tokio::test]
    async fn a_damaged_block_is_told_once_however_many_slices_it_has() {
        let layout = layout();
        let code = layout.code.code().expect("two originals");
        let mut decoding = start(&code, &layout);
        let device = DeviceId(1);
        let parts = |index, segment, version| {
            let (whole, mut payload) = slice(index, segment, version);
            let rest = payload.split_off(4096);
            let first = Slice { sums: whole.sums[..1].to_vec(), ..whole.clone() };
            [(first, payload), (Slice { offset: 4096, sums: whole.sums[1..].to_vec(), ..whole }, rest)]
        };
        let [(first, mut bytes), (second, rest)] = parts(0, 1, 1);
        bytes[7] ^= 1;
        decoding.slice(device, first, bytes);
        decoding.slice(device, second, rest);
        // It goes on with another, and with the same again.
        for (slice, bytes) in parts(1, 9, 2).into_iter().chain(parts(0, 1, 1)) {
            decoding.slice(device, slice, bytes);
        }
        let mut told = Vec::new();
        while told.last() != Some(&"0 whole".to_owned()) {
            match decoding.next().await {
                Verified::Block { index, .. } => told.push(format!("{index} whole")),
                Verified::Corrupt { index, .. } => told.push(format!("{index} damaged")),
                Verified::Slice { .. } | Verified::Ended { .. } | Verified::Failed { .. } => {}
            }
        }
        assert_eq!(told, ["0 damaged", "1 whole", "0 whole"]);
    }

    /// A range asks for one row; the others of that row came sooner, and those of other rows have not.
    #[tokio::test]
    async fn an_original_that_comes_when_its_row_is_full_is_given_all_the_same() {
        let holder = |device, blocks: core::ops::Range<u32>| Holder {
            device: DeviceId(device),
            pieces: vec![Piece { blocks: blocks.into(), ..piece(1, 1, 0) }],
        };
        let layout = SegmentLayout {
            length: 4 * 4096,
            code: CodeSpec { kind: CodeKind::ReedSolomon { data: 2, parity: 2 }, originals: 4, seed: 0 },
            block_bytes: 4096,
            holders: (0..4).map(|chunk| holder(chunk.into(), 2 * chunk..2 * chunk + 2)).collect(),
            ..layout()
        };
        let code = layout.code.code().expect("two rows of four blocks");
        let mut decoding = start(&code, &layout);
        for index in [2, 4, 0] {
            let (slice, block) = slice_of(index, 1, 1, 4096);
            decoding.slice(DeviceId(u128::from(index) / 2), slice, block);
            assert!(matches!(decoding.next().await, Verified::Slice { .. }));
            assert!(matches!(decoding.next().await, Verified::Block { .. }), "{index}");
        }
        let originals = decoding.solve(1, 0..1).await.expect("it came as it is");
        assert!(originals.len() == 1 && originals[0][..] == [0; 4096]);
    }

    #[tokio::test]
    async fn a_block_that_a_stream_was_cut_in_is_whole_when_it_is_sent_anew() {
        let layout = layout();
        let code = layout.code.code().expect("two originals");
        for ended in [true, false] {
            let mut decoding = start(&code, &layout);
            let device = DeviceId(1);
            let (whole, bytes) = slice(0, 1, 1);
            let first = Slice { sums: whole.sums[..1].to_vec(), ..whole.clone() };
            decoding.slice(device, first, BytesMut::from(&bytes[..4096]));
            if ended {
                decoding.last(device, Event::Ended(NodeAnswer::Read(ReadDone::default())));
            }
            decoding.slice(device, whole, bytes);
            let verdict = loop {
                match decoding.next().await {
                    Verified::Slice { .. } | Verified::Ended { .. } => {}
                    verdict => break verdict,
                }
            };
            assert!(matches!(verdict, Verified::Block { index: 0, .. }), "{ended}");
        }
    }

    /// Readers that wait for blocks leave the pool's threads to others: here there is one, and sinks take it too.
    #[test]
    fn a_decoder_that_waits_holds_no_thread() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .max_blocking_threads(1)
            .build()
            .expect("a runtime");
        let layout = layout();
        let code = layout.code.code().expect("two originals");
        let read = async {
            let mut all: Vec<Decoding> = (0..5).map(|_| start(&code, &layout)).collect();
            for (index, segment, version) in [(0, 1, 1), (1, 9, 2)] {
                for decoding in &mut all {
                    let (slice, payload) = slice(index, segment, version);
                    decoding.slice(DeviceId(1), slice, payload);
                    assert!(matches!(decoding.next().await, Verified::Slice { .. }));
                    assert!(matches!(decoding.next().await, Verified::Block { .. }));
                    tokio::task::spawn_blocking(|| ()).await.expect("a sink is written to");
                }
            }
            for decoding in &all {
                let originals = decoding.solve(1, 0..2).await.expect("both originals came");
                assert!(originals[0][..] == [0; BLOCK] && originals[1][..] == [1; BLOCK]);
            }
        };
        // Long enough for any machine; one that waits for a thread waits for ever.
        let within = core::time::Duration::from_secs(20);
        let outcome = runtime.block_on(async { tokio::time::timeout(within, read).await });
        runtime.shutdown_background();
        outcome.expect("no reader waits for another's thread");
    }
}
