//! Garbage collection (CNI's GC): releases attachments that the runtime does not list.

use std::{collections::HashSet, sync::Arc};

use futures::future::join_all;
use offload_proto::Failure;

use super::{
    detach::{of_host, release_attachment},
    engine::Engine,
    registry::{Entry, VfReturn},
};
use crate::kill_points::KillPoint;
use model::{AttachmentKey, AttachmentView, HostName, Record};

impl Engine {
    /// Marks the host's attachments of `network` (`None`: the default one) that are not `valid` as releasing, and
    /// returns them. The host then returns their VFs and detaches them.
    ///
    /// # Errors
    /// [`NetworkUnknown`][`offload_proto::Reason::NetworkUnknown`] or
    /// [`JournalUnavailable`][`offload_proto::Reason::JournalUnavailable`].
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
    KillPoint::Collected.pass();
    Ok(released.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
}

/// Returns the attachments to release. The runtime's list may be older than an Attach under way: such an attachment
/// stays until the next GC.
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
    let is_valid = |record: &Record| {
        let group_key = record.group_key();
        valid.contains(&record.key) || group_key.is_some_and(|key| valid.contains(&key))
    };
    let is_outdated = |entry: &&Entry| {
        entry.record().network.name == network
            && !is_valid(entry.record())
            && !(entry.is_held() && entry.is_under_way(session))
    };
    let outdated = registry.entries().of_host(host).filter(is_outdated);
    Ok(outdated.map(|entry| Arc::clone(entry.record())).collect())
}

/// Releases one attachment. `None`: it is already gone.
async fn collect_one(
    engine: &Engine,
    record: &Arc<Record>,
) -> Result<Option<AttachmentView>, Failure> {
    let _key = engine.keys.lock(&record.key).await;
    // The previous holder of the key's lock may have freed the attachment.
    if engine.registry().entries().get(record.id).is_none() {
        return Ok(None);
    }
    let cause = of_host(record, "the runtime's garbage collection");
    release_attachment(engine, record, VfReturn::Awaited, &cause).await?;
    // `None` if the VF had already returned: then everything is free now.
    Ok(engine.view(record).ok())
}
