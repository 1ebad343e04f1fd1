//! Numbers of protocols and messages that guards and rules look at.

pub(super) const TYPE_IPV4: u16 = 0x0800;
pub(super) const TYPE_ARP: u16 = 0x0806;
pub(super) const TYPE_IPV6: u16 = 0x86dd;
/// The EtherType by which Open vSwitch reports 802.2 frames. SNAP frames with an Ethernet type get that type
/// instead (ovs-fields(7), `eth_type`).
pub(super) const TYPE_802_2: u16 = 0x05ff;
/// EtherTypes of VLAN tags: of a second tag, or of one that Open vSwitch does not parse as a tag.
pub(super) const TAG_TYPES: [u16; 5] = [0x8100, 0x88a8, 0x9100, 0x9200, 0x9300];

pub(super) const ICMP: u8 = 1;
pub(super) const IGMP: u8 = 2;
pub(super) const UDP: u8 = 17;
pub(super) const ICMPV6: u8 = 58;

pub(super) const ICMP_REDIRECT: u8 = 5;
pub(super) const ICMP_ROUTER_ADVERTISEMENT: u8 = 9;

pub(super) const ROUTER_SOLICITATION: u8 = 133;
pub(super) const ROUTER_ADVERTISEMENT: u8 = 134;
pub(super) const NEIGHBOUR_SOLICITATION: u8 = 135;
pub(super) const NEIGHBOUR_ADVERTISEMENT: u8 = 136;
pub(super) const REDIRECT: u8 = 137;
/// Multicast listener messages: reports of MLD versions 1 and 2, and done.
pub(super) const LISTENER_MESSAGES: [u8; 3] = [131, 132, 143];

pub(super) const DHCP_SERVER: u16 = 67;
pub(super) const DHCP_CLIENT: u16 = 68;
pub(super) const DHCPV6_CLIENT: u16 = 546;
