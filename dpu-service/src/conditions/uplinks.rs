//! A check of the uplinks with bounded waiting.

use std::time::Duration;

use offload_proto::ConditionReason;
use tokio::{
    sync::Mutex,
    task::JoinHandle,
    time::{Instant, timeout_at},
};

use super::fault::Fault;

/// How long callers wait, counted from the start of the check. A driver that resets its card can block the kernel's
/// answer for longer.
const LONGEST: Duration = Duration::from_secs(3);

/// The check in progress, if the last caller did not wait for its end.
#[derive(Debug, Default)]
pub(crate) struct UplinkLook(Mutex<Option<UnderWay>>);

#[derive(Debug)]
struct UnderWay {
    look: JoinHandle<Vec<Fault>>,
    /// When callers stop waiting.
    end: Instant,
}

impl UplinkLook {
    /// Returns the result of `look`, or a fault if the kernel does not answer in time. Only one check runs at a time:
    /// the next caller gets the result of a running one, and does not wait for one that is late.
    pub(crate) async fn faults(
        &self,
        look: impl Future<Output = Vec<Fault>> + Send + 'static,
    ) -> Vec<Fault> {
        let begin = || UnderWay { look: tokio::spawn(look), end: Instant::now() + LONGEST };
        // Locked during the wait: a second caller waits for the same check.
        let mut under_way = self.0.lock().await;
        let UnderWay { look, end } = under_way.get_or_insert_with(begin);
        match timeout_at(*end, look).await {
            Ok(found) => {
                *under_way = None;
                found.unwrap_or_else(|error| unreadable(&format!("the check was aborted: {error}")))
            }
            Err(_) => unreadable(&format!("the kernel has not answered for {LONGEST:?}")),
        }
    }
}

fn unreadable(why: &str) -> Vec<Fault> {
    let message = format!("cannot read the state of the uplinks: {why}");
    vec![Fault::of_dpu(ConditionReason::UplinksUnreadable, message)]
}

#[cfg(test)]
mod tests {
    use tokio::{sync::oneshot, task::yield_now};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn late_look_is_shown_and_not_waited_for() {
        let looks = UplinkLook::default();
        let (answer, answered) = oneshot::channel();
        let found = looks.faults(async { answered.await.unwrap_or_default() }).await;
        assert_eq!(found[0].reason, ConditionReason::UplinksUnreadable);
        let begun = Instant::now();
        let found = looks.faults(async { Vec::new() }).await;
        assert_eq!(found[0].reason, ConditionReason::UplinksUnreadable);
        assert_eq!(begun.elapsed(), Duration::ZERO);
        answer.send(Vec::new()).unwrap();
        yield_now().await;
        let second = async { unreadable("a second look") };
        assert_eq!(looks.faults(second).await, [], "the first look has ended");
        let third = looks.faults(async { unreadable("a third look") }).await;
        assert!(third[0].message.ends_with("a third look"));
    }

    #[tokio::test]
    async fn look_that_breaks_off_is_shown() {
        let found = UplinkLook::default().faults(async { panic!("broken") }).await;
        assert_eq!(found[0].reason, ConditionReason::UplinksUnreadable);
    }
}
