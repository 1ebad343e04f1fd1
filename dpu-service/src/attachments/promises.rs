//! VFs that are promised to a host: they are given to nobody but who names one by its promise's number, so that the
//! host's agent can begin to move it before it has asked.
//!
//! A promise holds for one session. It begins in the hold of the registry that finds the session to be the one in
//! force; a hello opens its own session first, and ends all promises then, before it hears what the host has.

use vf_alloc::{PfId, Policy, VfPromise};

use super::hosts::Hosts;
use crate::{host::SessionId, model::HostName};

/// As many VFs of each pool that nobody else hands out are promised: more than attaches of a host are under way while
/// it is told of further ones.
const PROMISED: usize = 32;

/// A VF that is promised to its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PromisedVf {
    /// What its host names it by.
    pub promise: VfPromise,
    /// The pools out of which an attach may get it whose VF nobody has chosen.
    pub pools: Vec<OpenPool>,
    /// Its PF.
    pub pf: PfId,
}

/// A pool whose VFs may be had unchosen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPool {
    /// Its name.
    pub name: String,
    /// Which PF serves next.
    pub policy: Policy,
}

impl Hosts<'_> {
    /// What the host is to be told in that session besides what it was told already.
    #[must_use]
    pub fn promise(self, host: &HostName, session: SessionId) -> Vec<PromisedVf> {
        let mut registry = self.0.registry();
        match self.0.sessions.is_current(host, session) {
            true => registry.promise(host, PROMISED),
            false => Vec::new(),
        }
    }

    /// The host has taken these VFs, which it was promised, and does not use them after all.
    pub fn untaken(self, host: &HostName, promises: &[VfPromise]) {
        let mut registry = self.0.registry();
        promises.iter().for_each(|promise| registry.note_untaken(host, promise));
        drop(registry);
        self.0.sessions.note_vfs_changed(host);
    }
}
