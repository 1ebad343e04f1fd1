//! Detach: unprogram and record concurrently, then free.
//!
//! Callers are the host's Detach, operators, the runtime's garbage collection, hellos and inventories, and the
//! reconciler, which retries what the journal has refused. Each holds the lock of the attachment's key, so exactly one
//! of them frees it and the others find nothing.
//!
//! An operator's release is recorded first, together with its audit entry: a release that cannot be recorded changes
//! nothing.

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
    kill_points::KillPoint,
    records::Changes,
    sessions::HostCommand,
};
use model::{AttachmentId, AttachmentKey, AttachmentView, Phase, Record};

/// A host's request to detach an attachment.
#[derive(Clone, Debug)]
pub struct Detach {
    pub key: AttachmentKey,
    /// Only this attachment of the key is meant. `None`: any attachment of the key, with the members of its group.
    pub id: Option<AttachmentId>,
    /// The attachment's VF is back and clean.
    pub returned: bool,
    /// The VF with this device is back and clean, if it is the attachment's.
    pub returned_device: Option<Device>,
    /// When the host observed that, by its clock. Earlier inventories of the VF are outdated.
    pub as_of: HostTime,
    /// The session of the call. `None`: not given.
    pub session: Option<SessionId>,
    /// Why the host detaches it, one clause. Empty for a DEL.
    pub cause: String,
}

impl Engine {
    /// Detaches an attachment. Succeeds if the attachment is already gone or is not the one meant. Until its VF has
    /// returned, the attachment stays as releasing.
    ///
    /// # Errors
    /// [`Reason::JournalUnavailable`](offload_proto::Reason::JournalUnavailable) or
    /// [`Reason::StaleSession`](offload_proto::Reason::StaleSession). The caller repeats the call.
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
    let members = match detach.id {
        Some(_) => Vec::new(),
        None => engine.registry().entries().group_members(&detach.key),
    };
    for key in members {
        // The host reported the VF of the named attachment only.
        detach_one(engine, &Detach { key, returned: false, ..detach.clone() }).await?;
    }
    Ok(())
}

async fn detach_one(engine: &Engine, detach: &Detach) -> Result<(), Failure> {
    let (key, session) = (&detach.key, detach.session);
    let _key = engine.phases.detach.time(LOCKS, engine.keys.lock(key)).await;
    // Checked under the key's lock: a hello that arrived while we waited has already decided on this attachment.
    if let Some(session) = session.filter(|id| !engine.sessions.is_current(&key.host, *id)) {
        return Err(stale(session));
    }
    let detached = detach_what_is_there(engine, detach).await;
    // Last: an Attach that this Detach overtook may wait for the key for however long the detach took.
    add_tombstone(engine, key, detach.as_of);
    detached
}

async fn detach_what_is_there(engine: &Engine, detach: &Detach) -> Result<(), Failure> {
    let Some(record) = engine.record_of(&detach.key) else { return Ok(()) };
    let latest = engine.sessions.latest_time(&record.key.host);
    if is_outdated(engine, detach, &record, latest) {
        return Ok(());
    }
    // Noted before the release: an older inventory must not free the VF while the release runs.
    engine.registry().note_detach(&record, detach.as_of, latest);
    let returned = detach.returned || detach.returned_device.as_ref() == Some(&record.device);
    let vf = if returned { VfReturn::Clean } else { VfReturn::Awaited };
    let cause = match detach.cause.as_str() {
        "" => "the host detaches it",
        cause => cause,
    };
    let cause = of_host(&record, cause);
    release_attachment(engine, &record, vf, &cause).await.map(drop)
}

/// A cause whose author is the record's host.
pub(super) fn of_host(record: &Record, reason: &str) -> Cause {
    Cause::new(Author::Host(record.key.host.clone()), reason)
}

/// Whether a late Detach means an earlier attachment of its key. Without an id, it does if the host has sent an Attach
/// since: calls on one connection arrive in order, but each is served by its own task, so a later call may run first.
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

/// Records a tombstone for the key: an Attach that the host sent before this Detach may only arrive now, and must not
/// reserve anything.
fn add_tombstone(engine: &Engine, key: &AttachmentKey, as_of: HostTime) {
    if as_of > engine.sessions.latest_time(&key.host) {
        return;
    }
    let session = engine.sessions.current(&key.host);
    let boot_id = session.and_then(|session| engine.sessions.boot_id(&key.host, session));
    if let Some(boot_id) = boot_id {
        engine.tombstones.lock().note(key, &boot_id, as_of, Instant::now());
    }
}

