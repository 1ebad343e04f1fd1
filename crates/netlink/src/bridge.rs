//! Bridges and their ports.

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{BridgePortState, BridgeStpState, InfoBridge, InfoBridgePort, InfoKind, LinkMessage},
};
use rtnetlink::{LinkBridge, LinkBridgePort, LinkMessageBuilder};

use crate::request::{Existing, LINK, Request};

/// Settings of a bridge. In a bridge that was read from the kernel, all supported settings are `Some`.
///
/// A bridge's MTU is the lowest MTU of its ports until [`LinkChange::mtu`](crate::LinkChange::mtu) sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Whether the bridge filters by VLAN. Needs a kernel with `CONFIG_BRIDGE_VLAN_FILTERING`.
    pub vlan_filtering: bool,
    /// The VLAN of untagged frames on new ports, 0 for none. `None`: the kernel's default, 1.
    pub default_pvid: Option<u16>,
    /// Whether the bridge snoops IGMP and MLD. `None`: the kernel's default, on if the kernel supports it.
    pub multicast_snooping: Option<bool>,
    /// Whether a spanning tree, the kernel's or a daemon's, decides which ports forward. `None`: the kernel's default,
    /// off.
    pub spanning_tree: Option<bool>,
}

/// Settings of a bridge port. `None` in a request leaves the setting unchanged. After reading, all are `Some`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgePort {
    /// Learns source addresses of frames that the port receives.
    pub learning: Option<bool>,
    /// Drops frames whose source address has no forwarding entry on this port.
    pub locked: Option<bool>,
    /// Exchanges no frames with other isolated ports.
    pub isolated: Option<bool>,
    /// Sends frames to unknown unicast addresses out of this port.
    pub unicast_flood: Option<bool>,
    /// Sends multicast frames without a known listener out of this port.
    pub multicast_flood: Option<bool>,
    /// Sends broadcast frames out of this port.
    pub broadcast_flood: Option<bool>,
    /// Allows frames to leave by the port that received them.
    pub hairpin: Option<bool>,
    /// The bridge answers ARP requests for hosts behind the port and does not flood such requests to it.
    pub proxy_arp: Option<bool>,
}

impl Bridge {
    pub(crate) fn from_settings(settings: &[InfoBridge]) -> Self {
        let mut bridge = Self::default();
        for setting in settings {
            match setting {
                InfoBridge::VlanFiltering(on) => bridge.vlan_filtering = *on,
                InfoBridge::VlanDefaultPvid(vlan) => bridge.default_pvid = Some(*vlan),
                InfoBridge::MulticastSnooping(on) => bridge.multicast_snooping = Some(*on),
                InfoBridge::StpState(state) => {
                    bridge.spanning_tree = Some(*state != BridgeStpState::Disabled);
                }
                _ => {}
            }
        }
        bridge
    }

    fn settings(&self) -> impl Iterator<Item = InfoBridge> {
        let stp_state = |on| match on {
            true => BridgeStpState::KernelStp,
            false => BridgeStpState::Disabled,
        };
        [
            self.vlan_filtering.then_some(InfoBridge::VlanFiltering(true)),
            self.default_pvid.map(InfoBridge::VlanDefaultPvid),
            self.multicast_snooping.map(InfoBridge::MulticastSnooping),
            self.spanning_tree.map(|on| InfoBridge::StpState(stp_state(on))),
        ]
        .into_iter()
        .flatten()
    }
}

impl BridgePort {
    pub(crate) fn from_settings(settings: &[InfoBridgePort]) -> Self {
        let mut port = Self::default();
        for setting in settings {
            match setting {
                InfoBridgePort::Learning(on) => port.learning = Some(*on),
                InfoBridgePort::Locked(on) => port.locked = Some(*on),
                InfoBridgePort::Isolated(on) => port.isolated = Some(*on),
                InfoBridgePort::UnicastFlood(on) => port.unicast_flood = Some(*on),
                InfoBridgePort::MulticastFlood(on) => port.multicast_flood = Some(*on),
                InfoBridgePort::BroadcastFlood(on) => port.broadcast_flood = Some(*on),
                InfoBridgePort::HairpinMode(on) => port.hairpin = Some(*on),
                InfoBridgePort::ProxyARP(on) => port.proxy_arp = Some(*on),
                _ => {}
            }
        }
        port
    }

