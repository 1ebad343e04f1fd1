//! ADD: ask the DPU, take its VF in, answer.
//!
//! Several interfaces of one pod go the same way together: all of them are answered, or none is left.
//!
//! An ADD is done when its answer was written to a caller that is there. Until then its record says that the ADD was
//! not answered, and a failure, the caller's end or deadline, or the agent's end undoes it. What an earlier ADD
//! answered stays.
//!
//! The order of what becomes known, and to whom:
//!
//! 1. the DPU learns from every hello that the ADD is in progress
//!    ([`Reports::enter_pending`](super::super::dpu::Dpu::reports));
//! 2. at the same time - the DPU gets the request, journals the attachment and answers; - the speculative attach is
//!    recorded, and then its VF moved into the pod, down;
//! 3. the record in phase *attaching* is on the disk: before the VF is configured, or touched without a speculative
//!    move;
//! 4. the VF is in the pod and configured;
//! 5. the record in phase *live* is on the disk: before the answer;
//! 6. the runtime gets the answer.
//!
//! The speculative attach comes first: the kernel's move is most of an ADD's time, and needs nothing of the answer.
//!
//! An agent that dies after any of these finds at its next start what it must undo, and undoes nothing that was
//! answered.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use netlink::NetnsId;
use offload_proto::{Failure, Reason, v1};
use tokio::time::sleep;
use traces::Instrument;

use super::{
    asked::{Named, check_form, name_and_lock},
    check::inspect,
    default_routes::with_default_routes,
    delegated,
    destination::Destination,
    doors::Doors,
    guess::{Taken, count_right, guesses, take_all_home},
    phases::AttachTimes,
    release::{Renewal, release, take_back_all},
    take_in::take_in_all,
};
use crate::{
    agent::{
        caller::{Answer, Caller},
        clock::microseconds,
        dpu::{Established, SessionState, detach_request_by_key},
        kill_points::KillPoint,
        vfs::{MovedAhead, Phase, PodNetns, Record, TakenIn, Wanted},
    },
    mover::open_netns,
    protocol::{AddRequest, Key},
};

/// How often the DPU is asked again that may answer something else soon.
const AGAIN: Duration = Duration::from_millis(50);
/// A requested inventory is sent within a second, or later on a busy machine. Waiting without a bound would never end:
/// each refused ADD requests an inventory, this one too.
const INVENTORY_WITHIN: Duration = Duration::from_secs(3);

/// Serves an ADD, and answers it. Repeating it gives the same attachment. To the host's own
/// namespace it goes whatever namespace the request names.
///
/// # Errors
/// Why the pod has not all its interfaces. Nothing of them is left on the host or the DPU; an unreachable DPU releases
/// them later. If the caller has gone and a repeat of the ADD waits, the repeat takes over what is left.
pub(in crate::agent) async fn attach(
    doors: &Doors,
    asked: AddRequest,
    destination: &Destination,
    caller: &Arc<Caller>,
) -> Result<(), Failure> {
    check_form(&asked)?;
    let (named, keys) = name_and_lock(doors, &asked, caller.deadline()).await?;
    // Until all that fails is taken back.
    let mut taken = Taken::default();
    let attached = attach_alone(doors, named, destination, caller, &mut taken).await;
    if attached.is_err() {
        take_back_all(doors, &keys).await;
    }
    taken.tell(doors);
    attached.map_err(|failure| doors.delegates.with_folder(failure, &asked))
}

