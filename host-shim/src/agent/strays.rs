//! VFs that no record holds, as when the records were lost.

use std::sync::Arc;

use netlink::{Error, Link, Netns, Rtnl};
use offload_proto::{Failure, Reason};
use tokio::task::spawn_blocking;

use super::{Agent, strangers::Obstacles};
use crate::{
    mover::{MoveError, differences_from_own, is_clean, make_clean, open_netns, take_out},
    protocol::DelRequest,
    vf_source,
};

impl Agent {
    /// Restores the VFs in the host's namespace that nobody holds, so that they can be given out
    /// again. Those that the host itself uses are left alone. Tells which could not be restored, and
    /// why.
    pub(super) async fn restore_strays(self: &Arc<Self>) -> Obstacles {
        let agent = Arc::clone(self);
        match spawn_blocking(move || agent.restore_strays_now()).await {
            Ok(Ok(obstacles)) => return obstacles,
            Ok(Err(error)) => tracing::warn!(%error, "the VFs can't be listed"),
            Err(error) => tracing::error!(%error, "restoring VFs failed"),
        }
        Obstacles::new()
    }

    /// Brings the VF that a pod has as its interface home, and tells whether there was one.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(super) async fn fetch_stray(
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
            let fetched = agent.fetch_stray_now(&pod, &interface);
            fetched.map_err(|error| Failure::new(Reason::MoveFailed, error.to_string()))
        };
        self.when_its_turn(work).await?
    }

    fn fetch_stray_now(&self, pod: &Netns, interface: &str) -> Result<bool, MoveError> {
        let (mut inside, mut host) = (Rtnl::open_in(pod)?, Rtnl::open_in(&self.host)?);
        let Some(link) = inside.link_by_name(interface)? else { return Ok(false) };
        let Some(vf) = self.source.vf_of(&link) else { return Ok(false) };
        let Some(own) = self.source.own_state(&vf) else { return Ok(false) };
        let name = Some(own.name.as_str());
        let find = |host: &mut Rtnl| vf_source::find(&*self.source, host, &vf.pci_address, name);
        // A link that only looks like a VF which is elsewhere stays where it is.
        if self.records.by_pci_address(&vf.pci_address).is_some() || find(&mut host)?.is_some() {
            return Ok(false);
        }
        take_out(&mut inside, &link, (&self.host, &mut host), &own.name)?;
        let Some(link) = find(&mut host)? else { return Ok(false) };
        let port = self.source.pf_port(&vf.pci_address);
        make_clean(&mut host, &link, &own, port.as_ref())?;
        tracing::info!(vf = vf.pci_address, was = interface, "brought home without a record");
        Ok(true)
    }

    fn restore_strays_now(&self) -> Result<Obstacles, Error> {
        let mut obstacles = Obstacles::new();
        let mut host = Rtnl::open_in(&self.host)?;
        let links = host.links()?;
        let addresses = host.all_addresses()?;
        for (vf, link) in self.host_vfs(&links) {
            let is_let_alone = is_clean(&*self.source, &vf, link)
                || vf_source::use_by_host(link, &addresses).is_some();
            // Looked for after the listing: a VF that is being attached has a record by now.
            if is_let_alone || self.records.by_pci_address(&vf.pci_address).is_some() {
                continue;
            }
            let Some(own) = self.source.own_state(&vf) else { continue };
            let port = self.source.pf_port(&vf.pci_address);
            let what = differences_from_own(link, &own).join("; ");
            match make_clean(&mut host, link, &own, port.as_ref()) {
                Ok(()) => self.repairs.note(&self.subject_of(&vf), format!("restored: {what}")),
                Err(error) => {
                    let why = with_what_is_in_the_way(&error, &mut host, link, &own.name);
                    tracing::warn!(vf = vf.pci_address, "not restored: {why}");
                    obstacles.insert(self.subject_of(&vf), why);
                }
            }
        }
        Ok(obstacles)
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
