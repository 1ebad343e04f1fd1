//! The configured hosts.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use offload_proto::{Failure, Reason};
use vf_alloc::{HostId, PfId};

use model::{HostName, HostRights};

/// The configured hosts with their PFs, rights and numbers of VFs.
#[derive(Debug, Default)]
pub(crate) struct ServedHosts {
    pfs: BTreeMap<HostName, BTreeSet<PfId>>,
    wanted_vfs: BTreeMap<PfId, u32>,
    rights: BTreeMap<HostName, HostRights>,
    /// The allocator's numbers. A removed host keeps its number: its attachments may still hold VFs.
    numbers: HashMap<HostName, HostId>,
}

impl ServedHosts {
    pub(super) fn new(hosts: Vec<(HostName, Vec<PfId>)>, wanted_vfs: BTreeMap<PfId, u32>) -> Self {
        let mut served = Self::default();
        served.replace(hosts, wanted_vfs);
        served
    }

    pub(super) fn replace(
        &mut self,
        hosts: Vec<(HostName, Vec<PfId>)>,
        wanted_vfs: BTreeMap<PfId, u32>,
    ) {
        let numbered = self.numbers.len()..;
        let new = hosts.iter().filter(|(host, _)| !self.numbers.contains_key(host));
        let new: Vec<_> = new.map(|(host, _)| host.clone()).zip(numbered).collect();
        let number = |number| HostId(u32::try_from(number).unwrap_or(u32::MAX));
        self.numbers.extend(new.into_iter().map(|(host, next)| (host, number(next))));
        self.pfs = hosts.into_iter().map(|(host, pfs)| (host, pfs.into_iter().collect())).collect();
        self.wanted_vfs = wanted_vfs;
    }

    pub(super) fn set_rights(&mut self, rights: BTreeMap<HostName, HostRights>) {
        self.rights = rights;
    }

    pub(crate) fn rights(&self, host: &HostName) -> HostRights {
        self.rights.get(host).cloned().unwrap_or_default()
    }

    /// Names of all hosts, sorted.
    pub(crate) fn names(&self) -> impl Iterator<Item = &HostName> {
        self.pfs.keys()
    }

    pub(crate) fn serves(&self, host: &HostName) -> bool {
        self.pfs.contains_key(host)
    }

    /// The allocator's number of a served host.
    pub(crate) fn number(&self, host: &HostName) -> Result<HostId, Failure> {
        let number = self.numbers.get(host).filter(|_| self.serves(host));
        number.copied().ok_or_else(|| {
            let message = format!("host {host} is not one that this DPU serves");
            Failure::new(Reason::HostUnknown, message)
        })
    }

    pub(crate) fn owner(&self, pf: PfId) -> Option<&HostName> {
        self.pfs.iter().find(|(_, pfs)| pfs.contains(&pf)).map(|(host, _)| host)
    }

    pub(super) fn has(&self, host: &HostName, pf: PfId) -> bool {
        self.pfs.get(host).is_some_and(|pfs| pfs.contains(&pf))
    }

    /// The configured numbers of VFs of the host's PFs. PFs without one are left out.
    pub(crate) fn wanted_vfs(&self, host: &HostName) -> Vec<(PfId, u32)> {
        let pfs = self.pfs.get(host).into_iter().flatten();
        pfs.filter_map(|pf| Some((*pf, *self.wanted_vfs.get(pf)?))).collect()
    }
}
