//! Reading what can be read: of an area of which a page or two are bad all the others are there.

use super::{BLOCK_BYTES, Medium, MediumError};
use std::collections::BTreeSet;

/// Pages that may be missing: with more the medium is no better than one that gives nothing, and each costs a disk seconds.
const MISSING_MAX: usize = 16;

/// Reads as [`Medium::read_at`] does; pages that the medium does not give are zeros, and returned by their number in `buf`. A search by
/// halves finds them.
///
/// # Errors
/// The medium's, where it gives hardly anything, or what is asked of it is wrong.
pub(crate) fn read_what_is_there(
    medium: &dyn Medium,
    offset: u64,
    buf: &mut [u8],
) -> Result<BTreeSet<u64>, MediumError> {
    let mut missing = BTreeSet::new();
    let mut parts: Vec<_> = std::iter::once(0..(buf.len() as u64).div_ceil(BLOCK_BYTES)).collect();
    while let Some(part) = parts.pop() {
        let from = (part.start * BLOCK_BYTES) as usize;
        let to = buf.len().min((part.end * BLOCK_BYTES) as usize);
        let Err(error) = medium.read_at(offset + from as u64, &mut buf[from..to]) else { continue };
        let middle = part.start.midpoint(part.end);
        match error {
            MediumError::Io { .. } if middle > part.start => {
                parts.extend([middle..part.end, part.start..middle]);
            }
            MediumError::Io { .. } if missing.len() < MISSING_MAX => {
                buf[from..to].fill(0);
                missing.insert(part.start);
            }
            error => return Err(error),
        }
    }
    Ok(missing)
}
