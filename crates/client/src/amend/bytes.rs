//! The new bytes of an update, and what they make of the blocks that change.

use bytes::{Bytes, BytesMut};
use std::{
    collections::BTreeMap,
    io::{self, Read, Seek, SeekFrom},
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};
use steadfast_codes::kernel::{gf256::mul_acc, xor::xor};
use steadfast_net::payload_buffer;
use steadfast_protocol::{
    BlockIndex,
    plan::{Difference, Update},
};

trait Seekable: Read + Seek + Send {}
impl<T: Read + Seek + Send> Seekable for T {}

/// Bytes that replace those of an object from `offset` on. They may be read again: where another writer was first the
/// update is made anew.
pub(super) struct NewBytes {
    source: Box<dyn Seekable>,
    /// Where in the source the first of them is.
    origin: u64,
    /// Where in the object they belong.
    offset: u64,
    length: u64,
}

impl NewBytes {
    /// What `source` gives from where it stands to its end.
    pub(super) fn new(mut source: impl Read + Seek + Send + 'static, offset: u64) -> io::Result<Self> {
        let origin = source.stream_position()?;
        let length = source.seek(SeekFrom::End(0))?.saturating_sub(origin);
        Ok(Self { source: Box::new(source), origin, offset, length })
    }

    /// `length` of them, those for byte `at` of the object on.
    pub(super) fn read(&mut self, at: u64, length: usize) -> io::Result<Bytes> {
        self.source.seek(SeekFrom::Start(self.origin + at - self.offset))?;
        let mut bytes = vec![0; length];
        self.source.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }

    /// Writes them over `blocks`, the originals from `first` on of a segment that begins at `start`.
    pub(super) fn patch(&mut self, start: u64, first: u32, blocks: &mut [BytesMut]) -> io::Result<()> {
        let mut at = start + u64::from(first) * blocks.first().map_or(0, |block| block.len() as u64);
        for block in blocks {
            let end = at + block.len() as u64;
            let (from, to) = (self.offset.max(at), (self.offset + self.length).min(end));
            if from < to {
                self.source.seek(SeekFrom::Start(self.origin + from - self.offset))?;
                // Both lie within the block, which fits memory.
                self.source.read_exact(&mut block[(from - at) as usize..(to - at) as usize])?;
            }
            at = end;
        }
        Ok(())
    }

    /// The touched blocks as they are to be, from those that were read.
    ///
    /// # Panics
    /// When a block that the update names is not among those read.
    pub(super) fn change(
        &mut self,
        start: u64,
        update: &Update,
        mut read: BTreeMap<BlockIndex, BytesMut>,
    ) -> io::Result<BTreeMap<BlockIndex, Bytes>> {
        let copies: BTreeMap<u32, BlockIndex> = update
            .touched
            .iter()
            .filter_map(|(&index, difference)| match difference {
                Difference::Original(original) if read.contains_key(&index) => Some((*original, index)),
                _ => None,
            })
            .collect();
        let mut after: Vec<BytesMut> =
            update.originals.clone().map(|original| copy(&read[&copies[&original]])).collect();
        self.patch(start, update.originals.start, &mut after)?;
        let place = |original: u32| (original - update.originals.start) as usize;
        // Before XOR after, in the place of before.
        for (&original, index) in &copies {
            let before = read.get_mut(index).expect("it was found there");
            xor(before, &after[place(original)]);
        }
        let after: Vec<Bytes> = after.into_iter().map(BytesMut::freeze).collect();
        let mut changed = BTreeMap::new();
        for (&index, difference) in &update.touched {
            let block = match difference {
                Difference::Original(original) => after[place(*original)].clone(),
                Difference::Gains(gains) => {
                    let mut block = read.remove(&index).expect("every block that gains is read");
                    for (original, coefficient) in gains {
                        mul_acc(&mut block, &read[&copies[original]], *coefficient);
                    }
                    block.freeze()
                }
            };
            changed.insert(index, block);
        }
        Ok(changed)
    }
}

/// New bytes that are read off the runtime's thread. A change that is given up and begun again may leave a read under way, which the next
/// one waits for.
pub(super) struct Source {
    bytes: Arc<Mutex<NewBytes>>,
    offset: u64,
    pub(super) length: u64,
}

