//! VFs offered to a host for one session. Only an attach that names the offer gets such a VF, so the host's agent can
//! move it before the DPU has answered.
//!
//! Offers are made under the same lock of the registry that checks the session. A hello opens its session first and
//! then ends all earlier offers, before its inventory is read.

use vf_alloc::VfOffer;

use super::{hosts::Hosts, views::OfferedVf};
use crate::host::SessionId;
use model::HostName;

/// VFs offered of each pool that the agent allocates from: more than a host's attaches under way while the next offers
/// reach it.
const OFFERED: usize = 32;

impl Hosts<'_> {
    /// New offers for the session. Offers already sent in it are not repeated.
    pub fn offer_vfs(self, host: &HostName, session: SessionId) -> Vec<OfferedVf> {
        let mut registry = self.0.registry();
        match self.0.sessions.is_current(host, session) {
            true => registry.offer_vfs(host, OFFERED),
            false => Vec::new(),
        }
    }

    /// The host declines VFs that it took and does not use.
    pub fn decline(self, host: &HostName, offers: &[VfOffer]) {
        let mut registry = self.0.registry();
        offers.iter().for_each(|offer| registry.note_declined(host, offer));
        drop(registry);
        self.0.sessions.note_vfs_changed(host);
    }
}
