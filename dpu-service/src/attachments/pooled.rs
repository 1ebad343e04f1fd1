//! Which of a host's VFs are in which pool, and which pool a network draws from: for who hands VFs out on the host, and
//! for its agent, which begins to move a VF before it has asked for it.

use std::collections::HashMap;

use vf_alloc::{Device, HostId, PfId, Policy, PoolSpec, VfState};

use super::{
    hosts::Hosts,
    registry::{PooledNetwork, Registry},
};
use crate::model::{AttachmentId, HostName};

/// All that a host is told of pools.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostPools {
    /// Those that have VFs of the host, in the configuration's order.
    pub pools: Vec<HostPool>,
    /// The pool that each network draws from.
    pub of_networks: HashMap<String, String>,
    /// The network of an attach that names none.
    pub default_network: Option<String>,
}

/// A pool, as far as it has VFs of one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPool {
    /// Its name.
    pub name: String,
    /// Whether its VFs are only given to requests that name one.
    pub pinned_only: bool,
    /// Which of several PFs comes first.
    pub policy: Policy,
    /// Its VFs of that host.
    pub vfs: Vec<PooledVf>,
}

/// A VF of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PooledVf {
    /// What its host knows it by.
    pub device: Device,
    /// Its PF.
    pub pf: PfId,
    /// Why it will not be given out, be it held now or not.
    pub problem: Option<String>,
}

impl Hosts<'_> {
    /// The pools that have VFs of the host.
    #[must_use]
    pub fn pools(self, host: &HostName) -> HostPools {
        let registry = self.0.registry();
        let Ok(number) = registry.hosts().number(host) else { return HostPools::default() };
        let pools = registry.vfs().pools().map(|spec| host_pool(&registry, number, spec));
        let networks = || registry.networks().iter().map(PooledNetwork::network);
        let default_network = networks().find(|network| network.default);
        HostPools {
            pools: pools.filter(|pool| !pool.vfs.is_empty()).collect(),
            of_networks: networks().map(|it| (it.name.clone(), it.pool.clone())).collect(),
            default_network: default_network.map(|network| network.name.clone()),
        }
    }
}

fn host_pool(registry: &Registry, host: HostId, spec: &PoolSpec) -> HostPool {
    let is_of_host = |known: &vf_alloc::VfView<'_, AttachmentId>| {
        known.facts.is_some_and(|facts| facts.host == host && spec.selects(known.vf, Some(facts)))
    };
    let vfs = registry.vfs().vfs().filter(is_of_host).map(|known| PooledVf {
        problem: problem(&known),
        pf: known.vf.pf,
        device: known.facts.map(|facts| facts.device.clone()).unwrap_or_default(),
    });
    HostPool {
        name: spec.name.clone(),
        pinned_only: spec.pinned_only,
        policy: spec.policy,
        vfs: vfs.collect(),
    }
}

/// One that an attachment holds is no problem, for that ends.
fn problem(known: &vf_alloc::VfView<'_, AttachmentId>) -> Option<String> {
    if let Some(reason) = known.quarantine {
        return Some(format!("quarantined: {reason}"));
    }
    if !known.has_port {
        return Some("it has no representor on the DPU".into());
    }
    match &known.state {
        VfState::Absent { reason } => Some(reason.clone()),
        _ => None,
    }
}
