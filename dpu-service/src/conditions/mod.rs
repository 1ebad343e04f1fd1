//! Conditions: how this DPU is, for people and programs.
//!
//! A condition is true, false or unknown. [`Fault`]s make it so: what is wrong, with a reason code and an object.
//! `condition_sources` finds them whenever someone asks. Only their turns are recorded, as events.
//!
//! | files | what they are |
//! | --- | --- |
//! | `fault` | one thing that is wrong |
//! | `tracker` | since when, and how long it must hold before a condition turns; pure |
//! | `refusals` | the ADDs that were refused in the last minutes |
//! | `offload` | whether cards handle the traffic of attachments |
//! | `uplinks` | a bounded look at the uplinks |
//!
//! What it owns: the tracker, the memory of refusals (in the engine, whose flows write it), and the latest look at the
//! cards, which is made once a minute because it lists all rules of all ports.
//!
//! What it locks: the tracker, for a look as a whole, across awaits, so that two looks are noted in the order in which they
//! were made. Below it each source takes the registry, or a lock of its own, and gives it back before the next one. No
//! source waits for a disk.
//!
//! Who runs concurrently: the watch, once a second; callers of `GetDpu`; scrapes. A flow of an attach takes only the lock
//! of the refusals, for one insertion or removal.

mod fault;
mod offload;
mod refusals;
mod tracker;
mod uplinks;

use tokio::sync::Mutex;

pub use fault::Fault;
pub(crate) use offload::{HandledTraffic, LatestLook};
pub use refusals::Refusals;
pub(crate) use tracker::Condition;
pub(crate) use uplinks::UplinkLook;

use tracker::{Moment, Tracker};

/// The conditions of this DPU.
#[derive(Debug)]
pub(crate) struct Conditions {
    tracker: Mutex<Tracker>,
    cards: LatestLook,
    uplinks: UplinkLook,
}

impl Conditions {
    /// All are true until a look finds something else.
    pub(crate) fn new() -> Self {
        let tracker = Tracker::new(Moment::now()).into();
        Self { tracker, cards: LatestLook::default(), uplinks: UplinkLook::default() }
    }

    /// Looks for faults. Returns the conditions after that: those that are not true, and one true one for each other type.
    /// Those that turn by it are reported. Where the driver knows no cards, `Offloaded` is left out.
    pub(crate) async fn look(
        &self,
        has_no_cards: bool,
        find: impl Future<Output = Vec<Fault>>,
        report: impl Fn(&Condition),
    ) -> Vec<Condition> {
        let mut tracker = self.tracker.lock().await;
        let turned = tracker.observe(find.await, Moment::now());
        turned.iter().for_each(report);
        tracker.conditions(has_no_cards)
    }

    /// Whether cards handle the traffic of attachments.
    pub(crate) const fn cards(&self) -> &LatestLook {
        &self.cards
    }

    /// How the uplinks are.
    pub(crate) const fn uplinks(&self) -> &UplinkLook {
        &self.uplinks
    }
}
