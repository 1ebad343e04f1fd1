//! Releases an attachment, for a DEL, a GC, a failed ADD, the keeper or the DPU.

use std::{
    pin::Pin,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;
use offload_proto::{
    Failure,
    v1::{DetachRequest, Release},
};
use tokio::sync::Notify;

use super::{
    delegated,
    doors::Doors,
    led::{self, LockedKeys},
    phases::{HOME, RPC, SETTLE, TOTAL},
};
use crate::{
    agent::{
        dpu::{detach_request, detach_request_by_key},
        kill_points::KillPoint,
        vfs::{Condition, Phase, Record},
    },
    protocol::Key,
};

/// When a returned VF that differs from its baseline is reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Renewal {
    /// Before the release returns.
    Now,
    /// Soon; no caller waits for the reset.
    Later,
}

/// Gives an attachment back, as far as it goes now. Waits up to `patience` for other plugins' programs that an earlier
/// agent has called, and for a VF whose pod's namespace has ended. The caller holds the key's lock.
pub(in crate::agent) async fn release(
    doors: &Doors,
    record: Arc<Record>,
    patience: Duration,
    renewal: Renewal,
) {
    let left = leave(doors, record, patience, &Arc::default()).await;
    settle(doors, left, renewal).await;
}

/// Releases an attachment whose pod's network namespace has ended. The DPU's events name that as the cause.
pub(in crate::agent) async fn release_without_del(
    doors: &Doors,
    record: Arc<Record>,
    renewal: Renewal,
) {
    let release_cause = "its network namespace ended without a DEL".to_owned();
    let record = Arc::new(Record { release_cause, ..Record::clone(&record) });
    release(doors, record, Duration::ZERO, renewal).await;
}

/// An attachment that has left its pod, as far as it could, and is still to be settled.
#[must_use = "the DPU holds it until it is settled"]
pub(super) struct Left {
    record: Arc<Record>,
    /// Whether its VF is out of the pod.
    out: Result<(), Failure>,
}

/// Gets the VF of an attachment that is given back out of its pod. `moving` is notified when it is its turn.
async fn leave(
    doors: &Doors,
    record: Arc<Record>,
    patience: Duration,
    moving: &Arc<Notify>,
) -> Left {
    let deadline = Instant::now() + patience;
    // They may be stacked on it.
    delegated::release_led_by(doors, &record.key(), patience).await;
    let patience = deadline.saturating_duration_since(Instant::now());
    let leaving = doors.vfs.homecoming().bring_out(record, patience, moving);
    let (record, out) = doors.phases.detach.time(HOME, leaving).await;
    // Without a turn for the move, a task that waits for it would wait forever.
    moving.notify_one();
    Left { record, out }
}

/// Releases an attachment for a caller that waits; the DPU unprograms the port at the same time. The pod then has no VF
/// and no traffic passes. The DPU is called when the VF's move gets its turn. Otherwise an ADD that overtakes waiting
/// moves would find the DPU busy with all of them.
pub(super) async fn leave_at_once(doors: &Doors, record: Arc<Record>, patience: Duration) -> Left {
    let moving = Arc::new(Notify::new());
    let leaving = leave(doors, Arc::clone(&record), patience, &moving);
    let telling = async {
        moving.notified().await;
        tell_leaving(doors, &record).await;
    };
    let both = async { tokio::join!(leaving, telling).0 };
    doors.phases.detach.time(TOTAL, both).await
}

/// Has the DPU unprogram an attachment. What the DPU has programmed for a guess is not known.
async fn tell_leaving(doors: &Doors, record: &Record) {
    if record.is_guess {
        return;
    }
    let leaving = detach_request(record.attachment.key.clone(), record.id().to_owned(), false);
    let telling = doors.dpu.calls().detach(leaving);
    if let Err(failure) = doors.phases.detach.time(RPC, telling).await {
        tracing::debug!(attachment = record.id(), %failure, "the DPU unprograms the port later");
    }
}

