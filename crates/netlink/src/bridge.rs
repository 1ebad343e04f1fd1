//! Bridges and their ports.

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{BridgePortState, BridgeStpState, InfoBridge, InfoBridgePort, InfoKind, LinkMessage},
};
use rtnetlink::{LinkBridge, LinkBridgePort, LinkMessageBuilder};

use crate::{
    Request,
    request::{Existing, LINK},
};

/// A bridge to be made, or one that there is; then all are `Some` that the kernel knows of.
///
/// Its MTU is the least of its ports' until it is [set](crate::LinkChange::mtu).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bridge {
    /// Whether it keeps VLANs apart. Needs a kernel with `CONFIG_BRIDGE_VLAN_FILTERING`.
    pub vlan_filtering: bool,
    /// The VLAN of untagged frames on new ports, 0 for none. `None`: the kernel's default, 1.
    pub default_pvid: Option<u16>,
    /// Whether it watches IGMP and MLD. `None`: the kernel's default, yes if it can.
    pub multicast_snooping: Option<bool>,
    /// Whether a spanning tree decides which of its ports forward, the kernel's or that of a daemon. `None`: the kernel's
    /// default, no.
    pub spanning_tree: Option<bool>,
}

/// Settings of a port of a bridge. `None` in a request: left as it is; read back, all are `Some`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgePort {
    /// Learns the source addresses of frames that come in.
    pub learning: Option<bool>,
    /// Drops frames from addresses that are not in the forwarding table for this port.
    pub locked: Option<bool>,
    /// Exchanges no frames with other isolated ports.
    pub isolated: Option<bool>,
    /// Frames to unknown addresses go out here.
    pub unicast_flood: Option<bool>,
    /// Multicast frames without a known listener go out here.
    pub multicast_flood: Option<bool>,
    /// Broadcast frames go out here.
    pub broadcast_flood: Option<bool>,
    /// Frames may go back out of the port that they came in by.
    pub hairpin: Option<bool>,
    /// The bridge answers ARP requests for what is behind the port, and floods nothing there.
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
    /// Makes a bridge, down.
    #[must_use]
    pub fn add_bridge(name: &str, bridge: &Bridge) -> Self {
        let message = with_settings(LinkBridge::new(name), bridge);
        Self::new(format!("add the bridge {name}"), None, message, Existing::Refused)
    }

    /// Changes the settings of a bridge: those that are `Some`, and VLAN filtering where it is to be on.
    #[must_use]
    pub fn set_bridge(index: u32, bridge: &Bridge) -> Self {
        let message = LinkMessageBuilder::<LinkBridge>::new_with_info_kind(InfoKind::Bridge);
        let message = with_settings(message.index(index), bridge);
        Self::new(format!("set up the bridge {LINK}"), Some(index), message, Existing::Required)
    }

    /// Sets how a port of a bridge behaves. Read back by [`Link::bridge_port`](crate::Link::bridge_port).
    #[must_use]
    pub fn set_bridge_port(index: u32, port: &BridgePort) -> Self {
        let message = RouteNetlinkMessage::NewLink(port.message(index, None));
        let operation = format!("set up the bridge port {LINK}");
        Self::new(operation, Some(index), message, Existing::Required)
    }

    /// Sets how a port of a bridge behaves, and has it forward at once. A bridge with a spanning tree of the kernel's
    /// refuses that, and so does a port without a carrier (`br_set_port_state` in net/bridge/br_stp_if.c).
    #[must_use]
    pub fn set_and_forward_bridge_port(index: u32, port: &BridgePort) -> Self {
        let state = InfoBridgePort::State(BridgePortState::Forwarding);
        let message = RouteNetlinkMessage::NewLink(port.message(index, Some(state)));
        let operation = format!("have the bridge port {LINK} forward");
        Self::new(operation, Some(index), message, Existing::Required)
    }

    /// Sets how a port of a bridge behaves, then makes it forget the stations that were learnt there.
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
