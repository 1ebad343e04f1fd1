//! What callers see.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use bootstrap::Chain;
use offload_proto::{Failure, Reason};
use vf_alloc::{VfId, VfState};

use super::{
    engine::{Engine, now, on_blocking_thread},
    registry::{Entry, Registry},
    views::{AttachmentDetail, AttachmentFilter, NetworkView, PoolView, VfView},
};
use crate::{
    model::{AttachmentId, AttachmentState, AttachmentView, Record},
    programmer::{ProgramError, Surveyed},
    sessions::HostView,
};

/// The shortest beginning of an id that names an attachment.
const SHORTEST_ID: usize = 4;

/// Representors by VF, as one look at the kernel finds them.
pub(super) type Survey = BTreeMap<VfId, Surveyed>;

impl Engine {
    /// Why Attach can't be served, one sentence each.
    pub(super) async fn status(&self) -> Vec<String> {
        let journal = self.records.problem().await.map(|failure| failure.message);
        let fabric = self.fabric_problem();
        let draining = self.registry().draining.clone();
        let draining = draining.map(|reason| format!("the DPU is draining: {reason}"));
        [journal, fabric, draining].into_iter().flatten().collect()
    }

    pub(super) fn attachments(&self, filter: &AttachmentFilter) -> Vec<AttachmentView> {
        let registry = self.registry();
        let is_wanted = |entry: &&Entry| {
            let Record { key, network, .. } = &*entry.record;
            entry.durable
                && filter.network.as_ref().is_none_or(|wanted| *wanted == network.name)
                && filter.host.as_ref().is_none_or(|wanted| *wanted == key.host)
        };
        let mut views: Vec<_> = registry.entries().filter(is_wanted).map(Entry::view).collect();
        drop(registry);
        // Ids begin with the time of their making.
        views.sort_by_key(|view| view.record.id);
        views
    }

    pub(super) fn attachments_by_state(&self) -> [(AttachmentState, usize); 4] {
        let mut numbers = AttachmentState::ALL.map(|state| (state, 0));
        for entry in self.registry().entries().filter(|entry| entry.durable) {
            numbers[entry.state() as usize].1 += 1;
        }
        numbers
    }

    /// The attachment whose id is `id`, or begins so.
    pub(super) async fn attachment(&self, id: &str) -> Result<AttachmentDetail, Failure> {
        let id = self.registry().find_id(id)?;
        let view = self.registry().get(id).map(Entry::view);
        let view = view.ok_or_else(|| super::unknown(&id))?;
        let (programmer, settings) = (self.programmer.clone(), view.record.port_settings());
        let inspected = on_blocking_thread(move || programmer.inspect(&settings)).await;
        let (representor, steps) = match inspected {
            Ok(inspection) => {
                let name = inspection.representor.map(|representor| representor.name);
                (name.unwrap_or_default(), inspection.steps)
            }
            Err(ProgramError::NoRepresentor(_)) => (String::new(), Vec::new()),
            Err(error) => return Err(Failure::new(Reason::Internal, Chain(&error).to_string())),
        };
        let events = self.events.about(&id.to_string());
        Ok(AttachmentDetail { view, representor, steps, events })
    }

    pub(super) async fn vfs(&self) -> Result<Vec<VfView>, Failure> {
        let survey = self.survey().await?;
        let registry = self.registry();
        Ok(registry.vf_views(&survey))
    }

    pub(super) async fn vf(&self, vf: VfId) -> Result<VfView, Failure> {
        let view = self.vfs().await?.into_iter().find(|view| view.vf == vf);
        view.ok_or_else(|| Failure::new(Reason::VfUnknown, format!("there is no VF {vf}")))
    }

    pub(super) fn pools(&self) -> Vec<PoolView> {
        let registry = self.registry();
        let view = |spec: &vf_alloc::PoolSpec| PoolView {
            spec: spec.clone(),
            usage: registry.vfs.usage(&spec.name).unwrap_or_default(),
        };
        registry.vfs.pools().map(view).collect()
    }

