//! The forwarding database (FDB) of a bridge.

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
};

use crate::{
    error::Error,
    mac::MacAddress,
    request::{Existing, LINK, Request},
    rtnl::Rtnl,
};

/// An FDB entry: a MAC address that a bridge reaches by one of its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FdbEntry {
    /// Link index of the port.
    pub port: u32,
    /// The MAC address behind the port.
    pub mac: MacAddress,
    /// The entry's VLAN, on a bridge that filters VLANs.
    pub vlan: Option<u16>,
    /// Whether a program added the entry. Such entries never age.
    pub is_static: bool,
    /// Whether the card's hardware forwards to it.
    pub is_offloaded: bool,
}

impl Request<'_> {
    /// Adds a static FDB entry for a port. It replaces a learnt entry.
    #[must_use]
    pub fn add_fdb(port: u32, mac: MacAddress, vlan: Option<u16>) -> Self {
        let message = RouteNetlinkMessage::NewNeighbour(message(port, mac, vlan));
        let operation = format!("add the FDB entry {mac} to {LINK}");
        Self::new(operation, Some(port), message, Existing::Replaced)
    }

    /// Deletes an FDB entry of a port.
    #[must_use]
    pub fn delete_fdb(port: u32, mac: MacAddress, vlan: Option<u16>) -> Self {
        let message = RouteNetlinkMessage::DelNeighbour(message(port, mac, vlan));
        let operation = format!("delete the FDB entry {mac} of {LINK}");
        Self::new(operation, Some(port), message, Existing::Required)
    }
}

impl Rtnl {
    /// Lists the FDB entries of all bridges, without the bridges' own addresses.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn fdb(&mut self) -> Result<Vec<FdbEntry>, Error> {
        self.fdb_entries(None)
    }

    /// Lists the FDB entries of one port.
    ///
    /// # Errors
    /// The kernel's refusal; [`Error::is_not_found`] if there is no such link.
    pub fn fdb_of(&mut self, port: u32) -> Result<Vec<FdbEntry>, Error> {
        self.fdb_entries(Some(port))
    }

    fn fdb_entries(&mut self, port: Option<u32>) -> Result<Vec<FdbEntry>, Error> {
        let entry = |object| match object {
            RouteNetlinkMessage::NewNeighbour(message) => described_by(&message),
            _ => None,
        };
        self.list("list the forwarding tables", &list_message(port), entry)
    }
}

fn message(port: u32, mac: MacAddress, vlan: Option<u16>) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = port;
    // NUD_NOARP makes the entry static. NUD_PERMANENT would make it an address of the bridge itself.
    message.header.state = NeighbourState::Noarp;
    message.header.flags = NeighbourFlags::Controller;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    message.attributes.extend(vlan.map(NeighbourAttribute::Vlan));
    message
}

/// Port `None` lists the entries of all bridges.
fn list_message(port: Option<u32>) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = port.unwrap_or_default();
    RouteNetlinkMessage::GetNeighbour(message)
}

/// Reads an FDB entry. `None`: the entry is an address of the port itself.
pub(crate) fn described_by(message: &NeighbourMessage) -> Option<FdbEntry> {
    let state = message.header.state;
    if state == NeighbourState::Permanent || message.header.flags.contains(NeighbourFlags::Own) {
        return None;
    }
    let mut mac = None;
    let mut vlan = None;
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::LinkLayerAddress(bytes) => mac = bytes.as_slice().try_into().ok(),
            NeighbourAttribute::Vlan(id) => vlan = Some(*id),
            _ => {}
        }
    }
    let is_static = state == NeighbourState::Noarp;
    let is_offloaded = message.header.flags.contains(NeighbourFlags::Offloaded);
    let (port, mac) = (message.header.ifindex, MacAddress(mac?));
    Some(FdbEntry { port, mac, vlan, is_static, is_offloaded })
}
