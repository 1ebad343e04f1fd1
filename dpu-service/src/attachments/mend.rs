//! Making the kernel agree with the records: recovery and upkeep are the same code.
//!
//! A pass looks at the records, then at the kernel, and goes through what differs, as many
//! representors at a time as the fabric does together. Attaches and detaches go on meanwhile, so that
//! what was looked at may be outdated: each representor is worked at under the lock of its VF, once the
//! registry was asked again. A record is looked for only once the journal has it; until then the attach
//! that makes it holds the VF's lock.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use futures::{StreamExt as _, stream};
use vf_alloc::FunctionId;

use super::{
    detach::give_back,
    engine::{Engine, now},
    gateways::look_after_gateways,
    ports::Survey,
    reconciler_state::FabricProblem,
    registry::Entry,
};
use crate::{
    author::{Author, Cause},
    events::EventKind,
    milestones::Milestone,
    model::{AttachmentId, Record},
    programmer::{ProgramError, Repaired},
    records::Changes,
    sessions::HostCommand,
};

/// How closely the kernel is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// What one look at all links tells. What could not be mended the last time is left alone.
    Quick,
    /// Every step of every attachment.
    Thorough,
}

impl Engine {
    /// Makes the kernel agree with the records, once.
    pub async fn reconcile(self: &Arc<Self>, depth: Depth) {
        let reconciled = self.to_the_end(async move |engine: Arc<Self>| {
            compare(&engine, depth).await;
            engine.reconciler.note_end();
            Ok(())
        });
        if let Err(failure) = reconciled.await {
            tracing::error!(%failure, "the reconciler broke off");
        }
    }

    /// How long ago the latest comparison ended.
    #[must_use]
    pub fn since_reconciled(&self) -> Duration {
        self.reconciler.since_end()
    }
}

async fn compare(engine: &Engine, depth: Depth) {
    // Whatever the fabric lacks, such as an uplink, what runs is looked after.
    prepare_fabric(engine).await;
    // Before the survey, so that what is attached meanwhile is not taken for missing.
    let held = engine.registry().entries().held();
    let survey = match engine.ports.survey().await {
        Ok(survey) => survey,
        Err(failure) => return tracing::error!(%failure, "the kernel can't be asked"),
    };
    if engine.programmer().has_representors() {
        let present = survey.keys().copied().collect();
        engine.registry().note_representors(&held, present);
    }
    Milestone::ReconcileSurveyed.pass();
    mend_all(engine, held, &survey, depth).await;
    Milestone::ReconcileMended.pass();
    for (vf, surveyed) in &survey {
        if surveyed.is_programmed() || is_unclean(engine, *vf) {
            clear_if_unused(engine, *vf, depth).await;
        }
    }
    look_after_gateways(engine, depth == Depth::Thorough).await;
    finish_returned(engine).await;
    forget_rested(engine);
    Milestone::ReconcileEnded.pass();
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
    let before = engine.reconciler.set_fabric_problem(problem.clone());
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

/// As many at a time as the fabric does together.
async fn mend_all(engine: &Engine, held: Vec<Arc<Record>>, survey: &Survey, depth: Depth) {
    let mend_one = async |record: Arc<Record>| {
        if depth == Depth::Thorough || looks_wrong(engine, &record, survey) {
            let index = survey.get(&record.vf).map(|surveyed| surveyed.representor.index);
            mend(engine, &record, index).await;
        }
    };
    let together = engine.programmer().together();
    stream::iter(held).map(mend_one).buffer_unordered(together).collect::<()>().await;
}

/// As far as one look tells. A representor that is missing is none to mend, and one that could
/// not be mended the last time waits for a thorough look: mending it would make the kernel report
/// changes without end. One that has come since is another one.
fn looks_wrong(engine: &Engine, record: &Record, survey: &Survey) -> bool {
    let Some(surveyed) = survey.get(&record.vf) else { return false };
    engine.registry().entries().get(record.id).is_some_and(|entry| {
        let index = surveyed.representor.index;
        let is_known = entry.programmed() == Some(index);
        let is_right = is_known && engine.programmer().agrees(surveyed, &record.port_settings());
        !is_right && !entry.repair_failed_on(index)
    })
}

/// Programs an attachment's representor, which had this index when it was looked at, again, if it
/// is not as it should be.
async fn mend(engine: &Engine, record: &Arc<Record>, index: Option<u32>) {
    let _vf = engine.ports.lock(record.vf).await;
    // Whoever had the lock may have ended the attachment.
    let Some(before) = still_held(engine, record.id) else { return };
    match engine.ports.repair(record).await {
        Ok(repaired) => note_repaired(engine, record, before, &repaired),
        Err(error) => note_repair_failed(engine, record, index, &error),
    }
}

/// The index of the representor that was programmed before, if any was. `None`: the attachment
/// is not held any more.
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
    // A representor that was made anew belongs to a VF that was: it has left its pod.
    if before.is_some_and(|before| before != index) {
        engine.tell(&record.key.host, HostCommand::Reattach(view));
    }
}