async fn attach_alone(
    doors: &Doors,
    named: Named,
    destination: &Destination,
    caller: &Arc<Caller>,
    taken: &mut Taken,
) -> Result<(), Failure> {
    let Named { whole, mut requests, delegations, order } = named;
    let started = Instant::now();
    caller.is_waiting()?;
    let netns = match destination {
        Destination::Pod => pod_netns(doors, &whole.netns)?,
        Destination::Host { .. } => doors.vfs.host().own_netns(),
    };
    make_way(doors, &requests, netns.id).await?;
    delegated::make_way(doors, &whole.key, &delegations).await?;
    // The release may have waited for a VF's reset.
    caller.is_waiting()?;

    // From now on until it is recorded that the pod keeps them, a hello lists them as under way. Not
    // before there is a session to ask: the DPU would wait for an ADD that it is never asked for.
    let session = doors.dpu.session().current(doors.timeouts.reconnect()).await?;
    let enter = |request: &AddRequest| doors.dpu.reports().enter_pending(&request.key);
    let pending: Vec<_> = requests.iter().map(enter).collect();
    taken.take(doors, &session, &mut requests);
    let asked = ask_ahead(doors, &mut requests, &netns, session, caller, taken);
    let Answered { attachments, call, ahead } = asked.await?;
    let attachments = attachments.into_iter().map(|one| destination.adapt(one)).collect();
    let (attachments, reached) = with_default_routes(attachments, &whole.further, &delegations);
    KillPoint::AttachAnswered.pass();

    let wanted = requests.into_iter().zip(attachments);
    let wanted = wanted.map(|(request, attachment)| Wanted { request, attachment }).collect();
    let taken_in = take_in_all(doors, wanted, netns.clone(), caller).await?;
    // The records hold the VFs from here on.
    *taken = Taken::default();
    // The first one leads.
    let leases = &taken_in[0].record.attachment.further_leases;
    // Once they are recorded, so that they are taken back as all that fails is.
    reached?;
    let is_delegating = !delegations.is_empty();
    let made = delegated::make_all(doors, delegations, leases, &netns, caller).await?;
    if is_delegating {
        check_untouched(doors, &whole.key, &taken_in).await?;
    }
    KillPoint::AttachDone.pass();
    let records = taken_in.iter().map(|one| Arc::clone(&one.record)).collect();
    let confirmed = confirm(doors, records, made, &order, caller);
    confirmed.instrument(traces::step("confirm")).await?;
    drop(pending);
    for TakenIn { record, recording, durations } in taken_in {
        let total = started.elapsed();
        note(doors, &record, &AttachTimes { call, ahead, recording, durations, total });
    }
    Ok(())
}

/// What the DPU has answered.
struct Answered {
    attachments: Vec<v1::Attachment>,
    /// How long that took.
    call: Duration,
    /// The duration of the moves at that time.
    ahead: MovedAhead,
}

/// Asks the DPU for attachments while the speculative moves run.
///
/// # Errors
/// Why there are none, or a VF was not moved. Guesses are there still, and with them all is taken back that the DPU
/// has made of their keys.
async fn ask_ahead(
    doors: &Doors,
    requests: &mut [AddRequest],
    netns: &PodNetns,
    session: Arc<Established>,
    caller: &Arc<Caller>,
    taken: &mut Taken,
) -> Result<Answered, Failure> {
    let is_awaited = {
        let caller = Arc::clone(caller);
        move || caller.is_waiting()
    };
    let names = requests.iter().map(|request| request.key.interface_name.clone()).collect();
    let is_untold = doors.dpu.reports().is_inventory_wanted();
    let moved = doors.vfs.ahead().begin(
        guesses(doors, requests, netns.id),
        names,
        netns.clone(),
        is_awaited,
    );
    let moved = moved.instrument(traces::step("speculative_move"));
    let began = Instant::now();
    let asked = async {
        let asked = ask_for(doors, requests, Arc::clone(&session), caller).await;
        (asked, began.elapsed())
    };
    // Both: nothing is taken back while it is on its way.
    let ((asked, call), moved) = tokio::join!(asked, moved);
    let (asked, call, moved) = match asked {
        Err(failure) if is_about_vfs(&failure, is_untold) => {
            take_all_home(doors, requests).await?;
            let asked = ask_patiently(doors, requests, session, caller, taken).await;
            // All of it is the time until the DPU has given one.
            (asked, began.elapsed(), Ok(moved.unwrap_or_default()))
        }
        asked => (asked, call, moved),
    };
    doors.refusing.note(requests, asked.as_ref().err());
    if asked.is_ok() && moved.is_ok() {
        count_right(doors, requests);
    }
    if asked.is_ok() && moved.is_err() {
        // Of those that were not moved ahead there is no record to take them back by.
        for request in requests.iter() {
            doors.dpu.calls().detach_by_key(&request.key).await;
        }
    }
    Ok(Answered { attachments: asked?, call, ahead: moved? })
}

/// Whether another VF, or a later attempt, may succeed: the offered VF is unavailable, the requested one is being
/// detached, or the rest of the pool is offered or in use by ADDs that may fail. `is_untold`: the DPU had not received
/// the report of returned VFs.
const fn is_about_vfs(failure: &Failure, is_untold: bool) -> bool {
    match failure.reason {
        Reason::Releasing | Reason::VfNotFree | Reason::VfUnknown | Reason::VfsOffered => true,
        Reason::VfsExhausted => is_untold,
        _ => false,
    }
}

/// That no other plugin has taken our interfaces from the pod, or changed them.
async fn check_untouched(doors: &Doors, lead: &Key, taken_in: &[TakenIn]) -> Result<(), Failure> {
    for TakenIn { record, .. } in taken_in {
        let inspected = inspect(doors, record, None).await;
        inspected.map_err(|failure| delegated::changed_ours(doors, lead, &failure))?;
    }
    Ok(())
}

