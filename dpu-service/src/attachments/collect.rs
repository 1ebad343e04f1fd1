//! What a host's runtime asks besides attaching and detaching: CHECK and GC.

use std::{collections::HashSet, sync::Arc};

use bootstrap::Chain;
use futures::future::join_all;
use offload_proto::{Failure, Reason};

use super::{detach::give_back, engine::Engine, registry::Entry, releasing, unknown};
use crate::{
    milestones::Milestone,
    model::{AttachmentId, AttachmentKey, AttachmentState, AttachmentView, HostName, Record},
    programmer::StepStatus,
};

impl Engine {
    /// Compares an attachment's record with what the kernel has.
    ///
    /// # Errors
    /// [`Reason::AttachmentUnknown`], [`Reason::Releasing`] or [`Reason::CheckFailed`].
    pub async fn check(
        &self,
        key: AttachmentKey,
        id: Option<AttachmentId>,
    ) -> Result<AttachmentView, Failure> {
        // An attach or detach of the key would be found half done.
        let _key = self.keys.lock(&key).await;
        let record = self.record_of(&key).filter(|record| id.is_none_or(|id| id == record.id));
        let record = record.ok_or_else(|| unknown(&key))?;
        let view = self.view(&record)?;
        if view.state == AttachmentState::Releasing {
            return Err(releasing(&record));
        }
        let inspected = self
            .ports
            .inspect(&record)
            .await
            .map_err(|error| Failure::new(Reason::CheckFailed, Chain(&error).to_string()))?;
        match inspected.steps.into_iter().find(|step| !step.in_place) {
            Some(StepStatus { name, detail, .. }) => Err(Failure::new(
                Reason::CheckFailed,
                format!("{}: step {name} of {} is not in place: {detail}", record.key, record.vf),
            )),
            None => Ok(view),
        }
    }

    /// Puts those of the host's attachments of `network` (`None`: the default one) that are not
    /// `valid` into releasing, and returns them: the host gives their VFs back and detaches them.
    ///
    /// # Errors
    /// [`Reason::NetworkUnknown`] or [`Reason::JournalUnavailable`].
    pub async fn collect(
        self: &Arc<Self>,
        host: HostName,
        network: Option<String>,
        valid: Vec<AttachmentKey>,
    ) -> Result<Vec<AttachmentView>, Failure> {
        let collect = async move |engine: Arc<Self>| collect(&engine, &host, network, valid).await;
        self.to_the_end(collect).await
    }
}

async fn collect(
    engine: &Engine,
    host: &HostName,
    network: Option<String>,
    valid: Vec<AttachmentKey>,
) -> Result<Vec<AttachmentView>, Failure> {
    let outdated = not_valid(engine, host, network, valid)?;
    let released = join_all(outdated.iter().map(|record| collect_one(engine, record))).await;
    Milestone::Collected.pass();
    Ok(released.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// The runtime's list may be older than an Attach that is under way: such an attachment stays, and
/// the next list has it.
fn not_valid(
    engine: &Engine,
    host: &HostName,
    network: Option<String>,
    valid: Vec<AttachmentKey>,
) -> Result<Vec<Arc<Record>>, Failure> {
    let registry = engine.registry();
    let network = match network {
        Some(network) => network,
        None => registry.networks().find(None)?.network().name.clone(),
    };
    let valid: HashSet<_> = valid.into_iter().collect();
    let session = engine.sessions.current(host);
    let is_outdated = |entry: &&Entry| {
        entry.record().network.name == network
            && !valid.contains(&entry.record().key)
            && !(entry.is_held() && entry.is_under_way(session))
    };
    let outdated = registry.entries().of_host(host).filter(is_outdated);
    Ok(outdated.map(|entry| Arc::clone(entry.record())).collect())
}

/// `None`: it is gone meanwhile.
async fn collect_one(
    engine: &Engine,
    record: &Arc<Record>,
) -> Result<Option<AttachmentView>, Failure> {
    let _key = engine.keys.lock(&record.key).await;
    // Whoever had the key may have freed it.
    if engine.registry().entries().get(record.id).is_none() {
        return Ok(None);
    }
    give_back(engine, record, false, "the runtime's garbage collection").await?;
    // Whose VF was back already is free now.
    Ok(engine.view(record).ok())
}
