//! What a list holds twice.

use std::collections::BTreeSet;

/// The names that came before, each as often as it comes again.
pub(crate) fn twice<'a>(names: impl Iterator<Item = &'a str>) -> impl Iterator<Item = &'a str> {
    let mut seen = BTreeSet::new();
    names.filter(move |name| !seen.insert(*name))
}
