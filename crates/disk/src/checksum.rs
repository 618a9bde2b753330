//! Checksums of blocks: one seeded CRC-32C per granule.
//!
//! A block is cut into granules of one power-of-two size (4 to 64 KiB, chosen per extent; the last one may be
//! short). The sum of a granule is
//!
//! ```text
//! sum = crc32c(data) XOR crc32c(segment, version, index, granule number)
//! ```
//!
//! The tag makes stale, swapped and misdirected data fail although their own CRC is right. The tag is XORed
//! in rather than hashed in front of the data so that a plain CRC of the data, which a network card, a peer
//! or a coder may already have (CRC is linear: `crc(a ^ b)` follows from `crc(a)`, `crc(b)` and the length),
//! becomes a sum with four instructions instead of another pass over the data. Errors in the data are found
//! exactly as well as by the plain CRC; a wrong tag is found with probability 1 - 2^-32.

use serde::{Deserialize, Serialize};

use crate::ids::{BlockIndex, SegmentId, Version};

/// Bytes covered by one checksum: a power of two from 4 KiB to 64 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Granule(u32);

/// A granule size that is not a power of two from 4096 to 65536.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a granule must be a power of two from 4096 to 65536 bytes, not {bytes}")]
pub struct InvalidGranule {
    /// The rejected size.
    pub bytes: u32,
}

impl Granule {
    /// The smallest granule, for data that is read or changed in small pieces.
    pub const KIB_4: Granule = Granule(4 << 10);
    /// The largest granule, for large immutable blocks.
    pub const KIB_64: Granule = Granule(64 << 10);

    /// A granule of `bytes` bytes.
    pub const fn new(bytes: u32) -> Result<Granule, InvalidGranule> {
        if bytes.is_power_of_two() && bytes >= Self::KIB_4.0 && bytes <= Self::KIB_64.0 {
            Ok(Granule(bytes))
        } else {
            Err(InvalidGranule { bytes })
        }
    }

    /// Size in bytes.
    pub const fn bytes(self) -> u32 {
        self.0
    }

    /// How many granules (and so checksums) a block of `block_bytes` bytes has.
    pub const fn count(self, block_bytes: u32) -> u32 {
        block_bytes.div_ceil(self.0)
    }
}

impl TryFrom<u32> for Granule {
    type Error = InvalidGranule;
    fn try_from(bytes: u32) -> Result<Self, InvalidGranule> {
        Granule::new(bytes)
    }
}

impl From<Granule> for u32 {
    fn from(granule: Granule) -> u32 {
        granule.0
    }
}

/// What a granule is: mixed into its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tag {
    /// Segment of the block.
    pub segment: SegmentId,
    /// Version of the segment at its creation.
    pub version: Version,
    /// Index of the block in the segment.
    pub index: BlockIndex,
    /// Number of the granule in the block.
    pub granule_number: u32,
}

impl Tag {
    /// CRC-32C of the tag's bytes (segment, version, index, granule number; little endian).
    pub fn crc(&self) -> u32 {
        Tags::of(self.segment, self.version, self.index).crc(self.granule_number)
    }
}

/// The tags of one block's granules.
struct Tags {
    /// CRC of that of granule 0.
    first: u32,
}

impl Tags {
    fn of(segment: SegmentId, version: Version, index: BlockIndex) -> Self {
        let mut bytes = [0u8; 24];
        bytes[..8].copy_from_slice(&segment.0.to_le_bytes());
        bytes[8..16].copy_from_slice(&version.0.to_le_bytes());
        bytes[16..20].copy_from_slice(&index.to_le_bytes());
        Self { first: crc32c(&bytes) }
    }

    fn crc(&self, granule_number: u32) -> u32 {
        let bytes = granule_number.to_le_bytes();
        let adds = NUMBERS.iter().zip(bytes).map(|(adds, byte)| adds[usize::from(byte)]);
        adds.fold(self.first, |crc, adds| crc ^ adds)
    }
}

/// CRC-32C's polynomial, its bits in reverse.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// What each byte of a granule's number adds to the CRC of its tag, at whose end it stands: a CRC is linear. A block of 1 MiB has 256
/// granules of 4 KiB, and 24 bytes take a tenth as long as those.
static NUMBERS: [[u32; 256]; 4] = numbers();

const fn numbers() -> [[u32; 256]; 4] {
    let mut all = [[0; 256]; 4];
    let mut byte = 0;
    while byte < 256 {
        let (mut crc, mut behind) = (byte as u32, 0);
        while behind < 4 {
            let mut bit = 0;
            while bit < 8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
                bit += 1;
            }
            all[3 - behind][byte] = crc;
            behind += 1;
        }
        byte += 1;
    }
    all
}

/// The granule whose data does not match its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("granule {granule} does not match its checksum")]
pub struct Mismatch {
    /// Number of the granule in the block. Where the number of sums itself is wrong, the first granule without
    /// one.
    pub granule: u32,
}

/// Plain CRC-32C (Castagnoli, as in iSCSI).
pub fn crc32c(data: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(data)
}

/// The checksum of one granule.
pub fn sum(data: &[u8], tag: &Tag) -> u32 {
    crc32c(data) ^ tag.crc()
}

/// The checksums of a whole block, one per granule.
pub fn sums(
    block: &[u8],
    granule: Granule,
    segment: SegmentId,
    version: Version,
    index: BlockIndex,
) -> Vec<u32> {
    let mut sums: Vec<u32> = crcs(block, granule).collect();
    tag(&mut sums, segment, version, index, 0);
    sums
}

