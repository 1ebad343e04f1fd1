//! A pod's interfaces of other plugins. They belong to the attachment of an ADD: created after it, recorded with it,
//! and deleted when it is released for any reason.

use std::{sync::Arc, time::Duration};

use offload_proto::{Failure, Reason, v1};

use super::doors::Doors;
use crate::{
    agent::{
        caller::Caller,
        delegates::{Again, Delegated, Delegation},
        vfs::{Phase, PodNetns},
    },
    protocol::Key,
};

/// Settles what earlier ADDs of the leading key have left. What was answered stays, and has to be what is asked for.
pub(super) async fn make_way(
    doors: &Doors,
    lead: &Key,
    delegations: &[Delegation],
) -> Result<(), Failure> {
    let is_live = doors.vfs.records().by_key(lead).is_some_and(|it| it.phase == Phase::Live);
    let made = doors.delegates.led_by(lead);
    if !is_live {
        for one in made {
            let taken_back = take_back(doors, &one.key, doors.timeouts.vf_return()).await;
            taken_back.map_err(|failure| still_there(&one, &failure))?;
        }
        return Ok(());
    }
    let is_made = |wanted: &Delegation| made.iter().any(|one| is_of(one, wanted));
    let is_wanted = |one: &Delegated| delegations.iter().any(|wanted| is_of(one, wanted));
    let missing = delegations.iter().find(|wanted| !is_made(wanted)).map(|it| ("without", &it.key));
    let surplus = made.iter().find(|one| !is_wanted(one)).map(|it| ("also with", &it.key));
    missing.or(surplus).map_or(Ok(()), |(how, key)| {
        let message = format!("{lead} is attached {how} {} already", key.interface_name);
        Err(Failure::new(Reason::AttachmentDiffers, message))
    })
}

/// That what an earlier ADD has left is not taken back yet.
fn still_there(one: &Delegated, failure: &Failure) -> Failure {
    let message = format!(
        "{} of an earlier ADD is still being deleted, with the network's file of that time: {}",
        one.key, failure.message
    );
    Failure::new(failure.reason, message)
}

/// That one of the plugins of an attachment has done something to our interfaces. Which one is not known where they are
/// several.
pub(super) fn changed_ours(doors: &Doors, lead: &Key, found: &Failure) -> Failure {
    let made = doors.delegates.led_by(lead);
    let made: Vec<_> = made.iter().map(|one| one.definition()).collect();
    let message = format!("a plugin of network {}: {}", made.join(", or of "), found.message);
    Failure::new(Reason::DelegateFailed, message)
}

fn is_of(made: &Delegated, wanted: &Delegation) -> bool {
    made.key == wanted.key && made.network() == wanted.network()
}

/// Has them made, one after the other, with the addresses of these leases, or answers those of a repeat.
///
/// # Errors
/// Why one was not. The rest is taken back with the attachment that leads them.
pub(super) async fn make_all(
    doors: &Doors,
    delegations: Vec<Delegation>,
    leases: &[v1::FurtherLease],
    netns: &PodNetns,
    caller: &Caller,
) -> Result<Vec<v1::Attachment>, Failure> {
    let mut made = Vec::new();
    for delegation in delegations {
        caller.is_waiting()?;
        let earlier = doors.delegates.by_key(&delegation.key);
        made.push(match earlier.and_then(|earlier| earlier.attachment().cloned()) {
            Some(attachment) => attachment,
            None => make(doors, delegation, leases, netns, caller).await?,
        });
    }
    Ok(made)
}

async fn make(
    doors: &Doors,
    delegation: Delegation,
    leases: &[v1::FurtherLease],
    netns: &PodNetns,
    caller: &Caller,
) -> Result<v1::Attachment, Failure> {
    let name = &delegation.key.interface_name;
    let lease = leases.iter().find(|lease| lease.interface_name == *name).cloned();
    let mut made = doors.delegates.add(delegation, lease, netns, caller.deadline()).await?;
    if let Some(added) = made.to_be_added() {
        let _pod = doors.vfs.host().lock_pod(netns, &[&added]).await?;
        made = doors.delegates.complete(made).await?;
    }
    Ok(made.attachment().cloned().unwrap_or_default())
}

/// Gives pods back what they have lost of what was set beside what plugins have made.
pub(in crate::agent) async fn repair_delegated(doors: &Doors) {
    for one in doors.delegates.all().into_iter().filter(|one| one.added().is_some()) {
        match repair(doors, &one.key).await {
            Ok(None) => {}
            Ok(Some(lost)) => {
                tracing::info!(key = %one.key, lost, "restored what the pod's interface had lost");
            }
            Err(failure) => {
                tracing::warn!(key = %one.key, %failure, "an interface of other plugins is not in order");
            }
        }
    }
}

