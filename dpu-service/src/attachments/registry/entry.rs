//! One attachment in memory: its record, its stage, and the state of its representor.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{
    conflicts::{Conflicts, Users},
    stage::{Stage, VfReturn},
};
use crate::host::{Asked, HostTime, SessionId};
use model::{AttachmentState, AttachmentView, Phase, Record};

/// One attachment. The record's phase always matches the stage: only [`Entry::release`] changes them.
#[derive(Debug)]
pub(crate) struct Entry {
    record: Arc<Record>,
    stage: Stage,
    /// When the host last sent an Attach, by its clock in the record's boot. 0: unknown, or before the service started.
    asked: HostTime,
    representor: Sightings,
    conflicts: Conflicts,
}

/// State of the representor as last surveyed. Independent of the attachment's stage.
#[derive(Debug, Default)]
struct Sightings {
    /// When the representor was first missing. `None`: the latest survey found it.
    missing_since: Option<Instant>,
    /// The latest repair failed, and an event reports it.
    failed: Option<FailedRepair>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FailedRepair {
    /// The ifindex of the representor. `None`: it was missing.
    on: Option<u32>,
}

impl Entry {
    /// A new reservation. The journal does not have it yet.
    pub(super) fn reserved(record: Arc<Record>, asked: Asked) -> Self {
        let stage = Stage::reserved(asked.session);
        let (representor, conflicts) = (Sightings::default(), Conflicts::default());
        Self { record, stage, asked: asked.as_of, representor, conflicts }
    }

    pub(super) fn restored(record: Record) -> Self {
        let stage = Stage::restored(record.phase);
        let (asked, representor) = (HostTime::default(), Sightings::default());
        let conflicts = Conflicts::default();
        Self { record: Arc::new(record), stage, asked, representor, conflicts }
    }

    pub(crate) const fn record(&self) -> &Arc<Record> {
        &self.record
    }

    /// Whether the attachment is not being released.
    pub(crate) fn is_held(&self) -> bool {
        self.stage.phase() == Phase::Held
    }

    /// Whether the journal has or had the attachment.
    pub(crate) const fn is_recorded(&self) -> bool {
        !matches!(self.stage, Stage::Uncommitted(_))
    }

    pub(crate) fn is_attached(&self) -> bool {
        self.stage.is_attached()
    }

    /// Whether the host's hello omitted the attachment and its VF has not returned.
    pub(crate) fn is_unclaimed(&self) -> bool {
        self.stage.is_unclaimed()
    }

    /// Whether the VF has returned and only the journal's delete is missing.
    pub(crate) fn is_returned(&self) -> bool {
        self.vf_return() != VfReturn::Awaited
    }

    pub(crate) const fn vf_return(&self) -> VfReturn {
        self.stage.vf_return()
    }

    /// Whether the release began less than `time` ago.
    pub(crate) fn is_releasing_for_less_than(&self, time: Duration) -> bool {
        self.stage.releasing_since().is_some_and(|since| since.elapsed() < time)
    }

    /// Whether an Attach of this session may still move the VF into the pod: an inventory or a list of valid
    /// attachments may be older than the move.
    pub(crate) fn is_under_way(&self, session: Option<SessionId>) -> bool {
        self.stage.is_under_way(session)
    }

    /// The ifindex of the programmed representor.
    pub(crate) const fn programmed(&self) -> Option<u32> {
        self.stage.programmed()
    }

    pub(crate) fn state(&self) -> AttachmentState {
        self.stage.state()
    }

    pub(crate) fn view(&self) -> AttachmentView {
        AttachmentView { record: Arc::clone(&self.record), state: self.state() }
    }

    /// How long the representor has been missing. `None`: the latest survey found it.
    pub(crate) fn missing_for(&self) -> Option<Duration> {
        self.representor.missing_since.map(|since| since.elapsed())
    }

    /// Whether the latest repair failed on the representor with that ifindex.
    pub(crate) fn repair_failed_on(&self, index: u32) -> bool {
        self.representor.failed == Some(FailedRepair { on: Some(index) })
    }

    /// Whether the latest repair failed on an existing representor.
    pub(crate) fn is_beyond_repair(&self) -> bool {
        self.representor.failed.is_some_and(|failed| failed.on.is_some())
    }

    /// Conflicts of the attachment's addresses. `None` if they are not probed: it is being released or not programmed
    /// yet.
    pub(crate) fn conflicts(&self) -> Option<&Conflicts> {
        (self.is_held() && self.programmed().is_some()).then_some(&self.conflicts)
    }

    /// Stores the users that probes found; `None`: the probes could not be sent. Returns the changes: each address with
    /// its users, or with none.
    pub(crate) fn note_probed(&mut self, found: Option<Users>) -> Users {
        if self.is_held() { self.conflicts.note(found) } else { Users::new() }
    }

    pub(crate) fn note_recorded(&mut self) {
        self.stage.record();
    }

    pub(crate) fn note_programmed(&mut self, index: u32) {
        self.stage.program(index);
        self.representor.failed = None;
    }

    /// A repair failed. Returns whether the one before had not.
    pub(crate) fn note_repair_failed(&mut self, on: Option<u32>) -> bool {
        self.representor.failed.replace(FailedRepair { on }).is_none()
    }

    pub(crate) fn note_asked(&mut self, asked: Asked) {
        self.stage.ask(asked.session);
        // The later of both: calls of one connection run concurrently, so the earlier may come last.
        self.asked = self.asked.max(asked.as_of);
    }

    /// Whether the host sent its latest Attach after the time `reported`. An Attach after `latest`, which the host's
    /// clock cannot show yet, does not count.
    pub(crate) fn was_asked_after(&self, reported: HostTime, latest: HostTime) -> bool {
        reported != HostTime::default() && reported < self.asked && self.asked <= latest
    }

    /// Stores whether the host's hello omitted the attachment. Returns whether it is now unclaimed and was not before.
    pub(crate) fn set_unclaimed(&mut self, unclaimed: bool) -> bool {
        self.stage.set_unclaimed(unclaimed)
    }

    /// Stores whether a survey found the representor.
    pub(super) fn note_representor(&mut self, is_there: bool) {
        let since = self.representor.missing_since.unwrap_or_else(Instant::now);
        self.representor.missing_since = (!is_there).then_some(since);
    }

    /// The host reported that the pod has the VF. Returns whether that is new. Call [`super::Registry::note_attached`],
    /// which also updates the pools.
    pub(super) fn note_attached(&mut self) -> bool {
        self.stage.attach()
    }

    /// The host detaches the attachment itself: none of its calls will move the VF again.
    pub(super) fn note_given_up(&mut self) {
        self.stage.give_up();
    }

    pub(super) fn rename_network(&mut self, from: &str, to: &str) {
        if let Some(renamed) = self.record.with_network_renamed(from, to) {
            self.record = Arc::new(renamed);
        }
    }

    /// Marks the attachment as releasing. Call [`super::Registry::release`], which also updates the pools.
    pub(super) fn release(&mut self, vf: VfReturn) {
        self.stage.release(vf);
        if self.record.phase == Phase::Held {
            self.record = Arc::new(Record { phase: Phase::Releasing, ..(*self.record).clone() });
        }
    }
}
