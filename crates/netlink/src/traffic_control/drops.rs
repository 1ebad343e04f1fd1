//! What links drop.

use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle, TcMessage, TcStats2},
};

use super::limit::is_token_bucket;

/// How many packets a link has dropped, by whom: each counts from when it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    /// The limit of what it sends.
    pub by_limit: u64,
    /// The filters at its hooks.
    pub by_filters: u64,
}

impl Drops {
    /// With those of another queue of the link.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            by_limit: self.by_limit + other.by_limit,
            by_filters: self.by_filters + other.by_filters,
        }
    }
}

/// What a queue has dropped, and at which link. `None`: `object` describes neither a limit nor hooks.
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
    statistics.iter().find_map(|told| match told {
        TcStats2::Queue(queue) => Some(queue.drops.into()),
        _ => None,
    })
}
