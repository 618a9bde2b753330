//! The bytes of a put: read ahead in pieces by a thread of their own.

use bytes::Bytes;
use std::{
    io::{self, Read},
    sync::Arc,
};
use steadfast_disk::{Granule, checksum};
use steadfast_net::payload_buffer;
use steadfast_protocol::layout::BLOCK_BYTES_MAX;
use steadfast_transfer::{Arriving, Originals};
use tokio::{sync::oneshot, task::JoinHandle};

/// Bytes read at a time while the size of blocks is not known: the largest one.
const PIECE_BYTES: usize = BLOCK_BYTES_MAX as usize;
/// Bytes of a piece read and summed at a time: whole granules, which stay in the processor's cache meanwhile.
const STEP_BYTES: usize = Granule::KIB_64.bytes() as usize;

/// Where the bytes of a put come from: whatever can be read, or what is in memory already ([`Memory`]). Of one whose size is announced
/// so many bytes are asked for and no more: it need not end behind them, and what it has there is left out of the object.
pub trait Source: Send + 'static {
    /// Its next `bytes`, fewer only at its end. `seen` is given all of them in order, before they leave the processor's cache
    /// where they were in it.
    ///
    /// # Errors
    /// The put fails with it.
    fn piece(&mut self, bytes: usize, seen: &mut dyn FnMut(&[u8])) -> io::Result<Bytes>;
}

/// Copied into buffers, step by step.
impl<R: Read + Send + 'static> Source for R {
    fn piece(&mut self, bytes: usize, seen: &mut dyn FnMut(&[u8])) -> io::Result<Bytes> {
        let mut piece = payload_buffer(bytes);
        let mut ended = false;
        while !ended && piece.len() < bytes {
            let from = piece.len();
            let until = bytes.min(from + STEP_BYTES);
            piece.resize(until, 0);
            let mut filled = from;
            while !ended && filled < until {
                match self.read(&mut piece[filled..]) {
                    Ok(0) => ended = true,
                    Ok(more) => filled += more,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => return Err(error),
                }
            }
            piece.truncate(filled);
            seen(&piece[from..]);
        }
        Ok(piece.freeze())
    }
}

impl Source for Box<dyn Source> {
    fn piece(&mut self, bytes: usize, seen: &mut dyn FnMut(&[u8])) -> io::Result<Bytes> {
        (**self).piece(bytes, seen)
    }
}

/// Bytes that are in memory: sent and encoded from where they lie, nothing of them is copied.
#[derive(Clone, Debug)]
pub struct Memory(pub Bytes);

impl Source for Memory {
    fn piece(&mut self, bytes: usize, seen: &mut dyn FnMut(&[u8])) -> io::Result<Bytes> {
        let piece = self.0.split_to(bytes.min(self.0.len()));
        seen(&piece);
        Ok(piece)
    }
}

/// A source that gives pieces of the bytes asked for, the last one shorter.
pub(crate) struct Pieces {
    source: Box<dyn Source>,
    /// A piece read to find out whether there is more.
    peeked: Option<Bytes>,
}

impl Pieces {
    pub(crate) fn new(source: impl Source) -> Self {
        Self { source: Box::new(source), peeked: None }
    }

    /// The next piece of `bytes`; empty at the end.
    fn next(&mut self, bytes: usize) -> io::Result<Bytes> {
        match self.peeked.take() {
            Some(piece) => Ok(piece),
            None => self.source.piece(bytes, &mut |_| {}),
        }
    }

    /// The next piece of `bytes`, with the plain CRCs of its granules where it was not looked at before.
    fn next_checked(&mut self, bytes: usize, granule: Granule) -> io::Result<(Bytes, Option<Vec<u32>>)> {
        if let Some(piece) = self.peeked.take() {
            return Ok((piece, None));
        }
        let mut crcs = Vec::with_capacity(bytes.div_ceil(granule.bytes() as usize));
        let piece = self.source.piece(bytes, &mut |step| crcs.extend(checksum::crcs(step, granule)))?;
        Ok((piece, Some(crcs)))
    }

    /// Reads at most `bytes_max` (whole pieces) and says whether the source goes on behind them. Fails before the next piece where it is not
    /// `wanted` any more.
    fn take(&mut self, bytes_max: u64, wanted: impl Fn() -> bool) -> io::Result<(Vec<Bytes>, bool)> {
        let mut pieces = Vec::new();
        let mut taken = 0;
        while wanted() {
            let piece = self.next(PIECE_BYTES)?;
            if piece.is_empty() {
                return Ok((pieces, false));
            }
            if taken >= bytes_max {
                self.peeked = Some(piece);
                return Ok((pieces, true));
            }
            taken += piece.len() as u64;
            pieces.push(piece);
        }
        Err(io::Error::other("nobody wants it any more"))
    }
}

