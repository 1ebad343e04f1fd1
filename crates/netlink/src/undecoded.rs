//! Attributes of a link that [`Link`](crate::Link) does not decode, kept for comparison by
//! [`LinkState`](crate::LinkState).

use std::fmt;

use netlink_packet_core::NlaBuffer;

use crate::datagram::{Kinds, append, attributes_in};

/// Length of `struct ifinfomsg`, which precedes the attributes, and the position of the flags in it.
pub(crate) const HEADER_LEN: usize = 16;
const FLAGS: std::ops::Range<usize> = 8..12;

/// Numbers of attributes that are not compared here.
const LEFT_OUT: Kinds = Kinds::of(&[
    // Fields of `Link` or the means to change them: address, broadcast address, name, MTU, master, queue length, alias,
    // group, XDP programs, alternative names.
    &[1, 2, 3, 4, 10, 13, 20, 27, 43, 52, 53],
    // Index and namespace of a veth pair's other end: a move of that end changes them.
    &[5, 37],
    // Queueing discipline: a move removes it, and the link gets the default when it goes up.
    &[6],
    // Counters.
    &[7, 23, 35, 47, 48],
    // Momentary values: operational state, carrier, and the event and namespace of the message.
    &[16, 33, 44, 45, 46, 49],
    // Memory map and interrupts: a driver may get others when it binds again.
    &[14],
    // Settings of IPv4 and IPv6: they belong to the namespace and are reset by each move.
    &[26],
    // What a PF reports about its VFs.
    &[21, 22, 24, 25, 29],
    // Names of the hardware: no program changes them, but another mode of the card may.
    &[34, 36, 38, 54, 56, 57, 62, 65],
    // Headroom and tailroom: set by the other end of a veth pair.
    &[68, 69],
    // Padding.
    &[42],
]);

/// Flags that programs can set and `Link` does not have.
const OTHER_FLAGS: u32 = IFF_DEBUG | IFF_NOTRAILERS | IFF_PORTSEL | IFF_AUTOMEDIA;
const IFF_DEBUG: u32 = 1 << 2;
const IFF_NOTRAILERS: u32 = 1 << 5;
const IFF_PORTSEL: u32 = 1 << 13;
const IFF_AUTOMEDIA: u32 = 1 << 14;

/// The flags and attributes of a link that [`Link`](crate::Link) does not decode, as received.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Undecoded {
    flags: u32,
    attributes: Box<[u8]>,
}

impl fmt::Debug for Undecoded {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} bytes", self.attributes.len())
    }
}

impl Undecoded {
    pub(crate) fn of(message: &[u8]) -> Self {
        let flags = message.get(FLAGS).and_then(|bytes| bytes.try_into().ok());
        let mut kept = Vec::new();
        for attribute in attributes_in(message.get(HEADER_LEN..).unwrap_or_default()) {
            if !LEFT_OUT.contains(attribute.kind()) {
                append(&mut kept, &attribute);
            }
        }
        Self {
            flags: flags.map_or(0, u32::from_ne_bytes) & OTHER_FLAGS,
            attributes: kept.into_boxed_slice(),
        }
    }

    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    pub(crate) fn attributes(&self) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
        attributes_in(&self.attributes)
    }
}
