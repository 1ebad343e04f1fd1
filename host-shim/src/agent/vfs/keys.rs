//! The locks of attachments: a task that changes an attachment holds its key's lock.

use std::collections::BTreeSet;

use keyed_locks::{Held, KeyedLocks};

use crate::{agent::pending::Pending, protocol::Key};

/// The locks by key, and which of them an ADD waits for.
#[derive(Debug, Default)]
pub(in crate::agent) struct Keys {
    locks: KeyedLocks<Key>,
    waiting_adds: Pending,
}

impl Keys {
    /// Waits for the lock of a key, behind all who wait for it already.
    pub(in crate::agent) async fn lock(&self, key: &Key) -> Held {
        self.locks.lock(key).await
    }

    /// Waits for the locks of several keys, in one order for all who want several.
    pub(in crate::agent) async fn lock_all(&self, keys: &BTreeSet<Key>) -> Vec<Held> {
        self.locks.lock_all(keys).await
    }

    /// Locks keys for an ADD. A holder of one of the keys sees that an ADD waits, and leaves it what the ADD would
    /// recreate.
    pub(in crate::agent) async fn lock_all_for_add(&self, keys: &BTreeSet<Key>) -> Vec<Held> {
        let _waiting: Vec<_> = keys.iter().map(|key| self.waiting_adds.enter(key)).collect();
        self.locks.lock_all(keys).await
    }

    /// Whether an ADD waits for the lock of a key.
    pub(in crate::agent) fn is_add_waiting(&self, key: &Key) -> bool {
        self.waiting_adds.contains(key)
    }
}