/// The other half: the VF is looked at, and the DPU gets back what it holds for it. Behind a DEL's answer, for the pod is
/// gone, and it takes a look into all network namespaces.
pub(super) async fn settle(doors: &Doors, left: Left, renewal: Renewal) {
    let Left { record, out } = left;
    let settling = async {
        let home = doors.vfs.homecoming().look_at(&record, out).await;
        tell_released(doors, &record, matches!(home, Ok(Condition::Clean))).await;
        home
    };
    if let Ok(Condition::Different(what)) = doors.phases.detach.time(SETTLE, settling).await {
        renew(doors, record, &what, renewal).await;
    }
}

/// Tells the DPU that an attachment is given back, and whether nothing of it is left here: its VF is home and
/// `is_clean`, and no interface has an address that is leased with it.
async fn tell_released(doors: &Doors, record: &Record, is_clean: bool) {
    let is_returned = is_clean && !delegated::holds_leases(doors, &record.key()).await;
    if is_returned {
        doors.vfs.homecoming().note_returned(record);
    }
    let told = doors.dpu.calls().detach(giving_back(record, is_returned)).await;
    if record.is_guess && told.is_ok() {
        // The DPU may have given another VF, which was never touched: of that only the inventory tells.
        doors.dpu.reports().inventory_wanted();
    }
    match told {
        Ok(()) if is_returned => {
            KillPoint::ReleaseReported.pass();
            forget(doors, record);
        }
        Ok(()) => {}
        // The record stays in phase *releasing*: that is what tells the keeper to try again.
        Err(failure) => {
            tracing::info!(attachment = record.id(), %failure, "the release is reported to the DPU later");
        }
    }
}

/// Removes a record of which nothing is left. For a speculative attach the DPU also learns that the offer is declined.
pub(super) fn forget(doors: &Doors, record: &Record) {
    doors.vfs.homecoming().forget(record);
    doors.dpu.reports().report_declined(record.offer.as_slice());
}

/// Builds the Detach of a record. For a speculative attach the agent does not know what the DPU made, perhaps with
/// another VF: the DPU releases whatever it has. Whether the VF is back is stated separately; the inventory reports
/// where another VF is.
fn giving_back(record: &Record, is_returned: bool) -> DetachRequest {
    if record.is_guess {
        let returned = is_returned.then(|| record.device().to_string());
        let returned_device = returned.unwrap_or_default();
        return DetachRequest { returned_device, ..detach_request_by_key(&record.key()) };
    }
    let cause = record.release_cause.clone();
    let id = record.id().to_owned();
    DetachRequest { cause, ..detach_request(record.attachment.key.clone(), id, is_returned) }
}

/// Resets a returned VF that differs from its baseline, at once or when its key is free. Waits for the backoff of the
/// last attempt.
async fn renew(doors: &Doors, record: Arc<Record>, what: &str, renewal: Renewal) {
    if !doors.vfs.homecoming().is_renewal_due(&record) {
        return;
    }
    match renewal {
        Renewal::Later => renew_later(doors, &record),
        Renewal::Now => {
            let (record, home) = doors.vfs.homecoming().renew(record, what).await;
            if matches!(home, Ok(Condition::Clean)) {
                tell_released(doors, &record, true).await;
            }
        }
    }
}

/// Marks the VF as being reset now, although its turn may come much later: passes and inventories leave it alone.
fn renew_later(doors: &Doors, record: &Record) {
    let under_way = doors.vfs.homecoming().announce_renewal(record);
    let (doors, id, key) = (doors.clone(), record.id().to_owned(), record.key());
    doors.tasks.clone().spawn(async move {
        release_again(&doors, &id, &key).await;
        drop(under_way);
    });
}

/// Boxed, for a release may begin another, and a future can't hold itself.
fn release_again<'a>(
    doors: &'a Doors,
    id: &'a str,
    key: &'a Key,
) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>> {
    Box::pin(async move {
        let _key = doors.vfs.keys().lock(key).await;
        let record = doors.vfs.records().by_id(id);
        if let Some(record) = record.filter(|record| record.phase == Phase::Releasing) {
            release(doors, record, Duration::ZERO, Renewal::Now).await;
        }
    })
}

