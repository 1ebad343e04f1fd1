//! Derives a gateway's state from the networks. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use ipnetwork::IpNetwork;
use netlink::{
    Family,
    nftables::{Chain, Hook, LinkName, Set, Table, Term},
};

use super::{
    names::{GATEWAYS, TABLE},
    neighbours,
    redirections::{self, Redirection},
    wanted::{PodAddress, Wanted},
};
use drivers::fabric::GatewayPort;
use model::{GatewayMode, Network, Subnet};

/// The prefix length of link-local addresses.
const LINK_LOCAL_PREFIX: u8 = 64;

// Protocols that the gateway answers itself.
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The wanted state of this DPU as a gateway.
#[derive(Clone, Debug, Default)]
pub(super) struct Plan {
    /// The networks with this DPU as their gateway, by name.
    pub(super) networks: Vec<Arc<Network>>,
    /// The redirections of mapped ports into these networks.
    pub(super) redirections: Vec<Redirection>,
    /// The addresses of the pods in these networks.
    pub(super) pods: Vec<PodAddress>,
}

impl Plan {
    pub(super) fn of(wanted: Wanted) -> Self {
        let Wanted { mut networks, mut redirections, mut pods } = wanted;
        networks.retain(|network| network.gateway_mode == GatewayMode::Dpu);
        // An attachment's snapshot may predate its network's change of gateway.
        let names: BTreeSet<_> = networks.iter().map(|network| network.name.as_str()).collect();
        redirections.retain(|redirection| names.contains(redirection.network.name.as_str()));
        pods.retain(|pod| names.contains(pod.network.name.as_str()));
        Self { networks, redirections, pods }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    pub(super) fn ports(&self) -> Vec<GatewayPort> {
        let port = |network: &Arc<Network>| GatewayPort {
            network: network.name.clone(),
            bridge: network.bridge.clone(),
            vlan: network.vlan,
            mtu: network.mtu,
        };
        self.networks.iter().map(port).collect()
    }

    /// The table. It contains the name of every gateway's link, existing or not: a link without rules would be open
    /// to all. `ports` are the links under which packets between the fabric's ports appear. On a DPU that is a
    /// router for other purposes, the uplinks forward as before.
    pub(super) fn table(
        &self,
        name_of: impl Fn(&str) -> Option<String>,
        uplinks: &[String],
        ports: &[String],
        unrouted: &[Family],
    ) -> Table {
        let name = |network: &Arc<Network>| Some(LinkName::new(&name_of(&network.name)?));
        let names: BTreeMap<&str, LinkName> = self
            .networks
            .iter()
            .filter_map(|network| Some((network.name.as_str(), name(network)?)))
            .collect();
        let translated = self.networks.iter().filter(|network| network.nat);
        // A port link that is also an uplink has packets of its own, whose connections must be tracked.
        let ports = ports.iter().filter(|link| !uplinks.contains(link));
        let uplinks: Vec<_> = uplinks.iter().map(|uplink| LinkName::new(uplink)).collect();
        let mut sets = vec![
            Set::of_links(c"ports", ports.map(|link| LinkName::new(link))),
            Set::of_links(GATEWAYS, names.values().copied()),
            Set::of_links(GATEWAYS, names.values().copied()).for_arp(),
            Set::of_links(c"uplinks", uplinks.iter().copied()),
            Set::of_links(
                c"translated",
                translated.filter_map(|network| names.get(network.name.as_str()).copied()),
            ),
            Set::of_pairs(c"reaches", self.pairs(&names)),
            Set::of_links(redirections::ENTRANCES, names.values().copied().chain(uplinks)),
            Set::of_pairs(redirections::HAIRPINS, names.values().map(|name| (*name, *name))),
        ];
        sets.extend(redirections::sets(&self.redirections));
        sets.extend(neighbours::sets(&self.pods));
        Table::new(TABLE, sets, chains(unrouted))
    }

    /// Pairs each network with itself, because a gateway routes between its subnets, and with those in its
    /// `reaches`.
    fn pairs(&self, names: &BTreeMap<&str, LinkName>) -> BTreeSet<(LinkName, LinkName)> {
        let pairs_of = |network: &Arc<Network>| {
            let targets =
                network.reaches.iter().chain([&network.name]).cloned().collect::<Vec<_>>();
            let from = names.get(network.name.as_str()).copied();
            let to = targets.into_iter().filter_map(|target| names.get(target.as_str()).copied());
            let pairs: Vec<_> = to.filter_map(|to| Some((from?, to))).collect();
            pairs
        };
        self.networks.iter().flat_map(pairs_of).collect()
    }
}

/// The chains. Packets that concern no gateway pass all of them.
fn chains(unrouted: &[Family]) -> Vec<Chain> {
    let known = || vec![Term::OfKnownConnection, Term::Accept];
    let own = |protocol| vec![Term::From(GATEWAYS), Term::Protocol(protocol), Term::Accept];
    // Pods reach their gateway's ICMP and nothing else of this DPU.
    let input = vec![known(), own(ICMP), own(ICMPV6), vec![Term::From(GATEWAYS), Term::Drop]];
    let mut forward = vec![known()];
    forward.extend(neighbours::limiting());
    forward.extend(redirections::forwarding());
    forward.extend([
        vec![Term::From(GATEWAYS), Term::To(c"uplinks"), Term::Accept],
        vec![Term::From(c"uplinks"), Term::To(GATEWAYS), Term::Accept],
        vec![Term::Between(c"reaches"), Term::Accept],
        vec![Term::From(GATEWAYS), Term::Drop],
        vec![Term::To(GATEWAYS), Term::Drop],
    ]);
    // Uplinks forward for the gateways. The kernel checks only the input link's setting, so without this rule all
    // other links of the DPU would be reachable from outside.
    let closed =
        |family: &Family| vec![Term::From(c"uplinks"), Term::OfFamily(*family), Term::Drop];
    forward.extend(unrouted.iter().map(closed));
    let mut leaving = redirections::returning();
    leaving.push(vec![Term::From(c"translated"), Term::To(c"uplinks"), Term::Masquerade]);
    // The fabric may show the packet filter frames that it bridges, including pods' packets to the gateway. If they
    // were tracked there, translation at the gateway would come too late. The second rule drops spoofed sources: a
    // pod may write any, and two networks may share a VLAN.
    let mut arriving = vec![
        vec![Term::From(c"ports"), Term::Untracked],
        vec![Term::From(GATEWAYS), Term::FromElsewhere, Term::Drop],
    ];
    arriving.extend(neighbours::limiting_sources());
    vec![
        Chain { name: c"arriving", hook: Hook::BeforeTracking, rules: arriving },
        Chain {
            name: c"redirecting",
            hook: Hook::DestinationTranslation,
            rules: redirections::redirecting(),
        },
        Chain { name: c"input", hook: Hook::Input, rules: input },
        Chain { name: c"requests", hook: Hook::Arp, rules: neighbours::limiting_arp() },
        Chain { name: c"forward", hook: Hook::Forward, rules: forward },
        Chain { name: c"leaving", hook: Hook::SourceTranslation, rules: leaving },
    ]
}

/// The gateway's addresses with their prefixes on its link.
pub(super) fn addresses(network: &Network) -> Vec<IpNetwork> {
    let address = |subnet: &Subnet| {
        let gateway = subnet.gateway?;
        let length = if is_link_local(gateway) { LINK_LOCAL_PREFIX } else { subnet.cidr.prefix() };
        IpNetwork::new(gateway, length).ok()
    };
    let addresses: BTreeSet<_> = network.subnets.iter().filter_map(address).collect();
    addresses.into_iter().collect()
}

/// The subnets with a link-local gateway: no address of the link covers them, so they need routes.
pub(super) fn routes(network: &Network) -> impl Iterator<Item = IpNetwork> {
    let subnets = network.subnets.iter();
    subnets.filter(|subnet| subnet.gateway.is_some_and(is_link_local)).map(|subnet| subnet.cidr)
}

pub(super) const fn is_link_local(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(name: &str, rest: &str) -> Arc<Network> {
        let text = format!("name = {name:?}\ngateway_mode = 'dpu'\n{rest}");
        Arc::new(toml::from_str(&text).unwrap())
    }

    fn plan(networks: impl IntoIterator<Item = Arc<Network>>) -> Plan {
        let networks = networks.into_iter().collect();
        Plan::of(Wanted { networks, ..Wanted::default() })
    }

    #[test]
    fn only_dpu_gateways_get_a_link() {
        let other = Arc::new(toml::from_str("name = 'red'").unwrap());
        let plan = plan([network("blue", "vlan = 7\nmtu = 1400"), other]);
        let port = GatewayPort { network: "blue".into(), bridge: None, vlan: Some(7), mtu: 1400 };
        assert_eq!(plan.ports(), [port]);
    }

    #[test]
    fn networks_reach_themselves_and_named_ones() {
        let blue = network("blue", "reaches = ['green', 'gone']");
        let plan = plan([blue, network("green", ""), network("none", "")]);
        let (blue, green) = (LinkName::new("gw-blue"), LinkName::new("gw-green"));
        let expected = [(blue, blue), (blue, green), (green, green)];
        assert_eq!(plan.pairs(&[("blue", blue), ("green", green)].into()), expected.into());
    }

    #[test]
    fn rules_include_missing_links_and_close_uplinks() {
        let plan = plan([network("blue", "nat = true")]);
        let name_of = |network: &str| Some(format!("gw-{network}"));
        let table = |unrouted| plan.table(name_of, &["out".into()], &[], unrouted);
        assert_ne!(table(&[]), plan.table(|_| None, &["out".into()], &[], &[]));
        let rest = |family| vec![Term::From(c"uplinks"), Term::OfFamily(family), Term::Drop];
        let is_closed = |unrouted, family| {
            chains(unrouted).iter().any(|chain| chain.rules.contains(&rest(family)))
        };
        assert!(is_closed(&[Family::V4], Family::V4) && !is_closed(&[Family::V4], Family::V6));
        assert_ne!(table(&[]), table(&[Family::V6]));
    }

    #[test]
    fn link_local_gateway_has_its_own_route() {
        let subnets = "subnets = [{ cidr = '10.1.0.0/16', gateway = '10.1.0.1' },
                       { cidr = 'fd00:1::/64', gateway = 'fe80::1' }, { cidr = '10.2.0.0/16' }]";
        let blue = network("blue", subnets);
        let texts: Vec<_> = addresses(&blue).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["10.1.0.1/16", "fe80::1/64"]);
        let routes: Vec<_> = routes(&blue).map(|route| route.to_string()).collect();
        assert_eq!(routes, ["fd00:1::/64"]);
    }
}
