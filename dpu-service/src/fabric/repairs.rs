//! What a fabric repairs of what all ports share.

use std::{
    collections::BTreeSet,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What a fabric has repaired of its bridge and of the links in it that are no pods'.
#[derive(Debug, Default)]
pub(super) struct Repairs(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The links that the latest look left in place, by name.
    in_place: BTreeSet<String>,
    /// One sentence each.
    made: Vec<String>,
}

impl Repairs {
    /// The link of that name is in place; `change` was necessary for that. It is a repair of a link that was in place
    /// before: otherwise the link comes for the first time, or is back.
    pub(super) fn note_in_place(&self, link: &str, change: Option<String>) {
        let mut state = self.lock();
        let was_in_place = !state.in_place.insert(link.to_owned());
        state.made.extend(change.filter(|_| was_in_place));
    }

    /// A repair that was made, whatever of: one sentence.
    pub(super) fn note(&self, made: String) {
        self.lock().made.push(made);
    }

    /// The link of that name can't be brought into place: the fabric reports it as missing.
    pub(super) fn note_missing(&self, link: &str) {
        self.lock().in_place.remove(link);
    }

    /// The repairs since the latest call.
    pub(super) fn take(&self) -> Vec<String> {
        mem::take(&mut self.lock().made)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_in_place_is_repaired() {
        let repairs = Repairs::default();
        let joined = || Some("joined up0".to_owned());
        repairs.note_in_place("up0", joined());
        assert_eq!(repairs.take(), [""; 0], "it comes for the first time");
        repairs.note_in_place("up0", None);
        repairs.note_in_place("up0", joined());
        assert_eq!(repairs.take(), ["joined up0"]);
        assert_eq!(repairs.take(), [""; 0]);
        repairs.note_missing("up0");
        repairs.note_in_place("up0", joined());
        assert_eq!(repairs.take(), [""; 0], "it is back");
    }
}
