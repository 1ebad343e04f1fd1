//! Duplicates in a list.

use std::collections::BTreeSet;

/// Yields each name that has occurred before, once for each repetition.
pub fn duplicates<T: Ord + Copy>(names: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let mut seen = BTreeSet::new();
    names.filter(move |name| !seen.insert(*name))
}