/// The namespace at a path. It is open only while VFs are moved and settle, not for as long as the DPU takes to answer:
/// that would keep it alive, and with it the pod's other VFs away from the host.
fn pod_netns(doors: &Doors, path: &str) -> Result<PodNetns, Failure> {
    let id = open_netns(path)?.id();
    if doors.vfs.host().is_own_netns(id) {
        let message = format!("{path} is the host's own network namespace");
        return Err(Failure::new(Reason::NetnsInvalid, message));
    }
    Ok(PodNetns { path: path.to_owned(), id })
}

/// Settles what earlier attaches of the same keys have left, and of what the first of them has led.
async fn make_way(doors: &Doors, requests: &[AddRequest], netns: NetnsId) -> Result<(), Failure> {
    for request in requests {
        make_way_for(doors, request, netns).await?;
    }
    let is_asked_for = |key: &Key| requests.iter().any(|request| request.key == *key);
    let lead = &requests[0].key;
    for surplus in doors.vfs.records().led_by(lead) {
        if is_asked_for(&surplus.key()) {
            continue;
        }
        if surplus.phase == Phase::Live {
            return Err(differs(lead, &format!("also with {}", surplus.key().interface_name)));
        }
        release(doors, surplus, doors.timeouts.vf_return(), Renewal::Now).await;
    }
    let is_live = |key: &Key| {
        doors.vfs.records().by_key(key).is_some_and(|record| record.phase == Phase::Live)
    };
    let missing = requests.iter().find(|request| !is_live(&request.key));
    match missing.filter(|_| is_live(lead)) {
        Some(missing) => Err(differs(lead, &format!("without {}", missing.key.interface_name))),
        None => Ok(()),
    }
}

async fn make_way_for(doors: &Doors, request: &AddRequest, netns: NetnsId) -> Result<(), Failure> {
    let key = &request.key;
    let Some(earlier) = doors.vfs.records().by_key(key) else { return Ok(()) };
    if earlier.phase == Phase::Releasing || earlier.is_guess {
        release(doors, earlier, doors.timeouts.vf_return(), Renewal::Now).await;
        return match doors.vfs.records().by_key(key) {
            None => Ok(()),
            Some(left) => Err(still_releasing(doors, &left)),
        };
    }
    if earlier.netns.id != netns {
        return Err(differs(key, "in another network namespace"));
    }
    if earlier.device_info_file != request.device_info_file {
        return Err(differs(key, "with another device-info file"));
    }
    Ok(())
}

fn differs(key: &Key, how: &str) -> Failure {
    Failure::new(Reason::AttachmentDiffers, format!("{key} is attached {how} already"))
}

/// That an earlier attachment is not given back yet, and why.
fn still_releasing(doors: &Doors, left: &Record) -> Failure {
    let why = match doors.dpu.session().state() {
        SessionState::Down { failure, .. } => {
            format!("the DPU does not know yet, because there is no session: {failure}")
        }
        SessionState::Up(_) if left.is_returned => "the DPU has not confirmed it yet".into(),
        SessionState::Up(_) => format!("VF {} is not back yet", left.device()),
    };
    let message = format!(
        "an earlier attachment of {} is still being released: {why}; the runtime retries",
        left.key()
    );
    Failure::new(Reason::Releasing, message)
}

/// Asks the DPU for attachments without what was taken before, and again while it may answer something else soon.
async fn ask_patiently(
    doors: &Doors,
    requests: &mut [AddRequest],
    mut session: Arc<Established>,
    caller: &Caller,
    taken: &mut Taken,
) -> Result<Vec<v1::Attachment>, Failure> {
    let patience = Instant::now() + doors.timeouts.vf_return();
    let told_by = Instant::now() + INVENTORY_WITHIN;
    taken.give_up(doors, requests);
    let mut is_untold = true;
    loop {
        let asked = ask_for(doors, requests, Arc::clone(&session), caller).await;
        let failure = match asked {
            Err(failure) if may_pass(requests, &failure, is_untold) => failure,
            answer => return answer,
        };
        if Instant::now() >= patience {
            return Err(failure);
        }
        taken.give_up(doors, requests);
        session = doors.dpu.session().current(doors.timeouts.reconnect()).await?;
        is_untold = doors.dpu.reports().is_inventory_wanted() && Instant::now() < told_by;
        // An ADD for several VFs holds some of a pool each time that it asks. It asks less often, so that an ADD for
        // one VF can come in between.
        let may_hurry = failure.reason == Reason::VfsOffered && requests.len() == 1;
        if !(may_hurry && taken.take(doors, &session, requests)) {
            sleep(AGAIN.saturating_mul(requests.len().try_into().unwrap_or(u32::MAX))).await;
            caller.is_waiting()?;
            taken.take(doors, &session, requests);
        }
    }
}

