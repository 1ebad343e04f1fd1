//! Which of a host's VFs are in which pool, for the host's device plugin.

use vf_alloc::{Device, HostId, PoolSpec, VfState};

use super::{hosts::Hosts, registry::Registry};
use model::{AttachmentId, HostName};

/// The part of a pool that belongs to one host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostPool {
    pub name: String,
    /// Whether only requests that name a VF get one.
    pub pinned_only: bool,
    pub vfs: Vec<PooledVf>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PooledVf {
    pub device: Device,
    /// Why the VF is unavailable, whether it is held now or not.
    pub problem: Option<String>,
}

impl Hosts<'_> {
    /// The pools that have VFs of the host, in the configuration's order.
    pub fn pools(self, host: &HostName) -> Vec<HostPool> {
        let registry = self.0.registry();
        let Ok(number) = registry.hosts().number(host) else { return Vec::new() };
        let pools = registry.vfs().pools().map(|spec| host_pool(&registry, number, spec));
        pools.filter(|pool| !pool.vfs.is_empty()).collect()
    }
}

fn host_pool(registry: &Registry, host: HostId, spec: &PoolSpec) -> HostPool {
    let is_of_host = |known: &vf_alloc::VfView<'_, AttachmentId>| {
        known.facts.is_some_and(|facts| facts.host == host && spec.selects(known.vf, Some(facts)))
    };
    let vfs = registry.vfs().vfs().filter(is_of_host).map(|known| PooledVf {
        problem: problem(&known),
        device: known.facts.map(|facts| facts.device.clone()).unwrap_or_default(),
    });
    HostPool { name: spec.name.clone(), pinned_only: spec.pinned_only, vfs: vfs.collect() }
}

/// Why a VF is unavailable. A VF that an attachment holds has no problem: it becomes free again.
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
