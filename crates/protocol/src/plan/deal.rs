//! Where the chunks of an object's segments go, so that together they ask the same of every device.
//!
//! A put sends each device its chunks, a sequential read asks it for the data among them, an update its parity chunks for theirs. Dealt by
//! chance, 16 segments of (6, 4) on eight devices left one with 16 chunks and one with 7, where 12 are its share, and the put took a third
//! longer than it could; on six they may well leave one with 13 data chunks of 11.

use super::{Candidate, Plan};
use crate::DeviceId;
use std::collections::BTreeMap;

/// Chunks of one object by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dealt {
    /// Data chunks, and all.
    chunks: BTreeMap<DeviceId, (u32, u32)>,
}

impl Dealt {
    /// The candidate, with what it was given.
    pub fn given(&self, candidate: Candidate) -> Candidate {
        let given = self.chunks.get(&candidate.device).map_or(0, |&(_, all)| all);
        Candidate { given, ..candidate }
    }

    /// Puts first, of a segment's devices, those of whose chunks so far the smallest share is data, else as the plan has them; the
    /// first `data` of them have one more then. Of their chunks: a device that is chosen seldom because it is slow is not made up to.
    pub fn deal(&mut self, plan: &mut Plan, data: u32) {
        let so_far = |device| self.chunks.get(&device).copied().unwrap_or((0, 1));
        plan.devices.sort_by(|one, other| {
            let ((data, all), (other_data, other_all)) = (so_far(one.device), so_far(other.device));
            (u64::from(data) * u64::from(other_all)).cmp(&(u64::from(other_data) * u64::from(all)))
        });
        for (place, planned) in plan.devices.iter().enumerate() {
            let (of_data, all) = self.chunks.entry(planned.device).or_default();
            *of_data += u32::from(place < data as usize);
            *all += 1;
        }
    }
}
