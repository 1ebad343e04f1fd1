//! How much a pod may send where its card does not limit that, whatever the fabric is.

use std::fmt;

use crate::{
    driver::{Ability, Unsupported},
    eswitch::{LARGEST_PIECE, LONGEST_BURST},
    model::Bandwidth,
};

/// How much a pod may send. What is beyond is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressLimit {
    /// The rate in bits per second.
    pub rate: u64,
    /// What may be sent at once, in bits.
    pub burst: u64,
}

impl EgressLimit {
    /// What a port wants. `None`: no limit.
    ///
    /// Nothing waits here until it may pass. So a burst takes at least what a stack hands over at once, which would
    /// be dropped however often it is sent; and where none was asked for, the largest there may be.
    #[must_use]
    pub fn of(bandwidth: &Bandwidth) -> Option<Self> {
        let rate = bandwidth.egress_rate;
        let largest = (rate.saturating_mul(LONGEST_BURST) / 1000).max(LARGEST_PIECE);
        let burst = match bandwidth.egress_burst {
            0 => largest,
            asked => asked.clamp(LARGEST_PIECE, largest),
        };
        (rate != 0).then_some(Self { rate, burst })
    }

    /// Whether it can be set, by a fabric that is able to limit or not.
    pub(super) fn check(&self, ability: &Ability) -> Result<(), Unsupported> {
        let setting = || format!("an egress rate of {} bit/s", self.rate);
        ability.clone().map_err(|why| Unsupported { setting: setting(), why })
    }
}

impl fmt::Display for EgressLimit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "from the pod {} bit/s, {} bit at once", self.rate, self.burst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn burst(egress_rate: u64, egress_burst: u64) -> Option<u64> {
        let bandwidth = Bandwidth { egress_rate, egress_burst, ..Bandwidth::default() };
        EgressLimit::of(&bandwidth).map(|limit| limit.burst)
    }

    #[test]
    fn a_burst_is_what_was_asked_for_between_a_piece_and_a_tenth_of_a_second() {
        assert_eq!(burst(0, 0), None);
        assert_eq!(burst(8_000, 0), Some(LARGEST_PIECE));
        assert_eq!(burst(100_000_000, 0), Some(10_000_000));
        assert_eq!(burst(100_000_000, 8_000_000), Some(8_000_000));
        assert_eq!(burst(100_000_000, 8), Some(LARGEST_PIECE));
        assert_eq!(burst(100_000_000, u64::MAX), Some(10_000_000));
        assert_eq!(burst(1_000_000, u64::MAX), Some(LARGEST_PIECE));
    }
}