/// Tells what it was, if anything.
async fn repair(doors: &Doors, key: &Key) -> Result<Option<String>, Failure> {
    let _key = doors.vfs.keys().lock(key).await;
    let to_be_repaired = || {
        let one = doors.delegates.by_key(key)?;
        let is_kept = one.phase == Phase::Live && one.netns.living().is_some();
        is_kept.then_some(one)
    };
    let Some(one) = to_be_repaired() else { return Ok(None) };
    let Some(added) = one.added() else { return Ok(None) };
    let _pod = doors.vfs.host().lock_pod(&one.netns, &[added]).await?;
    // A release of the group key deletes the interface without this key, and may have held the pod's lock until now.
    match to_be_repaired() {
        Some(one) => doors.delegates.repair(&one).await,
        None => Ok(None),
    }
}

/// Keeps those that an attachment leads, whatever becomes of the agent.
pub(super) fn keep(doors: &Doors, lead: &Key) -> Result<(), Failure> {
    doors.delegates.led_by(lead).iter().try_for_each(|one| doors.delegates.note(one, Phase::Live))
}

/// Has the interfaces of this group key deleted. The caller holds the key's lock, without which none is created.
/// Another task may be deleting one of them: both wait for the plugin's lock, and deleting twice is harmless.
pub(super) async fn release_led_by(doors: &Doors, lead: &Key, patience: Duration) {
    for one in doors.delegates.led_by(lead) {
        release(doors, &one.key, patience).await;
    }
}

/// Whether addresses that the attachment of this key holds for interfaces of other plugins may still be on those.
pub(super) async fn holds_leases(doors: &Doors, lead: &Key) -> bool {
    for one in doors.delegates.led_by(lead) {
        if doors.delegates.holds_lease(&one).await {
            return true;
        }
    }
    false
}

/// Has one taken back. What fails is tried again with the next pass.
pub(super) async fn release(doors: &Doors, key: &Key, patience: Duration) {
    if let Err(failure) = take_back(doors, key, patience).await {
        tracing::warn!(%key, %failure, "an interface of other plugins is deleted later");
    }
}

async fn take_back(doors: &Doors, key: &Key, patience: Duration) -> Result<(), Failure> {
    let Some(one) = doors.delegates.by_key(key) else { return Ok(()) };
    if let Some(added) = one.added() {
        match doors.vfs.host().lock_pod(&one.netns, &[added]).await {
            Ok(_pod) => {
                let others = doors.vfs.host().shared_in(one.netns.id, |_| true);
                doors.delegates.remove_routing(&one, others).await;
            }
            // The interface must go anyway, and its routes are then useless.
            Err(failure) => {
                tracing::warn!(%key, %failure, "rules and routes of the interface stay in the pod");
            }
        }
    }
    let is_anothers = is_anothers(doors, &one);
    doors.delegates.delete(key, !is_anothers, patience).await
}

/// Whether another container has the interface of its name by now, in the same namespace.
fn is_anothers(doors: &Doors, one: &Delegated) -> bool {
    let is_it = |key: &Key, netns: &PodNetns| {
        netns.id == one.netns.id && key.interface_name == one.key.interface_name && *key != one.key
    };
    let records = doors.vfs.records().all();
    records.iter().any(|record| is_it(&record.key(), &record.netns))
        || doors.delegates.all().iter().any(|other| is_it(&other.key, &other.netns))
}

/// Begins to take back what no plugin has taken back yet, and what an ADD has left that is over.
pub(in crate::agent) fn release_untaken(doors: &Doors) {
    for one in doors.delegates.all() {
        if is_untaken(doors, &one)
            && let Some(again) = doors.delegates.begin_again(&one.key)
        {
            doors.tasks.spawn(release_again(doors.clone(), one, again));
        }
    }
}

async fn release_again(doors: Doors, one: Arc<Delegated>, again: Again) {
    let key = &one.key;
    let locked = doors.vfs.keys().lock(key).await;
    // The ADD may have succeeded by now, or another one may have run.
    if doors.delegates.by_key(key).is_some_and(|now| is_untaken(&doors, &now)) {
        release(&doors, key, doors.timeouts.vf_return()).await;
    }
    drop(locked);
    drop(again);
}

/// Whether the interface is not recorded as live, or its group's attachment is gone.
fn is_untaken(doors: &Doors, one: &Delegated) -> bool {
    let is_led = || doors.vfs.records().by_key(&one.group_key()).is_some();
    one.phase != Phase::Live || (one.netns.living().is_none() && !is_led())
}