/// The plain CRCs of the granules of `data`, which begins with one.
pub fn crcs(data: &[u8], granule: Granule) -> impl Iterator<Item = u32> + '_ {
    data.chunks(granule.bytes() as usize).map(crc32c)
}

/// Makes the plain CRCs of a block's granules from `first_granule` on their checksums, or checksums the plain CRCs.
pub fn tag(crcs: &mut [u32], segment: SegmentId, version: Version, index: BlockIndex, first_granule: u32) {
    let tags = Tags::of(segment, version, index);
    for (granule_number, crc) in (first_granule..).zip(crcs) {
        *crc ^= tags.crc(granule_number);
    }
}

/// Checks a part of a block that starts at granule `first_granule` against its checksums.
///
/// `data` ends at a granule's end or at the block's; there must be exactly one sum for each granule of it.
pub fn verify(
    data: &[u8],
    granule: Granule,
    segment: SegmentId,
    version: Version,
    index: BlockIndex,
    first_granule: u32,
    sums: &[u32],
) -> Result<(), Mismatch> {
    let chunks = data.chunks(granule.bytes() as usize);
    if chunks.len() != sums.len() {
        return Err(Mismatch { granule: first_granule + chunks.len().min(sums.len()) as u32 });
    }
    let tags = Tags::of(segment, version, index);
    for ((granule_number, data), &expected) in (first_granule..).zip(chunks).zip(sums) {
        if crc32c(data) ^ tags.crc(granule_number) != expected {
            return Err(Mismatch { granule: granule_number });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC-32C bit by bit (RFC 3720, B.4).
    fn naive(data: &[u8]) -> u32 {
        let mut crc = !0u32;
        for &byte in data {
            crc ^= u32::from(byte);
            for _ in 0..8 {
                crc = if crc & 1 == 1 { (crc >> 1) ^ POLYNOMIAL } else { crc >> 1 };
            }
        }
        !crc
    }

    #[test]
    fn is_crc32c() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let data: Vec<u8> = (0..5000u32).map(|i| (i * 7) as u8).collect();
        for len in [0, 1, 15, 16, 255, 4096, 5000] {
            assert_eq!(crc32c(&data[..len]), naive(&data[..len]), "{len}");
        }
    }

    #[test]
    fn a_tag_is_summed_as_its_bytes_are() {
        let (segment, version, index) = (SegmentId(0x0123_4567_89ab_cdef), Version(u64::MAX), 0xfedc_ba98u32);
        let mut bytes = [segment.0.to_le_bytes(), version.0.to_le_bytes(), [0; 8]].concat();
        bytes[16..20].copy_from_slice(&index.to_le_bytes());
        let single = (0..32).map(|bit| 1 << bit);
        for granule_number in (0..70_000).step_by(9).chain(single).chain([u32::MAX, 0x8421_1248]) {
            bytes[20..].copy_from_slice(&granule_number.to_le_bytes());
            let tag = Tag { segment, version, index, granule_number };
            assert_eq!(tag.crc(), naive(&bytes), "{granule_number}");
        }
    }

    #[test]
    fn a_plain_crc_becomes_a_checksum_and_that_a_plain_crc() {
        let (segment, version, index) = (SegmentId(7), Version(3), 11);
        let block: Vec<u8> = (0..10_000u32).map(|i| (i / 3) as u8).collect();
        let whole = sums(&block, Granule::KIB_4, segment, version, index);
        let mut rest: Vec<u32> = crcs(&block[4096..], Granule::KIB_4).collect();
        let plain = rest.clone();
        tag(&mut rest, segment, version, index, 1);
        assert_eq!(rest, whole[1..]);
        tag(&mut rest, segment, version, index, 1);
        assert_eq!(rest, plain);
    }

    #[test]
    fn any_wrong_tag_or_bit_fails() {
        let (segment, version, index) = (SegmentId(7), Version(3), 11);
        let block: Vec<u8> = (0..10_000u32).map(|i| (i / 3) as u8).collect();
        let granule = Granule::KIB_4;
        let good = sums(&block, granule, segment, version, index);
        assert_eq!(good.len(), 3, "the last granule is short");
        assert_eq!(verify(&block, granule, segment, version, index, 0, &good), Ok(()));
        assert_eq!(verify(&block[4096..], granule, segment, version, index, 1, &good[1..]), Ok(()));
        let wrong = Err(Mismatch { granule: 0 });
        assert_eq!(verify(&block, granule, SegmentId(8), version, index, 0, &good), wrong);
        assert_eq!(verify(&block, granule, segment, Version(4), index, 0, &good), wrong);
        assert_eq!(verify(&block, granule, segment, version, 12, 0, &good), wrong);
        assert_eq!(verify(&block[4096..8192], granule, segment, version, index, 0, &good[1..2]), wrong);
        let mut flipped = block.clone();
        flipped[9_999] ^= 0x10;
        let third = Err(Mismatch { granule: 2 });
        assert_eq!(verify(&flipped, granule, segment, version, index, 0, &good), third);
        assert_eq!(verify(&block, granule, segment, version, index, 0, &good[..2]), third);
    }

    #[test]
    fn granules_are_checked() {
        for bytes in [0, 1, 2048, 4097, 12_288, 131_072, u32::MAX] {
            assert_eq!(Granule::new(bytes), Err(InvalidGranule { bytes }));
        }
        assert_eq!(Granule::new(65_536), Ok(Granule::KIB_64));
        assert_eq!(Granule::KIB_4.count(1), 1);
        assert_eq!(Granule::KIB_4.count(4097), 2);
    }
}