/// Releases what an unanswered ADD made, unless a repeat of the ADD waits and takes it over. The caller holds the key's
/// lock.
pub(in crate::agent) async fn take_back_unanswered(doors: &Doors, key: &Key) {
    let Some(record) = doors.vfs.records().by_key(key) else { return };
    // A wrong guess that did not come home is releasing already.
    let is_unanswered = record.phase == Phase::Attaching || record.is_guess;
    if is_unanswered && !doors.vfs.keys().is_add_waiting(key) {
        tracing::info!(attachment = record.id(), %key, "releasing an attachment whose ADD was not answered");
        release(doors, record, Duration::ZERO, Renewal::Later).await;
    }
}

/// Releases what several unanswered ADDs made. The caller holds the keys' locks.
pub(super) async fn take_back_all(doors: &Doors, keys: &LockedKeys) {
    for key in keys.names() {
        take_back_unanswered(doors, key).await;
    }
}

/// Gives back what the DPU wants back: an operator took the attachment away from its pod, or the DPU gave
/// it up. What it leads goes with it, as by a DEL: the runtime knows of nothing else to give it back by.
pub(in crate::agent) async fn release_on_request(doors: &Doors, wanted: Release) {
    let told: Key = wanted.key.clone().unwrap_or_default().into();
    // The id is the fence: the key may have a newer attachment. The record is looked up by id, and again with the key
    // locked.
    let recorded = doors.vfs.records().by_id(&wanted.attachment_id);
    let key = recorded.map_or(told, |record| record.key());
    let _keys = led::lock(doors, &key).await;
    match doors.vfs.records().by_id(&wanted.attachment_id) {
        Some(record) => {
            tracing::info!(
                attachment = record.id(),
                reason = wanted.reason,
                "the DPU requests the release of an attachment"
            );
            let patience = doors.timeouts.vf_return();
            delegated::release_led_by(doors, &key, patience).await;
            let all = doors.vfs.records().led_by(&key).into_iter().chain([record]);
            join_all(all.map(|one| release(doors, one, patience, Renewal::Later))).await;
        }
        None => answer_unknown(doors, wanted).await,
    }
}

async fn answer_unknown(doors: &Doors, wanted: Release) {
    let detach = detach_request(wanted.key, wanted.attachment_id, false);
    if let Err(failure) = doors.dpu.calls().detach(detach).await {
        tracing::info!(%failure, "a release that the DPU requested is finished later");
    }
    doors.dpu.reports().inventory_wanted();
}

#[cfg(test)]
mod tests {
    use test_clock::wait_until_async;

    use super::*;
    use crate::agent::{
        dpu::{
            Dpu,
            tests::{begin_first_attempt, config},
        },
        verbs::tests::doors,
        vfs::{record, tests::keep},
    };

    /// Calls to the DPU wait an hour for a session.
    #[tokio::test]
    async fn vf_is_restored_before_the_dpu_answers() {
        let (mut doors, _folder) = doors();
        let mut config = Arc::into_inner(config()).unwrap();
        config.timeouts.reconnect_ms = 3_600_000;
        let dpu = Dpu::new(Arc::new(config), "boot".into(), Arc::clone(&doors.vfs));
        begin_first_attempt(&dpu);
        doors.dpu = Arc::new(dpu);
        let mut record = record("a", "c");
        record.attachment.mac = "02:00:00:00:00:01".into();
        // It has no link that the kernel would have to have.
        record.original.is_handed_over = true;
        keep(doors.vfs.records(), record.clone());
        let releasing = {
            let doors = doors.clone();
            let release = async move {
                release_without_del(&doors, Arc::new(record), Renewal::Later).await;
            };
            tokio::spawn(release)
        };
        let kept = || doors.vfs.records().by_id("a").unwrap();
        wait_until_async("the VF to be restored", async || kept().is_returned).await;
        assert_eq!(giving_back(&kept(), true).cause, kept().release_cause);
        assert!(!kept().release_cause.is_empty(), "the release that is delivered later has it");
        releasing.abort();
    }
}
