//! DEL, and every other way in which an attachment is given back.

use std::{sync::Arc, time::Duration};

use netlink::Rtnl;
use offload_proto::{Failure, Reason};
use tokio::time::{Instant, timeout_at};

use crate::agent::{
    Agent,
    dpu::calls::detach_request,
    milestones::Milestone,
    vfs::device_info,
    vfs::move_failure::failure_of_move,
    vfs::proofs::Seen,
    vfs::records::{Phase, Record, Written},
};
use crate::{
    mover::{MoveError, Namespaces, Scene},
    protocol::DelRequest,
    vf_source,
};

/// When a VF is made anew that is home and not as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Renewal {
    /// Before the release returns.
    Now,
    /// Soon: nobody waits for it.
    Later,
}

/// How a VF came home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Homecoming {
    /// It is as it was.
    Clean,
    /// What is not.
    Different(String),
}

impl Agent {
    /// Serves a DEL. What can't be finished now is recorded, and finished later without the
    /// runtime; so there is nothing that a retry could help with.
    pub(in crate::agent) async fn detach(self: &Arc<Self>, request: DelRequest) {
        let _key = self.keys.lock(&request.key).await;
        match self.records.by_key(&request.key) {
            Some(record) => {
                self.release(record, self.config.timeouts.vf_return(), Renewal::Later).await;
            }
            None => self.detach_unrecorded(&request).await,
        }
    }

    /// There is no record of what to give back: perhaps records were lost, and the pod has its VF
    /// all the same. The DPU may have something too, as of an attach whose answer never came. If it
    /// does not answer, it is told again, and the inventory after it: it may have done what it was
    /// told, and wait for the VF.
    async fn detach_unrecorded(self: &Arc<Self>, request: &DelRequest) {
        let fetched = self.fetch_unrecorded(request).await.unwrap_or_else(|failure| {
            tracing::warn!(key = %request.key, "its VF can't be brought home: {failure}");
            false
        });
        Milestone::DetachUnrecorded.pass();
        let detach = detach_request(Some(request.key.clone().into()), String::new(), fetched);
        match self.call_detach(detach.clone()).await {
            Ok(()) => self.inventory_wanted(),
            Err(failure) => self.detach_later(detach, &failure),
        }
    }

    /// Gives an attachment back, as far as it goes now. Waits up to `patience` for a VF whose pod's
    /// namespace has ended. The caller holds the key's lock.
    ///
    /// That it is being given back is on the disk before the DPU or the runtime is told. The VF does
    /// not wait for the disk: should the agent die in between, the VF is put back into its pod, and
    /// whoever wanted it back asks again.
    pub(in crate::agent) async fn release(
        self: &Arc<Self>,
        record: Arc<Record>,
        patience: Duration,
        renewal: Renewal,
    ) {
        let (record, written) = self.begin_release(record);
        Milestone::ReleaseBegun.pass();
        device_info::remove(&record);
        let home = self.bring_home(&record, patience).await;
        Milestone::ReleaseMoved.pass();
        if let Some(written) = written
            && let Err(failure) = written.done().await
        {
            // A full disk must not keep a VF.
            tracing::error!(attachment = record.id(), "{failure}");
        }
        Milestone::ReleaseRecorded.pass();
        self.tell_released(&record, &home).await;
        if let Ok(Homecoming::Different(what)) = home {
            self.renew(record, &what, renewal).await;
        }
    }

    /// Tells the DPU that an attachment is given back, and whether its VF is home and as it was: then
    /// nothing of it is left here.
    async fn tell_released(self: &Arc<Self>, record: &Record, home: &Result<Homecoming, Failure>) {
        let is_returned = matches!(home, Ok(Homecoming::Clean));
        match home {
            Ok(Homecoming::Clean) => self.pauses.succeeded(record.id()),
            Ok(Homecoming::Different(what)) => {
                tracing::info!(attachment = record.id(), "the VF is back, but {what}");
            }
            Err(failure) => self.note_absence(record, failure),
        }
        if is_returned {
            // Before the time of the Detach is taken: of a VF that is said to be back, no later
            // inventory says that it is in use.
            self.records.keep(&Arc::new(Record { is_returned: true, ..record.clone() }));
        }
        let key = record.attachment.key.clone();
        let detach = detach_request(key, record.id().to_owned(), is_returned);
        match self.call_detach(detach).await {
            Ok(()) if is_returned => {
                Milestone::ReleaseTold.pass();
                self.forget(record);
            }
            Ok(()) => {}
            Err(failure) => {
                tracing::info!(attachment = record.id(), "the DPU is told later: {failure}");
            }
        }
    }

