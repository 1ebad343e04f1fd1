//! What the kernel tells of a link beyond what anybody asks for by name: kept for the link's portrait.

use std::fmt;

use netlink_packet_core::NlaBuffer;

use crate::datagram::{Kinds, append, attributes_in};

/// The length of the header before the attributes, and where in it the flags are.
pub(crate) const HEADER_LEN: usize = 16;
const FLAGS: std::ops::Range<usize> = 8..12;

/// Attributes that are no aspects of their own here, by number.
const LEFT_OUT: Kinds = Kinds::of(&[
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
]);

/// What of the flags is an aspect that `Link` does not have: all that a program can set.
const OTHER_FLAGS: u32 = IFF_DEBUG | IFF_NOTRAILERS | IFF_PORTSEL | IFF_AUTOMEDIA;
const IFF_DEBUG: u32 = 1 << 2;
const IFF_NOTRAILERS: u32 = 1 << 5;
const IFF_PORTSEL: u32 = 1 << 13;
const IFF_AUTOMEDIA: u32 = 1 << 14;

/// What the kernel told of a link beyond what [`Link`][`crate::Link`] has by name: flags and attributes
/// as they came.
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
            if !LEFT_OUT.contains(attribute.kind()) {
                append(&mut kept, &attribute);
            }
        }
        Self {
            flags: flags.map_or(0, u32::from_ne_bytes) & OTHER_FLAGS,
            attributes: kept.into_boxed_slice(),
        }
    }

    /// Those that [`Link`][`crate::Link`] does not have by name.
    pub(crate) fn flags(&self) -> u32 {
        self.flags
    }

    /// Those that are aspects of their own.
    pub(crate) fn attributes(&self) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
        attributes_in(&self.attributes)
    }
}
