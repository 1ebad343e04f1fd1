//! Transmit limits of links (the `tbf` queueing discipline).

use std::ops::Range;

use netlink_packet_core::{DefaultNla, NlasIterator};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle, TcMessage, TcOption},
};

use super::message::{is_of_kind, options_of, value_of};
use crate::request::{Existing, LINK, Request};

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// Offset of the rate in `struct tc_tbf_qopt`.
const RATE: Range<usize> = 8..12;
/// Offset of the queue's size.
const QUEUE: Range<usize> = 24..28;

/// A transmit limit: a token bucket. Sizes above 32 Gbit are reduced to 32 Gbit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Rate in bits per second, at least 8.
    pub rate_bits: u64,
    /// Burst in bits. Larger frames are dropped.
    pub burst_bits: u64,
    /// Queue size in bits. Excess frames are dropped.
    pub queue_bits: u64,
}

/// The values of a [`Limit`] that the kernel reports exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitInForce {
    /// Rate in bits per second.
    pub rate_bits: u64,
    /// Queue size in bits.
    pub queue_bits: u64,
}

impl From<Limit> for LimitInForce {
    /// Rounds as the kernel does: to whole bytes.
    fn from(limit: Limit) -> Self {
        Self { rate_bits: limit.rate_bytes() * 8, queue_bits: u64::from(limit.queue_bytes()) * 8 }
    }
}

impl Limit {
    /// `struct tc_tbf_qopt` in host byte order: rate, empty peak rate, queue size, bucket (sent as another attribute), peak bucket.
    fn parameters(self) -> Vec<u8> {
        const ETHERNET: u8 = 1;
        let mut bytes = vec![0, ETHERNET, 0, 0, 0, 0, 0, 0];
        bytes.extend(saturated(self.rate_bytes()).to_ne_bytes());
        bytes.extend([0; 12]);
        bytes.extend(self.queue_bytes().to_ne_bytes());
        bytes.extend([0; 8]);
        bytes
    }

    fn rate_bytes(self) -> u64 {
        self.rate_bits / 8
    }

    fn burst_bytes(self) -> u32 {
        saturated(self.burst_bits / 8)
    }

    fn queue_bytes(self) -> u32 {
        saturated(self.queue_bits / 8)
    }

    fn options(self) -> Vec<TcOption> {
        let wide_rate = (self.rate_bytes() > u64::from(u32::MAX))
            .then(|| option(TCA_TBF_RATE64, &self.rate_bytes().to_ne_bytes()));
        let burst = option(TCA_TBF_BURST, &self.burst_bytes().to_ne_bytes());
        let parameters = option(TCA_TBF_PARMS, &self.parameters());
        [Some(parameters), Some(burst), wide_rate].into_iter().flatten().collect()
    }
}

pub(super) fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn option(kind: u16, value: &[u8]) -> TcOption {
    TcOption::Other(DefaultNla::new(kind, value.to_vec()))
}

/// Sets the transmit limit of a link, replacing an existing one.
pub(super) fn set(index: u32, limit: Limit) -> Request<'static> {
    let mut message = root_queue(index);
    message.attributes.push(TcAttribute::Kind("tbf".to_owned()));
    message.attributes.push(TcAttribute::Options(limit.options()));
    let message = RouteNetlinkMessage::NewQueueDiscipline(message);
    let operation = format!("limit {LINK} to {} bit/s", limit.rate_bits);
    Request::new(operation, Some(index), message, Existing::Replaced)
}

pub(super) fn delete(index: u32) -> Request<'static> {
    let message = RouteNetlinkMessage::DelQueueDiscipline(root_queue(index));
    let operation = format!("remove the rate limit of {LINK}");
    Request::new(operation, Some(index), message, Existing::Required)
}

/// Lists the queueing disciplines of all links.
pub(super) fn list_message() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default())
}

/// Reads the limit. `None`: the message does not describe the token bucket of link `index`.
pub(crate) fn described_by(message: &TcMessage, index: u32) -> Option<LimitInForce> {
    let header = &message.header;
    if header.index != index.cast_signed() || header.parent != TcHandle::ROOT {
        return None;
    }
    options_of(message).and_then(in_force).filter(|_| is_token_bucket(message))
}

pub(super) fn is_token_bucket(message: &TcMessage) -> bool {
    is_of_kind(message, "tbf")
}

/// The codec does not know this kind of queueing discipline, so it returns the options as one attribute that contains
/// them all.
fn in_force(options: &[TcOption]) -> Option<LimitInForce> {
    let option = options.first()?;
    let nest = value_of(option);
    let value = |kind: u16| {
        let mut nested = NlasIterator::new(&nest).filter_map(Result::ok);
        nested.find(|nested| nested.kind() == kind).map(|nested| nested.value().to_vec())
    };
    let parameters = value(TCA_TBF_PARMS)?;
    let number = |at: Range<usize>| {
        Some(u64::from(u32::from_ne_bytes(parameters.get(at)?.try_into().ok()?)))
    };
    // With a 64-bit rate, the kernel reports the 32-bit rate as its maximum.
    let rate_bytes = match value(TCA_TBF_RATE64) {
        Some(wide) => u64::from_ne_bytes(wide.try_into().ok()?),
        None => number(RATE)?,
    };
    let (rate_bits, queue_bits) = (rate_bytes.saturating_mul(8), number(QUEUE)? * 8);
    Some(LimitInForce { rate_bits, queue_bits })
}

fn root_queue(index: u32) -> TcMessage {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.parent = TcHandle::ROOT;
    message
}
