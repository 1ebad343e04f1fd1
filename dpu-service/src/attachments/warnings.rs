//! What operators should know of though Attach can be served.

use vf_alloc::{PoolSpec, VfId, VfState};

use super::{
    engine::Engine,
    registry::{Entry, Registry},
};
use crate::model::HostName;

/// How many of the attachments that a host has lost track of are named in a warning.
const UNCLAIMED_SHOWN: usize = 3;

/// Likewise, of those without a representor.
const MISSING_SHOWN: usize = 2;

impl Engine {
    /// What operators should know of though Attach can be served, one sentence each.
    pub(super) fn warnings(&self) -> Vec<String> {
        let registry = self.registry();
        let suspended = registry.suspended.iter().map(|(name, suspended)| {
            format!("network {name}, made through the API, is not in force: {}", suspended.why)
        });
        let unserved = self.programmer.problems();
        suspended.chain(registry.unclaimed()).chain(unserved).collect()
    }

    /// Likewise, what an examination finds by itself, VF by VF.
    pub(super) fn vf_warnings(&self) -> Vec<String> {
        let registry = self.registry();
        let pools = registry.vfs.pools().filter_map(|pool| registry.quarantined(pool));
        registry.without_representors().into_iter().chain(pools).collect()
    }
}

impl Registry {
    /// One sentence for each host that has lost track of attachments.
    fn unclaimed(&self) -> Vec<String> {
        let tell = |host: &HostName| {
            let unclaimed = self.of_host(host).filter(|entry| entry.unclaimed);
            let ids: Vec<_> = unclaimed.map(|entry| entry.record.id.to_string()).collect();
            let shown = ids.iter().take(UNCLAIMED_SHOWN).cloned().collect::<Vec<_>>().join(", ");
            (!ids.is_empty()).then(|| {
                format!(
                    "host {host} does not know {} of its attachments, whose VFs it does not have \
                     back: they are kept; release those whose pods have gone: {shown}",
                    ids.len()
                )
            })
        };
        self.hosts.keys().filter_map(tell).collect()
    }

    /// One sentence for all attachments whose representors have been missing for some time: a card
    /// that was reset soon has them again.
    fn without_representors(&self) -> Option<String> {
        let patience = self.settings.missing_told_after;
        let is_missing = |entry: &&Entry| {
            let is_gone = entry.missing_since.is_some_and(|since| since.elapsed() >= patience);
            is_gone && entry.is_held()
        };
        let mut missing: Vec<_> =
            self.entries().filter(is_missing).map(|entry| &entry.record).collect();
        missing.sort_by_key(|record| record.vf);
        let shown = missing.iter().take(MISSING_SHOWN);
        let shown: Vec<_> = shown.map(|record| format!("{} ({})", record.id, record.vf)).collect();
        (!missing.is_empty()).then(|| {
            format!(
                "this DPU has no representor for {} of its attachments, whose pods are cut off, among \
                 them {}: look at the card, and run `dpuctl doctor`",
                missing.len(),
                shown.join(" and ")
            )
        })
    }

    /// One sentence if nothing but quarantine keeps the pool from having a VF to give.
    fn quarantined(&self, pool: &PoolSpec) -> Option<String> {
        let usage = self.vfs.usage(&pool.name).unwrap_or_default();
        if usage.free > 0 {
            return None;
        }
        let is_in_pool = |vf: VfId| self.vfs.pools_of(vf).any(|name| name == pool.name);
        // Without a port it could not be given out either.
        let quarantined = self.vfs.vfs().filter(|view| {
            view.has_port
                && matches!(view.state, VfState::Quarantined { .. })
                && is_in_pool(view.vf)
        });
        let quarantined: Vec<_> = quarantined.map(|view| view.vf).collect();
        let first = quarantined.first()?;
        Some(format!(
            "pool {} has no free VF, and {} in quarantine: mend what `dpuctl get vfs` says of each, \
             then clear it, such as by `dpuctl clear-quarantine {first}`",
            pool.name,
            quarantined.len()
        ))
    }
}
