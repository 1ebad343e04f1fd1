//! VFs that no record holds, as when the records were lost.

use std::{collections::HashMap, sync::Arc};

use netlink::{Error, Link, Netns, Rtnl};
use offload_proto::{Failure, Reason};
use tokio::task::spawn_blocking;

use super::proofs::Seen;
use crate::agent::{
    Agent, defect, done_or_nothing, dpu::inventory::HostLinks, upkeep::vfs_abroad::Obstacles,
};
use crate::{
    mover::{MoveError, make_clean, open_netns, take_out},
    protocol::DelRequest,
    vf_source::{self, VfIdentity},
};

impl Agent {
    /// Restores the VFs in the host's namespace that nobody holds, so that they can be given out
    /// again, and begins to make those anew that can't be restored. Those that the host itself uses are
    /// left alone. Tells which could not be restored, and why.
    pub(in crate::agent) async fn restore_free_vfs(self: &Arc<Self>) -> Obstacles {
        let mut obstacles = Obstacles::new();
        for vf in self.at_free_vfs(Self::changed_free_vfs).await {
            let _not_taken = self.free_vfs.lock(&vf.pci_address).await;
            let subject = self.subject_of(&vf);
            let restored = self.at_free_vfs(move |agent| agent.restore_if_free(&vf)).await;
            obstacles.extend(restored.map(|why| (subject, why)));
        }
        for (vf, what) in self.refuted_free_vfs().await {
            if !obstacles.contains_key(&self.subject_of(&vf)) {
                self.begin_renewal_of_free(vf, what);
            }
        }
        obstacles
    }

