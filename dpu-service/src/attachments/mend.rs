//! Making the kernel agree with the records: recovery and upkeep are the same code.

use std::{collections::HashSet, sync::Arc};

use bootstrap::Chain;
use vf_alloc::VfId;

use super::{
    engine::{Engine, now, on_blocking_thread},
    listing::Survey,
    registry::Entry,
};
use crate::{
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
    /// Compares the records with what the kernel has and makes the kernel agree.
    pub(super) async fn reconcile(&self, depth: Depth) {
        self.compare(depth).await;
        self.note_reconciled();
    }

    async fn compare(&self, depth: Depth) {
        // Whatever the fabric lacks, such as an uplink, what runs is looked after.
        self.prepare_fabric().await;
        // Before the survey, so that what is attached meanwhile is not taken for missing.
        let held = self.held();
        let survey = match self.survey().await {
            Ok(survey) => survey,
            Err(failure) => return tracing::error!(%failure, "the kernel can't be asked"),
        };
        if self.programmer.has_representors() {
            let present = survey.keys().copied().collect();
            self.registry().note_representors(&held, present);
        }
        Milestone::ReconcileSurveyed.pass();
        for record in held {
            if depth == Depth::Thorough || self.looks_wrong(&record, &survey) {
                let index = survey.get(&record.vf).map(|surveyed| surveyed.representor.index);
                self.mend(&record, index).await;
            }
        }
        Milestone::ReconcileMended.pass();
        for (vf, surveyed) in &survey {
            if surveyed.membership.is_some() || self.is_unclean(*vf) {
                self.clear_orphan(*vf, depth).await;
            }
        }
        self.finish_returned().await;
        self.forget_rested();
        Milestone::ReconcileEnded.pass();
    }

    async fn prepare_fabric(&self) {
        let programmer = self.programmer.clone();
        let prepared = on_blocking_thread(move || programmer.prepare()).await;
        let problem = prepared.err().map(|refused| Chain(&refused).to_string());
        if let Some(problem) = &problem {
            tracing::error!(problem, "the fabric can't be prepared");
        }
        self.set_fabric_problem(problem);
    }

    /// As far as one look tells. A representor that is missing is none to mend, and one that could
    /// not be mended the last time waits for a thorough look: mending it would make the kernel report
    /// changes without end. One that has come since is another one.
    fn looks_wrong(&self, record: &Record, survey: &Survey) -> bool {
        let Some(surveyed) = survey.get(&record.vf) else { return false };
        let registry = self.registry();
        registry.get(record.id).is_some_and(|entry| {
            let index = surveyed.representor.index;
            let is_known = entry.programmed == Some(index);
            let is_right = is_known && surveyed.agrees_with(&record.port_settings());
            !is_right && entry.repair_failed != Some(Some(index))
        })
    }

    /// Programs an attachment's representor, which had this index when it was looked at, again, if it
    /// is not as it should be.
    async fn mend(&self, record: &Arc<Record>, index: Option<u32>) {
        let _vf = self.vfs.lock(&record.vf).await;
        // Whoever had the lock may have ended the attachment.
        let Some(before) = self.still_held(record.id) else { return };
        let (programmer, settings) = (self.programmer.clone(), record.port_settings());
        match on_blocking_thread(move || programmer.repair(&settings)).await {
            Ok(repaired) => self.note_repaired(record, before, &repaired),
            Err(error) => self.note_repair_failed(record, index, &error),
        }
    }

    /// The index of the representor that was programmed before, if any was. `None`: the attachment
    /// is not held any more.
    fn still_held(&self, id: AttachmentId) -> Option<Option<u32>> {
        self.registry().get(id).filter(|entry| entry.is_held()).map(|entry| entry.programmed)
    }

    fn note_repaired(&self, record: &Record, before: Option<u32>, repaired: &Repaired) {
        self.set_programmed(record, before, repaired.index);
        if !repaired.steps.is_empty() {
            let message = format!("{}: programmed again: {}", record.vf, repaired.steps.join(", "));
            self.events.record(EventKind::Repaired, record.id, message);
        }
    }

    fn set_programmed(&self, record: &Record, before: Option<u32>, index: u32) {
        let mut registry = self.registry();
        let Some(entry) = registry.get_mut(record.id) else { return };
        entry.programmed = Some(index);
        entry.repair_failed = None;
        let view = entry.view();
        drop(registry);
        // A representor that was made anew belongs to a VF that was: it has left its pod.
        if before.is_some_and(|before| before != index) {
            self.sessions.send(&record.key.host, HostCommand::Reattach(view));
        }
    }

    /// Tells once for each time that it begins to fail.
    fn note_repair_failed(&self, record: &Record, index: Option<u32>, error: &ProgramError) {
        let failed_on = index.filter(|_| !matches!(error, ProgramError::NoRepresentor(_)));
        let mut registry = self.registry();
        let Some(entry) = registry.get_mut(record.id) else { return };
        let before = entry.repair_failed.replace(failed_on);
        drop(registry);
        if before.is_none() {
            let message = Chain(error).to_string();
            self.events.record(EventKind::RepairFailed, record.id, message);
        }
    }

    /// Unprograms a representor that serves nobody.
    async fn clear_orphan(&self, vf: VfId, depth: Depth) {
        let is_left_alone = depth == Depth::Quick && self.registry().stuck.contains(&vf);
        if is_left_alone || self.serves_somebody(vf) {
            return;
        }
        let _vf = self.vfs.lock(&vf).await;
        // An attachment may have got the VF meanwhile, or lost it in good order.
        if self.serves_somebody(vf) || !(self.is_unclean(vf) || self.is_joined(vf).await) {
            return;
        }
        let programmer = self.programmer.clone();
        match on_blocking_thread(move || programmer.unprogram(vf)).await {
            Ok(()) => {
                Milestone::OrphanCleared.pass();
                let mut registry = self.registry();
                registry.unclean.remove(&vf);
                registry.stuck.remove(&vf);
                drop(registry);
                self.events.record(EventKind::Repaired, vf, "served nobody: unprogrammed");
            }
            Err(leftover) => {
                let is_news = self.registry().stuck.insert(vf);
                if is_news {
                    self.events.record(EventKind::RepairFailed, vf, leftover.to_string());
                }
            }
        }
    }

    fn is_unclean(&self, vf: VfId) -> bool {
        self.registry().unclean.contains(&vf)
    }

    pub(super) fn serves_somebody(&self, vf: VfId) -> bool {
        self.registry().by_vf(vf).is_some_and(Entry::is_held)
    }

    pub(super) async fn is_joined(&self, vf: VfId) -> bool {
        let programmer = self.programmer.clone();
        on_blocking_thread(move || programmer.is_joined(vf)).await.unwrap_or(true)
    }

    /// Frees what only the journal's failure has kept from being freed.
    async fn finish_returned(&self) {
        let returned: Vec<_> = {
            let registry = self.registry();
            let returned = registry.entries().filter(|entry| entry.returned);
            returned.map(|entry| Arc::clone(&entry.record)).collect()
        };
        for record in returned {
            let _key = self.keys.lock(&record.key).await;
            if self.registry().get(record.id).is_none() {
                continue;
            }
            if let Err(failure) = self.give_back(&record, true, "its VF is back").await {
                return tracing::error!(%failure, "attachments can't be released yet");
            }
        }
    }

    /// Deletes the journal's rows of addresses that have rested. Those that are held again stay: they
    /// may be about to be freed, by a commit that writes the same rows anew.
    fn forget_rested(&self) {
        let mut registry = self.registry();
        let now = now();
        if registry.cooling.iter().all(|row| row.until > now) {
            return;
        }
        let held = registry.held_addresses();
        let (kept, rested): (Vec<_>, Vec<_>) = std::mem::take(&mut registry.cooling)
            .into_iter()
            .partition(|row| row.until > now || held.contains(&(row.network.clone(), row.address)));
        let again: HashSet<_> = kept.iter().map(|row| (&row.network, row.address)).collect();
        let over = rested.iter().filter(|row| !again.contains(&(&row.network, row.address)));
        if !rested.is_empty() {
            // In the same hold, so that no commit of an address's next rest comes before.
            self.records.commit_lazily(over.fold(Changes::default(), Changes::delete_cooling));
        }
        registry.cooling = kept;
    }
}
