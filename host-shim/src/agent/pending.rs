//! The keys of calls in progress.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

use crate::protocol::Key;

/// The number of calls in progress for each key.
type Numbers = HashMap<Key, usize>;

#[derive(Debug, Default)]
pub(super) struct Pending(Arc<Mutex<Numbers>>);

/// A call in progress; dropping it ends the call.
#[derive(Debug)]
pub(super) struct Entered {
    pending: Arc<Mutex<Numbers>>,
    key: Key,
}

impl Pending {
    /// Marks a call of the key as in progress until the guard is dropped.
    pub(super) fn enter(&self, key: &Key) -> Entered {
        *self.0.lock().entry(key.clone()).or_default() += 1;
        Entered { pending: Arc::clone(&self.0), key: key.clone() }
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.0.lock().keys().cloned().collect()
    }

    pub(super) fn contains(&self, key: &Key) -> bool {
        self.0.lock().contains_key(key)
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        let mut numbers = self.pending.lock();
        if let Some(number) = numbers.get_mut(&self.key) {
            *number -= 1;
            if *number == 0 {
                numbers.remove(&self.key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::vfs::record;

    #[test]
    fn key_is_pending_until_its_last_call_ends() {
        let (pending, key) = (Pending::default(), record("a", "c").key());
        let (first, second) = (pending.enter(&key), pending.enter(&key));
        drop(first);
        assert!(pending.contains(&key));
        drop(second);
        assert!(!pending.contains(&key) && pending.keys().is_empty());
    }
}