    async fn at_free_vfs<T: Default + Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, Error> + Send + 'static,
    ) -> T {
        let agent = Arc::clone(self);
        let done = spawn_blocking(move || work(&agent)).await;
        done_or_nothing(done.map_err(|error| defect(&error)), "restore the VFs that nobody holds")
    }

    /// Brings the VF that a pod has as its interface home, and tells whether there was one.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(in crate::agent) async fn fetch_unrecorded(
        self: &Arc<Self>,
        request: &DelRequest,
    ) -> Result<bool, Failure> {
        // A DEL may come long after its pod's namespace has ended.
        let Ok(pod) = open_netns(&request.netns) else { return Ok(false) };
        if pod.id() == self.host.id() {
            return Ok(false);
        }
        let agent = Arc::clone(self);
        let interface = request.key.interface_name.clone();
        let work = move || {
            let fetched = agent.fetch_unrecorded_now(&pod, &interface);
            fetched.map_err(|error| Failure::new(Reason::MoveFailed, error.to_string()))
        };
        let seen = self.when_its_turn(work).await??;
        let found = self.prove(seen).await?;
        let is_clean = found.values().any(Vec::is_empty);
        if !is_clean && !found.is_empty() {
            self.poke.notify_one();
        }
        Ok(is_clean)
    }

    fn fetch_unrecorded_now(&self, pod: &Netns, interface: &str) -> Result<Vec<Seen>, MoveError> {
        const NOTHING: Vec<Seen> = Vec::new();
        let (mut inside, mut host) = (Rtnl::open_in(pod)?, Rtnl::open_in(&self.host)?);
        let Some(link) = inside.link_by_name(interface)? else { return Ok(NOTHING) };
        let Some(vf) = self.source.vf_of(&link) else { return Ok(NOTHING) };
        let Some(own) = self.own_state(&vf) else { return Ok(NOTHING) };
        let name = Some(own.name.as_str());
        let find = |host: &mut Rtnl| vf_source::find(&*self.source, host, &vf.pci_address, name);
        // A link that only looks like a VF which is elsewhere stays where it is.
        if self.records.by_pci_address(&vf.pci_address).is_some() || find(&mut host)?.is_some() {
            return Ok(NOTHING);
        }
        self.proofs.suspect(&vf.pci_address);
        take_out(&mut inside, &link, (&self.host, &mut host), &own.name)?;
        let Some(link) = find(&mut host)? else { return Ok(NOTHING) };
        let port = self.source.pf_port(&vf.pci_address);
        make_clean(&mut host, &link, &own, port.as_ref())?;
        tracing::info!(vf = vf.pci_address, was = interface, "brought home without a record");
        Ok(self.see(&[(vf, link.index)])?)
    }

    /// The free VFs that do not look as before at first sight.
    fn changed_free_vfs(&self) -> Result<Vec<VfIdentity>, Error> {
        let present = self.host_links()?;
        self.learn_originals(&present);
        let vfs = vf_source::vfs(&*self.source, &present.links);
        // Looked for after the listing: a VF that is being attached has a record by now.
        let changed = vfs
            .filter(|(vf, link)| self.is_idle(vf, link, &present) && !self.looks_clean(vf, link));
        Ok(changed.map(|(vf, _)| vf).collect())
    }

    /// Restores what can be restored of a VF, unless somebody has taken it since it was seen. Tells
    /// why it could not be restored.
    fn restore_if_free(&self, vf: &VfIdentity) -> Result<Option<String>, Error> {
        let present = self.host_links()?;
        let link = vf_source::link_of(&*self.source, &present.links, &vf.pci_address);
        let Some(link) = link.filter(|link| self.is_idle(vf, link, &present)) else {
            return Ok(None);
        };
        let restored = self.restore_free(vf, link, &mut Rtnl::open_in(&self.host)?);
        Ok(restored
            .inspect_err(|why| tracing::warn!(vf = vf.pci_address, "not restored: {why}"))
            .err())
    }

    /// The free VFs that are not as before, each with what is not.
    async fn refuted_free_vfs(self: &Arc<Self>) -> Vec<(VfIdentity, String)> {
        let (unproven, seen) = self.at_free_vfs(Self::see_unproven_free_vfs).await;
        let mut found = self.prove(seen).await.unwrap_or_else(|error| {
            tracing::error!(%error, "what is stacked on VFs is not known");
            HashMap::new()
        });
        let refuted = unproven.into_iter().filter_map(|vf| {
            let what = found.remove(&vf.pci_address)?.join("; ");
            (!what.is_empty()).then_some((vf, what))
        });
        refuted.collect()
    }

    fn see_unproven_free_vfs(&self) -> Result<(Vec<VfIdentity>, Vec<Seen>), Error> {
        let present = self.host_links()?;
        let vfs = vf_source::vfs(&*self.source, &present.links);
        let unproven = vfs.filter(|(vf, link)| {
            self.is_idle(vf, link, &present) && !self.proofs.is_proven(vf, link)
        });
        let unproven: Vec<_> = unproven.map(|(vf, link)| (vf, link.index)).collect();
        let seen = self.see(&unproven)?;
        Ok((unproven.into_iter().map(|(vf, _)| vf).collect(), seen))
    }

    /// Restores what can be restored of a VF.
    pub(in crate::agent) fn restore_free(
        &self,
        vf: &VfIdentity,
        link: &Link,
        host: &mut Rtnl,
    ) -> Result<(), String> {
        let Some(own) = self.own_state(vf) else { return Ok(()) };
        let before = self.superficial_differences(vf, link);
        let port = self.source.pf_port(&vf.pci_address);
        make_clean(host, link, &own, port.as_ref())
            .map_err(|error| with_what_is_in_the_way(&error, host, link, &own.name))?;
        let restored = host.link_by_index(link.index).ok().flatten();
        if !before.is_empty() && restored.is_some_and(|link| self.looks_clean(vf, &link)) {
            self.repairs.note(&self.subject_of(vf), format!("restored: {}", before.join("; ")));
        }
        Ok(())
    }

    /// Whether nobody has a VF that is in the host's namespace, and it is not being made anew.
    fn is_idle(&self, vf: &VfIdentity, link: &Link, present: &HostLinks) -> bool {
        self.is_free(vf, link, present) && !self.renewals.is_under_way(&vf.pci_address)
    }

    /// Whether nobody has a VF that is in the host's namespace.
    pub(in crate::agent) fn is_free(
        &self,
        vf: &VfIdentity,
        link: &Link,
        present: &HostLinks,
    ) -> bool {
        let HostLinks { links, addresses } = present;
        vf_source::use_by_host(link, links, addresses).is_none()
            && self.records.by_pci_address(&vf.pci_address).is_none()
    }
}

/// The kernel's refusal and, if another link has the VF's name, which.
fn with_what_is_in_the_way(error: &MoveError, host: &mut Rtnl, vf: &Link, name: &str) -> String {
    match host.link_by_name(name) {
        Ok(Some(other)) if other.index != vf.index => {
            let Link { index, kind, .. } = other;
            let kind = kind.map(|kind| format!(", a {kind},")).unwrap_or_default();
            format!("{error}: link {index}{kind} has the name {name}")
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_in_the_way_is_told_with_what_it_is() {
        let mut host = Rtnl::open_in(&Netns::current().unwrap()).unwrap();
        let mut vf = Link::default();
        vf.index = u32::MAX;
        let error = MoveError::Missing("d000:00:00.4".into());
        let told = with_what_is_in_the_way(&error, &mut host, &vf, "lo");
        assert!(told.ends_with(": link 1 has the name lo"), "{told}");
    }
}
