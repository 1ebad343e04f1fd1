//! Shared state of all callers: what may be attached, violations, and counts.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        RwLock,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

use crate::violation::Violation;

/// Shared state of all callers.
#[derive(Debug, Default)]
pub(crate) struct Common {
    /// GC runs alone, as the CNI specification requires of runtimes.
    pub(super) collecting: RwLock<()>,
    /// Container and interface of everything that may be attached.
    pub(super) known: Mutex<BTreeSet<(String, String)>>,
    violations: Mutex<Vec<Violation>>,
    /// VFs may be outside their pods since the last rest.
    pub(super) card_was_reset: AtomicBool,
    pub(crate) tally: Tally,
}

/// What callers have done beyond calls.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) hostile: AtomicU64,
    pub(crate) dead: AtomicU64,
    pub(crate) suspensions: AtomicU64,
    pub(crate) pings: AtomicU64,
    /// Changes that hostile pods tried, and whether the kernel allowed each at least once.
    pub(crate) hostile_changes: Mutex<BTreeMap<&'static str, bool>>,
}

impl Common {
    pub(crate) fn note_reset(&self) {
        self.card_was_reset.store(true, Relaxed);
    }

    /// All VFs are where they belong.
    pub(crate) fn note_rest(&self) {
        self.card_was_reset.store(false, Relaxed);
    }

    /// After a reboot of their host, nothing of these containers is attached.
    pub(crate) fn forget_all<'a>(&self, containers: impl Iterator<Item = &'a str>) {
        let containers: BTreeSet<_> = containers.collect();
        self.known.lock().retain(|(container, _)| !containers.contains(container.as_str()));
    }

    /// This interface is not attached.
    pub(super) fn forget(&self, container: &str, interface: &str) {
        let known = (container.to_owned(), interface.to_owned());
        self.known.lock().remove(&known);
    }

    /// Takes the violations that callers have found.
    pub(crate) fn take_breaches(&self) -> Vec<Violation> {
        std::mem::take(&mut self.violations.lock())
    }

    pub(super) fn complain(&self, violation: Violation) {
        self.violations.lock().push(violation);
    }
}
