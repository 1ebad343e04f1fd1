//! Peers that were refused and are none of the hosts, as far as the service can tell.
//!
//! - **Does**: remembers the latest refusal of each peer, so that an operator sees why a new host does not come. All
//!   together are one event with a count, since a peer can invent names and call from many addresses.
//! - **Owns**: at most [`KEPT`] peers of the last 24 h, with a reason of at most [`LONGEST_REASON`] bytes each: a peer that tries from many
//!   addresses pushes out others, and takes no more memory.
//! - **Locks**: one mutex, for the moment of a look or a change.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{Mutex, MutexGuard, PoisonError},
};

use jiff::{SignedDuration, Timestamp};
use mtls::Identity;

use crate::events::{EventKind, Events};

/// What the event of all refused peers is about, and its code.
const SUBJECT: &str = "peers";
const REFUSED: &str = "PEER_REFUSED";
/// How many peers are remembered.
const KEPT: usize = 32;
/// How long a refusal is remembered.
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(24);
/// Longest reason that is remembered, in bytes.
const LONGEST_REASON: usize = 512;

/// A peer that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedPeer {
    /// Where it called from.
    pub(crate) address: IpAddr,
    /// The role and name in its certificate, such as `host/node-7`. Empty: not known.
    pub(crate) name: String,
    /// Why its latest connection was refused.
    pub(crate) reason: String,
    /// When.
    pub(crate) at: Timestamp,
    /// How many of its connections were refused.
    pub(crate) count: u64,
}

/// The latest refused peers, the latest first.
#[derive(Debug, Default)]
pub(crate) struct RefusedPeers(Mutex<VecDeque<RefusedPeer>>);

impl RefusedPeers {
    /// A peer at `address` was refused for `reason`. `holder`: whose certificate it showed, if that is by the DPU's CA.
    pub(crate) fn note(
        &self,
        address: IpAddr,
        holder: Option<&Identity>,
        reason: &str,
        events: &Events,
    ) {
        self.remember(address, holder, reason);
        let message = format!("a peer at {address} was refused: {reason}");
        events.record_reason(EventKind::PeerRefused, REFUSED, SUBJECT, message);
    }

    fn remember(&self, address: IpAddr, holder: Option<&Identity>, reason: &str) {
        let name = holder.map(|it| format!("{}/{}", it.role(), it.name())).unwrap_or_default();
        let mut peers = self.lock();
        let known = peers.iter().position(|peer| peer.address == address && peer.name == name);
        let count = known.and_then(|place| peers.remove(place)).map_or(0, |peer| peer.count) + 1;
        let reason = bootstrap::cut(reason.to_owned(), LONGEST_REASON);
        peers.push_front(RefusedPeer { address, name, reason, at: Timestamp::now(), count });
        peers.truncate(KEPT);
    }

    /// A host was accepted from `address`: what it was refused for before is over.
    pub(crate) fn forget(&self, address: IpAddr) {
        self.lock().retain(|peer| peer.address != address);
    }

    /// Those that are remembered, the latest first.
    pub(crate) fn all(&self) -> Vec<RefusedPeer> {
        let now = Timestamp::now();
        let mut peers = self.lock();
        peers.retain(|peer| now.duration_since(peer.at) <= KEPT_FOR);
        peers.iter().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<RefusedPeer>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u16) -> IpAddr {
        [0xfd00, 0, 0, 0, 0, 0, 0, last].into()
    }

    #[test]
    fn refused_peers_are_bounded() {
        let peers = RefusedPeers::default();
        let reason = "x".repeat(LONGEST_REASON * 2);
        for last in 0..1000 {
            peers.remember(address(last), None, &reason);
        }
        let all = peers.all();
        assert_eq!((all.len(), all[0].address), (KEPT, address(999)));
        assert!(all.iter().all(|peer| peer.reason.len() <= LONGEST_REASON + 32));
    }

    #[test]
    fn peers_of_any_name_are_one_event() {
        let (peers, events) = (RefusedPeers::default(), Events::default());
        for last in 0..100 {
            let holder: Identity = format!("spiffe://lab/host/node-{last}").parse().unwrap();
            peers.note(address(last), Some(&holder), &format!("unknown {last}"), &events);
        }
        let refused = events.of_kind(EventKind::PeerRefused);
        assert_eq!(refused.iter().map(|event| event.count).collect::<Vec<_>>(), [100]);
        assert!(refused[0].message.ends_with("unknown 99"), "{}", refused[0].message);
    }

    #[test]
    fn a_peer_is_listed_once_until_it_is_accepted() {
        let peers = RefusedPeers::default();
        let holder: Identity = "spiffe://lab/host/node-7".parse().unwrap();
        peers.remember(address(1), Some(&holder), "unknown");
        peers.remember(address(2), None, "too slow");
        peers.remember(address(1), Some(&holder), "expired");
        let told: Vec<_> =
            peers.all().into_iter().map(|peer| (peer.name, peer.reason, peer.count)).collect();
        let expected = [("host/node-7", "expired", 2), ("", "too slow", 1)];
        let expected =
            expected.map(|(name, reason, count)| (name.to_owned(), reason.into(), count));
        assert_eq!(told, expected);
        peers.forget(address(1));
        assert_eq!(peers.all().len(), 1);
        peers.lock()[0].at -= KEPT_FOR + SignedDuration::from_secs(1);
        assert_eq!(peers.all(), []);
    }
}
