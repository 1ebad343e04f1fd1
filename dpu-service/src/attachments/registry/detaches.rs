//! Up to when hosts have spoken of VFs by Detach.
//!
//! Detach is a call of its own, and overtakes the messages of a session: an inventory that is heard
//! after it may have been looked at before it. A VF that was clean before it was attached may be away
//! now, so what such an inventory says of it counts for nothing.

use std::collections::{HashMap, HashSet};

use vf_alloc::FunctionId;

use super::hosts::ServedHosts;
use crate::{
    host::HostTime,
    model::{HostName, Record},
};

/// As of when the latest Detach of each VF spoke, and the boot that this time belongs to.
#[derive(Debug, Default)]
pub(super) struct Detaches(HashMap<FunctionId, (String, HostTime)>);

impl Detaches {
    /// Notes as of when the host has given the attachment back, with its VF or without. A time that its
    /// clock can't show, being later than `latest`, is as good as none.
    pub(super) fn note(&mut self, record: &Record, as_of: HostTime, latest: HostTime) {
        if as_of <= latest {
            self.0.insert(record.vf, (record.boot_id.clone(), as_of));
        } else {
            self.0.remove(&record.vf);
        }
    }

    /// Forgets what the host has told at times later than `latest`: its clock was set back since, or
    /// was never so late.
    pub(super) fn forget_after(&mut self, hosts: &ServedHosts, host: &HostName, latest: HostTime) {
        self.0.retain(|vf, (_, at)| *at <= latest || !hosts.has(host, vf.pf));
    }

    /// The VFs of which a Detach has spoken after `as_of` in this boot.
    pub(super) fn after(&self, boot_id: &str, as_of: HostTime) -> HashSet<FunctionId> {
        if as_of == HostTime::default() {
            return HashSet::new();
        }
        let later = self.0.iter().filter(|(_, (boot, at))| boot == boot_id && *at > as_of);
        later.map(|(vf, _)| *vf).collect()
    }
}
