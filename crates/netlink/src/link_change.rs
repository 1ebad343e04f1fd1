//! Changes of a link.

use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage},
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use crate::{
    mac::MacAddress,
    netns::Netns,
    request::{Existing, LINK, Request},
    xdp,
    xdp::XdpMode,
};

/// A set of changes to one link, sent in one request.
///
/// The kernel applies the changes in a fixed order (`do_setlink` in net/core/rtnetlink.c): move to another namespace,
/// MAC address, MTU, group, name, alias, up or down, master, XDP program.
///
/// **The kernel does not undo earlier changes when a later one fails.** A move with an MTU out of range or an illegal
/// name fails, and the link is *in the other namespace under its old name*. The link stays where it was in two cases
/// only:
/// - its current name is taken there, and no new name or a taken one was given;
/// - one of its alternative names, or the wanted index, is taken there.
///
/// A move loses the link's addresses, routes, queueing discipline, master and up state, and resets its sysctls. It
/// keeps MAC address, MTU, group, queue length, alias, alternative names, receive flags and XDP programs. It keeps the
/// index if that is free in the other namespace.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct LinkChange<'a> {
    netns: Option<&'a Netns>,
    new_index: Option<u32>,
    mac: Option<MacAddress>,
    mtu: Option<u32>,
    group: Option<u32>,
    name: Option<String>,
    alias: Option<String>,
    up: Option<bool>,
    promiscuous: Option<bool>,
    all_multicast: Option<bool>,
    arp: Option<bool>,
    multicast: Option<bool>,
    dynamic: Option<bool>,
    broadcast: Option<MacAddress>,
    queue_length: Option<u32>,
    master: Option<u32>,
    without_xdp: Option<XdpMode>,
}

impl<'a> LinkChange<'a> {
    /// Creates an empty set of changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the link to another namespace. The type's description lists what a move loses.
    pub fn netns(self, netns: &'a Netns) -> Self {
        Self { netns: Some(netns), ..self }
    }

    /// Sets the index after a move. The kernel refuses a taken index with `EBUSY`.
    pub fn new_index(self, index: u32) -> Self {
        Self { new_index: Some(index), ..self }
    }

    /// Sets the Ethernet address.
    pub fn mac(self, mac: MacAddress) -> Self {
        Self { mac: Some(mac), ..self }
    }

    /// Sets the MTU, in bytes without the Ethernet header.
    pub fn mtu(self, mtu: u32) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    /// Sets the link group.
    pub fn group(self, group: u32) -> Self {
        Self { group: Some(group), ..self }
    }

    /// Sets the name: 1 to 15 bytes, or a pattern such as `vf%d` for the first free number. Older kernels refuse to
    /// rename a link that is up.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// Sets the alias, at most 255 bytes; an empty one removes it. The kernel sends no event for a new alias of a link
    /// that is down. A change of the [queue length](Self::queue_length) in the same request triggers one that includes
    /// the alias.
    pub fn alias(self, alias: impl Into<String>) -> Self {
        Self { alias: Some(alias.into()), ..self }
    }

    /// Sets the length of the transmit queue, in frames.
    pub fn queue_length(self, frames: u32) -> Self {
        Self { queue_length: Some(frames), ..self }
    }

    /// Sets the link up.
    pub fn up(self) -> Self {
        Self { up: Some(true), ..self }
    }

    /// Sets the link down.
    pub fn down(self) -> Self {
        Self { up: Some(false), ..self }
    }

    /// Makes the link a port of a bridge. `None` removes it from its master.
    pub fn master(self, bridge: Option<u32>) -> Self {
        Self { master: Some(bridge.unwrap_or(0)), ..self }
    }

    /// Sets promiscuous mode: the link receives frames for every address.
    pub fn promiscuous(self, on: bool) -> Self {
        Self { promiscuous: Some(on), ..self }
    }

    /// Sets whether the link receives all multicast frames.
    pub fn all_multicast(self, on: bool) -> Self {
        Self { all_multicast: Some(on), ..self }
    }

    /// Sets whether the link resolves addresses by ARP and answers requests.
    pub fn arp(self, on: bool) -> Self {
        Self { arp: Some(on), ..self }
    }

    /// Sets whether the link sends multicast frames.
    pub fn multicast(self, on: bool) -> Self {
        Self { multicast: Some(on), ..self }
    }

    /// Sets whether the link loses its addresses when it goes down.
    pub fn dynamic(self, on: bool) -> Self {
        Self { dynamic: Some(on), ..self }
    }

    /// Sets the broadcast address.
    pub fn broadcast(self, mac: MacAddress) -> Self {
        Self { broadcast: Some(mac), ..self }
    }

    /// Detaches the XDP program of this mode, if there is one. The kernel refuses with `EBUSY` while a process holds
    /// the attachment (a BPF link).
    pub fn without_xdp(self, mode: XdpMode) -> Self {
        Self { without_xdp: Some(mode), ..self }
    }

