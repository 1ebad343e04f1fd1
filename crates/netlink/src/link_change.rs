//! Changes of a link.

use std::{
    marker::PhantomData,
    os::fd::{AsFd, AsRawFd},
};

use netlink_packet_core::DefaultNla;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkFlags, LinkMessage, Prop},
};

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
    message: LinkMessage,
    /// The changes for an error message, such as `MTU 9000`.
    words: Vec<String>,
    netns: PhantomData<&'a Netns>,
}

impl<'a> LinkChange<'a> {
    /// Creates an empty set of changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the link to another namespace. The type's description lists what a move loses.
    pub fn netns(self, netns: &'a Netns) -> Self {
        let descriptor = netns.as_fd().as_raw_fd();
        let words = format!("network namespace {}", netns.id());
        self.with(LinkAttribute::NetNsFd(descriptor), words)
    }

    /// Sets the index after a move. The kernel refuses a taken index with `EBUSY`.
    pub fn new_index(self, index: u32) -> Self {
        self.with(LinkAttribute::NewIfIndex(index.cast_signed()), format!("index {index}"))
    }

    /// Sets the Ethernet address.
    pub fn mac(self, mac: MacAddress) -> Self {
        self.with(LinkAttribute::Address(mac.0.to_vec()), format!("MAC address {mac}"))
    }

    /// Sets the MTU, in bytes without the Ethernet header.
    pub fn mtu(self, mtu: u32) -> Self {
        self.with(LinkAttribute::Mtu(mtu), format!("MTU {mtu}"))
    }

    /// Sets the link group.
    pub fn group(self, group: u32) -> Self {
        self.with(LinkAttribute::Group(group), format!("group {group}"))
    }

    /// Sets the name: 1 to 15 bytes, or a pattern such as `vf%d` for the first free number. Older kernels refuse to
    /// rename a link that is up.
    pub fn name(self, name: impl Into<String>) -> Self {
        let name = name.into();
        let words = format!("name {name}");
        self.with(LinkAttribute::IfName(name), words)
    }

    /// Sets the alias, at most 255 bytes; an empty one removes it. The kernel sends no event for a new alias of a link
    /// that is down. A change of the [queue length](Self::queue_length) in the same request triggers one that includes
    /// the alias.
    pub fn alias(self, alias: impl Into<String>) -> Self {
        // Built by hand: the kernel expects no closing zero, and an empty value removes the alias.
        const IFLA_IFALIAS: u16 = 20;
        let alias = alias.into();
        let words = format!("alias {alias:?}");
        self.with(LinkAttribute::Other(DefaultNla::new(IFLA_IFALIAS, alias.into_bytes())), words)
    }

    /// Sets the length of the transmit queue, in frames.
    pub fn queue_length(self, frames: u32) -> Self {
        self.with(LinkAttribute::TxQueueLen(frames), format!("queue length {frames}"))
    }

    /// Sets the link up.
    pub fn up(self) -> Self {
        self.with_flag(LinkFlags::Up, true, "state up".to_owned())
    }

    /// Sets the link down.
    pub fn down(self) -> Self {
        self.with_flag(LinkFlags::Up, false, "state down".to_owned())
    }

    /// Makes the link a port of a bridge. `None` removes it from its master.
    pub fn master(self, bridge: Option<u32>) -> Self {
        let master = bridge.unwrap_or(0);
        self.with(LinkAttribute::Controller(master), format!("master {master}"))
    }

    /// Sets promiscuous mode: the link receives frames for every address.
    pub fn promiscuous(self, on: bool) -> Self {
        self.with_flag(LinkFlags::Promisc, on, format!("promiscuity {}", on_or_off(on)))
    }

    /// Sets whether the link receives all multicast frames.
    pub fn all_multicast(self, on: bool) -> Self {
        let words = format!("reception of all multicast {}", on_or_off(on));
        self.with_flag(LinkFlags::Allmulti, on, words)
    }

    /// Sets whether the link resolves addresses by ARP and answers requests.
    pub fn arp(self, on: bool) -> Self {
        self.with_flag(LinkFlags::Noarp, !on, format!("ARP {}", on_or_off(on)))
    }

    /// Sets whether the link sends multicast frames.
    pub fn multicast(self, on: bool) -> Self {
        self.with_flag(LinkFlags::Multicast, on, format!("multicast {}", on_or_off(on)))
    }

    /// Sets whether the link loses its addresses when it goes down.
    pub fn dynamic(self, on: bool) -> Self {
        let words = format!("loss of addresses when down {}", on_or_off(on));
        self.with_flag(LinkFlags::Dynamic, on, words)
    }

    /// Sets the broadcast address.
    pub fn broadcast(self, mac: MacAddress) -> Self {
        self.with(LinkAttribute::Broadcast(mac.0.to_vec()), format!("broadcast address {mac}"))
    }

    /// Detaches the XDP program of this mode, if there is one. The kernel refuses with `EBUSY` while a process holds
    /// the attachment (a BPF link).
    pub fn without_xdp(self, mode: XdpMode) -> Self {
        self.with(xdp::detachment(mode), format!("no XDP program in mode {mode:?}"))
    }

    fn with(mut self, attribute: LinkAttribute, words: String) -> Self {
        self.message.attributes.push(attribute);
        self.words.push(words);
        self
    }

    fn with_flag(mut self, flag: LinkFlags, is_set: bool, words: String) -> Self {
        self.message.header.change_mask |= flag;
        self.message.header.flags.set(flag, is_set);
        self.words.push(words);
        self
    }
}

pub(crate) fn on_or_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}

impl<'a> Request<'a> {
    /// Changes a link. See [`LinkChange`].
    #[must_use]
    pub fn change_link(index: u32, change: &LinkChange<'a>) -> Self {
        let operation = format!("set {} of {LINK}", change.words.join(", "));
        let mut message = change.message.clone();
        message.header.index = index;
        let message = RouteNetlinkMessage::NewLink(message);
        Self::new(operation, Some(index), message, Existing::Required)
    }

    /// Changes the link of this name, which an earlier request of the same batch may have created. Such a request
    /// cannot rename the link.
    #[must_use]
    pub fn change_link_named(name: &str, change: &LinkChange<'a>) -> Self {
        let operation = format!("set {} of link {name}", change.words.join(", "));
        let mut message = change.message.clone();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let message = RouteNetlinkMessage::NewLink(message);
        Self::new(operation, None, message, Existing::Required)
    }

    /// Deletes all links of a group at once: a fraction of the time that single deletes take.
    #[must_use]
    pub fn delete_group(group: u32) -> Self {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::Group(group));
        let message = RouteNetlinkMessage::DelLink(message);
        Self::new(format!("delete the links of group {group}"), None, message, Existing::Required)
    }

    /// Deletes a link. Deleting one end of a veth pair deletes both.
    #[must_use]
    pub fn delete_link(index: u32) -> Self {
        let message = RouteNetlinkMessage::DelLink(message_about(index));
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
    let mut message = message_about(index);
    message.attributes.push(LinkAttribute::PropList(vec![Prop::AltIfName(name.to_owned())]));
    message
}

pub(crate) fn message_about(index: u32) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.index = index;
    message
}
