//! What is known of the use of a device's reserves, in a small file beside its space, so that it outlives a restart.
//!
//! ```text
//! head, a line | the device's number, 16 bytes | postcard | CRC-32C of all before, 4 bytes       (little endian)
//! ```
//!
//! Nothing but how soon space comes back depends on it. So a file that is cut, damaged, another device's or another version's is told and
//! passed over, and use is learned anew. An extent is known again by the number of its creation.

use crate::NodeError;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Write},
    path::Path,
    time::Duration,
};
use steadfast_disk::checksum::crc32c;
use steadfast_protocol::{
    DeviceId,
    serve::{ReserveUse, ReservedChunk},
};

/// Its name in the device's directory.
const FILE: &str = "reserves";
const HEAD: &[u8] = b"steadfast reserves 1\n";
/// Chunks of which it tells, at most: of 4 MiB, with as much beside them, those of 8 TiB. What others took is learned anew.
pub(super) const CHUNKS_MAX: usize = 1 << 20;
/// A chunk takes 40 bytes at most: two numbers of up to ten, four of up to five.
const BYTES_MAX: u64 = 40 * CHUNKS_MAX as u64 + 256;

/// What outlives a restart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    /// Until the period under way ends.
    pub(super) left: Duration,
    pub(super) chunks: BTreeMap<ReservedChunk, KeptChunk>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptChunk {
    /// The number of its extent's creation on the device.
    pub(super) created: u64,
    pub(super) used: ReserveUse,
}

/// What was kept in `dir` of a device's reserves; `None` where nothing was that can be used. Blocks.
pub(super) fn load(dir: &Path, device: DeviceId) -> Option<Kept> {
    let path = dir.join(FILE);
    let read = || -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(&path)?.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let why = match read() {
        Ok(bytes) => match decode(device, &bytes) {
            Some(kept) => return Some(kept),
            None => "it is damaged, or of another device or version".to_owned(),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => error.to_string(),
    };
    tracing::warn!(%device, path = %path.display(), %why, "what reserves were used is learned anew");
    None
}

/// Writes it whole or not at all. Blocks.
///
/// # Errors
/// What the system said; what was kept before may be left.
pub(super) fn store(dir: &Path, device: DeviceId, kept: &Kept) -> Result<(), NodeError> {
    let (path, temporary) = (dir.join(FILE), dir.join("reserves.new"));
    let bytes = encode(device, kept);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, &path)?;
        File::open(dir)?.sync_all()
    };
    write().map_err(|source: io::Error| {
        // Gone already where it has its name.
        let _ = fs::remove_file(&temporary);
        NodeError::Io { what: "write", path: path.clone(), source }
    })
}

