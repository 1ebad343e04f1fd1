//! The locks of attachments' keys, and what is known of a key under its lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

use keyed_locks::{Held, KeyedLocks};

use super::overtaken::Overtaken;
use crate::model::AttachmentKey;

/// Each flow of an attachment holds the lock of its key from beginning to end.
#[derive(Debug, Default)]
pub(super) struct Keys {
    locks: KeyedLocks<AttachmentKey>,
    overtaken: Mutex<Overtaken>,
}

impl Keys {
    /// Waits for the lock of the key.
    pub(super) async fn lock(&self, key: &AttachmentKey) -> Held {
        self.locks.lock(key).await
    }

    /// Waits for the locks of several keys, in their order.
    pub(super) async fn lock_all<'a>(
        &self,
        keys: impl IntoIterator<Item = &'a AttachmentKey>,
    ) -> Vec<Held> {
        self.locks.lock_all(keys).await
    }

    /// The calls that a Detach has overtaken. Used under the key's lock.
    pub(super) fn overtaken(&self) -> MutexGuard<'_, Overtaken> {
        self.overtaken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
