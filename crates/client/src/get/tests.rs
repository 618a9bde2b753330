//! What a get does when its object changes.

use super::*;

#[test]
fn only_changes_without_progress_end_a_get() {
    let mut changes = Changes::default();
    assert!((1..=16).all(|part| changes.one_more(part * 1000)), "it got further each time");
    assert!((1..CHANGES_MAX).all(|_| changes.one_more(16_000)));
    assert!(!changes.one_more(16_000));
    let mut changes = Changes::default();
    assert!((0..CHANGES_MAX).all(|_| changes.one_more(0)) && !changes.one_more(0));
}
