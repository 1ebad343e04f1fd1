//! The keys of calls that are under way.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crate::protocol::Key;

/// The keys of calls that are under way.
#[derive(Debug, Default)]
pub(super) struct Pending(Arc<Mutex<HashSet<Key>>>);

/// A call that is under way.
#[derive(Debug)]
pub(super) struct Entered {
    pending: Arc<Mutex<HashSet<Key>>>,
    key: Key,
}

impl Pending {
    /// Says that a call of the key is under way, until the answer is dropped. Calls of one key do
    /// not overlap.
    pub(super) fn enter(&self, key: &Key) -> Entered {
        lock(&self.0).insert(key.clone());
        Entered { pending: Arc::clone(&self.0), key: key.clone() }
    }

    /// The keys.
    pub(super) fn keys(&self) -> Vec<Key> {
        lock(&self.0).iter().cloned().collect()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        lock(&self.pending).remove(&self.key);
    }
}

fn lock(keys: &Mutex<HashSet<Key>>) -> MutexGuard<'_, HashSet<Key>> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}
