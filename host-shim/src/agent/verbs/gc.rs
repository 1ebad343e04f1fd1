//! GC: release what the runtime no longer knows.

use std::{collections::HashSet, sync::Arc};

use offload_proto::{Failure, Reason, v1};

use super::detach::Renewal;
use crate::agent::{
    Agent,
    dpu::calls::detach_request,
    vfs::records::{Phase, Record},
};
use crate::protocol::{GcRequest, Key};

impl Agent {
    /// Serves a GC: first this host's records, then what only the DPU has.
    ///
    /// # Errors
    /// [`Reason::DpuUnreachable`] and the like, when only the host's own part could be done.
    pub(in crate::agent) async fn collect(
        self: &Arc<Self>,
        request: GcRequest,
    ) -> Result<(), Failure> {
        let valid: HashSet<Key> = request.valid.iter().cloned().collect();
        for record in self.records.all() {
            // What an ADD is at work on the runtime can't know of.
            if record.configuration == request.configuration
                && record.phase != Phase::Attaching
                && !valid.contains(&record.key())
            {
                self.release_stale(&record).await;
            }
        }
        let kept = self.kept(&request, valid);
        let released = self.call_collect(&request, kept).await;
        let released = match released {
            // The DPU has no such network, hence no attachments of it.
            Err(failure) if failure.reason == Reason::NetworkUnknown => return Ok(()),
            released => released?,
        };
        for attachment in released {
            self.finish_collected(attachment).await;
        }
        Ok(())
    }

    /// What the DPU must leave alone: besides the valid attachments those of other configurations,
    /// which may be of the same network, and those that were made since or are under way. What is
    /// under way is listed before what is recorded, so that an attach in between is in one of both.
    fn kept(&self, request: &GcRequest, valid: HashSet<Key>) -> Vec<Key> {
        let pending = self.pending.keys();
        let records = self.records.all().into_iter();
        let others = records
            .filter(|record| {
                record.configuration != request.configuration || record.phase != Phase::Releasing
            })
            .map(|record| record.key());
        let kept: HashSet<Key> = valid.into_iter().chain(others).chain(pending).collect();
        kept.into_iter().collect()
    }

    async fn release_stale(self: &Arc<Self>, record: &Arc<Record>) {
        let _key = self.keys.lock(&record.key()).await;
        if let Some(record) = self.records.by_id(record.id()) {
            tracing::info!(attachment = record.id(), key = %record.key(), "stale: released");
            self.release(record, self.config.timeouts.vf_return(), Renewal::Later).await;
        }
    }

    /// The DPU waits for the VF of an attachment that it collected.
    async fn finish_collected(self: &Arc<Self>, attachment: v1::Attachment) {
        if let Some(record) = self.records.by_id(&attachment.id) {
            return self.release_stale(&record).await;
        }
        let detach = detach_request(attachment.key, attachment.id, false);
        if let Err(failure) = self.call_detach(detach).await {
            tracing::info!("a collected attachment is settled later: {failure}");
        }
        self.inventory_wanted();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{tests::agent, vfs::records::tests::record};

    #[tokio::test]
    async fn what_was_attached_meanwhile_is_kept() {
        let (agent, _folder) = agent();
        let releasing = Record { phase: Phase::Releasing, ..record("b", "stale") };
        agent.records.keep(&Arc::new(record("a", "recorded")));
        agent.records.keep(&Arc::new(releasing));
        let _pending = agent.pending.enter(&record("c", "under-way").key());
        let request =
            GcRequest { configuration: "blue".into(), network: "blue".into(), valid: Vec::new() };
        let mut kept = agent.kept(&request, HashSet::new());
        kept.sort();
        let kept: Vec<_> = kept.iter().map(|key| key.container_id.as_str()).collect();
        assert_eq!(kept, ["recorded", "under-way"]);
    }
}