fn encode(device: DeviceId, kept: &Kept) -> Vec<u8> {
    let mut bytes = HEAD.to_vec();
    bytes.extend(device.0.to_le_bytes());
    let mut bytes = postcard::to_extend(kept, bytes).expect("it serialises into memory");
    let sum = crc32c(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn decode(device: DeviceId, bytes: &[u8]) -> Option<Kept> {
    let (summed, sum) = bytes.split_last_chunk::<4>()?;
    if crc32c(summed) != u32::from_le_bytes(*sum) {
        return None;
    }
    let (of, body) = summed.strip_prefix(HEAD)?.split_first_chunk::<16>()?;
    if u128::from_le_bytes(*of) != device.0 {
        return None;
    }
    // As many small ones as the bytes have room for would take many times the memory.
    let ((_, chunks), _): ((Duration, usize), _) = postcard::take_from_bytes(body).ok()?;
    if chunks > CHUNKS_MAX {
        return None;
    }
    let (kept, rest) = postcard::take_from_bytes(body).ok()?;
    rest.is_empty().then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use steadfast_protocol::{
        SegmentId, Time,
        serve::{Reserve, ReserveInput, ReserveOptions},
    };

    const DEVICE: DeviceId = DeviceId(7);

    fn kept() -> Kept {
        let mut core = Reserve::new(Time(0), ReserveOptions::default()).unwrap();
        let chunks = (1..=3).map(|number| {
            let chunk = ReservedChunk { segment: SegmentId(u64::MAX / number), index: 4 };
            core.handle(Time(0), ReserveInput::Created { chunk, chunk_bytes: 4 << 20 }).unwrap();
            (chunk, KeptChunk { created: number, used: core.use_of(chunk).unwrap() })
        });
        let chunks = chunks.collect();
        Kept { left: core.left(Time(5)), chunks }
    }

    #[test]
    fn it_comes_back_as_it_went_and_nothing_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(load(dir.path(), DEVICE), None);
        for chunks in [kept().chunks, BTreeMap::new()] {
            let kept = Kept { chunks, ..kept() };
            store(dir.path(), DEVICE, &kept).unwrap();
            assert_eq!(load(dir.path(), DEVICE), Some(kept));
            assert_eq!(load(dir.path(), DeviceId(8)), None, "another device's");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing else is left");
        // No file can be made in its place: what was there stays.
        fs::create_dir(dir.path().join("reserves.new")).unwrap();
        assert!(store(dir.path(), DEVICE, &kept()).is_err());
        assert_eq!(load(dir.path(), DEVICE), Some(Kept { chunks: BTreeMap::new(), ..kept() }));
    }

    #[test]
    fn what_is_cut_damaged_or_made_up_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let is_none = |bytes: &[u8]| {
            fs::write(dir.path().join(FILE), bytes).unwrap();
            load(dir.path(), DEVICE).is_none()
        };
        let whole = encode(DEVICE, &kept());
        assert!(!is_none(&whole));
        for at in 0..whole.len() {
            assert!(is_none(&whole[..at]), "cut at {at}");
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            assert!(is_none(&flipped), "flipped at {at}");
        }
        assert!(is_none(&[&whole[..], b"more"].concat()));
        // Whoever makes one up can sum it, too.
        let summed = |body: &[u8]| {
            let bytes = [HEAD, &DEVICE.0.to_le_bytes(), body].concat();
            [&bytes[..], &crc32c(&bytes).to_le_bytes()].concat()
        };
        let body = &whole[HEAD.len() + 16..whole.len() - 4];
        assert_eq!(summed(body), whole);
        // Bytes behind it, more chunks than it has, a span that no clock counts.
        assert!(is_none(&summed(&[body, &[0]].concat())));
        assert!(is_none(&summed(&postcard::to_stdvec(&(0u64, 0u32, u64::MAX)).unwrap())));
        assert!(is_none(&summed(&postcard::to_stdvec(&(u64::MAX, u32::MAX, 0u64)).unwrap())));
        // As many as are kept, and one more; each takes the fewest bytes.
        let of_chunks = |chunks: usize| {
            let head = postcard::to_stdvec(&(Duration::ZERO, chunks)).unwrap();
            summed(&[head, vec![0; 6 * chunks]].concat())
        };
        assert!(!is_none(&of_chunks(CHUNKS_MAX)));
        assert!(is_none(&of_chunks(CHUNKS_MAX + 1)));
        // The next version's, and what is no file.
        let next = [&b"steadfast reserves 2\n"[..], &whole[HEAD.len()..whole.len() - 4]].concat();
        assert!(is_none(&[&next[..], &crc32c(&next).to_le_bytes()].concat()));
        fs::remove_file(dir.path().join(FILE)).unwrap();
        fs::create_dir(dir.path().join(FILE)).unwrap();
        assert_eq!(load(dir.path(), DEVICE), None);
    }

    /// What is written is never more than what is read.
    #[test]
    fn as_many_chunks_as_are_kept_are_read() {
        let kept = kept();
        let (&chunk, used) = kept.chunks.first_key_value().unwrap();
        assert_eq!((chunk.segment.0, chunk.index), (u64::MAX / 3, 4));
        let largest = (SegmentId(u64::MAX), u32::MAX, u64::MAX, (u32::MAX, u32::MAX, u32::MAX));
        assert_eq!(postcard::to_stdvec(&largest).unwrap().len(), 40);
        assert!(postcard::to_stdvec(&(chunk, used)).unwrap().len() <= 40);
        let around = HEAD.len() + 16 + postcard::to_stdvec(&(Duration::MAX, CHUNKS_MAX)).unwrap().len() + 4;
        assert!(40 * CHUNKS_MAX + around < BYTES_MAX as usize);
    }
}
