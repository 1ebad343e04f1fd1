//! The way back: unprogram and record at the same time, then free.

use std::{sync::Arc, time::Instant};

use offload_proto::Failure;
use vf_alloc::VfId;

use super::{
    engine::{Engine, now},
    registry::Entry,
};
use crate::{
    events::EventKind,
    host::{HostTime, SessionId},
    milestones::Milestone,
    model::{AttachmentId, AttachmentKey, AttachmentView, Record},
    records::Changes,
    sessions::HostCommand,
};

/// A host gives an attachment back.
#[derive(Clone, Debug)]
pub struct Detach {
    /// The attachment's key.
    pub key: AttachmentKey,
    /// Only this attachment of the key is meant. `None`: whichever it is.
    pub id: Option<AttachmentId>,
    /// Its VF is back and clean.
    pub returned: bool,
    /// When the host knew that: what it saw before is outdated.
    pub as_of: HostTime,
    /// The session that the host called on. `None`: not told.
    pub session: Option<SessionId>,
}

impl Engine {
    /// Gives an attachment back. One that is gone, or not the one that is meant, is no error.
    pub(super) async fn detach(&self, detach: Detach) -> Result<(), Failure> {
        let (key, session) = (&detach.key, detach.session);
        let _key = self.keys.lock(key).await;
        if let Some(session) = session.filter(|id| !self.sessions.is_current(&key.host, *id)) {
            return Err(super::stale(session));
        }
        let detached = self.detach_what_is_there(&detach).await;
        // Last: who was overtaken waits for the key, however long that took.
        self.note_overtaken(key, detach.as_of);
        detached
    }

    async fn detach_what_is_there(&self, detach: &Detach) -> Result<(), Failure> {
        let Some(record) = self.record_of(&detach.key) else { return Ok(()) };
        if detach.id.is_some_and(|id| id != record.id) {
            return Ok(());
        }
        self.note_host_detaches(&record, detach.as_of);
        self.give_back(&record, detach.returned, "the host detaches it").await.map(drop)
    }

    /// The host, one of whose calls has the key at a time, wants nothing any more of what it asked for
    /// before: an Attach of then may come now.
    fn note_overtaken(&self, key: &AttachmentKey, as_of: HostTime) {
        if as_of > self.sessions.latest_time(&key.host) {
            return;
        }
        let session = self.sessions.current(&key.host);
        let boot_id = session.and_then(|session| self.sessions.boot_id(&key.host, session));
        if let Some(boot_id) = boot_id {
            self.overtaken().note(key, &boot_id, as_of, Instant::now());
        }
    }

    /// The host itself gives the attachment back: none of its calls will move the VF any more, and
    /// what it said of the VF before is outdated.
    fn note_host_detaches(&self, record: &Record, as_of: HostTime) {
        let latest = self.sessions.latest_time(&record.key.host);
        let mut registry = self.registry();
        if let Some(entry) = registry.get_mut(record.id) {
            entry.session = None;
        }
        registry.note_detach(record, as_of, latest);
    }

    /// Takes an attachment away from its pod, for an operator.
    pub(super) async fn release(
        &self,
        id: AttachmentId,
        reason: String,
    ) -> Result<AttachmentView, Failure> {
        let key = self.registry().get(id).map(|entry| entry.record.key.clone());
        let key = key.ok_or_else(|| super::unknown(&id))?;
        let _key = self.keys.lock(&key).await;
        let record = self.record_of(&key).filter(|record| record.id == id);
        let record = record.ok_or_else(|| super::unknown(&id))?;
        let view = self.give_back(&record, false, &reason).await?;
        self.tell_release(&record, reason);
        Ok(view)
    }

    /// Unprograms an attachment and, once its VF is back and clean, frees all that it holds. Returns
    /// the attachment as it was while it was given back. The caller holds the lock of its key.
    ///
    /// Disk and kernel do not wait for each other. Should the journal fail, all that the kernel can give
    /// back is given back; the rest stays as releasing, and the reconciler and the host's repetitions
    /// go on trying. Should the service die once the record is gone, the reconciler unprograms what
    /// serves nobody.
    pub(super) async fn give_back(
        &self,
        record: &Arc<Record>,
        vf_returned: bool,
        reason: &str,
    ) -> Result<AttachmentView, Failure> {
        let was_held = self.registry().get(record.id).is_some_and(Entry::is_held);
        if was_held {
            self.events.record(EventKind::AttachmentReleasing, record.id, reason);
        }
        let (view, returned) = self.set_releasing(record.id, vf_returned)?;
        Milestone::ReleaseBegun.pass();
        if returned {
            self.free(record).await?;
        } else {
            let changes = Changes::default().put_attachment(&view.record);
            self.unprogram_and_record(record.vf, changes, Milestone::ReleaseParked).await?;
        }
        Ok(view)
    }

    /// The attachment as it is then, and whether its VF is back and clean.
    fn set_releasing(
        &self,
        id: AttachmentId,
        vf_returned: bool,
    ) -> Result<(AttachmentView, bool), Failure> {
        let mut registry = self.registry();
        registry.set_releasing(id, vf_returned);
        let entry = registry.get(id).ok_or_else(|| super::unknown(&id))?;
        Ok((entry.view(), entry.returned))
    }

    /// Unprograms and deletes an attachment, and frees what it held: an address that rests is recorded in
    /// the same transaction.
    async fn free(&self, record: &Record) -> Result<(), Failure> {
        let resting = self.registry().resting(record, now());
        let changes = resting
            .iter()
            .fold(Changes::default().delete_attachment(record.id), Changes::put_cooling);
        self.unprogram_and_record(record.vf, changes, Milestone::ReleaseFreed).await?;
        self.registry().free(record.id, resting, now());
        let message = format!("{} and its addresses are given back", record.vf);
        self.events.record(EventKind::AttachmentReleased, record.id, message);
        Ok(())
    }

    async fn unprogram_and_record(
        &self,
        vf: VfId,
        changes: Changes,
        milestone: Milestone,
    ) -> Result<(), Failure> {
        let unprogramming = async {
            let _vf = self.vfs.lock(&vf).await;
            self.unprogram(vf).await;
            Milestone::ReleaseUnprogrammed.pass();
        };
        let recording = async {
            self.records.commit(changes).await?;
            milestone.pass();
            Ok(())
        };
        let ((), recorded) = tokio::join!(unprogramming, recording);
        recorded
    }

    /// Tells the host to give an attachment's VF back.
    pub(super) fn tell_release(&self, record: &Record, reason: String) {
        let command = HostCommand::Release { id: record.id, key: record.key.clone(), reason };
        self.sessions.send(&record.key.host, command);
    }

    pub(super) fn record_of(&self, key: &AttachmentKey) -> Option<Arc<Record>> {
        self.registry().by_key(key).map(|entry| Arc::clone(&entry.record))
    }
}
