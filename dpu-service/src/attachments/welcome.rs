//! What the service makes of a host's hello, its inventories and its word that a pod has its VF.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use futures::future::join_all;
use offload_proto::{Failure, Reason};
use vf_alloc::{HostId, VfFacts, VfId};

use super::{
    engine::Engine,
    registry::{Entry, Registry},
};
use crate::{
    events::EventKind,
    host::{Hello, Inventory, LiveAttachment, SessionId, VfCondition},
    milestones::Milestone,
    model::{AttachmentId, HostName, Record},
    sessions::{HostCommand, Session},
};

/// How the VFs of an inventory are.
type Conditions = HashMap<VfId, VfCondition>;

/// What a hello means for one of the host's attachments.
enum Verdict {
    /// The pod has the VF.
    Attached,
    /// The pod shall have the VF and does not.
    Reattach,
    /// It is being given back, and the host does not know that.
    TellRelease,
    /// The host does not know it, and does not have its VF back either: a pod may run on it, of an
    /// agent that has lost its records. It goes on until the VF is back.
    Keep,
    /// It is over.
    Release { returned: bool, reason: &'static str },
    /// The host will say more.
    Wait,
}

impl Engine {
    /// Opens a session and settles everything that the host's words settle.
    pub(super) async fn hello(&self, host: HostName, hello: Hello) -> Result<Session, Failure> {
        self.check_owner(&host, &hello.inventory)?;
        // From here on calls of earlier sessions are refused: what they have made is all there is.
        let session = self.sessions.open(&host, &hello)?;
        self.note_session(&host, &hello, session.is_renewed);
        let latest = self.sessions.latest_time(&host);
        self.registry().forget_detaches_after(&host, latest);

        Milestone::HelloOpened.pass();
        let conditions = self.take_inventory(&host, session.id, &hello.inventory)?;
        Milestone::HelloHeard.pass();
        self.quarantine_unaccounted(&hello.live, &conditions);
        let verdicts = self.judge(&host, &hello, &conditions);
        self.note_unclaimed(&verdicts);
        let carried_out = verdicts.into_iter().map(|(record, verdict)| {
            self.carry_out(session.id, record, verdict, hello.live.as_slice())
        });
        join_all(carried_out).await;
        Milestone::HelloSettled.pass();
        if let Some(reason) = self.registry().draining.clone() {
            self.sessions.send(&host, HostCommand::Draining { reason });
        }
        self.tell_wanted_vfs(&host);
        self.host_spoke.notify_one();
        Ok(session)
    }

    fn note_session(&self, host: &HostName, hello: &Hello, is_renewed: bool) {
        if is_renewed {
            let message = "it renewed its connection, and its session goes on";
            return self.events.record(EventKind::HostRenewed, host, message);
        }
        let message = format!("agent {}, boot {}", hello.agent_version, hello.boot_id);
        self.events.record(EventKind::HostConnected, host, message);
    }

    /// Tells the hosts how many VFs their PFs shall have.
    pub(super) fn tell_all_wanted_vfs(&self) {
        let hosts: Vec<_> = self.registry().hosts.keys().cloned().collect();
        hosts.iter().for_each(|host| self.tell_wanted_vfs(host));
    }

    /// Tells a host how many VFs its PFs shall have. One that has as many does nothing.
    fn tell_wanted_vfs(&self, host: &HostName) {
        let registry = self.registry();
        let pfs = registry.hosts.get(host).into_iter().flatten();
        let wanted: Vec<_> =
            pfs.filter_map(|pf| Some((*pf, *registry.wanted_vfs.get(pf)?))).collect();
        drop(registry);
        for (pf, count) in wanted {
            self.sessions.send(host, HostCommand::WantedVfs { pf, count });
        }
    }

    /// The host said what it has now. Returns the attachments that can be freed, now that their VFs
    /// are back, each of them once. Words of an earlier session are refused.
    pub(super) fn inventory(
        &self,
        host: &HostName,
        session: SessionId,
        inventory: &Inventory,
    ) -> Result<Vec<Arc<Record>>, Failure> {
        self.check_owner(host, inventory)?;
        let conditions = self.take_inventory(host, session, inventory)?;
        let mut registry = self.registry();
        let is_back = |entry: &&Entry| {
            (!entry.is_held() || entry.unclaimed)
                && !entry.returned
                && !entry.is_under_way(Some(session))
                && is_clean(entry, &conditions)
        };
        let back = registry.of_host(host).filter(is_back);
        let back: Vec<_> = back.map(|entry| Arc::clone(&entry.record)).collect();
        for record in &back {
            registry.set_releasing(record.id, true);
        }
        Ok(back)
    }

