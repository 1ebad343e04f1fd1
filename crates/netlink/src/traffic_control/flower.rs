//! Ingress filters that only the card carries out (flower with `skip_sw`).

use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAction, TcActionOption, TcAttribute, TcFilterFlower, TcFilterFlowerOption, TcHandle,
        TcMessage, TcOption,
    },
};

use super::{
    hook::ALL_PROTOCOLS,
    message::{
        action, ingress_filter, is_in_other_chain, is_of_kind, options_of, options_of_action,
        value_of,
    },
};
use crate::request::{Existing, LINK, Request};

/// `TCA_CLS_FLAGS_SKIP_SW` and `TCA_CLS_FLAGS_IN_HW`
const NOT_BY_KERNEL: u32 = 1 << 1;
pub(super) const BY_CARD: u32 = 1 << 2;

/// The action kind that only gives a verdict, and the verdict's offset in `struct tc_gact`.
const VERDICT: &str = "gact";
const TCA_GACT_PARMS: u16 = 2;
const VERDICT_AT: usize = 8;
const GACT_LEN: usize = 20;

/// Prefix of this program's handles, which tells its filters from those of others.
const OURS: u32 = 0x0ff1_0000;

/// The card's verdict on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The frame continues as without filters: the card forwards it if it has a rule.
    Pass,
    /// Only the kernel gets the frame.
    Trap,
}

impl Verdict {
    /// `TC_ACT_OK` and `TC_ACT_TRAP`
    const fn code(self) -> u32 {
        match self {
            Self::Pass => 0,
            Self::Trap => 8,
        }
    }

    pub(super) fn action(self) -> TcAction {
        let mut parameters = vec![0; GACT_LEN];
        parameters[VERDICT_AT..VERDICT_AT + 4].copy_from_slice(&self.code().to_ne_bytes());
        let parameters = TcActionOption::Other(DefaultNla::new(TCA_GACT_PARMS, parameters));
        action(VERDICT, vec![parameters])
    }
}

/// A hardware filter. The card asks filters of lower priority numbers first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flower {
    /// At most 16: some cards take no more.
    pub(super) priority: u16,
    /// Ethernet type. `None`: any.
    pub(super) ethertype: Option<u16>,
    /// Number among this program's filters, part of the handle.
    pub(super) number: u16,
    /// Match keys, in the order in which the kernel lists them, so that filters can be compared.
    pub(super) keys: Vec<TcFilterFlowerOption>,
    pub(super) verdict: Verdict,
}

impl Flower {
    fn place(&self, index: u32) -> TcMessage {
        let protocol = self.ethertype.unwrap_or(ALL_PROTOCOLS);
        let handle = OURS | u32::from(self.number);
        let mut message = ingress_filter(index, self.priority, protocol, handle);
        message.attributes.push(TcAttribute::Kind(TcFilterFlower::KIND.to_owned()));
        message
    }

    /// Adds the filter. The link needs hooks.
    pub(super) fn add(&self, index: u32) -> Request<'static> {
        let ethertype = self.ethertype.map(TcFilterFlowerOption::EthType);
        let rest = [
            TcFilterFlowerOption::Flags(NOT_BY_KERNEL),
            TcFilterFlowerOption::Actions(vec![self.verdict.action()]),
        ];
        let options = self.keys.iter().cloned().chain(ethertype).chain(rest);
        let mut message = self.place(index);
        message.attributes.push(TcAttribute::Options(options.map(TcOption::Flower).collect()));
        let message = RouteNetlinkMessage::NewTrafficFilter(message);
        let operation = match self.verdict {
            Verdict::Pass => format!("offload a filter that accepts ingress frames of {LINK}"),
            Verdict::Trap => format!("offload a filter that traps ingress frames of {LINK}"),
        };
        Request::new(operation, Some(index), message, Existing::Refused)
    }

    pub(super) fn delete(&self, index: u32) -> Request<'static> {
        let message = RouteNetlinkMessage::DelTrafficFilter(self.place(index));
        let operation = format!("remove an offloaded ingress filter of {LINK}");
        Request::new(operation, Some(index), message, Existing::Required)
    }
}

/// A filter that was read from the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(super) flower: Flower,
    /// Whether the card has accepted it (`IN_HW`).
    pub(super) is_by_card: bool,
}

/// Reads a filter. `None`: the filter is not one of this program's.
pub(crate) fn described_by(message: &TcMessage) -> Option<Found> {
    let TcHandle { major: priority, minor: protocol } = message.header.info.into();
    let number = u16::try_from(u32::from(message.header.handle) ^ OURS).ok()?;
    if !is_of_kind(message, TcFilterFlower::KIND) || is_in_other_chain(message) {
        return None;
    }
    let options = options_of(message)?;
    let protocol = u16::from_be(protocol);
    let mut found = Found {
        flower: Flower {
            priority,
            ethertype: (protocol != ALL_PROTOCOLS).then_some(protocol),
            number,
            keys: Vec::new(),
            verdict: Verdict::Pass,
        },
        is_by_card: false,
    };
    for option in options {
        match option {
            TcOption::Flower(TcFilterFlowerOption::Flags(flags)) => {
                found.is_by_card = flags & BY_CARD != 0;
            }
            TcOption::Flower(TcFilterFlowerOption::Actions(actions)) => {
                found.flower.verdict = verdict_of(actions)?;
            }
            TcOption::Flower(
                TcFilterFlowerOption::InHwCount(_) | TcFilterFlowerOption::EthType(_),
            ) => {}
            TcOption::Flower(key) => found.flower.keys.push(key.clone()),
            _ => {}
        }
    }
    Some(found)
}

/// Whether the actions trap frames to the kernel.
pub(super) fn leave_to_kernel(actions: &[TcAction]) -> bool {
    actions.chunks(1).any(|action| verdict_of(action) == Some(Verdict::Trap))
}

/// `None`: the action is none of [`Verdict`].
fn verdict_of(actions: &[TcAction]) -> Option<Verdict> {
    let options = actions.iter().find_map(options_of_action)?;
    let parameters = options.iter().find(|option| option.kind() == TCA_GACT_PARMS)?;
    let bytes = value_of(parameters);
    let code = bytes.get(VERDICT_AT..VERDICT_AT + 4)?.try_into().ok()?;
    let code = u32::from_ne_bytes(code);
    [Verdict::Pass, Verdict::Trap].into_iter().find(|verdict| verdict.code() == code)
}