impl Source {
    pub(super) fn new(bytes: NewBytes) -> Self {
        let (offset, length) = (bytes.offset, bytes.length);
        Self { bytes: Arc::new(Mutex::new(bytes)), offset, length }
    }

    /// Which bytes of a segment that begins at `start` of the object they replace.
    pub(super) fn within(&self, start: u64, length: u64) -> Option<Range<u64>> {
        within(self.offset, self.length, start, length)
    }

    /// As [`NewBytes::read`].
    pub(super) async fn read(&self, at: u64, length: usize) -> io::Result<Bytes> {
        self.work(move |new| new.read(at, length)).await
    }

    /// Works on the bytes off the runtime's thread.
    pub(super) async fn work<R: Send + 'static>(
        &self,
        work: impl FnOnce(&mut NewBytes) -> io::Result<R> + Send + 'static,
    ) -> io::Result<R> {
        let bytes = Arc::clone(&self.bytes);
        // Each work seeks first: one that panicked is in no other's way.
        let working = move || work(&mut bytes.lock().unwrap_or_else(PoisonError::into_inner));
        tokio::task::spawn_blocking(working)
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the source panicked")))
    }
}

/// What of `length` bytes from `offset` on falls into `of` bytes from `start` on, counted from there.
fn within(offset: u64, length: u64, start: u64, of: u64) -> Option<Range<u64>> {
    let (from, to) = (offset.max(start), (offset + length).min(start + of));
    (from < to).then(|| from - start..to - start)
}

fn copy(block: &BytesMut) -> BytesMut {
    let mut copy = payload_buffer(block.len());
    copy.extend_from_slice(block);
    copy
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_codes::rateless::{Code, Kind};
    use steadfast_protocol::{IndexRanges, plan};

    const BLOCK: usize = 64;

    #[test]
    fn changed_blocks_are_the_new_bytes_encoded() {
        for (kind, k, n) in [(Kind::Mix, 600, 1200), (Kind::Mix, 30, 45), (Kind::Replicated, 1, 3)] {
            let code = Code::new(kind, k, 5).unwrap();
            let mut originals: Vec<BytesMut> =
                (0..k as usize).map(|i| (0..BLOCK).map(|at| (i * 7 + at) as u8).collect()).collect();
            let encode = |originals: &[BytesMut], index: u32| {
                let originals: Vec<&[u8]> = originals.iter().map(|block| &block[..]).collect();
                let mut out = vec![0; BLOCK];
                code.encode(&[index], &originals, &mut [&mut out]).unwrap();
                out
            };
            // The segment begins at byte 1000 of the object; the source has something before what is to be stored.
            let (start, length) = (1000, u64::from(k) * BLOCK as u64);
            let mut source = io::Cursor::new(vec![0xee; 100]);
            source.set_position(10);
            let mut new = NewBytes::new(source, start + length.min(90) - 50).unwrap();
            assert_eq!(new.length, 90);
            new.length = new.length.min(start + length - new.offset);
            let range = within(new.offset, new.length, start, length).unwrap();
            let update = plan::update(&code, BLOCK as u32, &IndexRanges::from(0..n), range);
            assert!(!update.decode);
            let read =
                update.read.iter().map(|index| (index, encode(&originals, index)[..].into())).collect();
            let changed = new.change(start, &update, read).unwrap();
            new.patch(start, 0, &mut originals).unwrap();
            let patched: usize = originals.iter().flatten().filter(|&&byte| byte == 0xee).count();
            assert!(patched as u64 >= new.length);
            assert_eq!(changed.len(), update.touched.len());
            for (index, block) in changed {
                assert_eq!(&block[..], encode(&originals, index), "{kind:?}: block {index}");
            }
        }
    }

    #[test]
    fn a_source_that_became_shorter_is_an_error() {
        let mut new = NewBytes::new(io::Cursor::new(vec![1; 10]), 0).unwrap();
        new.length = 20;
        assert!(new.patch(0, 0, &mut [BytesMut::zeroed(32)]).is_err());
        let replaced = |start, length| within(0, 20, start, length);
        assert_eq!((replaced(0, 5), replaced(20, 5), replaced(15, 50)), (Some(0..5), None, Some(0..5)));
    }
}