    fn describe(&self, mut message: LinkMessageBuilder<LinkUnspec>) -> LinkMessage {
        if let Some(netns) = self.netns {
            message = message.setns_by_fd(netns.as_fd().as_raw_fd());
        }
        if let Some(index) = self.new_index.and_then(|index| i32::try_from(index).ok()) {
            message = message.append_extra_attribute(LinkAttribute::NewIfIndex(index));
        }
        if let Some(mac) = self.mac {
            message = message.address(mac.0.to_vec());
        }
        if let Some(mtu) = self.mtu {
            message = message.mtu(mtu);
        }
        if let Some(group) = self.group {
            message = message.link_group(group);
        }
        if let Some(name) = &self.name {
            message = message.name(name.clone());
        }
        if let Some(alias) = &self.alias {
            message = message.append_extra_attribute(alias_attribute(alias));
        }
        if let Some(frames) = self.queue_length {
            message = message.txqueuelen(frames);
        }
        if let Some(master) = self.master {
            message = message.controller(master);
        }
        if let Some(on) = self.promiscuous {
            message = message.promiscuous(on);
        }
        if let Some(on) = self.all_multicast {
            message = message.allmulticast(on);
        }
        if let Some(on) = self.arp {
            message = message.arp(on);
        }
        if let Some(on) = self.multicast {
            message = message.multicast(on);
        }
        if let Some(on) = self.dynamic {
            message = message.dynamic(on);
        }
        if let Some(mac) = self.broadcast {
            message = message.broadcast(mac.0.to_vec());
        }
        if let Some(mode) = self.without_xdp {
            message = message.append_extra_attribute(xdp::detachment(mode));
        }
        switch(message, self.up).build()
    }

    /// The changes for an error message: `name net1, MTU 9000, up`.
    fn in_words(&self) -> String {
        let words = [
            self.netns.map(|netns| format!("network namespace {}", netns.id())),
            self.new_index.map(|index| format!("index {index}")),
            self.mac.map(|mac| format!("MAC address {mac}")),
            self.mtu.map(|mtu| format!("MTU {mtu}")),
            self.group.map(|group| format!("group {group}")),
            self.name.as_ref().map(|name| format!("name {name}")),
            self.alias.as_ref().map(|alias| format!("alias {alias:?}")),
            self.queue_length.map(|frames| format!("queue length {frames}")),
            self.master.map(|master| format!("master {master}")),
            self.up.map(|up| format!("state {}", if up { "up" } else { "down" })),
            self.promiscuous.map(|on| format!("promiscuity {}", on_or_off(on))),
            self.all_multicast.map(|on| format!("reception of all multicast {}", on_or_off(on))),
            self.arp.map(|on| format!("ARP {}", on_or_off(on))),
            self.multicast.map(|on| format!("multicast {}", on_or_off(on))),
            self.dynamic.map(|on| format!("loss of addresses when down {}", on_or_off(on))),
            self.broadcast.map(|mac| format!("broadcast address {mac}")),
            self.without_xdp.map(|mode| format!("no XDP program in mode {mode:?}")),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }
}

fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

/// Builds `IFLA_IFALIAS` by hand: the kernel expects no closing zero, and an empty value removes the alias.
pub(crate) fn alias_attribute(alias: &str) -> LinkAttribute {
    const IFLA_IFALIAS: u16 = 20;
    let bytes = alias.as_bytes().to_vec();
    LinkAttribute::Other(netlink_packet_core::DefaultNla::new(IFLA_IFALIAS, bytes))
}

fn switch(
    message: LinkMessageBuilder<LinkUnspec>,
    up: Option<bool>,
) -> LinkMessageBuilder<LinkUnspec> {
    match up {
        Some(true) => message.up(),
        Some(false) => message.down(),
        None => message,
    }
}

impl<'a> Request<'a> {
    /// Changes a link. See [`LinkChange`].
    #[must_use]
    pub fn change_link(index: u32, change: &LinkChange<'a>) -> Self {
        let operation = format!("set {} of {LINK}", change.in_words());
        let message = change.describe(LinkUnspec::new_with_index(index));
        let message = RouteNetlinkMessage::NewLink(message);
        Self::new(operation, Some(index), message, Existing::Required)
    }

    /// Changes the link of this name, which an earlier request of the same batch may have created. Such a request
    /// cannot rename the link.
    #[must_use]
    pub fn change_link_named(name: &str, change: &LinkChange<'a>) -> Self {
        let operation = format!("set {} of link {name}", change.in_words());
        let message = change.describe(LinkUnspec::new_with_name(name));
        let message = RouteNetlinkMessage::NewLink(message);
        Self::new(operation, None, message, Existing::Required)
    }

    /// Deletes all links of a group at once: a fraction of the time that single deletes take.
    #[must_use]
    pub fn delete_group(group: u32) -> Self {
        let message = LinkUnspec::new_with_index(0).link_group(group).build();
        let message = RouteNetlinkMessage::DelLink(message);
        Self::new(format!("delete the links of group {group}"), None, message, Existing::Required)
    }

    /// Deletes a link. Deleting one end of a veth pair deletes both.
    #[must_use]
    pub fn delete_link(index: u32) -> Self {
        let message = LinkUnspec::new_with_index(index).build();
        let message = RouteNetlinkMessage::DelLink(message);
        Self::new(format!("delete {LINK}"), Some(index), message, Existing::Required)
    }

    /// Adds an alternative name of at most 127 bytes to a link.
    #[must_use]
    pub fn add_alternative_name(index: u32, name: &str) -> Self {
        let message = RouteNetlinkMessage::NewLinkProp(property_message(index, name));
        let operation = format!("add the alternative name {name} to {LINK}");
        Self::new(operation, Some(index), message, Existing::Refused)
    }

    /// Deletes an alternative name of a link.
    #[must_use]
    pub fn delete_alternative_name(index: u32, name: &str) -> Self {
        let message = RouteNetlinkMessage::DelLinkProp(property_message(index, name));
        let operation = format!("delete the alternative name {name} of {LINK}");
        Self::new(operation, Some(index), message, Existing::Required)
    }
}

fn property_message(index: u32, name: &str) -> LinkMessage {
    let property = netlink_packet_route::link::Prop::AltIfName(name.to_owned());
    LinkUnspec::new_with_index(index)
        .append_extra_attribute(LinkAttribute::PropList(vec![property]))
        .build()
}