/// Reads at most `bytes_max` on another thread, which gives the source back and says whether it goes on behind them. Where this is dropped
/// the source is read no further than the piece at hand.
pub(crate) async fn take(mut source: Pieces, bytes_max: u64) -> (io::Result<(Vec<Bytes>, bool)>, Pieces) {
    let (wanted, waits) = oneshot::channel::<()>();
    let taking =
        tokio::task::spawn_blocking(move || (source.take(bytes_max, || !wanted.is_closed()), source));
    let taken = taking.await.expect("reading a source does not panic");
    drop(waits);
    taken
}

/// Reads a segment of `length` bytes on another thread; the second value gives the source back, where the next
/// segment begins, or says why it failed. `granule`: what their sums are of, where originals are stored as they are. `turn`: until it
/// is said that it comes, half of the segment is read: while devices take the coded blocks of the one before, a source that is as
/// fast as they are gives that much, and what is not read takes no memory.
pub(crate) fn read(
    source: Pieces,
    length: u64,
    block_bytes: u32,
    originals: u32,
    granule: Option<Granule>,
    turn: oneshot::Receiver<()>,
) -> (Arc<Originals>, JoinHandle<Result<Pieces, ReadEnd>>) {
    let (segment, arriving) = Originals::arriving(block_bytes, originals);
    let reading = async move {
        let mut segment = Segment { source, arriving, length, block_bytes, granule, read: 0 };
        // Nobody's thread waits for the turn: who is before may need it to encode.
        segment = on_a_thread(move || segment.read(length / 2)).await?;
        turn.await.map_err(|_| ReadEnd::GivenUp)?;
        segment = on_a_thread(move || segment.read(length)).await?;
        segment.arriving.zeros();
        Ok(segment.source)
    };
    (Arc::clone(&segment), tokio::spawn(reading))
}

async fn on_a_thread(
    read: impl FnOnce() -> Result<Segment, ReadEnd> + Send + 'static,
) -> Result<Segment, ReadEnd> {
    tokio::task::spawn_blocking(read).await.expect("reading a source does not panic")
}

/// A segment that is being read.
struct Segment {
    source: Pieces,
    arriving: Arriving,
    length: u64,
    block_bytes: u32,
    granule: Option<Granule>,
    /// Bytes of it.
    read: u64,
}

impl Segment {
    /// Reads on until so many of its bytes are there.
    fn read(mut self, until: u64) -> Result<Self, ReadEnd> {
        // Each block in a buffer of its own: of the size that reads of such objects leave behind.
        while self.read < until {
            // Its put has failed, or was dropped: the source is not read on for it, nor what came of it kept.
            if !self.arriving.is_wanted() {
                return Err(ReadEnd::GivenUp);
            }
            // What lies behind the segment is the next one's, or nobody's.
            let left = usize::try_from(self.length - self.read).unwrap_or(usize::MAX);
            let wanted = left.min(self.block_bytes as usize);
            let (piece, crcs) = match self.granule {
                Some(granule) => self.source.next_checked(wanted, granule).map_err(ReadEnd::Source)?,
                None => (self.source.next(wanted).map_err(ReadEnd::Source)?, None),
            };
            self.read += piece.len() as u64;
            if piece.len() < wanted {
                return Err(ReadEnd::Length(self.read));
            }
            match crcs {
                // What is filled up with zeros has other sums.
                Some(crcs) if piece.len() == self.block_bytes as usize => self.arriving.checked(piece, crcs),
                _ => self.arriving.piece(piece),
            }
        }
        Ok(self)
    }
}

