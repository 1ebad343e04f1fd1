//! Neighbour entries: the Ethernet address of an IP address on a link.

use std::{fmt, net::IpAddr};

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState},
    route::RouteProtocol,
};

use crate::{
    error::Error,
    mac::MacAddress,
    request::{Existing, LINK, Request},
    rtnl::Rtnl,
};

/// A permanent neighbour entry. It never ages, and the kernel does not count it against the `gc_thresh` limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Neighbour {
    /// Index of the link.
    pub link: u32,
    /// IP address of the neighbour.
    pub address: IpAddr,
    /// Ethernet address of the neighbour.
    pub mac: MacAddress,
}

/// An entry of any program and in any state, for display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeighbourEntry {
    /// Index of the link.
    pub link: u32,
    address: IpAddr,
    mac: Option<MacAddress>,
    protocol: Option<u8>,
    state: NeighbourState,
}

impl fmt::Display for NeighbourEntry {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", self.address)?;
        if let Some(mac) = self.mac {
            write!(out, " lladdr {mac}")?;
        }
        write!(out, " {:?}", self.state)?;
        self.protocol.map_or(Ok(()), |protocol| write!(out, " protocol {protocol}"))
    }
}

impl NeighbourEntry {
    /// Returns the entry if it is permanent and marked with this protocol.
    fn permanent_of(self, protocol: u8) -> Option<Neighbour> {
        let is_ours = self.protocol == Some(protocol) && self.state == NeighbourState::Permanent;
        let mac = self.mac.filter(|_| is_ours)?;
        Some(Neighbour { link: self.link, address: self.address, mac })
    }
}

impl Request<'_> {
    /// Sets a permanent entry, replacing an existing one. `protocol` identifies the program that owns the entry
    /// (`NDA_PROTOCOL`).
    #[must_use]
    pub fn set_neighbour(neighbour: &Neighbour, protocol: u8) -> Self {
        let Neighbour { link, address, mac } = *neighbour;
        let mut message = message(link, address);
        message.header.state = NeighbourState::Permanent;
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(mac.0.to_vec()));
        message.attributes.push(NeighbourAttribute::Protocol(RouteProtocol::from(protocol)));
        let message = RouteNetlinkMessage::NewNeighbour(message);
        let operation = format!("make {address} a permanent neighbour on {LINK}");
        Self::new(operation, Some(link), message, Existing::Replaced)
    }

    /// Deletes the entry of an address, in whatever state it is.
    #[must_use]
    pub fn delete_neighbour(link: u32, address: IpAddr) -> Self {
        let message = RouteNetlinkMessage::DelNeighbour(message(link, address));
        let operation = format!("delete the neighbour {address} on {LINK}");
        Self::new(operation, Some(link), message, Existing::Required)
    }
}

impl Rtnl {
    /// Lists the permanent entries of all links that are marked with this protocol.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn neighbours_of(&mut self, protocol: u8) -> Result<Vec<Neighbour>, Error> {
        let entries = self.neighbours()?.into_iter();
        Ok(entries.filter_map(|entry| entry.permanent_of(protocol)).collect())
    }

    /// Lists the entries of all links, without those that need no resolution, such as multicast groups.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn neighbours(&mut self) -> Result<Vec<NeighbourEntry>, Error> {
        let described = |object| match object {
            RouteNetlinkMessage::NewNeighbour(message) => described_by(&message),
            _ => None,
        };
        let message = RouteNetlinkMessage::GetNeighbour(NeighbourMessage::default());
        self.list("list the neighbours", &message, described)
    }
}

fn message(link: u32, address: IpAddr) -> NeighbourMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = match address {
        IpAddr::V4(_) => AddressFamily::Inet,
        IpAddr::V6(_) => AddressFamily::Inet6,
    };
    message.header.ifindex = link;
    message.attributes.push(NeighbourAttribute::Destination(address.into()));
    message
}

fn described_by(message: &NeighbourMessage) -> Option<NeighbourEntry> {
    let (mut address, mut mac, mut protocol) = (None, None, None);
    for attribute in &message.attributes {
        match attribute {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(v4)) => {
                address = Some(IpAddr::from(*v4));
            }
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(v6)) => {
                address = Some(IpAddr::from(*v6));
            }
            NeighbourAttribute::LinkLayerAddress(bytes) => {
                mac = bytes.as_slice().try_into().ok().map(MacAddress);
            }
            NeighbourAttribute::Protocol(of) => protocol = Some(u8::from(*of)),
            _ => {}
        }
    }
    let (link, state) = (message.header.ifindex, message.header.state);
    let entry = NeighbourEntry { link, address: address?, mac, protocol, state };
    (state != NeighbourState::Noarp).then_some(entry)
}
