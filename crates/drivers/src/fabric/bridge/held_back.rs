//! Settings of the bridge's ports that keep frames from passing, and that another program may have changed.

use std::collections::BTreeSet;

use netlink::{BridgePort, Error, Link, Request, Rtnl};

/// The kernel's defaults: a port with these exchanges frames with all others. [`super::fdb`] sets learning and
/// unicast flooding.
const OPEN: BridgePort = BridgePort {
    learning: None,
    locked: Some(false),
    isolated: Some(false),
    unicast_flood: None,
    multicast_flood: Some(true),
    broadcast_flood: Some(true),
    hairpin: None,
    proxy_arp: Some(false),
};

/// The port's STP state, where no spanning tree decides it.
const STATE: &str = "state";

/// The settings that hold the port back, by the names that `bridge` and `ip` use.
pub(super) fn held_back_by(port: &Link, runs_stp: bool) -> BTreeSet<&'static str> {
    let state = is_stopped(port, runs_stp).then_some(STATE);
    changed(port).chain(state).collect()
}

/// Makes all frames pass. Does not write correct settings: a card may refuse any write of these flags.
pub(super) fn open(rtnl: &mut Rtnl, port: &Link, runs_stp: bool) -> Result<(), Error> {
    if is_stopped(port, runs_stp) {
        return rtnl.change(Request::set_and_forward_bridge_port(port.index, &OPEN));
    }
    if changed(port).next().is_none() {
        return Ok(());
    }
    rtnl.change(Request::set_bridge_port(port.index, &OPEN))
}

/// The settings that differ from the defaults. An older kernel does not report all of them; those count as
/// unchanged.
fn changed(port: &Link) -> impl Iterator<Item = &'static str> + use<> {
    let found = port.bridge_port.unwrap_or_default();
    let settings = [
        ("locked", found.locked, OPEN.locked),
        ("isolated", found.isolated, OPEN.isolated),
        ("mcast_flood", found.multicast_flood, OPEN.multicast_flood),
        ("bcast_flood", found.broadcast_flood, OPEN.broadcast_flood),
        ("proxy_arp", found.proxy_arp, OPEN.proxy_arp),
    ];
    let is_changed = |(_, found, open): &(_, Option<bool>, _)| found.is_some() && found != open;
    settings.into_iter().filter(is_changed).map(|(name, ..)| name)
}

/// Whether the port has a carrier and does not forward. Without a spanning tree, the kernel lets such a port
/// forward unless another program has disabled it (`br_port_state_selection` in net/bridge/br_stp.c).
fn is_stopped(port: &Link, runs_stp: bool) -> bool {
    !runs_stp && port.bridge_port.is_some() && port.is_running && !port.is_forwarding
}
