//! What calls whose answers never came may have left on the DPU.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
};

use offload_proto::{Failure, Reason, v1::DetachRequest};

use crate::agent::{Agent, locked};
use crate::protocol::Key;

/// The calls of Detach that are still to be made for attachments without a record here. They need
/// not survive a restart: the next session's hello does not list those attachments.
#[derive(Debug, Default)]
pub(in crate::agent) struct Undelivered(Mutex<HashMap<Key, DetachRequest>>);

impl Undelivered {
    /// Notes what is to be given back later.
    pub(in crate::agent) fn note(&self, request: DetachRequest) {
        let key = request.key.clone().unwrap_or_default().into();
        locked(&self.0).insert(key, request);
    }

    pub(in crate::agent) fn keys(&self) -> Vec<Key> {
        locked(&self.0).keys().cloned().collect()
    }

    pub(in crate::agent) fn get(&self, key: &Key) -> Option<DetachRequest> {
        locked(&self.0).get(key).cloned()
    }

    fn forget(&self, key: &Key) {
        locked(&self.0).remove(key);
    }
}

impl Agent {
    /// Makes a call later that has failed now, unless the DPU can't even make sense of it: of such an
    /// attachment it has nothing.
    pub(in crate::agent) fn detach_later(&self, request: DetachRequest, failure: &Failure) {
        let key: Key = request.key.clone().unwrap_or_default().into();
        if failure.reason == Reason::InvalidRequest {
            return tracing::warn!(%key, "nothing to give back: {failure}");
        }
        tracing::info!(%key, "not given back yet: {failure}");
        self.undelivered.note(request);
        self.poke.notify_one();
    }

    /// Gives back what could not be given back before, as far as the DPU answers.
    pub(in crate::agent) async fn deliver_detaches(self: &Arc<Self>) {
        for key in self.undelivered.keys() {
            let _key = self.keys.lock(&key).await;
            let Some(request) = self.undelivered.get(&key) else { continue };
            // The same attach was tried again, and has a record now.
            if self.records.by_key(&key).is_none() {
                if let Err(failure) = self.call_detach(request).await {
                    tracing::info!(%key, "still not given back: {failure}");
                    return;
                }
                self.inventory_wanted();
            }
            self.undelivered.forget(&key);
        }
    }
}
