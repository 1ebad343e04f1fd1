//! What all callers share: what is known to be attached, what they found broken and what they have done.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Mutex, RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use crate::breach::Breach;

/// What all callers share.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// GC is alone, as the CNI specification asks of a runtime.
    pub(super) collecting: RwLock<()>,
    /// Container and interface of all that may be attached.
    pub(super) known: Mutex<BTreeSet<(String, String)>>,
    breaches: Mutex<Vec<Breach>>,
    /// VFs may be out of their pods since the last rest.
    pub(super) card_was_reset: AtomicBool,
    pub(crate) tally: Tally,
}

/// What callers have done besides calls.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) hostile: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) suspensions: AtomicU64,
    pub(crate) pings: AtomicU64,
    /// What hostile pods have tried, and whether the kernel let it pass at least once.
    pub(crate) tricks: Mutex<BTreeMap<&'static str, bool>>,
}

impl Common {
    pub(crate) fn note_reset(&self) {
        self.card_was_reset.store(true, Relaxed);
    }

    /// All VFs are where they belong.
    pub(crate) fn note_rest(&self) {
        self.card_was_reset.store(false, Relaxed);
    }

    /// The host that these containers were on has rebooted: nothing of them is attached.
    pub(crate) fn forget_all<'a>(&self, containers: impl Iterator<Item = &'a str>) {
        let containers: BTreeSet<_> = containers.collect();
        self.known
            .lock()
            .unwrap()
            .retain(|(container, _)| !containers.contains(container.as_str()));
    }

    /// That interface is not attached.
    pub(super) fn forget(&self, container: &str, interface: &str) {
        let known = (container.to_owned(), interface.to_owned());
        self.known.lock().unwrap().remove(&known);
    }

    /// Takes what callers have found broken.
    pub(crate) fn take_breaches(&self) -> Vec<Breach> {
        std::mem::take(&mut self.breaches.lock().unwrap())
    }

    pub(super) fn complain(&self, breach: Breach) {
        self.breaches.lock().unwrap().push(breach);
    }
}
