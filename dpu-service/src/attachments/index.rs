//! Finds attachments by something that they have.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use crate::model::AttachmentId;

/// The attachments of each key. One, but for what a journal may hold.
#[derive(Debug)]
pub(super) struct Index<K>(HashMap<K, BTreeSet<AttachmentId>>);

impl<K> Default for Index<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Index<K> {
    pub(super) fn insert(&mut self, key: K, id: AttachmentId) {
        self.0.entry(key).or_default().insert(id);
    }

    /// Of several attachments of a key the others stay.
    pub(super) fn remove(&mut self, key: &K, id: AttachmentId) {
        let Some(ids) = self.0.get_mut(key) else { return };
        ids.remove(&id);
        if ids.is_empty() {
            self.0.remove(key);
        }
    }

    /// Another attachment than `id` that has that key.
    pub(super) fn other(&self, key: &K, id: AttachmentId) -> Option<AttachmentId> {
        self.0.get(key)?.iter().copied().find(|other| *other != id)
    }

    /// The keys that several attachments have, each with all of these, oldest first.
    pub(super) fn shared(&self) -> impl Iterator<Item = (&K, &BTreeSet<AttachmentId>)> {
        self.0.iter().filter(|(_, ids)| ids.len() > 1)
    }

    /// Forgets the keys that one attachment has alone.
    pub(super) fn retain_shared(&mut self) {
        self.0.retain(|_, ids| ids.len() > 1);
        self.0.shrink_to_fit();
    }

    pub(super) fn newest(&self, key: &K) -> Option<AttachmentId> {
        self.0.get(key)?.last().copied()
    }
}
