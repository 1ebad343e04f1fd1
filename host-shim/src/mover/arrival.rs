//! The end of a move: waits for the carrier, the fabric's port and IPv6 addresses, then announces the addresses.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::{CarrierWatch, Netns, Rtnl};
use saga::Steps;
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{
    Durations, Failed, MoveError, VfMove,
    action::Action,
    announcer::{Announcement, Announcer},
    inward::WATCH_CARRIER,
};

/// How long to wait for the kernel to accept the IPv6 addresses. It takes longer only while thousands of namespaces are
/// created or deleted.
const ADDRESSES_LIMIT: Duration = Duration::from_secs(5);
/// The kernel does not report when an address becomes usable, so it is polled, with a delay that doubles from the first
/// value to the last.
const FIRST_DELAY: Duration = Duration::from_millis(1);
const LONGEST_DELAY: Duration = Duration::from_millis(16);

/// The steps after the carrier is up.
pub const STEPS: &Steps<Arrival, MoveError> = &[&Action { name: "announce", run: announce }];

/// A VF that is in its pod and configured. It keeps the pod's namespace open until it is dropped or
/// [settled](Self::settle).
#[derive(Debug)]
#[must_use = "its addresses are not announced yet"]
pub struct Arrival {
    durations: Durations,
    /// `None`: the carrier is up, or the VF has no link.
    carrier: Option<CarrierWatch>,
    carrier_limit: Duration,
    announcer: Announcer,
    /// `None`: the VF has no addresses.
    announcement: Option<Announcement>,
}

impl Arrival {
    /// The rest of a move whose steps have all run.
    pub(super) fn of(vf_move: VfMove) -> Self {
        let addresses: Vec<_> =
            vf_move.spec.plan.routing.addresses.iter().map(netlink::IpNetwork::ip).collect();
        let announcement = vf_move.pod.zip(vf_move.arrived).filter(|_| !addresses.is_empty()).map(
            |(pod, link)| {
                let (netns, interface, mac) = (pod.netns, link.index, vf_move.spec.plan.mac);
                Announcement { netns, interface, mac, addresses }
            },
        );
        Self {
            durations: vf_move.durations,
            carrier: vf_move.carrier,
            carrier_limit: vf_move.spec.plan.carrier_limit,
            announcer: vf_move.spec.announcer,
            announcement,
        }
    }

    /// Waits for the carrier, for the fabric's `port` and until IPv6 addresses are usable, then announces the
    /// addresses. An announcement before the carrier is up, or before the port forwards, would be lost. Without a
    /// carrier in time the move succeeds and [`Durations::without_carrier`] is set.
    ///
    /// # Errors
    /// The step that failed. The VF stays in the pod; the caller moves it out.
    pub async fn settle(mut self, port: impl Future<Output = ()>) -> Result<Durations, Failed> {
        let started = Instant::now();
        let (carrier, limit) = (self.carrier.take(), self.carrier_limit);
        let carrier = async {
            match carrier {
                Some(carrier) => carrier.wait(limit).await,
                None => Ok(true),
            }
        };
        let addresses = timeout(ADDRESSES_LIMIT, local_addresses(self.announcement.as_ref()));
        // A timeout here is no failure: the pod gets its interface, and neighbours repeat their request each second.
        let (came, (), _) = tokio::join!(carrier, port, addresses);
        let failed = |error: netlink::Error| {
            let source = Some(error.into());
            Failed { step: WATCH_CARRIER, context: 0, source, left: Vec::new() }
        };
        self.durations.without_carrier = !came.map_err(failed)?;
        self.durations.carrier = started.elapsed();
        saga::run(STEPS, &mut self)?;
        Ok(self.durations)
    }
}

/// Returns when the IPv6 addresses are usable, or when [`Rtnl::is_local`] cannot say.
async fn local_addresses(announcement: Option<&Announcement>) {
    let Some(Announcement { netns, addresses, .. }) = announcement else { return };
    let of_ipv6 = |address: &IpAddr| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(*address),
    };
    let addresses: Arc<[Ipv6Addr]> = addresses.iter().filter_map(of_ipv6).collect();
    let mut delay = FIRST_DELAY;
    while !addresses.is_empty() && are_missing(netns, &addresses).await {
        sleep(delay).await;
        delay = (delay * 2).min(LONGEST_DELAY);
    }
}

async fn are_missing(netns: &Arc<Netns>, addresses: &Arc<[Ipv6Addr]>) -> bool {
    let (netns, addresses) = (Arc::clone(netns), Arc::clone(addresses));
    let all_local = move || {
        let mut rtnl = Rtnl::open_in(&netns)?;
        for address in &*addresses {
            if !rtnl.is_local(*address)? {
                return Ok::<_, netlink::Error>(false);
            }
        }
        Ok(true)
    };
    // A failed check counts as usable: it must not delay the attach until the timeout.
    matches!(spawn_blocking(all_local).await, Ok(Ok(false)))
}

fn announce(arrival: &mut Arrival) -> Result<(), MoveError> {
    if let Some(announcement) = arrival.announcement.take() {
        arrival.announcer.announce(announcement);
    }
    Ok(())
}
