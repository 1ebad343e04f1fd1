//! Veth pairs.

use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoData, InfoKind, InfoVeth},
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec, LinkVeth};

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
    netns: Option<&'a Netns>,
    index: Option<u32>,
    mac: Option<MacAddress>,
    mtu: Option<u32>,
    queue_length: Option<u32>,
}

impl<'a> VethEnd<'a> {
    /// An end called `name`: 1 to 15 bytes, or a pattern such as `dev%d`.
    pub fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), ..Self::default() }
    }

    /// Creates the end in another namespace than the socket's.
    pub fn netns(self, netns: &'a Netns) -> Self {
        Self { netns: Some(netns), ..self }
    }

    /// Sets the index. By default the kernel takes the next free one. The second end's index counts only if the first
    /// end has one too.
    pub fn index(self, index: u32) -> Self {
        Self { index: Some(index), ..self }
    }

    /// Sets the Ethernet address. By default it is random.
    pub fn mac(self, mac: MacAddress) -> Self {
        Self { mac: Some(mac), ..self }
    }

    /// Sets the MTU in bytes. The default is 1500.
    pub fn mtu(self, mtu: u32) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    /// Sets the length of the transmit queue in frames. The default is 1000.
    pub fn queue_length(self, frames: u32) -> Self {
        Self { queue_length: Some(frames), ..self }
    }

    fn describe<T>(&self, mut message: LinkMessageBuilder<T>) -> LinkMessageBuilder<T> {
        message = message.name(self.name.clone()).index(self.index.unwrap_or(0));
        if let Some(netns) = self.netns {
            message = message.setns_by_fd(netns.as_fd().as_raw_fd());
        }
        if let Some(mac) = self.mac {
            message = message.address(mac.0.to_vec());
        }
        if let Some(mtu) = self.mtu {
            message = message.mtu(mtu);
        }
        if let Some(frames) = self.queue_length {
            message = message.txqueuelen(frames);
        }
        message
    }
}

impl<'a> Request<'a> {
    /// Adds a veth pair; both ends are down. Before Linux 6.15 the kernel also refuses if the socket's own namespace
    /// has a link of the first end's name or index, wherever that end is created.
    #[must_use]
    pub fn add_veth(end: &VethEnd<'a>, other: &VethEnd<'a>) -> Self {
        let other_message = other.describe(LinkMessageBuilder::<LinkUnspec>::new()).build();
        let message = end
            .describe(LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth))
            .set_info_data(InfoData::Veth(InfoVeth::Peer(other_message)))
            .build();
        let operation = format!("add the veth pair {} and {}", end.name, other.name);
        Self::new(operation, None, RouteNetlinkMessage::NewLink(message), Existing::Refused)
    }
}
