//! The way back: unprogram and record at the same time, then free.
//!
//! An attachment comes here by its host's Detach, by an operator, by the runtime's garbage
//! collection, by what a hello or an inventory tells, and by the reconciler, which repeats what the
//! journal has refused. All of them hold the lock of its key, so that one of them frees it and the
//! others find nothing.
//!
//! What an operator releases is recorded first, with its entry of the audit: a release that is refused
//! changes nothing.

use std::{sync::Arc, time::Instant};

use offload_proto::Failure;
use vf_alloc::Device;

use super::{
    engine::{Engine, now},
    gateways::{delete_neighbours, unmap},
    phases::{JOURNAL, LOCKS, TOTAL, UNPROGRAM},
    registry::{Entry, VfReturn},
    stale, unknown,
};
use crate::{
    audit::{AuditAction, AuditEntry},
    author::{Author, Cause},
    events::{EndedAttachment, EventKind},
    host::{HostTime, SessionId},
    milestones::Milestone,
    model::{AttachmentId, AttachmentKey, AttachmentView, Phase, Record},
    records::Changes,
    sessions::HostCommand,
};

/// A host gives an attachment back.
#[derive(Clone, Debug)]
pub struct Detach {
    /// The attachment's key.
    pub key: AttachmentKey,
    /// Only this attachment of the key is meant. `None`: whichever it is, with those that it leads.
    pub id: Option<AttachmentId>,
    /// Its VF is back and clean.
    pub returned: bool,
    /// This VF is, by its device on the host, if it is the attachment's.
    pub returned_device: Option<Device>,
    /// When the host knew that: what it saw before is outdated.
    pub as_of: HostTime,
    /// The session that the host called on. `None`: not told.
    pub session: Option<SessionId>,
    /// Why the host detaches it, one clause. Empty: for a DEL.
    pub cause: String,
}

impl Engine {
    /// Gives an attachment back. One that is gone already, or not the one that is meant, is no error.
    /// Unless its VF has returned, it is held until the host says that it is back.
    ///
    /// # Errors
    /// [`Reason::JournalUnavailable`](offload_proto::Reason::JournalUnavailable) or
    /// [`Reason::StaleSession`](offload_proto::Reason::StaleSession): to be repeated.
    pub async fn detach(self: &Arc<Self>, detach: Detach) -> Result<(), Failure> {
        let detach = async move |engine: Arc<Self>| {
            let detached = engine.phases.detach.time(TOTAL, detach_now(&engine, &detach)).await;
            engine.sessions.note_vfs_changed(&detach.key.host);
            detached
        };
        self.to_the_end(detach).await
    }
}

async fn detach_now(engine: &Engine, detach: &Detach) -> Result<(), Failure> {
    detach_one(engine, detach).await?;
    let led = match detach.id {
        Some(_) => Vec::new(),
        None => engine.registry().entries().led_by(&detach.key),
    };
    for key in led {
        // Where the VFs of these are, the host has not told.
        detach_one(engine, &Detach { key, returned: false, ..detach.clone() }).await?;
    }
    Ok(())
}

async fn detach_one(engine: &Engine, detach: &Detach) -> Result<(), Failure> {
    let (key, session) = (&detach.key, detach.session);
    let _key = engine.phases.detach.time(LOCKS, engine.keys.lock(key)).await;
    // Looked at with the key held: a hello that came meanwhile has decided on this attachment.
    if let Some(session) = session.filter(|id| !engine.sessions.is_current(&key.host, *id)) {
        return Err(stale(session));
    }
    let detached = detach_what_is_there(engine, detach).await;
    // Last: who was overtaken waits for the key, however long that took.
    note_overtaken(engine, key, detach.as_of);
    detached
}

async fn detach_what_is_there(engine: &Engine, detach: &Detach) -> Result<(), Failure> {
    let Some(record) = engine.record_of(&detach.key) else { return Ok(()) };
    let latest = engine.sessions.latest_time(&record.key.host);
    if is_outdated(engine, detach, &record, latest) {
        return Ok(());
    }
    // Before it is given back: an inventory from before may free nothing of it meanwhile.
    engine.registry().note_detach(&record, detach.as_of, latest);
    let returned = detach.returned || detach.returned_device.as_ref() == Some(&record.device);
    let vf = if returned { VfReturn::Clean } else { VfReturn::Awaited };
    let cause = match detach.cause.as_str() {
        "" => "the host detaches it",
        cause => cause,
    };
    let cause = of_host(&record, cause);
    give_back(engine, &record, vf, &cause).await.map(drop)
}

/// What the record's host causes.
pub(super) fn of_host(record: &Record, reason: &str) -> Cause {
    Cause::new(Author::Host(record.key.host.clone()), reason)
}

/// Whether a late Detach means an earlier attachment of its key. One without an id does if the host has
/// asked for this one since: two calls on one connection come in order, but the later may be served first.
fn is_outdated(engine: &Engine, detach: &Detach, record: &Record, latest: HostTime) -> bool {
    match detach.id {
        Some(id) => id != record.id,
        None => {
            let registry = engine.registry();
            let entry = registry.entries().get(record.id);
            entry.is_some_and(|entry| entry.was_asked_after(detach.as_of, latest))
        }
    }
}

/// The host, one of whose calls has the key at a time, wants nothing any more of what it asked for
/// before: an Attach of then may come now.
fn note_overtaken(engine: &Engine, key: &AttachmentKey, as_of: HostTime) {
    if as_of > engine.sessions.latest_time(&key.host) {
        return;
    }
    let session = engine.sessions.current(&key.host);
    let boot_id = session.and_then(|session| engine.sessions.boot_id(&key.host, session));
    if let Some(boot_id) = boot_id {
        engine.keys.overtaken().note(key, &boot_id, as_of, Instant::now());
    }
}

