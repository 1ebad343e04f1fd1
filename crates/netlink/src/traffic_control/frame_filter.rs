//! A filter of the frames that come in at a link.

use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
        TcU32OptionFlags,
    },
};

use super::hook::{ALL_PROTOCOLS, Hook};
use crate::request::{Existing, LINK, Request};

const TCA_BPF_OPS_LEN: u16 = 4;
const TCA_BPF_OPS: u16 = 5;

/// A number of our own choice for the filter, so that there is no second.
const FILTER: u32 = 1;

/// The first of all, so that no other filter lets a frame pass before it is seen.
const PRIORITY: u16 = 1;

/// What frames a link takes in. It drops those to a link-local group, such as what bridges and switches
/// tell each other (01:80:c2:00:00:00 to 0f, and Cisco's), for these are never to be forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameFilter {
    /// Whether frames with a VLAN tag pass, too. One that tells a priority and no VLAN is none.
    pub takes_tagged: bool,
}

/// Classic BPF, which the kernel takes without further privileges: `struct sock_filter`.
struct Instruction {
    code: u16,
    /// How many instructions are skipped where a comparison holds, and where not.
    skip: [u8; 2],
    value: u32,
}

const LOAD_WORD: u16 = 0x20;
const LOAD_HALF: u16 = 0x28;
const MASK: u16 = 0x54;
const IS_EQUAL: u16 = 0x15;
const IS_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

/// Where the kernel keeps a tag that it has taken off (`SKF_AD_VLAN_TAG`), and whether there is one.
const TAG: u32 = 0xffff_f02c;
const HAS_TAG: u32 = 0xffff_f030;

/// `TC_ACT_UNSPEC`: other filters may decide.
const PASS: Instruction = plain(RETURN, u32::MAX);
/// `TC_ACT_SHOT`
const DROP: Instruction = plain(RETURN, 2);

/// Where the tags begin to be looked at.
const TAGS: usize = 8;

const PROGRAM: [Instruction; 18] = [
    plain(LOAD_WORD, 0),
    compare(IS_EQUAL, 0x0180_c200, [0, 2]),
    plain(LOAD_HALF, 4),
    compare(IS_AT_LEAST, 0x0010, [4, 13]),
    compare(IS_EQUAL, 0x0100_0ccc, [0, 3]),
    plain(LOAD_HALF, 4),
    plain(MASK, 0xfffe),
    compare(IS_EQUAL, 0xcccc, [9, 0]),
    // TAGS
    plain(LOAD_WORD, HAS_TAG),
    compare(IS_EQUAL, 0, [3, 0]),
    plain(LOAD_WORD, TAG),
    plain(MASK, 0x0fff),
    compare(IS_EQUAL, 0, [0, 4]),
    // A tag that is still in the frame, behind one that was taken off.
    plain(LOAD_HALF, 12),
    compare(IS_EQUAL, 0x8100, [2, 0]),
    compare(IS_EQUAL, 0x88a8, [1, 0]),
    PASS,
    DROP,
];

const fn plain(code: u16, value: u32) -> Instruction {
    Instruction { code, skip: [0, 0], value }
}

const fn compare(code: u16, value: u32, skip: [u8; 2]) -> Instruction {
    Instruction { code, skip, value }
}

impl FrameFilter {
    fn instructions(self) -> Vec<u8> {
        let of = |(position, instruction)| match position {
            TAGS if self.takes_tagged => &PASS,
            _ => instruction,
        };
        PROGRAM.iter().enumerate().map(of).flat_map(Instruction::bytes).collect()
    }

    fn options(self) -> Vec<TcOption> {
        let instructions = self.instructions();
        let count = u16::try_from(PROGRAM.len()).unwrap_or(u16::MAX).to_ne_bytes().to_vec();
        let options = [
            TcFilterBpfOption::Other(DefaultNla::new(TCA_BPF_OPS_LEN, count)),
            TcFilterBpfOption::Other(DefaultNla::new(TCA_BPF_OPS, instructions)),
            // The program's word is the verdict.
            TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
            TcFilterBpfOption::FlagsGeneric(TcU32OptionFlags::SkipHw),
        ];
        options.into_iter().map(TcOption::Bpf).collect()
    }
}

