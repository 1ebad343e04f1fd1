//! Joining the ports of a simulated card to the wires, which are the card's own ends of veth pairs.
//!
//! What the pod sends comes in at the wire, and from there at the representor; what the switch sends
//! to the representor leaves by the wire. So all who look at the representor see what they would see
//! at a real card's.

use netlink::{Error, Family, Hook, Link, Netns, Redirect, Rtnl, set_sysctl};

use crate::{UplinkAlias, UplinkWireAlias, WireAlias, netdevsim::Device, parsed};

/// The largest that a veth pair takes: what is too long, the port or the VF says, not the wire.
pub(crate) const WIRE_MTU: u32 = 65535;

/// Joins all ports to their wires, right after they were made.
pub(crate) fn join_all(device: &Device, netns: &Netns, rtnl: &mut Rtnl) -> Result<(), Error> {
    let links = rtnl.links()?;
    let wires = links.iter().filter_map(|wire| Some((port_of(device, wire, &links)?, wire)));
    let wires: Vec<_> = wires.collect();
    let redirects = wires.iter().flat_map(|(port, wire)| redirects(port.index, wire.index));
    rtnl.traffic_control().add_redirects(&redirects.collect::<Vec<_>>())?;
    netns.run(|| wires.iter().for_each(|(_, wire)| silence(wire)))
}

/// Joins one port to its wire, whatever they were joined to before.
pub(crate) fn join(port: u32, wire: &Link, netns: &Netns, rtnl: &mut Rtnl) -> Result<(), Error> {
    for redirect in redirects(port, wire.index) {
        rtnl.traffic_control().set_redirect(&redirect)?;
    }
    netns.run(|| silence(wire))
}

fn redirects(port: u32, wire: u32) -> [Redirect; 2] {
    [
        Redirect { from: (wire, Hook::Ingress), to: (port, Hook::Ingress) },
        Redirect { from: (port, Hook::Egress), to: (wire, Hook::Egress) },
    ]
}

/// The port that a link is the wire of.
fn port_of<'a>(device: &Device, wire: &Link, links: &'a [Link]) -> Option<&'a Link> {
    let alias = wire.alias.as_deref();
    if let Some(WireAlias(id)) = parsed(alias) {
        return links.iter().find(|link| device.represented(link) == Some(id));
    }
    let UplinkWireAlias(id) = parsed(alias)?;
    links.iter().find(|link| parsed(link.alias.as_deref()) == Some(UplinkAlias(id)))
}

/// Keeps the kernel from talking IPv6 on a wire of the namespace that this runs in. Where it can't
/// talk IPv6 at all, there is nothing to do.
fn silence(wire: &Link) {
    if let Err(error) = set_sysctl(Family::V6, &wire.name, "disable_ipv6", "1") {
        tracing::debug!(wire = wire.name, %error, "not silenced");
    }
}
