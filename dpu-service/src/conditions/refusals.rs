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

/// Refusals that come within so long are counted together, so that many take no more memory than few.
const TOGETHER: Duration = Duration::from_secs(30);

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
    /// When the first and the last of some refusals came, and how many they are. Oldest first.
    counts: VecDeque<Count>,
}

#[derive(Debug)]
struct Count {
    first: Instant,
    last: Instant,
    number: usize,
}

impl Times {
    fn note(&mut self, message: String, now: Instant) {
        self.message = message;
        match self.counts.back_mut() {
            Some(count) if now - count.first < TOGETHER => {
                count.last = now;
                count.number += 1;
            }
            _ => self.counts.push_back(Count { first: now, last: now, number: 1 }),
        }
    }

    fn expire(&mut self) {
        while self.counts.front().is_some_and(|count| count.last.elapsed() >= REMEMBERED) {
            self.counts.pop_front();
        }
    }

    fn number(&self) -> usize {
        self.counts.iter().map(|count| count.number).sum()
    }
}

impl Refusals {
    /// An ADD of `host` was refused for what `fault` tells.
    pub(crate) fn note_refused(&self, fault: Fault, host: &HostName) {
        let Fault { reason, object, message } = fault;
        let mut all = self.lock();
        let times = all.entry(Refused { object, reason, host: host.clone() }).or_default();
        times.note(message, Instant::now());
        times.expire();
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
        all.values_mut().for_each(Times::expire);
        all.retain(|_, times| !times.counts.is_empty());
        let mut by_object = BTreeMap::<(&str, ConditionReason), (usize, &str)>::new();
        for (refused, times) in &*all {
            let (number, message) = by_object.entry((&refused.object, refused.reason)).or_default();
            *number += times.number();
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
    async fn many_refusals_take_little_memory() {
        let refusals = Refusals::default();
        for _ in 0..600 {
            (0..10).for_each(|_| refuse(&refusals, "a"));
            advance(Duration::from_secs(1)).await;
        }
        let number = refusals.lock().values().next().unwrap().number();
        assert!((3000..=3300).contains(&number), "{number}");
        assert!(refusals.lock().values().next().unwrap().counts.len() <= 11);
    }
}
