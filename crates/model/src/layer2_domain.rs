//! Layer-2 domains. An address belongs to one attachment of a domain.
//!
//! A network is in the domain of its VLAN in its bridge. Pods of two domains do not exchange frames, so both
//! domains may have the same subnet. All code that asks for the holder of an address uses [`DomainAddress`].

use std::{fmt, net::IpAddr, sync::Arc};

use ipnetwork::IpNetwork;

use super::{Lease, Network, Record};

/// The journal's word for no VLAN in keys.
const UNTAGGED: &str = "untagged";

/// A VLAN of a bridge.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Layer2Domain {
    /// `None`: the fabric's first bridge.
    bridge: Option<Arc<str>>,
    /// `None`: what is untagged.
    vlan: Option<u16>,
}

/// An address in a layer-2 domain. At most one attachment holds it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DomainAddress {
    /// The domain.
    pub domain: Layer2Domain,
    /// The address.
    pub address: IpAddr,
}

impl Layer2Domain {
    /// The form in the journal's keys: the VLAN or `untagged`, then the bridge unless it is the first.
    pub fn in_key(&self) -> String {
        let vlan = self.vlan.map_or_else(|| UNTAGGED.to_owned(), |vlan| vlan.to_string());
        match &self.bridge {
            Some(bridge) => format!("{vlan} {bridge}"),
            None => vlan,
        }
    }

    /// Parses what [`Self::in_key`] returned.
    pub fn of_key(text: &str) -> Option<Self> {
        let (vlan, bridge) = match text.split_once(' ') {
            Some((vlan, bridge)) => (vlan, Some(bridge.into())),
            None => (text, None),
        };
        let vlan = if vlan == UNTAGGED { None } else { Some(vlan.parse().ok()?) };
        Some(Self { bridge, vlan })
    }
}

/// The key of an address in cool-down. The journal has one row for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CooledAddress {
    /// The name of the address's network.
    pub network: String,
    /// The address, in the domain where it was held.
    pub at: DomainAddress,
}

/// Finds the layer-2 domains of networks.
#[derive(Clone, Debug, Default)]
pub struct Layer2Domains {
    /// The bridge of networks that name none.
    first_bridge: Option<Arc<str>>,
}

impl Layer2Domains {
    /// For a fabric with these bridges. The first one serves networks that name none.
    pub fn of_bridges(bridges: &[String]) -> Self {
        Self { first_bridge: bridges.first().map(|name| name.as_str().into()) }
    }

    /// The domain of a network's addresses.
    pub fn of(&self, network: &Network) -> Layer2Domain {
        self.with_vlan(network, network.vlan)
    }

    /// The domains that a network's pods can send to: its own first, then those of its trunk.
    pub fn reached_from(&self, network: &Network) -> impl Iterator<Item = Layer2Domain> {
        let trunk = network.trunk.iter().map(|vlan| Some(*vlan));
        [network.vlan].into_iter().chain(trunk).map(|vlan| self.with_vlan(network, vlan))
    }

    fn with_vlan(&self, network: &Network, vlan: Option<u16>) -> Layer2Domain {
        let first = self.first_bridge.as_deref();
        let named = network.bridge.as_deref().filter(|bridge| Some(*bridge) != first);
        Layer2Domain { bridge: named.map(Arc::from), vlan }
    }

    /// The addresses that an attachment holds. A pod with a trunk holds each address in all of its VLANs.
    pub fn held_by(&self, record: &Record) -> impl Iterator<Item = DomainAddress> {
        record.held().flat_map(|(network, lease)| {
            let address = lease.address.ip();
            self.reached_from(network).map(move |domain| DomainAddress { domain, address })
        })
    }

    /// The addresses that an attachment uses without holding them: see [`Record::used_addresses`].
    pub fn used_by(&self, record: &Record) -> impl Iterator<Item = DomainAddress> {
        let used = record.used_addresses();
        used.map(|(network, address)| DomainAddress { domain: self.of(network), address })
    }

    /// The key of a network's address in cool-down.
    pub fn cooled(&self, network: &Network, lease: &Lease) -> CooledAddress {
        CooledAddress {
            network: network.name.clone(),
            at: DomainAddress { domain: self.of(network), address: lease.address.ip() },
        }
    }

    /// A subnet of `one` and a subnet of `other` that overlap, if the networks are in different domains.
    pub fn shared_subnet(&self, one: &Network, other: &Network) -> Option<(IpNetwork, IpNetwork)> {
        if self.of(one) == self.of(other) {
            return None;
        }
        let cidrs =
            |network: &Network| network.subnets.iter().map(|of| of.cidr).collect::<Vec<_>>();
        let others = cidrs(other);
        cidrs(one)
            .into_iter()
            .find_map(|cidr| Some((cidr, *others.iter().find(|other| overlap(cidr, **other))?)))
    }
}

/// Whether two prefixes share an address.
pub fn overlap(one: IpNetwork, other: IpNetwork) -> bool {
    one.contains(other.network()) || other.contains(one.network())
}

impl fmt::Display for Layer2Domain {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.vlan {
            Some(vlan) => write!(out, "VLAN {vlan}")?,
            None => out.write_str("the untagged VLAN")?,
        }
        match &self.bridge {
            Some(bridge) => write!(out, " of bridge {bridge}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(rest: &str) -> Network {
        toml::from_str(&format!("name = 'a'\n{rest}")).unwrap()
    }

    fn domains() -> Layer2Domains {
        Layer2Domains::of_bridges(&["br0".into(), "br1".into()])
    }

    #[test]
    fn first_bridge_by_name_is_the_same_domain() {
        let of = |rest: &str| domains().of(&network(rest));
        assert_eq!(of("vlan = 7"), of("vlan = 7\nbridge = 'br0'"));
        assert_ne!(of("vlan = 7"), of("vlan = 7\nbridge = 'br1'"));
        assert_ne!(of("vlan = 7"), of(""));
        assert_eq!(of("vlan = 7\nbridge = 'br1'").to_string(), "VLAN 7 of bridge br1");
    }

    #[test]
    fn trunk_reaches_further_domains() {
        let trunk = network("vlan = 7\ntrunk = [8, 9]");
        let reached: Vec<_> = domains().reached_from(&trunk).collect();
        let expected = [7, 8, 9].map(|vlan| domains().of(&network(&format!("vlan = {vlan}"))));
        assert_eq!(reached, expected);
    }

    #[test]
    fn keys_are_read_as_written() {
        for rest in ["", "vlan = 7", "bridge = 'br1'", "vlan = 7\nbridge = 'br1'"] {
            let domain = domains().of(&network(rest));
            assert_eq!(Layer2Domain::of_key(&domain.in_key()), Some(domain));
        }
        assert_eq!(Layer2Domain::of_key("seven"), None);
    }

    #[test]
    fn subnets_are_shared_across_domains_only() {
        let with = |vlan: u16, cidr: &str| {
            network(&format!("vlan = {vlan}\nsubnets = [{{ cidr = '{cidr}' }}]"))
        };
        let shared = |one: &Network, other: &Network| domains().shared_subnet(one, other).is_some();
        let one = with(7, "10.1.0.0/16");
        assert!(shared(&one, &with(8, "10.1.2.0/24")) && shared(&with(8, "10.0.0.0/8"), &one));
        assert!(!shared(&one, &with(7, "10.1.2.0/24")) && !shared(&one, &with(8, "10.2.0.0/24")));
    }
}
