//! Conditions: how this DPU is, for people and programs.
//!
//! A condition is true, false or unknown. [`Fault`]s make it so: what is wrong, with a reason code and an object. They are
//! computed whenever someone asks, from what the other rooms know; nothing of them is recorded.
//!
//! | files | what they are |
//! | --- | --- |
//! | `fault` | one thing that is wrong |
//! | `gather` | all that is wrong now |
//! | `tracker` | since when, and how long it must hold before a condition turns; pure |
//! | `refusals` | the ADDs that were refused in the last minutes |
//! | `offload` | whether cards handle the traffic of attachments |
//!
//! What it owns: the tracker, the memory of refusals (in the engine, whose flows write it), and the latest look at the
//! cards, which is made once a minute because it lists all rules of all ports.
//!
//! What it locks: the tracker, for a look as a whole, across awaits, so that two looks are noted in the order in which they
//! were made. Below it each source takes the registry, or a lock of its own, and gives it back before the next one.
//!
//! Who runs concurrently: the watch, once a second; callers of `GetDpu`; scrapes. A flow of an attach takes only the lock
//! of the refusals, for one insertion or removal.

mod fault;
mod gather;
mod offload;
mod refusals;
mod tracker;

use std::{sync::Arc, time::Duration};

use offload_proto::v1::ConditionStatus;
use tokio::time::{MissedTickBehavior, interval};

pub use fault::Fault;
pub(crate) use gather::faults;
pub use refusals::{REMEMBERED, Refusals};
pub(crate) use tracker::Condition;

use crate::{api::Shared, events::EventKind};
use tracker::{Moment, Tracker};

/// How often the conditions are looked at if no one asks.
const PERIOD: Duration = Duration::from_secs(1);

/// The conditions of this DPU.
#[derive(Debug)]
pub(crate) struct Conditions {
    tracker: tokio::sync::Mutex<Tracker>,
    offload: offload::LatestLook,
}

impl Conditions {
    /// All are true until a look finds something else.
    pub(crate) fn new() -> Self {
        Self {
            tracker: Tracker::new(Moment::now()).into(),
            offload: offload::LatestLook::default(),
        }
    }
}

impl Shared {
    /// The conditions as they are now: those that are not true, and one true one for each other type.
    pub(crate) async fn conditions(&self) -> Vec<Condition> {
        let mut tracker = self.conditions.tracker.lock().await;
        let found = faults(self).await;
        let turned = tracker.observe(found, Moment::now());
        turned.iter().for_each(|condition| report(self, condition));
        tracker.conditions(self.engine.programmer().cards().is_empty())
    }
}

/// Looks at the conditions once a second, so that each turn is reported when it happens. Never returns.
pub(crate) async fn watch(shared: Arc<Shared>) {
    tokio::spawn(offload::watch(Arc::clone(&shared)));
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.conditions().await;
    }
}

/// Records that a condition has turned.
fn report(shared: &Shared, condition: &Condition) {
    let Condition { kind, status, reason, object, message, .. } = condition;
    let event = match status {
        ConditionStatus::True => EventKind::ConditionTrue,
        ConditionStatus::Unknown | ConditionStatus::Unspecified => EventKind::ConditionUnknown,
        ConditionStatus::False => EventKind::ConditionFalse,
    };
    let turned = format!("{} is {}", kind.name(), status.name());
    let turned = match message.as_str() {
        "" => turned,
        message => format!("{turned}: {message}"),
    };
    shared.engine.events().record_reason(event, reason, object, turned);
}
