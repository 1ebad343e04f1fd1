//! The way home: a VF is taken out of its pod, restored, and looked at as a whole.

use std::{path::Path, sync::Arc, time::Duration};

use netlink::{Link, Netns, Rtnl};
use offload_proto::{Failure, Reason, log_event};
use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use super::{
    cleanliness::Cleanliness,
    device_info,
    host::Host,
    move_failure::failure_of_move,
    move_turns::Way,
    pauses::Pauses,
    proofs::Seen,
    records::{Phase, Record, Written},
    renewal::{Renewer, UnderWay},
    stacked::Stacked,
};
use crate::{
    agent::{kill_points::KillPoint, signals::Signals},
    mover::{MoveError, Namespaces, VfMove},
    vf_source,
};

/// What a VF is like that came home.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::agent) enum Condition {
    /// It is as it was.
    Clean,
    /// What is not.
    Different(String),
}

/// Takes VFs out of pods, and forgets their records.
#[derive(Debug)]
pub(in crate::agent) struct Homecoming {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    renewer: Arc<Renewer>,
    pauses: Arc<Pauses>,
    signals: Arc<Signals>,
}

impl Homecoming {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        renewer: &Arc<Renewer>,
        pauses: &Arc<Pauses>,
        signals: Arc<Signals>,
    ) -> Self {
        Self {
            host: Arc::clone(host),
            cleanliness: Arc::clone(cleanliness),
            renewer: Arc::clone(renewer),
            pauses: Arc::clone(pauses),
            signals,
        }
    }

    /// Records that an attachment is being given back, gets its VF into the host's namespace, as it was before as far as
    /// it can be restored, and looks at it as a whole. The caller holds the key's lock.
    pub(in crate::agent) async fn bring(
        self: &Arc<Self>,
        record: Arc<Record>,
        patience: Duration,
    ) -> (Arc<Record>, Result<Condition, Failure>) {
        let (record, out) = self.bring_out(record, patience, &Arc::default()).await;
        let home = self.look_at(&record, out).await;
        (record, home)
    }

    /// The first half of [`bring`](Self::bring): the pod has the VF no more. Waits up to `patience` for a VF whose pod's
    /// namespace has ended. `moving` is notified when it is the VF's turn to be moved.
    ///
    /// Phase *releasing* is on the disk before this returns, and so before the runtime gets an answer. The VF's move
    /// and the call to the DPU do not wait for the disk. If the agent dies in between, the VF is moved back into its
    /// pod, perhaps without a network, until the DPU or the caller requests the release again.
    pub(in crate::agent) async fn bring_out(
        self: &Arc<Self>,
        record: Arc<Record>,
        patience: Duration,
        moving: &Arc<Notify>,
    ) -> (Arc<Record>, Result<(), Failure>) {
        let (record, written) = self.begin(record);
        KillPoint::ReleaseBegun.pass();
        let out = self.bring_out_patiently(&record, patience, moving).await;
        KillPoint::ReleaseMoved.pass();
        if let Some(written) = written {
            end_of_writing(&record, written).await;
        }
        let (record, out) = match out {
            Ok(stacked) if stacked.is_empty() => (record, Ok(())),
            Ok(stacked) => (self.note_stacked(&record, stacked).await, Ok(())),
            Err(failure) => (record, Err(failure)),
        };
        KillPoint::ReleaseRecorded.pass();
        (record, out)
    }

    /// Records a VF's upper devices until its reset, also across a crash: a later look may not find them.
    async fn note_stacked(&self, record: &Record, stacked: Vec<String>) -> Arc<Record> {
        let noted = Arc::new(Record { stacked, ..record.clone() });
        self.host.records().keep(&noted);
        end_of_writing(&noted, self.host.records().write(&noted)).await;
        noted
    }

    /// The second half: whether a VF that is `out` of its pod is as it was. What fails once is tried again.
    pub(in crate::agent) async fn look_at(
        self: &Arc<Self>,
        record: &Arc<Record>,
        out: Result<(), Failure>,
    ) -> Result<Condition, Failure> {
        let home = match out {
            Ok(()) => match self.condition(record, false).await {
                Err(failure) => {
                    tracing::debug!(attachment = record.id(), %failure, "verifying the VF again");
                    self.condition(record, false).await
                }
                condition => condition,
            },
            Err(failure) => Err(failure),
        };
        self.note(record, &home);
        home
    }

    /// Remembers how the way home ended.
    fn note(&self, record: &Record, home: &Result<Condition, Failure>) {
        match home {
            Ok(Condition::Clean) => {
                self.pauses.succeeded(record.id());
                self.renewer.note_clean(record.device());
            }
            Ok(Condition::Different(what)) => {
                tracing::info!(
                    attachment = record.id(),
                    differences = what,
                    "the VF is back with differences"
                );
            }
            Err(failure) => self.note_absence(record, failure),
        }
    }

    /// A VF that is still away is worked at as soon as it shows up, and any other only after a pause.
    fn note_absence(&self, record: &Record, failure: &Failure) {
        if failure.reason != Reason::VfMissing {
            self.pauses.failed(record.id());
        }
        tracing::warn!(attachment = record.id(), %failure, "the VF is not back yet");
    }

    /// Says that an attachment is being given back, and begins to write that to the disk, unless it is
    /// there.
    fn begin(&self, record: Arc<Record>) -> (Arc<Record>, Option<Written>) {
        if record.phase == Phase::Releasing {
            return (record, None);
        }
        let releasing = Arc::new(record.in_phase(Phase::Releasing));
        self.host.records().keep(&releasing);
        let written = self.host.records().write(&releasing);
        (releasing, Some(written))
    }

    /// Records in memory that nothing of an attachment is left here: the VF is back and verified, and no interface has
    /// its leased addresses. Call it before the Detach is dated: no later inventory then reports the VF as in use, and
    /// every earlier one does.
    pub(in crate::agent) fn note_returned(&self, record: &Record) {
        let returned = Record { is_returned: true, ..record.clone() };
        self.host.records().keep(&Arc::new(returned));
    }

    /// Forgets an attachment of which nothing is left, neither here nor at the DPU.
    pub(in crate::agent) fn forget(&self, record: &Record) {
        self.host.records().remove(record.id());
        KillPoint::ReleaseRemoved.pass();
        self.signals.inventory_changed();
        self.signals.vf_became_free();
        tracing::info!(
            event = log_event::DETACHED,
            attachment = record.id(),
            key = %record.key(),
            vf = record.device().as_str(),
            "detached"
        );
    }

    /// Gets the VF into the host's namespace, and tells what its pod has stacked on it.
    async fn bring_out_patiently(
        self: &Arc<Self>,
        record: &Arc<Record>,
        patience: Duration,
        moving: &Arc<Notify>,
    ) -> Result<Vec<String>, Failure> {
        device_info::remove(record);
        let deadline = Instant::now() + patience;
        // Subscribed before the first look: a VF that comes between the two is not missed.
        let mut arrivals = self.signals.vf_events();
        let mut retried = false;
        loop {
            match self.try_bring_out(record, moving).await {
                Ok(stacked) => return Ok(stacked),
                Err(failure) if failure.reason == Reason::VfMissing => {
                    // It comes back when the kernel has cleaned the pod's namespace up.
                    if timeout_at(deadline, arrivals.changed()).await.is_err() {
                        return Err(failure);
                    }
                }
                Err(failure) if retried => return Err(failure),
                Err(failure) => {
                    tracing::debug!(attachment = record.id(), %failure, "moving the VF back again");
                    retried = true;
                }
            }
        }
    }

    /// Tries once to move the VF out.
    async fn try_bring_out(
        self: &Arc<Self>,
        record: &Arc<Record>,
        moving: &Arc<Notify>,
    ) -> Result<Vec<String>, Failure> {
        let (this, moved, moving) = (Arc::clone(self), Arc::clone(record), Arc::clone(moving));
        let pod = self.host.lock_pod(&record.netns, &[&record.attachment]).await?;
        let work = move || {
            moving.notify_one();
            let brought = this.bring_home_now(&moved);
            drop(pod);
            brought
        };
        // A wrong speculative attach has priority as a move into a pod: an ADD waits for it.
        let way = if record.is_guess { Way::In } else { Way::Home };
        let Some(pod) = self.host.move_vf(way, work).await?? else { return Ok(Vec::new()) };
        let (this, record) = (Arc::clone(self), Arc::clone(record));
        let look = move || this.stacked_in(&pod, &record).map_err(|error| failed(&error));
        self.host.look(look).await?
    }

    /// The upper devices of a returned VF in the pod's namespace. Looked up at once: a caller that learns that the VF
    /// is out may end the namespace.
    fn stacked_in(&self, pod: &Netns, record: &Record) -> Result<Vec<String>, MoveError> {
        let path = Path::new(&record.netns.path);
        let stacked = Stacked::in_pod(pod, path, self.host.netns());
        if stacked.is_nothing() {
            return Ok(Vec::new());
        }
        let link = self.link_at_home(record, &mut self.host.rtnl()?)?;
        Ok(link.map(|link| stacked.told_of(link.index)).unwrap_or_default())
    }

    /// Looks at a VF that is home, as a whole. What one is like that `is_new` is learned, if that was not known.
    async fn condition(
        self: &Arc<Self>,
        record: &Arc<Record>,
        is_new: bool,
    ) -> Result<Condition, Failure> {
        let (this, looked_at) = (Arc::clone(self), Arc::clone(record));
        let look = move || this.see_at_home(&looked_at, is_new).map_err(|error| failed(&error));
        let Some(seen) = self.host.look(look).await?? else { return Ok(Condition::Clean) };
        let seen = seen.with_stacked_in_pod(record.stacked.clone());
        let mut found = self.cleanliness.prove(vec![seen]).await?;
        let differences = found.remove(record.device()).unwrap_or_default();
        Ok(match differences.is_empty() {
            true => Condition::Clean,
            false => Condition::Different(differences.join("; ")),
        })
    }

    /// Returns the pod's namespace, if it is there and not the host's own.
    fn bring_home_now(&self, record: &Record) -> Result<Option<Arc<Netns>>, Failure> {
        let (host, pod) = (self.host.netns(), record.netns.living().map(Arc::new));
        let namespaces =
            Namespaces::open(host, pod.clone()).map_err(|error| failed(&error.into()))?;
        let vf_move = VfMove::new(self.host.move_of(record)?, namespaces);
        vf_move.move_out().map_err(|failure| failure_of_move(record, &failure))?;
        Ok(pod.filter(|pod| pod.id() != host.id()))
    }

    /// Looks at a VF that is home. `None`: it has no link to look at.
    fn see_at_home(&self, record: &Record, is_new: bool) -> Result<Option<Seen>, MoveError> {
        if record.original.is_handed_over {
            return Ok(None);
        }
        let missing = || MoveError::Missing(record.device().clone());
        let vf = record.vf().map_err(|_| missing())?;
        let link = self.link_at_home(record, &mut self.host.rtnl()?)?.ok_or_else(missing)?;
        if is_new {
            self.cleanliness.learn_of_new(&vf, &link)?;
        }
        let seen = self.cleanliness.see(&[(vf.clone(), link.index)])?.pop().ok_or_else(missing)?;
        Ok(Some(if is_new { seen.made_just_now() } else { seen }))
    }

    fn link_at_home(&self, record: &Record, host: &mut Rtnl) -> Result<Option<Link>, MoveError> {
        let name = Some(record.original.name.as_str());
        Ok(vf_source::find(self.host.source(), host, record.device(), name)?)
    }

    /// Whether the backoff of the last reset of the record's VF is over.
    pub(in crate::agent) fn is_renewal_due(&self, record: &Record) -> bool {
        self.renewer.is_due(record.device())
    }

    /// Marks the record's VF as being reset until the guard is dropped: passes and inventories leave it alone. `None`:
    /// it is marked already.
    pub(in crate::agent) fn announce_renewal(&self, record: &Record) -> Option<UnderWay> {
        self.renewer.begin(record.device())
    }

    /// Resets the returned VF of a record and restores it. The caller holds the key's lock. This ends an announced
    /// reset that waits for that lock: the caller may be an ADD that needs a VF, perhaps this one.
    ///
    /// # Errors
    /// When the new one can't be brought into order.
    pub(in crate::agent) async fn renew(
        self: &Arc<Self>,
        record: Arc<Record>,
        what: &str,
    ) -> (Arc<Record>, Result<Condition, Failure>) {
        match self.try_renew(&record, what).await {
            Ok(Condition::Clean) if !record.stacked.is_empty() => {
                (self.note_stacked(&record, Vec::new()).await, Ok(Condition::Clean))
            }
            home => (record, home),
        }
    }

    async fn try_renew(
        self: &Arc<Self>,
        record: &Arc<Record>,
        what: &str,
    ) -> Result<Condition, Failure> {
        let vf = record.vf()?;
        let _under_way = self.renewer.take_over(&vf.device);
        let turn = self.renewer.turn().await;
        if let Err(why) = self.renewer.reset_vf(&vf, what, turn).await {
            self.renewer.try_again_after_pause(&vf);
            return Ok(Condition::Different(format!("{what}; it cannot be reset: {why}")));
        }
        let home = self.bring_anew(record).await;
        KillPoint::ResetVerified.pass();
        let is_clean = matches!(home, Ok(Condition::Clean));
        self.renewer.note_renewed(&vf, is_clean, what);
        if is_clean {
            self.pauses.succeeded(record.id());
        }
        home
    }

    /// Restores a VF after its reset, wherever its new link is, and verifies it.
    async fn bring_anew(self: &Arc<Self>, record: &Arc<Record>) -> Result<Condition, Failure> {
        // What was stacked on the link before has ended with that.
        let _stacked = self.try_bring_out(record, &Arc::default()).await?;
        self.condition(record, true).await
    }
}

/// A full disk must not keep a VF.
async fn end_of_writing(record: &Record, written: Written) {
    if let Err(failure) = written.done().await {
        tracing::error!(attachment = record.id(), %failure, "cannot write the record");
    }
}

fn failed(error: &MoveError) -> Failure {
    Failure::new(error.reason(), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::vfs::{records::tests::record, room::tests::vfs};

    #[tokio::test]
    async fn clean_return_ends_the_resets_backoff() {
        let (vfs, _folder) = vfs();
        let record = record("a", "c");
        vfs.renewer().note_renewed(&record.vf().unwrap(), false, "it differs");
        assert!(!vfs.homecoming().is_renewal_due(&record));
        vfs.homecoming().note(&record, &Ok(Condition::Clean));
        assert!(vfs.homecoming().is_renewal_due(&record));
    }
}
