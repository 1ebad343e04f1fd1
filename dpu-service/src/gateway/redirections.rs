//! The maps and rules that redirect mapped ports to pods. Pure.
//!
//! A packet is redirected if it comes by an uplink or from a gateway's network, and its destination is one of the
//! DPU's own addresses. A mapping for another address would capture other devices' traffic. Packets that the DPU
//! sends itself are not redirected.

use std::{
    ffi::CStr,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use netlink::{
    Family,
    nftables::{ProtocolPort, Rule, Set, Term},
};

use model::{Network, PortMapping};

/// The target of a mapped port in one family.
#[derive(Clone, Debug)]
pub(crate) struct Redirection {
    pub(crate) network: Arc<Network>,
    pub(crate) mapping: PortMapping,
    /// The pod's address and port.
    pub(crate) target: SocketAddr,
}

impl Redirection {
    pub(super) fn family(&self) -> Family {
        if self.target.is_ipv4() { Family::V4 } else { Family::V6 }
    }

    pub(super) fn port(&self) -> ProtocolPort {
        let PortMapping { protocol, host_port, .. } = self.mapping;
        ProtocolPort { protocol: protocol.number(), port: host_port }
    }

    fn destination(&self) -> (IpAddr, ProtocolPort) {
        let protocol = self.mapping.protocol.number();
        (self.target.ip(), ProtocolPort { protocol, port: self.target.port() })
    }
}

/// The names of one family's sets and maps.
struct Names {
    family: Family,
    /// Maps ports of all addresses.
    anywhere: &'static CStr,
    /// Maps ports of one address each.
    at: &'static CStr,
    /// Contains the pods' ports.
    targets: &'static CStr,
}

const FAMILIES: [Names; 2] = [
    Names { family: Family::V4, anywhere: c"ports-v4", at: c"ports-at-v4", targets: c"targets-v4" },
    Names { family: Family::V6, anywhere: c"ports-v6", at: c"ports-at-v6", targets: c"targets-v6" },
];

/// The links whose packets may be redirected.
pub(super) const ENTRANCES: &CStr = c"entrances";

/// Pairs of each gateway's link with itself.
pub(super) const HAIRPINS: &CStr = c"hairpins";

/// The sets and maps of all rules. No two redirections may collide.
pub(super) fn sets(redirections: &[Redirection]) -> Vec<Set> {
    FAMILIES.iter().flat_map(|names| sets_of(names, redirections)).collect()
}

fn sets_of(names: &Names, redirections: &[Redirection]) -> [Set; 3] {
    let own = || redirections.iter().filter(|one| one.family() == names.family);
    let at = |one: &Redirection| Some(((one.mapping.one_address()?, one.port()), one.target));
    let anywhere = own().filter(|one| one.mapping.one_address().is_none());
    let anywhere = anywhere.map(|one| (one.port(), one.target));
    [
        Set::from_ports(names.anywhere, names.family, anywhere),
        Set::from_ports_at(names.at, names.family, own().filter_map(at)),
        Set::of_ports(names.targets, names.family, own().map(Redirection::destination)),
    ]
}

/// Rules for incoming packets.
pub(super) fn redirecting() -> Vec<Rule> {
    let rule = |term| vec![Term::From(ENTRANCES), Term::ToOwnAddress, term];
    let rules = |names: &Names| {
        [
            rule(Term::RedirectByPortAt(names.family, names.at)),
            rule(Term::RedirectByPort(names.family, names.anywhere)),
        ]
    };
    FAMILIES.iter().flat_map(rules).collect()
}

/// Rules for forwarded packets: redirected packets reach the pods' ports from every entrance, also from another
/// network.
pub(super) fn forwarding() -> Vec<Rule> {
    let rule = |names: &Names| {
        let target = Term::ToPort(names.family, names.targets);
        vec![Term::From(ENTRANCES), Term::Redirected, target, Term::Accept]
    };
    FAMILIES.iter().map(rule).collect()
}

/// Rules for redirected packets that leave by the link that they came by. The pod would answer its neighbour, or
/// itself, directly, and the client would not recognise the answer; with masquerading the answer passes the DPU. On
/// a link with link-local addresses only, the kernel takes an address of another link, which works, too.
pub(super) fn returning() -> Vec<Rule> {
    let rule = |names: &Names| {
        let target = Term::ToPort(names.family, names.targets);
        vec![Term::Between(HAIRPINS), Term::Redirected, target, Term::Masquerade]
    };
    FAMILIES.iter().map(rule).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Protocol;

    fn redirection(host_port: u16, host_ip: Option<&str>, target: &str) -> Redirection {
        let host_ip = host_ip.map(|ip| ip.parse().unwrap());
        let protocol = Protocol::Tcp;
        let mapping = PortMapping { host_port, protocol, host_ip, container_port: 80 };
        let network = Arc::new(toml::from_str("name = 'blue'").unwrap());
        Redirection { network, mapping, target: target.parse().unwrap() }
    }

    #[test]
    fn table_is_independent_of_attachment_order() {
        let one = redirection(80, None, "10.1.0.2:80");
        let other = redirection(81, Some("192.0.2.1"), "10.1.0.3:80");
        assert_eq!(sets(&[one.clone(), other.clone()]), sets(&[other, one]));
    }

    #[test]
    fn unspecified_host_ip_equals_none() {
        let any = redirection(80, Some("0.0.0.0"), "10.1.0.2:80");
        assert_eq!(sets(&[any]), sets(&[redirection(80, None, "10.1.0.2:80")]));
        let v6 = redirection(80, None, "[fd00::2]:80");
        assert_ne!(sets(&[v6]), sets(&[redirection(80, None, "10.1.0.2:80")]));
    }
}
