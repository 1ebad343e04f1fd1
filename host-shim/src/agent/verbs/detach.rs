//! DEL.

use std::time::Instant;

use futures::future::join_all;

use super::{
    delegated,
    doors::Doors,
    led::{self, LockedKeys},
    release::{Left, Renewal, leave_at_once, settle},
};
use crate::{
    agent::{dpu::detach_request, kill_points::KillPoint},
    protocol::DelRequest,
};

/// Serves a DEL of an attachment and its group members. Unfinished work is recorded and finished later without the
/// runtime, so that a retry is never needed.
///
/// Once this returns, the pod has none of its available VFs, and the DPU, if reachable, has unprogrammed them. Their
/// verification follows after the answer, under the keys' locks; other pods may have them only then.
pub(in crate::agent) async fn detach(doors: &Doors, request: DelRequest) {
    let keys = led::lock(doors, &request.key).await;
    let deadline = Instant::now() + doors.timeouts.vf_return();
    let patience = || deadline.saturating_duration_since(Instant::now());
    if doors.delegates.by_key(&request.key).is_some() {
        return delegated::release(doors, &request.key, patience()).await;
    }
    // They may be stacked on any of the others.
    delegated::release_led_by(doors, &request.key, patience()).await;
    let patience = patience();
    let led = doors.vfs.records().led_by(&request.key);
    let led = led.into_iter().map(|record| leave_at_once(doors, record, patience));
    let (led, lead) = (join_all(led), doors.vfs.records().by_key(&request.key));
    let left = match lead {
        Some(lead) => {
            let (lead, mut left) = tokio::join!(leave_at_once(doors, lead, patience), led);
            left.push(lead);
            left
        }
        None => tokio::join!(detach_unrecorded(doors, &request), led).1,
    };
    settle_behind_the_answer(doors, left, keys);
}

fn settle_behind_the_answer(doors: &Doors, left: Vec<Left>, keys: LockedKeys) {
    let doors = doors.clone();
    let tasks = doors.tasks.clone();
    tasks.spawn(traces::afterwards(async move {
        join_all(left.into_iter().map(|one| settle(&doors, one, Renewal::Later))).await;
        drop(keys);
    }));
}

/// Handles a DEL without a record: perhaps records were lost, and the pod has its VF. The DPU may hold an attachment of
/// an unanswered call. If the DPU does not answer, the call and the inventory are repeated: it may have served the call
/// and wait for the VF.
async fn detach_unrecorded(doors: &Doors, request: &DelRequest) {
    let fetched = doors.vfs.abroad().fetch_from_pod(request).await.unwrap_or_else(|failure| {
        tracing::warn!(key = %request.key, %failure, "cannot move the VF of an unknown attachment back");
        false
    });
    KillPoint::DetachUnrecorded.pass();
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
    async fn unanswered_del_without_record_is_repeated() {
        let (doors, _folder) = doors();
        let key = record("a", "c").key();
        detach(&doors, DelRequest { key: key.clone(), netns: String::new() }).await;
        assert_eq!(doors.dpu.calls().pending_detach_keys(), [key]);
    }
}
