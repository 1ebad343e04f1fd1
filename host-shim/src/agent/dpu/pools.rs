//! Which VFs the DPU gives out for which network, as it told last.

use std::{collections::HashMap, sync::Arc};

use offload_proto::v1::VfPools;
use vf_alloc::Device;

/// The pools that VFs are given out of to whoever names none.
#[derive(Debug, Default)]
pub(super) struct Pools {
    /// Their VFs that can be given out, held or not, by the pool's name.
    vfs: HashMap<String, Arc<[Device]>>,
    /// The pool of each network.
    of_networks: HashMap<String, String>,
    /// The network of who names none.
    default_network: String,
}

impl From<VfPools> for Pools {
    fn from(told: VfPools) -> Self {
        let VfPools { pools, network_pools, default_network } = told;
        let (named_only, open): (Vec<_>, Vec<_>) =
            pools.into_iter().partition(|pool| pool.pinned_only);
        let is_named_only = |device: &str| {
            named_only.iter().flat_map(|pool| &pool.vfs).any(|vf| vf.device == device)
        };
        let vfs = open.into_iter().map(|pool| {
            let vfs = pool.vfs.iter().filter(|vf| vf.problem.is_empty());
            let vfs = vfs.filter(|vf| !is_named_only(&vf.device));
            (pool.name, vfs.map(|vf| Device::from(vf.device.as_str())).collect())
        });
        Self { vfs: vfs.collect(), of_networks: network_pools, default_network }
    }
}

impl Pools {
    /// The VFs that a network's attachments may get; of the default network if it has no name. None, where the DPU does
    /// not tell.
    pub(super) fn vfs_for(&self, network: &str) -> Arc<[Device]> {
        let network = if network.is_empty() { &self.default_network } else { network };
        let pool = self.of_networks.get(network);
        pool.and_then(|pool| self.vfs.get(pool)).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::{PooledVf, VfPool};

    use super::*;

    fn pool(name: &str, pinned_only: bool, vfs: &[(&str, &str)]) -> VfPool {
        let vf = |(device, problem): &(&str, &str)| PooledVf {
            device: (*device).into(),
            problem: (*problem).into(),
        };
        VfPool { name: name.into(), pinned_only, vfs: vfs.iter().map(vf).collect() }
    }

    #[test]
    fn a_network_has_the_vfs_of_its_pool_that_anybody_may_get() {
        let pools = vec![
            pool("all", false, &[("a", ""), ("b", "quarantined"), ("c", "")]),
            pool("kubelets", true, &[("c", "")]),
        ];
        let network_pools = [("blue", "all"), ("red", "kubelets")];
        let network_pools = network_pools.map(|(it, pool)| (it.into(), pool.into())).into();
        let pools = Pools::from(VfPools { pools, network_pools, default_network: "blue".into() });
        assert_eq!(*pools.vfs_for(""), [Device::from("a")]);
        assert_eq!(*pools.vfs_for("blue"), [Device::from("a")]);
        assert!(pools.vfs_for("red").is_empty() && pools.vfs_for("green").is_empty());
        assert!(Pools::default().vfs_for("").is_empty(), "nothing is known of an older DPU");
    }
}
