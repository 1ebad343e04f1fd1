//! The state of one VF: its host's facts, its holder, and why it is unavailable.

use crate::{ClearError, FunctionId, HostId, PoolSpec, VfFacts, VfState, VfView};

/// The index of a slot. Lookups at each reservation use it instead of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotNumber(pub(crate) usize);

#[derive(Debug)]
pub(crate) struct Slot<K> {
    pub(crate) number: SlotNumber,
    pub(crate) vf: FunctionId,
    pub(crate) facts: Option<VfFacts>,
    pub(crate) hold: Option<Hold<K>>,
    /// Why its host does not report it as free.
    pub(crate) withdrawn: Option<String>,
    /// The offer to its host.
    pub(crate) offer: Option<Offer>,
    /// Whether it has a port on this DPU.
    pub(crate) has_port: bool,
    /// Why this DPU withholds it.
    pub(crate) unavailable: Option<String>,
    pub(crate) quarantine: Option<String>,
    failures: u32,
}

/// An offer: only a request that names it gets the VF.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    /// The number that the host has to name. `None`: a new number has to be sent.
    pub(crate) number: Option<u64>,
}

#[derive(Debug)]
pub(crate) struct Hold<K> {
    pub(crate) key: K,
    pub(crate) stage: Stage,
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
            withdrawn: Some("its host does not report it as free".into()),
            offer: None,
            has_port,
            unavailable: None,
            quarantine: None,
            failures: 0,
        }
    }

    pub(crate) fn holder(&self) -> Option<&K> {
        self.hold.as_ref().map(|hold| &hold.key)
    }

    pub(crate) fn is_releasing(&self) -> bool {
        self.hold.as_ref().is_some_and(|hold| hold.stage == Stage::Releasing)
    }

    pub(crate) const fn is_free(&self) -> bool {
        self.is_idle() && self.offer.is_none()
    }

    /// Whether a request with the offer of that number gets it.
    pub(crate) fn is_offered_by(&self, number: u64) -> bool {
        self.is_requestable() && self.offer.is_some_and(|offer| offer.number == Some(number))
    }

    /// Whether a request that names its offer would get it.
    pub(crate) const fn is_requestable(&self) -> bool {
        self.is_idle() && self.offer.is_some()
    }

    /// Whether its offer has to be sent with a new number.
    pub(crate) fn needs_new_number(&self) -> bool {
        self.is_requestable() && self.offer.is_some_and(|offer| offer.number.is_none())
    }

    /// Whether it is available, offered or not.
    const fn is_idle(&self) -> bool {
        self.is_available() && self.has_port
    }

    /// Whether only the missing port keeps it from being available.
    pub(crate) const fn lacks_only_port(&self) -> bool {
        self.is_available() && !self.has_port
    }

    const fn is_available(&self) -> bool {
        let is_unavailable =
            self.withdrawn.is_some() || self.unavailable.is_some() || self.quarantine.is_some();
        self.hold.is_none() && !is_unavailable
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
        if let Some(reason) = self.unavailable.as_ref().or(self.withdrawn.as_ref()) {
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

    /// Its host declined the offer of that number.
    pub(crate) fn note_declined(&mut self, number: u64) {
        if self.offer.is_some_and(|offer| offer.number == Some(number)) {
            self.reset_offer();
        }
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

    /// Its host has it, back and clean. A VF without facts of a host stays unavailable.
    pub(crate) fn note_returned(&mut self) {
        if self.facts.is_some() {
            self.withdrawn = None;
        }
        self.reset_offer();
    }

    /// The offer has to be sent again with a new number.
    pub(crate) const fn reset_offer(&mut self) {
        if let Some(offer) = &mut self.offer {
            offer.number = None;
        }
    }

    /// Counts a failed attach. `limit` failures in a row quarantine the VF; 0: never.
    pub(crate) fn note_failure(&mut self, reason: &str, limit: u32) {
        self.failures = self.failures.saturating_add(1);
        let failures = self.failures;
        if limit > 0 && failures >= limit && self.quarantine.is_none() {
            let reason = format!("{failures} attaches in a row failed; the last error: {reason}");
            self.quarantine = Some(reason);
        }
    }

    pub(crate) fn clear(&mut self) -> Result<(), ClearError> {
        if self.quarantine.take().is_none() {
            return Err(ClearError::NotQuarantined { vf: self.vf, state: self.state() });
        }
        self.failures = 0;
        Ok(())
    }
}
