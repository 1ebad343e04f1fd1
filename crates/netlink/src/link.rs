//! The description of a link.

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        BridgePortState, InfoBridgePort, InfoData, InfoKind, InfoPortData, LinkAttribute,
        LinkFlags, LinkInfo, LinkMessage, Prop,
    },
};

use crate::{
    bridge::{Bridge, BridgePort},
    datagram::{Kinds, Object, append, attributes_in, of_routing},
    mac::MacAddress,
    undecoded::{HEADER_LEN, Undecoded},
    xdp,
    xdp::XdpMode,
};

/// Numbers of the attributes that become fields of [`Link`], in this order: address, broadcast address, name, MTU,
/// lower link, queueing discipline, master, queue length, link info (kind and its settings), alias, group, namespace of
/// the lower link, physical port name, XDP, property list (alternative names), permanent address, parent device and its
/// bus.
const NAMED: Kinds =
    Kinds::of(&[&[1, 2, 3, 4, 5, 6, 10, 13, 18, 20, 27, 37, 38, 43, 52, 54, 56, 57]]);

/// A link as the kernel describes it (`RTM_NEWLINK`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// Index within the link's namespace. A move to another namespace may change it.
    pub index: u32,
    /// Name, at most 15 bytes.
    pub name: String,
    /// Ethernet address. `None` if the link has none, or an address of another length.
    pub mac: Option<MacAddress>,
    /// The address that the hardware had at first, if the driver reports one.
    pub permanent_mac: Option<MacAddress>,
    /// MTU in bytes, without the Ethernet header.
    pub mtu: u32,
    /// Whether the link is administratively up (`IFF_UP`).
    pub is_up: bool,
    /// Whether the link is up and has a carrier (`IFF_RUNNING`).
    pub is_running: bool,
    /// Whether promiscuous mode was set on the link itself (`IFF_PROMISC`). Being a bridge port does not count.
    pub is_promiscuous: bool,
    /// Whether the link receives all multicast frames (`IFF_ALLMULTI`).
    pub is_all_multicast: bool,
    /// Whether ARP is off (`IFF_NOARP`): the link neither resolves addresses nor answers.
    pub is_without_arp: bool,
    /// Whether the link sends no multicast frames (`IFF_MULTICAST` is clear).
    pub is_without_multicast: bool,
    /// Whether the link loses its addresses when it goes down (`IFF_DYNAMIC`).
    pub is_dynamic: bool,
    /// Broadcast address. `None` if the link has none, or one of another length.
    pub broadcast: Option<MacAddress>,
    /// Kind of a software link, such as `veth`. `None` for hardware and for `lo`.
    pub kind: Option<String>,
    /// Alias: a text that survives moves and renames.
    pub alias: Option<String>,
    /// Alternative names.
    pub alternative_names: Vec<String>,
    /// Index of the bridge or bond whose port the link is.
    pub master: Option<u32>,
    /// Settings of the link as a bridge.
    pub bridge: Option<Bridge>,
    /// Settings of the link as a bridge port.
    pub bridge_port: Option<BridgePort>,
    /// Whether the bridge port is in the forwarding state.
    pub is_forwarding: bool,
    /// Index of the lower link (`IFLA_LINK`). For one end of a veth pair, the other end.
    pub peer: Option<u32>,
    /// The number that this link's namespace has for the namespace of `peer`. `None`: the same namespace.
    pub peer_netns: Option<i32>,
    /// Bus of the parent device, such as `pci`.
    pub parent_bus: Option<String>,
    /// Name of the parent device on its bus, such as `0000:03:00.2`.
    pub parent_device: Option<String>,
    /// Which port of the card this is, such as `pf0vf3` for a representor.
    pub phys_port_name: Option<String>,
    /// Kind of the root queueing discipline, such as `noqueue` or `tbf`.
    pub queue: Option<String>,
    /// Length of the transmit queue, in frames.
    pub queue_length: u32,
    /// Link group. The default is 0.
    pub group: u32,
    /// Modes in which XDP programs are attached.
    pub xdp: Vec<XdpMode>,
    /// The remaining attributes, undecoded. [`LinkState`](crate::LinkState) compares them.
    pub(crate) undecoded: Undecoded,
}

impl From<LinkMessage> for Link {
    fn from(message: LinkMessage) -> Self {
        let flags = message.header.flags;
        let mut link = Self {
            index: message.header.index,
            is_up: flags.contains(LinkFlags::Up),
            is_running: flags.contains(LinkFlags::Running),
            is_promiscuous: flags.contains(LinkFlags::Promisc),
            is_all_multicast: flags.contains(LinkFlags::Allmulti),
            is_without_arp: flags.contains(LinkFlags::Noarp),
            is_without_multicast: !flags.contains(LinkFlags::Multicast),
            is_dynamic: flags.contains(LinkFlags::Dynamic),
            ..Self::default()
        };
        for attribute in message.attributes {
            link.learn(attribute);
        }
        link
    }
}

impl Link {
    /// Reads a link from a message. `None`: the message is about something else.
    pub(crate) fn described_by(object: Object<'_>) -> Result<Option<Self>, String> {
        let named = only_named(object.payload);
        Ok(match of_routing(Object { payload: &named, ..object })? {
            RouteNetlinkMessage::NewLink(message) => {
                Some(Self { undecoded: Undecoded::of(object.payload), ..Self::from(message) })
            }
            _ => None,
        })
    }

