//! VFs in network namespaces that no record names: looked for, and brought home.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
};

use netlink::{Error, Link, Netns, NetnsId, Rtnl};
use offload_proto::Failure;
use vf_alloc::Device;

use super::{
    cleanliness::Cleanliness, host::Host, move_turns::Way, namespaces::namespaces, proofs::Seen,
    records::Phase,
};
use crate::{
    agent::{
        defect::done_or_nothing,
        repairs::{Obstacles, Repairs},
        signals::Signals,
    },
    mover::{MoveError, make_clean, open_netns, take_out},
    protocol::DelRequest,
    vf_source::{self, VfIdentity},
};

/// A VF that is where no record has it.
#[derive(Debug)]
pub(in crate::agent) struct VfAbroad {
    pub vf: VfIdentity,
    pub link: Link,
    /// The namespace that it is in.
    pub netns: NetnsId,
    /// What leads there, unless it leads elsewhere by now.
    pub path: PathBuf,
}

/// Finds VFs where no record has them, and brings them home.
#[derive(Debug)]
pub(in crate::agent) struct Abroad {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    /// Where namespaces are looked for.
    folders: Vec<PathBuf>,
    signals: Arc<Signals>,
    repairs: Arc<Repairs>,
}

impl Abroad {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        folders: Vec<PathBuf>,
        signals: Arc<Signals>,
        repairs: Arc<Repairs>,
    ) -> Self {
        let (host, cleanliness) = (Arc::clone(host), Arc::clone(cleanliness));
        Self { host, cleanliness, folders, signals, repairs }
    }

    /// Brings the VF that a pod has as its interface home, and tells whether there was one.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(in crate::agent) async fn fetch_from_pod(
        self: &Arc<Self>,
        request: &DelRequest,
    ) -> Result<bool, Failure> {
        // A DEL may come long after its pod's namespace has ended.
        let Ok(pod) = open_netns(&request.netns) else { return Ok(false) };
        if pod.id() == self.host.netns().id() {
            return Ok(false);
        }
        let this = Arc::clone(self);
        let interface = request.key.interface_name.clone();
        let work = move || {
            let fetched = this.fetch_from_pod_now(&pod, &interface);
            fetched.map_err(|error| Failure::new(error.reason(), error.to_string()))
        };
        let seen = self.host.move_vf(Way::Home, work).await??;
        let found = self.cleanliness.prove(seen).await?;
        let is_clean = found.values().any(Vec::is_empty);
        if !is_clean && !found.is_empty() {
            self.signals.ask_for_pass();
        }
        Ok(is_clean)
    }

    fn fetch_from_pod_now(&self, pod: &Netns, interface: &str) -> Result<Vec<Seen>, MoveError> {
        const NOTHING: Vec<Seen> = Vec::new();
        let (mut inside, mut host) = (Rtnl::open_in(pod)?, self.host.rtnl()?);
        let Some(link) = inside.link_by_name(interface)? else { return Ok(NOTHING) };
        let Some(vf) = self.host.source().vf_of(&link) else { return Ok(NOTHING) };
        let Some(own) = self.cleanliness.own_state(&vf) else { return Ok(NOTHING) };
        let name = Some(own.name.as_str());
        let find = |host: &mut Rtnl| vf_source::find(self.host.source(), host, &vf.device, name);
        // A link that only looks like a VF which is elsewhere stays where it is.
        if self.host.records().by_device(&vf.device).is_some() || find(&mut host)?.is_some() {
            return Ok(NOTHING);
        }
        self.cleanliness.proofs().suspect(&vf.device);
        take_out(&mut inside, &link, (self.host.netns(), &mut host), &own.name)?;
        let Some(link) = find(&mut host)? else { return Ok(NOTHING) };
        let port = self.host.source().pf_port(&vf.device);
        make_clean(&mut host, &link, &own, port.as_ref())?;
        tracing::info!(
            vf = vf.device.as_str(),
            was = interface,
            "moved a VF without a record back"
        );
        Ok(self.cleanliness.see(&[(vf, link.index)])?)
    }

    /// Moves misplaced VFs back, and returns which could not be moved, and why. VFs that the DPU `held` without a
    /// record here stay: a pod may run on them.
    pub(in crate::agent) async fn fetch_all(self: &Arc<Self>, held: HashSet<Device>) -> Obstacles {
        let this = Arc::clone(self);
        let done = self.host.look(move || this.fetch_all_now(&held)).await;
        done_or_nothing(done, "move back VFs that no record names")
    }

    fn fetch_all_now(&self, held: &HashSet<Device>) -> Result<Obstacles, Error> {
        let mut obstacles = Obstacles::new();
        for abroad in self.find(&self.host.links()?.links) {
            let (device, subject) = (&abroad.vf.device, self.host.subject_of(&abroad.vf));
            if held.contains(device) && self.host.records().by_device(device).is_none() {
                let why = "an attachment of the DPU holds it: a pod may run on it";
                obstacles.insert(subject, why.into());
                continue;
            }
            let from = abroad.path.display();
            match self.fetch(&abroad) {
                Ok(true) => self.repairs.note(&subject, format!("moved back from {from}")),
                Ok(false) => {
                    tracing::info!(vf = device.as_str(), %from, "the VF has left the namespace");
                }
                Err(error) => drop(obstacles.insert(subject, error.to_string())),
            }
        }
        Ok(obstacles)
    }

    /// Moves a VF back, and returns whether it was still at its place. The restore of free VFs does the rest.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(in crate::agent) fn fetch(&self, abroad: &VfAbroad) -> Result<bool, Error> {
        let mut host = self.host.rtnl()?;
        let Some((mut inside, link)) = self.seen_again(abroad)? else { return Ok(false) };
        let recorded = self.host.records().by_device(&abroad.vf.device);
        let name = match (&recorded, self.cleanliness.own_state(&abroad.vf)) {
            (Some(record), _) => record.original.name.clone(),
            (None, Some(own)) => own.name.clone(),
            (None, None) => link.name.clone(),
        };
        self.cleanliness.proofs().suspect(&abroad.vf.device);
        take_out(&mut inside, &link, (self.host.netns(), &mut host), &name)?;
        Ok(true)
    }

    /// The VF's link where it was seen. `None`: it has left since, or is there for a record by now. A
    /// path such as a process's may lead to another namespace by now, and a link's index means
    /// another link there.
    fn seen_again(&self, abroad: &VfAbroad) -> Result<Option<(Rtnl, Link)>, Error> {
        let VfAbroad { vf, link, netns, path } = abroad;
        let Ok(opened) = Netns::open(path) else { return Ok(None) };
        if opened.id() != *netns || self.is_recorded_in(vf, *netns) {
            return Ok(None);
        }
        let mut inside = Rtnl::open_in(&opened)?;
        let name = Some(link.name.as_str());
        let found = vf_source::find(self.host.source(), &mut inside, &vf.device, name)?;
        Ok(found.map(|link| (inside, link)))
    }

    /// Whether a record has the VF in that namespace. A process may keep the namespace of an attachment that is given
    /// back, without the path by which the record knows it: the way home by the record ends there.
    fn is_recorded_in(&self, vf: &VfIdentity, netns: NetnsId) -> bool {
        let Some(record) = self.host.records().by_device(&vf.device) else { return false };
        let is_lost = record.phase == Phase::Releasing && record.netns.living().is_none();
        record.netns.id == netns && !is_lost
    }

    /// The VFs in namespaces other than the host's and those of records, `at_home` being the links of
    /// the host's. Namespaces that can't be looked into are passed over.
    pub(in crate::agent) fn find(&self, at_home: &[Link]) -> Vec<VfAbroad> {
        let mut namespaces = namespaces(&self.folders, self.host.netns().id().dev);
        namespaces.remove(&self.host.netns().id());
        let mut abroad = Vec::new();
        for (netns, path) in namespaces {
            for (vf, link) in self.vfs_in(&path) {
                let is_at_home =
                    vf_source::link_of(self.host.source(), at_home, &vf.device).is_some();
                if !self.is_recorded_in(&vf, netns) && !is_at_home {
                    abroad.push(VfAbroad { vf, link, netns, path: path.clone() });
                }
            }
        }
        abroad
    }

    fn vfs_in(&self, path: &Path) -> Vec<(VfIdentity, Link)> {
        let links = Netns::open(path)
            .map_err(|error| error.to_string())
            .and_then(|netns| Rtnl::open_in(&netns).map_err(|error| error.to_string()))
            .and_then(|mut rtnl| rtnl.links().map_err(|error| error.to_string()));
        match links {
            Ok(links) => vf_source::vfs(self.host.source(), &links)
                .map(|(vf, link)| (vf, link.clone()))
                .collect(),
            Err(error) => {
                tracing::debug!(path = %path.display(), error, "cannot look into the namespace");
                Vec::new()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use vf_alloc::FunctionId;

    use super::*;
    use crate::agent::vfs::room::tests::vfs;

    const OWN: &str = "/proc/self/ns/net";

    #[tokio::test]
    async fn vf_is_moved_back_only_from_known_place() {
        let (vfs, _folder) = vfs();
        let own = Netns::current().unwrap().id();
        let another = NetnsId { inode: own.inode + 1, ..own };
        // Each namespace has a loopback of that index.
        let mut link = Link::default();
        (link.index, link.name) = (1, "lo".into());
        for (netns, path) in [(own, "/nowhere"), (another, OWN), (own, OWN)] {
            let vf = VfIdentity { id: FunctionId::local(0, 3), device: "d000:00:00.4".into() };
            let abroad = VfAbroad { vf, link: link.clone(), netns, path: path.into() };
            assert!(!vfs.abroad().fetch(&abroad).unwrap(), "{netns} {path}");
        }
    }
}
