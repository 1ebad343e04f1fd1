//! The log of a fabric's repairs to what all ports share.

use std::{collections::BTreeSet, mem};

use parking_lot::Mutex;

/// The repairs of a bridge and of its links that are not pods' ports.
#[derive(Debug, Default)]
pub(super) struct Repairs(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// The names of the links that the latest pass left in place.
    in_place: BTreeSet<String>,
    /// One sentence per repair.
    made: Vec<String>,
}

impl Repairs {
    /// Records that the link is in place, and the `change` that was necessary. The change counts as a repair only
    /// if the link was in place before; otherwise the link is new or has returned.
    pub(super) fn note_in_place(&self, link: &str, change: Option<String>) {
        let mut state = self.0.lock();
        let was_in_place = !state.in_place.insert(link.to_owned());
        state.made.extend(change.filter(|_| was_in_place));
    }

    /// Records a repair that does not concern a link: one sentence.
    pub(super) fn note(&self, made: String) {
        self.0.lock().made.push(made);
    }

    /// Records that the link can't be put in place. The fabric reports it as missing.
    pub(super) fn note_missing(&self, link: &str) {
        self.0.lock().in_place.remove(link);
    }

    /// Takes the repairs since the latest call.
    pub(super) fn take(&self) -> Vec<String> {
        mem::take(&mut self.0.lock().made)
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
