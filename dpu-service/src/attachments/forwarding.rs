//! When a port begins to forward: where its carrier follows the VF, only after the host has switched
//! that on.

use std::time::Duration;

use offload_proto::Failure;
use tokio::time::timeout;

use super::engine::{Engine, on_blocking_thread};
use crate::model::{AttachmentId, HostName};

/// Nobody is kept waiting for longer.
const LONGEST: Duration = Duration::from_secs(60);

impl Engine {
    /// Whether the attachment's port forwards.
    pub(super) async fn forwards(&self, id: AttachmentId) -> bool {
        let programmed = self.registry().get(id).and_then(|entry| entry.programmed);
        let Some(index) = programmed else { return false };
        let programmer = self.programmer.clone();
        on_blocking_thread(move || programmer.forwards(index)).await.unwrap_or(false)
    }

    /// Waits until the port of the host's attachment forwards, and tells whether it does.
    pub(super) async fn await_port(
        &self,
        host: &HostName,
        id: AttachmentId,
        limit: Duration,
    ) -> Result<bool, Failure> {
        let is_hosts = self.registry().get(id).is_some_and(|entry| entry.record.key.host == *host);
        if !is_hosts {
            return Err(super::unknown(&id));
        }
        let mut reports = self.kernel_reports.subscribe();
        let forwards = async {
            while !self.forwards(id).await {
                if reports.changed().await.is_err() {
                    return false;
                }
            }
            true
        };
        Ok(timeout(limit.min(LONGEST), forwards).await.unwrap_or(false))
    }
}
