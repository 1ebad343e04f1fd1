//! What the DPU does not know yet, and will soon: whoever it refuses meanwhile may be given what he wants then.

use std::time::{Duration, Instant};

use offload_proto::Reason;

use super::doors::Doors;
use crate::protocol::Key;

/// An inventory that is wanted is told within a second, and more where the machine is busy. To wait for as long as one is
/// wanted would be for ever: each ADD that is refused wants one, this one too.
const INVENTORY_WITHIN: Duration = Duration::from_secs(3);

/// What the DPU is still to be told.
pub(super) struct Untold {
    /// Until when it is told what the host has: so long it may take a VF for one in use that is at home.
    inventory: Option<Instant>,
    /// That these attachments are given back, with all that they hold. Only those that were being given back when this
    /// was looked at first: where pods come and go all the time, there are always others.
    returning: Vec<Key>,
}

impl Untold {
    /// Before the DPU is asked.
    pub(super) fn now(doors: &Doors) -> Self {
        let reports = doors.dpu.reports();
        let is_wanted = reports.is_inventory_wanted();
        Self { inventory: is_wanted.then(told_by), returning: reports.returning_keys() }
    }

    /// VFs were given up just now.
    pub(super) fn note_given_up(&mut self) {
        self.inventory = Some(told_by());
    }

    /// Before it is asked again.
    pub(super) fn look_again(&mut self, doors: &Doors) {
        let reports = doors.dpu.reports();
        self.inventory = self.inventory.filter(|_| reports.is_inventory_wanted());
        let returning = reports.returning_keys();
        self.returning.retain(|key| returning.contains(key));
    }

    /// Whether a refusal for this reason may be no more once the DPU is told.
    pub(super) fn may_free(&self, reason: Reason) -> bool {
        let is_returning = !self.returning.is_empty();
        match reason {
            Reason::VfsExhausted => {
                is_returning || self.inventory.is_some_and(|until| Instant::now() < until)
            }
            Reason::VfNotFree
            | Reason::AddressesExhausted
            | Reason::AddressInUse
            | Reason::MacInUse
            | Reason::PortInUse => is_returning,
            _ => false,
        }
    }
}

fn told_by() -> Instant {
    Instant::now() + INVENTORY_WITHIN
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{verbs::tests::doors, vfs::record};

    #[tokio::test]
    async fn only_what_was_being_given_back_at_first_is_waited_for() {
        let (doors, _folder) = doors();
        let (first, later) = (record("a", "a").key(), record("b", "b").key());
        let returning = doors.dpu.reports().enter_returning(&first);
        let mut untold = Untold::now(&doors);
        let _later = doors.dpu.reports().enter_returning(&later);
        untold.look_again(&doors);
        assert!(untold.may_free(Reason::AddressInUse) && untold.may_free(Reason::VfsExhausted));
        assert!(!untold.may_free(Reason::NetworkUnknown));
        drop(returning);
        untold.look_again(&doors);
        assert!(!untold.may_free(Reason::AddressInUse) && !untold.may_free(Reason::VfsExhausted));
    }

    #[tokio::test]
    async fn an_inventory_that_others_want_meanwhile_is_not_waited_for() {
        let (doors, _folder) = doors();
        let mut untold = Untold::now(&doors);
        doors.dpu.reports().inventory_wanted();
        untold.look_again(&doors);
        assert!(!untold.may_free(Reason::VfsExhausted));
        untold.note_given_up();
        untold.look_again(&doors);
        assert!(untold.may_free(Reason::VfsExhausted));
        untold.inventory = Some(Instant::now());
        untold.look_again(&doors);
        assert!(!untold.may_free(Reason::VfsExhausted), "it takes too long");
    }
}
