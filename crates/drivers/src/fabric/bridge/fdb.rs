//! A port's entries in the forwarding database (FDB): the pod's own MAC address as a static entry, or learned ones.
//! The guard decides which addresses may send at all.

use std::collections::BTreeSet;

use netlink::{BridgePort, Error, FdbEntry, MacAddress, Request, Rtnl};

use crate::{driver::Reading, eswitch::Representor};

/// The settings of a port that learns, as by the kernel's default, or has a static entry. With one it does not learn,
/// and the bridge floods no unknown unicast to it. The port is not `locked`: that would drop nothing that the guard lets
/// pass, and cards refuse the flag when they offload bridges (mlx5 accepts only flags for learning and flooding:
/// drivers/net/ethernet/mellanox/mlx5/core/en/rep/bridge.c).
fn settings_of(learns: bool) -> BridgePort {
    BridgePort { learning: Some(learns), unicast_flood: Some(learns), ..BridgePort::default() }
}

/// Sets static entries for `mac` in these VLANs, and removes all other entries of the port.
pub(super) fn set_static(
    rtnl: &mut Rtnl,
    port: &Representor,
    mac: MacAddress,
    vlans: &[Option<u16>],
) -> Result<(), Error> {
    // The kernel deletes the entries of a port that leaves. A port that had no master when this programming began
    // has none, which saves a dump of the whole table.
    let known = match port.master {
        None => Vec::new(),
        Some(_) => static_entries(rtnl, port.index)?,
    };
    let others = known.iter().filter(|entry| entry.mac != mac || !vlans.contains(&entry.vlan));
    let mut requests: Vec<Request<'_>> =
        others.map(|other| Request::delete_fdb(port.index, other.mac, other.vlan)).collect();
    // Add before flushing: a running pod must have its entry at any moment.
    requests.extend(vlans.iter().map(|vlan| Request::add_fdb(port.index, mac, *vlan)));
    // The flush removes what the port had learned.
    requests.push(Request::set_and_flush_bridge_port(port.index, &settings_of(false)));
    rtnl.batch(&requests)
}

/// Lets the port learn, and removes its static entries.
pub(super) fn set_learning(rtnl: &mut Rtnl, port: u32) -> Result<(), Error> {
    let known = static_entries(rtnl, port)?;
    let mut requests: Vec<Request<'_>> =
        known.iter().map(|known| Request::delete_fdb(port, known.mac, known.vlan)).collect();
    requests.push(Request::set_bridge_port(port, &settings_of(true)));
    rtnl.batch(&requests)
}

/// Requests that delete the static entries in VLANs which the port is about to leave. The kernel would keep these
/// entries, and refuse to delete them once the port has left the VLAN.
pub(super) fn removals(
    rtnl: &mut Rtnl,
    port: u32,
    vlans: &[u16],
) -> Result<Vec<Request<'static>>, Error> {
    if vlans.is_empty() {
        return Ok(Vec::new());
    }
    let is_left = |entry: &FdbEntry| entry.vlan.is_some_and(|vlan| vlans.contains(&vlan));
    let known = static_entries(rtnl, port)?.into_iter().filter(is_left);
    Ok(known.map(|entry| Request::delete_fdb(port, entry.mac, entry.vlan)).collect())
}

/// Whether the port has an entry for `mac` in each of these VLANs and no other entry; with `mac` = `None`, whether
/// it learns. `settings` are the port's flags as found.
pub(super) fn find(
    rtnl: &mut Rtnl,
    port: u32,
    settings: Option<BridgePort>,
    vlans: &[Option<u16>],
    mac: Option<MacAddress>,
) -> Result<Reading, Error> {
    // A learning port may have any learned entry: compare static ones only.
    let known = if mac.is_some() { rtnl.fdb_of(port)? } else { static_entries(rtnl, port)? };
    let known: BTreeSet<_> = known.iter().map(|entry| (entry.mac, entry.vlan)).collect();
    let expected = mac.iter().flat_map(|mac| vlans.iter().map(|vlan| (*mac, *vlan))).collect();
    let detail = if has_settings(settings, false) {
        let known: BTreeSet<_> = known.iter().map(|(mac, _)| mac.to_string()).collect();
        format!("behind the port: {}", Vec::from_iter(known).join(" "))
    } else {
        "the port learns addresses".to_owned()
    };
    Ok(Reading { in_place: has_settings(settings, mac.is_none()) && known == expected, detail })
}

fn static_entries(rtnl: &mut Rtnl, port: u32) -> Result<Vec<FdbEntry>, Error> {
    Ok(rtnl.fdb_of(port)?.into_iter().filter(|entry| entry.is_static).collect())
}

fn has_settings(port: Option<BridgePort>, learns: bool) -> bool {
    port.is_some_and(|port| (port.learning, port.unicast_flood) == (Some(learns), Some(learns)))
}
