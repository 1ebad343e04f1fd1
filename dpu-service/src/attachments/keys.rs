//! Locks of attachments' keys, and tombstones, which are used under these locks.

use keyed_locks::{Held, KeyedLocks};
use parking_lot::{Mutex, MutexGuard};

use super::tombstones::Tombstones;
use model::AttachmentKey;

/// Every flow of an attachment holds the lock of its key from beginning to end.
#[derive(Debug, Default)]
pub(super) struct Keys {
    locks: KeyedLocks<AttachmentKey>,
    tombstones: Mutex<Tombstones>,
}

impl Keys {
    pub(super) async fn lock(&self, key: &AttachmentKey) -> Held {
        self.locks.lock(key).await
    }

    /// Locks several keys, in their sort order: two calls with the same keys cannot deadlock.
    pub(super) async fn lock_all<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a AttachmentKey>,
    ) -> Vec<Held> {
        self.locks.lock_all(keys).await
    }

    /// Tombstones of detached keys. Used under the key's lock.
    pub(super) fn tombstones(&self) -> MutexGuard<'_, Tombstones> {
        self.tombstones.lock()
    }
}
