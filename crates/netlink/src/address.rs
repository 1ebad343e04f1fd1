//! Addresses of links.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnetwork::IpNetwork;
use netlink_packet_route::{
    RouteNetlinkMessage,
    address::{AddressAttribute, AddressFlags, AddressMessage},
};
use rtnetlink::AddressMessageBuilder;

use crate::{
    error::Error,
    request::{Existing, LINK, Request},
    rtnl::Rtnl,
};

impl Request<'_> {
    /// Adds an address with its prefix to a link. The kernel adds a route to the prefix.
    ///
    /// IPv6 addresses skip duplicate address detection (`IFA_F_NODAD`) and are usable at once. The caller guarantees
    /// that the address is unique.
    #[must_use]
    pub fn add_address(index: u32, address: IpNetwork) -> Self {
        let mut message = message(index, address);
        let mut flags = AddressFlags::empty();
        flags.set(AddressFlags::Nodad, address.is_ipv6());
        message.attributes.push(AddressAttribute::Flags(flags));
        let message = RouteNetlinkMessage::NewAddress(message);
        let operation = format!("add the address {address} to {LINK}");
        Self::new(operation, Some(index), message, Existing::Refused)
    }

    /// Deletes an address of a link.
    #[must_use]
    pub fn delete_address(index: u32, address: IpNetwork) -> Self {
        let message = RouteNetlinkMessage::DelAddress(message(index, address));
        let operation = format!("delete the address {address} of {LINK}");
        Self::new(operation, Some(index), message, Existing::Required)
    }
}

impl Rtnl {
    /// Lists the addresses of a link.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn addresses(&mut self, index: u32) -> Result<Vec<IpNetwork>, Error> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        let message = RouteNetlinkMessage::GetAddress(message);
        let of_link = |object| match object {
            RouteNetlinkMessage::NewAddress(message) if message.header.index == index => {
                described_by(&message)
            }
            _ => None,
        };
        self.list("list the addresses", &message, of_link)
    }

    /// Lists the addresses of all links, each with the index of its link.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn all_addresses(&mut self) -> Result<Vec<(u32, IpNetwork)>, Error> {
        let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let described = |object| match object {
            RouteNetlinkMessage::NewAddress(message) => {
                Some((message.header.index, described_by(&message)?))
            }
            _ => None,
        };
        self.list("list all addresses", &message, described)
    }
}

fn message(index: u32, address: IpNetwork) -> AddressMessage {
    match address {
        IpNetwork::V4(v4) => AddressMessageBuilder::<Ipv4Addr>::new()
            .index(index)
            .address(v4.ip(), v4.prefix())
            .build(),
        IpNetwork::V6(v6) => AddressMessageBuilder::<Ipv6Addr>::new()
            .index(index)
            .address(v6.ip(), v6.prefix())
            .build(),
    }
}

/// Reads the address from a message. On a point-to-point link `IFA_ADDRESS` is the peer's and `IFA_LOCAL` the link's
/// own, so `IFA_LOCAL` comes first.
pub(crate) fn described_by(message: &AddressMessage) -> Option<IpNetwork> {
    let local = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    };
    let any = |attribute: &AddressAttribute| match attribute {
        AddressAttribute::Address(address) => Some(*address),
        _ => None,
    };
    let attributes = &message.attributes;
    let address: IpAddr =
        attributes.iter().find_map(local).or_else(|| attributes.iter().find_map(any))?;
    IpNetwork::new(address, message.header.prefix_len).ok()
}
