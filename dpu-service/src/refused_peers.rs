//! Refused peers that are not known hosts.
//!
//! Remembers the latest refusal of each peer, so that an operator sees why a new host does not connect. All of them
//! share one event with a count, because a peer can invent names and connect from many addresses.
//!
//! Owns: up to [`KEPT`] peers of the last 24 h with a reason of up to [`LONGEST_REASON`] bytes each. A peer that tries
//! from many addresses evicts others and uses no more memory.
//!
//! Locks: one mutex, for the moment of a read or a change.

use std::{collections::VecDeque, net::IpAddr};

use jiff::{SignedDuration, Timestamp};
use mtls::Identity;
use parking_lot::Mutex;

use crate::events::{EventKind, Events};

/// Subject and reason code of the event for all refused peers.
const SUBJECT: &str = "peers";
const REFUSED: &str = "PEER_REFUSED";
/// Maximum number of peers.
const KEPT: usize = 32;
const KEPT_FOR: SignedDuration = SignedDuration::from_hours(24);
/// Maximum length of a stored reason, in bytes.
const LONGEST_REASON: usize = 512;

/// A refused peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RefusedPeer {
    pub(crate) address: IpAddr,
    /// Role and name in its certificate, such as `host/node-7`. Empty: unknown.
    pub(crate) name: String,
    pub(crate) reason: String,
    pub(crate) at: Timestamp,
    /// Number of its refused connections.
    pub(crate) count: u64,
}

/// Refused peers, the latest first.
#[derive(Debug, Default)]
pub(crate) struct RefusedPeers(Mutex<VecDeque<RefusedPeer>>);

impl RefusedPeers {
    /// Notes a peer at `address` that was refused for `reason`. `holder`: the identity in its certificate, if the DPU's
    /// CA issued it.
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
        let mut peers = self.0.lock();
        let known = peers.iter().position(|peer| peer.address == address && peer.name == name);
        let count = known.and_then(|place| peers.remove(place)).map_or(0, |peer| peer.count) + 1;
        let reason = bootstrap::cut(reason.to_owned(), LONGEST_REASON);
        peers.push_front(RefusedPeer { address, name, reason, at: Timestamp::now(), count });
        peers.truncate(KEPT);
    }

    /// Removes the refusals of `address`: a host was accepted from there.
    pub(crate) fn forget(&self, address: IpAddr) {
        self.0.lock().retain(|peer| peer.address != address);
    }

    /// The remembered peers, the latest first.
    pub(crate) fn all(&self) -> Vec<RefusedPeer> {
        let now = Timestamp::now();
        let mut peers = self.0.lock();
        peers.retain(|peer| now.duration_since(peer.at) <= KEPT_FOR);
        peers.iter().cloned().collect()
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
    fn refused_peer_is_listed_once_until_accepted() {
        let peers = RefusedPeers::default();
        let holder: Identity = "spiffe://lab/host/node-7".parse().unwrap();
        peers.remember(address(1), Some(&holder), "unknown");
        peers.remember(address(2), None, "too slow");
        peers.remember(address(1), Some(&holder), "expired");
        let shown: Vec<_> =
            peers.all().into_iter().map(|peer| (peer.name, peer.reason, peer.count)).collect();
        let expected = [("host/node-7", "expired", 2), ("", "too slow", 1)];
        let expected =
            expected.map(|(name, reason, count)| (name.to_owned(), reason.into(), count));
        assert_eq!(shown, expected);
        peers.forget(address(1));
        assert_eq!(peers.all().len(), 1);
        peers.0.lock()[0].at -= KEPT_FOR + SignedDuration::from_secs(1);
        assert_eq!(peers.all(), []);
    }
}
