//! An amendment committed beside what others have changed since it began.
//!
//! ```text
//!   position        0   1   2   3   4   5
//!   made from       a   b   c                     replaced: 1; new: 3 and 4, of which 3 holds zeros
//!   committed       a   B'  c   z   e
//!   the object now  A'  b   c   d                 another writer has replaced 0 and written 3
//!   becomes         A'  B'  c   d   e
//! ```
//!
//! Many writers of one file, each of its own part, are the usual case of parallel programs: were each overtaken by every other, each would
//! store its part again and again.
//!
//! Invariants: what the amendment has replaced is in the object as it was made from, under the same name, epoch and length, so nothing that was
//! acknowledged of it since is lost (who opens a segment again for changes in place lists it under another epoch, who makes it longer gives it
//! another length); every segment begins at the byte at which its writer had it begin; nothing but zeros of a gap is left out of what was made.

use crate::{layout::SegmentLayout, message::AmendBase};

/// What an object becomes.
pub(super) struct Beside {
    /// Its segments in order.
    pub(super) layouts: Vec<SegmentLayout>,
    /// Those of the amendment that it does not have: zeros where others have stored something.
    pub(super) left_out: Vec<SegmentLayout>,
}

/// What an object of segments `now` becomes by an amendment that was made from `base` and lists `made`. None where others have changed since
/// what that has changed, or where it makes the object shorter.
pub(super) fn beside(base: &AmendBase, made: &[SegmentLayout], now: &[SegmentLayout]) -> Option<Beside> {
    if made.len() < base.segments as usize {
        return None;
    }
    let length = made.len().max(now.len());
    let (mut layouts, mut left_out) = (Vec::with_capacity(length), Vec::new());
    // Where the segment begins by what was made, as the object is now, and in what it becomes.
    let (mut at_made, mut at_now, mut at) = (0u64, 0u64, 0u64);
    for position in 0..u32::try_from(length).ok()? {
        let (made, now) = (made.get(position as usize), now.get(position as usize));
        let replaced = base.replaced.get(&position);
        let (layout, begins) = match (made, now) {
            (Some(made), Some(now)) if replaced.is_some_and(|replaced| *replaced == now.into()) => {
                (made, at_made)
            }
            (Some(made), None) if replaced.is_none() && position >= base.segments => (made, at_made),
            (Some(made), Some(now)) if base.zeros.contains(position) && position >= base.segments => {
                left_out.push(made.clone());
                (now, at_now)
            }
            (Some(_), Some(now)) if replaced.is_none() && position < base.segments => (now, at_now),
            (None, Some(now)) => (now, at_now),
            _ => return None,
        };
        if begins != at {
            return None;
        }
        layouts.push(layout.clone());
        at = at.checked_add(layout.length)?;
        at_made = at_made.checked_add(made.map_or(0, |made| made.length))?;
        at_now = at_now.checked_add(now.map_or(0, |now| now.length))?;
    }
    Some(Beside { layouts, left_out })
}
