//! Veth pairs.

use std::{
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd},
};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage},
};

use crate::{
    mac::MacAddress,
    netns::Netns,
    request::{Existing, Request},
};

/// One end of a veth pair to be created.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct VethEnd<'a> {
    name: String,
    message: LinkMessage,
    netns: PhantomData<&'a Netns>,
}

impl<'a> VethEnd<'a> {
    /// An end called `name`: 1 to 15 bytes, or a pattern such as `dev%d`.
    pub fn new(name: impl Into<String>) -> Self {
        let name = name.into();
        let end = Self { name: name.clone(), ..Self::default() };
        end.with(LinkAttribute::IfName(name))
    }

    /// Creates the end in another namespace than the socket's.
    pub fn netns(self, netns: &'a Netns) -> Self {
        self.with(LinkAttribute::NetNsFd(netns.as_fd().as_raw_fd()))
    }

    /// Sets the index. By default the kernel takes the next free one. The second end's index counts only if the first
    /// end has one too.
    pub fn index(mut self, index: u32) -> Self {
        self.message.header.index = index;
        self
    }

    /// Sets the Ethernet address. By default it is random.
    pub fn mac(self, mac: MacAddress) -> Self {
        self.with(LinkAttribute::Address(mac.0.to_vec()))
    }

    /// Sets the MTU in bytes. The default is 1500.
    pub fn mtu(self, mtu: u32) -> Self {
        self.with(LinkAttribute::Mtu(mtu))
    }

    /// Sets the length of the transmit queue in frames. The default is 1000.
    pub fn queue_length(self, frames: u32) -> Self {
        self.with(LinkAttribute::TxQueueLen(frames))
    }

    fn with(mut self, attribute: LinkAttribute) -> Self {
        self.message.attributes.push(attribute);
        self
    }
}

impl<'a> Request<'a> {
    /// Adds a veth pair; both ends are down. Before Linux 6.15 the kernel also refuses if the socket's own namespace
    /// has a link of the first end's name or index, wherever that end is created.
    #[must_use]
    pub fn add_veth(end: &VethEnd<'a>, other: &VethEnd<'a>) -> Self {
        let peer = InfoVeth::Peer(other.message.clone());
        let info = vec![LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(InfoData::Veth(peer))];
        let mut message = end.message.clone();
        message.attributes.push(LinkAttribute::LinkInfo(info));
        let operation = format!("add the veth pair {} and {}", end.name, other.name);
        Self::new(operation, None, RouteNetlinkMessage::NewLink(message), Existing::Refused)
    }
}