impl Instruction {
    fn bytes(&self) -> [u8; 8] {
        let ([a, b], [c, d, e, f]) = (self.code.to_ne_bytes(), self.value.to_ne_bytes());
        let [then, otherwise] = self.skip;
        [a, b, then, otherwise, c, d, e, f]
    }
}

/// Filters the frames that come in at a link, in place of any such filter there is. The link needs
/// hooks.
pub(super) fn set(index: u32, filter: FrameFilter) -> Request<'static> {
    let mut message = place(index);
    message.header.handle = FILTER.into();
    message.attributes.push(TcAttribute::Kind(TcFilterBpf::KIND.to_owned()));
    message.attributes.push(TcAttribute::Options(filter.options()));
    let message = RouteNetlinkMessage::NewTrafficFilter(message);
    let operation = format!("filter the frames that come in at {LINK}");
    Request::new(operation, Some(index), message, Existing::Replaced)
}

/// Takes in what frames may come at a link.
pub(super) fn delete(index: u32) -> Request<'static> {
    let message = RouteNetlinkMessage::DelTrafficFilter(place(index));
    let operation = format!("no longer filter the frames that come in at {LINK}");
    Request::new(operation, Some(index), message, Existing::Required)
}

fn place(index: u32) -> TcMessage {
    let mut message = at_hook(index);
    message.header.info = TcHandle { major: PRIORITY, minor: ALL_PROTOCOLS.to_be() }.into();
    message
}

fn at_hook(index: u32) -> TcMessage {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.parent = Hook::Ingress.handle();
    message
}

/// Asks for all filters of what comes in at a link.
pub(super) fn list_message(index: u32) -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetTrafficFilter(at_hook(index))
}

/// The filter, if `message` describes one of ours. Another may stand where ours does.
pub(crate) fn described_by(message: &TcMessage) -> Option<FrameFilter> {
    let header = &message.header;
    if TcHandle::from(header.info).major != PRIORITY || header.handle != FILTER.into() {
        return None;
    }
    let kind = TcAttribute::Kind(TcFilterBpf::KIND.to_owned());
    if !message.attributes.contains(&kind) {
        return None;
    }
    let options = message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    });
    let instructions = options.into_iter().flatten().find_map(|option| match option {
        TcOption::Bpf(TcFilterBpfOption::Other(told)) if told.kind() == TCA_BPF_OPS => {
            let mut instructions = vec![0; told.value_len()];
            told.emit_value(&mut instructions);
            Some(instructions)
        }
        _ => None,
    })?;
    let all = [true, false].map(|takes_tagged| FrameFilter { takes_tagged });
    all.into_iter().find(|filter| filter.instructions() == instructions)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: FrameFilter = FrameFilter { takes_tagged: false };

    fn message(kind: &str, options: Vec<TcOption>) -> TcMessage {
        let mut message = place(7);
        message.header.handle = FILTER.into();
        message.attributes =
            vec![TcAttribute::Kind(kind.to_owned()), TcAttribute::Options(options)];
        message
    }

    #[test]
    fn somebody_elses_filter_in_the_place_of_ours_is_not_ours() {
        let others =
            TcOption::Bpf(TcFilterBpfOption::Other(DefaultNla::new(TCA_BPF_OPS, vec![6; 8])));
        assert_eq!(described_by(&message("bpf", OURS.options())), Some(OURS));
        assert_eq!(described_by(&message("bpf", vec![others])), None);
        assert_eq!(described_by(&message("flower", OURS.options())), None);
        assert_eq!(described_by(&message("matchall", Vec::new())), None);
    }
}