    fn learn(&mut self, attribute: LinkAttribute) {
        match attribute {
            LinkAttribute::IfName(name) => self.name = name,
            LinkAttribute::Address(bytes) => self.mac = mac(&bytes),
            LinkAttribute::Broadcast(bytes) => self.broadcast = mac(&bytes),
            LinkAttribute::PermAddress(bytes) => self.permanent_mac = mac(&bytes),
            LinkAttribute::Mtu(mtu) => self.mtu = mtu,
            LinkAttribute::IfAlias(alias) => self.alias = Some(alias),
            LinkAttribute::Controller(index) => self.master = Some(index),
            LinkAttribute::Link(index) => self.peer = Some(index),
            LinkAttribute::LinkNetNsId(id) => self.peer_netns = Some(id),
            LinkAttribute::ParentDevBusName(bus) => self.parent_bus = Some(bus),
            LinkAttribute::ParentDevName(device) => self.parent_device = Some(device),
            LinkAttribute::PhysPortName(name) => self.phys_port_name = Some(name),
            LinkAttribute::Qdisc(kind) => self.queue = Some(kind),
            LinkAttribute::TxQueueLen(frames) => self.queue_length = frames,
            LinkAttribute::Group(group) => self.group = group,
            LinkAttribute::Xdp(attributes) => self.xdp = xdp::attached(&attributes),
            LinkAttribute::PropList(properties) => {
                self.alternative_names =
                    properties.into_iter().filter_map(alternative_name).collect();
            }
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    self.learn_info(info);
                }
            }
            _ => {}
        }
    }

    fn learn_info(&mut self, info: LinkInfo) {
        match info {
            LinkInfo::Kind(kind) => self.kind = Some(kind_name(kind)),
            LinkInfo::Data(InfoData::Bridge(settings)) => {
                self.bridge = Some(Bridge::from_settings(&settings));
            }
            LinkInfo::PortData(InfoPortData::BridgePort(settings)) => {
                self.bridge_port = Some(BridgePort::from_settings(&settings));
                self.is_forwarding =
                    settings.contains(&InfoBridgePort::State(BridgePortState::Forwarding));
            }
            _ => {}
        }
    }
}

/// Copies the attributes that [`Link`] has as fields. Parsing the others, such as the IPv4 and IPv6 settings, takes
/// several times as long, and a host has hundreds of links.
fn only_named(message: &[u8]) -> Vec<u8> {
    let (header, attributes) = message.split_at_checked(HEADER_LEN).unwrap_or((message, &[]));
    let mut named = header.to_vec();
    for attribute in attributes_in(attributes).filter(|one| NAMED.contains(one.kind())) {
        append(&mut named, &attribute);
    }
    named
}

fn mac(bytes: &[u8]) -> Option<MacAddress> {
    bytes.try_into().ok().map(MacAddress)
}

fn alternative_name(property: Prop) -> Option<String> {
    match property {
        Prop::AltIfName(name) => Some(name),
        _ => None,
    }
}

fn kind_name(kind: InfoKind) -> String {
    match kind {
        InfoKind::Other(name) => name,
        kind => kind.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;
    use netlink_packet_route::link::{LinkXdp, State};

    use super::*;

    const RTM_NEWLINK: u16 = 16;

    #[test]
    fn all_link_attributes_are_read() {
        let mut message = LinkMessage::default();
        message.header.index = 7;
        message.attributes = vec![
            LinkAttribute::IfName("eth0".into()),
            LinkAttribute::Address(vec![2; 6]),
            LinkAttribute::OperState(State::Up),
            LinkAttribute::Broadcast(vec![3; 6]),
            LinkAttribute::PermAddress(vec![4; 6]),
            LinkAttribute::Mtu(1400),
            LinkAttribute::IfAlias("alias".into()),
            LinkAttribute::Controller(8),
            LinkAttribute::Link(9),
            LinkAttribute::LinkNetNsId(10),
            LinkAttribute::ParentDevBusName("pci".into()),
            LinkAttribute::ParentDevName("0000:03:00.2".into()),
            LinkAttribute::PhysPortName("pf0vf0".into()),
            LinkAttribute::Qdisc("noqueue".into()),
            LinkAttribute::TxQueueLen(1000),
            LinkAttribute::Group(11),
            LinkAttribute::Xdp(vec![LinkXdp::SkbProgId(5)]),
            LinkAttribute::PropList(vec![Prop::AltIfName("other".into())]),
            LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Veth)]),
        ];
        let mut payload = vec![0; message.buffer_len()];
        message.emit(&mut payload);
        let object = Object { kind: RTM_NEWLINK, payload: &payload };
        let link = Link::described_by(object).unwrap().unwrap();
        let all = Link { undecoded: Undecoded::of(&payload), ..Link::from(message) };
        assert_eq!(link, all);
        let Link { xdp, alternative_names, kind, master, peer, peer_netns, group, .. } = all;
        assert_eq!((xdp.len(), alternative_names.len(), kind), (1, 1, Some("veth".into())));
        assert_eq!((master, peer, peer_netns, group), (Some(8), Some(9), Some(10), 11));
    }
}
