//! Filters of what comes in at a link that its card carries out by itself, and the kernel never does.

use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAction, TcActionAttribute, TcActionOption, TcAttribute, TcFilterFlower,
        TcFilterFlowerOption, TcHandle, TcMessage, TcOption,
    },
};

use super::hook::{ALL_PROTOCOLS, Hook};
use crate::request::{Existing, LINK, Request};

/// `TCA_CLS_FLAGS_SKIP_SW` and `TCA_CLS_FLAGS_IN_HW`
const NOT_BY_KERNEL: u32 = 1 << 1;
const BY_CARD: u32 = 1 << 2;

/// The kind of action that tells no more than a verdict, and where it has that: the third word of
/// `struct tc_gact`.
const VERDICT: &str = "gact";
const TCA_GACT_PARMS: u16 = 2;
const VERDICT_AT: usize = 8;
const GACT_LEN: usize = 20;

/// The handles of ours begin so, that those of others are left alone.
const OURS: u32 = 0x0ff1_0000;

/// What a card does with a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It goes on as if there were no filters: forwarded by the card if that knows where to.
    Pass,
    /// The kernel gets it, and nobody else.
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
        let mut action = TcAction::default();
        action.attributes.push(TcActionAttribute::Kind(VERDICT.to_owned()));
        action.attributes.push(TcActionAttribute::Options(vec![parameters]));
        action
    }
}

/// A filter. Of several the card asks that of the lowest priority first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flower {
    /// Not more than 16, which is what some cards take.
    pub(super) priority: u16,
    /// The type of the frames in question. `None`: all.
    pub(super) ethertype: Option<u16>,
    /// Its number among ours.
    pub(super) number: u16,
    /// What a frame must have, in the order in which the kernel lists it.
    pub(super) keys: Vec<TcFilterFlowerOption>,
    pub(super) verdict: Verdict,
}

impl Flower {
    fn place(&self, index: u32) -> TcMessage {
        let mut message = TcMessage::with_index(index.cast_signed());
        message.header.parent = Hook::Ingress.handle();
        let protocol = self.ethertype.unwrap_or(ALL_PROTOCOLS);
        message.header.info = TcHandle { major: self.priority, minor: protocol.to_be() }.into();
        message.header.handle = (OURS | u32::from(self.number)).into();
        message.attributes.push(TcAttribute::Kind(TcFilterFlower::KIND.to_owned()));
        message
    }

    /// Has the card carry it out. The link needs hooks.
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
            Verdict::Pass => format!("have the card forward what comes in at {LINK}"),
            Verdict::Trap => format!("have the card leave what comes in at {LINK} to the kernel"),
        };
        Request::new(operation, Some(index), message, Existing::Refused)
    }

    pub(super) fn delete(&self, index: u32) -> Request<'static> {
        let message = RouteNetlinkMessage::DelTrafficFilter(self.place(index));
        let operation = format!("no longer have the card filter what comes in at {LINK}");
        Request::new(operation, Some(index), message, Existing::Required)
    }
}

/// One of our filters that is there, and whether the card carries it out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(super) flower: Flower,
    pub(super) is_by_card: bool,
}

/// The filter, if `message` describes one of ours.
pub(crate) fn described_by(message: &TcMessage) -> Option<Found> {
    let TcHandle { major: priority, minor: protocol } = message.header.info.into();
    let number = u16::try_from(u32::from(message.header.handle) ^ OURS).ok()?;
    let is_in_chain = |attribute: &TcAttribute| matches!(attribute, TcAttribute::Chain(1..));
    if !message.attributes.contains(&TcAttribute::Kind(TcFilterFlower::KIND.to_owned()))
        || message.attributes.iter().any(is_in_chain)
    {
        return None;
    }
    let options = message.attributes.iter().find_map(|attribute| match attribute {
        TcAttribute::Options(options) => Some(options),
        _ => None,
    })?;
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

/// Whether the kernel gets what these actions are for.
pub(super) fn leave_to_kernel(actions: &[TcAction]) -> bool {
    actions.chunks(1).any(|action| verdict_of(action) == Some(Verdict::Trap))
}

/// `None`: it is none that we give.
fn verdict_of(actions: &[TcAction]) -> Option<Verdict> {
    let mut options = actions.iter().flat_map(|action| &action.attributes).filter_map(
        |attribute| match attribute {
            TcActionAttribute::Options(options) => Some(options),
            _ => None,
        },
    );
    let parameters = options.next()?.iter().find(|option| option.kind() == TCA_GACT_PARMS)?;
    let mut bytes = vec![0; parameters.value_len()];
    parameters.emit_value(&mut bytes);
    let code = bytes.get(VERDICT_AT..VERDICT_AT + 4)?.try_into().ok()?;
    let code = u32::from_ne_bytes(code);
    [Verdict::Pass, Verdict::Trap].into_iter().find(|verdict| verdict.code() == code)
}
