//! When a port begins to forward. Where the port's carrier follows the VF, that is only after the host has switched on
//! the VF.

use std::time::Duration;

use offload_proto::Failure;
use tokio::time::{Instant, timeout_at};

use super::{engine::Engine, registry::Entry, unknown};
use crate::kill_points::KillPoint;
use model::{AttachmentId, HostName};

/// Maximum wait, whatever limit the caller gives.
const LONGEST: Duration = Duration::from_secs(60);

impl Engine {
    pub async fn forwards(&self, id: AttachmentId) -> bool {
        let programmed = self.registry().entries().get(id).and_then(Entry::programmed);
        match programmed {
            Some(index) => self.ports.forwards(index).await,
            None => false,
        }
    }

    /// Waits until the port of the host's attachment forwards. Returns whether it does.
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
        KillPoint::AttachAwaited.pass();
        // Subscribed before the first check, so that no report falls in between.
        let mut reports = self.ports.reports();
        let mut forwards = self.forwards(id).await;
        // The limit starts after the first check: it covers the port, not a slow kernel.
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
