//! The ADDs that were refused in the last minutes, by what refused them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use offload_proto::ConditionReason;
use tokio::time::Instant;

use super::fault::Fault;
use crate::model::HostName;

/// How long a refusal keeps `AttachesServed` false unless an ADD of the same object succeeds.
pub const REMEMBERED: Duration = Duration::from_secs(300);

/// How many refusals of one object are counted.
const COUNTED: usize = 1000;

/// Refused and failed ADDs, by object, reason and host.
#[derive(Debug, Default)]
pub struct Refusals(Mutex<BTreeMap<Refused, Times>>);

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Refused {
    object: String,
    reason: ConditionReason,
    host: HostName,
}

#[derive(Debug, Default)]
struct Times {
    /// The latest refusal's sentence.
    message: String,
    /// The latest refusals, oldest first.
    at: VecDeque<Instant>,
}

impl Refusals {
    /// An ADD of `host` was refused for what `fault` tells.
    pub(crate) fn note_refused(&self, fault: Fault, host: &HostName) {
        let Fault { reason, object, message } = fault;
        let mut all = self.lock();
        let times = all.entry(Refused { object, reason, host: host.clone() }).or_default();
        times.message = message;
        if times.at.len() == COUNTED {
            times.at.pop_front();
        }
        times.at.push_back(Instant::now());
    }

    /// An ADD of `host` succeeded that needed these objects.
    pub(crate) fn note_served(&self, host: &HostName, objects: &[String]) {
        let mut all = self.lock();
        if !all.is_empty() {
            all.retain(|refused, _| refused.host != *host || !objects.contains(&refused.object));
        }
    }

    /// What they tell, one fault for each object and reason.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let mut all = self.lock();
        for times in all.values_mut() {
            while times.at.front().is_some_and(|at| at.elapsed() >= REMEMBERED) {
                times.at.pop_front();
            }
        }
        all.retain(|_, times| !times.at.is_empty());
        let mut by_object = BTreeMap::<(&str, ConditionReason), (usize, &str)>::new();
        for (refused, times) in &*all {
            let (number, message) = by_object.entry((&refused.object, refused.reason)).or_default();
            *number += times.at.len();
            *message = &times.message;
        }
        by_object.into_iter().map(fault).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Refused, Times>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fault(((object, reason), (number, message)): ((&str, ConditionReason), (usize, &str))) -> Fault {
    let adds = if number == 1 { "ADD" } else { "ADDs" };
    let message = format!("{message}: {number} {adds} refused in the last 5 minutes");
    Fault { reason, object: object.to_owned(), message }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const POOL: &str = "pool/default";

    fn host(name: &str) -> HostName {
        HostName(name.into())
    }

    fn refuse(refusals: &Refusals, on: &str) {
        let full = Fault::of_pool(ConditionReason::VfsExhausted, "default", "no free VF");
        refusals.note_refused(full, &host(on));
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_are_counted_for_five_minutes() {
        let refusals = Refusals::default();
        assert_eq!(refusals.faults(), []);
        refuse(&refusals, "a");
        advance(REMEMBERED / 2).await;
        refuse(&refusals, "a");
        refuse(&refusals, "b");
        let faults = refusals.faults();
        assert_eq!((faults.len(), &*faults[0].object), (1, POOL));
        assert!(faults[0].message.contains(": 3 ADDs "), "{faults:?}");
        advance(REMEMBERED / 2).await;
        assert!(refusals.faults()[0].message.contains(": 2 ADDs "));
        advance(REMEMBERED / 2).await;
        assert_eq!(refusals.faults(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn an_add_that_succeeds_clears_its_host_alone() {
        let refusals = Refusals::default();
        refuse(&refusals, "a");
        refuse(&refusals, "b");
        refusals.note_served(&host("a"), &["pool/other".into()]);
        assert!(refusals.faults()[0].message.contains(": 2 ADDs "));
        refusals.note_served(&host("a"), &[POOL.into()]);
        assert!(refusals.faults()[0].message.contains(": 1 ADD "));
        refusals.note_served(&host("b"), &[POOL.into()]);
        assert_eq!(refusals.faults(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn counted_refusals_are_bounded() {
        let refusals = Refusals::default();
        (0..COUNTED + 10).for_each(|_| refuse(&refusals, "a"));
        assert!(refusals.faults()[0].message.contains(&format!(": {COUNTED} ADDs ")));
    }
}
