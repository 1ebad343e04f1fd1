//! What the DPU reports of its networks: at the session's start and after each change.

use std::collections::HashMap;

use offload_proto::v1::NetworkChanged;

#[derive(Debug, Default)]
pub(super) struct Networks {
    /// The prefix of unnamed interfaces, for networks that set one.
    pub interface_prefixes: HashMap<String, String>,
    /// The pool of each network.
    pub pools: HashMap<String, String>,
    /// The default network. Empty: there is none.
    pub default: String,
}

impl Networks {
    pub(super) fn interface_prefix(&self, network: &str) -> Option<&str> {
        self.interface_prefixes.get(self.named(network)).map(String::as_str)
    }

    /// `None`: the pool is unknown, or there is no such network.
    pub(super) fn pool_of(&self, network: &str) -> Option<&str> {
        self.pools.get(self.named(network)).map(String::as_str)
    }

    fn named<'a>(&'a self, network: &'a str) -> &'a str {
        if network.is_empty() { &self.default } else { network }
    }

    pub(super) fn note(&mut self, changed: &NetworkChanged) {
        let NetworkChanged { network, interface_prefix, pool, default_network, .. } = changed;
        for (known, value) in
            [(&mut self.interface_prefixes, interface_prefix), (&mut self.pools, pool)]
        {
            match value.as_str() {
                "" => drop(known.remove(network)),
                value => drop(known.insert(network.clone(), value.to_owned())),
            }
        }
        self.default.clone_from(default_network);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reported() -> Networks {
        let of = |value: &str| HashMap::from([("blue".to_owned(), value.to_owned())]);
        Networks { interface_prefixes: of("data"), pools: of("fast"), default: "blue".into() }
    }

    #[test]
    fn changed_networks_replace_earlier_reports() {
        let mut networks = reported();
        assert_eq!(
            [networks.interface_prefix("blue"), networks.interface_prefix("")],
            [Some("data"); 2]
        );
        assert_eq!(networks.interface_prefix("red"), None);
        assert_eq!([networks.pool_of("blue"), networks.pool_of("")], [Some("fast"); 2]);
        assert_eq!(networks.pool_of("red"), None);
        let changed = |interface_prefix: &str, pool: &str| NetworkChanged {
            network: "blue".into(),
            interface_prefix: interface_prefix.into(),
            pool: pool.into(),
            ..NetworkChanged::default()
        };
        networks.note(&changed("store", "slow"));
        assert_eq!(networks.interface_prefix("blue"), Some("store"));
        assert_eq!([networks.pool_of("blue"), networks.pool_of("")], [Some("slow"), None]);
        networks.note(&changed("", ""));
        assert!(networks.interface_prefix("blue").is_none() && networks.pool_of("blue").is_none());
    }
}
