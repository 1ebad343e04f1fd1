//! Traffic counters of links.

use std::collections::BTreeMap;

use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkMessage, Stats64},
};

use crate::{error::Error, rtnl::Rtnl};

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Number of packets.
    pub packets: u64,
    /// Number of bytes, including Ethernet headers.
    pub bytes: u64,
}

/// Counters of a link since its creation, as its driver reports them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkStatistics {
    /// Received traffic, including packets that were dropped later.
    pub received: Traffic,
    /// Sent traffic.
    pub sent: Traffic,
}

impl From<&Stats64> for LinkStatistics {
    fn from(stats: &Stats64) -> Self {
        Self {
            received: Traffic { packets: stats.rx_packets, bytes: stats.rx_bytes },
            sent: Traffic { packets: stats.tx_packets, bytes: stats.tx_bytes },
        }
    }
}

impl Rtnl {
    /// Reads the counters of all links, by index.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn link_statistics(&mut self) -> Result<BTreeMap<u32, LinkStatistics>, Error> {
        let of_link = |object| match object {
            RouteNetlinkMessage::NewLink(message) => described_by(&message),
            _ => None,
        };
        let message = RouteNetlinkMessage::GetLink(LinkMessage::default());
        Ok(self.list("list the statistics of links", &message, of_link)?.into_iter().collect())
    }
}

pub(crate) fn described_by(message: &LinkMessage) -> Option<(u32, LinkStatistics)> {
    let statistics = message.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Stats64(stats) => Some(LinkStatistics::from(stats)),
        _ => None,
    })?;
    Some((message.header.index, statistics))
}
