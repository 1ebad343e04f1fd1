//! The gateways' links: veth pairs. One end is a port of the bridge in the network's VLAN, the other is the DPU's
//! own. The bridge therefore treats a gateway like a pod, with or without VLAN filtering, and the uplinks carry its
//! VLAN.
//!
//! Each end's alias names the network. One correct alias identifies a pair, since another program may change the
//! other one. The kernel sets no alias when it creates a link, so a pair without aliases is known by the names of
//! both ends: its creation was interrupted. If an end has been moved to another namespace, deleting the remaining
//! one deletes both.

use std::collections::BTreeMap;

use netlink::{
    BridgeVlan, Error, Family, Link, LinkChange, Request, Rtnl, VethEnd, gone_is_done, set_sysctl,
};

use super::vlans::access_vlan;
use crate::{
    driver::Refused,
    fabric::{GatewayLink, GatewayLinks, GatewayPort, gateway},
};

/// The prefixes of the aliases.
const OWN_ALIAS: &str = "dpu-offload gateway of ";
const PORT_ALIAS: &str = "dpu-offload port to the gateway of ";

/// The prefixes of the names.
const OWN_PREFIX: &str = "gw-";
const PORT_PREFIX: &str = "gp-";

/// The longest part of a name after its prefix: `IFNAMSIZ` allows 15 bytes.
const ROOM: usize = 12;

/// Whether a link of that name can be an end of such a pair.
pub(super) fn is_name(name: &str) -> bool {
    name.starts_with(OWN_PREFIX) || name.starts_with(PORT_PREFIX)
}

/// Deletes all pairs except those of `siblings`.
pub(super) fn remove_all(
    rtnl: &mut Rtnl,
    links: &[Link],
    siblings: &[u32],
) -> Result<GatewayLinks, Refused> {
    remove_others(rtnl, links, siblings, &[]).map(|_| GatewayLinks::new())
}

/// Deletes the pairs of networks that are not in `ports`, and single ends. Pairs of `siblings`, the fabric's other
/// bridges, stay. Returns how many links were deleted.
fn remove_others(
    rtnl: &mut Rtnl,
    links: &[Link],
    siblings: &[u32],
    ports: &[GatewayPort],
) -> Result<usize, Refused> {
    let is_in_sibling = |link: &Link| link.master.is_some_and(|master| siblings.contains(&master));
    let is_siblings = |link: &Link| {
        let is_end = |other: &&Link| are_pair(link, other) && is_in_sibling(other);
        is_in_sibling(link) || links.iter().any(|other| is_end(&other))
    };
    let is_wanted = |link: &Link| ports.iter().any(|port| own_name(&port.network) == link.name);
    let is_in_use = |end: &Link| {
        let wanted = ports.iter().find(|port| is_port_of(&port.network, end));
        wanted.is_some_and(|port| {
            let name = own_name(&port.network);
            links.iter().any(|own| own.name == name && are_pair(own, end))
        })
    };
    let is_unwanted = |link: &Link| {
        is_own_end(link, links) && !is_wanted(link) || is_port_end(link) && !is_in_use(link)
    };
    let is_surplus = |link: &&Link| is_unwanted(link) && !is_siblings(link);
    let surplus: Vec<_> = links.iter().filter(is_surplus).collect();
    for link in &surplus {
        // Deleting one end deletes the other, which may be in the list, too.
        let deleted = gone_is_done(rtnl.change(Request::delete_link(link.index)));
        deleted.map_err(|error| Refused::new(format!("delete {}", link.name), error))?;
    }
    Ok(surplus.len())
}

/// A bridge, and one listing of all links.
pub(super) struct GatewayPairs<'a> {
    pub(super) bridge: u32,
    /// The indices of the fabric's other bridges.
    pub(super) siblings: &'a [u32],
    pub(super) links: &'a [Link],
    /// The VLANs of the bridge's ports. `None`: it does not filter VLANs.
    pub(super) vlans: Option<&'a BTreeMap<u32, Vec<BridgeVlan>>>,
}

