//! ADDs refused in the last minutes, by what refused them.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use offload_proto::{ConditionReason, form::seconds};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::fault::Fault;
use model::HostName;

/// How long a refusal keeps `AttachesServed` false unless an ADD of the same object succeeds.
const REMEMBERED: Duration = Duration::from_secs(300);

/// A successful ADD clears refusals only after this long without another one: some ADDs may fail while others succeed.
const QUIET: Duration = Duration::from_secs(20);

/// Refusals within this time are counted together, which bounds memory.
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
    message: String,
    /// Counts of refusals, oldest first.
    counts: VecDeque<Count>,
    /// Number of refusals since the last successful ADD.
    in_a_row: usize,
    /// Whether there were ever enough in a row to change the condition.
    is_shown: bool,
    /// Whether an ADD has succeeded since the last refusal.
    is_served: bool,
}

#[derive(Debug)]
struct Count {
    first: Instant,
    last: Instant,
    number: usize,
}

impl Times {
    fn note(&mut self, message: String, least: usize, now: Instant) {
        self.message = message;
        self.in_a_row = if self.is_served { 1 } else { self.in_a_row + 1 };
        self.is_shown |= self.in_a_row >= least;
        self.is_served = false;
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

    fn last(&self) -> Option<Instant> {
        self.counts.back().map(|count| count.last)
    }

    fn is_in_force(&self) -> bool {
        let is_quiet = |last: Instant| last.elapsed() >= QUIET;
        self.last().is_some_and(|last| !(self.is_served && is_quiet(last)))
    }

    fn number(&self) -> usize {
        self.counts.iter().map(|count| count.number).sum()
    }
}

impl Refusals {
    /// Counts a refused ADD of `host`. `fault` has reason, object and message.
    pub(crate) fn note_refused(&self, fault: Fault, host: &HostName) {
        let Fault { reason, object, message } = fault;
        let mut all = self.0.lock();
        let times = all.entry(Refused { object, reason, host: host.clone() }).or_default();
        times.note(message, reason.failures_in_a_row(), Instant::now());
        times.expire();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// An ADD of `host` with these objects succeeded on the DPU. Failures on the host stay: see
    /// [`Self::note_done_on_host`].
    pub(crate) fn note_served(&self, host: &HostName, objects: &[String]) {
        let is_over = |refused: &Refused| {
            !refused.reason.is_of_host()
                && refused.host == *host
                && objects.contains(&refused.object)
        };
        self.mark_served(is_over);
    }

    /// An ADD has also succeeded on the host.
    pub(crate) fn note_done_on_host(&self, host: &HostName) {
        self.mark_served(|refused| refused.reason.is_of_host() && refused.host == *host);
    }

    fn mark_served(&self, is_over: impl Fn(&Refused) -> bool) {
        for (refused, times) in &mut *self.0.lock() {
            times.is_served |= is_over(refused);
        }
    }

    /// One fault for each object and reason.
    pub(crate) fn faults(&self) -> Vec<Fault> {
        let mut all = self.0.lock();
        all.values_mut().for_each(Times::expire);
        all.retain(|_, times| times.is_in_force());
        let mut by_object = BTreeMap::<_, Vec<&Times>>::new();
        for (refused, times) in all.iter().filter(|(_, times)| times.is_shown) {
            by_object.entry((refused.object.as_str(), refused.reason)).or_default().push(times);
        }
        let fault = |((object, reason), times): ((&str, ConditionReason), Vec<&Times>)| {
            fault(object, reason, &times)
        };
        by_object.into_iter().filter_map(fault).collect()
    }
}

/// Summarises the refusals of one object: their number, the age of the last one, and its error, which may no longer
/// apply.
fn fault(object: &str, reason: ConditionReason, times: &[&Times]) -> Option<Fault> {
    let latest = times.iter().max_by_key(|times| times.last())?;
    let number: usize = times.iter().map(|times| times.number()).sum();
    let adds = if number == 1 { "ADD was" } else { "ADDs were" };
    let ago = seconds(latest.last()?.elapsed().as_secs());
    let message = format!(
        "{number} {adds} refused in the last 5 minutes, the last one {ago} ago; its error was: {}",
        latest.message
    );
    Some(Fault { reason, object: object.to_owned(), message })
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
        assert!(faults[0].message.starts_with("3 ADDs were "), "{faults:?}");
        assert!(faults[0].message.ends_with("; its error was: no free VF"), "{faults:?}");
        advance(REMEMBERED / 2).await;
        let message = &refusals.faults()[0].message;
        assert!(message.starts_with("2 ADDs were ") && message.contains(" 2m30s ago"), "{message}");
        advance(REMEMBERED / 2).await;
        assert_eq!(refusals.faults(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn an_add_that_succeeds_clears_its_host_alone() {
        let refusals = Refusals::default();
        refuse(&refusals, "a");
        refuse(&refusals, "b");
        refusals.note_served(&host("a"), &[POOL.into()]);
        assert!(refusals.faults()[0].message.starts_with("2 ADDs "), "others may be refused still");
        advance(QUIET).await;
        assert!(refusals.faults()[0].message.starts_with("1 ADD was "));
        refusals.note_served(&host("b"), &["pool/other".into()]);
        assert_eq!(refusals.faults().len(), 1);
        refusals.note_served(&host("b"), &[POOL.into()]);
        assert_eq!(refusals.faults(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn next_refusal_takes_back_that_an_add_succeeded() {
        let refusals = Refusals::default();
        refuse(&refusals, "a");
        refusals.note_served(&host("a"), &[POOL.into()]);
        advance(QUIET / 2).await;
        refuse(&refusals, "a");
        advance(QUIET).await;
        assert!(refusals.faults()[0].message.starts_with("2 ADDs "));
    }

    #[tokio::test(start_paused = true)]
    async fn failures_on_a_host_end_with_an_attach() {
        let refusals = Refusals::default();
        let fault = Fault::of_host(ConditionReason::MoveFailed, &host("a"), "no such device");
        let object = fault.object.clone();
        refusals.note_refused(fault, &host("a"));
        advance(QUIET).await;
        refusals.note_served(&host("a"), &[object]);
        refusals.note_done_on_host(&host("b"));
        assert_eq!(refusals.faults().len(), 1);
        refusals.note_done_on_host(&host("a"));
        assert_eq!(refusals.faults(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn passing_failures_count_three_in_a_row() {
        let refusals = Refusals::default();
        let fail = |number| {
            for _ in 0..number {
                let reason = ConditionReason::Overloaded;
                refusals.note_refused(Fault::of_host(reason, &host("a"), "files"), &host("a"));
            }
        };
        fail(2);
        refusals.note_done_on_host(&host("a"));
        fail(2);
        assert_eq!(refusals.faults(), []);
        fail(1);
        assert_eq!(refusals.faults()[0].reason, ConditionReason::Overloaded);
        refusals.note_done_on_host(&host("a"));
        fail(1);
        assert_eq!(refusals.faults().len(), 1, "it goes on");
        refusals.note_done_on_host(&host("a"));
        advance(QUIET).await;
        assert_eq!(refusals.faults(), []);
    }

    #[tokio::test(start_paused = true)]
    async fn many_refusals_take_little_memory() {
        let refusals = Refusals::default();
        for _ in 0..600 {
            (0..10).for_each(|_| refuse(&refusals, "a"));
            advance(Duration::from_secs(1)).await;
        }
        let number = refusals.0.lock().values().next().unwrap().number();
        assert!((3000..=3300).contains(&number), "{number}");
        assert!(refusals.0.lock().values().next().unwrap().counts.len() <= 11);
    }
}
