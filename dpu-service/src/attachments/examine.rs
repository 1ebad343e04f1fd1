//! The DPU's half of an examination: compares each VF's state in the kernel with the records. Changes nothing.

use std::{fmt, sync::Arc, time::Duration};

use bootstrap::Chain;
use offload_proto::{Failure, FindingCode, v1::Finding};
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
    pub findings: Vec<Finding>,
    /// Whether VFs have representors. Cards without a DPU have none.
    pub has_representors: bool,
}

#[derive(Clone, Debug)]
pub struct VfHalf {
    pub view: VfView,
    /// Its representor is joined to the fabric.
    pub joined: bool,
}

impl Operators<'_> {
    /// Compares the records with the DPU's kernel, at each programming step of each attachment. Changes nothing.
    pub(crate) async fn examine_dpu(self) -> Result<DpuHalf, Failure> {
        let engine = &**self.0;
        // Read before the survey: an attachment made after it would be reported as missing.
        let held = engine.registry().entries().held();
        let survey = engine.ports.survey().await?;
        let mut findings = Vec::new();
        for record in held {
            // A VF that stays locked is in transition: skipped.
            let looked = timeout(LOCK_TIMEOUT, findings_of(engine, &record)).await;
            findings.extend(looked.unwrap_or_default());
        }
        let joined = |vf: &FunctionId| survey.get(vf).is_some_and(|port| port.membership.is_some());
        for vf in survey.keys().filter(|vf| joined(vf) || engine.registry().is_unclean(**vf)) {
            let looked = timeout(LOCK_TIMEOUT, programmed_without_attachment(engine, *vf)).await;
            findings.extend(looked.ok().flatten());
        }
        let name =
            |(vf, surveyed): (&FunctionId, &Surveyed)| (*vf, surveyed.representor.name.clone());
        let views = vf_views(&engine.registry(), &survey.iter().map(name).collect());
        findings.extend(views.iter().filter_map(|view| quarantine(engine, view)));
        findings.extend(taken_representors(engine, &survey).await?);
        findings.extend(engine.ports.uplinks().await?.iter().filter_map(uplink_finding));
        findings.extend(conflicts::findings(&engine.registry()));
        findings.extend(former_gateways::findings(&engine.registry()));
        let half = |view: VfView| VfHalf { joined: joined(&view.vf), view };
        Ok(DpuHalf {
            vfs: views.into_iter().map(half).collect(),
            findings,
            has_representors: engine.programmer().has_representors(),
        })
    }
}

/// Returns the programming steps of an attachment that are not in place.
async fn findings_of(engine: &Engine, record: &Arc<Record>) -> Vec<Finding> {
    let _vf = engine.ports.lock(record.vf).await;
    // The previous holder of the lock may have ended the attachment.
    if !engine.registry().entries().get(record.id).is_some_and(Entry::is_held) {
        return Vec::new();
    }
    match engine.ports.inspect(record).await {
        Ok(inspection) => {
            let missing = inspection.steps.iter().filter(|step| !step.in_place);
            let attachment = format!("attachment {}", record.id);
            let finding = |step| {
                FindingCode::RepresentorDiffers.of(record.vf, describe_step(step, &attachment))
            };
            let mut found: Vec<_> = missing.map(finding).collect();
            if let Some(why) = why_not_repaired(engine, record) {
                found.iter_mut().for_each(|finding| finding.explain(&why));
            }
            found
        }
        Err(error @ ProgramError::NoRepresentor(_)) => {
            let message = format!("{error}, and attachment {} holds it", record.id);
            vec![FindingCode::RepresentorMissing.of(record.vf, message)]
        }
        Err(error) => {
            vec![FindingCode::RepresentorDiffers.of(record.vf, Chain(&error).to_string())]
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
async fn programmed_without_attachment(engine: &Engine, vf: FunctionId) -> Option<Finding> {
    if engine.registry().serves(vf) {
        return None;
    }
    let _vf = engine.ports.lock(vf).await;
    if engine.registry().serves(vf) {
        return None;
    }
    let what = if engine.ports.is_joined(vf).await {
        "is joined to the fabric"
    } else if engine.registry().is_unclean(vf) {
        "keeps some of its programming"
    } else {
        return None;
    };
    let message = format!("its representor {what}, and no attachment holds it");
    Some(FindingCode::RepresentorUnattached.of(vf, message))
}

/// Representors of free VFs that are ports of other programs' bridges or bonds: no attach can join them.
async fn taken_representors(engine: &Engine, survey: &Survey) -> Result<Vec<Finding>, Failure> {
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
        FindingCode::RepresentorTaken.of_link(&port.name, port.vf, message)
    };
    Ok(occupied.into_iter().map(finding).collect())
}

/// Reports what keeps an uplink from carrying frames, if anything.
fn uplink_finding(uplink: &Uplink) -> Option<Finding> {
    Some(uplink.finding()?.of_link(&uplink.name, &uplink.name, uplink.problem()?))
}

/// One clause on a step of `whose` port that is not in place.
pub(super) fn describe_step(step: &StepStatus, whose: &dyn fmt::Display) -> String {
    let StepStatus { name, detail, is_known, .. } = step;
    let how = if *is_known { "is not in place" } else { "cannot be inspected" };
    format!("step {name} of {whose} {how}: {detail}")
}

fn quarantine(engine: &Engine, view: &VfView) -> Option<Finding> {
    let VfState::Quarantined { reason } = &view.state else { return None };
    let found = FindingCode::VfQuarantined.of(view.vf, format!("it is unavailable: {reason}"));
    // A VF that is still in a pod becomes free when the pod ends, and must not be cleared before.
    match engine.registry().anomalies().unaccounted.contains(&view.vf) {
        true => Some(Finding { advice: "end or recreate that pod".into(), ..found }),
        false => Some(found),
    }
}
