//! How many devices a write may turn to where one of its own fails, and which.
//!
//! Each is looked at whenever its writer decides anything: a cluster of a thousand devices must not make that a thousand times as much
//! as the write itself. What fails of a write's devices while it goes on is few of them, or a domain.
//!
//! Left out: the order in which they are turned to (the writing cores).

use std::collections::BTreeSet;

/// Spares beyond one for each device and two for each domain whose loss is survived. Picked by eye: more than a write ever turns to.
const MORE: usize = 8;

/// The most spares of a write to so many devices that survives the loss of `tolerate` domains.
pub(super) fn most(devices: usize, tolerate: u32) -> usize {
    devices + 2 * tolerate as usize + MORE
}

/// The `most` of these spares, best first, that are kept, in their order: before others the best of each domain that is not `used`.
pub(super) fn kept<T, D: Ord>(
    spares: Vec<T>,
    most: usize,
    mut used: BTreeSet<D>,
    domain: impl Fn(&T) -> D,
) -> Vec<T> {
    if spares.len() <= most {
        return spares;
    }
    let numbered = spares.into_iter().enumerate();
    let (mut kept, mut others): (Vec<_>, Vec<_>) =
        numbered.partition(|(_, spare)| used.insert(domain(spare)));
    kept.truncate(most);
    others.truncate(most - kept.len());
    kept.extend(others);
    kept.sort_by_key(|&(place, _)| place);
    kept.into_iter().map(|(_, spare)| spare).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_domain_has_its_best_spare_before_any_has_two() {
        let spares = [(1, 'a'), (2, 'a'), (3, 'b'), (4, 'c'), (5, 'a'), (6, 'd')];
        let kept = |most| {
            let kept = kept(spares.to_vec(), most, BTreeSet::from(['b']), |&(_, domain)| domain);
            kept.into_iter().map(|(place, _)| place).collect::<Vec<i32>>()
        };
        assert_eq!(kept(2), [1, 4]);
        assert_eq!(kept(3), [1, 4, 6]);
        assert_eq!(kept(5), [1, 2, 3, 4, 6]);
        assert_eq!(kept(6), [1, 2, 3, 4, 5, 6]);
    }
}
