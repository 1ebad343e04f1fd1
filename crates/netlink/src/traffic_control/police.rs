//! Receive limits of links: excess frames are dropped.
//!
//! A matchall filter after the guard applies a police action (net/sched/act_police.c). Conforming frames continue to
//! the next filters. mlx5 requires this to carry out the filter in hardware (`scan_tc_matchall_fdb_actions`).

use std::ops::Range;

use netlink_packet_core::{DefaultNla, Nla};
use netlink_packet_route::{
    RouteNetlinkMessage,
    tc::{
        TcAction, TcActionAttribute, TcActionOption, TcAttribute, TcFilterMatchAll,
        TcFilterMatchAllOption, TcHandle, TcMessage, TcOption,
    },
};

use super::{
    hook::ALL_PROTOCOLS,
    limit::saturated,
    message::{
        action, ingress_filter, is_in_other_chain, is_of_kind, options_of, options_of_action,
        value_of,
    },
};
use crate::request::{Existing, LINK, Request};

/// Fixed handle, so that there is never a second filter.
const FILTER: u32 = 1;

/// After the guard, so that only admitted frames count, and after the card's filters.
const PRIORITY: u16 = 17;

const POLICE: &str = "police";

const TCA_POLICE_TBF: u16 = 1;
const TCA_POLICE_RATE: u16 = 2;
const TCA_POLICE_RESULT: u16 = 5;
const TCA_POLICE_RATE64: u16 = 8;

// Offsets in `struct tc_police`.
const ACTION: Range<usize> = 4..8;
const BURST: Range<usize> = 12..16;
const LARGEST_FRAME: Range<usize> = 16..20;
const RATE_SPECIFICATION: Range<usize> = 20..22;
const RATE: Range<usize> = 28..32;
/// Length of `struct tc_police`.
const PARAMETERS: usize = 56;

/// `TC_ACT_SHOT`: drops excess frames.
const DROPPED: i32 = 2;
/// `TC_ACT_UNSPEC`: the next filters decide about conforming frames.
const GOES_ON: i32 = -1;

/// Rate table. Kernels require it but have not read it since 3.8.
const TABLE: [u8; 1024] = [0; 1024];
/// `cell_log` and `linklayer` of `struct tc_ratespec` that match the table: cells of 2 bytes, Ethernet.
const CELLS: [u8; 2] = [1, 1];

/// Unit in which the kernel stores the burst: the time that it lasts at the rate.
const TICK_NS: u128 = 64;
const SECOND_NS: u128 = 1_000_000_000;

/// A receive limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Police {
    /// Rate in bits per second, at least 8.
    pub rate_bits: u64,
    /// Burst in bits. Larger frames are dropped.
    pub burst_bits: u64,
}

/// A [`Police`] as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoliceInForce {
    rate_bytes: u64,
    burst_ticks: u32,
    drops: bool,
}

impl PoliceInForce {
    /// A filter in the limit's place that limits in another way, or not at all.
    const OTHER: Self = Self { rate_bytes: 0, burst_ticks: 0, drops: false };

    /// Rate in bits per second. 0: the filter is not one of this program's.
    #[must_use]
    pub fn rate_bits(self) -> u64 {
        self.rate_bytes.saturating_mul(8)
    }
}

impl From<Police> for PoliceInForce {
    /// Rounds as the kernel does: rates to whole bytes, bursts to ticks.
    fn from(police: Police) -> Self {
        Self { rate_bytes: police.rate_bytes(), burst_ticks: police.burst_ticks(), drops: true }
    }
}

impl Police {
    fn rate_bytes(self) -> u64 {
        self.rate_bits / 8
    }

    fn burst_ticks(self) -> u32 {
        let rate = u128::from(self.rate_bits.max(8));
        let ticks = u128::from(self.burst_bits) * SECOND_NS / rate / TICK_NS;
        u32::try_from(ticks).unwrap_or(u32::MAX)
    }

    /// `struct tc_police` in host byte order.
    fn parameters(self) -> Vec<u8> {
        let mut bytes = vec![0; PARAMETERS];
        let mut put = |at: Range<usize>, value: &[u8]| bytes[at].copy_from_slice(value);
        put(ACTION, &DROPPED.to_ne_bytes());
        put(BURST, &self.burst_ticks().to_ne_bytes());
        put(LARGEST_FRAME, &u32::MAX.to_ne_bytes());
        put(RATE_SPECIFICATION, &CELLS);
        put(RATE, &saturated(self.rate_bytes()).to_ne_bytes());
        bytes
    }

    fn action(self) -> TcAction {
        let rate = self.rate_bytes();
        let wide_rate =
            (rate > u64::from(u32::MAX)).then(|| option(TCA_POLICE_RATE64, &rate.to_ne_bytes()));
        let options = [
            option(TCA_POLICE_TBF, &self.parameters()),
            option(TCA_POLICE_RATE, &TABLE),
            option(TCA_POLICE_RESULT, &GOES_ON.to_ne_bytes()),
        ];
        action(POLICE, options.into_iter().chain(wide_rate).collect())
    }
}