impl GatewayPairs<'_> {
    /// Creates or repairs the pairs of these networks and deletes all others. The second value says whether
    /// anything has changed.
    pub(super) fn set(
        &self,
        rtnl: &mut Rtnl,
        ports: &[GatewayPort],
    ) -> Result<(GatewayLinks, bool), Refused> {
        let mut has_changed = remove_others(rtnl, self.links, self.siblings, ports)? > 0;
        let mut ensure = |port| {
            let (link, is_changed) = self.ensure(rtnl, port)?;
            has_changed |= is_changed;
            Ok(link)
        };
        let links = ports.iter().map(&mut ensure).collect();
        Ok((links, has_changed))
    }

    /// Creates or repairs the pair of one network. The second value says whether anything has changed.
    fn ensure(&self, rtnl: &mut Rtnl, port: &GatewayPort) -> Result<(GatewayLink, bool), Refused> {
        let name = own_name(&port.network);
        let refused = |error| {
            Refused::new(format!("make the gateway's link {name} of {}", port.network), error)
        };
        // Before anything is created: a pair without its VLAN would be in the untagged network.
        self.check_vlan(port)?;
        let ends = self.ends(port)?;
        if let Some((own, other)) = ends
            && self.is_whole(port, own, other)
        {
            return Ok((link_of(port, own.index), false));
        }
        let (own, other) = match ends {
            Some((own, other)) => (own.index, other.index),
            None => make(rtnl, port).map_err(refused)?,
        };
        self.set_up(rtnl, port, own, other).map_err(refused)?;
        Ok((link_of(port, own), true))
    }

    fn check_vlan(&self, port: &GatewayPort) -> Result<(), Refused> {
        match port.vlan {
            Some(vlan) if self.vlans.is_none() => Err(Refused::because(format!(
                "network {} has VLAN {vlan}, and the bridge can't keep VLANs apart here",
                port.network
            ))),
            _ => Ok(()),
        }
    }

    /// The own end and the bridge's end of the network's pair, if it exists.
    fn ends(&self, port: &GatewayPort) -> Result<Option<(&Link, &Link)>, Refused> {
        let name = own_name(&port.network);
        let Some(own) = self.links.iter().find(|link| link.name == name) else { return Ok(None) };
        let other = self.links.iter().find(|link| are_pair(own, link));
        let is_networks = |other: &&Link| {
            own.alias.as_ref() == Some(&own_alias(&port.network))
                || is_port_of(&port.network, other)
                || own.alias.is_none() && is_begun(own, self.links)
        };
        match other.filter(is_networks) {
            Some(other) => Ok(Some((own, other))),
            None => Err(Refused::because(format!(
                "network {} needs the name {name} for its gateway's link, which another link has: \
                 rename or delete it",
                port.network
            ))),
        }
    }

    fn is_whole(&self, port: &GatewayPort, own: &Link, other: &Link) -> bool {
        let is_good = |link: &Link, alias: String| {
            link.is_up && link.mtu == port.mtu && link.alias.as_ref() == Some(&alias)
        };
        let has_vlans = self.vlans.is_none_or(|vlans| {
            vlans.get(&other.index).map(Vec::as_slice) == Some(&[access_vlan(port.vlan)][..])
        });
        is_good(own, own_alias(&port.network))
            && is_good(other, port_alias(&port.network))
            && own.mac == Some(gateway::mac_of(&port.network))
            && other.master == Some(self.bridge)
            && has_vlans
    }

    /// Switches on last: until the port is in its own VLAN only, no frame may pass.
    fn set_up(
        &self,
        rtnl: &mut Rtnl,
        port: &GatewayPort,
        own: u32,
        other: u32,
    ) -> Result<(), Error> {
        let (own_alias, port_alias) = (own_alias(&port.network), port_alias(&port.network));
        let change =
            LinkChange::new().alias(&own_alias).mac(gateway::mac_of(&port.network)).mtu(port.mtu);
        rtnl.change_link(own, &change)?;
        rtnl.change_link(other, &LinkChange::new().alias(&port_alias).mtu(port.mtu))?;
        rtnl.change_link(other, &LinkChange::new().master(Some(self.bridge)))?;
        if self.vlans.is_some() {
            super::BridgeFabric::set_vlans(rtnl, self.bridge, other, &[access_vlan(port.vlan)])?;
        }
        // Before the port is up: the kernel sends IPv6 messages of its own when a link comes up.
        keep_port_silent(&port_name(&port.network));
        rtnl.change_link(other, &LinkChange::new().up())?;
        rtnl.change_link(own, &LinkChange::new().up())
    }
}

fn make(rtnl: &mut Rtnl, port: &GatewayPort) -> Result<(u32, u32), Error> {
    let (own, other) = (own_name(&port.network), port_name(&port.network));
    let own_end = VethEnd::new(own.as_str()).mac(gateway::mac_of(&port.network)).mtu(port.mtu);
    rtnl.change(Request::add_veth(&own_end, &VethEnd::new(other.as_str()).mtu(port.mtu)))?;
    // The kernel chooses the indices, and the request does not return them.
    let mut index_of = |name: &str| Ok(rtnl.link_by_name(name)?.unwrap_or_default().index);
    Ok((index_of(&own)?, index_of(&other)?))
}

