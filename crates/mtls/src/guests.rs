//! Who is connected, and for how many there is room.

use std::{
    collections::HashMap,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::identity::Identity;

/// Who is connected.
pub(crate) struct Guests {
    room: Arc<Semaphore>,
    per_identity: usize,
    present: Mutex<HashMap<Identity, usize>>,
}

impl Guests {
    /// Nobody is connected yet. There is room for `all` connections, `per_identity` of one identity.
    pub(crate) fn new(all: usize, per_identity: usize) -> Self {
        Self { room: Arc::new(Semaphore::new(all)), per_identity, present: Mutex::default() }
    }

    /// Counts one more connection of `identity`, or tells which limit it meets.
    pub(crate) fn admit(self: &Arc<Self>, identity: &Identity) -> Result<Place, &'static str> {
        let room = Arc::clone(&self.room).try_acquire_owned();
        let room = room.map_err(|_| "too many are open")?;
        let mut present = self.present();
        let count = present.entry(identity.clone()).or_default();
        if *count >= self.per_identity {
            return Err("this identity has too many open");
        }
        *count += 1;
        Ok(Place { guests: Arc::clone(self), identity: identity.clone(), _room: room })
    }

    fn present(&self) -> MutexGuard<'_, HashMap<Identity, usize>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a connection as long as it is open.
pub(crate) struct Place {
    guests: Arc<Guests>,
    identity: Identity,
    _room: OwnedSemaphorePermit,
}

impl fmt::Debug for Place {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Place({})", self.identity)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut present = self.guests.present();
        if let Some(count) = present.get_mut(&self.identity) {
            *count -= 1;
            if *count == 0 {
                present.remove(&self.identity);
            }
        }
    }
}
