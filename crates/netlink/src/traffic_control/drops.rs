//! Drop counters of links.

use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle, TcMessage, TcStats2},
};

use super::limit::is_token_bucket;

/// Packets that a link has dropped, each counted since the limit or the hooks were created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// Dropped by the transmit limit.
    pub by_limit: u64,
    /// Dropped by the filters at the hooks.
    pub by_filters: u64,
}

impl Drops {
    /// Adds the counters of another queueing discipline of the link.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            by_limit: self.by_limit + other.by_limit,
            by_filters: self.by_filters + other.by_filters,
        }
    }
}

/// Reads the link and its drops. `None`: the object is neither a limit nor the hooks.
pub(crate) fn described_by(object: RouteNetlinkMessage) -> Option<(u32, Drops)> {
    let RouteNetlinkMessage::NewQueueDiscipline(message) = object else { return None };
    let dropped = dropped(&message)?;
    let drops = match message.header.parent {
        TcHandle::ROOT if is_token_bucket(&message) => Drops { by_limit: dropped, by_filters: 0 },
        TcHandle::CLSACT => Drops { by_limit: 0, by_filters: dropped },
        _ => return None,
    };
    Some((message.header.index.cast_unsigned(), drops))
}

fn dropped(message: &TcMessage) -> Option<u64> {
    let statistics = message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Stats2(statistics) => Some(statistics),
        _ => None,
    })?;
    statistics.iter().find_map(|statistic| match statistic {
        TcStats2::Queue(queue) => Some(queue.drops.into()),
        _ => None,
    })
}
