//! Makes the kernel agree with the records. Recovery and periodic repair are this same code.
//!
//! A pass reads the records, surveys the kernel, and repairs each difference, with as much concurrency as the fabric
//! supports. Attaches and detaches run concurrently and outdate what the pass has read. So each representor is repaired
//! under the lock of its VF, after asking the registry again. Only recorded attachments are repaired; until the record
//! is durable, the attach holds the VF's lock.

use std::{mem, sync::Arc, time::Duration};

use bootstrap::Chain;
use futures::{StreamExt as _, stream};
use tokio::time::Instant;
use vf_alloc::FunctionId;

use super::{
    detach::release_attachment,
    engine::{Engine, now},
    gateways::look_after_gateways,
    ports::Survey,
    reconciler_state::FabricProblem,
    registry::Entry,
};
use crate::{
    author::{Author, Cause},
    events::EventKind,
    kill_points::KillPoint,
    records::Changes,
    sessions::HostCommand,
};
use drivers::programmer::{ProgramError, Repaired};
use model::{AttachmentId, Record};

/// How closely the kernel is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// Compare what one survey of all links shows. Repairs that failed before are skipped.
    Quick,
    /// Inspect every step of every attachment.
    Thorough,
}

impl Engine {
    pub async fn reconcile(self: &Arc<Self>, depth: Depth) {
        let reconciled = self.to_the_end(async move |engine: Arc<Self>| {
            compare(&engine, depth).await;
            *engine.reconciler.ended_at.lock() = Instant::now();
            Ok(())
        });
        if let Err(failure) = reconciled.await {
            tracing::error!(error = %failure, "reconciliation was aborted");
        }
    }

    /// Time since the latest comparison ended.
    pub fn since_reconciled(&self) -> Duration {
        self.reconciler.ended_at.lock().elapsed()
    }
}

async fn compare(engine: &Engine, depth: Depth) {
    // An incomplete fabric, such as a missing uplink, does not stop repairs of running attachments.
    prepare_fabric(engine).await;
    // Read before the survey: an attachment made after it would look missing.
    let held = engine.registry().entries().held();
    let survey = match engine.ports.survey().await {
        Ok(survey) => survey,
        Err(failure) => {
            return tracing::error!(error = %failure, "cannot survey the representors; skipping this pass");
        }
    };
    if engine.programmer().has_representors() {
        let present = survey.keys().copied().collect();
        engine.registry().note_representors(&held, present);
    }
    KillPoint::ReconcileSurveyed.pass();
    repair_all(engine, held, &survey, depth).await;
    KillPoint::ReconcileRepaired.pass();
    for (vf, surveyed) in &survey {
        if surveyed.is_programmed() || engine.registry().is_unclean(*vf) {
            clear_if_unused(engine, *vf, depth).await;
        }
    }
    look_after_gateways(engine, depth == Depth::Thorough).await;
    finish_returned(engine).await;
    delete_ended_cool_downs(engine);
    KillPoint::ReconcileEnded.pass();
}

async fn prepare_fabric(engine: &Engine) {
    let prepared = engine.ports.prepare().await;
    let fabric = engine.programmer().fabric_name();
    for repair in engine.programmer().take_repairs() {
        engine.events.record(EventKind::Repaired, fabric, repair);
    }
    let problem = prepared.err().map(|refused| FabricProblem {
        what: Chain(&refused).to_string(),
        is_partial: refused.is_partial(),
    });
    let before = mem::replace(&mut *engine.reconciler.fabric_problem.lock(), problem.clone());
    // Only changes become events: every pass prepares the fabric.
    if before == problem {
        return;
    }
    match problem {
        Some(FabricProblem { what, .. }) => {
            engine.events.record(EventKind::FabricFailed, fabric, what);
        }
        None => {
            let what = before.map(|problem| problem.what).unwrap_or_default();
            let message = format!("the fabric is complete again; the problem was: {what}");
            engine.events.record(EventKind::FabricRestored, fabric, message);
        }
    }
}

async fn repair_all(engine: &Engine, held: Vec<Arc<Record>>, survey: &Survey, depth: Depth) {
    let repair_one = async |record: Arc<Record>| {
        if depth == Depth::Thorough || looks_wrong(engine, &record, survey) {
            let index = survey.get(&record.vf).map(|surveyed| surveyed.representor.index);
            repair(engine, &record, index).await;
        }
    };
    let together = engine.programmer().together();
    stream::iter(held).map(repair_one).buffer_unordered(together).collect::<()>().await;
}

/// Whether the survey shows a difference. A missing representor cannot be repaired. A repair that failed on this
/// ifindex waits for a thorough pass: each attempt makes the kernel report changes, which would start the next attempt
/// at once. A new ifindex is a new representor and is tried.
fn looks_wrong(engine: &Engine, record: &Record, survey: &Survey) -> bool {
    let Some(surveyed) = survey.get(&record.vf) else { return false };
    engine.registry().entries().get(record.id).is_some_and(|entry| {
        let index = surveyed.representor.index;
        let is_known = entry.programmed() == Some(index);
        let is_right = is_known && engine.programmer().agrees(surveyed, &record.port_settings());
        !is_right && !entry.repair_failed_on(index)
    })
}