/// Tells once for each time that it begins to fail.
fn note_repair_failed(engine: &Engine, record: &Record, index: Option<u32>, error: &ProgramError) {
    // One that was gone by then has not failed: it is tried as soon as there is one again.
    let failed_on = index.filter(|_| !matches!(error, ProgramError::NoRepresentor(_)));
    let mut registry = engine.registry();
    let is_news = registry.change(record.id).is_some_and(|it| it.note_repair_failed(failed_on));
    drop(registry);
    if is_news {
        engine.events.record(EventKind::RepairFailed, record.id, Chain(error).to_string());
    }
}

/// Unprograms a representor that serves nobody: a crash between kernel and journal may leave one, and
/// so may an undo that failed.
async fn clear_if_unused(engine: &Engine, vf: FunctionId, depth: Depth) {
    let is_left_alone = depth == Depth::Quick && engine.registry().doubts().is_stuck(vf);
    if is_left_alone || serves(engine, vf) {
        return;
    }
    let _vf = engine.ports.lock(vf).await;
    // An attachment may have got the VF meanwhile, or lost it in good order.
    if serves(engine, vf) || !(is_unclean(engine, vf) || engine.ports.is_programmed(vf).await) {
        return;
    }
    match engine.ports.unprogram(vf).await {
        Ok(()) => {
            Milestone::PortCleared.pass();
            engine.registry().note_unprogrammed(vf);
            engine.events.record(
                EventKind::Repaired,
                vf,
                "no attachment used its representor: removed it from the fabric",
            );
        }
        Err(leftover) => {
            let is_news = engine.registry().doubts().note_stuck(vf);
            if is_news {
                engine.events.record(EventKind::RepairFailed, vf, leftover.to_string());
            }
        }
    }
}

fn serves(engine: &Engine, vf: FunctionId) -> bool {
    engine.registry().serves(vf)
}

fn is_unclean(engine: &Engine, vf: FunctionId) -> bool {
    engine.registry().doubts().is_unclean(vf)
}

/// Frees what only the journal's failure has kept from being freed.
async fn finish_returned(engine: &Engine) {
    let returned: Vec<_> = {
        let registry = engine.registry();
        let returned = registry.entries().iter().filter(|entry| entry.is_returned());
        returned.map(|entry| (Arc::clone(entry.record()), entry.vf_return())).collect()
    };
    let cause = Cause::new(Author::Service, "the journal can be written again");
    for (record, vf) in returned {
        let _key = engine.keys.lock(&record.key).await;
        // Whoever had the key may have freed it.
        if engine.registry().entries().get(record.id).is_none() {
            continue;
        }
        if let Err(failure) = give_back(engine, &record, vf, &cause).await {
            return tracing::error!(%failure, "attachments can't be released yet");
        }
    }
}

/// Deletes the journal's rows of addresses that have rested.
fn forget_rested(engine: &Engine) {
    let mut registry = engine.registry();
    let over = registry.forget_rested(now());
    if !over.is_empty() {
        // In the same hold, so that no commit of an address's next rest comes before.
        engine.records.commit_lazily(over.iter().fold(Changes::default(), Changes::delete_cooling));
    }
}
