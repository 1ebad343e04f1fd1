//! One lock for each key, made when it is wanted.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::OwnedMutexGuard;

type Lock = tokio::sync::Mutex<()>;

/// From how many keys on the unused ones are dropped.
const MANY: usize = 1024;

/// Locks by key.
#[derive(Debug)]
pub(super) struct Locks<K>(Mutex<HashMap<K, Weak<Lock>>>);

impl<K> Default for Locks<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Clone + Eq + Hash> Locks<K> {
    /// Waits for `key`'s lock. It is held until the guard is dropped.
    pub(super) async fn lock(&self, key: &K) -> OwnedMutexGuard<()> {
        self.get(key).lock_owned().await
    }

    fn get(&self, key: &K) -> Arc<Lock> {
        let mut locks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        if locks.len() >= MANY {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::default();
        locks.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }
}
