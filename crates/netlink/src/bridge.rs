//! Bridges, their ports and their VLANs.

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{
        AfSpecBridge, BridgeVlanInfo, BridgeVlanInfoFlags, InfoBridge, InfoBridgePort,
        LinkAttribute, LinkExtentMask, LinkMessage,
    },
};
use rtnetlink::{LinkBridge, LinkBridgePort, LinkBridgeVlan, LinkMessageBuilder};

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
}

/// A VLAN of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeVlan {
    /// 1 to 4094.
    pub id: u16,
    /// Untagged frames that come in belong to it.
    pub pvid: bool,
    /// Its frames go out untagged.
    pub untagged: bool,
}

impl Bridge {
    pub(crate) fn from_settings(settings: &[InfoBridge]) -> Self {
        let mut bridge = Self::default();
        for setting in settings {
            match setting {
                InfoBridge::VlanFiltering(on) => bridge.vlan_filtering = *on,
                InfoBridge::VlanDefaultPvid(vlan) => bridge.default_pvid = Some(*vlan),
                InfoBridge::MulticastSnooping(on) => bridge.multicast_snooping = Some(*on),
                _ => {}
            }
        }
        bridge
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
                _ => {}
            }
        }
        port
    }

    fn message(&self, index: u32, flush: Option<InfoBridgePort>) -> LinkMessage {
        let settings = [
            self.learning.map(InfoBridgePort::Learning),
            self.locked.map(InfoBridgePort::Locked),
            self.isolated.map(InfoBridgePort::Isolated),
            self.unicast_flood.map(InfoBridgePort::UnicastFlood),
            self.multicast_flood.map(InfoBridgePort::MulticastFlood),
            self.broadcast_flood.map(InfoBridgePort::BroadcastFlood),
            self.hairpin.map(InfoBridgePort::HairpinMode),
        ];
        let append = |message: LinkMessageBuilder<LinkBridgePort>, setting| {
            message.append_info_data(setting)
        };
        let settings = settings.into_iter().flatten().chain(flush);
        settings.fold(LinkBridgePort::new(index), append).build()
    }
}

impl BridgeVlan {
    fn flags(self) -> BridgeVlanInfoFlags {
        let mut flags = BridgeVlanInfoFlags::empty();
        flags.set(BridgeVlanInfoFlags::Pvid, self.pvid);
        flags.set(BridgeVlanInfoFlags::Untagged, self.untagged);
        flags
    }

    fn from_info(info: &BridgeVlanInfo) -> Self {
        Self {
            id: info.vid,
            pvid: info.flags.contains(BridgeVlanInfoFlags::Pvid),
            untagged: info.flags.contains(BridgeVlanInfoFlags::Untagged),
        }
    }
}

impl Request<'_> {
    /// Makes a bridge, down.
    #[must_use]
    pub fn add_bridge(name: &str, bridge: &Bridge) -> Self {
        let mut message = LinkBridge::new(name);
        if bridge.vlan_filtering {
            message = message.vlan_filtering(true);
        }
        if let Some(pvid) = bridge.default_pvid {
            message = message.vlan_default_pvid(pvid);
        }
        if let Some(on) = bridge.multicast_snooping {
            message = message.mcast_snooping(on);
        }
        let message = RouteNetlinkMessage::NewLink(message.build());
        Self::new(format!("add the bridge {name}"), None, message, Existing::Refused)
    }

    /// Sets how a port of a bridge behaves.
    #[must_use]
    pub fn set_bridge_port(index: u32, port: &BridgePort) -> Self {
        let message = RouteNetlinkMessage::NewLink(port.message(index, None));
        let operation = format!("set up the bridge port {LINK}");
        Self::new(operation, Some(index), message, Existing::Required)
    }

    /// Sets how a port of a bridge behaves, then makes it forget the stations that were learnt there.
    #[must_use]
    pub fn set_and_flush_bridge_port(index: u32, port: &BridgePort) -> Self {
        let message = port.message(index, Some(InfoBridgePort::Flush));
        let operation = format!("set up and flush the bridge port {LINK}");
        Self::new(operation, Some(index), RouteNetlinkMessage::NewLink(message), Existing::Required)
    }

    /// Adds a VLAN to a port, or changes it.
    #[must_use]
    pub fn add_bridge_vlan(index: u32, vlan: BridgeVlan) -> Self {
        let message = LinkBridgeVlan::new(index).vlan(vlan.id, vlan.flags()).build();
        let message = RouteNetlinkMessage::SetLink(message);
        let operation = format!("add VLAN {} to {LINK}", vlan.id);
        Self::new(operation, Some(index), message, Existing::Required)
    }

    /// Takes a VLAN off a port.
    #[must_use]
    pub fn delete_bridge_vlan(index: u32, vlan: u16) -> Self {
        let none = BridgeVlanInfoFlags::empty();
        let message = LinkBridgeVlan::new(index).vlan(vlan, none).build();
        let message = RouteNetlinkMessage::DelLink(message);
        let operation = format!("delete VLAN {vlan} of {LINK}");
        Self::new(operation, Some(index), message, Existing::Required)
    }
}

/// Asks for all ports with their VLANs.
pub(crate) fn list_vlans_message() -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.interface_family = AddressFamily::Bridge;
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]));
    RouteNetlinkMessage::GetLink(message)
}

/// The VLANs in a port's description.
pub(crate) fn vlans_of(message: &LinkMessage) -> Vec<BridgeVlan> {
    let specs = message.attributes.iter().filter_map(|attribute| match attribute {
        LinkAttribute::AfSpecBridge(specs) => Some(specs),
        _ => None,
    });
    let vlan = |spec: &AfSpecBridge| match spec {
        AfSpecBridge::VlanInfo(info) => Some(BridgeVlan::from_info(info)),
        _ => None,
    };
    specs.flatten().filter_map(vlan).collect()
}