/// Disables IPv6 on the bridge's end: it must not take part in the network.
fn keep_port_silent(name: &str) {
    if let Err(error) = set_sysctl(Family::V6, name, "disable_ipv6", "1") {
        tracing::debug!(link = name, %error, "cannot disable IPv6 on a gateway's port");
    }
}

fn link_of(port: &GatewayPort, index: u32) -> GatewayLink {
    let network = port.network.clone();
    GatewayLink { index, name: own_name(&network), mac: gateway::mac_of(&network), network }
}

/// Whether the link is the own end of any pair. Its name alone does not prove that.
fn is_own_end(link: &Link, links: &[Link]) -> bool {
    let is_ours = match &link.alias {
        Some(alias) => alias.starts_with(OWN_ALIAS),
        None => is_begun(link, links),
    };
    is_ours && link.kind.as_deref() == Some("veth")
}

/// Whether the link is the bridge's end of any pair.
fn is_port_end(link: &Link) -> bool {
    let is_ours = link.alias.as_ref().is_some_and(|alias| alias.starts_with(PORT_ALIAS));
    is_ours && link.kind.as_deref() == Some("veth")
}

/// Whether the link is the bridge's end of that network's pair.
fn is_port_of(network: &str, link: &Link) -> bool {
    is_port_end(link) && link.alias.as_ref() == Some(&port_alias(network))
}

/// Whether the two links are both ends of one veth pair in this namespace.
fn are_pair(one: &Link, other: &Link) -> bool {
    let is_peer = |of: &Link, other: &Link| of.peer == Some(other.index) && of.peer_netns.is_none();
    one.kind.as_deref() == Some("veth") && is_peer(one, other) && is_peer(other, one)
}

/// Whether the link belongs to a pair whose creation was interrupted before the aliases were set.
fn is_begun(link: &Link, links: &[Link]) -> bool {
    let other = links.iter().find(|other| are_pair(link, other));
    let rests = link
        .name
        .strip_prefix(OWN_PREFIX)
        .zip(other.and_then(|other| other.name.strip_prefix(PORT_PREFIX)));
    rests.is_some_and(|(own, port)| own == port)
}

fn own_alias(network: &str) -> String {
    format!("{OWN_ALIAS}{network}")
}

fn port_alias(network: &str) -> String {
    format!("{PORT_ALIAS}{network}")
}

pub(super) fn own_name(network: &str) -> String {
    format!("{OWN_PREFIX}{}", short(network))
}

fn port_name(network: &str) -> String {
    format!("{PORT_PREFIX}{}", short(network))
}

/// The network's name, or its hash where the name is too long.
fn short(network: &str) -> String {
    match network.len() {
        0..=ROOM => network.to_owned(),
        _ => format!("{:012x}", gateway::hash(network) >> 16),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateway_link_names_fit() {
        assert_eq!(own_name("blue"), "gw-blue");
        assert_eq!(own_name("twelve-bytes"), "gw-twelve-bytes");
        let long = ["a-network-of-a-long-name", "a-network-of-a-long-nama"].map(own_name);
        assert!(long.iter().all(|name| name.len() == 15), "{long:?}");
        assert_ne!(long[0], long[1]);
        assert!(is_name(&long[0]) && is_name(&port_name("blue")) && !is_name("p0"));
    }

    fn veth(index: u32, name: &str, alias: Option<&str>) -> Link {
        let mut link = Link::default();
        (link.index, link.name, link.peer) = (index, name.into(), Some(index ^ 1));
        (link.kind, link.alias) = (Some("veth".into()), alias.map(Into::into));
        link
    }

    #[test]
    fn foreign_link_is_not_ours_by_name() {
        let is_ours = |own: &str, alias, other: &str| {
            let links = [veth(2, own, alias), veth(3, other, None)];
            is_own_end(&links[0], &links)
        };
        assert!(!is_ours("gw-lan", None, "lan0"));
        assert!(!is_ours("gw-lan", Some("of another program"), "gp-lan"));
        assert!(is_ours("gw-lan", None, "gp-lan"));
        assert!(is_ours("renamed", Some("dpu-offload gateway of lan"), "lan0"));
    }
}
