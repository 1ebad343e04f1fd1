//! Limits of what a pod sends, for cards that do not limit it; the same for all fabrics.

use std::fmt;

use crate::{
    driver::{Ability, Unsupported},
    eswitch::{LARGEST_PIECE, LONGEST_BURST},
};
use model::Bandwidth;

/// A limit of what a pod sends. The fabric drops the excess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EgressLimit {
    /// The rate in bits per second.
    pub rate: u64,
    /// The burst in bits.
    pub burst: u64,
}

impl EgressLimit {
    /// The limit of a port with this bandwidth. `None`: no limit.
    ///
    /// A policer drops and does not queue. A burst smaller than what a network stack hands over at once would drop
    /// that piece at every retransmission, so the burst is at least that size. The default is the largest burst.
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

    /// Checks the limit against the fabric's ability to limit.
    pub(super) fn check(&self, ability: &Ability) -> Result<(), Unsupported> {
        let setting = || format!("an egress rate of {} bit/s", self.rate);
        ability.clone().map_err(|why| Unsupported::new(setting(), why))
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
    fn egress_burst_is_bounded() {
        assert_eq!(burst(0, 0), None);
        assert_eq!(burst(8_000, 0), Some(LARGEST_PIECE));
        assert_eq!(burst(100_000_000, 0), Some(10_000_000));
        assert_eq!(burst(100_000_000, 8_000_000), Some(8_000_000));
        assert_eq!(burst(100_000_000, 8), Some(LARGEST_PIECE));
        assert_eq!(burst(100_000_000, u64::MAX), Some(10_000_000));
        assert_eq!(burst(1_000_000, u64::MAX), Some(LARGEST_PIECE));
    }
}
