//! Which devices a decode does without.

use crate::DeviceId;
use std::collections::BTreeSet;

/// Those that it `must` do without, and of those that are late, the first first, as many as there is parity for besides.
pub fn spared(
    parity: u32,
    must: impl IntoIterator<Item = DeviceId>,
    late: impl IntoIterator<Item = DeviceId>,
) -> BTreeSet<DeviceId> {
    let mut spared: BTreeSet<DeviceId> = must.into_iter().collect();
    for device in late {
        if spared.len() < parity as usize {
            spared.insert(device);
        }
    }
    spared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_devices_are_spared_as_far_as_the_rest_suffices() {
        let [a, b, c] = [1, 2, 3].map(DeviceId);
        assert_eq!(spared(2, [a], [a, b, c]), [a, b].into());
        assert_eq!(spared(2, [], [c, b, a]), [b, c].into());
        assert_eq!(spared(1, [a, b], [c]), [a, b].into(), "what must be is not the decode's to choose");
        assert_eq!(spared(0, [], [a]), [].into());
    }
}
