//! Changes of a link.

use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage},
};
use rtnetlink::{LinkMessageBuilder, LinkUnspec};

use crate::{
    MacAddress, Netns, Request, XdpMode,
    request::{Existing, LINK},
    xdp,
};

/// What to change of a link, in one request.
///
/// The kernel makes the changes in an order of its own, whatever the order of these calls: first
/// the move to another namespace, then MAC address, MTU, group, name, alias, and up or down, then
/// the master, and last the XDP program. **It does not take back what it did when a later one fails.** So a move that
/// is refused for a MTU out of range or for an illegal name leaves the link *in the other
/// namespace, under its old name*. Two failures leave it where it was: its present name is
/// taken in the other namespace while no new name, or a taken one, is asked for; and an
/// alternative name of it or the wanted index is taken there.
///
/// A move loses the link's addresses, routes, queueing discipline, master and `up`, and resets its
/// sysctls. All else goes with it: MAC address, MTU, group, queue length, alias, alternative names,
/// the flags of what it receives, XDP programs, and its index if it is free in the other namespace.
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
    /// No change.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves it to another namespace. See the type's description for what is lost.
    pub fn netns(self, netns: &'a Netns) -> Self {
        Self { netns: Some(netns), ..self }
    }

    /// Its index after the move. Refused with `EBUSY` if taken there.
    pub fn new_index(self, index: u32) -> Self {
        Self { new_index: Some(index), ..self }
    }

    /// Its Ethernet address.
    pub fn mac(self, mac: MacAddress) -> Self {
        Self { mac: Some(mac), ..self }
    }

    /// In bytes, without the Ethernet header.
    pub fn mtu(self, mtu: u32) -> Self {
        Self { mtu: Some(mtu), ..self }
    }

    /// Its group.
    pub fn group(self, group: u32) -> Self {
        Self { group: Some(group), ..self }
    }

    /// 1 to 15 bytes, or a pattern such as `vf%d` for the first free number. Older kernels refuse
    /// to rename a link that is up.
    pub fn name(self, name: impl Into<String>) -> Self {
        Self { name: Some(name.into()), ..self }
    }

    /// At most 255 bytes; an empty one removes it. If the link is down, the kernel tells nobody
    /// who watches; a change of the [queue length](Self::queue_length) does, and with the alias.
    pub fn alias(self, alias: impl Into<String>) -> Self {
        Self { alias: Some(alias.into()), ..self }
    }

    /// How many frames may wait to be sent.
    pub fn queue_length(self, frames: u32) -> Self {
        Self { queue_length: Some(frames), ..self }
    }

    /// Switches it on.
    pub fn up(self) -> Self {
        Self { up: Some(true), ..self }
    }

    /// Switches it off.
    pub fn down(self) -> Self {
        Self { up: Some(false), ..self }
    }

    /// Makes it a port of a bridge, or of nothing.
    pub fn master(self, bridge: Option<u32>) -> Self {
        Self { master: Some(bridge.unwrap_or(0)), ..self }
    }

    /// Whether it receives frames for every address.
    pub fn promiscuous(self, on: bool) -> Self {
        Self { promiscuous: Some(on), ..self }
    }

    /// Whether it receives all multicast frames.
    pub fn all_multicast(self, on: bool) -> Self {
        Self { all_multicast: Some(on), ..self }
    }

    /// Whether it asks others for addresses, and answers.
    pub fn arp(self, on: bool) -> Self {
        Self { arp: Some(on), ..self }
    }

    /// Whether it sends multicast frames.
    pub fn multicast(self, on: bool) -> Self {
        Self { multicast: Some(on), ..self }
    }

    /// Whether it loses its addresses when it is switched off.
    pub fn dynamic(self, on: bool) -> Self {
        Self { dynamic: Some(on), ..self }
    }

    /// Where it sends frames for all to.
    pub fn broadcast(self, mac: MacAddress) -> Self {
        Self { broadcast: Some(mac), ..self }
    }

    /// Detaches its XDP program of that mode, if there is one. Refused with `EBUSY` while a process
    /// holds the attachment itself (a BPF link).
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

    /// The changes in words: `name net1, MTU 9000, up`.
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

/// The kernel takes an alias without the closing zero, and removes it when it is empty.
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

    /// Changes the link of this name, which may have been made earlier in the same batch. It can't
    /// be renamed in this way.
    #[must_use]
    pub fn change_link_named(name: &str, change: &LinkChange<'a>) -> Self {
        let operation = format!("set {} of link {name}", change.in_words());
        let message = change.describe(LinkUnspec::new_with_name(name));
        let message = RouteNetlinkMessage::NewLink(message);
        Self::new(operation, None, message, Existing::Required)
    }

    /// Deletes all links of a group at once, in a fraction of the time that it takes one by one.
    #[must_use]
    pub fn delete_group(group: u32) -> Self {
        let message = LinkUnspec::new_with_index(0).link_group(group).build();
        let message = RouteNetlinkMessage::DelLink(message);
        Self::new(format!("delete the links of group {group}"), None, message, Existing::Required)
    }

    /// Deletes a link. Deleting a veth end deletes the other.
    #[must_use]
    pub fn delete_link(index: u32) -> Self {
        let message = LinkUnspec::new_with_index(index).build();
        let message = RouteNetlinkMessage::DelLink(message);
        Self::new(format!("delete {LINK}"), Some(index), message, Existing::Required)
    }

    /// Gives a link another name by which it is found, at most 127 bytes.
    #[must_use]
    pub fn add_alternative_name(index: u32, name: &str) -> Self {
        let message = RouteNetlinkMessage::NewLinkProp(property_message(index, name));
        let operation = format!("add the alternative name {name} to {LINK}");
        Self::new(operation, Some(index), message, Existing::Refused)
    }

    /// Takes an alternative name away.
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
