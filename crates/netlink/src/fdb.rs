//! The forwarding table of a bridge.

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState},
};

use crate::{
    Error, MacAddress, Request, Rtnl,
    request::{Existing, LINK},
};

/// An entry of a bridge's forwarding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FdbEntry {
    /// The index of the port.
    pub port: u32,
    /// The station behind it.
    pub mac: MacAddress,
    /// The VLAN it is in, on a bridge that filters VLANs.
    pub vlan: Option<u16>,
    /// Whether it was put there rather than learnt, and so never ages.
    pub is_static: bool,
    /// Whether hardware forwards to it.
    pub is_offloaded: bool,
}

impl Request<'_> {
    /// Puts a station behind a port of a bridge, for good. A learnt entry is overwritten.
    #[must_use]
    pub fn add_fdb(port: u32, mac: MacAddress, vlan: Option<u16>) -> Self {
        let message = RouteNetlinkMessage::NewNeighbour(message(port, mac, vlan));
        let operation = format!("add the station {mac} to {LINK}");
        Self::new(operation, Some(port), message, Existing::Replaced)
    }

    /// Takes a station away from a port of a bridge.
    #[must_use]
    pub fn delete_fdb(port: u32, mac: MacAddress, vlan: Option<u16>) -> Self {
        let message = RouteNetlinkMessage::DelNeighbour(message(port, mac, vlan));
        let operation = format!("delete the station {mac} of {LINK}");
        Self::new(operation, Some(port), message, Existing::Required)
    }
}

impl Rtnl {
    /// The forwarding tables of all bridges, without the bridges' own addresses.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn fdb(&mut self) -> Result<Vec<FdbEntry>, Error> {
        self.stations(None)
    }

    /// The entries of one port in the forwarding table of its bridge.
    ///
    /// # Errors
    /// The kernel's refusal; [`Error::is_not_found`] if there is no such link.
    pub fn fdb_of(&mut self, port: u32) -> Result<Vec<FdbEntry>, Error> {
        self.stations(Some(port))
    }

    fn stations(&mut self, port: Option<u32>) -> Result<Vec<FdbEntry>, Error> {
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
    // The kernel's way to say static; permanent would be an address of the bridge itself.
    message.header.state = NeighbourState::Noarp;
    message.header.flags = NeighbourFlags::Controller;
    message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
    message.attributes.extend(vlan.map(NeighbourAttribute::Vlan));
    message
}

/// Asks for all entries of all bridges, or for those of one port.
fn list_message(port: Option<u32>) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = AddressFamily::Bridge;
    message.header.ifindex = port.unwrap_or_default();
    RouteNetlinkMessage::GetNeighbour(message)
}

/// The entry that a message describes. `None`: it is an address of the port itself.
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
