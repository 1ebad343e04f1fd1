//! What a host's runtime asks besides attaching and detaching: CHECK and GC.

use std::{collections::HashSet, sync::Arc};

use bootstrap::Chain;
use futures::future::join_all;
use offload_proto::{Failure, Reason};

use super::{
    engine::{Engine, on_blocking_thread},
    registry::Entry,
};
use crate::{
    milestones::Milestone,
    model::{AttachmentId, AttachmentKey, AttachmentState, AttachmentView, HostName, Record},
    programmer::StepStatus,
};

impl Engine {
    /// Compares an attachment's record with what the kernel has.
    pub(super) async fn check(
        &self,
        key: AttachmentKey,
        id: Option<AttachmentId>,
    ) -> Result<AttachmentView, Failure> {
        let _key = self.keys.lock(&key).await;
        let record = self.record_of(&key).filter(|record| id.is_none_or(|id| id == record.id));
        let record = record.ok_or_else(|| super::unknown(&key))?;
        let view = self.view(&record)?;
        if view.state == AttachmentState::Releasing {
            return Err(super::releasing(&record));
        }
        let steps = self.inspect(&record).await?;
        match steps.into_iter().find(|step| !step.in_place) {
            Some(StepStatus { name, detail, .. }) => Err(Failure::new(
                Reason::CheckFailed,
                format!("{}: step {name} of {} is not in place: {detail}", record.key, record.vf),
            )),
            None => Ok(view),
        }
    }

    /// Puts those of the host's attachments of `network` that are not `valid` into releasing.
    pub(super) async fn collect(
        &self,
        host: HostName,
        network: Option<String>,
        valid: Vec<AttachmentKey>,
    ) -> Result<Vec<AttachmentView>, Failure> {
        let network = match network {
            Some(network) => network,
            None => self.registry().networks.find(None)?.network.name.clone(),
        };
        let valid: HashSet<_> = valid.into_iter().collect();
        let stale: Vec<_> = {
            let registry = self.registry();
            let session = self.sessions.current(&host);
            // The runtime's list may be older than an Attach that is under way.
            let is_stale = |entry: &&Entry| {
                entry.record.network.name == network
                    && !valid.contains(&entry.record.key)
                    && !(entry.is_held() && entry.is_under_way(session))
            };
            registry
                .of_host(&host)
                .filter(is_stale)
                .map(|entry| Arc::clone(&entry.record))
                .collect()
        };
        let released = join_all(stale.iter().map(|record| self.collect_one(record))).await;
        Milestone::Collected.pass();
        Ok(released.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// `None`: it is gone meanwhile.
    async fn collect_one(&self, record: &Arc<Record>) -> Result<Option<AttachmentView>, Failure> {
        let _key = self.keys.lock(&record.key).await;
        if self.registry().get(record.id).is_none() {
            return Ok(None);
        }
        self.give_back(record, false, "the runtime's garbage collection").await?;
        // Whose VF was back already is free now.
        Ok(self.view(record).ok())
    }

    /// Each programming step of an attachment and what the kernel has of it.
    pub(super) async fn inspect(&self, record: &Record) -> Result<Vec<StepStatus>, Failure> {
        let (programmer, settings) = (self.programmer.clone(), record.port_settings());
        let inspected = on_blocking_thread(move || programmer.inspect(&settings)).await;
        let steps = inspected.map(|inspection| inspection.steps);
        steps.map_err(|error| Failure::new(Reason::CheckFailed, Chain(&error).to_string()))
    }
}
