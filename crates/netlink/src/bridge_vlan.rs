//! VLANs of bridge ports.

use std::collections::BTreeMap;

use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{
        AfSpecBridge, BridgeVlanInfo, BridgeVlanInfoFlags, LinkAttribute, LinkExtentMask,
        LinkMessage,
    },
};
use rtnetlink::LinkBridgeVlan;

use crate::{
    error::Error,
    request::{Existing, LINK, Request},
    rtnl::Rtnl,
};

/// A VLAN of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BridgeVlan {
    /// VLAN ID, 1 to 4094.
    pub id: u16,
    /// Untagged frames that the port receives belong to this VLAN.
    pub pvid: bool,
    /// The port sends frames of this VLAN untagged.
    pub untagged: bool,
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
    /// Adds a VLAN to a port, or changes its flags. A kernel without VLAN filtering refuses this as
    /// [unsupported](Error::is_unsupported).
    #[must_use]
    pub fn add_bridge_vlan(index: u32, vlan: BridgeVlan) -> Self {
        let message = LinkBridgeVlan::new(index).vlan(vlan.id, vlan.flags()).build();
        let message = RouteNetlinkMessage::SetLink(message);
        let operation = format!("add VLAN {} to {LINK}", vlan.id);
        Self::new(operation, Some(index), message, Existing::Required)
    }

    /// Deletes a VLAN of a port.
    #[must_use]
    pub fn delete_bridge_vlan(index: u32, vlan: u16) -> Self {
        let none = BridgeVlanInfoFlags::empty();
        let message = LinkBridgeVlan::new(index).vlan(vlan, none).build();
        let message = RouteNetlinkMessage::DelLink(message);
        let operation = format!("delete VLAN {vlan} of {LINK}");
        Self::new(operation, Some(index), message, Existing::Required)
    }
}

impl Rtnl {
    /// Lists the VLANs of a bridge and of its ports, by link index. Links without VLANs are left out.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn bridge_vlans(&mut self, bridge: u32) -> Result<BTreeMap<u32, Vec<BridgeVlan>>, Error> {
        let is_of_bridge = LinkAttribute::Controller(bridge);
        let of_port = |object| match object {
            RouteNetlinkMessage::NewLink(message) if message.attributes.contains(&is_of_bridge) => {
                Some((message.header.index, vlans_of(&message)))
            }
            _ => None,
        };
        let listed = self.list("list the VLANs", &list_vlans_message(), of_port)?;
        let mut vlans: BTreeMap<u32, Vec<BridgeVlan>> = BTreeMap::new();
        for (index, some) in listed {
            vlans.entry(index).or_default().extend(some);
        }
        vlans.retain(|_, vlans| !vlans.is_empty());
        Ok(vlans)
    }
}

/// `RTEXT_FILTER_BRVLAN` makes the kernel include the VLANs of each port.
fn list_vlans_message() -> RouteNetlinkMessage {
    let mut message = LinkMessage::default();
    message.header.interface_family = AddressFamily::Bridge;
    message.attributes.push(LinkAttribute::ExtMask(vec![LinkExtentMask::Brvlan]));
    RouteNetlinkMessage::GetLink(message)
}

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
