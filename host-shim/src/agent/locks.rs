//! One lock for each key, as long as somebody holds or awaits it.

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use tokio::sync::OwnedMutexGuard;

type Lock = tokio::sync::Mutex<()>;

/// Locks by key.
#[derive(Debug)]
pub(super) struct Locks<K> {
    locks: Mutex<HashMap<K, Weak<Lock>>>,
}

impl<K> Default for Locks<K> {
    fn default() -> Self {
        Self { locks: Mutex::default() }
    }
}

/// A held lock.
#[derive(Debug)]
pub(super) struct Held {
    _guard: OwnedMutexGuard<()>,
}

impl<K: Clone + Debug + Eq + Hash> Locks<K> {
    /// Waits for the key's lock. Those who wait are served in their order.
    pub(super) async fn lock(&self, key: &K) -> Held {
        let lock = self.of(key);
        Held { _guard: lock.lock_owned().await }
    }

    fn of(&self, key: &K) -> Arc<Lock> {
        let mut locks = self.all();
        if let Some(lock) = locks.get(key).and_then(Weak::upgrade) {
            return lock;
        }
        locks.retain(|_, lock| lock.strong_count() > 0);
        let lock = Arc::default();
        locks.insert(key.clone(), Arc::downgrade(&lock));
        lock
    }

    fn all(&self) -> MutexGuard<'_, HashMap<K, Weak<Lock>>> {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use futures::poll;

    use super::*;

    #[tokio::test]
    async fn a_key_is_held_once_and_keys_do_not_disturb_each_other() {
        let locks = Locks::default();
        let first = locks.lock(&1).await;
        let mut second = Box::pin(locks.lock(&1));
        assert!(poll!(&mut second).is_pending());
        drop(locks.lock(&2).await);
        drop(first);
        drop(second.await);
        drop(locks.lock(&3).await);
        assert_eq!(locks.all().len(), 1, "locks that nobody holds are forgotten");
    }
}
