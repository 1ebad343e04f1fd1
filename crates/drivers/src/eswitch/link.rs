//! Operations on representors' links that are the same for every card.

use std::collections::BTreeMap;

use netlink::{Family, Limit, LimitInForce, Link, LinkChange, Rtnl, gone_is_done, set_sysctl};
use parking_lot::Mutex;
use vf_alloc::FunctionId;

use super::{Carried, Representor};
use crate::driver::{Ability, Refused, Unsupported};
use model::{Bandwidth, Label, PortSettings};

/// The longest queueing delay of a frame, in milliseconds. Frames beyond it are dropped.
const LONGEST_WAIT: u64 = 50;

/// The largest burst, in milliseconds of the rate. Runtimes request the largest burst that exists, which would
/// amount to no limit for minutes.
pub const LONGEST_BURST: u64 = 100;

/// The default burst in milliseconds of the rate, at least [`LARGEST_PIECE`].
const DEFAULT_BURST: u64 = 10;

/// The largest piece that a network stack hands over at once, in bits, with the headers of its frames.
pub const LARGEST_PIECE: u64 = 72 * 1024 * 8;

/// The size of an Ethernet header with a VLAN tag, in bytes.
const HEADER: u64 = 18;

/// The queueing discipline of a link with a rate limit.
const LIMITED: &str = "tbf";

/// The links of one network namespace, by one locked socket.
#[derive(Debug)]
pub(super) struct Links(Mutex<Rtnl>);

impl Links {
    /// The links of the calling thread's namespace.
    pub(super) fn open() -> Result<Self, Refused> {
        let rtnl = Rtnl::open().map_err(|error| Refused::new("open the eswitch", error))?;
        Ok(Self(Mutex::new(rtnl)))
    }

    pub(super) fn all(&self) -> Result<Vec<Link>, Refused> {
        self.0.lock().links().map_err(|error| Refused::new("list the representors", error))
    }

    /// The traffic of each link, by index. What a representor's link has received, its VF has sent.
    pub(super) fn carried(&self) -> Result<BTreeMap<u32, Carried>, Refused> {
        let mut rtnl = self.0.lock();
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
        self.0.lock().link_by_name(name)
    }

    pub(super) fn of_index(&self, index: u32) -> Result<Option<Link>, netlink::Error> {
        self.0.lock().link_by_index(index)
    }

    /// Whether the card carries out filters of what comes in at a representor: see
    /// [`netlink::TrafficControl::try_card`].
    pub(super) fn try_filters(&self, port: &Representor) -> Ability {
        let tried = self.0.lock().traffic_control().try_card(port.index);
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
        // Before the link is up: the kernel sends IPv6 messages of its own when a link comes up.
        disable_ip(port);
        self.change(port, &change.up())
    }

    fn change(&self, port: &Representor, change: &LinkChange<'_>) -> Result<(), Refused> {
        let changed = self.0.lock().change_link(port.index, change);
        changed.map_err(|error| Refused::new(format!("change representor {}", port.name), error))
    }

    /// Limits what the pod receives, which is what the representor sends.
    pub(super) fn limit(&self, port: &Representor, bandwidth: &Bandwidth) -> Result<(), Refused> {
        let limited =
            self.0.lock().traffic_control().set_queue_limit(port.index, limit(bandwidth, port.mtu));
        limited.map_err(|error| Refused::new(format!("limit the rate of {}", port.name), error))
    }

    /// Succeeds if the link is gone.
    pub(super) fn unlimit(&self, port: &Representor) -> Result<(), Refused> {
        gone_is_done(self.0.lock().traffic_control().set_queue_limit(port.index, None))
            .map_err(|error| Refused::new(format!("take the limit off {}", port.name), error))
    }

    /// The limit of what the pod receives. `None`: there is none.
    pub(super) fn limit_in_force(
        &self,
        port: &Representor,
    ) -> Result<Option<LimitInForce>, Refused> {
        let limit = self.0.lock().traffic_control().queue_limit(port.index);
        limit.map_err(|error| Refused::new(format!("read the limit of {}", port.name), error))
    }
}