    fn message(&self, index: u32, more: Option<InfoBridgePort>) -> LinkMessage {
        let settings = [
            self.learning.map(InfoBridgePort::Learning),
            self.locked.map(InfoBridgePort::Locked),
            self.isolated.map(InfoBridgePort::Isolated),
            self.unicast_flood.map(InfoBridgePort::UnicastFlood),
            self.multicast_flood.map(InfoBridgePort::MulticastFlood),
            self.broadcast_flood.map(InfoBridgePort::BroadcastFlood),
            self.hairpin.map(InfoBridgePort::HairpinMode),
            self.proxy_arp.map(InfoBridgePort::ProxyARP),
        ];
        let append = |message: LinkMessageBuilder<LinkBridgePort>, setting| {
            message.append_info_data(setting)
        };
        let settings = settings.into_iter().flatten().chain(more);
        settings.fold(LinkBridgePort::new(index), append).build()
    }
}

impl Request<'_> {
    /// Adds a bridge. It is down.
    #[must_use]
    pub fn add_bridge(name: &str, bridge: &Bridge) -> Self {
        let message = with_settings(LinkBridge::new(name), bridge);
        Self::new(format!("add the bridge {name}"), None, message, Existing::Refused)
    }

    /// Changes those settings of a bridge that are `Some`, and enables VLAN filtering if it is set.
    #[must_use]
    pub fn set_bridge(index: u32, bridge: &Bridge) -> Self {
        let message = LinkMessageBuilder::<LinkBridge>::new_with_info_kind(InfoKind::Bridge);
        let message = with_settings(message.index(index), bridge);
        Self::new(format!("set up the bridge {LINK}"), Some(index), message, Existing::Required)
    }

    /// Sets the options of a bridge port. [`Link::bridge_port`](crate::Link::bridge_port) reads them back.
    #[must_use]
    pub fn set_bridge_port(index: u32, port: &BridgePort) -> Self {
        let message = RouteNetlinkMessage::NewLink(port.message(index, None));
        let operation = format!("set up the bridge port {LINK}");
        Self::new(operation, Some(index), message, Existing::Required)
    }

    /// Sets the options of a bridge port and puts it into the forwarding state.
    ///
    /// The kernel refuses this for a port without a carrier and on a bridge with the kernel's spanning tree
    /// (`br_set_port_state` in net/bridge/br_stp_if.c).
    #[must_use]
    pub fn set_and_forward_bridge_port(index: u32, port: &BridgePort) -> Self {
        let state = InfoBridgePort::State(BridgePortState::Forwarding);
        let message = RouteNetlinkMessage::NewLink(port.message(index, Some(state)));
        let operation = format!("have the bridge port {LINK} forward");
        Self::new(operation, Some(index), message, Existing::Required)
    }

    /// Sets the options of a bridge port, then removes the forwarding entries that were learnt there.
    #[must_use]
    pub fn set_and_flush_bridge_port(index: u32, port: &BridgePort) -> Self {
        let message = port.message(index, Some(InfoBridgePort::Flush));
        let operation = format!("set up and flush the bridge port {LINK}");
        Self::new(operation, Some(index), RouteNetlinkMessage::NewLink(message), Existing::Required)
    }
}

fn with_settings(message: LinkMessageBuilder<LinkBridge>, bridge: &Bridge) -> RouteNetlinkMessage {
    let append =
        |message: LinkMessageBuilder<LinkBridge>, setting| message.append_info_data(setting);
    RouteNetlinkMessage::NewLink(bridge.settings().fold(message, append).build())
}