/// Why a segment was not read from its source.
#[derive(Debug)]
pub(crate) enum ReadEnd {
    /// Nobody wants it any more.
    GivenUp,
    /// The source failed.
    Source(io::Error),
    /// It gave so many bytes of the segment, not as many as announced.
    Length(u64),
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    };

    #[test]
    fn pieces_end_where_the_source_does() {
        for length in [0, 1, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 1, 3 * PIECE_BYTES] {
            let bytes = vec![7u8; length];
            let mut pieces = Pieces::new(io::Cursor::new(bytes));
            let (taken, more) = pieces.take(2 * PIECE_BYTES as u64, || true).unwrap();
            let sum: usize = taken.iter().map(Bytes::len).sum();
            assert_eq!(sum, length.min(2 * PIECE_BYTES));
            assert_eq!(more, length > 2 * PIECE_BYTES);
        }
    }

    #[test]
    fn memory_is_not_copied() {
        let bytes = Bytes::from((0..200_000).map(|at| (at % 251) as u8).collect::<Vec<u8>>());
        let mut pieces = Pieces::new(Memory(bytes.clone()));
        let first = pieces.next(70_000).unwrap();
        let (second, crcs) = pieces.next_checked(131_072, Granule::KIB_64).unwrap();
        assert!(first == bytes[..70_000] && first.as_ptr() == bytes.as_ptr());
        assert!(second == bytes[70_000..] && second.as_ptr() == bytes[70_000..].as_ptr());
        let expected: Vec<u32> = checksum::crcs(&bytes[70_000..], Granule::KIB_64).collect();
        assert_eq!(crcs, Some(expected));
        assert!(pieces.next(1).unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_segment_is_cut_and_padded() {
        let length = PIECE_BYTES + 70_000;
        let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
        let block_bytes = 64 << 10;
        let originals = u32::try_from(length.div_ceil(block_bytes)).unwrap();
        let pieces = Pieces::new(io::Cursor::new(bytes.clone()));
        let granule = Some(Granule::KIB_4);
        let (go, turn) = oneshot::channel();
        let (segment, reading) = read(pieces, length as u64, block_bytes as u32, originals, granule, turn);
        // Half of it, before its turn.
        assert!(segment.wait_for(originals.div_ceil(2)).await);
        let rest = tokio::time::timeout(std::time::Duration::from_millis(20), segment.wait_for(originals));
        assert!(rest.await.is_err());
        go.send(()).unwrap();
        assert!(segment.wait_for(originals).await);
        assert!(reading.await.unwrap().is_ok());
        for index in 0..originals {
            let expected: Vec<u32> = checksum::crcs(segment.block(index), Granule::KIB_4).collect();
            // The last one was filled up.
            assert_eq!(segment.crcs(index), (index + 1 < originals).then_some(&expected[..]), "{index}");
        }
        let mut joined = segment.all().concat();
        assert!(joined[length..].iter().all(|&byte| byte == 0));
        joined.truncate(length);
        assert_eq!(joined, bytes);
    }

    #[tokio::test]
    async fn a_source_that_is_short_is_told_and_one_that_goes_on_is_left_there() {
        let begin = |given, announced: u64| {
            let pieces = Pieces::new(io::Cursor::new(vec![1u8; given]));
            let originals = u32::try_from(announced.div_ceil(65_536)).unwrap();
            let (go, turn) = oneshot::channel();
            go.send(()).unwrap();
            read(pieces, announced, 65_536, originals, None, turn)
        };
        let (segment, reading) = begin(100_000, 200_000);
        assert!(!segment.wait_for(4).await);
        assert!(matches!(reading.await.unwrap(), Err(ReadEnd::Length(100_000))));
        let (segment, reading) = begin(200_000, 100_000);
        assert!(segment.wait_for(2).await);
        let Ok(mut rest) = reading.await.unwrap() else { panic!("the segment is there") };
        assert_eq!(rest.next(200_000).unwrap().len(), 100_000, "what lies behind it was not read");
    }

    #[tokio::test]
    async fn of_a_segment_that_nobody_wants_half_is_read() {
        let pieces = Pieces::new(io::repeat(1));
        let (go, turn) = oneshot::channel();
        let (segment, reading) = read(pieces, 4 << 20, 1 << 20, 4, None, turn);
        drop(go);
        assert!(matches!(reading.await.unwrap(), Err(ReadEnd::GivenUp)));
        assert!(segment.wait_for(2).await && !segment.wait_for(3).await);
    }

    /// Gives a block each time that it may, and all that it is asked for once nobody says any more that it may.
    struct Allowed {
        more: mpsc::Receiver<()>,
        given: Arc<AtomicUsize>,
    }

    impl Source for Allowed {
        fn piece(&mut self, bytes: usize, _: &mut dyn FnMut(&[u8])) -> io::Result<Bytes> {
            // Nobody says so any more: it goes on by itself.
            let _ = self.more.recv();
            self.given.fetch_add(1, Ordering::Relaxed);
            Ok(Bytes::from(vec![1; bytes]))
        }
    }

    #[tokio::test]
    async fn a_segment_that_nobody_wants_any_more_is_not_read_to_its_end() {
        let (allow, more) = mpsc::channel();
        let given = Arc::new(AtomicUsize::new(0));
        let pieces = Pieces::new(Allowed { more, given: Arc::clone(&given) });
        let (go, turn) = oneshot::channel();
        go.send(()).unwrap();
        let (segment, reading) = read(pieces, 64 << 10, 1 << 10, 64, None, turn);
        allow.send(()).unwrap();
        assert!(segment.wait_for(1).await);
        drop(segment);
        drop(allow);
        assert!(matches!(reading.await.unwrap(), Err(ReadEnd::GivenUp)));
        // The one that it waited for, at most.
        assert!(given.load(Ordering::Relaxed) <= 2);
    }

    #[tokio::test]
    async fn a_source_without_a_known_end_is_not_read_on_for_nobody() {
        let (allow, more) = mpsc::channel();
        let given = Arc::new(AtomicUsize::new(0));
        let pieces = Pieces::new(Allowed { more, given: Arc::clone(&given) });
        let taking = tokio::spawn(take(pieces, 64 * PIECE_BYTES as u64));
        allow.send(()).unwrap();
        while given.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
        taking.abort();
        assert!(taking.await.is_err());
        drop(allow);
        // Its thread drops the source when it ends.
        while Arc::strong_count(&given) > 1 {
            tokio::task::yield_now().await;
        }
        // The one that it waited for, at most.
        assert!(given.load(Ordering::Relaxed) <= 2);
    }
}
