//! What keeps frames from passing a pod's port: settings of the bridge's that another program has changed.

use std::collections::BTreeSet;

use netlink::{BridgePort, Error, Link, Request, Rtnl};

/// A port that exchanges frames with all others, as the kernel makes it. What a station behind it is known by is left
/// out: see [`super::stations`].
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

/// The port's state, where no spanning tree decides about it.
const STATE: &str = "state";

/// The settings that do so, by the names that `bridge` and `ip` have for them.
pub(super) fn held_back_by(port: &Link, runs_stp: bool) -> BTreeSet<&'static str> {
    let state = is_stopped(port, runs_stp).then_some(STATE);
    changed(port).chain(state).collect()
}

/// Has all frames pass. A setting that is as it should be is not written: a card may refuse even that.
pub(super) fn open(rtnl: &mut Rtnl, port: &Link, runs_stp: bool) -> Result<(), Error> {
    if is_stopped(port, runs_stp) {
        return rtnl.change(Request::set_and_forward_bridge_port(port.index, &OPEN));
    }
    if changed(port).next().is_none() {
        return Ok(());
    }
    rtnl.change(Request::set_bridge_port(port.index, &OPEN))
}

/// The settings that are not as the kernel makes them. One that an old kernel does not tell is none.
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

/// Whether the port has a carrier and does not forward. Without a spanning tree the kernel has such a port forward, unless
/// another program has disabled it (`br_port_state_selection` in net/bridge/br_stp.c).
fn is_stopped(port: &Link, runs_stp: bool) -> bool {
    !runs_stp && port.bridge_port.is_some() && port.is_running && !port.is_forwarding
}
