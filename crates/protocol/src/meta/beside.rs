//! An amendment committed beside what others have changed since it began.
//!
//! ```text
//!   position        0   1   2   3   4   5
//!   made from       a   b   c                     replaced: 1; new: 3, a hole, and 4
//!   committed       a   B'  c   -   e
//!   the object now  A'  b   c   d   -   f         another writer has replaced 0 and written 3 and 5
//!   becomes         A'  B'  c   d   e   f
//! ```
//!
//! Many writers of one file, each of its own part, are the usual case of parallel programs: were each overtaken by every other, each would
//! store its part again and again. Of what one has put behind the end and another too, a hole says nothing against anything.
//!
//! Invariants: what the amendment has replaced is in the object as it was made from, under the same name, epoch and length, so nothing that was
//! acknowledged of it since is lost (who opens a segment again for changes in place lists it under another epoch, who makes it longer gives it
//! another length); every segment begins at the byte at which its writer had it begin; nothing but holes is left out of what was made, or was
//! there and is not replaced; nobody's bytes make room for what is shorter.

use crate::{layout::SegmentLayout, message::AmendBase};

/// What an object of segments `now` becomes by an amendment that was made from `base` and lists `made`. None where others have changed since
/// what that has changed, or where it makes the object shorter.
pub(super) fn beside(
    base: &AmendBase,
    made: &[SegmentLayout],
    now: &[SegmentLayout],
) -> Option<Vec<SegmentLayout>> {
    if made.len() < base.segments as usize {
        return None;
    }
    let length = made.len().max(now.len());
    let mut becomes = Vec::with_capacity(length);
    // Where the segment begins by what was made, as the object is now, and in what it becomes.
    let (mut at_made, mut at_now, mut at) = (0u64, 0u64, 0u64);
    for position in 0..u32::try_from(length).ok()? {
        let (made, now) = (made.get(position as usize), now.get(position as usize));
        let replaced = base.replaced.get(&position);
        let is_new = replaced.is_none() && position >= base.segments;
        let (layout, begins) = match (made, now) {
            (Some(made), Some(now)) if replaced.is_some_and(|replaced| *replaced == now.into()) => {
                (made, at_made)
            }
            (Some(made), None) if is_new => (made, at_made),
            (Some(made), Some(now)) if is_new && made.is_hole() && made.length <= now.length => (now, at_now),
            (Some(made), Some(now)) if is_new && now.is_hole() && now.length <= made.length => {
                (made, at_made)
            }
            (Some(_), Some(now)) if replaced.is_none() && position < base.segments => (now, at_now),
            (None, Some(now)) => (now, at_now),
            _ => return None,
        };
        if begins != at {
            return None;
        }
        becomes.push(layout.clone());
        at = at.checked_add(layout.length)?;
        at_made = at_made.checked_add(made.map_or(0, |made| made.length))?;
        at_now = at_now.checked_add(now.map_or(0, |now| now.length))?;
    }
    Some(becomes)
}
