//! The host's half of an ADD: VFs that the DPU chose are taken into their pod, or given back unused.

use std::{sync::Arc, time::Duration};

use futures::future::join_all;
use offload_proto::Failure;
use tokio::time::{sleep_until, timeout};

use super::{
    doors::Doors,
    release::{Renewal, release},
};
use crate::agent::{
    caller::Caller,
    dpu::detach_request,
    vfs::{IntakeFailure, Phase, PodNetns, TakenIn, Wanted},
};

/// Records the attachments and moves their VFs into the pod, all or none. Their carriers are waited for together.
pub(super) async fn take_in_all(
    doors: &Doors,
    wanted: Vec<Wanted>,
    netns: PodNetns,
    caller: &Arc<Caller>,
) -> Result<Vec<TakenIn>, Failure> {
    for one in &wanted {
        settle_earlier_holder(doors, one).await;
    }
    let is_awaited = {
        let caller = Arc::clone(caller);
        move || caller.is_waiting()
    };
    let entered = doors.vfs.intake().enter(wanted.clone(), netns, is_awaited).await;
    let arrived = match entered {
        Ok(arrived) => arrived,
        Err(IntakeFailure::Unmoved { failure }) => return Err(failure),
        Err(IntakeFailure::Unrecorded { failure, found }) => {
            // A guess of it is taken back with all that the DPU has made of its key.
            let is_unrecorded =
                |one: &Wanted| doors.vfs.records().guess_of(&one.request.key).is_none();
            for one in wanted.into_iter().filter(is_unrecorded) {
                let found_vf = found.contains(&one.device());
                give_back_unused(doors, &one, found_vf, caller).await;
            }
            return Err(failure);
        }
    };
    let settle = |(wanted, one): (Wanted, _)| async move {
        let port = await_port(doors, &wanted, caller);
        doors.vfs.intake().settle(one, port).await
    };
    join_all(wanted.into_iter().zip(arrived).map(settle)).await.into_iter().collect()
}

/// Waits for the port while the caller is there: the pod's namespace is open during the wait.
async fn await_port(doors: &Doors, wanted: &Wanted, caller: &Caller) {
    tokio::select! {
        () = doors.dpu.calls().await_port(&wanted.attachment) => {}
        _ = caller.hangup() => {}
        () = sleep_until(caller.deadline().into()) => {}
    }
}

/// Finishes a record of the VF that is being given back, and of which only the DPU's last word is
/// missing: the DPU has given the VF out again, so it has heard that it is back.
///
/// This is the one place where who holds a key waits for another's: see the page of
/// [`vfs`](crate::agent::vfs) for why that ends. It comes before the number of VFs is kept from changing:
/// the other one may be about to wait for that, behind a change that waits for this attach.
async fn settle_earlier_holder(doors: &Doors, wanted: &Wanted) {
    if doors.vfs.records().by_id(&wanted.attachment.id).is_some() {
        return;
    }
    let Some(earlier) = doors.vfs.records().by_device(&wanted.device()) else { return };
    if earlier.phase != Phase::Releasing {
        return;
    }
    let key = earlier.key();
    let locked = timeout(doors.timeouts.vf_return(), doors.vfs.keys().lock(&key)).await;
    if let (Ok(_key), Some(earlier)) = (locked, doors.vfs.records().by_id(earlier.id())) {
        release(doors, earlier, Duration::ZERO, Renewal::Now).await;
    }
}

/// Gives back an attachment whose VF was not touched, and which has no record. A VF that was
/// not found either is the DPU's again when the inventory shows it.
async fn give_back_unused(doors: &Doors, unused: &Wanted, found_vf: bool, caller: &Caller) {
    let Wanted { request, attachment } = unused;
    if !doors.vfs.intake().drop_untouched(attachment) {
        return;
    }
    let detach = detach_request(attachment.key.clone(), attachment.id.clone(), found_vf);
    if caller.is_waiting().is_err() && doors.vfs.keys().is_add_waiting(&request.key) {
        return doors.dpu.calls().leave_to_repeat(detach);
    }
    if let Err(failure) = doors.dpu.calls().detach(detach.clone()).await {
        doors.dpu.calls().detach_later(detach, &failure);
    }
    doors.dpu.reports().inventory_wanted();
}

#[cfg(test)]
mod tests {
    use offload_proto::Reason;
    use test_clock::within;
    use tokio::{sync::oneshot, task::yield_now};

    use super::*;
    use crate::agent::{
        caller::tests::caller,
        verbs::tests::doors,
        vfs::{
            Record, record,
            tests::{attach_of, change_of_numbers, keep},
        },
    };

    /// The first attach waits for the key of its VF's holder, which is about to claim a VF. Between both, the number of
    /// VFs changes.
    #[tokio::test]
    async fn attach_waiting_for_a_holder_blocks_no_other() {
        let (doors, _folder) = doors();
        let earlier = Arc::new(Record { phase: Phase::Releasing, ..record("old", "holder") });
        keep(doors.vfs.records(), Record::clone(&earlier));
        let wanted = vec![attach_of("waiting", &earlier)];
        let netns = earlier.netns.clone();
        let (caller, _plugin) = caller(Duration::from_secs(60));
        let caller = Arc::new(caller);
        let key_of_holder = doors.vfs.keys().lock(&earlier.key()).await;

        let (held, other) = (Arc::clone(&doors.vfs), Arc::clone(&doors.vfs));
        let (all_wait, wait) = oneshot::channel::<()>();
        let holder = tokio::spawn(async move {
            wait.await.unwrap();
            let _vfs_stay = held.numbers().vfs_stay().await;
            drop(key_of_holder);
        });
        let taking = tokio::spawn({
            let doors = doors.clone();
            async move { take_in_all(&doors, wanted, netns, &caller).await }
        });
        yield_now().await;
        let change = tokio::spawn(async move { change_of_numbers(&other).await });
        yield_now().await;
        all_wait.send(()).unwrap();

        let limit = Duration::from_secs(10);
        within(limit, holder).await.expect("the holder waits for ever").unwrap();
        within(limit, change).await.expect("the change waits for ever").unwrap();
        let taken = within(limit, taking).await.expect("the attach waits for ever").unwrap();
        assert_eq!(taken.err().unwrap().reason, Reason::VfNotFree);
        assert_eq!(doors.dpu.calls().pending_detach_keys(), [record("new", "waiting").key()]);
    }
}
