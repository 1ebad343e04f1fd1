//! Limits on calls in progress, open streams, and the size of requests and responses in memory.
//!
//! Owns: the semaphores of each peer and of all peers together. A call takes its peer's permit first, then the common
//! one.
//!
//! Locks: the map of peers, for one lookup, never across an await.

use std::{collections::HashMap, sync::Arc};

use mtls::Identity;
use offload_proto::{Failure, Reason};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::calls::Kind;
use crate::config::Limits;

/// Maximum size of large requests and responses in memory: 32 MiB, half of it for one peer.
const ANSWERS_KIB: usize = 32 * 1024;

/// Responses up to this size are limited only by their number.
const SMALL_KIB: usize = 16;

/// Maximum number of lists built at a time: each takes about 10 MiB before it is encoded.
const LISTS: usize = 2;

/// Limits of the API. One peer gets half of them, so that it cannot exclude others.
#[derive(Debug)]
pub(super) struct CallLimits {
    all: Arc<Bounds>,
    share: Most,
    /// Never shrinks: it has at most one entry for each certificate that the CA has issued.
    shares: Mutex<HashMap<Identity, Arc<Bounds>>>,
}

#[derive(Clone, Copy, Debug)]
struct Most {
    calls: usize,
    streams: usize,
    answers_kib: usize,
    lists: usize,
}

#[derive(Debug)]
struct Bounds {
    calls: Arc<Semaphore>,
    streams: Arc<Semaphore>,
    answers_kib: Arc<Semaphore>,
    lists: Arc<Semaphore>,
}

impl Bounds {
    fn new(most: Most) -> Arc<Self> {
        let bound = |number| Arc::new(Semaphore::new(number));
        Arc::new(Self {
            calls: bound(most.calls),
            streams: bound(most.streams),
            answers_kib: bound(most.answers_kib),
            lists: bound(most.lists),
        })
    }

    fn of(&self, kind: Kind) -> &Arc<Semaphore> {
        match kind {
            Kind::Call | Kind::List => &self.calls,
            Kind::Stream => &self.streams,
        }
    }
}

/// Permits of a call. Dropping it returns them.
#[derive(Debug)]
pub(super) struct CallPermit {
    identity: Identity,
    all: Arc<Bounds>,
    share: Arc<Bounds>,
    most_kib: usize,
    /// Size that the request or response has reserved.
    held_kib: usize,
    held: Vec<OwnedSemaphorePermit>,
}

impl CallLimits {
    pub(super) fn new(limits: &Limits) -> Self {
        let all = Most {
            calls: limits.in_flight,
            streams: limits.connections,
            answers_kib: ANSWERS_KIB,
            lists: LISTS,
        };
        let share = Most {
            calls: all.calls.div_ceil(2),
            streams: limits.connections_per_identity,
            answers_kib: ANSWERS_KIB / 2,
            lists: 1,
        };
        Self { all: Bounds::new(all), share, shares: Mutex::default() }
    }

    /// Creates a call's permit without any reservation.
    pub(super) fn admit(&self, identity: &Identity) -> CallPermit {
        let mut shares = self.shares.lock();
        let share = shares.entry(identity.clone()).or_insert_with(|| Bounds::new(self.share));
        let (share, all) = (Arc::clone(share), Arc::clone(&self.all));
        let (identity, most_kib) = (identity.clone(), self.share.answers_kib);
        CallPermit { identity, all, share, most_kib, held_kib: 0, held: Vec::new() }
    }
}

impl CallPermit {
    /// Reserves a place for the call or stream.
    ///
    /// # Errors
    /// [`Reason::Overloaded`]: the peer's or the overall limit is reached.
    pub(super) fn enter(&mut self, kind: Kind) -> Result<(), Failure> {
        let (what, of_one, of_all) = match kind {
            Kind::Call | Kind::List => ("calls", "half of limits.in_flight", "limits.in_flight"),
            Kind::Stream => ("streams", "limits.connections_per_identity", "limits.connections"),
        };
        let of_share = Arc::clone(self.share.of(kind)).try_acquire_owned().map_err(|_| {
            let identity = &self.identity;
            full(format!("{identity} has as many {what} open as {of_one} allows: end some"))
        })?;
        let of_all = Arc::clone(self.all.of(kind))
            .try_acquire_owned()
            .map_err(|_| full(format!("as many {what} are open as {of_all} allows: try again")))?;
        self.held.extend([of_share, of_all]);
        Ok(())
    }

