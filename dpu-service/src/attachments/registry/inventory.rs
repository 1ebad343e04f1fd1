//! What the pools make of an inventory.

use std::collections::{HashMap, HashSet};

use offload_proto::Failure;
use vf_alloc::{FunctionId, HostId, VfFacts};

use super::{Registry, ServedHosts};
use crate::{
    host::{Inventory, LiveAttachment, VfCondition},
    model::{AttachmentId, HostName},
};

/// How many of the attachments that the journal does not know a reason names.
const UNKNOWN_SHOWN: usize = 2;

/// How a host's VFs are by an inventory, but for those of which it is outdated.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    listed: HashMap<FunctionId, VfCondition>,
    /// VFs of the host's PFs that were there before.
    unlisted: HashSet<FunctionId>,
}

impl Conditions {
    /// The VF is at home, and as it was before any pod had it.
    pub(crate) fn is_clean(&self, vf: FunctionId) -> bool {
        self.listed.get(&vf) == Some(&VfCondition::Clean)
    }

    /// The host no longer has such a VF.
    pub(crate) fn is_gone(&self, vf: FunctionId) -> bool {
        self.unlisted.contains(&vf)
    }
}

/// What an inventory told.
#[derive(Debug, Default)]
pub(crate) struct Heard {
    /// How the VFs are.
    pub(crate) conditions: Conditions,
    /// VFs that left quarantine, since the host has them back.
    pub(crate) cleared: Vec<FunctionId>,
}

impl Registry {
    /// Tells the pools which VFs there are to be had, as the host saw it in this boot.
    ///
    /// # Errors
    /// The host is not served.
    pub(crate) fn take_inventory(
        &mut self,
        host: &HostName,
        boot_id: &str,
        inventory: &Inventory,
    ) -> Result<Heard, Failure> {
        let number = self.hosts.number(host)?;
        let outdated = self.detaches.after(boot_id, inventory.as_of);
        let mut heard = Heard::default();
        for (vf, facts, condition) in listed(host, number, inventory, &self.hosts) {
            if outdated.contains(&vf) {
                continue;
            }
            heard.conditions.listed.insert(vf, condition.clone());
            if self.note_condition(vf, facts, condition) {
                heard.cleared.push(vf);
            }
        }
        let Conditions { listed, unlisted } = &mut heard.conditions;
        let is_listed = |vf: &FunctionId| listed.contains_key(vf) || outdated.contains(vf);
        *unlisted = self.withdraw_unlisted(host, is_listed);
        Ok(heard)
    }

    /// Tells whether that ended the VF's quarantine.
    fn note_condition(&mut self, vf: FunctionId, facts: VfFacts, condition: VfCondition) -> bool {
        match condition {
            VfCondition::Clean => {
                self.vfs.offer(vf, facts);
                return self.doubts.end_unaccounted(vf) && self.vfs.clear(vf).is_ok();
            }
            // It is given to who names it, whatever else the host does with it.
            VfCondition::Taken if self.vfs.is_promised(vf) => self.vfs.learn(vf, facts),
            VfCondition::InUse | VfCondition::Taken => {
                // Its end may be told by a Detach alone: then it is to be had without a word more.
                self.vfs.learn(vf, facts);
                self.vfs.withdraw(vf, "the host's agent holds it");
            }
            VfCondition::UsedByHost(used) => {
                self.vfs.learn(vf, facts);
                let why = format!("another program on the host uses it: {used}");
                self.vfs.withdraw(vf, &why);
            }
            VfCondition::Missing => self.vfs.withdraw(vf, "the host can't find it"),
        }
        false
    }

    /// Withdraws VFs that the host no longer lists, and returns them.
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

    /// Those of a host's attachments that the journal does not know.
    pub(crate) fn unrecorded(&self, live: &[LiveAttachment]) -> Vec<AttachmentId> {
        let ids = live.iter().map(|live| live.id);
        ids.filter(|id| self.entries.get(*id).is_none()).collect()
    }

    /// Puts the VFs into quarantine that the host holds for nobody here, while it has attachments that
    /// the journal does not know, until the host says that they are clean. A host does not tell which
    /// VF is which attachment's. Nothing else of the host is touched. Returns these VFs and why.
    pub(crate) fn quarantine_unaccounted(
        &mut self,
        live: &[LiveAttachment],
        conditions: &Conditions,
    ) -> (Vec<FunctionId>, String) {
        let mut unknown = self.unrecorded(live);
        if unknown.is_empty() {
            return (Vec::new(), String::new());
        }
        // The same words each time, and few of them: there is a reason for each VF.
        unknown.sort();
        let first: Vec<_> = unknown.iter().take(UNKNOWN_SHOWN).map(ToString::to_string).collect();
        let is_in_use = |how: &VfCondition| matches!(how, VfCondition::InUse | VfCondition::Taken);
        let in_use = conditions.listed.iter().filter(|(_, how)| is_in_use(how));
        let held_for_nobody = in_use.filter(|(vf, _)| self.vfs.holder(**vf).is_none());
        let unaccounted: Vec<_> = held_for_nobody.map(|(vf, _)| *vf).collect();
        self.doubts.note_unaccounted(&unaccounted);
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

/// The host's own VFs, flat.
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
