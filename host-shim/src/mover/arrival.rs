//! What is left to do once a VF is in its pod: it waits for the card, and not for the kernel.

use std::{
    net::{IpAddr, Ipv6Addr},
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::{CarrierWatch, Netns, Rtnl};
use saga::{Step, Steps};
use tokio::{
    task::spawn_blocking,
    time::{sleep, timeout},
};

use super::{
    Durations, Failed, MoveError, VfMove,
    announcer::{Announcement, Announcer},
    inward::WATCH_CARRIER,
};

/// How long the kernel may take until IPv6 addresses can be used. It is longer only where thousands of namespaces are
/// made or deleted at once.
const ADDRESSES_LIMIT: Duration = Duration::from_secs(5);
/// The pauses between two looks at the addresses begin with this and double: the kernel reports nothing.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(16);

/// What follows once the carrier is there.
pub const STEPS: &Steps<Arrival, MoveError> = &[&Announce];

/// A VF that is in its pod, and configured. Until it is settled, the pod's namespace is kept open.
#[derive(Debug)]
#[must_use = "nobody has been told of its addresses"]
pub struct Arrival {
    durations: Durations,
    /// `None`: it has a carrier, or no link.
    carrier: Option<CarrierWatch>,
    carrier_limit: Duration,
    announcer: Announcer,
    /// `None`: it has no addresses.
    announcement: Option<Announcement>,
}

impl Arrival {
    /// The end of a move whose steps were all taken.
    pub(super) fn of(vf_move: VfMove) -> Self {
        let addresses: Vec<_> =
            vf_move.plan.routing.addresses.iter().map(netlink::IpNetwork::ip).collect();
        let announcement = vf_move.pod.zip(vf_move.arrived).filter(|_| !addresses.is_empty()).map(
            |(pod, link)| {
                let (netns, interface, mac) = (pod.netns, link.index, vf_move.plan.mac);
                Announcement { netns, interface, mac, addresses }
            },
        );
        Self {
            durations: vf_move.durations,
            carrier: vf_move.carrier,
            carrier_limit: vf_move.plan.carrier_limit,
            announcer: vf_move.announcer,
            announcement,
        }
    }

    /// Waits for the carrier, for the VF's `port`, and until the VF's addresses can be used; then announces these.
    /// Keeps no thread meanwhile. An announcement before the carrier is there, or before the port forwards, would be
    /// lost. A carrier that does not come is the fabric's matter: the pod gets its interface all the same.
    ///
    /// # Errors
    /// What failed. The VF is in the pod still: to undo that is to move it out.
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
        // After the limit the pod gets its interface nevertheless: neighbours ask again each second.
        let (came, (), _) = tokio::join!(carrier, port, addresses);
        self.durations.without_carrier = !came.map_err(without_carrier)?;
        self.durations.carrier = started.elapsed();
        saga::run(STEPS, &mut self)?;
        Ok(self.durations)
    }
}

/// Ends once the IPv6 addresses can be used, or can't be known to be: see [`Rtnl::is_local`].
async fn local_addresses(announcement: Option<&Announcement>) {
    let Some(Announcement { netns, addresses, .. }) = announcement else { return };
    let of_ipv6 = |address: &IpAddr| match address {
        IpAddr::V4(_) => None,
        IpAddr::V6(address) => Some(*address),
    };
    let addresses: Arc<[Ipv6Addr]> = addresses.iter().filter_map(of_ipv6).collect();
    let mut pause = FIRST_PAUSE;
    while !addresses.is_empty() && are_missing(netns, &addresses).await {
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
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
    matches!(spawn_blocking(all_local).await, Ok(Ok(false)))
}

fn without_carrier(error: netlink::Error) -> Failed {
    Failed { step: WATCH_CARRIER, context: 0, source: Some(error.into()), left: Vec::new() }
}

/// Tells the neighbours where the addresses are now.
struct Announce;

impl Step<Arrival> for Announce {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "announce"
    }

    fn run(&self, arrival: &mut Arrival) -> Result<(), MoveError> {
        if let Some(announcement) = arrival.announcement.take() {
            arrival.announcer.announce(announcement);
        }
        Ok(())
    }
}
