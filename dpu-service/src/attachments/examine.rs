//! The DPU's half of an examination: what its kernel has of each VF, and how that differs from the
//! records. Nothing is changed.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use offload_proto::{Failure, Finding, v1::Difference};
use tokio::time::timeout;
use vf_alloc::{VfId, VfState};

use super::{
    engine::{Engine, on_blocking_thread},
    registry::Entry,
    views::VfView,
};
use crate::{
    model::{HostName, Record},
    programmer::{ProgramError, StepStatus},
};

/// How long a VF is waited for that somebody is working at.
const PATIENCE: Duration = Duration::from_secs(1);

/// What the DPU has.
#[derive(Clone, Debug)]
pub struct DpuHalf {
    /// All VFs, in the order of their numbers.
    pub vfs: Vec<VfHalf>,
    /// What differs from the records.
    pub differences: Vec<Difference>,
    /// VFs have representors: cards without a DPU have none.
    pub has_representors: bool,
}

/// A VF as the DPU has it.
#[derive(Clone, Debug)]
pub struct VfHalf {
    /// The VF.
    pub view: VfView,
    /// Its representor is joined to the fabric.
    pub joined: bool,
}

impl Engine {
    /// Looks at all VFs and at each programming step of each attachment.
    pub(super) async fn examine(&self) -> Result<DpuHalf, Failure> {
        // Before the survey, so that what is attached meanwhile is not taken for missing.
        let held = self.held();
        let survey = self.survey().await?;
        let mut differences = Vec::new();
        for record in held {
            // What somebody is working at is neither one way nor the other.
            let looked = timeout(PATIENCE, self.differences_of(&record)).await;
            differences.extend(looked.unwrap_or_default());
        }
        let joined = |vf: &VfId| survey.get(vf).is_some_and(|port| port.membership.is_some());
        for vf in survey.keys().filter(|vf| joined(vf)) {
            differences.extend(timeout(PATIENCE, self.orphan(*vf)).await.ok().flatten());
        }
        let views = {
            let registry = self.registry();
            registry.vf_views(&survey)
        };
        differences.extend(views.iter().filter_map(quarantine));
        let half = |view: VfView| VfHalf { joined: joined(&view.vf), view };
        Ok(DpuHalf {
            vfs: views.into_iter().map(half).collect(),
            differences,
            has_representors: self.programmer.has_representors(),
        })
    }

    /// The PCI addresses of the VFs that the host's attachments hold.
    pub(super) fn pci_addresses_held_of(&self, host: &HostName) -> Vec<String> {
        let registry = self.registry();
        let addresses = registry.of_host(host).map(|entry| entry.record.pci_address.clone());
        addresses.filter(|address| !address.is_empty()).collect()
    }

    /// What of an attachment's programming is not in place.
    async fn differences_of(&self, record: &Arc<Record>) -> Vec<Difference> {
        let _vf = self.vfs.lock(&record.vf).await;
        if !self.registry().get(record.id).is_some_and(Entry::is_held) {
            return Vec::new();
        }
        let (programmer, settings) = (self.programmer.clone(), record.port_settings());
        match on_blocking_thread(move || programmer.inspect(&settings)).await {
            Ok(inspection) => {
                let missing = inspection.steps.iter().filter(|step| !step.in_place);
                missing.map(|step| step_difference(record, step)).collect()
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

    /// A representor that is joined for nobody.
    async fn orphan(&self, vf: VfId) -> Option<Difference> {
        if self.serves_somebody(vf) {
            return None;
        }
        let _vf = self.vfs.lock(&vf).await;
        let is_orphan = !self.serves_somebody(vf) && self.is_joined(vf).await;
        let message = "its representor is joined to the fabric, and no attachment holds it";
        is_orphan.then(|| Finding::RepresentorServesNobody.of(vf, message))
    }
}

fn step_difference(record: &Record, step: &StepStatus) -> Difference {
    let message =
        format!("step {} of attachment {} is not in place: {}", step.name, record.id, step.detail);
    Finding::RepresentorDiffers.of(record.vf, message)
}

fn quarantine(view: &VfView) -> Option<Difference> {
    match &view.state {
        VfState::Quarantined { reason } => {
            Some(Finding::VfQuarantined.of(view.vf, format!("it is not handed out: {reason}")))
        }
        _ => None,
    }
}
