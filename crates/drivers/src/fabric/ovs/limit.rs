//! The limit of what a pod sends: a meter, and a flow before those of the guard that uses it. Both have the port's
//! number and end with the daemon.

use std::collections::BTreeSet;

use openflow::{Action, Flow, Match, Meter, Switch};

use super::{
    Inner, cookie_of, numbers,
    tables::{FIRST, TAGS},
};
use crate::{
    driver::{Ability, Reading, Refused},
    eswitch::Representor,
    fabric::EgressLimit,
};

/// What is covered: a sentence for people.
pub(super) const WHERE: &str = "by a meter of Open vSwitch, for VFs whose card limits nothing";

/// Marks a limit's flow, in addition to the port's number.
pub(super) const LIMIT: u64 = 1 << 16;

impl Inner {
    pub(super) fn set_limit(&self, port: &Representor, limit: &EgressLimit) -> Result<(), Refused> {
        let number = self.number(port)?.ok_or_else(|| self.not_joined(port))?;
        let doing = format!("limit what {} takes from its pod", port.name);
        // The meter first: a flow can only name an existing one.
        self.flows.with(&doing, |switch| switch.set_meter(meter(number, limit)))?;
        let flow = flow(number);
        self.flows.set(&doing, flow.cookie, &[flow].into()).map(drop)
    }

    /// Removes the meter. The switch removes the flow that uses it.
    pub(super) fn clear_limit(&self, port: &Representor) -> Result<(), Refused> {
        let Some(number) = self.own_port(port)?.flatten() else { return Ok(()) };
        let doing = format!("take the limit of {} away", port.name);
        self.flows.with(&doing, |switch| switch.remove_meter(number))
    }

    pub(super) fn find_limit(
        &self,
        port: &Representor,
        wanted: Option<&EgressLimit>,
    ) -> Result<Reading, Refused> {
        let Some(number) = self.number(port)? else {
            return Ok(Reading::missing("the port is not in the bridge"));
        };
        let doing = format!("read the limit of {}", port.name);
        let asks = flow(number);
        let found = self.flows.marked(&doing, asks.cookie)?;
        if found.is_empty() {
            return Ok(Reading { in_place: wanted.is_none(), detail: "unlimited".to_owned() });
        }
        if let Some(limit) = wanted.filter(|_| found == BTreeSet::from([asks])) {
            let has_meter = |switch: &mut Switch| switch.has_meter(meter(number, limit));
            if self.flows.with(&doing, has_meter)? {
                return Ok(Reading::in_place(limit.to_string()));
            }
        }
        Ok(Reading::missing("it has another limit"))
    }

    /// Whether the datapath has meters, as the latest look found.
    pub(super) fn meters(&self) -> Ability {
        self.meters.lock().clone()
    }

    pub(super) fn look_for_meters(&self) -> Result<(), Refused> {
        let doing = format!("ask for the meters of bridge {}", self.settings.name);
        let highest = self.flows.with(&doing, Switch::highest_meter)?;
        let meters = match highest < numbers::HIGHEST {
            true => Err("Open vSwitch's datapath has no meters, or too few".to_owned()),
            false => Ok(()),
        };
        *self.meters.lock() = meters;
        Ok(())
    }
}

fn flow(number: u32) -> Flow {
    Flow {
        table: 0,
        priority: FIRST + 1,
        cookie: cookie_of(number) | LIMIT,
        matches: [Match::InPort(number)].into(),
        action: Action::Metered { meter: number, table: TAGS },
    }
}

/// The meter that the flow uses, if any.
pub(super) fn meter_of(flow: &Flow) -> Option<u32> {
    match flow.action {
        Action::Metered { meter, .. } => Some(meter),
        _ => None,
    }
}

/// Rounds down to whole kilobits, but to 1 at least.
fn meter(number: u32, limit: &EgressLimit) -> Meter {
    let kilobits = |bits: u64| u32::try_from(bits / 1000).unwrap_or(u32::MAX).max(1);
    Meter { number, rate_kbits: kilobits(limit.rate), burst_kbits: kilobits(limit.burst) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_meter_counts_in_whole_kilobits() {
        let of = |rate, burst| {
            let Meter { rate_kbits, burst_kbits, .. } = meter(1000, &EgressLimit { rate, burst });
            (rate_kbits, burst_kbits)
        };
        assert_eq!(of(8_000, 589_824), (8, 589));
        assert_eq!(of(10_485_760, 1_048_576), (10_485, 1_048));
        assert_eq!(of(u64::MAX, u64::MAX), (u32::MAX, u32::MAX));
    }
}
