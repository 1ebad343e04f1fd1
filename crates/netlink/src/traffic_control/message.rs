//! Parts of messages that several kinds of filters and limits share.

use netlink_packet_core::Nla;
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAction, TcActionAttribute, TcActionOption, TcAttribute, TcHandle, TcMessage, TcOption},
};

use super::hook::Hook;

/// A message about a link's hook.
pub(super) fn at_hook(index: u32, hook: Hook) -> TcMessage {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.parent = hook.handle();
    message
}

/// A message about one filter at a link's ingress.
pub(super) fn ingress_filter(index: u32, priority: u16, protocol: u16, handle: u32) -> TcMessage {
    let mut message = at_hook(index, Hook::Ingress);
    message.header.info = TcHandle { major: priority, minor: protocol.to_be() }.into();
    message.header.handle = handle.into();
    message
}

/// Lists all filters at a link's ingress.
pub(super) fn list_ingress_filters(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetTrafficFilter(at_hook(index, Hook::Ingress))
}

pub(super) fn is_of_kind(message: &TcMessage, kind: &str) -> bool {
    message.attributes.contains(&TcAttribute::Kind(kind.to_owned()))
}

/// Whether a filter is in another chain than the first, which alone frames enter.
pub(super) fn is_in_other_chain(message: &TcMessage) -> bool {
    message.attributes.iter().any(|attribute| matches!(attribute, TcAttribute::Chain(1..)))
}

pub(super) fn options_of(message: &TcMessage) -> Option<&[TcOption]> {
    message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options.as_slice()),
        _ => None,
    })
}

pub(super) fn action(kind: &str, options: Vec<TcActionOption>) -> TcAction {
    let mut action = TcAction::default();
    action.attributes.push(TcActionAttribute::Kind(kind.to_owned()));
    action.attributes.push(TcActionAttribute::Options(options));
    action
}

pub(super) fn options_of_action(action: &TcAction) -> Option<&[TcActionOption]> {
    action.attributes.iter().find_map(|attribute| match attribute {
        TcActionAttribute::Options(options) => Some(options.as_slice()),
        _ => None,
    })
}

pub(super) fn value_of(attribute: &impl Nla) -> Vec<u8> {
    let mut value = vec![0; attribute.value_len()];
    attribute.emit_value(&mut value);
    value
}
