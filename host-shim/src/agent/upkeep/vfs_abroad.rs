//! VFs in network namespaces that no record names.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use netlink::{Error, Link, Netns, NetnsId, Rtnl};

use crate::agent::{Agent, done_or_nothing};
use crate::{
    mover::take_out,
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

/// Why VFs could not be brought home or restored, by what findings call them.
pub(in crate::agent) type Obstacles = HashMap<String, String>;

impl Agent {
    /// Brings the VFs home that are in namespaces that no record names. Those that the DPU `held` and
    /// nobody here has a record of stay: a pod may run on them.
    pub(in crate::agent) async fn fetch_vfs_abroad(
        self: &Arc<Self>,
        held: HashSet<String>,
    ) -> Obstacles {
        let agent = Arc::clone(self);
        let done = self.look(move || agent.fetch_vfs_abroad_now(&held)).await;
        done_or_nothing(done, "bring home the VFs that no record names")
    }

    fn fetch_vfs_abroad_now(&self, held: &HashSet<String>) -> Result<Obstacles, Error> {
        let mut obstacles = Obstacles::new();
        let mut host = Rtnl::open_in(&self.host)?;
        for abroad in self.vfs_abroad(&host.links()?) {
            let address = &abroad.vf.pci_address;
            if held.contains(address) && self.records.by_pci_address(address).is_none() {
                let why = "an attachment of the DPU holds it: a pod may run on it";
                obstacles.insert(self.subject_of(&abroad.vf), why.into());
                continue;
            }
            let from = abroad.path.display();
            match self.fetch(&abroad, &mut host) {
                Ok(true) => {
                    let subject = self.subject_of(&abroad.vf);
                    self.repairs.note(&subject, format!("brought home from {from}"));
                }
                Ok(false) => tracing::info!(vf = address, "it is not in {from} any more"),
                Err(error) => {
                    obstacles.insert(self.subject_of(&abroad.vf), error.to_string());
                }
            }
        }
        Ok(obstacles)
    }

    /// Brings a VF home, and tells whether it still was where it was seen. What it is to be like at
    /// home is restored by whoever restores VFs there.
    fn fetch(&self, abroad: &VfAbroad, host: &mut Rtnl) -> Result<bool, Error> {
        let Some((mut inside, link)) = self.seen_again(abroad)? else { return Ok(false) };
        let recorded = self.records.by_pci_address(&abroad.vf.pci_address);
        let name = match (&recorded, self.own_state(&abroad.vf)) {
            (Some(record), _) => record.original.name.clone(),
            (None, Some(own)) => own.name.clone(),
            (None, None) => link.name.clone(),
        };
        self.proofs.suspect(&abroad.vf.pci_address);
        take_out(&mut inside, &link, (&self.host, host), &name)?;
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
        let found = vf_source::find(&*self.source, &mut inside, &vf.pci_address, name)?;
        Ok(found.map(|link| (inside, link)))
    }

    fn is_recorded_in(&self, vf: &VfIdentity, netns: NetnsId) -> bool {
        let record = self.records.by_pci_address(&vf.pci_address);
        record.is_some_and(|record| record.netns.id == netns)
    }

    /// The VFs in namespaces other than the host's and those of records, `at_home` being the links of
    /// the host's. Namespaces that can't be looked into are passed over.
    pub(in crate::agent) fn vfs_abroad(&self, at_home: &[Link]) -> Vec<VfAbroad> {
        let mut namespaces = namespaces(&self.config.netns_folders(), self.host.id().dev);
        namespaces.remove(&self.host.id());
        let mut abroad = Vec::new();
        for (netns, path) in namespaces {
            for (vf, link) in self.vfs_in(&path) {
                let is_at_home =
                    vf_source::link_of(&*self.source, at_home, &vf.pci_address).is_some();
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
            Ok(links) => {
                vf_source::vfs(&*self.source, &links).map(|(vf, link)| (vf, link.clone())).collect()
            }
            Err(error) => {
                tracing::debug!(path = %path.display(), error, "not looked into");
                Vec::new()
            }
        }
    }
}

/// The namespaces that the entries of `folders` are, or have as `ns/net` as processes do in `/proc`:
/// one path of each. `dev` is the device of the file system that they all are on.
pub(in crate::agent) fn namespaces(folders: &[PathBuf], dev: u64) -> BTreeMap<NetnsId, PathBuf> {
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let mut found = BTreeMap::new();
    for entry in entries.filter_map(Result::ok) {
        let of_process = entry.path().join("ns/net");
        for path in [of_process, entry.path()] {
            if let Ok(metadata) = fs::metadata(&path)
                && metadata.is_file()
                && metadata.dev() == dev
            {
                found.entry(NetnsId::from(&metadata)).or_insert(path);
                break;
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::tests::agent;

    const OWN: &str = "/proc/self/ns/net";

    #[test]
    fn a_namespace_is_found_once_however_many_have_it() {
        let own = Netns::current().unwrap().id();
        let found = namespaces(&["/proc".into(), "/nowhere".into()], own.dev);
        assert!(found[&own].ends_with("ns/net"));
        assert!(found.values().all(|path| path != Path::new("/proc/mounts")), "is none");
    }

    #[tokio::test]
    async fn a_vf_is_not_brought_home_from_where_it_was_not_seen() {
        let (agent, _folder) = agent();
        let own = Netns::current().unwrap().id();
        let another = NetnsId { inode: own.inode + 1, ..own };
        // Each namespace has a loopback of that index.
        let mut link = Link::default();
        (link.index, link.name) = (1, "lo".into());
        for (netns, path) in [(own, "/nowhere"), (another, OWN), (own, OWN)] {
            let vf = VfIdentity { controller: 0, pf: 0, vf: 3, pci_address: "d000:00:00.4".into() };
            let abroad = VfAbroad { vf, link: link.clone(), netns, path: path.into() };
            let mut host = Rtnl::open_in(&agent.host).unwrap();
            assert!(!agent.fetch(&abroad, &mut host).unwrap(), "{netns} {path}");
        }
    }
}
