//! Flows: what is matched, and what is done.

use std::{collections::BTreeSet, fmt};

use ipnetwork::{Ipv4Network, Ipv6Network};
use netlink::MacAddress;

/// A flow. Of those in a table that match a frame, the one of the highest priority decides.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flow {
    /// Its table. Frames begin in 0.
    pub table: u8,
    /// Its priority among those of its table.
    pub priority: u16,
    /// By which those who set it know it again.
    pub cookie: u64,
    /// What a frame has to be like, in all of these points.
    pub matches: BTreeSet<Match>,
    /// What is done with it.
    pub action: Action,
}

/// What a frame is like. Some points make sense only beside others: those of ARP beside its Ethernet type, and so on
/// (ovs-fields(7), "prerequisites").
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Match {
    /// It came in at the port with that number.
    InPort(u32),
    /// To a station, of which only the bits of the second address count.
    EthernetDestination(MacAddress, MacAddress),
    /// From that station.
    EthernetSource(MacAddress),
    /// What is in it, behind a tag if it has one.
    EthernetType(u16),
    /// Its first tag.
    Vlan(VlanMatch),
    /// The protocol above IPv4, or above IPv6 and its extensions.
    IpProtocol(u8),
    /// From one of these addresses.
    Ipv4Source(Ipv4Network),
    /// To one of these addresses.
    Ipv4Destination(Ipv4Network),
    /// To one of these ports.
    TcpDestination(Ports),
    /// From that port.
    UdpSource(u16),
    /// To one of these ports.
    UdpDestination(Ports),
    /// To one of these ports.
    SctpDestination(Ports),
    /// A message of that type.
    Icmpv4Type(u8),
    /// Sent by one of these addresses, as ARP says.
    ArpSenderAddress(Ipv4Network),
    /// About one of these addresses.
    ArpTargetAddress(Ipv4Network),
    /// Sent by that station, as ARP says.
    ArpSenderMac(MacAddress),
    /// From one of these addresses.
    Ipv6Source(Ipv6Network),
    /// To one of these addresses.
    Ipv6Destination(Ipv6Network),
    /// A message of that type.
    Icmpv6Type(u8),
    /// A message of that code.
    Icmpv6Code(u8),
    /// About one of these addresses, as neighbour discovery says; `::` of options that contradict each other. As the
    /// two after it, it takes hold in the kernel's datapath only beside the code (ovs, lib/odp-util.c,
    /// `odp_flow_key_from_flow__`).
    NdTarget(Ipv6Network),
    /// The link of the sender, as a solicitation says; all zero if it does not.
    NdSourceLink(MacAddress),
    /// The link of the target, as an advertisement says; all zero if it does not.
    NdTargetLink(MacAddress),
    /// Of such a connection. Only of what was looked up by [`Action::Track`].
    Connection(Connection),
    /// Something that is not known here, by its field's number. Only of flows that were read.
    Other(u32),
}

/// The first tag of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VlanMatch {
    /// None.
    Untagged,
    /// The tag of that VLAN; 0: one that tells a priority and no VLAN.
    Id(u16),
}

/// Ports of a protocol: those whose bits under `mask` are as in `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ports {
    /// The bits.
    pub value: u16,
    /// Which of them count. Not none.
    pub mask: u16,
}

impl Ports {
    /// That one alone.
    #[must_use]
    pub const fn exactly(value: u16) -> Self {
        Self { value, mask: u16::MAX }
    }
}

/// How a packet stands to the connections of the zone in which it was looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Connection {
    /// It is of none that was answered: it opens one, if anything does.
    New,
    /// It is of one that was remembered and answered.
    Established,
    /// It tells of an error on one that was remembered.
    Related,
}

/// What is done with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Nothing.
    Drop,
    /// The bridge forwards it as bridges do.
    Normal,
    /// A later table decides.
    Table(u8),
    /// What exceeds the meter of that number is dropped, and a later table decides on the rest.
    Metered {
        /// The meter, which has to be there.
        meter: u32,
        /// The table.
        table: u8,
    },
    /// Its connection is looked up among those of that zone, then that table decides.
    Track {
        /// Zones are numbered within a datapath.
        zone: u16,
        /// Any table.
        table: u8,
    },
    /// Likewise, and its connection is remembered.
    Remember {
        /// The zone.
        zone: u16,
        /// Any table, but one from which it comes back to be remembered again and again.
        table: u8,
    },
    /// Something that is not known here. Only of flows that were read: it can't be set.
    Other,
}

/// Flows by their cookies: those whose bits under `mask` are as in `value`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookies {
    /// The bits.
    pub value: u64,
    /// Which of them count.
    pub mask: u64,
}

impl Cookies {
    /// Those with exactly that cookie.
    #[must_use]
    pub const fn exactly(value: u64) -> Self {
        Self { value, mask: u64::MAX }
    }

    /// Whether it is one of them.
    #[must_use]
    pub const fn include(self, cookie: u64) -> bool {
        cookie & self.mask == self.value & self.mask
    }
}

/// A flow as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CountedFlow {
    /// The flow.
    pub flow: Flow,
    /// How many frames it has decided on.
    pub packets: u64,
    /// How many bytes these had.
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

/// What flows may have in common: how much of what they let pass goes on. The rest is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meter {
    /// By which flows name it, from 1 on.
    pub number: u32,
    /// The rate, in kbit/s.
    pub rate_kbits: u32,
    /// What may go on at once, in kbit.
    pub burst_kbits: u32,
}

/// Something to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// Sets a flow, in place of one with the same table, priority and matches.
    Add(Flow),
    /// Takes away the flow with this table, priority, cookie and these matches, if there is one.
    Remove(Flow),
    /// Takes away all of these.
    RemoveAll(Cookies),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counted_flow_is_one_line() {
        let matches = [Match::InPort(3), Match::EthernetType(0x0806)].into();
        let flow = Flow { table: 1, priority: 7, cookie: 0xff, matches, action: Action::Table(2) };
        let text = CountedFlow { flow, packets: 5, bytes: 300 }.to_string();
        assert!(text.starts_with("table 1 priority 7 cookie 0xff packets 5 bytes 300 "), "{text}");
        assert!(text.contains("InPort(3)") && text.ends_with("action Table(2)"), "{text}");
    }
}
