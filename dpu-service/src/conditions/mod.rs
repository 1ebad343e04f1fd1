//! Conditions: the state of this DPU, for people and programs.
//!
//! A condition is true, false or unknown. [`Fault`]s decide that, each with a reason code and an object.
//! `condition_sources` collects them on every request. Only changes of a condition are recorded, as events.
//!
//! | files | contents |
//! | --- | --- |
//! | `fault` | a fault of one object |
//! | `tracker` | since when a fault holds, and when its condition changes; pure |
//! | `refusals` | ADDs refused in the last minutes |
//! | `offload` | whether cards handle the attachments' traffic |
//! | `uplinks` | a bounded check of the uplinks |
//!
//! Owns: the tracker, and the latest check of the cards, made once a minute because it lists all rules of all ports. The
//! engine owns the recent refusals, which its flows write.
//!
//! Locks: the tracker for a whole look, across awaits, so that looks are stored in the order in which they were made.
//! Below it each source locks the registry or its own state, one after the other. No source waits for a disk.
//!
//! Concurrently: the watch, once a second; callers of `GetDpu`; scrapes. Attach flows lock only the refusals, for one
//! insertion or removal.

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

#[derive(Debug)]
pub(crate) struct Conditions {
    tracker: Mutex<Tracker>,
    /// Whether cards handle the attachments' traffic.
    pub(crate) cards: LatestLook,
    pub(crate) uplinks: UplinkLook,
}

impl Conditions {
    /// All conditions are true until a look finds a fault.
    pub(crate) fn new() -> Self {
        let tracker = Tracker::new(Moment::now()).into();
        Self { tracker, cards: LatestLook::default(), uplinks: UplinkLook::default() }
    }

    /// Collects faults and returns the conditions: all that are not true, and one true condition for each other type.
    /// Calls `report` for each condition that changed. `has_no_cards` leaves out `Offloaded`.
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
}
