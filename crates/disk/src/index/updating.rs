//! What an updatable extent keeps beside its blocks: versions, and where the log in its reserve begins.
//!
//! The reserve is the space beside a parity chunk that takes the deltas of its stripe, so that reading them back
//! costs no seek (PLR: Chan et al., FAST'14, §4.2). It lies right behind the slots of the extent's one range:
//!
//! ```text
//! range:  | table | slot | slot | ... | reserve: a ring of log records |
//! ```

use std::{collections::BTreeMap, ops::Range};

use super::{
    Malformed,
    codec::{Put, Reader},
};

/// Bytes of its encoding without the map.
const FIXED: u64 = 5 * 8 + 4;
/// Bytes of one entry of the map.
pub(crate) const MERGED: u64 = 2 + 8;

/// Where a reserve's log begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogStart {
    /// Number of the first record that still counts (or of the next one, where none does).
    pub sequence: u64,
    /// Page of the reserve at which it stands, unless it wrapped to page 0.
    pub page: u64,
}

/// The part of an extent that changes in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Updating {
    /// Units of the reserve.
    pub reserve: Range<u64>,
    /// Version of the content: 0 at the creation, one more with each staged update.
    pub version: u64,
    /// Version of each data chunk that this chunk has merged.
    pub merged: BTreeMap<u16, u64>,
    /// Where the log begins.
    pub log: LogStart,
}

impl Updating {
    pub(super) fn new(reserve: Range<u64>) -> Updating {
        let log = LogStart { sequence: 1, page: 0 };
        Updating { reserve, version: 0, merged: BTreeMap::new(), log }
    }

    /// Units of the reserve, which are the pages of its log.
    pub(crate) fn reserve_units(&self) -> u64 {
        self.reserve.end - self.reserve.start
    }

    pub(super) fn check(&self) -> Result<(), Malformed> {
        let sound = self.reserve.start <= self.reserve.end
            && self.reserve.end <= 1 << 52
            && self.log.sequence > 0
            && (self.log.page == 0 || self.log.page < self.reserve_units());
        if sound { Ok(()) } else { Err(Malformed { what: "reserve of an extent" }) }
    }

    /// Merges are only ever brought forward, so that a record applied twice changes nothing.
    pub(super) fn merge(&mut self, merged: &[(u16, u64)]) {
        for &(chunk, version) in merged {
            let held = self.merged.entry(chunk).or_default();
            *held = (*held).max(version);
        }
    }

    pub(super) fn encoded_bytes(&self) -> u64 {
        FIXED + MERGED * self.merged.len() as u64
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        out.put_u64(self.reserve.start);
        out.put_u64(self.reserve_units());
        out.put_u64(self.version);
        out.put_u64(self.log.sequence);
        out.put_u64(self.log.page);
        out.put_u32(self.merged.len() as u32);
        for (chunk, version) in &self.merged {
            out.put_u16(*chunk);
            out.put_u64(*version);
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Updating, Malformed> {
        let (start, units) = (reader.u64()?, reader.u64()?);
        let mut updating = Updating::new(start..start.saturating_add(units));
        updating.version = reader.u64()?;
        updating.log = LogStart { sequence: reader.u64()?, page: reader.u64()? };
        for _ in 0..reader.u32()? {
            updating.merged.insert(reader.u16()?, reader.u64()?);
        }
        updating.check()?;
        Ok(updating)
    }
}
