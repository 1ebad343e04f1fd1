//! The kernel's description of a link, of which each attribute is an aspect: those that this crate
//! reads by what it makes of them, the others as they come.

use std::fmt;

use netlink_packet_core::{NlaBuffer, NlasIterator};

use super::{Aspects, on_or_off};
use crate::{Link, MacAddress};

/// The length of the header before the attributes, and where in it the flags are.
const HEADER_LEN: usize = 16;
const FLAGS: std::ops::Range<usize> = 8..12;

/// Attributes that are no aspects of their own here, by number.
const LEFT_OUT: &[&[u16]] = &[
    // What `Link` has by name, or its changes: address, broadcast address, name, MTU, master, queue
    // length, alias, group, XDP programs, alternative names.
    &[1, 2, 3, 4, 10, 13, 20, 27, 43, 52, 53],
    // Where the other end of a veth pair is: numbers that a move of that one changes.
    &[5, 37],
    // The queue's kind: a move ends every queue, and who is switched on gets the default.
    &[6],
    // Counters.
    &[7, 23, 35, 47, 48],
    // The moment: state, carrier, and of which event and which namespace is told.
    &[16, 33, 44, 45, 46, 49],
    // Where the card's registers and interrupts are: a driver may find them elsewhere next time.
    &[14],
    // Settings of IPv4 and IPv6: they belong to the namespace, and begin anew with each move.
    &[26],
    // What a PF says of its VFs.
    &[21, 22, 24, 25, 29],
    // Names of the hardware: no program changes them, but another mode of the card may.
    &[34, 36, 38, 54, 56, 57, 62, 65],
    // The room around each frame: what the other end of a veth pair asks for.
    &[68, 69],
    // Padding.
    &[42],
];

/// Attributes that people know, by number.
const NAMED: [(u16, &str); 18] = [
    (15, "weight"),
    (17, "link mode"),
    (18, "kind"),
    (30, "count of promiscuity"),
    (31, "number of queues for sending"),
    (32, "number of queues for receiving"),
    (39, "proto-down"),
    (40, "most GSO segments"),
    (41, "largest GSO size"),
    (50, "smallest MTU"),
    (51, "largest MTU"),
    (55, "proto-down reason"),
    (58, "largest GRO size"),
    (59, "largest TSO size"),
    (60, "most TSO segments"),
    (61, "count of reception of all multicast"),
    (63, "largest GSO size for IPv4"),
    (64, "largest GRO size for IPv4"),
];

/// What of the flags is an aspect that `Link` does not have: all that a program can set.
const OTHER_FLAGS: u32 = IFF_DEBUG | IFF_NOTRAILERS | IFF_PORTSEL | IFF_AUTOMEDIA;
const IFF_DEBUG: u32 = 1 << 2;
const IFF_NOTRAILERS: u32 = 1 << 5;
const IFF_PORTSEL: u32 = 1 << 13;
const IFF_AUTOMEDIA: u32 = 1 << 14;

/// What the kernel told of a link beyond what [`Link`] has by name: flags and attributes as they came.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Told {
    flags: u32,
    attributes: Box<[u8]>,
}

impl fmt::Debug for Told {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes", self.attributes.len())
    }
}

impl Told {
    /// Of a message about a link.
    pub(crate) fn of(message: &[u8]) -> Self {
        let flags = message.get(FLAGS).and_then(|bytes| bytes.try_into().ok());
        let mut kept = Vec::new();
        for attribute in attributes_in(message.get(HEADER_LEN..).unwrap_or_default()) {
            if !LEFT_OUT.iter().any(|left_out| left_out.contains(&attribute.kind())) {
                let whole = attribute.into_inner();
                kept.extend_from_slice(&whole[..usize::from(attribute.length())]);
                kept.resize(kept.len().next_multiple_of(4), 0);
            }
        }
        Self {
            flags: flags.map_or(0, u32::from_ne_bytes) & OTHER_FLAGS,
            attributes: kept.into_boxed_slice(),
        }
    }
}

/// What a link is like by its description.
pub(super) fn aspects(link: &Link) -> Aspects {
    let mut names = link.alternative_names.clone();
    names.sort_unstable();
    let mac = |mac: Option<MacAddress>| mac.map(|mac| mac.to_string());
    let known = [
        ("name", Some(link.name.clone())),
        ("MAC address", mac(link.mac)),
        ("broadcast address", mac(link.broadcast)),
        ("MTU", Some(link.mtu.to_string())),
        ("queue length", Some(link.queue_length.to_string())),
        ("group", Some(link.group.to_string())),
        ("alias", link.alias.clone()),
        ("alternative names", (!names.is_empty()).then(|| names.join(", "))),
        ("master", link.master.map(|index| format!("link {index}"))),
        ("XDP program", (!link.xdp.is_empty()).then(|| format!("{:?}", link.xdp))),
        ("ARP", Some(on_or_off(!link.is_without_arp))),
        ("multicast", Some(on_or_off(!link.is_without_multicast))),
        ("loss of addresses when down", Some(on_or_off(link.is_dynamic))),
        ("promiscuity", Some(on_or_off(link.is_promiscuous))),
        ("reception of all multicast", Some(on_or_off(link.is_all_multicast))),
        ("set of other flags", Some(format!("{:#x}", link.told.flags))),
    ];
    let known = known.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
    known.chain(told(&link.told.attributes)).collect()
}

/// Makes the aspects those of a link that nobody uses.
pub(super) fn make_unused(aspects: &mut Aspects, name: &str, mac: Option<MacAddress>, mtu: u32) {
    let own = [
        ("name", name.to_owned()),
        ("MTU", mtu.to_string()),
        ("group", "0".to_owned()),
        ("ARP", on_or_off(true)),
        ("multicast", on_or_off(true)),
        ("loss of addresses when down", on_or_off(false)),
        ("promiscuity", on_or_off(false)),
        ("reception of all multicast", on_or_off(false)),
    ];
    aspects.extend(own.map(|(aspect, value)| (aspect.to_owned(), value)));
    aspects.extend(mac.map(|mac| ("MAC address".to_owned(), mac.to_string())));
    for gone in ["XDP program", "master"] {
        aspects.remove(gone);
    }
    let usual = [
        ("broadcast address", MacAddress::BROADCAST.to_string()),
        ("count of promiscuity", "0".to_owned()),
        ("count of reception of all multicast", "0".to_owned()),
    ];
    for (aspect, value) in usual {
        aspects.entry(aspect.to_owned()).and_modify(|present| *present = value);
    }
}

fn told(attributes: &[u8]) -> impl Iterator<Item = (String, String)> {
    attributes_in(attributes).map(|attribute| {
        let known = NAMED.iter().find(|(number, _)| *number == attribute.kind());
        let unknown = || format!("attribute {}", attribute.kind());
        let name = known.map_or_else(unknown, |(_, name)| (*name).to_owned());
        (name, value_of(attribute.value()))
    })
}

/// The attributes in a message. What can't be one ends them.
pub(super) fn attributes_in(bytes: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(bytes).map_while(Result::ok)
}

/// A value of which no more is known than its length: a number, or bytes.
pub(super) fn value_of(bytes: &[u8]) -> String {
    match *bytes {
        [byte] => byte.to_string(),
        [a, b] => u16::from_ne_bytes([a, b]).to_string(),
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).to_string(),
        _ => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