fn option(kind: u16, value: &[u8]) -> TcActionOption {
    TcActionOption::Other(DefaultNla::new(kind, value.to_vec()))
}

/// Adds a receive limit to a link that has none. The link needs hooks.
pub(super) fn add(index: u32, police: Police) -> Request<'static> {
    let mut message = place(index);
    message.attributes.push(TcAttribute::Kind(TcFilterMatchAll::KIND.to_owned()));
    let option = TcFilterMatchAllOption::Action(vec![police.action()]);
    message.attributes.push(TcAttribute::Options(vec![TcOption::MatchAll(option)]));
    let message = RouteNetlinkMessage::NewTrafficFilter(message);
    let operation = format!("limit the ingress of {LINK} to {} bit/s", police.rate_bits);
    Request::new(operation, Some(index), message, Existing::Refused)
}

pub(super) fn delete(index: u32) -> Request<'static> {
    let message = RouteNetlinkMessage::DelTrafficFilter(place(index));
    let operation = format!("remove the ingress limit of {LINK}");
    Request::new(operation, Some(index), message, Existing::Required)
}

fn place(index: u32) -> TcMessage {
    ingress_filter(index, PRIORITY, ALL_PROTOCOLS, FILTER)
}

/// Reads the filter with the limit's priority and handle.
pub(crate) fn described_by(message: &TcMessage) -> Option<PoliceInForce> {
    let header = &message.header;
    let is_ours = TcHandle::from(header.info).major == PRIORITY
        && header.handle == FILTER.into()
        && is_of_kind(message, TcFilterMatchAll::KIND)
        && !is_in_other_chain(message);
    is_ours.then(|| in_force(message).unwrap_or(PoliceInForce::OTHER))
}

fn in_force(message: &TcMessage) -> Option<PoliceInForce> {
    let actions = options_of(message)?.iter().find_map(|option| match option {
        TcOption::MatchAll(TcFilterMatchAllOption::Action(actions)) => Some(actions),
        _ => None,
    })?;
    let [action] = &actions[..] else { return None };
    let kind = TcActionAttribute::Kind(POLICE.to_owned());
    let options = options_of_action(action).filter(|_| action.attributes.contains(&kind))?;
    let value = |kind: u16| options.iter().find(|option| option.kind() == kind).map(value_of);
    let parameters = value(TCA_POLICE_TBF)?;
    let number = |at: Range<usize>| Some(u32::from_ne_bytes(parameters.get(at)?.try_into().ok()?));
    let narrow_rate = number(RATE)?;
    // With a 64-bit rate, the kernel reports the 32-bit rate as its maximum.
    let rate_bytes = match value(TCA_POLICE_RATE64) {
        Some(wide) => u64::from_ne_bytes(wide.try_into().ok()?),
        None => u64::from(narrow_rate),
    };
    let drops = number(ACTION)? == DROPPED.cast_unsigned();
    Some(PoliceInForce { rate_bytes, burst_ticks: number(BURST)?, drops })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(police: Police) -> TcMessage {
        let mut message = place(7);
        let option = TcFilterMatchAllOption::Action(vec![police.action()]);
        message.attributes = vec![
            TcAttribute::Kind(TcFilterMatchAll::KIND.to_owned()),
            TcAttribute::Options(vec![TcOption::MatchAll(option)]),
        ];
        message
    }

    #[test]
    fn police_limit_reads_back_at_any_rate() {
        for rate_bits in [8_000, 1_000_000, 34_359_738_360, 34_359_738_368, 400_000_000_000] {
            let police = Police { rate_bits, burst_bits: 589_824 };
            let found = described_by(&message(police));
            assert_eq!(found, Some(police.into()), "{rate_bits}");
            let other = Police { rate_bits: rate_bits + 8, ..police };
            assert_ne!(found, Some(other.into()));
            let other = Police { burst_bits: 2 * 589_824, ..police };
            assert_ne!(found, Some(other.into()));
        }
    }

    #[test]
    fn foreign_filter_is_not_the_limit() {
        let ours = message(Police { rate_bits: 8_000, burst_bits: 80_000 });
        let mut at_another_place = ours.clone();
        at_another_place.header.info = TcHandle { major: 3, minor: 0 }.into();
        let mut of_another_kind = ours.clone();
        of_another_kind.attributes[0] = TcAttribute::Kind("flower".to_owned());
        let mut second = ours.clone();
        second.header.handle = 2.into();
        for others in [at_another_place, of_another_kind, second] {
            assert_eq!(described_by(&others), None);
        }
        let mut without_action = ours;
        without_action.attributes.truncate(1);
        assert_eq!(described_by(&without_action), Some(PoliceInForce::OTHER));
    }
}
