//! Asynchronous locks by key. A lock exists while a task holds or awaits it.
//!
//! The table of locks has a mutex of its own, which is held only for a look-up and never while a task waits.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

type Lock = tokio::sync::Mutex<()>;

/// Locks by key.
#[derive(Debug)]
pub struct KeyedLocks<K> {
    locks: Mutex<HashMap<K, Weak<Lock>>>,
}

/// A held lock. Dropping it unlocks.
#[derive(Debug)]
#[must_use = "the lock is held only as long as this is"]
pub struct Held {
    _guard: OwnedMutexGuard<()>,
}

impl<K> Default for KeyedLocks<K> {
    fn default() -> Self {
        Self { locks: Mutex::default() }
    }
}

impl<K: Clone + Eq + Hash> KeyedLocks<K> {
    /// Waits for the lock of `key`. Waiting tasks get it in their order.
    pub async fn lock(&self, key: &K) -> Held {
        let lock = self.of(key);
        Held { _guard: lock.lock_owned().await }
    }

    /// Locks several keys in their order, so that two tasks that need several keys cannot deadlock.
    pub async fn lock_all<'a>(&self, keys: impl IntoIterator<Item = &'a K>) -> Vec<Held>
    where
        K: Ord + 'a,
    {
        let mut held = Vec::new();
        for key in keys.into_iter().collect::<BTreeSet<_>>() {
            held.push(self.lock(key).await);
        }
        held
    }

    fn of(&self, key: &K) -> Arc<Lock> {
        let mut locks = self.locks.lock();
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        // Clean up only before the table would grow, so that the cost per call is constant on average. An unused lock
        // cannot come into use here: only this function hands it out, under the table's mutex.
        if locks.len() == locks.capacity() {
            locks.retain(|_, lock| lock.strong_count() > 0);
        }
        let lock = Arc::default();
        locks.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn keys_are_exclusive_and_independent() {
        let locks = KeyedLocks::default();
        let first = locks.lock(&1).await;
        let mut second = Box::pin(locks.lock(&1));
        assert!(poll!(&mut second).is_pending());
        drop(locks.lock(&2).await);
        drop(first);
        drop(second.await);
    }

    #[tokio::test]
    async fn several_keys_are_locked_in_order() {
        let locks = KeyedLocks::default();
        let first = locks.lock(&1).await;
        let mut one = Box::pin(locks.lock_all(&[3, 1, 3]));
        assert!(poll!(&mut one).is_pending());
        drop(locks.lock(&3).await);
        drop(first);
        assert_eq!(one.await.len(), 2);
    }

    #[tokio::test]
    async fn unheld_locks_are_removed() {
        let locks = KeyedLocks::default();
        let held = locks.lock(&0).await;
        for key in 1..10_000 {
            drop(locks.lock(&key).await);
        }
        assert!(locks.locks.lock().len() < 16);
        let mut again = Box::pin(locks.lock(&0));
        assert!(poll!(&mut again).is_pending(), "a lock that is held is kept");
        drop(held);
        drop(again.await);
    }
}
