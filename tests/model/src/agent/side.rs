//! The agents' side of the protocol, with its protections.

use crate::protection::{Protection, Protections};

/// The agents' side of the protocol.
#[derive(Clone, Copy, Debug)]
pub struct AgentSide<'a> {
    protections: Protections<'a>,
}

impl<'a> AgentSide<'a> {
    /// The side of agents with these protections.
    #[must_use]
    pub fn new(protections: Protections<'a>) -> Self {
        Self { protections }
    }

    pub(super) fn has(&self, protection: Protection) -> bool {
        self.protections.has(protection)
    }
}
