//! Redirections of all frames at a link's hook.

use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAction, TcActionMirror, TcActionMirrorOption, TcActionOption, TcActionType, TcAttribute,
        TcFilterU32, TcFilterU32Option, TcHandle, TcMessage, TcMirror, TcMirrorActionType,
        TcOption, TcU32Selector, TcU32SelectorFlags,
    },
};

use super::{
    hook::{ALL_PROTOCOLS, Hook},
    message::{action, at_hook},
};
use crate::request::{Existing, LINK, Request};

/// Fixed handle, so that there is never a second filter.
const FILTER: TcHandle = TcHandle { major: 0, minor: 1 };

/// Lowest priority: all other filters at the link see a frame first.
const PRIORITY: u16 = u16::MAX;

/// Redirects all frames at one link's hook to another link's, as if they had arrived there.
///
/// Each hook has at most one redirection. When the target link is deleted, the kernel drops the frames until the
/// redirection is [set](super::TrafficControl::set_redirect) again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Redirect {
    /// Index and hook of the source link.
    pub from: (u32, Hook),
    /// Index and hook of the target link. Both links must be up.
    pub to: (u32, Hook),
}

impl Redirect {
    fn filter(&self) -> TcMessage {
        let (index, hook) = self.from;
        let mut message = at_hook(index, hook);
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
        action(TcActionMirror::KIND, vec![options])
    }
}

/// Adds a redirection to a hook that has none.
pub(super) fn add(redirect: &Redirect) -> Request<'static> {
    let mut message = redirect.filter();
    message.header.handle = FILTER;
    // A selector without keys matches every frame.
    let mut any_frame = TcU32Selector::default();
    any_frame.flags = TcU32SelectorFlags::Terminal;
    let options = [
        TcFilterU32Option::Selector(any_frame),
        TcFilterU32Option::Action(vec![redirect.action()]),
    ];
    let options = options.into_iter().map(TcOption::U32).collect();
    message.attributes.push(TcAttribute::Options(options));
    let message = RouteNetlinkMessage::NewTrafficFilter(message);
    let operation = format!("redirect the frames of {LINK} to link {}", redirect.to.0);
    Request::new(operation, Some(redirect.from.0), message, Existing::Refused)
}

/// Deletes the redirection of the hook where `redirect` starts, whatever its target.
pub(super) fn delete(redirect: &Redirect) -> Request<'static> {
    let message = RouteNetlinkMessage::DelTrafficFilter(redirect.filter());
    let operation = format!("no longer redirect the frames of {LINK}");
    Request::new(operation, Some(redirect.from.0), message, Existing::Required)
}