/// Repairs an attachment's representor. `index` is its ifindex in the survey.
async fn repair(engine: &Engine, record: &Arc<Record>, index: Option<u32>) {
    let _vf = engine.ports.lock(record.vf).await;
    // The previous holder of the lock may have ended the attachment.
    let Some(before) = still_held(engine, record.id) else { return };
    match engine.ports.repair(record).await {
        Ok(repaired) => note_repaired(engine, record, before, &repaired),
        Err(error) => note_repair_failed(engine, record, index, &error),
    }
}

/// The ifindex that was programmed before, if any. `None`: the attachment is no longer held.
fn still_held(engine: &Engine, id: AttachmentId) -> Option<Option<u32>> {
    let registry = engine.registry();
    registry.entries().get(id).filter(|entry| entry.is_held()).map(Entry::programmed)
}

fn note_repaired(engine: &Engine, record: &Record, before: Option<u32>, repaired: &Repaired) {
    set_programmed(engine, record, before, repaired.index);
    if !repaired.steps.is_empty() {
        let message = format!("{}: programmed again: {}", record.vf, repaired.steps.join(", "));
        engine.events.record(EventKind::Repaired, record.id, message);
    }
}

fn set_programmed(engine: &Engine, record: &Record, before: Option<u32>, index: u32) {
    let mut registry = engine.registry();
    let Some(entry) = registry.change(record.id) else { return };
    entry.note_programmed(index);
    let view = entry.view();
    drop(registry);
    // A new ifindex means that the card made VF and representor again: the VF has fallen out of its pod.
    if before.is_some_and(|before| before != index) {
        engine.send_command(&record.key.host, HostCommand::Reattach(view));
    }
}

/// Records an event when repairs begin to fail, not for each attempt.
fn note_repair_failed(engine: &Engine, record: &Record, index: Option<u32>, error: &ProgramError) {
    // A representor that vanished has not failed: the reconciler programs it as soon as it exists again.
    let failed_on = index.filter(|_| !matches!(error, ProgramError::NoRepresentor(_)));
    let mut registry = engine.registry();
    let is_news = registry.change(record.id).is_some_and(|it| it.note_repair_failed(failed_on));
    drop(registry);
    if is_news {
        engine.events.record(EventKind::RepairFailed, record.id, Chain(error).to_string());
    }
}

/// Unprograms a representor without an attachment. A crash between kernel and journal or a failed undo leaves such
/// ports.
async fn clear_if_unused(engine: &Engine, vf: FunctionId, depth: Depth) {
    let is_left_alone =
        depth == Depth::Quick && engine.registry().anomalies().undo_failed.contains(&vf);
    if is_left_alone || engine.registry().serves(vf) {
        return;
    }
    let _vf = engine.ports.lock(vf).await;
    // Checked again under the lock: an attach may have got the VF, or a detach may have cleared it.
    if engine.registry().serves(vf) {
        return;
    }
    let is_unclean = engine.registry().is_unclean(vf);
    if !is_unclean && !engine.ports.is_programmed(vf).await {
        return;
    }
    match engine.ports.unprogram(vf).await {
        Ok(()) => {
            KillPoint::PortCleared.pass();
            engine.registry().note_unprogrammed(vf);
            engine.events.record(
                EventKind::Repaired,
                vf,
                "no attachment used its representor: removed it from the fabric",
            );
        }
        Err(leftover) => {
            let is_news = engine.registry().note_undo_failed(vf);
            if is_news {
                engine.events.record(EventKind::RepairFailed, vf, leftover.to_string());
            }
        }
    }
}

/// Frees attachments whose release failed only because the journal could not be written.
async fn finish_returned(engine: &Engine) {
    let returned: Vec<_> = {
        let registry = engine.registry();
        let returned = registry.entries().iter().filter(|entry| entry.is_returned());
        returned.map(|entry| (Arc::clone(entry.record()), entry.vf_return())).collect()
    };
    let cause = Cause::new(Author::Service, "the journal can be written again");
    for (record, vf) in returned {
        let _key = engine.keys.lock(&record.key).await;
        // The previous holder of the key's lock may have freed the attachment.
        if engine.registry().entries().get(record.id).is_none() {
            continue;
        }
        if let Err(failure) = release_attachment(engine, &record, vf, &cause).await {
            return tracing::error!(error = %failure, "cannot release returned attachments yet; retrying");
        }
    }
}

/// Deletes the journal's rows of addresses whose cool-down has ended.
fn delete_ended_cool_downs(engine: &Engine) {
    let mut registry = engine.registry();
    let over = registry.forget_cooled(now());
    if !over.is_empty() {
        // Enqueued under the same lock: otherwise the commit of the address's next cool-down could come first and be
        // deleted.
        engine.records.commit_lazily(over.iter().fold(Changes::default(), Changes::delete_cooling));
    }
}
