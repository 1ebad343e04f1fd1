//! One VF: what its host says of it, who holds it, and why it is not given out.

use crate::{ClearError, FunctionId, HostId, PoolSpec, VfFacts, VfState, VfView};

/// The place of a slot among all: what looks VFs up at each reservation goes by it, and need not search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotNumber(pub(crate) usize);

#[derive(Debug)]
pub(crate) struct Slot<K> {
    number: SlotNumber,
    vf: FunctionId,
    facts: Option<VfFacts>,
    hold: Option<Hold<K>>,
    /// Why its host does not offer it.
    withdrawn: Option<String>,
    /// That it is promised to its host.
    promise: Option<Promise>,
    /// Whether this DPU has its port.
    has_port: bool,
    /// Why this DPU does not give it out yet.
    withheld: Option<String>,
    quarantine: Option<String>,
    failures: u32,
}

/// That a VF is given to nobody but who names the promise.
#[derive(Clone, Copy, Debug)]
struct Promise {
    /// What its host has to name. `None`: the host is to be told a new one.
    number: Option<u64>,
}

#[derive(Debug)]
struct Hold<K> {
    key: K,
    stage: Stage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Reserved,
    Attached,
    Releasing,
}

impl<K> Slot<K> {
    pub(crate) fn new(number: SlotNumber, vf: FunctionId, has_port: bool) -> Self {
        Self {
            number,
            vf,
            facts: None,
            hold: None,
            withdrawn: Some("its host has not offered it".into()),
            promise: None,
            has_port,
            withheld: None,
            quarantine: None,
            failures: 0,
        }
    }

    pub(crate) const fn number(&self) -> SlotNumber {
        self.number
    }

    pub(crate) const fn vf(&self) -> FunctionId {
        self.vf
    }

    pub(crate) const fn facts(&self) -> Option<&VfFacts> {
        self.facts.as_ref()
    }

    pub(crate) fn holder(&self) -> Option<&K> {
        self.hold.as_ref().map(|hold| &hold.key)
    }

    pub(crate) fn is_releasing(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.stage == Stage::Releasing)
    }

    pub(crate) const fn is_free(&self) -> bool {
        self.is_idle() && self.promise.is_none()
    }

    /// Whether it is given to who names the promise of that number.
    pub(crate) fn is_promised_by(&self, number: u64) -> bool {
        self.can_be_named() && self.promise.is_some_and(|promise| promise.number == Some(number))
    }

    pub(crate) const fn is_promised(&self) -> bool {
        self.promise.is_some()
    }

    /// Whether nothing is in the way of giving it to who names its promise.
    pub(crate) const fn can_be_named(&self) -> bool {
        self.is_idle() && self.promise.is_some()
    }

    /// Whether its host is to be told that it can be named.
    pub(crate) fn is_promise_untold(&self) -> bool {
        self.can_be_named() && self.promise.is_some_and(|promise| promise.number.is_none())
    }

    /// Whether it can be given out, be it promised or not.
    const fn is_idle(&self) -> bool {
        self.is_unbarred() && self.has_port
    }

    /// Whether nothing but the missing port is in the way of giving it out.
    pub(crate) const fn lacks_only_port(&self) -> bool {
        self.is_unbarred() && !self.has_port
    }

    const fn is_unbarred(&self) -> bool {
        let is_barred =
            self.withdrawn.is_some() || self.withheld.is_some() || self.quarantine.is_some();
        self.hold.is_none() && !is_barred
    }

    pub(crate) fn is_in(&self, pool: &PoolSpec) -> bool {
        pool.selects(self.vf, self.facts.as_ref())
    }

    pub(crate) fn is_of(&self, host: HostId) -> bool {
        self.facts.as_ref().is_some_and(|facts| facts.host == host)
    }

    pub(crate) fn state(&self) -> VfState {
        if let Some(hold) = &self.hold {
            return match hold.stage {
                Stage::Reserved => VfState::Reserved,
                Stage::Attached => VfState::Attached,
                Stage::Releasing => VfState::Releasing,
            };
        }
        if let Some(reason) = &self.quarantine {
            return VfState::Quarantined { reason: reason.clone() };
        }
        if let Some(reason) = self.withheld.as_ref().or(self.withdrawn.as_ref()) {
            return VfState::Absent { reason: reason.clone() };
        }
        if !self.has_port {
            return VfState::Absent { reason: "it has no representor on this DPU".into() };
        }
        VfState::Free
    }

    pub(crate) fn view(&self) -> VfView<'_, K> {
        VfView {
            vf: self.vf,
            facts: self.facts.as_ref(),
            state: self.state(),
            holder: self.holder(),
            failures: self.failures,
            quarantine: self.quarantine.as_deref(),
            has_port: self.has_port,
        }
    }

    pub(crate) fn learn(&mut self, facts: VfFacts) {
        self.facts = Some(facts);
    }

    pub(crate) fn offer(&mut self) {
        self.withdrawn = None;
    }

    pub(crate) fn withdraw(&mut self, why: &str) {
        self.withdrawn = Some(why.into());
    }

    pub(crate) const fn promise(&mut self, number: u64) {
        self.promise = Some(Promise { number: Some(number) });
    }

    /// Its host, which has taken it by that number, does not use it.
    pub(crate) fn note_untaken(&mut self, number: u64) {
        if self.promise.is_some_and(|promise| promise.number == Some(number)) {
            self.renew_promise();
        }
    }

    pub(crate) const fn end_promise(&mut self) {
        self.promise = None;
    }

    pub(crate) const fn set_port(&mut self, has_port: bool) {
        self.has_port = has_port;
    }

    pub(crate) fn withhold(&mut self, why: &str) {
        self.withheld = Some(why.into());
    }

    pub(crate) fn stop_withholding(&mut self) {
        self.withheld = None;
    }

    pub(crate) fn hold(&mut self, key: K, stage: Stage) {
        self.hold = Some(Hold { key, stage });
    }

    pub(crate) fn let_go(&mut self) {
        self.hold = None;
    }

    pub(crate) fn note_attached(&mut self) {
        if let Some(hold) = &mut self.hold
            && hold.stage != Stage::Releasing
        {
            hold.stage = Stage::Attached;
            self.failures = 0;
        }
    }

    pub(crate) const fn note_releasing(&mut self) {
        if let Some(hold) = &mut self.hold {
            hold.stage = Stage::Releasing;
        }
    }

    /// Its host has it, back and clean, from whoever has had it. One that no host has told of is still nobody's to
    /// give.
    pub(crate) fn note_returned(&mut self) {
        if self.facts.is_some() {
            self.withdrawn = None;
        }
        self.renew_promise();
    }

    /// Its host is to name another number.
    pub(crate) const fn renew_promise(&mut self) {
        if let Some(promise) = &mut self.promise {
            promise.number = None;
        }
    }

    /// An attach failed for `reason`. After `limit` of them in a row it is quarantined; 0: never.
    pub(crate) fn note_failure(&mut self, reason: &str, limit: u32) {
        self.failures = self.failures.saturating_add(1);
        let failures = self.failures;
        if limit > 0 && failures >= limit && self.quarantine.is_none() {
            let reason = format!("{failures} attaches in a row failed, lastly: {reason}");
            self.quarantine = Some(reason);
        }
    }

    pub(crate) fn quarantine(&mut self, reason: &str) {
        self.quarantine = Some(reason.into());
    }

    pub(crate) fn clear(&mut self) -> Result<(), ClearError> {
        if self.quarantine.take().is_none() {
            return Err(ClearError::NotQuarantined { vf: self.vf, state: self.state() });
        }
        self.failures = 0;
        Ok(())
    }
}
