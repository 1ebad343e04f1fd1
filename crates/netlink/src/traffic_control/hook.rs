//! Hooks of a link for filters and redirections (the `clsact` queueing discipline).

use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle, TcMessage},
};

use crate::request::{Existing, LINK, Request};

const CLSACT: &str = "clsact";

/// `ETH_P_ALL`
pub(super) const ALL_PROTOCOLS: u16 = 3;

/// A hook on a frame's path through a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// Frames that the link receives.
    Ingress,
    /// Frames that the link sends.
    Egress,
}

impl Hook {
    pub(super) fn handle(self) -> TcHandle {
        let minor = match self {
            Self::Ingress => TcHandle::MIN_INGRESS,
            Self::Egress => TcHandle::MIN_EGRESS,
        };
        TcHandle { major: TcHandle::CLSACT.major, minor }
    }
}

/// Gives a link its hooks, or leaves existing ones in place: replacing `clsact` keeps its filters.
pub(super) fn add(index: u32) -> Request<'static> {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.parent = TcHandle::CLSACT;
    message.header.handle = TcHandle { major: TcHandle::CLSACT.major, minor: 0 };
    message.attributes.push(TcAttribute::Kind(CLSACT.to_owned()));
    let message = RouteNetlinkMessage::NewQueueDiscipline(message);
    let operation = format!("give {LINK} hooks for filters");
    Request::new(operation, Some(index), message, Existing::Replaced)
}