/// Releases an attachment for an operator. With [`VfReturn::Gone`] it does not wait for the VF.
pub(super) async fn release(
    engine: &Engine,
    id: AttachmentId,
    vf: VfReturn,
    cause: &Cause,
) -> Result<AttachmentView, Failure> {
    let key = engine.registry().entries().get(id).map(|entry| entry.record().key.clone());
    let key = key.ok_or_else(|| unknown(&id))?;
    let _key = engine.keys.lock(&key).await;
    // The previous holder of the key's lock may have ended the attachment and started another one.
    let record = engine.record_of(&key).filter(|record| record.id == id);
    let record = record.ok_or_else(|| unknown(&id))?;
    // A removed host reports no VFs. Its VFs become available once it is configured again and advertises them.
    let is_removed = !engine.registry().hosts().serves(&key.host);
    let vf = if is_removed { VfReturn::Gone } else { vf };
    record_release(engine, &record, cause).await?;
    let view = release_attachment(engine, &record, vf, cause).await?;
    // Sent after the commit: the host detaches as soon as it receives the command.
    send_release(engine, &record, cause.reason.clone());
    Ok(view)
}

/// Records an operator's release together with its audit entry, in one transaction.
async fn record_release(engine: &Engine, record: &Record, cause: &Cause) -> Result<(), Failure> {
    let object = format!("attachment/{}", record.id);
    let entry = AuditEntry::new(cause, AuditAction::ReleaseAttachment, object)
        .before(&EndedAttachment::from(record));
    let releasing = Record { phase: Phase::Releasing, ..record.clone() };
    let changes = Changes::default().put_attachment(&releasing).audited(Some(entry));
    engine.records.commit(changes).await
}

/// Unprograms an attachment and frees what it holds once its VF has returned or is gone. Returns the attachment as it
/// was while releasing. The caller holds the lock of its key.
///
/// Disk and kernel work run concurrently. If the journal fails, the kernel's part is still undone; the attachment stays
/// as releasing, and the reconciler and the host retry. If the service dies after the record was deleted, the
/// reconciler unprograms the port.
pub(super) async fn release_attachment(
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
    KillPoint::ReleaseBegun.pass();
    let release = async {
        if returned {
            return free(engine, record).await;
        }
        let changes = Changes::default().put_attachment(&view.record);
        unprogram_and_write(engine, record, changes, KillPoint::ReleaseParked).await
    };
    // Ports are unmapped concurrently. An attachment that maps the same ports writes its rules after this one: the
    // gateway rebuilds them from all held attachments.
    let ((), released) = tokio::join!(unmap(engine, record), release);
    released.map(|()| view)
}

/// Returns the attachment in its new state, and whether its VF has already returned.
fn mark_releasing(
    engine: &Engine,
    id: AttachmentId,
    vf: VfReturn,
) -> Result<(AttachmentView, bool), Failure> {
    let mut registry = engine.registry();
    registry.release(id, vf);
    let entry = registry.entries().get(id).ok_or_else(|| unknown(&id))?;
    // An earlier call may already have reported the VF's return.
    Ok((entry.view(), entry.is_returned()))
}

/// Unprograms and deletes an attachment, and frees what it held. The cool-down of its addresses is recorded in the same
/// transaction, so that a crash does not shorten it. Memory is freed last: until disk and kernel are done, no other
/// attachment may get the VF or the addresses.
async fn free(engine: &Engine, record: &Record) -> Result<(), Failure> {
    let cooling = engine.registry().networks().cooling_after(record, now());
    let changes = Changes::default().delete_attachment(record.id);
    let changes = cooling.iter().fold(changes, Changes::put_cooling);
    unprogram_and_write(engine, record, changes, KillPoint::ReleaseFreed).await?;
    engine.registry().free(record.id, cooling, now());
    let message = format!("{} and its addresses are free", record.vf);
    engine.events.record_end(EventKind::AttachmentReleased, record, None, message);
    Ok(())
}

async fn unprogram_and_write(
    engine: &Engine,
    record: &Record,
    changes: Changes,
    point: KillPoint,
) -> Result<(), Failure> {
    let unprogramming = async {
        let _vf = engine.ports.lock(record.vf).await;
        engine.ports.in_turn(&record.key.host, engine.unprogram(record.vf)).await;
        delete_neighbours(engine, record).await;
        KillPoint::ReleaseUnprogrammed.pass();
    };
    let writing = async {
        engine.records.commit(changes).await?;
        point.pass();
        Ok(())
    };
    let phases = &engine.phases.detach;
    let ((), written) =
        tokio::join!(phases.time(UNPROGRAM, unprogramming), phases.time(JOURNAL, writing));
    written
}

/// Sends the host a command to release an attachment.
pub(super) fn send_release(engine: &Engine, record: &Record, reason: String) {
    let command = HostCommand::Release { id: record.id, key: record.key.clone(), reason };
    engine.send_command(&record.key.host, command);
}
