//! The superblock: whose device this is and where its parts lie. Written once, by the format.

use std::ops::Range;

use super::{
    FORMAT_VERSION,
    codec::{Put, Reader},
};
use crate::{
    allocator::UNIT_BYTES,
    checksum::crc32c,
    ids::{ClusterId, DeviceId},
    media::{Medium, MediumError},
};

const MAGIC: u64 = u64::from_le_bytes(*b"STEADDSK");
const PAGE: usize = 4096;
/// Bytes of the page that carry fields; the checksum covers all after itself.
const FIELDS: usize = 96;
/// The flag of a thick device.
const THICK: u64 = 1;

/// Identity and layout of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Superblock {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// The device itself.
    pub device: DeviceId,
    /// Bytes it uses of its medium.
    pub capacity: u64,
    /// Bytes of each of the two checkpoint slots.
    pub checkpoint_bytes: u64,
    /// Bytes of the journal ring.
    pub journal_bytes: u64,
    /// Whether it keeps the room it has of its medium: what is freed is not trimmed.
    pub thick: bool,
}

/// What one superblock page holds.
pub(crate) enum Found {
    Valid(Superblock),
    /// All zero: never formatted, or wiped.
    Blank,
    /// Made by a program that writes another format.
    Version(u32),
    Damaged,
}

impl Superblock {
    /// Lays out a device of this capacity (a multiple of 4 KiB). `None`: too small for it.
    pub(crate) fn new(
        cluster: ClusterId,
        device: DeviceId,
        capacity: u64,
        checkpoint_bytes: Option<u64>,
        journal_bytes: Option<u64>,
        thick: bool,
    ) -> Option<Superblock> {
        let clamp = |share: u64, max: u64| (capacity / share).clamp(64 << 10, max) / UNIT_BYTES * UNIT_BYTES;
        let this = Superblock {
            cluster,
            device,
            capacity,
            // 78 bytes an extent of one range and one run: room for one extent per 12 KiB of capacity up to
            // 32 GiB, and for a million from 10.5 GiB up. The space is sparse until used.
            checkpoint_bytes: checkpoint_bytes.unwrap_or_else(|| clamp(128, 256 << 20)),
            // One page a group commit: 4096 of them between checkpoints on a large device.
            journal_bytes: journal_bytes.unwrap_or_else(|| clamp(256, 16 << 20)),
            thick,
        };
        this.is_sound().then_some(this)
    }

    fn is_sound(&self) -> bool {
        let aligned = [self.capacity, self.checkpoint_bytes, self.journal_bytes]
            .iter()
            .all(|b| b.is_multiple_of(UNIT_BYTES) && *b <= 1 << 60);
        aligned
            && self.checkpoint_bytes >= 4 * UNIT_BYTES
            && self.journal_bytes >= 2 * UNIT_BYTES
            && self.data_start() + 2 * UNIT_BYTES <= self.capacity
    }

    /// Start of checkpoint slot 0 or 1.
    pub(crate) fn checkpoint_start(&self, slot: u64) -> u64 {
        UNIT_BYTES + slot * self.checkpoint_bytes
    }

    pub(crate) fn journal_start(&self) -> u64 {
        UNIT_BYTES + 2 * self.checkpoint_bytes
    }

    /// First byte behind the system area at the front.
    pub(crate) fn data_start(&self) -> u64 {
        self.journal_start() + self.journal_bytes
    }

    /// The units that extents can have.
    pub(crate) fn data_units(&self) -> Range<u64> {
        self.data_start() / UNIT_BYTES..self.capacity / UNIT_BYTES - 1
    }

    fn second_copy(capacity: u64) -> u64 {
        (capacity / UNIT_BYTES).saturating_sub(1) * UNIT_BYTES
    }

    fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(PAGE);
        page.put_u64(MAGIC);
        page.put_u32(FORMAT_VERSION);
        page.put_u32(0);
        page.put_u128(self.cluster.0);
        page.put_u128(self.device.0);
        page.put_u64(self.capacity);
        page.put_u64(self.checkpoint_bytes);
        page.put_u64(self.journal_bytes);
        page.put_u64(if self.thick { THICK } else { 0 });
        page.resize(FIELDS, 0);
        let crc = crc32c(&page[16..]);
        page[12..16].copy_from_slice(&crc.to_le_bytes());
        page.resize(PAGE, 0);
        page
    }

    fn decode(page: &[u8]) -> Found {
        if page.iter().all(|&b| b == 0) {
            return Found::Blank;
        }
        let mut reader = Reader(&page[..FIELDS]);
        let mut fields = || {
            if reader.u64()? != MAGIC {
                return Ok(Found::Damaged);
            }
            let version = reader.u32()?;
            if version != FORMAT_VERSION {
                return Ok(Found::Version(version));
            }
            if reader.u32()? != crc32c(&page[16..FIELDS]) {
                return Ok(Found::Damaged);
            }
            let found = Superblock {
                cluster: ClusterId(reader.u128()?),
                device: DeviceId(reader.u128()?),
                capacity: reader.u64()?,
                checkpoint_bytes: reader.u64()?,
                journal_bytes: reader.u64()?,
                thick: reader.u64()? & THICK != 0,
            };
            Ok::<_, super::Malformed>(if found.is_sound() { Found::Valid(found) } else { Found::Damaged })
        };
        fields().unwrap_or(Found::Damaged)
    }

    /// Writes both copies; durable after the next flush.
    pub(crate) fn write(&self, medium: &dyn Medium) -> Result<(), MediumError> {
        let page = self.encode();
        medium.write_at(0, &page)?;
        medium.write_at(Self::second_copy(self.capacity), &page)
    }

    /// Whether both copies are as they were written.
    pub(crate) fn is_whole(&self, medium: &dyn Medium) -> bool {
        self.bad_copies(medium).next().is_none()
    }

    /// Writes those copies that are not; durable after the next flush. The other is not touched: a crash may tear what is written.
    pub(crate) fn mend(&self, medium: &dyn Medium) -> Result<(), MediumError> {
        let page = self.encode();
        self.bad_copies(medium).try_for_each(|offset| medium.write_at(offset, &page))
    }

    /// Where copies are that are not as they were written.
    fn bad_copies(&self, medium: &dyn Medium) -> impl Iterator<Item = u64> {
        let expected = self.encode();
        [0, Self::second_copy(self.capacity)].into_iter().filter(move |&offset| {
            let mut page = [0u8; PAGE];
            medium.read_at(offset, &mut page).is_err() || page[..] != expected[..]
        })
    }

    /// Zeroes both copies; durable after the next flush.
    pub(crate) fn erase(medium: &dyn Medium) -> Result<(), MediumError> {
        medium.write_at(0, &[0; PAGE])?;
        medium.write_at(Self::second_copy(medium.capacity()), &[0; PAGE])
    }

    /// The first copy that is whole; otherwise what is wrong with the first.
    ///
    /// # Errors
    /// Where a copy could not be read, and the other is not whole.
    pub(crate) fn read(medium: &dyn Medium) -> Result<Found, MediumError> {
        let mut page = [0u8; PAGE];
        let mut first = Found::Blank;
        let mut worst_is_blank = true;
        let mut unread = None;
        for (number, offset) in [0, Self::second_copy(medium.capacity())].into_iter().enumerate() {
            if offset + PAGE as u64 > medium.capacity() {
                continue;
            }
            if let Err(error) = medium.read_at(offset, &mut page) {
                unread.get_or_insert(error);
                continue;
            }
            match Self::decode(&page) {
                found @ Found::Valid(_) => return Ok(found),
                // A truncated file ends anywhere: its last page may hold data.
                found if number == 0 => {
                    worst_is_blank = matches!(found, Found::Blank);
                    first = found;
                }
                _ => {}
            }
        }
        if let Some(error) = unread {
            return Err(error);
        }
        Ok(if worst_is_blank { Found::Blank } else { first })
    }
}
