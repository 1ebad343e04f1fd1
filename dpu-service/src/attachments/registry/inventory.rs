//! Applies inventories to the pools.

use std::collections::{HashMap, HashSet};

use offload_proto::Failure;
use vf_alloc::{FunctionId, HostId, VfFacts};

use super::{Registry, ServedHosts};
use crate::host::{Inventory, LiveAttachment, VfCondition};
use model::{AttachmentId, HostName};

/// How many unknown attachments a quarantine's reason names.
const UNKNOWN_SHOWN: usize = 2;

/// Conditions of a host's VFs by an inventory, without VFs for which it is outdated.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    listed: HashMap<FunctionId, VfCondition>,
    /// Known VFs of the host's PFs that the inventory lacks.
    unlisted: HashSet<FunctionId>,
}

impl Conditions {
    /// Whether the VF is in the host's namespace and matches its baseline.
    pub(crate) fn is_clean(&self, vf: FunctionId) -> bool {
        self.listed.get(&vf) == Some(&VfCondition::Clean)
    }

    /// Whether the host no longer has the VF.
    pub(crate) fn is_gone(&self, vf: FunctionId) -> bool {
        self.unlisted.contains(&vf)
    }
}

#[derive(Debug, Default)]
pub(crate) struct InventoryResult {
    pub(crate) conditions: Conditions,
    /// VFs whose quarantine ended because the host has them back.
    pub(crate) cleared: Vec<FunctionId>,
}

impl Registry {
    /// Updates the pools with an inventory that the host took in this boot.
    ///
    /// # Errors
    /// The host is not configured.
    pub(crate) fn take_inventory(
        &mut self,
        host: &HostName,
        boot_id: &str,
        inventory: &Inventory,
    ) -> Result<InventoryResult, Failure> {
        let number = self.hosts.number(host)?;
        let outdated = self.detaches.after(boot_id, inventory.as_of);
        let mut result = InventoryResult::default();
        for (vf, facts, condition) in listed(host, number, inventory, &self.hosts) {
            // Older than the VF's latest Detach, after which the pod no longer has the VF.
            if outdated.contains(&vf) {
                continue;
            }
            result.conditions.listed.insert(vf, condition.clone());
            if self.note_condition(vf, facts, condition) {
                result.cleared.push(vf);
            }
        }
        let Conditions { listed, unlisted } = &mut result.conditions;
        // An outdated VF counts as listed: the inventory says nothing about it.
        let is_listed = |vf: &FunctionId| listed.contains_key(vf) || outdated.contains(vf);
        *unlisted = self.withdraw_unlisted(host, is_listed);
        Ok(result)
    }

    /// Applies a VF's condition. Returns whether that ended its quarantine.
    fn note_condition(&mut self, vf: FunctionId, facts: VfFacts, condition: VfCondition) -> bool {
        match condition {
            VfCondition::Clean => {
                self.vfs.mark_free(vf, facts);
                return self.anomalies.unaccounted.remove(&vf) && self.vfs.clear(vf).is_ok();
            }
            // Only an attach that names the offer gets it, so the host may already have moved it.
            VfCondition::Held if self.vfs.is_offered(vf) => self.vfs.learn(vf, facts),
            VfCondition::InUse | VfCondition::Held => {
                // Its return may be reported by a Detach alone, so the facts are stored although the VF is unavailable.
                self.vfs.learn(vf, facts);
                self.vfs.withdraw(vf, "the host's agent holds it");
            }
            VfCondition::UsedByHost(used) => {
                self.vfs.learn(vf, facts);
                let why = format!("another program on the host uses it: {used}");
                self.vfs.withdraw(vf, &why);
            }
            VfCondition::Missing => {
                // Operators see it as absent from the host's first word on, also if no pod has ever had it.
                self.vfs.learn(vf, facts);
                self.vfs.withdraw(vf, "the host can't find it, or is resetting it");
            }
        }
        false
    }

    /// Withdraws the VFs that the host no longer lists. Returns them.
    fn withdraw_unlisted(
        &mut self,
        host: &HostName,
        is_listed: impl Fn(&FunctionId) -> bool,
    ) -> HashSet<FunctionId> {
        let known = self.vfs.vfs().map(|view| view.vf);
        let of_host = known.filter(|vf| self.hosts.has(host, vf.pf));
        let unlisted: HashSet<_> = of_host.filter(|vf| !is_listed(vf)).collect();
        for vf in &unlisted {
            self.vfs.withdraw(*vf, "the host has no such VF");
        }
        unlisted
    }

    /// The live attachments of a host that the journal does not have.
    pub(crate) fn unrecorded(&self, live: &[LiveAttachment]) -> Vec<AttachmentId> {
        let ids = live.iter().map(|live| live.id);
        ids.filter(|id| self.entries.get(*id).is_none()).collect()
    }

    /// Quarantines the VFs that the host has in use while no attachment holds them, if the host reports attachments
    /// that the journal does not have. The inventory does not say which VF belongs to which attachment. Ends when the
    /// host reports the VF clean. Returns these VFs and the reason.
    pub(crate) fn quarantine_unaccounted(
        &mut self,
        live: &[LiveAttachment],
        conditions: &Conditions,
    ) -> (Vec<FunctionId>, String) {
        let mut unknown = self.unrecorded(live);
        if unknown.is_empty() {
            return (Vec::new(), String::new());
        }
        // Sorted and few: the text must not change from one inventory to the next, and each VF keeps a copy.
        unknown.sort();
        let first: Vec<_> = unknown.iter().take(UNKNOWN_SHOWN).map(ToString::to_string).collect();
        let is_in_use = |how: &VfCondition| matches!(how, VfCondition::InUse | VfCondition::Held);
        let in_use = conditions.listed.iter().filter(|(_, how)| is_in_use(how));
        let unheld = in_use.filter(|(vf, _)| self.vfs.holder(**vf).is_none());
        let unaccounted: Vec<_> = unheld.map(|(vf, _)| *vf).collect();
        self.anomalies.unaccounted.extend(&unaccounted);
        let reason = format!(
            "its host has it in a pod whose attachment this DPU does not know, one of {}, such as {}: it is free when that pod \
             ends",
            unknown.len(),
            first.join(" and ")
        );
        unaccounted.iter().for_each(|vf| self.vfs.quarantine(*vf, &reason));
        (unaccounted, reason)
    }
}

/// The VFs of the host's own PFs.
fn listed(
    host: &HostName,
    number: HostId,
    inventory: &Inventory,
    hosts: &ServedHosts,
) -> Vec<(FunctionId, VfFacts, VfCondition)> {
    let own = inventory.pfs.iter().filter(|pf| hosts.has(host, pf.id));
    let vfs = own.flat_map(|pf| {
        pf.vfs.iter().map(|function| {
            let facts = VfFacts {
                host: number,
                device: function.device.clone(),
                vendor_id: pf.vendor_id,
                device_id: pf.device_id,
            };
            (FunctionId { pf: pf.id, vf: function.number }, facts, function.condition.clone())
        })
    });
    vfs.collect()
}
