//! Pending detaches: Detach calls that are still to be made. After a call without an answer the agent does not know
//! what the DPU holds. It sends Detach until the DPU confirms.

use std::collections::HashMap;

use offload_proto::v1::DetachRequest;
use parking_lot::Mutex;

use crate::protocol::Key;

/// Pending detaches of attachments without a record here. They need not survive a restart: the next hello does not list
/// those attachments, and the DPU releases them.
#[derive(Debug, Default)]
pub(super) struct PendingDetaches(Mutex<HashMap<Key, DetachRequest>>);

impl PendingDetaches {
    /// The most pending detaches. While the DPU is unreachable, each waiting pod is retried under a new key again and
    /// again. The next session's hello covers what is not stored.
    const MOST: usize = 1000;

    pub(super) fn note(&self, request: DetachRequest) {
        let key = request.key.clone().unwrap_or_default().into();
        let mut pending = self.0.lock();
        if pending.len() < Self::MOST || pending.contains_key(&key) {
            pending.insert(key, request);
        }
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        self.0.lock().keys().cloned().collect()
    }

    pub(super) fn get(&self, key: &Key) -> Option<DetachRequest> {
        self.0.lock().get(key).cloned()
    }

    pub(super) fn forget(&self, key: &Key) {
        self.0.lock().remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::vfs::record;

    fn of(container: &str) -> DetachRequest {
        DetachRequest { key: record("a", container).attachment.key, ..Default::default() }
    }

    #[test]
    fn pending_detaches_are_bounded() {
        let pending = PendingDetaches::default();
        for number in 0..=PendingDetaches::MOST {
            pending.note(of(&number.to_string()));
        }
        assert_eq!(pending.keys().len(), PendingDetaches::MOST);
        // The last request for a key replaces earlier ones.
        pending.note(DetachRequest { vf_returned: true, ..of("0") });
        assert!(pending.get(&record("a", "0").key()).unwrap().vf_returned);
    }
}
