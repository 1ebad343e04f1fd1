//! Redirection of all that comes in at a link, or is about to leave it.

use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAction, TcActionAttribute, TcActionMirror, TcActionMirrorOption, TcActionOption,
        TcActionType, TcAttribute, TcFilterU32, TcFilterU32Option, TcHandle, TcMessage, TcMirror,
        TcMirrorActionType, TcOption, TcU32Selector, TcU32SelectorFlags,
    },
};

use super::hook::{ALL_PROTOCOLS, Hook};
use crate::request::{Existing, LINK, Request};

/// A number of our own choice for the filter, so that there is no second.
const FILTER: TcHandle = TcHandle { major: 0, minor: 1 };

/// The last of all: whatever other filters there are at the link see a frame first.
const PRIORITY: u16 = u16::MAX;

/// All frames that pass one link's hook go on at another's, as if they had come there by themselves.
///
/// A link has at most one at each hook. With the link that it leads to, a redirection ends: frames
/// are dropped then, until it is [set](super::TrafficControl::set_redirect) anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// The index of the link, and where frames are taken there.
    pub from: (u32, Hook),
    /// The index of the link where they go on, and where. Both must be up for frames to flow.
    pub to: (u32, Hook),
}

impl Redirect {
    fn filter(&self) -> TcMessage {
        let (index, hook) = self.from;
        let mut message = TcMessage::with_index(index.cast_signed());
        message.header.parent = hook.handle();
        let filter = TcHandle { major: PRIORITY, minor: ALL_PROTOCOLS.to_be() };
        message.header.info = filter.into();
        message.attributes.push(TcAttribute::Kind(TcFilterU32::KIND.to_owned()));
        message
    }

    fn action(&self) -> TcAction {
        let (index, hook) = self.to;
        let mut mirror = TcMirror::default();
        mirror.generic.action = TcActionType::Stolen;
        mirror.ifindex = index;
        mirror.eaction = match hook {
            Hook::Ingress => TcMirrorActionType::IngressRedir,
            Hook::Egress => TcMirrorActionType::EgressRedir,
        };
        let options = TcActionOption::Mirror(TcActionMirrorOption::Parms(mirror));
        let mut action = TcAction::default();
        action.attributes.push(TcActionAttribute::Kind(TcActionMirror::KIND.to_owned()));
        action.attributes.push(TcActionAttribute::Options(vec![options]));
        action
    }
}

/// Matches every frame, for it compares nothing.
fn any_frame() -> TcU32Selector {
    let mut selector = TcU32Selector::default();
    selector.flags = TcU32SelectorFlags::Terminal;
    selector
}

/// Redirects frames from a hook that has no redirection yet.
pub(super) fn add(redirect: &Redirect) -> Request<'static> {
    let mut message = redirect.filter();
    message.header.handle = FILTER;
    let options = [
        TcFilterU32Option::Selector(any_frame()),
        TcFilterU32Option::Action(vec![redirect.action()]),
    ];
    let options = options.into_iter().map(TcOption::U32).collect();
    message.attributes.push(TcAttribute::Options(options));
    let message = RouteNetlinkMessage::NewTrafficFilter(message);
    let operation = format!("redirect the frames of {LINK} to link {}", redirect.to.0);
    Request::new(operation, Some(redirect.from.0), message, Existing::Refused)
}

/// Takes the redirection off the hook that `redirect` begins at, wherever it leads.
pub(super) fn delete(redirect: &Redirect) -> Request<'static> {
    let message = RouteNetlinkMessage::DelTrafficFilter(redirect.filter());
    let operation = format!("no longer redirect the frames of {LINK}");
    Request::new(operation, Some(redirect.from.0), message, Existing::Required)
}