    /// Makes a VF anew that is home and not as it was, at once or when its key is free again. Not again
    /// before the pause after the last attempt is over.
    async fn renew(self: &Arc<Self>, record: Arc<Record>, what: &str, renewal: Renewal) {
        if !self.pauses.is_over(record.pci_address()) {
            return;
        }
        match renewal {
            Renewal::Later => self.renew_later(record),
            Renewal::Now => {
                let home = self.renew_of_record(&record, what).await;
                if matches!(home, Ok(Homecoming::Clean)) {
                    self.tell_released(&record, &home).await;
                }
            }
        }
    }

    fn renew_later(self: &Arc<Self>, record: Arc<Record>) {
        let under_way = self.renewals.begin(record.pci_address());
        let agent = Arc::clone(self);
        self.tasks.spawn(async move {
            agent.reconcile(record.id()).await;
            drop(under_way);
        });
    }

    /// Says that the attachment is being given back, and begins to write that to the disk, unless it
    /// is there.
    fn begin_release(&self, record: Arc<Record>) -> (Arc<Record>, Option<Written>) {
        if record.phase == Phase::Releasing {
            return (record, None);
        }
        let releasing = Arc::new(record.in_phase(Phase::Releasing));
        self.records.keep(&releasing);
        let written = self.records.write(&releasing);
        (releasing, Some(written))
    }

    fn forget(&self, record: &Record) {
        self.records.remove(record.id());
        Milestone::ReleaseForgotten.pass();
        self.broken().remove(record.id());
        self.inventory_changed();
        self.vf_became_free();
        tracing::info!(
            attachment = record.id(),
            key = %record.key(),
            vf = record.pci_address(),
            "detached"
        );
    }

    /// A VF that is still away is worked at as soon as it shows up, and any other only after a pause.
    fn note_absence(&self, record: &Record, failure: &Failure) {
        if failure.reason != Reason::VfMissing {
            self.pauses.failed(record.id());
        }
        tracing::warn!(attachment = record.id(), "the VF is not back yet: {failure}");
    }

    /// Gets the VF into the host's namespace, as it was before as far as it can be restored.
    async fn bring_home(
        self: &Arc<Self>,
        record: &Arc<Record>,
        patience: Duration,
    ) -> Result<Homecoming, Failure> {
        let deadline = Instant::now() + patience;
        let mut arrivals = self.vf_events.subscribe();
        let mut retried = false;
        loop {
            match self.try_bring_home(record, false).await {
                Ok(home) => return Ok(home),
                Err(failure) if failure.reason == Reason::VfMissing => {
                    // It comes back when the kernel has cleaned the pod's namespace up.
                    if timeout_at(deadline, arrivals.changed()).await.is_err() {
                        return Err(failure);
                    }
                }
                Err(failure) if retried => return Err(failure),
                Err(failure) => {
                    tracing::debug!(attachment = record.id(), "trying again: {failure}");
                    retried = true;
                }
            }
        }
    }

    /// Likewise, once. What a VF is like that `is_new` is learned, if that was not known.
    pub(in crate::agent) async fn try_bring_home(
        self: &Arc<Self>,
        record: &Arc<Record>,
        is_new: bool,
    ) -> Result<Homecoming, Failure> {
        let (agent, moved) = (Arc::clone(self), Arc::clone(record));
        let work = move || {
            agent.bring_home_now(&moved)?;
            agent.see_at_home(&moved, is_new).map_err(|error| failed(&error))
        };
        let Some(seen) = self.when_its_turn(work).await?? else { return Ok(Homecoming::Clean) };
        let mut found = self.prove(vec![seen]).await?;
        let differences = found.remove(record.pci_address()).unwrap_or_default();
        Ok(match differences.is_empty() {
            true => Homecoming::Clean,
            false => Homecoming::Different(differences.join("; ")),
        })
    }

    fn bring_home_now(&self, record: &Record) -> Result<(), Failure> {
        let pod = record.netns.living().map(Arc::new);
        let namespaces =
            Namespaces::open(&self.host, pod).map_err(|error| failed(&error.into()))?;
        let scene = Scene::new(self.cargo(record)?, namespaces);
        scene.move_out().map_err(|failure| failure_of_move(record, &failure))
    }

    /// Looks at a VF that is home. `None`: it has no link to look at.
    fn see_at_home(&self, record: &Record, is_new: bool) -> Result<Option<Seen>, MoveError> {
        if record.original.is_handed_over {
            return Ok(None);
        }
        let vf = record.vf();
        let missing = || MoveError::Missing(vf.pci_address.clone());
        let mut host = Rtnl::open_in(&self.host)?;
        let name = Some(record.original.name.as_str());
        let link = vf_source::find(&*self.source, &mut host, &vf.pci_address, name)?;
        let link = link.ok_or_else(missing)?;
        if is_new {
            self.learn_of_new(&vf, &link)?;
        }
        let seen = self.see(&[(vf.clone(), link.index)])?.pop().ok_or_else(missing)?;
        Ok(Some(if is_new { seen.made_just_now() } else { seen }))
    }
}

fn failed(error: &MoveError) -> Failure {
    Failure::new(error.reason(), error.to_string())
}
