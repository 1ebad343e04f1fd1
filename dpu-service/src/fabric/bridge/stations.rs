//! The stations behind a port: the one that was put there, or those that it has learnt. Who may send at all
//! is the guard's affair.

use std::collections::BTreeSet;

use netlink::{BridgePort, Error, FdbEntry, MacAddress, Request, Rtnl};

use crate::{driver::Reading, eswitch::Representor};

/// A port whose one station is known: nothing is learnt, and no frame for somebody unknown is sent there. It is
/// not `locked`, which would drop nothing that the guard lets pass, and which cards refuse that offload bridges
/// (mlx5: drivers/net/ethernet/mellanox/mlx5/core/en/rep/bridge.c takes no flags but those for learning and
/// flooding).
const SETTLED: BridgePort = port_settings(true);

/// A port as the kernel makes it.
const LEARNING: BridgePort = port_settings(false);

const fn port_settings(settled: bool) -> BridgePort {
    BridgePort {
        learning: Some(!settled),
        locked: None,
        isolated: None,
        unicast_flood: Some(!settled),
        multicast_flood: None,
        broadcast_flood: None,
        hairpin: None,
        proxy_arp: None,
    }
}

/// Has the station `mac` behind the port, in these VLANs, and no other.
pub(super) fn settle(
    rtnl: &mut Rtnl,
    port: &Representor,
    mac: MacAddress,
    vlans: &[Option<u16>],
) -> Result<(), Error> {
    // The forwarding table forgets a port that leaves: nobody has put a station behind one that was
    // in no bridge before this programming began, which saves a look at the whole table.
    let known = match port.master {
        None => Vec::new(),
        Some(_) => put_behind(rtnl, port.index)?,
    };
    let others = known.iter().filter(|entry| entry.mac != mac || !vlans.contains(&entry.vlan));
    let mut requests: Vec<Request<'_>> =
        others.map(|other| Request::delete_fdb(port.index, other.mac, other.vlan)).collect();
    // First: a pod that runs is at no moment without its own.
    requests.extend(vlans.iter().map(|vlan| Request::add_fdb(port.index, mac, *vlan)));
    // Whoever was learnt there before is forgotten.
    requests.push(Request::set_and_flush_bridge_port(port.index, &SETTLED));
    rtnl.batch(&requests)
}

/// Has the port learn who is behind it.
pub(super) fn release(rtnl: &mut Rtnl, port: u32) -> Result<(), Error> {
    let known = put_behind(rtnl, port)?;
    let mut requests: Vec<Request<'_>> =
        known.iter().map(|known| Request::delete_fdb(port, known.mac, known.vlan)).collect();
    requests.push(Request::set_bridge_port(port, &LEARNING));
    rtnl.batch(&requests)
}

/// What takes the stations away that are known in VLANs which the port is to leave. The kernel
/// would keep them, and refuse to delete them once the port has left.
pub(super) fn forget(
    rtnl: &mut Rtnl,
    port: u32,
    vlans: &[u16],
) -> Result<Vec<Request<'static>>, Error> {
    if vlans.is_empty() {
        return Ok(Vec::new());
    }
    let is_left = |entry: &FdbEntry| entry.vlan.is_some_and(|vlan| vlans.contains(&vlan));
    let known = put_behind(rtnl, port)?.into_iter().filter(is_left);
    Ok(known.map(|entry| Request::delete_fdb(port, entry.mac, entry.vlan)).collect())
}

/// Whether the port, which has these settings and is in these VLANs, has the station `mac` behind it and no
/// other; with `None`, whether it learns.
pub(super) fn find(
    rtnl: &mut Rtnl,
    port: u32,
    settings: Option<BridgePort>,
    vlans: &[Option<u16>],
    mac: Option<MacAddress>,
) -> Result<Reading, Error> {
    // A port that learns may have learnt any.
    let known = if mac.is_some() { rtnl.fdb_of(port)? } else { put_behind(rtnl, port)? };
    let known: BTreeSet<_> = known.iter().map(|entry| (entry.mac, entry.vlan)).collect();
    let expected = mac.iter().flat_map(|mac| vlans.iter().map(|vlan| (*mac, *vlan))).collect();
    let wanted = if mac.is_some() { &SETTLED } else { &LEARNING };
    let detail = if is_settled(settings, &SETTLED) {
        let known: BTreeSet<_> = known.iter().map(|(mac, _)| mac.to_string()).collect();
        format!("behind the port: {}", Vec::from_iter(known).join(" "))
    } else {
        "it is learnt who is behind the port".to_owned()
    };
    Ok(Reading { in_place: is_settled(settings, wanted) && known == expected, detail })
}

/// The stations that were put behind a port, not learnt there.
fn put_behind(rtnl: &mut Rtnl, port: u32) -> Result<Vec<FdbEntry>, Error> {
    Ok(rtnl.fdb_of(port)?.into_iter().filter(|entry| entry.is_static).collect())
}

fn is_settled(port: Option<BridgePort>, wanted: &BridgePort) -> bool {
    port.is_some_and(|port| {
        port.learning == wanted.learning && port.unicast_flood == wanted.unicast_flood
    })
}
