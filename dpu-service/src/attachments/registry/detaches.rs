//! Times of the latest Detach of each VF, by the host's clock.
//!
//! Detach is a call of its own and may overtake messages of the session: an inventory processed after it may have been
//! taken before it. The inventory may then list a VF as clean that was attached and detached since, so its entry is
//! ignored.

use std::collections::{HashMap, HashSet};

use vf_alloc::FunctionId;

use super::hosts::ServedHosts;
use crate::host::HostTime;
use model::{HostName, Record};

/// Boot id and host's time of the latest Detach of each VF.
#[derive(Debug, Default)]
pub(super) struct Detaches(HashMap<FunctionId, (String, HostTime)>);

impl Detaches {
    /// Stores the time of a Detach. A time after `latest`, which the host's clock cannot show yet, is ignored.
    pub(super) fn note(&mut self, record: &Record, as_of: HostTime, latest: HostTime) {
        if as_of <= latest {
            self.0.insert(record.vf, (record.boot_id.clone(), as_of));
        } else {
            self.0.remove(&record.vf);
        }
    }

    /// Removes times after `latest`: the host's clock was set back, or was never that late.
    pub(super) fn forget_after(&mut self, hosts: &ServedHosts, host: &HostName, latest: HostTime) {
        self.0.retain(|vf, (_, at)| *at <= latest || !hosts.has(host, vf.pf));
    }

    /// The VFs detached after `as_of` in this boot.
    pub(super) fn after(&self, boot_id: &str, as_of: HostTime) -> HashSet<FunctionId> {
        if as_of == HostTime::default() {
            return HashSet::new();
        }
        let later = self.0.iter().filter(|(_, (boot, at))| boot == boot_id && *at > as_of);
        later.map(|(vf, _)| *vf).collect()
    }
}
