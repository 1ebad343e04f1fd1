//! One attachment in memory: its record, its stage, and what was seen of its representor.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    conflicts::{Conflicts, Users},
    stage::{Stage, VfReturn},
};
use crate::{
    host::{Asked, HostTime, SessionId},
    model::{AttachmentState, AttachmentView, Phase, Record},
};

/// One attachment. Its record's phase is its stage's, always: both change in [`Entry::release`] alone.
#[derive(Debug)]
pub(crate) struct Entry {
    record: Arc<Record>,
    stage: Stage,
    /// When its host has last asked for it, by the host's clock in the record's boot. 0: not told, or
    /// before the service started.
    asked: HostTime,
    representor: Sightings,
    conflicts: Conflicts,
}

/// What was last seen of a representor, and told. In whatever stage its attachment is.
#[derive(Debug, Default)]
struct Sightings {
    /// Since when every look at the kernel has found none. `None`: the latest found one.
    missing_since: Option<Instant>,
    /// The latest repair failed, and that was told.
    failed: Option<FailedRepair>,
}

/// A repair that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FailedRepair {
    /// The index of the representor that it failed on. `None`: none was there.
    on: Option<u32>,
}

impl Entry {
    /// What was just reserved, as asked for. The journal has it not.
    pub(super) fn reserved(record: Arc<Record>, asked: Asked) -> Self {
        let stage = Stage::reserved(asked.session);
        let (representor, conflicts) = (Sightings::default(), Conflicts::default());
        Self { record, stage, asked: asked.as_of, representor, conflicts }
    }

    /// What the journal has.
    pub(super) fn restored(record: Record) -> Self {
        let stage = Stage::restored(record.phase);
        let (asked, representor) = (HostTime::default(), Sightings::default());
        let conflicts = Conflicts::default();
        Self { record: Arc::new(record), stage, asked, representor, conflicts }
    }

    pub(crate) const fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Whether it is not being given back.
    pub(crate) fn is_held(&self) -> bool {
        self.stage.phase() == Phase::Held
    }

    /// Whether the journal has it, or had it.
    pub(crate) const fn is_recorded(&self) -> bool {
        !matches!(self.stage, Stage::Reserved(_))
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.stage.is_attached()
    }

    /// Whether its host's hello did not know it, nor had the host its VF back.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.stage.is_unclaimed()
    }

    /// Whether it is being given back, and all that is missing is the journal.
    pub(crate) fn is_returned(&self) -> bool {
        self.vf_return() != VfReturn::Awaited
    }

    /// Where its VF is, while it is being given back.
    pub(crate) const fn vf_return(&self) -> VfReturn {
        self.stage.vf_return()
    }

    /// Whether it has been begun to be given back, and less than that ago.
    pub(crate) fn is_leaving_for_less_than(&self, time: Duration) -> bool {
        self.stage.leaving_since().is_some_and(|since| since.elapsed() < time)
    }

    /// Whether the host may still be about to move the VF into the pod, in an Attach of this very
    /// session: an inventory or a list of what is valid may be older than the move.
    pub(crate) fn is_under_way(&self, session: Option<SessionId>) -> bool {
        self.stage.is_under_way(session)
    }

    /// The index of its representor, once that was programmed.
    pub(crate) const fn programmed(&self) -> Option<u32> {
        self.stage.programmed()
    }

    pub(crate) fn state(&self) -> AttachmentState {
        self.stage.state()
    }

    pub(crate) fn view(&self) -> AttachmentView {
        AttachmentView { record: Arc::clone(&self.record), state: self.state() }
    }

    /// For how long it has had no representor. `None`: the latest look found one.
    pub(crate) fn missing_for(&self) -> Option<Duration> {
        self.representor.missing_since.map(|since| since.elapsed())
    }

    /// Whether the latest repair failed, and on the representor of that index.
    pub(crate) fn repair_failed_on(&self, index: u32) -> bool {
        self.representor.failed == Some(FailedRepair { on: Some(index) })
    }

    /// Whether it has a representor, and that could not be repaired the last time.
    pub(crate) fn is_beyond_repair(&self) -> bool {
        self.representor.failed.is_some_and(|failed| failed.on.is_some())
    }

    /// Which of its addresses other machines use. `None`: it is being given back, or is not programmed yet, so that its
    /// addresses are not probed.
    pub(crate) fn conflicts(&self) -> Option<&Conflicts> {
        (self.is_held() && self.programmed().is_some()).then_some(&self.conflicts)
    }

    /// Probes of its addresses have found these users of them; `None`: the probes could not be sent. Returns what is news:
    /// each address with its users, or with none.
    pub(crate) fn note_probed(&mut self, found: Option<Users>) -> Users {
        if self.is_held() { self.conflicts.note(found) } else { Users::new() }
    }

    /// The journal has it.
    pub(crate) fn note_recorded(&mut self) {
        self.stage.record();
    }

    /// Its representor, of this index, is programmed as it should be.
    pub(crate) fn note_programmed(&mut self, index: u32) {
        self.stage.program(index);
        self.representor.failed = None;
    }

    /// Its representor could not be repaired. Tells whether it is news that repairs fail.
    pub(crate) fn note_repair_failed(&mut self, on: Option<u32>) -> bool {
        self.representor.failed.replace(FailedRepair { on }).is_none()
    }

    /// The host asks for it again.
    pub(crate) fn note_asked(&mut self, asked: Asked) {
        self.stage.ask(asked.session);
        self.asked = self.asked.max(asked.as_of);
    }

    /// Whether its host has asked for it after it has said something at the time `told`, up to `latest`:
    /// a time that its clock can't show yet says nothing.
    pub(crate) fn was_asked_after(&self, told: HostTime, latest: HostTime) -> bool {
        told != HostTime::default() && told < self.asked && self.asked <= latest
    }

    /// Notes whether the host's hello did not know it. Tells whether that it is unclaimed is news.
    pub(crate) fn set_unclaimed(&mut self, unclaimed: bool) -> bool {
        self.stage.set_unclaimed(unclaimed)
    }

    /// A look at the kernel found a representor of its VF, or none.
    pub(super) fn note_representor(&mut self, is_there: bool) {
        let since = self.representor.missing_since.unwrap_or_else(Instant::now);
        self.representor.missing_since = (!is_there).then_some(since);
    }

    /// The host said that the pod has the VF. Tells whether that is news. The pools are to know it.
    pub(super) fn note_attached(&mut self) -> bool {
        self.stage.attach()
    }

    /// The host itself gives it back: none of its calls will move the VF any more.
    pub(super) fn note_given_up(&mut self) {
        self.stage.give_up();
    }

    /// A network of it has another name.
    pub(super) fn rename_network(&mut self, from: &str, to: &str) {
        if let Some(renamed) = self.record.with_network_renamed(from, to) {
            self.record = Arc::new(renamed);
        }
    }

    /// Marks it as being released. `vf` says where its VF is. The pools are to know it.
    pub(super) fn release(&mut self, vf: VfReturn) {
        self.stage.release(vf);
        if self.record.phase == Phase::Held {
            self.record = Arc::new(Record { phase: Phase::Releasing, ..(*self.record).clone() });
        }
    }
}
