//! Limits of open connections, in total and per identity.

use std::{collections::HashMap, fmt, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::identity::Identity;

/// Counts open connections. Its mutex is held only for a look-up.
pub(crate) struct ConnectionLimits {
    free: Arc<Semaphore>,
    per_identity: usize,
    open: Mutex<HashMap<Identity, usize>>,
}

impl ConnectionLimits {
    /// Admits `all` connections, of which `per_identity` may have the same identity.
    pub(crate) fn new(all: usize, per_identity: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(all)), per_identity, open: Mutex::default() }
    }

    /// Counts a connection of `identity`. The error is the limit that it exceeds.
    pub(crate) fn admit(
        self: &Arc<Self>,
        identity: &Identity,
    ) -> Result<ConnectionPermit, &'static str> {
        let slot = Arc::clone(&self.free).try_acquire_owned();
        let slot = slot.map_err(|_| "too many are open")?;
        let mut open = self.open.lock();
        let count = open.entry(identity.clone()).or_default();
        if *count >= self.per_identity {
            return Err("this identity has too many open");
        }
        *count += 1;
        Ok(ConnectionPermit { limits: Arc::clone(self), identity: identity.clone(), _slot: slot })
    }
}

/// Counts a connection until it is dropped.
pub(crate) struct ConnectionPermit {
    limits: Arc<ConnectionLimits>,
    identity: Identity,
    _slot: OwnedSemaphorePermit,
}

impl fmt::Debug for ConnectionPermit {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ConnectionPermit({})", self.identity)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.limits.open.lock();
        if let Some(count) = open.get_mut(&self.identity) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.identity);
            }
        }
    }
}