/// Keeps the DPU's own IP stack off a representor. Anything that it sent there would reach the pod in any VLAN.
/// With Open vSwitch's userspace datapath, the kernel also receives the pod's frames before any guard; no route
/// leads to a pod by a representor, so `rp_filter` drops them. A kernel without IPv6 needs nothing.
fn disable_ip(port: &Representor) {
    let settings = [
        (Family::V6, "disable_ipv6", "1"),
        (Family::V4, "arp_ignore", "8"),
        (Family::V4, "rp_filter", "1"),
    ];
    for (family, key, value) in settings {
        if let Err(error) = set_sysctl(family, &port.name, key, value) {
            tracing::debug!(port = port.name, key, %error, "cannot set the representor's sysctl");
        }
    }
}

/// Checks an ingress rate against the kernel's ability to limit.
pub(super) fn check_ingress_rate(bits: u64, token_bucket: &Ability) -> Result<(), Unsupported> {
    match token_bucket {
        Err(why) if bits != 0 => {
            Err(Unsupported::new(format!("an ingress rate of {bits} bit/s"), why))
        }
        _ => Ok(()),
    }
}

/// Checks the guaranteed share and the network's total rate against the card's abilities.
pub fn check_rate_tree(
    settings: &PortSettings,
    share: &Ability,
    total: &Ability,
) -> Result<(), Unsupported> {
    if let (bits @ 1.., Err(why)) = (settings.bandwidth.egress_share, share) {
        return Err(Unsupported::new(format!("an egress share of {bits} bit/s"), why));
    }
    match (&settings.total_egress, total) {
        (Some(total), Err(why)) => {
            let setting = format!("a total egress rate of {} bit/s", total.rate);
            Err(Unsupported::new(setting, why))
        }
        _ => Ok(()),
    }
}

impl Representor {
    /// The representor as its link shows it. Limits outside the link's queue, and the card's abilities, are not
    /// part of that.
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

/// What [`Links::limit_in_force`] returns once this limit is set.
pub(super) fn when_limited(bandwidth: &Bandwidth, port: &Representor) -> Option<LimitInForce> {
    limit(bandwidth, port.mtu).map(LimitInForce::from)
}

pub(super) fn described(limit: LimitInForce) -> String {
    format!("towards the pod {} bit/s", limit.rate_bits)
}

/// Derives the sizes from the rate, so that no frame waits long behind others. Two frames fit at any rate.
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

/// The largest burst that the queue allows. The kernel segments a piece larger than the burst. A piece that fits
/// the burst but not the queue would be dropped at every retransmission.
fn largest_burst(by_rate: u64, queue: u64) -> u64 {
    if queue < LARGEST_PIECE { by_rate.min(queue) } else { by_rate }
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
    fn rate_without_burst_gets_a_default() {
        assert_eq!(sizes(0, 0), None);
        assert_eq!(sizes(1_000_000, 0), Some((50_000, 50_000)));
        assert_eq!(sizes(100_000_000, 0), Some((1_000_000, 5_000_000)));
        assert_eq!(sizes(10_000_000_000, 0), Some((100_000_000, 500_000_000)));
    }

    #[test]
    fn ingress_burst_is_bounded_by_its_rate() {
        assert_eq!(sizes(1_000_000, 40_000), Some((40_000, 50_000)));
        assert_eq!(sizes(100_000_000, 9_000_000), Some((9_000_000, 5_000_000)));
        assert_eq!(sizes(100_000_000, u64::MAX), Some((10_000_000, 5_000_000)));
        assert_eq!(sizes(64_000, 8), Some((TWO_FRAMES, TWO_FRAMES)), "a frame fits at any rate");
    }

    #[test]
    fn unsegmented_piece_fits_into_the_queue() {
        for rate in (0..40).map(|power| 8 << power) {
            let (burst, queue) = sizes(rate, u64::MAX).unwrap();
            assert!(burst <= queue || queue >= LARGEST_PIECE, "{rate}: {burst}, {queue}");
        }
    }
}