    pub(super) fn networks(&self) -> Vec<NetworkView> {
        let registry = self.registry();
        let mut users = HashMap::<_, usize>::new();
        for entry in registry.entries() {
            *users.entry(entry.record.network.name.as_str()).or_default() += 1;
        }
        let view = |entry: &super::networks::Entry| {
            entry.view(users.get(entry.network.name.as_str()).copied().unwrap_or_default(), now())
        };
        registry.networks.iter().map(view).collect()
    }

    pub(super) fn hosts(&self) -> Vec<HostView> {
        let hosts: Vec<_> = self.registry().hosts.keys().cloned().collect();
        hosts.iter().map(|host| self.sessions.view(host)).collect()
    }

    pub(super) async fn survey(&self) -> Result<Survey, Failure> {
        let programmer = self.programmer.clone();
        let surveyed = on_blocking_thread(move || programmer.survey()).await;
        surveyed.map_err(|refused| Failure::new(Reason::Internal, Chain(&refused).to_string()))
    }

    /// The records of what is held and durable.
    pub(super) fn held(&self) -> Vec<Arc<Record>> {
        let registry = self.registry();
        let held = registry.entries().filter(|entry| entry.durable && entry.is_held());
        held.map(|entry| Arc::clone(&entry.record)).collect()
    }
}

impl Registry {
    fn find_id(&self, beginning: &str) -> Result<AttachmentId, Failure> {
        if beginning.len() < SHORTEST_ID {
            return Err(Failure::new(
                Reason::InvalidRequest,
                format!("{beginning:?} is too short: give at least {SHORTEST_ID} characters"),
            ));
        }
        let beginning = beginning.to_ascii_lowercase();
        let matches = |id: &AttachmentId| id.to_string().starts_with(&beginning);
        let mut found = self.entries().map(|entry| entry.record.id).filter(matches);
        match (found.next(), found.next()) {
            (Some(id), None) => Ok(id),
            (None, _) => Err(super::unknown(&format_args!("{beginning:?}"))),
            (Some(first), Some(second)) => Err(Failure::new(
                Reason::InvalidRequest,
                format!("several ids begin with {beginning:?}, such as {first} and {second}"),
            )),
        }
    }

    /// All VFs that were ever offered or held, and those that only have a representor.
    pub(super) fn vf_views(&self, survey: &Survey) -> Vec<VfView> {
        let mut views: BTreeMap<_, _> =
            survey.keys().map(|vf| (*vf, self.unoffered_view(*vf))).collect();
        views.extend(self.vfs.vfs().map(|view| (view.vf, self.vf_view(&view))));
        for (vf, view) in &mut views {
            if let Some(surveyed) = survey.get(vf) {
                view.representor.clone_from(&surveyed.representor.name);
            }
        }
        views.into_values().collect()
    }

    fn unoffered_view(&self, vf: VfId) -> VfView {
        VfView {
            vf,
            pci_address: String::new(),
            device: None,
            host: self.owner(vf.pf).cloned(),
            pools: self.vfs.pools_of(vf).map(Into::into).collect(),
            state: VfState::Absent { reason: "its host has not offered it".into() },
            representor: String::new(),
            attachment: None,
        }
    }

    /// As the host offers it, or as its holder's record has it: a host offers no VF that is in use.
    fn pci_address(&self, known: &vf_alloc::VfView<'_, AttachmentId>) -> String {
        let offered = known.facts.map(|facts| facts.pci_address.clone());
        let held = || Some(self.get(*known.holder?)?.record.pci_address.clone());
        offered.or_else(held).unwrap_or_default()
    }

    fn vf_view(&self, known: &vf_alloc::VfView<'_, AttachmentId>) -> VfView {
        VfView {
            pci_address: self.pci_address(known),
            device: known.facts.map(|facts| (facts.vendor, facts.device)),
            state: known.state.clone(),
            attachment: known.holder.copied(),
            ..self.unoffered_view(known.vf)
        }
    }
}
