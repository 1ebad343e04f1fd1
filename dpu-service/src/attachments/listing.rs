//! VFs and attachments as operators see them: merged from hosts, records and the DPU's kernel.

use std::collections::BTreeMap;

use vf_alloc::{Device, FunctionId, VfState};

use super::{
    ports::PortNames,
    registry::{Entry, Registry},
    views::VfView,
};
use model::AttachmentId;

/// All VFs that were ever advertised or held, and those that only have a representor.
pub(super) fn vf_views(registry: &Registry, representors: &PortNames) -> Vec<VfView> {
    let mut views: BTreeMap<_, _> =
        representors.keys().map(|vf| (*vf, unoffered_view(registry, *vf))).collect();
    views.extend(registry.vfs().vfs().map(|known| (known.vf, vf_view(registry, &known))));
    for (vf, view) in &mut views {
        if let Some(name) = representors.get(vf) {
            view.representor.clone_from(name);
        }
    }
    views.into_values().collect()
}

/// The number of attachments and the first two by VF. `None`: there is none.
pub(super) fn number_and_first<'a>(
    entries: impl Iterator<Item = &'a Entry>,
) -> Option<(usize, String)> {
    let mut records: Vec<_> = entries.map(Entry::record).collect();
    records.sort_by_key(|record| record.vf);
    let shown = records.iter().take(2);
    let shown: Vec<_> = shown.map(|record| format!("{} ({})", record.id, record.vf)).collect();
    (!records.is_empty()).then(|| (records.len(), shown.join(" and ")))
}

fn unoffered_view(registry: &Registry, vf: FunctionId) -> VfView {
    VfView {
        vf,
        device: Device::default(),
        device_ids: None,
        host: registry.hosts().owner(vf.pf).cloned(),
        pools: registry.vfs().pools_of(vf).map(Into::into).collect(),
        state: VfState::Absent { reason: "its host does not report it as free".into() },
        representor: String::new(),
        attachment: None,
    }
}

fn vf_view(registry: &Registry, known: &vf_alloc::VfView<'_, AttachmentId>) -> VfView {
    VfView {
        device: device(registry, known),
        device_ids: known.facts.map(|facts| (facts.vendor_id, facts.device_id)),
        state: known.state.clone(),
        attachment: known.holder.copied(),
        ..unoffered_view(registry, known.vf)
    }
}

/// The VF's device as the host advertises it, else as its holder's record has it: hosts do not advertise VFs in use.
fn device(registry: &Registry, known: &vf_alloc::VfView<'_, AttachmentId>) -> Device {
    let offered = known.facts.map(|facts| facts.device.clone());
    let held = || Some(registry.entries().get(*known.holder?)?.record().device.clone());
    offered.or_else(held).unwrap_or_default()
}
