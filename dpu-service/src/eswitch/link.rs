//! What every card leaves to its representors' links.

use std::sync::{Mutex, MutexGuard, PoisonError};

use netlink::{Family, Limit, Link, LinkChange, Rtnl, set_sysctl};

use super::{Refused, Representor, Unsupported};
use crate::{model::Bandwidth, probe::Ability};

/// Burst where the request names none: what the rate gives in 10 ms, at least 64 KiB, which is the
/// largest piece that the pod's stack hands over at once.
const BURST_PARTS_PER_SECOND: u64 = 100;
const SMALLEST_BURST: u64 = 64 * 1024 * 8;

/// The kind of queue of a link whose rate is limited.
const LIMITED: &str = "tbf";

/// The links of a network namespace.
#[derive(Debug)]
pub(super) struct Links(Mutex<Rtnl>);

impl Links {
    /// Those of the calling thread's.
    pub(super) fn open() -> Result<Self, Refused> {
        let rtnl = Rtnl::open().map_err(|error| Refused::new("open the eswitch", error))?;
        Ok(Self(Mutex::new(rtnl)))
    }

    fn rtnl(&self) -> MutexGuard<'_, Rtnl> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Result<Vec<Link>, Refused> {
        self.rtnl().links().map_err(|error| Refused::new("list the representors", error))
    }

    pub(super) fn named(&self, name: &str) -> Result<Option<Link>, netlink::Error> {
        self.rtnl().link_by_name(name)
    }

    pub(super) fn of_index(&self, index: u32) -> Result<Option<Link>, netlink::Error> {
        self.rtnl().link_by_index(index)
    }

    pub(super) fn set_mtu(&self, port: &Representor, mtu: u32) -> Result<(), Refused> {
        self.change(port, &LinkChange::new().mtu(mtu))
    }

    pub(super) fn set_up(&self, port: &Representor, up: bool) -> Result<(), Refused> {
        let change = LinkChange::new();
        if !up {
            return self.change(port, &change.down());
        }
        silence(port);
        self.change(port, &change.up())
    }

    fn change(&self, port: &Representor, change: &LinkChange<'_>) -> Result<(), Refused> {
        let changed = self.rtnl().change_link(port.index, change);
        changed.map_err(|error| Refused::new(format!("change representor {}", port.name), error))
    }

    /// Limits what the pod receives: what the representor sends.
    pub(super) fn limit(&self, port: &Representor, bandwidth: &Bandwidth) -> Result<(), Refused> {
        let limited = self.rtnl().set_egress_limit(port.index, limit(bandwidth));
        limited.map_err(|error| Refused::new(format!("limit the rate of {}", port.name), error))
    }

    /// A limit that has gone with its link is off.
    pub(super) fn unlimit(&self, port: &Representor) -> Result<(), Refused> {
        gone_is_done(self.rtnl().set_egress_limit(port.index, None))
            .map_err(|error| Refused::new(format!("take the limit off {}", port.name), error))
    }

    /// To how many bits per second it is limited what the pod receives. `None`: it is not.
    pub(super) fn rate(&self, port: &Representor) -> Result<Option<u64>, Refused> {
        let rate = self.rtnl().egress_rate(port.index);
        rate.map_err(|error| Refused::new(format!("read the rate of {}", port.name), error))
    }
}

/// Keeps this DPU from talking IPv6 of its own on a representor: whatever the VLAN, the pod behind it
/// would hear it. Where the kernel can't talk IPv6, there is nothing to do.
fn silence(port: &Representor) {
    if let Err(error) = set_sysctl(Family::V6, &port.name, "disable_ipv6", "1") {
        tracing::debug!(port = port.name, %error, "not silenced");
    }
}

/// Whether it can be limited to that rate what a pod receives, given a kernel that is able to or not.
pub(super) fn check_ingress_rate(bits: u64, token_bucket: &Ability) -> Result<(), Unsupported> {
    match token_bucket {
        Err(why) if bits != 0 => Err(Unsupported {
            setting: format!("an ingress rate of {bits} bit/s"),
            why: why.clone(),
        }),
        _ => Ok(()),
    }
}

pub(super) fn is_limited(link: &Link) -> bool {
    link.queue.as_deref() == Some(LIMITED)
}

/// What [`Links::rate`] tells once these limits are set: the kernel counts in whole bytes.
pub(super) fn rate_when_limited(bandwidth: &Bandwidth) -> Option<u64> {
    limit(bandwidth).map(|limit| limit.rate_bits / 8 * 8)
}

fn limit(bandwidth: &Bandwidth) -> Option<Limit> {
    let rate_bits = bandwidth.ingress_rate;
    let burst_bits = match bandwidth.ingress_burst {
        0 => (rate_bits / BURST_PARTS_PER_SECOND).max(SMALLEST_BURST),
        burst => burst,
    };
    (rate_bits != 0).then_some(Limit { rate_bits, burst_bits })
}

/// What was on something that vanished is off.
pub(crate) fn gone_is_done(outcome: Result<(), netlink::Error>) -> Result<(), netlink::Error> {
    outcome.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_without_a_burst_gets_one_that_lets_it_flow() {
        let burst = |ingress_rate, ingress_burst| {
            limit(&Bandwidth { ingress_rate, ingress_burst, ..Bandwidth::default() })
                .map(|limit| limit.burst_bits)
        };
        assert_eq!(burst(0, 0), None);
        assert_eq!(burst(1_000_000, 80_000), Some(80_000));
        assert_eq!(burst(1_000_000, 0), Some(SMALLEST_BURST));
        assert_eq!(burst(10_000_000_000, 0), Some(100_000_000));
    }
}
