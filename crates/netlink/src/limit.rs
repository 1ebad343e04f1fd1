//! Limits of what a link sends.

use std::ops::Range;

use netlink_packet_core::{DefaultNla, Nla, NlasIterator};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{TcAttribute, TcHandle, TcMessage, TcOption},
};

use crate::{
    Request,
    request::{Existing, LINK},
};

const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
/// Where the rate is in `struct tc_tbf_qopt`.
const RATE: Range<usize> = 8..12;

/// How long a frame may wait in the queue before more are dropped.
const LATENCY_MS: u64 = 50;

/// A limit of what a link sends: a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// The rate in bits per second; at least 8.
    pub rate_bits: u64,
    /// How much may be sent at once, in bits. It should hold a few frames, and what the rate gives
    /// in a tick of the kernel's clock. Above 32 Gbit it is taken as 32 Gbit.
    pub burst_bits: u64,
}

impl Limit {
    /// `struct tc_tbf_qopt`, in the machine's byte order: the specification of the rate, an empty
    /// one of the peak rate, then the queue's limit, the bucket (given apart) and the peak's.
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
        let waiting = self.rate_bytes().saturating_mul(LATENCY_MS) / 1000;
        saturated(waiting.saturating_add(u64::from(self.burst_bytes())))
    }

    fn options(self) -> Vec<TcOption> {
        let wide_rate = (self.rate_bytes() > u64::from(u32::MAX))
            .then(|| option(TCA_TBF_RATE64, &self.rate_bytes().to_ne_bytes()));
        let burst = option(TCA_TBF_BURST, &self.burst_bytes().to_ne_bytes());
        let parameters = option(TCA_TBF_PARMS, &self.parameters());
        [Some(parameters), Some(burst), wide_rate].into_iter().flatten().collect()
    }
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn option(kind: u16, value: &[u8]) -> TcOption {
    TcOption::Other(DefaultNla::new(kind, value.to_vec()))
}

impl Request<'_> {
    /// Limits what a link sends, or no longer. Taking off a limit that there is not fails with
    /// [`is_not_found`](crate::Error::is_not_found).
    #[must_use]
    pub fn set_egress_limit(index: u32, limit: Option<Limit>) -> Self {
        match limit {
            Some(limit) => Self::add_limit(index, limit),
            None => Self::delete_limit(index),
        }
    }

    fn add_limit(index: u32, limit: Limit) -> Self {
        let mut message = root_queue(index);
        message.attributes.push(TcAttribute::Kind("tbf".to_owned()));
        message.attributes.push(TcAttribute::Options(limit.options()));
        let message = RouteNetlinkMessage::NewQueueDiscipline(message);
        let operation = format!("limit {LINK} to {} bit/s", limit.rate_bits);
        Self::new(operation, Some(index), message, Existing::Replaced)
    }

    fn delete_limit(index: u32) -> Self {
        let message = RouteNetlinkMessage::DelQueueDiscipline(root_queue(index));
        let operation = format!("take the limit off {LINK}");
        Self::new(operation, Some(index), message, Existing::Required)
    }
}

/// Asks for the queues of all links.
pub(crate) fn list_message() -> RouteNetlinkMessage {
    RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default())
}

/// The rate in bits per second, if `message` describes the token bucket of link `index`.
pub(crate) fn rate_of(message: &TcMessage, index: u32) -> Option<u64> {
    let header = &message.header;
    if header.index != index.cast_signed() || header.parent != TcHandle::ROOT {
        return None;
    }
    let mut is_bucket = false;
    let mut bytes_per_second = None;
    for attribute in &message.attributes {
        match attribute {
            TcAttribute::Kind(kind) => is_bucket = kind == "tbf",
            TcAttribute::Options(options) => bytes_per_second = rate(options),
            _ => {}
        }
    }
    bytes_per_second.filter(|_| is_bucket).map(|bytes| bytes.saturating_mul(8))
}

/// The rate in bytes per second; the narrow one is full where there is a wide one. The options of a
/// queue whose kind the codec does not know come as one attribute that holds them all.
fn rate(options: &[TcOption]) -> Option<u64> {
    let option = options.first()?;
    let mut nest = vec![0; option.value_len()];
    option.emit_value(&mut nest);
    let value = |kind: u16| {
        let mut nested = NlasIterator::new(&nest).filter_map(Result::ok);
        nested.find(|nested| nested.kind() == kind).map(|nested| nested.value().to_vec())
    };
    if let Some(wide) = value(TCA_TBF_RATE64) {
        return Some(u64::from_ne_bytes(wide.try_into().ok()?));
    }
    let narrow = value(TCA_TBF_PARMS)?.get(RATE)?.try_into().ok()?;
    Some(u32::from_ne_bytes(narrow).into())
}

fn root_queue(index: u32) -> TcMessage {
    let mut message = TcMessage::with_index(index.cast_signed());
    message.header.parent = TcHandle::ROOT;
    message
}
