//! What a list holds twice.

use std::collections::BTreeSet;

/// The names that came before, each as often as it comes again.
pub(crate) fn twice<T: Ord + Copy>(names: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let mut seen = BTreeSet::new();
    names.filter(move |name| !seen.insert(*name))
}
