//! What there is, for whoever compares it with something: records, representors, VFs.

use std::{collections::BTreeMap, sync::Arc};

use bootstrap::Chain;
use offload_proto::{Failure, Reason};
use vf_alloc::{VfId, VfState};

use super::{
    engine::Engine,
    registry::{Entry, Registry},
    views::VfView,
};
use crate::{
    model::{AttachmentId, Record},
    programmer::{Programmer, Surveyed},
};

/// Representors by VF, as one look at the kernel finds them.
pub(super) type Survey = BTreeMap<VfId, Surveyed>;

impl Engine {
    pub(super) async fn survey(&self) -> Result<Survey, Failure> {
        let surveyed = self.ports.on_thread(Programmer::survey).await;
        surveyed.map_err(|refused| Failure::new(Reason::Internal, Chain(&refused).to_string()))
    }

    /// The records of what is held and durable. Asked before a survey: what is attached between the
    /// two is not in it, and so not taken for missing.
    pub(super) fn held(&self) -> Vec<Arc<Record>> {
        let registry = self.registry();
        let is_held = |entry: &&Entry| entry.is_recorded() && entry.is_held();
        let held = registry.entries().iter().filter(is_held);
        held.map(|entry| Arc::clone(entry.record())).collect()
    }
}

/// All VFs that were ever offered or held, and those that only have a representor.
pub(super) fn vf_views(registry: &Registry, survey: &Survey) -> Vec<VfView> {
    let mut views: BTreeMap<_, _> =
        survey.keys().map(|vf| (*vf, unoffered_view(registry, *vf))).collect();
    views.extend(registry.vfs().vfs().map(|known| (known.vf, vf_view(registry, &known))));
    for (vf, view) in &mut views {
        if let Some(surveyed) = survey.get(vf) {
            view.representor.clone_from(&surveyed.representor.name);
        }
    }
    views.into_values().collect()
}

fn unoffered_view(registry: &Registry, vf: VfId) -> VfView {
    VfView {
        vf,
        pci_address: String::new(),
        device: None,
        host: registry.hosts().owner(vf.pf).cloned(),
        pools: registry.vfs().pools_of(vf).map(Into::into).collect(),
        state: VfState::Absent { reason: "its host has not offered it".into() },
        representor: String::new(),
        attachment: None,
    }
}

fn vf_view(registry: &Registry, known: &vf_alloc::VfView<'_, AttachmentId>) -> VfView {
    VfView {
        pci_address: pci_address(registry, known),
        device: known.facts.map(|facts| (facts.vendor, facts.device)),
        state: known.state.clone(),
        attachment: known.holder.copied(),
        ..unoffered_view(registry, known.vf)
    }
}

/// As the host offers it, or as its holder's record has it: a host offers no VF that is in use.
fn pci_address(registry: &Registry, known: &vf_alloc::VfView<'_, AttachmentId>) -> String {
    let offered = known.facts.map(|facts| facts.pci_address.clone());
    let held = || Some(registry.entries().get(*known.holder?)?.record().pci_address.clone());
    offered.or_else(held).unwrap_or_default()
}
