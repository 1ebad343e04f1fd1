//! DEL.

use std::time::Instant;

use futures::future::join_all;

use super::{
    delegated,
    doors::Doors,
    led,
    release::{Renewal, release},
};
use crate::{
    agent::{dpu::detach_request, milestones::Milestone},
    protocol::DelRequest,
};

/// Serves a DEL, of an attachment and of those that it leads. What can't be finished now is recorded, and finished
/// later without the runtime; so there is nothing that a retry could help with.
pub(in crate::agent) async fn detach(doors: &Doors, request: DelRequest) {
    let _keys = led::lock(doors, &request.key).await;
    let deadline = Instant::now() + doors.timeouts.vf_return();
    let patience = || deadline.saturating_duration_since(Instant::now());
    if doors.delegates.by_key(&request.key).is_some() {
        return delegated::release(doors, &request.key, patience()).await;
    }
    // They may be stacked on any of the others.
    delegated::release_led_by(doors, &request.key, patience()).await;
    let patience = patience();
    let led = doors.vfs.records().led_by(&request.key);
    let led = led.into_iter().map(|record| release(doors, record, patience, Renewal::Later));
    let (led, lead) = (join_all(led), doors.vfs.records().by_key(&request.key));
    match lead {
        Some(lead) => {
            tokio::join!(release(doors, lead, patience, Renewal::Later), led);
        }
        None => {
            tokio::join!(detach_unrecorded(doors, &request), led);
        }
    }
}

/// There is no record of what to give back: perhaps records were lost, and the pod has its VF
/// all the same. The DPU may have something too, as of an attach whose answer never came. If it
/// does not answer, it is told again, and the inventory after it: it may have done what it was
/// told, and wait for the VF.
async fn detach_unrecorded(doors: &Doors, request: &DelRequest) {
    let fetched = doors.vfs.abroad().fetch_from_pod(request).await.unwrap_or_else(|failure| {
        tracing::warn!(key = %request.key, "its VF can't be brought home: {failure}");
        false
    });
    Milestone::DetachUnrecorded.pass();
    let detach = detach_request(Some(request.key.clone().into()), String::new(), fetched);
    match doors.dpu.calls().detach(detach.clone()).await {
        Ok(()) => doors.dpu.reports().inventory_wanted(),
        Err(failure) => doors.dpu.calls().detach_later(detach, &failure),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{verbs::tests::doors, vfs::record};

    #[tokio::test]
    async fn a_del_without_a_record_is_told_again_if_nobody_answers() {
        let (doors, _folder) = doors();
        let key = record("a", "c").key();
        detach(&doors, DelRequest { key: key.clone(), netns: String::new() }).await;
        assert_eq!(doors.dpu.calls().undelivered_keys(), [key]);
    }
}
