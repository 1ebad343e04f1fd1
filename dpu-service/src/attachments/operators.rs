//! What operators see of attachments, VFs and pools, and what they change.

use std::{collections::BTreeMap, sync::Arc};

use bootstrap::Chain;
use offload_proto::{Failure, Reason};
use serde_json::json;
use vf_alloc::{ClearError, FunctionId, PoolSpec};

use super::{
    detach::release,
    engine::Engine,
    listing::vf_views,
    registry::{Entry, VfReturn},
    unknown,
    views::{AttachmentDetail, AttachmentFilter, AttachmentTraffic, PoolView, Traffic, VfView},
};
use crate::{
    audit::{AuditAction, AuditEntry},
    author::Cause,
    events::EventKind,
    records::Changes,
    sessions::HostCommand,
};
use drivers::{
    counters::PortCounters,
    programmer::{Inspection, ProgramError},
};
use model::{AttachmentId, AttachmentState, AttachmentView, Record};

/// The operators' part of the engine: see [`Engine::operators`].
#[derive(Clone, Copy, Debug)]
pub struct Operators<'a>(pub(super) &'a Arc<Engine>, Option<&'a Cause>);

impl Engine {
    pub const fn operators(self: &Arc<Self>) -> Operators<'_> {
        Operators(self, None)
    }
}

impl<'a> Operators<'a> {
    /// Sets the author and reason of changes. Without it the author is the service.
    #[must_use]
    pub const fn by(self, cause: &'a Cause) -> Self {
        Self(self.0, Some(cause))
    }

    fn cause(self) -> Cause {
        self.1.cloned().unwrap_or_default()
    }

    /// The recorded attachments that match the filter, oldest first.
    pub fn attachments(self, filter: &AttachmentFilter) -> Vec<AttachmentView> {
        let is_wanted = |entry: &&Entry| {
            let Record { key, network, .. } = &**entry.record();
            entry.is_recorded()
                && filter.network.as_ref().is_none_or(|wanted| *wanted == network.name)
                && filter.host.as_ref().is_none_or(|wanted| *wanted == key.host)
        };
        let registry = self.0.registry();
        let wanted = registry.entries().iter().filter(is_wanted);
        let mut views: Vec<_> = wanted.map(|entry| registry.shown(entry)).collect();
        drop(registry);
        // Ids are UUIDv7 and sort by creation time.
        views.sort_by_key(|view| view.record.id);
        views
    }

    pub fn attachments_by_state(self) -> [(AttachmentState, usize); 5] {
        let registry = self.0.registry();
        let recorded = registry.entries().iter().filter(|entry| entry.is_recorded());
        let found: Vec<_> = recorded.map(|entry| registry.shown(entry).state).collect();
        AttachmentState::ALL.map(|state| (state, found.iter().filter(|it| **it == state).count()))
    }

    /// The number of attachments, including those not recorded yet.
    pub fn attachment_count(self) -> usize {
        self.0.registry().entries().len()
    }

    /// The attachment with the given id or unique prefix of at least 4 characters.
    ///
    /// # Errors
    /// [`Reason::AttachmentUnknown`], or [`Reason::InvalidRequest`] if several ids have the prefix.
    pub async fn attachment(self, id: &str) -> Result<AttachmentDetail, Failure> {
        let view = {
            let registry = self.0.registry();
            let id = registry.entries().find_id(id)?;
            registry
                .entries()
                .get(id)
                .map(|entry| registry.shown(entry))
                .ok_or_else(|| unknown(&id))?
        };
        let mut unknown = Vec::new();
        let Inspection { representor, steps } = match self.0.ports.inspect(&view.record).await {
            Ok(inspection) => inspection,
            Err(error) => {
                // A missing representor is an answer; after other errors the steps are unknown.
                let is_missing = matches!(error, ProgramError::NoRepresentor(_));
                unknown.extend((!is_missing).then(|| Chain(&error).to_string()));
                Inspection { representor: None, steps: Vec::new() }
            }
        };
        let representor = representor.map(|representor| representor.name).unwrap_or_default();
        let events = self.0.events.about(&view.record.id.to_string());
        let vf = view.record.vf;
        let traffic = match self.0.ports.traffic([vf].into()).await {
            Ok(mut traffic) => traffic.remove(&vf),
            Err(failure) => {
                unknown.push(failure.message);
                None
            }
        };
        Ok(AttachmentDetail { view, representor, steps, events, traffic, unknown })
    }

