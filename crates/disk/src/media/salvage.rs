//! Reading what can be read: of an area of which a page or two are bad all the others are there.

use super::{BLOCK_BYTES, Medium, MediumError};
use std::collections::BTreeSet;

/// Reads that may fail: each costs a disk seconds. One page of 16 MiB costs 13 of them, two cost 25 at most.
const FAILURES_MAX: u32 = 32;

/// Reads as [`Medium::read_at`] does; pages that the medium does not give are zeros, and returned by their number in `buf`. A search by
/// halves finds them.
///
/// # Errors
/// The medium's, where it gives nothing at all, or little: then it is the medium that is bad, and not a page.
pub(crate) fn read_what_is_there(
    medium: &dyn Medium,
    offset: u64,
    buf: &mut [u8],
) -> Result<BTreeSet<u64>, MediumError> {
    let (mut missing, mut failures) = (BTreeSet::new(), 0);
    let pages = (buf.len() as u64).div_ceil(BLOCK_BYTES);
    let mut parts: Vec<_> = std::iter::once(0..pages).collect();
    while let Some(part) = parts.pop() {
        let from = (part.start * BLOCK_BYTES) as usize;
        let to = buf.len().min((part.end * BLOCK_BYTES) as usize);
        let Err(error) = medium.read_at(offset + from as u64, &mut buf[from..to]) else { continue };
        failures += 1;
        if failures > FAILURES_MAX || !matches!(error, MediumError::Io { .. }) {
            return Err(error);
        }
        let middle = part.start.midpoint(part.end);
        if middle > part.start {
            parts.extend([middle..part.end, part.start..middle]);
            continue;
        }
        buf[from..to].fill(0);
        missing.insert(part.start);
        if missing.len() as u64 == pages {
            return Err(error);
        }
    }
    Ok(missing)
}
