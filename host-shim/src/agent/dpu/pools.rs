//! Which VFs the DPU gives out for which network, as it told last.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use offload_proto::v1::{PooledVf, VfPool, VfPools};
use vf_alloc::{Device, Policy};

use crate::agent::vfs::OpenPool;

/// The pools that VFs are given out of to whoever names none.
#[derive(Debug, Default)]
pub(super) struct Pools {
    by_name: HashMap<String, Arc<OpenPool>>,
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
        let is_open = |vf: &&PooledVf| {
            let named_only = named_only.iter().flat_map(|pool| &pool.vfs);
            vf.problem.is_empty() && !{ named_only }.any(|it| it.device == vf.device)
        };
        let by_name = open.into_iter().map(|pool| {
            let vfs = pool.vfs.iter().filter(is_open).collect();
            (pool.name.clone(), Arc::new(open_pool(&pool, vfs)))
        });
        Self { by_name: by_name.collect(), of_networks: network_pools, default_network }
    }
}

fn open_pool(pool: &VfPool, vfs: Vec<&PooledVf>) -> OpenPool {
    let mut by_pf: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for vf in vfs {
        let device = Device::from(vf.device.as_str());
        by_pf.entry((vf.controller, vf.pf)).or_default().push(device);
    }
    let policy = if pool.packs { Policy::Pack } else { Policy::Spread };
    OpenPool { policy, by_pf: by_pf.into_values().collect() }
}

impl Pools {
    /// The VFs that a network's attachments may get; of the default network if it has no name. None, where the DPU does
    /// not tell.
    pub(super) fn of_network(&self, network: &str) -> Arc<OpenPool> {
        let network = if network.is_empty() { &self.default_network } else { network };
        let pool = self.of_networks.get(network);
        pool.and_then(|pool| self.by_name.get(pool)).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(name: &str, pinned_only: bool, vfs: &[(&str, &str, u32)]) -> VfPool {
        let vf = |(device, problem, pf): &(&str, &str, u32)| PooledVf {
            device: (*device).into(),
            problem: (*problem).into(),
            controller: 0,
            pf: *pf,
        };
        VfPool { name: name.into(), pinned_only, vfs: vfs.iter().map(vf).collect(), packs: true }
    }

    #[test]
    fn a_network_has_the_vfs_of_its_pool_that_anybody_may_get() {
        let pools = vec![
            pool(
                "all",
                false,
                &[("a", "", 1), ("b", "quarantined", 0), ("c", "", 0), ("d", "", 0), ("e", "", 0)],
            ),
            pool("kubelets", true, &[("c", "", 0)]),
        ];
        let network_pools = [("blue", "all"), ("red", "kubelets")];
        let network_pools = network_pools.map(|(it, pool)| (it.into(), pool.into())).into();
        let pools = Pools::from(VfPools { pools, network_pools, default_network: "blue".into() });
        for network in ["", "blue"] {
            let pool = pools.of_network(network);
            assert_eq!(pool.policy, Policy::Pack);
            assert_eq!(pool.by_pf, [vec!["d".into(), "e".into()], vec![Device::from("a")]]);
        }
        let has_none = |pools: &Pools, network| pools.of_network(network).by_pf.is_empty();
        assert!(has_none(&pools, "red") && has_none(&pools, "green"));
        assert!(has_none(&Pools::default(), ""), "nothing is known of an older DPU");
    }
}
