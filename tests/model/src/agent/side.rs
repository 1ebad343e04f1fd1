//! What agents do differently where a protection is taken out.

use crate::protection::{Protection, Protections};

/// The agents' side of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct AgentSide<'a> {
    protections: Protections<'a>,
    pub(super) may_guess: bool,
}

impl<'a> AgentSide<'a> {
    /// That of agents with these protections, that may guess VFs or not.
    #[must_use]
    pub fn new(protections: Protections<'a>, may_guess: bool) -> Self {
        Self { protections, may_guess }
    }

    pub(super) fn has(&self, protection: Protection) -> bool {
        self.protections.has(protection)
    }
}