    /// Frees attachments whose VFs are back. What the journal refuses, the reconciler tries again.
    pub(super) async fn free_returned(&self, session: SessionId, returned: Vec<Arc<Record>>) {
        let freed = returned.into_iter().map(|record| {
            let verdict = Verdict::Release { returned: true, reason: "its VF is back" };
            self.carry_out(session, record, verdict, &[])
        });
        join_all(freed).await;
        Milestone::InventorySettled.pass();
    }

    /// The host said that the pod has the VF.
    pub(super) fn host_attached(&self, host: &HostName, session: SessionId, id: AttachmentId) {
        if !self.sessions.is_current(host, session) {
            return;
        }
        let mut registry = self.registry();
        let entry = registry.get_mut(id).filter(|entry| entry.record.key.host == *host);
        let Some(entry) = entry.filter(|entry| entry.is_held()) else { return };
        entry.unclaimed = false;
        if entry.attached {
            return;
        }
        entry.attached = true;
        entry.was_attached = true;
        let message = format!("the pod of {} has {}", entry.record.key, entry.record.vf);
        registry.vfs.attached(&id);
        drop(registry);
        self.events.record(EventKind::AttachmentAttached, id, message);
    }

    /// Refuses an inventory that names another host's PF.
    fn check_owner(&self, host: &HostName, inventory: &Inventory) -> Result<(), Failure> {
        let mut registry = self.registry();
        registry.host_id(host)?;
        for pf in &inventory.pfs {
            match registry.owner(pf.id) {
                Some(owner) if owner == host => {}
                Some(owner) => {
                    return Err(Failure::new(
                        Reason::NotAuthorised,
                        format!("host {host} claims PF {}, which belongs to host {owner}", pf.id),
                    ));
                }
                None => tracing::warn!(%host, pf = %pf.id, "the PF belongs to no host: left alone"),
            }
        }
        Ok(())
    }

    /// Tells the pools which VFs there are to be had, unless a newer session has told it already.
    fn take_inventory(
        &self,
        host: &HostName,
        session: SessionId,
        inventory: &Inventory,
    ) -> Result<Conditions, Failure> {
        let mut registry = self.registry();
        let boot_id = self.sessions.boot_id(host, session).ok_or_else(|| super::stale(session))?;
        let number = registry.host_id(host)?;
        let outdated = registry.detached_after(&boot_id, inventory.as_of);
        let mut conditions = Conditions::new();
        let mut cleared = Vec::new();
        for (vf, facts, condition) in listed(host, number, inventory, &registry) {
            if outdated.contains(&vf) {
                continue;
            }
            conditions.insert(vf, condition);
            match condition {
                VfCondition::Clean => {
                    registry.vfs.offer(vf, facts);
                    if registry.unaccounted.remove(&vf) && registry.vfs.clear(vf).is_ok() {
                        cleared.push(vf);
                    }
                }
                VfCondition::InUse => {
                    // Its end may be told by a Detach alone.
                    registry.vfs.learn(vf, facts);
                    registry.vfs.withdraw(vf, "the host's agent holds it");
                }
                VfCondition::Missing => registry.vfs.withdraw(vf, "the host can't find it"),
            }
        }
        registry.withdraw_unlisted(host, |vf| conditions.contains_key(vf) || outdated.contains(vf));
        drop(registry);
        for vf in cleared {
            self.events.record(EventKind::VfCleared, vf, "the host has it back, clean");
        }
        Ok(conditions)
    }

    /// Puts the VFs into quarantine that the host holds for nobody here, while it has attachments that
    /// the journal does not know, until the host says that they are clean. A host does not tell which
    /// VF is which attachment's. Nothing else of the host is touched.
    fn quarantine_unaccounted(&self, live: &[LiveAttachment], conditions: &Conditions) {
        let mut registry = self.registry();
        let unknown = live.iter().filter(|live| registry.get(live.id).is_none());
        let unknown: Vec<_> = unknown.map(|live| live.id.to_string()).collect();
        if unknown.is_empty() {
            return;
        }
        let in_use = conditions.iter().filter(|(_, how)| **how == VfCondition::InUse);
        let held_for_nobody = in_use.filter(|(vf, _)| registry.vfs.holder(**vf).is_none());
        let unaccounted: Vec<_> = held_for_nobody.map(|(vf, _)| *vf).collect();
        registry.unaccounted.extend(&unaccounted);
        drop(registry);
        let reason = format!(
            "the host holds it, and has attachments that the journal does not know: {}",
            unknown.join(", ")
        );
        for vf in unaccounted {
            self.quarantine(vf, &reason);
        }
    }

