//! What every card leaves to its representors' links.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use netlink::{Family, Limit, LimitInForce, Link, LinkChange, Rtnl, set_sysctl};
use vf_alloc::FunctionId;

use super::{Carried, Representor};
use crate::{
    driver::{Ability, Refused, Unsupported},
    model::{Bandwidth, Label, PortSettings},
};

/// How long a frame may wait before those behind it are dropped, in milliseconds.
const LONGEST_WAIT: u64 = 50;

/// What may be sent at once at most, as what the rate gives in so many milliseconds. Runtimes ask for
/// the largest burst there is, which would be no limit for minutes.
pub(crate) const LONGEST_BURST: u64 = 100;

/// What may be sent at once where the request does not say: what the rate gives in so many
/// milliseconds, at least [`LARGEST_PIECE`].
const DEFAULT_BURST: u64 = 10;

/// The largest piece that a stack hands over at once, in bits, with the headers that its frames get.
pub(crate) const LARGEST_PIECE: u64 = 72 * 1024 * 8;

/// Ethernet's header with a VLAN tag, in bytes.
const HEADER: u64 = 18;

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

    /// What each has carried, by index. What it has received, a VF has sent.
    pub(super) fn carried(&self) -> Result<BTreeMap<u32, Carried>, Refused> {
        let mut rtnl = self.rtnl();
        let refused = |error| Refused::new("count what the representors have carried", error);
        let statistics = rtnl.link_statistics().map_err(refused)?;
        let drops = rtnl.traffic_control().drops().map_err(refused)?;
        let carried = statistics.into_iter().map(|(index, of_link)| {
            let drops = drops.get(&index).copied().unwrap_or_default();
            let carried = Carried {
                sent: of_link.received,
                received: of_link.sent,
                ingress_limit_drops: drops.by_limit,
            };
            (index, carried)
        });
        Ok(carried.collect())
    }

    pub(super) fn named(&self, name: &str) -> Result<Option<Link>, netlink::Error> {
        self.rtnl().link_by_name(name)
    }

    pub(super) fn of_index(&self, index: u32) -> Result<Option<Link>, netlink::Error> {
        self.rtnl().link_by_index(index)
    }

    /// Whether the card carries out filters of what comes in at a representor: see
    /// [`netlink::TrafficControl::try_card`].
    pub(super) fn try_filters(&self, port: &Representor) -> Ability {
        let tried = self.rtnl().traffic_control().try_card(port.index);
        tried.map_err(|error| error.to_string())
    }

    pub(super) fn set_mtu(&self, port: &Representor, mtu: u32) -> Result<(), Refused> {
        self.change(port, &LinkChange::new().mtu(mtu))
    }

    pub(super) fn set_group(&self, port: &Representor, group: u32) -> Result<(), Refused> {
        self.change(port, &LinkChange::new().group(group))
    }

    pub(super) fn set_label(&self, port: &Representor, label: &Label) -> Result<(), Refused> {
        self.change(port, &LinkChange::new().group(label.group).alias(&label.alias))
    }

    pub(super) fn set_up(&self, port: &Representor, up: bool) -> Result<(), Refused> {
        let change = LinkChange::new();
        if !up {
            return self.change(port, &change.down());
        }
        // Before it is up: the kernel announces itself on a link as it comes up.
        silence(port);
        self.change(port, &change.up())
    }

    fn change(&self, port: &Representor, change: &LinkChange<'_>) -> Result<(), Refused> {
        let changed = self.rtnl().change_link(port.index, change);
        changed.map_err(|error| Refused::new(format!("change representor {}", port.name), error))
    }

    /// Limits what the pod receives: what the representor sends.
    pub(super) fn limit(&self, port: &Representor, bandwidth: &Bandwidth) -> Result<(), Refused> {
        let limited =
            self.rtnl().traffic_control().set_queue_limit(port.index, limit(bandwidth, port.mtu));
        limited.map_err(|error| Refused::new(format!("limit the rate of {}", port.name), error))
    }

    /// A limit that has gone with its link is off.
    pub(super) fn unlimit(&self, port: &Representor) -> Result<(), Refused> {
        gone_is_done(self.rtnl().traffic_control().set_queue_limit(port.index, None))
            .map_err(|error| Refused::new(format!("take the limit off {}", port.name), error))
    }

    /// How it is limited what the pod receives. `None`: it is not.
    pub(super) fn limit_in_force(
        &self,
        port: &Representor,
    ) -> Result<Option<LimitInForce>, Refused> {
        let limit = self.rtnl().traffic_control().queue_limit(port.index);
        limit.map_err(|error| Refused::new(format!("read the limit of {}", port.name), error))
    }
}