/// Whether the DPU may answer differently soon. `is_untold`: it had not received the report of returned VFs.
fn may_pass(requests: &[AddRequest], failure: &Failure, is_untold: bool) -> bool {
    match failure.reason {
        // An attachment is being released, perhaps one of an earlier ADD of the key. If no answer named it, this host
        // has no record to wait for: the DPU holds it until the inventory lists its VF as returned.
        Reason::Releasing => true,
        // Other ADDs have the rest of the pool, or the chosen VF, and one of them may fail. Or the message with
        // the offer is on its way.
        Reason::VfsOffered => true,
        Reason::VfsExhausted => is_untold,
        // The offer is void.
        Reason::VfNotFree => requests.iter().any(|request| request.offered.is_some()),
        _ => false,
    }
}

/// Asks the DPU for attachments until the caller has gone.
async fn ask_for(
    doors: &Doors,
    requests: &[AddRequest],
    session: Arc<Established>,
    caller: &Caller,
) -> Result<Vec<v1::Attachment>, Failure> {
    let failure = tokio::select! {
        // An answer that is there counts, also if its caller ended at that moment: what the DPU has made
        // is known then, and given back as such.
        biased;
        answer = doors.dpu.calls().attach(requests, session, caller.deadline()) => return answer,
        failure = caller.hangup() => failure,
    };
    // With the first one go those that it leads.
    let lead = &requests[0].key;
    if !doors.vfs.keys().is_add_waiting(lead) {
        doors.dpu.calls().detach_by_key(lead).await;
        return Err(failure);
    }
    // Of each by itself: the repeat may want fewer of them.
    for request in requests {
        doors.dpu.calls().leave_to_repeat(detach_request_by_key(&request.key));
    }
    Err(failure)
}

/// Records that the pod keeps its VFs, and answers.
///
/// The record is written first: otherwise the agent's death in between would undo an answered ADD. A death after the
/// record leaves unanswered attachments, which the runtime's DEL releases.
async fn confirm(
    doors: &Doors,
    records: Vec<Arc<Record>>,
    made: Vec<v1::Attachment>,
    order: &[String],
    caller: &Caller,
) -> Result<(), Failure> {
    caller.is_waiting()?;
    // Of a repeat all were, or none.
    let was_answered = records.iter().all(|record| record.phase == Phase::Live);
    if !was_answered {
        // Before the records: whatever becomes of these, the record that leads them takes them back.
        delegated::keep(doors, &records[0].key())?;
        doors.vfs.intake().keep(&records).await?;
        KillPoint::AttachCommitted.pass();
    }
    for record in &records {
        doors.dpu.reports().report_attached(record);
    }
    let attachments = records.iter().map(|record| record.attachment.clone());
    let attachments = in_order(attachments.chain(made).collect(), order);
    let answered = match caller.answer(Answer::Attached(attachments)).await {
        // The kernel accepts an answer for a caller that is being killed. A caller that an earlier ADD answered keeps
        // its interfaces anyway.
        Ok(()) if !was_answered => caller.has_received().await,
        answered => answered,
    };
    match &answered {
        Ok(()) => KillPoint::AttachReported.pass(),
        Err(_) if was_answered => {}
        Err(_) => doors.vfs.intake().keep_no_more(&records),
    }
    answered
}

/// As the interfaces were asked for.
fn in_order(mut attachments: Vec<v1::Attachment>, order: &[String]) -> Vec<v1::Attachment> {
    attachments.sort_by_key(|attachment| {
        let key = attachment.key.as_ref();
        order.iter().position(|name| key.is_some_and(|key| key.interface_name == *name))
    });
    attachments
}

fn note(doors: &Doors, record: &Record, times: &AttachTimes) {
    // A VF that was not moved ahead has no time for that, which is another thing than none.
    for (phase, duration) in times.phases().into_iter().filter(|(_, it)| !it.is_zero()) {
        doors.phases.attach.note(phase, duration);
    }
    let AttachTimes { call, ahead, recording, durations, total } = *times;
    tracing::info!(
        attachment = record.id(),
        key = %record.key(),
        vf = record.device().as_str(),
        rpc_us = microseconds(call),
        speculative_wait_us = microseconds(ahead.before),
        speculative_move_us = microseconds(ahead.moving),
        record_us = microseconds(recording),
        move_us = microseconds(durations.relocate),
        configure_us = microseconds(durations.configure),
        carrier_us = microseconds(durations.carrier),
        total_us = microseconds(total),
        carrier = !durations.without_carrier,
        "attached"
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::{verbs::tests::doors, vfs::record};

    #[tokio::test]
    async fn pending_release_error_names_missing_session() {
        let (doors, _folder) = doors();
        let told = still_releasing(&doors, &record("a", "c"));
        assert_eq!(told.reason, Reason::Releasing);
        assert!(told.message.contains("no session"), "{told}");
    }
}
