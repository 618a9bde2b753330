//! Which chunks of a segment go where, so that those of an object together ask the same of every device.
//!
//! A sequential read asks each device for the data chunks it holds, an update its parity chunks for theirs. Dealt by chance, 16 segments
//! of (6, 4) leave one of six devices with 13 data chunks where 11 are its share: the read takes a fifth longer than the devices could.

use super::Plan;
use crate::DeviceId;
use std::collections::BTreeMap;

/// Data chunks of one object by device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dealt {
    data: BTreeMap<DeviceId, u32>,
}

impl Dealt {
    /// Puts first, of a segment's devices, those with the fewest data chunks so far, else as the plan has them; the first `data` of
    /// them have one more then.
    ///
    /// # Panics
    /// When there are fewer.
    pub fn deal(&mut self, plan: &mut Plan, data: u32) {
        plan.devices.sort_by_key(|planned| self.data.get(&planned.device).copied().unwrap_or(0));
        for planned in &plan.devices[..data as usize] {
            *self.data.entry(planned.device).or_default() += 1;
        }
    }
}
