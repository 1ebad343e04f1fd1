//! How many calls may be under way.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use mtls::Identity;
use offload_proto::{Failure, Reason};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Room for calls. One peer can take half of it, so that it keeps nobody else out.
#[derive(Debug)]
pub(super) struct Room {
    all: Arc<Semaphore>,
    share: usize,
    /// As many as the CA has given certificates to.
    shares: Mutex<HashMap<Identity, Arc<Semaphore>>>,
}

/// Lets a call be under way until it is dropped.
#[derive(Debug)]
pub(super) struct CallPermit {
    _of_all: OwnedSemaphorePermit,
    _of_share: OwnedSemaphorePermit,
}

impl Room {
    pub(super) fn new(in_flight: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(in_flight)),
            share: in_flight.div_ceil(2),
            shares: Mutex::default(),
        }
    }

    /// A permit for a call of `identity`.
    ///
    /// # Errors
    /// [`Reason::Overloaded`]: there is none.
    pub(super) fn enter(&self, identity: &Identity) -> Result<CallPermit, Failure> {
        let of_share = self.share_of(identity).try_acquire_owned().map_err(|_| {
            full(format!("{identity} has half as many calls under way as limits.in_flight allows"))
        })?;
        let of_all = Arc::clone(&self.all).try_acquire_owned().map_err(|_| {
            full("as many calls are under way as limits.in_flight allows".to_owned())
        })?;
        Ok(CallPermit { _of_all: of_all, _of_share: of_share })
    }

    fn share_of(&self, identity: &Identity) -> Arc<Semaphore> {
        let mut shares = self.shares.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = shares.get(identity) {
            return Arc::clone(share);
        }
        let share = Arc::new(Semaphore::new(self.share));
        shares.insert(identity.clone(), Arc::clone(&share));
        share
    }
}

fn full(sentence: String) -> Failure {
    Failure::new(Reason::Overloaded, sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_keeps_nobody_else_out() {
        let identity = |uri: &str| uri.parse::<Identity>().unwrap();
        let greedy = identity("spiffe://dpu-offload.local/host/node-1");
        let other = identity("spiffe://dpu-offload.local/host/node-2");
        let room = Room::new(4);
        let mut permits: Vec<_> = std::iter::from_fn(|| room.enter(&greedy).ok()).collect();
        assert_eq!(permits.len(), 2);
        permits.push(room.enter(&other).unwrap());
        permits.push(room.enter(&other).unwrap());
        let third = identity("spiffe://dpu-offload.local/operator/admin");
        assert!(room.enter(&third).is_err());
        permits.clear();
        assert!(room.enter(&third).is_ok());
        assert!(Room::new(1).enter(&third).is_ok());
    }
}
