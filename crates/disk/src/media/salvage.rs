//! Reading what can be read: of an area of which a page or two are bad all the others are there, and of one with a scratch what lies before
//! that.

use super::{BLOCK_BYTES, Medium, MediumError};
use std::collections::BTreeSet;

/// Reads that may fail in either part of an area: each costs a disk seconds. One page of 16 MiB costs 13 of them, two cost 25 at most.
const FAILURES_MAX: u32 = 32;

/// What a search did not get.
#[derive(Debug, Default)]
pub(crate) struct Missing {
    /// Pages by their number in what was read; they are zeros there.
    pub(crate) pages: BTreeSet<u64>,
    /// Why the search ended before it had come to all of them: those that it did not come to are missing, too.
    pub(crate) ended: Option<MediumError>,
}

/// Reads as [`Medium::read_at`] does, but for what the medium does not give. A search by halves finds that, from page `first` on and then
/// in front of it: what is needed most is to be there. Too many reads that fail end it, in each part for itself.
///
/// # Errors
/// The medium's, where it gives nothing at all, or nothing of the first part before the search ends: then it is the medium that is bad, and
/// not a page.
pub(crate) fn read_what_is_there(
    medium: &dyn Medium,
    offset: u64,
    buf: &mut [u8],
    first: u64,
) -> Result<Missing, MediumError> {
    let (mut missing, mut unread, mut gives_any) = (Missing::default(), None, false);
    let pages = (buf.len() as u64).div_ceil(BLOCK_BYTES);
    for whole in [first.min(pages)..pages, 0..first.min(pages)] {
        let (mut parts, mut failures) = (vec![whole], 0);
        while let Some(part) = parts.pop() {
            if part.is_empty() {
                continue;
            }
            let from = (part.start * BLOCK_BYTES) as usize;
            let to = buf.len().min((part.end * BLOCK_BYTES) as usize);
            if failures <= FAILURES_MAX {
                let error = match medium.read_at(offset + from as u64, &mut buf[from..to]) {
                    Ok(()) => {
                        gives_any = true;
                        continue;
                    }
                    Err(error @ MediumError::Io { .. }) => error,
                    Err(error) => return Err(error),
                };
                unread = Some(error.clone());
                failures += 1;
                let middle = part.start.midpoint(part.end);
                if failures > FAILURES_MAX {
                    missing.ended = Some(error);
                } else if middle > part.start {
                    parts.extend([middle..part.end, part.start..middle]);
                    continue;
                }
            }
            buf[from..to].fill(0);
            missing.pages.extend(part);
        }
        // Of a medium that is gone nobody is to wait for the other part as well.
        if let Some(error) = missing.ended.take_if(|_| !gives_any) {
            return Err(error);
        }
    }
    match unread {
        Some(error) if !gives_any => Err(error),
        _ => Ok(missing),
    }
}
