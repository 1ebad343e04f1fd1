//! Calls of Detach that are still to be made. Of a call whose answer never came nobody here knows whether the
//! DPU has done what it was asked; so what it may hold is given back, until it says that it is.

use std::{collections::HashMap, sync::Mutex};

use offload_proto::v1::DetachRequest;

use crate::{agent::defect::locked, protocol::Key};

/// The calls of Detach that are still to be made for attachments without a record here. They need
/// not survive a restart: the next session's hello does not list those attachments.
#[derive(Debug, Default)]
pub(super) struct Undelivered(Mutex<HashMap<Key, DetachRequest>>);

impl Undelivered {
    /// So many are remembered at once: while the DPU is away, each pod that waits for its network is deleted under
    /// another key again and again. Of what is not remembered the next session's hello tells.
    const MOST: usize = 1000;

    /// Notes what is to be given back later.
    pub(super) fn note(&self, request: DetachRequest) {
        let key = request.key.clone().unwrap_or_default().into();
        let mut undelivered = locked(&self.0);
        if undelivered.len() < Self::MOST || undelivered.contains_key(&key) {
            undelivered.insert(key, request);
        }
    }

    pub(super) fn keys(&self) -> Vec<Key> {
        locked(&self.0).keys().cloned().collect()
    }

    pub(super) fn get(&self, key: &Key) -> Option<DetachRequest> {
        locked(&self.0).get(key).cloned()
    }

    pub(super) fn forget(&self, key: &Key) {
        locked(&self.0).remove(key);
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
    fn however_many_are_to_be_made_only_so_many_are_remembered() {
        let undelivered = Undelivered::default();
        for number in 0..=Undelivered::MOST {
            undelivered.note(of(&number.to_string()));
        }
        assert_eq!(undelivered.keys().len(), Undelivered::MOST);
        // Of one that is remembered the last word counts.
        undelivered.note(DetachRequest { vf_returned: true, ..of("0") });
        assert!(undelivered.get(&record("a", "0").key()).unwrap().vf_returned);
    }
}
