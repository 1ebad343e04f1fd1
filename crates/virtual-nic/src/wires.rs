//! Joins the ports of a simulated card to wires, the inner ends of the VFs' veth pairs.
//!
//! What a pod sends is received at the wire and redirected to the representor's ingress. What the switch sends to the
//! representor is redirected to the wire's egress. Programs that watch the representor therefore see what they would
//! see at a real card's.

use netlink::{Error, Family, Hook, Link, Netns, Redirect, Rtnl, set_sysctl};
use vf_alloc::software_card::CardLink;

use crate::netdevsim::Device;

/// Largest MTU of a veth pair: the port or the VF limits frames, not the wire.
pub(crate) const WIRE_MTU: u32 = 65535;

/// Joins all new ports to their wires.
pub(crate) fn join_all(device: &Device, netns: &Netns, rtnl: &mut Rtnl) -> Result<(), Error> {
    let links = rtnl.links()?;
    let wires = links.iter().filter_map(|wire| Some((port_of(device, wire, &links)?, wire)));
    let wires: Vec<_> = wires.collect();
    let redirects = wires.iter().flat_map(|(port, wire)| redirects(port.index, wire.index));
    rtnl.traffic_control().add_redirects(&redirects.collect::<Vec<_>>())?;
    netns.run(|| wires.iter().for_each(|(_, wire)| disable_ipv6(wire)))
}

/// Joins one port to its wire, replacing earlier redirections.
pub(crate) fn join(port: u32, wire: &Link, netns: &Netns, rtnl: &mut Rtnl) -> Result<(), Error> {
    for redirect in redirects(port, wire.index) {
        rtnl.traffic_control().set_redirect(&redirect)?;
    }
    netns.run(|| disable_ipv6(wire))
}

fn redirects(port: u32, wire: u32) -> [Redirect; 2] {
    [
        Redirect { from: (wire, Hook::Ingress), to: (port, Hook::Ingress) },
        Redirect { from: (port, Hook::Egress), to: (wire, Hook::Egress) },
    ]
}

/// The port to which a wire belongs.
fn port_of<'a>(device: &Device, wire: &Link, links: &'a [Link]) -> Option<&'a Link> {
    let card_link = |link: &Link| link.alias.as_deref().and_then(CardLink::of);
    match card_link(wire)? {
        CardLink::Wire(id) => links.iter().find(|link| device.represented(link) == Some(id)),
        CardLink::UplinkWire(id) => {
            links.iter().find(|link| card_link(link) == Some(CardLink::Uplink(id)))
        }
        _ => None,
    }
}

/// Disables IPv6 on a wire of the current namespace, so that the kernel sends nothing there. A failure is harmless: the
/// kernel may lack IPv6.
fn disable_ipv6(wire: &Link) {
    if let Err(error) = set_sysctl(Family::V6, &wire.name, "disable_ipv6", "1") {
        tracing::debug!(wire = wire.name, %error, "cannot disable IPv6 on a wire");
    }
}
