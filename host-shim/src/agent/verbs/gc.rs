//! GC: release what the runtime no longer knows.

use std::collections::HashSet;

use offload_proto::{Failure, Reason, v1};

use super::{
    doors::Doors,
    release::{Renewal, release},
};
use crate::{
    agent::{
        dpu::detach_request,
        vfs::{Phase, Record},
    },
    protocol::{GcRequest, Key},
};

/// Serves a GC: first this host's records, then what only the DPU has.
///
/// # Errors
/// [`Reason::DpuUnreachable`] and the like, when only the host's own part could be done.
pub(in crate::agent) async fn gc(doors: &Doors, request: GcRequest) -> Result<(), Failure> {
    let valid: HashSet<Key> = request.valid.iter().cloned().collect();
    let is_valid = |record: &Record| {
        let lead = record.group_key();
        valid.contains(&record.key()) || lead.is_some_and(|lead| valid.contains(&lead))
    };
    for record in doors.vfs.records().all() {
        // What an ADD is at work on the runtime can't know of, and host ports are not its own.
        if record.configuration == request.configuration
            && !record.key().is_of_host_port()
            && record.phase != Phase::Attaching
            && !is_valid(&record)
        {
            release_stale(doors, &record).await;
        }
    }
    let kept = kept(doors, &request, valid);
    let released = match doors.dpu.calls().collect(&request, kept).await {
        // The DPU has no such network, hence no attachments of it.
        Err(failure) if failure.reason == Reason::NetworkUnknown => return Ok(()),
        released => released?,
    };
    for attachment in released {
        finish_released(doors, attachment).await;
    }
    Ok(())
}

/// The attachments that the DPU must keep: the valid ones, those of other configurations of the same network, and new
/// ones. Calls in progress are listed before records, so that an attach in between is in at least one list.
fn kept(doors: &Doors, request: &GcRequest, valid: HashSet<Key>) -> Vec<Key> {
    let pending = doors.dpu.reports().pending_keys();
    let records = doors.vfs.records().all().into_iter();
    let others = records
        .filter(|record| {
            record.configuration != request.configuration
                || record.key().is_of_host_port()
                || record.phase != Phase::Releasing
        })
        .map(|record| record.key());
    let kept: HashSet<Key> = valid.into_iter().chain(others).chain(pending).collect();
    kept.into_iter().collect()
}

async fn release_stale(doors: &Doors, record: &Record) {
    let _key = doors.vfs.keys().lock(&record.key()).await;
    if let Some(record) = doors.vfs.records().by_id(record.id()) {
        tracing::info!(attachment = record.id(), key = %record.key(), "releasing a stale attachment");
        release(doors, record, doors.timeouts.vf_return(), Renewal::Later).await;
    }
}

/// The DPU waits for the VF of an attachment that it released.
async fn finish_released(doors: &Doors, attachment: v1::Attachment) {
    if let Some(record) = doors.vfs.records().by_id(&attachment.id) {
        return release_stale(doors, &record).await;
    }
    let detach = detach_request(attachment.key, attachment.id, false);
    if let Err(failure) = doors.dpu.calls().detach(detach).await {
        tracing::info!(%failure, "a collected attachment is released later");
    }
    doors.dpu.reports().inventory_wanted();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{
        verbs::tests::doors,
        vfs::{record, tests::keep},
    };

    #[tokio::test]
    async fn gc_keeps_newly_attached() {
        let (doors, _folder) = doors();
        let releasing = Record { phase: Phase::Releasing, ..record("b", "stale") };
        keep(doors.vfs.records(), record("a", "recorded"));
        keep(doors.vfs.records(), releasing);
        let _pending = doors.dpu.reports().enter_pending(&record("c", "under-way").key());
        let request =
            GcRequest { configuration: "blue".into(), network: "blue".into(), valid: Vec::new() };
        let mut kept = kept(&doors, &request, HashSet::new());
        kept.sort();
        let kept: Vec<_> = kept.iter().map(|key| key.container_id.as_str()).collect();
        assert_eq!(kept, ["recorded", "under-way"]);
    }
}
