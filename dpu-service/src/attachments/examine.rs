//! The DPU's half of an examination: compares each VF's state in the kernel with the records. Changes nothing.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use offload_proto::{Failure, Finding, v1::Difference};
use tokio::time::timeout;
use vf_alloc::{FunctionId, VfState};

use super::{
    conflicts, engine::Engine, former_gateways, listing::vf_views, operators::Operators,
    ports::Survey, registry::Entry, views::VfView,
};
use crate::events::{Event, EventKind};
use drivers::{
    eswitch::Representor,
    programmer::{ProgramError, StepStatus, Surveyed, Uplink},
};
use model::Record;

/// Maximum wait for a VF that another flow has locked.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// The DPU's VFs and how they differ from the records.
#[derive(Clone, Debug)]
pub struct DpuHalf {
    /// All VFs, in the order of their numbers.
    pub vfs: Vec<VfHalf>,
    /// What differs from the records.
    pub differences: Vec<Difference>,
    /// Whether VFs have representors. Cards without a DPU have none.
    pub has_representors: bool,
}

#[derive(Clone, Debug)]
pub struct VfHalf {
    /// The VF.
    pub view: VfView,
    /// Its representor is joined to the fabric.
    pub joined: bool,
}

impl Operators<'_> {
    /// Compares the records with the DPU's kernel, at each programming step of each attachment. Changes nothing.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub(crate) async fn examine_dpu(self) -> Result<DpuHalf, Failure> {
        examine(self.0).await
    }
}

async fn examine(engine: &Engine) -> Result<DpuHalf, Failure> {
    // Read before the survey: an attachment made after it would be reported as missing.
    let held = engine.registry().entries().held();
    let survey = engine.ports.survey().await?;
    let mut differences = Vec::new();
    for record in held {
        // A VF that stays locked is in transition: skipped.
        let looked = timeout(LOCK_TIMEOUT, differences_of(engine, &record)).await;
        differences.extend(looked.unwrap_or_default());
    }
    let joined = |vf: &FunctionId| survey.get(vf).is_some_and(|port| port.membership.is_some());
    for vf in survey.keys().filter(|vf| joined(vf) || is_unclean(engine, **vf)) {
        let looked = timeout(LOCK_TIMEOUT, programmed_without_attachment(engine, *vf)).await;
        differences.extend(looked.ok().flatten());
    }
    let name = |(vf, surveyed): (&FunctionId, &Surveyed)| (*vf, surveyed.representor.name.clone());
    let views = vf_views(&engine.registry(), &survey.iter().map(name).collect());
    differences.extend(views.iter().filter_map(|view| quarantine(engine, view)));
    differences.extend(taken_representors(engine, &survey).await?);
    differences.extend(engine.ports.uplinks().await?.iter().filter_map(uplink_difference));
    differences.extend(conflicts::differences(&engine.registry()));
    differences.extend(former_gateways::differences(&engine.registry()));
    let half = |view: VfView| VfHalf { joined: joined(&view.vf), view };
    Ok(DpuHalf {
        vfs: views.into_iter().map(half).collect(),
        differences,
        has_representors: engine.programmer().has_representors(),
    })
}

/// Returns the programming steps of an attachment that are not in place.
async fn differences_of(engine: &Engine, record: &Arc<Record>) -> Vec<Difference> {
    let _vf = engine.ports.lock(record.vf).await;
    // The previous holder of the lock may have ended the attachment.
    if !engine.registry().entries().get(record.id).is_some_and(Entry::is_held) {
        return Vec::new();
    }
    match engine.ports.inspect(record).await {
        Ok(inspection) => {
            let missing = inspection.steps.iter().filter(|step| !step.in_place);
            let mut found: Vec<_> = missing.map(|step| step_difference(record, step)).collect();
            if let Some(why) = why_not_repaired(engine, record) {
                found.iter_mut().for_each(|difference| difference.explain(&why));
            }
            found
        }
        Err(error @ ProgramError::NoRepresentor(_)) => {
            let message = format!("{error}, and attachment {} holds it", record.id);
            vec![Finding::NoRepresentor.of(record.vf, message)]
        }
        Err(error) => {
            vec![Finding::RepresentorDiffers.of(record.vf, Chain(&error).to_string())]
        }
    }
}

/// Why the latest repair of an attachment's representor failed, if it did.
fn why_not_repaired(engine: &Engine, record: &Record) -> Option<String> {
    let events = engine.events.about(&record.id.to_string());
    let is_repair =
        |event: &&Event| matches!(event.kind, EventKind::Repaired | EventKind::RepairFailed);
    let own = events.into_iter().filter(|event| event.author.is_service());
    let latest = own.rev().find(|event| is_repair(&event))?;
    (latest.kind == EventKind::RepairFailed).then_some(latest.message)
}

/// Reports a representor without an attachment that is joined to the fabric or keeps other programming.
async fn programmed_without_attachment(engine: &Engine, vf: FunctionId) -> Option<Difference> {
    if engine.registry().serves(vf) {
        return None;
    }
    let _vf = engine.ports.lock(vf).await;
    if engine.registry().serves(vf) {
        return None;
    }
    let what = if engine.ports.is_joined(vf).await {
        "is joined to the fabric"
    } else if is_unclean(engine, vf) {
        "keeps some of its programming"
    } else {
        return None;
    };
    let message = format!("its representor {what}, and no attachment holds it");
    Some(Finding::RepresentorUnattached.of(vf, message))
}

/// Representors of free VFs that are ports of other programs' bridges or bonds: no attach can join them.
async fn taken_representors(engine: &Engine, survey: &Survey) -> Result<Vec<Difference>, Failure> {
    let is_idle = |(vf, found): &(&FunctionId, &Surveyed)| {
        found.membership.is_none() && !engine.registry().serves(**vf)
    };
    let idle = survey.iter().filter(is_idle).map(|(_, found)| found.representor.clone());
    let occupied = engine.ports.occupied(idle.collect()).await?;
    let finding = |(port, occupant): (Representor, String)| {
        let message = format!(
            "its representor {} is a port of {occupant}: every attach that is given this VF fails",
            port.name
        );
        Finding::RepresentorTaken.of_link(&port.name, port.vf, message)
    };
    Ok(occupied.into_iter().map(finding).collect())
}

/// Reports what keeps an uplink from carrying frames, if anything.
fn uplink_difference(uplink: &Uplink) -> Option<Difference> {
    Some(uplink.finding()?.of_link(&uplink.name, &uplink.name, uplink.problem()?))
}

fn is_unclean(engine: &Engine, vf: FunctionId) -> bool {
    engine.registry().anomalies().is_unclean(vf)
}

fn step_difference(record: &Record, step: &StepStatus) -> Difference {
    let StepStatus { name, detail, is_known, .. } = step;
    let how = if *is_known { "is not in place" } else { "cannot be inspected" };
    let message = format!("step {name} of attachment {} {how}: {detail}", record.id);
    Finding::RepresentorDiffers.of(record.vf, message)
}

fn quarantine(engine: &Engine, view: &VfView) -> Option<Difference> {
    let VfState::Quarantined { reason } = &view.state else { return None };
    let found = Finding::VfQuarantined.of(view.vf, format!("it is unavailable: {reason}"));
    // A VF that is still in a pod becomes free when the pod ends, and must not be cleared before.
    match engine.registry().anomalies().is_unaccounted(view.vf) {
        true => Some(Difference { advice: "end or recreate that pod".into(), ..found }),
        false => Some(found),
    }
}