    fn judge(
        &self,
        host: &HostName,
        hello: &Hello,
        conditions: &Conditions,
    ) -> Vec<(Arc<Record>, Verdict)> {
        let live: HashMap<_, _> = hello.live.iter().map(|live| (live.id, live.in_pod)).collect();
        let pending: HashSet<_> = hello.pending.iter().collect();
        let registry = self.registry();
        let judge = |entry: &Entry| {
            let record = &entry.record;
            let returned = is_clean(entry, conditions);
            let verdict = if record.boot_id != hello.boot_id {
                Verdict::Release { returned, reason: "its host has rebooted" }
            } else if !entry.is_held() {
                // Whoever is about to move the VF is to be told, too.
                match live.contains_key(&record.id) || pending.contains(&record.key) {
                    true => Verdict::TellRelease,
                    false if returned => Verdict::Release { returned, reason: "its VF is back" },
                    false => Verdict::Wait,
                }
            } else {
                match live.get(&record.id) {
                    Some(true) => Verdict::Attached,
                    Some(false) => Verdict::Reattach,
                    None if pending.contains(&record.key) => Verdict::Wait,
                    None if !returned => Verdict::Keep,
                    None => Verdict::Release { returned, reason: "its host does not know it" },
                }
            };
            (Arc::clone(record), verdict)
        };
        registry.of_host(host).map(judge).collect()
    }

    /// Notes which attachments the host does not know though it lacks their VFs, and tells of new ones.
    fn note_unclaimed(&self, verdicts: &[(Arc<Record>, Verdict)]) {
        let mut registry = self.registry();
        let mut news = Vec::new();
        for (record, verdict) in verdicts {
            let Some(entry) = registry.get_mut(record.id) else { continue };
            let is_unclaimed = matches!(verdict, Verdict::Keep) && entry.is_held();
            if is_unclaimed && !entry.unclaimed {
                news.push(record);
            }
            entry.unclaimed = is_unclaimed;
        }
        drop(registry);
        for record in news {
            let Record { id, key, vf, .. } = &**record;
            let message = format!("the host does not know {key}, and {vf} is not back: kept");
            tracing::warn!(%id, "{message}");
            self.events.record(EventKind::AttachmentUnclaimed, id, message);
        }
    }

    async fn carry_out(
        &self,
        session: SessionId,
        record: Arc<Record>,
        verdict: Verdict,
        live: &[LiveAttachment],
    ) {
        match verdict {
            Verdict::Wait | Verdict::Keep => {}
            Verdict::Attached => self.host_attached(&record.key.host, session, record.id),
            Verdict::Reattach => {
                if let Ok(view) = self.view(&record) {
                    self.sessions.send(&record.key.host, HostCommand::Reattach(view));
                }
            }
            Verdict::TellRelease => {
                self.tell_release(&record, "it was released while the host was away".into());
            }
            Verdict::Release { returned, reason } => {
                let _key = self.keys.lock(&record.key).await;
                // A newer hello may have brought the host's word, or a flow may have ended it.
                if !self.sessions.is_current(&record.key.host, session)
                    || self.registry().get(record.id).is_none()
                {
                    return;
                }
                if let Err(failure) = self.give_back(&record, returned, reason).await {
                    tracing::error!(id = %record.id, %failure, "an attachment can't be released yet");
                }
                if live.iter().any(|live| live.id == record.id) {
                    self.tell_release(&record, reason.into());
                }
            }
        }
    }
}

impl Registry {
    /// VFs that the host no longer lists are no longer to be had.
    fn withdraw_unlisted(&mut self, host: &HostName, is_listed: impl Fn(&VfId) -> bool) {
        let Some(pfs) = self.hosts.get(host) else { return };
        let known = self.vfs.vfs().map(|view| view.vf);
        let unlisted: Vec<_> = known.filter(|vf| pfs.contains(&vf.pf) && !is_listed(vf)).collect();
        for vf in unlisted {
            self.vfs.withdraw(vf, "the host has no such VF");
        }
    }
}

fn is_clean(entry: &Entry, conditions: &Conditions) -> bool {
    conditions.get(&entry.record.vf) == Some(&VfCondition::Clean)
}

/// The host's own VFs, flat.
fn listed(
    host: &HostName,
    number: HostId,
    inventory: &Inventory,
    registry: &Registry,
) -> Vec<(VfId, VfFacts, VfCondition)> {
    let own = inventory.pfs.iter().filter(|pf| registry.owner(pf.id) == Some(host));
    let vfs = own.flat_map(|pf| {
        pf.vfs.iter().map(|function| {
            let facts = VfFacts {
                host: number,
                pci_address: function.pci_address.clone(),
                vendor: pf.vendor,
                device: pf.device,
            };
            (VfId { pf: pf.id, vf: function.number }, facts, function.condition)
        })
    });
    vfs.collect()
}