/// Keeps this DPU from talking of its own on a representor: whatever the VLAN, the pod behind it would hear it. And from
/// listening: with Open vSwitch's userspace datapath the kernel sees what comes in, too, before any guard, and there is
/// no way to any pod by a representor. Where the kernel can't talk IPv6, there is nothing to do.
fn silence(port: &Representor) {
    let settings = [
        (Family::V6, "disable_ipv6", "1"),
        (Family::V4, "arp_ignore", "8"),
        (Family::V4, "rp_filter", "1"),
    ];
    for (family, key, value) in settings {
        if let Err(error) = set_sysctl(family, &port.name, key, value) {
            tracing::debug!(port = port.name, key, %error, "not silenced");
        }
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

/// Whether there can be what a pod is sure of, and what it shares with all of its network, given a card that is able
/// to or not.
pub(crate) fn check_rate_tree(
    settings: &PortSettings,
    share: &Ability,
    total: &Ability,
) -> Result<(), Unsupported> {
    let unsupported = |what: &str, bits: u64, why: &String| Unsupported {
        setting: format!("{what} of {bits} bit/s"),
        why: why.clone(),
    };
    if let (bits @ 1.., Err(why)) = (settings.bandwidth.egress_share, share) {
        return Err(unsupported("an egress share", bits, why));
    }
    match (&settings.total_egress, total) {
        (Some(total), Err(why)) => Err(unsupported("a total egress rate", total.rate, why)),
        _ => Ok(()),
    }
}

impl Representor {
    /// As its link tells. Whether it is limited by other means than the link's queue, and what its card can do,
    /// it does not.
    pub(super) fn of_link(vf: FunctionId, link: Link) -> Self {
        let is_limited = is_limited(&link);
        Self {
            vf,
            index: link.index,
            mtu: link.mtu,
            up: link.is_up,
            label: Label { group: link.group, alias: link.alias.unwrap_or_default() },
            mac: link.mac,
            master: link.master,
            is_limited,
            offloads_filters: false,
            is_veth: link.kind.as_deref() == Some("veth"),
            name: link.name,
        }
    }
}

pub(super) fn is_limited(link: &Link) -> bool {
    link.queue.as_deref() == Some(LIMITED)
}

/// What [`Links::limit_in_force`] tells once these limits are set.
pub(super) fn when_limited(bandwidth: &Bandwidth, port: &Representor) -> Option<LimitInForce> {
    limit(bandwidth, port.mtu).map(LimitInForce::from)
}

pub(super) fn described(limit: LimitInForce) -> String {
    format!("towards the pod {} bit/s", limit.rate_bits)
}

/// Sizes follow from the rate, so that nobody waits for what somebody else has sent long ago: but two
/// frames fit at any rate.
fn limit(bandwidth: &Bandwidth, mtu: u32) -> Option<Limit> {
    let rate_bits = bandwidth.ingress_rate;
    let given_in = |milliseconds: u64| rate_bits.saturating_mul(milliseconds) / 1000;
    let two_frames = 2 * 8 * (u64::from(mtu) + HEADER);
    let queue_bits = given_in(LONGEST_WAIT).max(two_frames);
    let wanted = match bandwidth.ingress_burst {
        0 => given_in(DEFAULT_BURST).max(LARGEST_PIECE),
        burst => burst,
    };
    let burst_bits = wanted.min(largest_burst(given_in(LONGEST_BURST), queue_bits)).max(two_frames);
    (rate_bits != 0).then_some(Limit { rate_bits, burst_bits, queue_bits })
}

/// The kernel cuts a piece that is larger than the burst. One that is not would never fit into a
/// smaller queue, and be dropped however often it is sent.
fn largest_burst(by_rate: u64, queue: u64) -> u64 {
    if queue < LARGEST_PIECE { by_rate.min(queue) } else { by_rate }
}

/// What was on something that vanished is off.
pub(crate) fn gone_is_done(outcome: Result<(), netlink::Error>) -> Result<(), netlink::Error> {
    outcome.or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(ingress_rate: u64, ingress_burst: u64) -> Option<(u64, u64)> {
        let bandwidth = Bandwidth { ingress_rate, ingress_burst, ..Bandwidth::default() };
        limit(&bandwidth, 1500).map(|limit| (limit.burst_bits, limit.queue_bits))
    }

    const TWO_FRAMES: u64 = 2 * 1518 * 8;

    #[test]
    fn a_rate_without_a_burst_gets_one_that_lets_it_flow() {
        assert_eq!(sizes(0, 0), None);
        assert_eq!(sizes(1_000_000, 0), Some((50_000, 50_000)));
        assert_eq!(sizes(100_000_000, 0), Some((1_000_000, 5_000_000)));
        assert_eq!(sizes(10_000_000_000, 0), Some((100_000_000, 500_000_000)));
    }

    #[test]
    fn a_burst_is_what_was_asked_for_within_what_the_rate_gives_in_a_tenth_of_a_second() {
        assert_eq!(sizes(1_000_000, 40_000), Some((40_000, 50_000)));
        assert_eq!(sizes(100_000_000, 9_000_000), Some((9_000_000, 5_000_000)));
        assert_eq!(sizes(100_000_000, u64::MAX), Some((10_000_000, 5_000_000)));
        assert_eq!(sizes(64_000, 8), Some((TWO_FRAMES, TWO_FRAMES)), "a frame fits at any rate");
    }

    #[test]
    fn what_passes_the_bucket_whole_fits_into_the_queue() {
        for rate in (0..40).map(|power| 8 << power) {
            let (burst, queue) = sizes(rate, u64::MAX).unwrap();
            assert!(burst <= queue || queue >= LARGEST_PIECE, "{rate}: {burst}, {queue}");
        }
    }
}
