//! When a port begins to forward: where its carrier follows the VF, only after the host has switched
//! that on.

use std::time::Duration;

use offload_proto::Failure;
use tokio::time::{Instant, timeout_at};

use super::{engine::Engine, registry::Entry, unknown};
use crate::{
    milestones::Milestone,
    model::{AttachmentId, HostName},
};

/// Nobody is kept waiting for longer.
const LONGEST: Duration = Duration::from_secs(60);

impl Engine {
    /// Whether the attachment's port forwards.
    pub async fn forwards(&self, id: AttachmentId) -> bool {
        let programmed = self.registry().entries().get(id).and_then(Entry::programmed);
        match programmed {
            Some(index) => self.ports.forwards(index).await,
            None => false,
        }
    }

    /// Waits until the port of the host's attachment forwards, and tells whether it does.
    ///
    /// # Errors
    /// [`Reason::AttachmentUnknown`](offload_proto::Reason::AttachmentUnknown).
    pub async fn await_port(
        &self,
        host: &HostName,
        id: AttachmentId,
        limit: Duration,
    ) -> Result<bool, Failure> {
        let of_host = |entry: &Entry| entry.record().key.host == *host;
        let is_hosts = self.registry().entries().get(id).is_some_and(of_host);
        if !is_hosts {
            return Err(unknown(&id));
        }
        Milestone::AttachAwaited.pass();
        // From before the first look, so that no report falls in between.
        let mut reports = self.ports.reports();
        let mut forwards = self.forwards(id).await;
        // The limit is for a port that does not forward, not for a kernel that is slow to tell.
        let until = Instant::now() + limit.min(LONGEST);
        while !forwards {
            match timeout_at(until, reports.changed()).await {
                Ok(Ok(())) => forwards = self.forwards(id).await,
                Ok(Err(_)) | Err(_) => break,
            }
        }
        Ok(forwards)
    }
}
