//! What a link is like.

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{
        BridgePortState, InfoBridgePort, InfoData, InfoKind, InfoPortData, LinkAttribute,
        LinkFlags, LinkInfo, LinkMessage, Prop,
    },
};

use crate::{
    Bridge, BridgePort, MacAddress, XdpMode,
    datagram::{Kinds, Object, append, attributes_in, of_routing},
    told::{HEADER_LEN, Told},
    xdp,
};

/// The attributes that [`Link`] has by name, by number: address, broadcast address, name, MTU, what it is stacked on,
/// kind of queue, master, queue length, kind of link and settings of that, alias, group, where it is stacked, port's name,
/// XDP programs, alternative names, permanent address, device and its bus.
const NAMED: Kinds =
    Kinds::of(&[&[1, 2, 3, 4, 5, 6, 10, 13, 18, 20, 27, 37, 38, 43, 52, 54, 56, 57]]);

/// A link as the kernel describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// Its number within its namespace. A move may change it.
    pub index: u32,
    /// At most 15 bytes.
    pub name: String,
    /// Its Ethernet address. `None`: it has none, or one of another length.
    pub mac: Option<MacAddress>,
    /// The address that it was made with, where the driver knows.
    pub permanent_mac: Option<MacAddress>,
    /// In bytes, without the Ethernet header.
    pub mtu: u32,
    /// Switched on (`IFF_UP`).
    pub is_up: bool,
    /// Switched on and with a carrier (`IFF_RUNNING`).
    pub is_running: bool,
    /// Told to receive frames for every address (`IFF_PROMISC`), other than by being a port.
    pub is_promiscuous: bool,
    /// Told to receive all multicast frames (`IFF_ALLMULTI`).
    pub is_all_multicast: bool,
    /// Told to ask nobody for addresses, and to answer nobody (`IFF_NOARP`).
    pub is_without_arp: bool,
    /// Told to send no multicast frames (no `IFF_MULTICAST`).
    pub is_without_multicast: bool,
    /// Told to lose its addresses when it is switched off (`IFF_DYNAMIC`).
    pub is_dynamic: bool,
    /// Where frames for all are sent to. `None`: nowhere, or to an address of another length.
    pub broadcast: Option<MacAddress>,
    /// The kind of software link, such as `veth`; `None` for hardware and for `lo`.
    pub kind: Option<String>,
    /// A text that stays with the link through moves and renames.
    pub alias: Option<String>,
    /// Other names by which it is found.
    pub alternative_names: Vec<String>,
    /// The index of the bridge or bond that it is a port of.
    pub master: Option<u32>,
    /// Its settings as a bridge.
    pub bridge: Option<Bridge>,
    /// Its settings as a port of a bridge.
    pub bridge_port: Option<BridgePort>,
    /// Whether it passes frames, as a port of a bridge.
    pub is_forwarding: bool,
    /// The index of what it is stacked on; for a veth end, of the other end.
    pub peer: Option<u32>,
    /// The namespace of `peer`, as numbered in the namespace of this link. `None`: the same.
    pub peer_netns: Option<i32>,
    /// The bus of the device behind it, such as `pci`.
    pub parent_bus: Option<String>,
    /// The device behind it on its bus, such as `0000:03:00.2`.
    pub parent_device: Option<String>,
    /// Which port of its card it is, such as `pf0vf3` for a representor.
    pub phys_port_name: Option<String>,
    /// The kind of the queue that it sends from, such as `noqueue` or `tbf`.
    pub queue: Option<String>,
    /// How many frames may wait to be sent.
    pub queue_length: u32,
    /// Its group; 0 unless set.
    pub group: u32,
    /// The modes in which XDP programs are attached to it.
    pub xdp: Vec<XdpMode>,
    /// All else that the kernel told of it, as it came.
    pub(crate) told: Told,
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
    /// The link that a message describes. `None`: the message is about something else.
    pub(crate) fn described_by(object: Object<'_>) -> Result<Option<Self>, String> {
        let named = only_named(object.payload);
        Ok(match of_routing(Object { payload: &named, ..object })? {
            RouteNetlinkMessage::NewLink(message) => {
                Some(Self { told: Told::of(object.payload), ..Self::from(message) })
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

/// A message with those attributes alone that [`Link`] has by name. To read the others, such as the settings of IPv4 and
/// IPv6, would take several times as long, and hosts have hundreds of links.
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
    fn all_is_read_that_a_link_has_by_name() {
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
        let all = Link { told: Told::of(&payload), ..Link::from(message) };
        assert_eq!(link, all);
        let Link { xdp, alternative_names, kind, master, peer, peer_netns, group, .. } = all;
        assert_eq!((xdp.len(), alternative_names.len(), kind), (1, 1, Some("veth".into())));
        assert_eq!((master, peer, peer_netns, group), (Some(8), Some(9), Some(10), 11));
    }
}