/// Takes an attachment away from its pod, for an operator. With [`VfReturn::Gone`] it does not wait for the VF.
pub(super) async fn release(
    engine: &Engine,
    id: AttachmentId,
    vf: VfReturn,
    cause: &Cause,
) -> Result<AttachmentView, Failure> {
    let key = engine.registry().entries().get(id).map(|entry| entry.record().key.clone());
    let key = key.ok_or_else(|| unknown(&id))?;
    let _key = engine.keys.lock(&key).await;
    // Whoever had the key may have ended it, and begun another one.
    let record = engine.record_of(&key).filter(|record| record.id == id);
    let record = record.ok_or_else(|| unknown(&id))?;
    // A host that was removed reports nothing any more. Its VFs are given out once it is put back and offers them.
    let is_removed = !engine.registry().hosts().serves(&key.host);
    let vf = if is_removed { VfReturn::Gone } else { vf };
    record_release(engine, &record, cause).await?;
    let view = give_back(engine, &record, vf, cause).await?;
    // Told once it is recorded: a host that hears of it detaches at once.
    tell_release(engine, &record, cause.reason.clone());
    Ok(view)
}

/// Records that an operator releases an attachment, in one transaction with the entry of the audit.
async fn record_release(engine: &Engine, record: &Record, cause: &Cause) -> Result<(), Failure> {
    let object = format!("attachment/{}", record.id);
    let entry = AuditEntry::new(cause, AuditAction::ReleaseAttachment, object)
        .before(&EndedAttachment::from(record));
    let releasing = Record { phase: Phase::Releasing, ..record.clone() };
    let changes = Changes::default().put_attachment(&releasing).audited(Some(entry));
    engine.records.commit(changes).await
}

/// Unprograms an attachment and, once its VF is back and clean or gone, frees all that it holds. Returns
/// the attachment as it was while it was given back. The caller holds the lock of its key.
///
/// Disk and kernel do not wait for each other. Should the journal fail, all that the kernel can give
/// back is given back; the rest stays as releasing, and the reconciler and the host's repetitions
/// go on trying. Should the service die once the record is gone, the reconciler unprograms what
/// serves nobody.
pub(super) async fn give_back(
    engine: &Engine,
    record: &Arc<Record>,
    vf: VfReturn,
    cause: &Cause,
) -> Result<AttachmentView, Failure> {
    if engine.registry().entries().get(record.id).is_some_and(Entry::is_held) {
        let (events, Cause { author, reason }) = (&engine.events, cause);
        events.record_by(author, EventKind::AttachmentReleasing, record.id, reason);
    }
    let (view, returned) = mark_releasing(engine, record.id, vf)?;
    Milestone::ReleaseBegun.pass();
    let release = async {
        if returned {
            return free(engine, record).await;
        }
        let changes = Changes::default().put_attachment(&view.record);
        unprogram_and_write(engine, record, changes, Milestone::ReleaseParked).await
    };
    // Whoever gets its ports meanwhile puts them into force after this: rules are made of all that is held.
    let ((), released) = tokio::join!(unmap(engine, record), release);
    released.map(|()| view)
}

/// The attachment as it is then, and whether its VF need not be waited for.
fn mark_releasing(
    engine: &Engine,
    id: AttachmentId,
    vf: VfReturn,
) -> Result<(AttachmentView, bool), Failure> {
    let mut registry = engine.registry();
    registry.release(id, vf);
    let entry = registry.entries().get(id).ok_or_else(|| unknown(&id))?;
    // An earlier call may have known already that the VF is back.
    Ok((entry.view(), entry.is_returned()))
}

/// Unprograms and deletes an attachment, and frees what it held: an address that rests is recorded in
/// the same transaction, so that no crash cuts its rest short. Freed in memory last: until disk and
/// kernel have let go, nobody else may get the VF or the addresses.
async fn free(engine: &Engine, record: &Record) -> Result<(), Failure> {
    let resting = engine.registry().networks().resting(record, now());
    let changes = Changes::default().delete_attachment(record.id);
    let changes = resting.iter().fold(changes, Changes::put_cooling);
    unprogram_and_write(engine, record, changes, Milestone::ReleaseFreed).await?;
    engine.registry().free(record.id, resting, now());
    let message = format!("{} and its addresses are given back", record.vf);
    engine.events.record_end(EventKind::AttachmentReleased, record, None, message);
    Ok(())
}

async fn unprogram_and_write(
    engine: &Engine,
    record: &Record,
    changes: Changes,
    milestone: Milestone,
) -> Result<(), Failure> {
    let unprogramming = async {
        let _vf = engine.ports.lock(record.vf).await;
        engine.ports.in_turn(&record.key.host, engine.unprogram(record.vf)).await;
        delete_neighbours(engine, record).await;
        Milestone::ReleaseUnprogrammed.pass();
    };
    let writing = async {
        engine.records.commit(changes).await?;
        milestone.pass();
        Ok(())
    };
    let phases = &engine.phases.detach;
    let ((), written) =
        tokio::join!(phases.time(UNPROGRAM, unprogramming), phases.time(JOURNAL, writing));
    written
}

/// Tells the host to give an attachment's VF back.
pub(super) fn tell_release(engine: &Engine, record: &Record, reason: String) {
    let command = HostCommand::Release { id: record.id, key: record.key.clone(), reason };
    engine.tell(&record.key.host, command);
}