    /// The attachments that match the filter, with their ports' traffic and drops.
    pub async fn traffic(self, filter: &AttachmentFilter) -> Traffic {
        let views = self.attachments(filter);
        let vfs = views.iter().map(|view| view.record.vf).collect();
        let (traffic, unknown) = match self.0.ports.traffic(vfs).await {
            Ok(traffic) => (traffic, None),
            Err(failure) => (BTreeMap::new(), Some(failure.message)),
        };
        let of_one = |view: AttachmentView| {
            let traffic = traffic.get(&view.record.vf).copied();
            AttachmentTraffic { view, traffic }
        };
        Traffic { attachments: views.into_iter().map(of_one).collect(), unknown }
    }

    /// All attachments that have a port, oldest first, with their ports' counters.
    pub(crate) async fn counters(self) -> Result<Vec<(AttachmentView, PortCounters)>, Failure> {
        let views = self.attachments(&AttachmentFilter::default());
        let counters = self.0.ports.counters().await?;
        let counted = |view: AttachmentView| {
            let counters = *counters.get(&view.record.vf)?;
            Some((view, counters))
        };
        Ok(views.into_iter().filter_map(counted).collect())
    }

    /// Releases an attachment. With `forget`, or if its host was removed, frees everything without waiting for the VF.
    /// The VF becomes available once a host advertises it.
    ///
    /// # Errors
    /// [`Reason::AttachmentUnknown`] or [`Reason::JournalUnavailable`].
    pub async fn release(
        self,
        id: AttachmentId,
        forget: bool,
        reason: String,
    ) -> Result<AttachmentView, Failure> {
        let vf = if forget { VfReturn::Gone } else { VfReturn::Awaited };
        let cause = Cause { reason, ..self.cause() };
        let release = async move |engine: Arc<Engine>| release(&engine, id, vf, &cause).await;
        self.0.to_the_end(release).await
    }

    /// Whether the latest write to the journal succeeded and none hangs on the disk.
    pub(crate) fn journal_can_be_written(self) -> bool {
        self.0.records.problem().is_none()
    }

    pub fn journal_statistics(self) -> journal::Statistics {
        self.0.records.statistics()
    }

    /// Starts draining for `reason`: new attachments are refused. `None` ends draining.
    pub fn set_draining(self, reason: Option<String>) {
        self.0.registry().set_draining(reason.clone());
        match reason {
            Some(reason) => {
                self.0.events.record(EventKind::Draining, "dpu", reason.clone());
                self.0.broadcast(&HostCommand::Draining { reason });
            }
            None => self.0.events.record(EventKind::Draining, "dpu", "over"),
        }
    }

    /// All VFs, sorted by id.
    pub async fn vfs(self) -> Result<Vec<VfView>, Failure> {
        let representors = self.0.ports.names().await?;
        Ok(vf_views(&self.0.registry(), &representors))
    }

    /// Ends the quarantine of a VF.
    ///
    /// # Errors
    /// [`Reason::VfUnknown`], [`Reason::VfNotQuarantined`] or [`Reason::JournalUnavailable`].
    pub async fn clear_quarantine(self, vf: FunctionId) -> Result<VfView, Failure> {
        let cause = self.cause();
        let clear = async move |engine: Arc<Engine>| clear_quarantine(&engine, vf, &cause).await;
        self.0.to_the_end(clear).await?;
        let view = self.vfs().await?.into_iter().find(|view| view.vf == vf);
        view.ok_or_else(|| Failure::new(Reason::VfUnknown, format!("there is no VF {vf}")))
    }

    /// All pools of VFs, in the configuration's order.
    pub fn pools(self) -> Vec<PoolView> {
        let registry = self.0.registry();
        let view = |spec: &PoolSpec| PoolView {
            spec: spec.clone(),
            usage: registry.vfs().usage(&spec.name).unwrap_or_default(),
        };
        registry.vfs().pools().map(view).collect()
    }
}

async fn clear_quarantine(engine: &Engine, vf: FunctionId, cause: &Cause) -> Result<(), Failure> {
    let entry = AuditEntry::new(cause, AuditAction::ClearQuarantine, format!("vf/{vf}"))
        .before(&json!({ "state": "quarantined" }))
        .after(&json!({ "state": "free" }));
    let id = entry.id;
    // Recorded first: every change must have an audit entry. A refused change takes the entry back.
    engine.record_audit(entry).await?;
    let cleared = engine.registry().clear_quarantine(vf);
    cleared.map_err(|error| {
        engine.records.revert(Changes::default(), id);
        let reason = match error {
            ClearError::Unknown { .. } => Reason::VfUnknown,
            ClearError::NotQuarantined { .. } => Reason::VfNotQuarantined,
        };
        Failure::new(reason, error.to_string())
    })?;
    engine.events.record_by(&cause.author, EventKind::VfCleared, vf, "an operator cleared it");
    Ok(())
}
