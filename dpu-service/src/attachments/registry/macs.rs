//! The MAC addresses of attachments.

use netlink::MacAddress;
use offload_proto::{Failure, Reason};

use super::{entries::Entries, networks::PooledNetworks};
use model::{AttachSpec, HostRights};

/// The requested MAC address, or a free one with the prefix. Never a gateway's: its holder would receive the
/// gateway's frames.
pub(super) fn choose_mac(
    entries: &Entries,
    spec: &AttachSpec,
    rights: &HostRights,
    prefix: &[u8],
    networks: &PooledNetworks,
) -> Result<MacAddress, Failure> {
    let Some(mac) = spec.interface.mac else { return new_mac(entries, prefix, networks) };
    if !mac.is_unicast() {
        return Err(Failure::new(
            Reason::InvalidRequest,
            format!("{mac} is not the address of one interface: it is multicast or zero"),
        ));
    }
    if let Some(network) = networks.with_gateway_mac(mac) {
        let gateway = match rights.allows(network) {
            true => format!("the gateway of network {network}"),
            false => "a network's gateway".to_owned(),
        };
        return Err(Failure::new(
            Reason::MacInUse,
            format!("MAC address {mac} is reserved for {gateway}: request another one"),
        ));
    }
    match entries.by_mac(mac) {
        Some(holder) => Err(Failure::new(
            Reason::MacInUse,
            format!("MAC address {mac} is held by {}", holder.record().named_to(&spec.key.host)),
        )),
        None => Ok(mac),
    }
}

/// Returns the first free address after a random one.
fn new_mac(
    entries: &Entries,
    prefix: &[u8],
    networks: &PooledNetworks,
) -> Result<MacAddress, Failure> {
    // Random, because DPUs on one layer-2 network do not know each other's addresses.
    let start: u64 = rand::random();
    let mac = |number: u64| {
        let [_, _, bytes @ ..] = number.to_be_bytes();
        let mut bytes: [u8; 6] = bytes;
        let length = prefix.len().min(bytes.len());
        bytes[..length].copy_from_slice(&prefix[..length]);
        MacAddress(bytes)
    };
    let is_free = |mac: &MacAddress| {
        entries.by_mac(*mac).is_none() && networks.with_gateway_mac(*mac).is_none()
    };
    // One more candidate than addresses are held: one is free unless the prefix leaves fewer.
    (0..=(entries.len() + networks.len()) as u64)
        .map(|offset| mac(start.wrapping_add(offset)))
        .find(is_free)
        .ok_or_else(|| Failure::new(Reason::Overloaded, "all MAC addresses of the prefix are held"))
}
