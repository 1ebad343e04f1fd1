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
    /// Notes what is to be given back later.
    pub(super) fn note(&self, request: DetachRequest) {
        let key = request.key.clone().unwrap_or_default().into();
        locked(&self.0).insert(key, request);
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
