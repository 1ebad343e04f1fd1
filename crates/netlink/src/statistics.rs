//! What links have carried.

use std::collections::BTreeMap;

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage, Stats64},
};

use crate::{Error, Rtnl};

/// What went one way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// How many packets.
    pub packets: u64,
    /// How many bytes these had, Ethernet's header included.
    pub bytes: u64,
}

/// What a link has carried since it was made, as its driver counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// What came in at it, dropped afterwards or not.
    pub received: Traffic,
    /// What left by it.
    pub sent: Traffic,
}

impl From<&Stats64> for LinkStatistics {
    fn from(told: &Stats64) -> Self {
        Self {
            received: Traffic { packets: told.rx_packets, bytes: told.rx_bytes },
            sent: Traffic { packets: told.tx_packets, bytes: told.tx_bytes },
        }
    }
}

impl Rtnl {
    /// What all links have carried, by index.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn link_statistics(&mut self) -> Result<BTreeMap<u32, LinkStatistics>, Error> {
        let of_link = |object| match object {
            RouteNetlinkMessage::NewLink(message) => described_by(&message),
            _ => None,
        };
        let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
        Ok(self.list("list the statistics of links", &message, of_link)?.into_iter().collect())
    }
}

/// What the link of a message has carried, by its index.
pub(crate) fn described_by(message: &LinkMessage) -> Option<(u32, LinkStatistics)> {
    let statistics = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(told) => Some(LinkStatistics::from(told)),
        _ => None,
    })?;
    Some((message.header.index, statistics))
}
