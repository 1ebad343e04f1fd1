//! The guard's filter: a BPF program at a link's ingress.

use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
        TcU32OptionFlags,
    },
};

use super::{
    hook::ALL_PROTOCOLS,
    message::{ingress_filter, is_in_other_chain, is_of_kind, options_of, value_of},
    program::Program,
};
use crate::request::{Existing, LINK, Request};

const TCA_BPF_OPS_LEN: u16 = 4;
const TCA_BPF_OPS: u16 = 5;

/// Fixed handle, so that a repeated request replaces the filter instead of adding a second.
const FILTER: u32 = 1;

/// Highest priority: no other filter can accept a frame before the guard sees it.
const PRIORITY: u16 = 1;

fn options(program: &Program) -> Vec<TcOption> {
    let count = program.len().to_ne_bytes().to_vec();
    let options = [
        TcFilterBpfOption::Other(DefaultNla::new(TCA_BPF_OPS_LEN, count)),
        TcFilterBpfOption::Other(DefaultNla::new(TCA_BPF_OPS, program.bytes())),
        // Direct action: the program's result is the verdict.
        TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
        TcFilterBpfOption::FlagsGeneric(TcU32OptionFlags::SkipHw),
    ];
    options.into_iter().map(TcOption::Bpf).collect()
}

/// Sets the ingress filter of a link, replacing the previous one. The link needs hooks.
pub(super) fn set(index: u32, program: &Program) -> Request<'static> {
    let mut message = place(index);
    message.attributes.push(TcAttribute::Kind(TcFilterBpf::KIND.to_owned()));
    message.attributes.push(TcAttribute::Options(options(program)));
    let message = RouteNetlinkMessage::NewTrafficFilter(message);
    let operation = format!("filter the ingress of {LINK}");
    Request::new(operation, Some(index), message, Existing::Replaced)
}

/// Deletes the ingress filter of a link.
pub(super) fn delete(index: u32) -> Request<'static> {
    let message = RouteNetlinkMessage::DelTrafficFilter(place(index));
    let operation = format!("remove the ingress filter of {LINK}");
    Request::new(operation, Some(index), message, Existing::Required)
}

fn place(index: u32) -> TcMessage {
    ingress_filter(index, PRIORITY, ALL_PROTOCOLS, FILTER)
}

/// A filter with the guard's priority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Listed {
    /// This program's filter, with its BPF code.
    Ours(Vec<u8>),
    /// A filter of another program. The kernel asks filters in the order in which it lists them.
    Other,
}

/// Reads a filter with the guard's priority. `None`: the filter has another priority or is in another chain.
pub(crate) fn described_by(message: &TcMessage) -> Option<Listed> {
    let header = &message.header;
    let TcHandle { major: priority, minor: protocol } = header.info.into();
    // The kernel lists each priority once more without a filter.
    if priority != PRIORITY || header.handle == TcHandle::UNSPEC || is_in_other_chain(message) {
        return None;
    }
    let is_ours = header.handle == FILTER.into()
        && protocol == ALL_PROTOCOLS.to_be()
        && is_of_kind(message, TcFilterBpf::KIND);
    let program = if is_ours { deciding_program_of(message) } else { None };
    Some(program.map_or(Listed::Other, Listed::Ours))
}

/// The BPF code of a filter in direct-action mode.
fn deciding_program_of(message: &TcMessage) -> Option<Vec<u8>> {
    let options = options_of(message)?;
    let decides = options.iter().any(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::Flags(flags)) => flags.contains(TcBpfFlags::DirectAction),
        _ => false,
    });
    let program = options.iter().find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::Other(code)) if code.kind() == TCA_BPF_OPS => {
            Some(value_of(code))
        }
        _ => None,
    });
    program.filter(|_| decides)
}

#[cfg(test)]
mod tests {
    use super::{super::program::Question, *};

    fn message(kind: &str, options: Vec<TcOption>) -> TcMessage {
        let mut message = place(7);
        message.attributes =
            vec![TcAttribute::Kind(kind.to_owned()), TcAttribute::Options(options)];
        message
    }

    #[test]
    fn foreign_filter_is_not_the_guard() {
        let program = Question::All(Vec::new()).program();
        let ours = message("bpf", options(&program));
        assert_eq!(described_by(&ours), Some(Listed::Ours(program.bytes())));
        let mut undecided = options(&program);
        undecided.retain(|option| !matches!(option, TcOption::Bpf(TcFilterBpfOption::Flags(_))));
        for others in [
            message("flower", options(&program)),
            message("matchall", Vec::new()),
            message("bpf", undecided),
        ] {
            assert_eq!(described_by(&others), Some(Listed::Other));
        }
        let mut second = ours.clone();
        second.header.handle = 2.into();
        assert_eq!(described_by(&second), Some(Listed::Other));
        let mut of_one_protocol = ours.clone();
        of_one_protocol.header.info = TcHandle { major: PRIORITY, minor: 8 }.into();
        assert_eq!(described_by(&of_one_protocol), Some(Listed::Other));
        let mut in_chain = ours.clone();
        in_chain.attributes.push(TcAttribute::Chain(5));
        assert_eq!(described_by(&in_chain), None);
        let mut later = ours.clone();
        later.header.info = TcHandle { major: PRIORITY + 1, minor: 0 }.into();
        assert_eq!(described_by(&later), None);
        let mut head = ours;
        head.header.handle = TcHandle::UNSPEC;
        assert_eq!(described_by(&head), None);
    }
}
