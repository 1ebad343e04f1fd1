//! Flows: matches and actions.

use std::{collections::BTreeSet, fmt};

use ipnetwork::{Ipv4Network, Ipv6Network};
use netlink::MacAddress;

/// A flow. Of the flows in a table that match a frame, the one with the highest priority applies.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Table. Frames start in table 0.
    pub table: u8,
    /// Priority within the table.
    pub priority: u16,
    /// Cookie, by which the owner recognises the flow.
    pub cookie: u64,
    /// Conditions, all of which a frame must meet.
    pub matches: BTreeSet<Match>,
    /// What happens to the frame.
    pub action: Action,
}

/// A condition on a frame. Some conditions need others: those on ARP need the Ethernet type of ARP, for example
/// (ovs-fields(7), "prerequisites").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// The input port has this number.
    InPort(u32),
    /// The destination MAC address, compared under the mask in the second address.
    EthernetDestination(MacAddress, MacAddress),
    /// The source MAC address.
    EthernetSource(MacAddress),
    /// The Ethernet type, after a VLAN tag if there is one.
    EthernetType(u16),
    /// The outer VLAN tag.
    Vlan(VlanMatch),
    /// The protocol above IPv4, or above IPv6 and its extensions.
    IpProtocol(u8),
    /// The IPv4 source is in this network.
    Ipv4Source(Ipv4Network),
    /// The IPv4 destination is in this network.
    Ipv4Destination(Ipv4Network),
    /// The TCP destination port.
    TcpDestination(Ports),
    /// The UDP source port.
    UdpSource(u16),
    /// The UDP destination port.
    UdpDestination(Ports),
    /// The SCTP destination port.
    SctpDestination(Ports),
    /// The type of an ICMP message.
    Icmpv4Type(u8),
    /// The sender address in ARP is in this network.
    ArpSenderAddress(Ipv4Network),
    /// The target address in ARP is in this network.
    ArpTargetAddress(Ipv4Network),
    /// The sender MAC address in ARP.
    ArpSenderMac(MacAddress),
    /// The IPv6 source is in this network.
    Ipv6Source(Ipv6Network),
    /// The IPv6 destination is in this network.
    Ipv6Destination(Ipv6Network),
    /// The type of an ICMPv6 message.
    Icmpv6Type(u8),
    /// The code of an ICMPv6 message.
    Icmpv6Code(u8),
    /// The target of neighbour discovery is in this network. It is `::` if options contradict each other.
    ///
    /// In the kernel's datapath this condition and the next two only work together with the ICMPv6 code (ovs,
    /// lib/odp-util.c, `odp_flow_key_from_flow__`).
    NdTarget(Ipv6Network),
    /// The source link-layer address option of a solicitation. All zeros if it has none.
    NdSourceLink(MacAddress),
    /// The target link-layer address option of an advertisement. All zeros if it has none.
    NdTargetLink(MacAddress),
    /// The connection state. Only valid after [`Action::Track`].
    Connection(Connection),
    /// A condition that this crate does not know, by class, field and length. Only in flows that were read.
    Other(u32),
}

/// The outer VLAN tag of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VlanMatch {
    /// No tag.
    Untagged,
    /// A tag of this VLAN. 0: a priority tag.
    Id(u16),
}

/// A set of ports: those that equal `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    /// The bits to compare with.
    pub value: u16,
    /// The bits that are compared; not zero.
    pub mask: u16,
}

impl Ports {
    /// Matches exactly one port.
    #[must_use]
    pub const fn exactly(value: u16) -> Self {
        Self { value, mask: u16::MAX }
    }
}

/// State of a packet's connection in the zone of the lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Connection {
    /// The packet belongs to no answered connection: it would open one.
    New,
    /// The packet belongs to an answered connection.
    Established,
    /// The packet is an error that relates to a connection.
    Related,
}

/// What happens to a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// The switch drops the frame.
    Drop,
    /// The bridge forwards the frame like a learning switch.
    Normal,
    /// The frame continues in a later table.
    Table(u8),
    /// Drops what exceeds a meter. The rest continues in a later table.
    Metered {
        /// Number of the meter, which must exist.
        meter: u32,
        /// The later table.
        table: u8,
    },
    /// Looks up the connection in a zone. The frame continues in a table.
    Track {
        /// Zone number, valid in the whole datapath.
        zone: u16,
        /// Any table.
        table: u8,
    },
    /// Looks up the connection and commits it to connection tracking.
    Remember {
        /// Zone number, valid in the whole datapath.
        zone: u16,
        /// Any table from which the frame does not return to this action.
        table: u8,
    },
    /// An action that this crate does not know. Only in flows that were read; it cannot be set.
    Other,
}

/// A set of flows: those whose cookie equals `value` in the bits of `mask`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookies {
    /// The bits to compare with.
    pub value: u64,
    /// The bits that are compared.
    pub mask: u64,
}

impl Cookies {
    /// Matches exactly one cookie.
    #[must_use]
    pub const fn exactly(value: u64) -> Self {
        Self { value, mask: u64::MAX }
    }

    /// Whether the set contains the cookie.
    #[must_use]
    pub const fn include(self, cookie: u64) -> bool {
        cookie & self.mask == self.value & self.mask
    }
}

/// A flow with its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedFlow {
    /// The flow.
    pub flow: Flow,
    /// Number of frames that the flow applied to.
    pub packets: u64,
    /// Number of bytes of those frames.
    pub bytes: u64,
}

impl fmt::Display for CountedFlow {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { flow: Flow { table, priority, cookie, matches, action }, packets, bytes } = self;
        write!(
            out,
            "table {table} priority {priority} cookie {cookie:#x} packets {packets} bytes {bytes} matches {matches:?} \
             action {action:?}"
        )
    }
}

/// A meter: a rate limit that flows share. The switch drops what exceeds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// Number by which flows refer to the meter, from 1 on.
    pub number: u32,
    /// Rate in kbit/s.
    pub rate_kbits: u32,
    /// Burst in kbit.
    pub burst_kbits: u32,
}

/// A change of flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds a flow, replacing one with the same table, priority and matches.
    Add(Flow),
    /// Removes the flow with this table, priority, cookie and matches, if it exists.
    Remove(Flow),
    /// Removes all flows with these cookies.
    RemoveAll(Cookies),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_flow_is_displayed_in_one_line() {
        let matches = [Match::InPort(3), Match::EthernetType(0x0806)].into();
        let flow = Flow { table: 1, priority: 7, cookie: 0xff, matches, action: Action::Table(2) };
        let text = CountedFlow { flow, packets: 5, bytes: 300 }.to_string();
        assert!(text.starts_with("table 1 priority 7 cookie 0xff packets 5 bytes 300 "), "{text}");
        assert!(text.contains("InPort(3)") && text.ends_with("action Table(2)"), "{text}");
    }
}