    /// Waits until this peer may build a list.
    pub(super) async fn turn(&self) -> [Option<OwnedSemaphorePermit>; 2] {
        // The semaphores are never closed.
        let of_share = Arc::clone(&self.share.lists).acquire_owned().await.ok();
        let of_all = Arc::clone(&self.all.lists).acquire_owned().await.ok();
        [of_share, of_all]
    }

    /// Reserves memory for a response. One larger than a peer's share is admitted if it is the peer's only one.
    ///
    /// # Errors
    /// [`Reason::Overloaded`]: the limit is reached.
    pub(super) fn hold_answer(&mut self, bytes: usize) -> Result<(), Failure> {
        let is_small = bytes <= SMALL_KIB * 1024;
        if is_small { Ok(()) } else { self.hold(bytes) }
    }

    /// Reserves memory for a request or response of `bytes` in total. Small requests count, too: they have no place
    /// yet, so nothing else limits their number.
    ///
    /// # Errors
    /// [`Reason::Overloaded`]: the limit is reached.
    pub(super) fn hold(&mut self, bytes: usize) -> Result<(), Failure> {
        let kib = bytes.div_ceil(1024).min(self.most_kib);
        if kib <= self.held_kib {
            return Ok(());
        }
        let more = u32::try_from(kib - self.held_kib).unwrap_or(u32::MAX);
        // The share first: a peer beyond its share must take nothing from the others.
        for bounds in [&self.share, &self.all] {
            let taken = Arc::clone(&bounds.answers_kib).try_acquire_many_owned(more);
            let why = "requests in transfer and unread responses use all the memory for them: read the \
            responses, or end the calls";
            self.held.push(taken.map_err(|_| full(why.to_owned()))?);
        }
        self.held_kib = kib;
        Ok(())
    }
}

fn full(sentence: String) -> Failure {
    Failure::new(Reason::Overloaded, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(uri: &str) -> Identity {
        format!("spiffe://dpu-offload.local/{uri}").parse().unwrap()
    }

    fn limits(in_flight: usize) -> CallLimits {
        let (connections, connections_per_identity) = (3, 2);
        CallLimits::new(&Limits {
            in_flight,
            connections,
            connections_per_identity,
            ..Limits::default()
        })
    }

    fn enter(limits: &CallLimits, identity: &Identity, kind: Kind) -> Result<CallPermit, Failure> {
        let mut permit = limits.admit(identity);
        permit.enter(kind).map(|()| permit)
    }

    #[test]
    fn one_peer_leaves_half_to_others() {
        let [greedy, other, third] = ["host/node-1", "host/node-2", "operator/admin"].map(identity);
        let limits = limits(4);
        let enter = |who| enter(&limits, who, Kind::Call);
        let mut permits: Vec<_> = std::iter::from_fn(|| enter(&greedy).ok()).collect();
        assert_eq!(permits.len(), 2);
        permits.push(enter(&other).unwrap());
        permits.push(enter(&other).unwrap());
        assert_eq!(enter(&third).unwrap_err().reason, Reason::Overloaded);
        permits.clear();
        assert!(enter(&third).is_ok());
    }

    #[test]
    fn one_call_fits_into_the_smallest_room() {
        assert!(enter(&limits(1), &identity("operator/admin"), Kind::List).is_ok());
    }

    #[test]
    fn streams_leave_calls_their_room() {
        let [greedy, other] = ["viewer/a", "viewer/b"].map(identity);
        let limits = limits(1);
        let open = |who| enter(&limits, who, Kind::Stream);
        let _permits = [open(&greedy).unwrap(), open(&greedy).unwrap(), open(&other).unwrap()];
        assert_eq!(open(&greedy).unwrap_err().reason, Reason::Overloaded);
        assert_eq!(open(&other).unwrap_err().reason, Reason::Overloaded);
        assert!(enter(&limits, &greedy, Kind::Call).is_ok());
    }

    #[test]
    fn large_answers_are_bounded_until_taken() {
        const MIB: usize = 1024 * 1024;
        let (limits, viewer) = (limits(64), identity("viewer/a"));
        let answer = |bytes| {
            let mut permit = enter(&limits, &viewer, Kind::List).unwrap();
            permit.hold_answer(bytes).map(|()| permit)
        };
        let all = answer(1024 * MIB).unwrap();
        assert_eq!(answer(MIB).unwrap_err().reason, Reason::Overloaded);
        assert!(answer(SMALL_KIB * 1024).is_ok());
        drop(all);
        let held: Vec<_> = std::iter::from_fn(|| answer(MIB).ok()).collect();
        assert_eq!(held.len(), ANSWERS_KIB / 2048);
    }
}
