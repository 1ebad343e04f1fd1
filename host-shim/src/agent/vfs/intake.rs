//! The host's half of an ADD: the VFs that the DPU chose are recorded and moved into their pod, unless they are there
//! [ahead](super::ahead), and configured, in one go on a thread that may wait for the disk and the kernel.

use std::{
    io::ErrorKind,
    sync::Arc,
    time::{Duration, Instant},
};

use offload_proto::{Failure, Reason, v1};
use traces::Instrument;
use vf_alloc::Device;

use super::{
    cleanliness::Cleanliness,
    device_info,
    drafts::{Drafts, Wanted},
    host::Host,
    intake_failure::{IntakeFailure, none_found, not_moved},
    move_failure::{failure_among, failure_of_move},
    move_turns::Way,
    numbers::Numbers,
    pod_locks::PodLock,
    records::{Phase, PodNetns, Record},
};
use crate::{
    agent::kill_points::KillPoint,
    mover::{Arrival, Durations, Namespace, Namespaces, VfMove},
    protocol::Key,
};

/// A VF that is in its pod.
pub(in crate::agent) struct TakenIn {
    pub record: Arc<Record>,
    /// How long it took until the record was written.
    pub recording: Duration,
    pub durations: Durations,
}

/// A VF that is in its pod, perhaps without a carrier yet.
pub(in crate::agent) struct Arrived {
    record: Arc<Record>,
    recording: Duration,
    arrival: Arrival,
}

/// Records attachments and moves their VFs into pods.
#[derive(Debug)]
pub(in crate::agent) struct Intake {
    host: Arc<Host>,
    cleanliness: Arc<Cleanliness>,
    numbers: Arc<Numbers>,
    drafts: Drafts,
}

impl Intake {
    pub(super) fn new(
        host: &Arc<Host>,
        cleanliness: &Arc<Cleanliness>,
        numbers: &Arc<Numbers>,
        boot_id: String,
    ) -> Self {
        Self {
            host: Arc::clone(host),
            cleanliness: Arc::clone(cleanliness),
            numbers: Arc::clone(numbers),
            drafts: Drafts::new(host, cleanliness, boot_id),
        }
    }

    /// Records attachments of one pod and moves their VFs into it, all or none. The caller holds the keys' locks and
    /// waits for no other lock from here on.
    ///
    /// When the move's turn has come, `is_awaited` reports whether the attachments are still awaited.
    ///
    /// # Errors
    /// Why the VFs are not in their pod, and what is left to be given back.
    pub(in crate::agent) async fn enter(
        self: &Arc<Self>,
        wanted: Vec<Wanted>,
        netns: PodNetns,
        is_awaited: impl FnOnce() -> Result<(), Failure> + Send + 'static,
    ) -> Result<Vec<Arrived>, IntakeFailure> {
        // A change of the number of VFs would take a VF away between the look at it and its record.
        let _vfs_stay = self.numbers.vfs_stay().await;
        // Until they are recorded, a reset or a speculative attach could take the VFs: both look at the records.
        let devices: Vec<_> = wanted.iter().map(Wanted::device).collect();
        let _not_renewed = self.host.lock_free_vfs(&devices).await;
        if let Some(holder) = wanted.iter().find_map(|one| self.other_holder_of(one)) {
            return Err(none_found(held_by_another(&holder)));
        }
        let attachments: Vec<_> = wanted.iter().map(|one| &one.attachment).collect();
        let pod = self.host.lock_pod(&netns, &attachments).await;
        let are_ahead = self.are_ahead(&wanted);
        let this = Arc::clone(self);
        let work = move || {
            // Another move may have taken long.
            let pod = pod.and_then(|pod| is_awaited().map(|()| pod));
            this.enter_now(&wanted, &netns, pod)
        };
        let entered = match are_ahead {
            true => self.host.finish_move(work).await,
            false => self.host.move_vf(Way::In, work).await,
        };
        entered.map_err(none_found)?
    }

    /// The record of another attachment that holds the VF.
    fn other_holder_of(&self, wanted: &Wanted) -> Option<Arc<Record>> {
        let holder = self.host.records().by_device(&wanted.device())?;
        let is_own_guess = holder.is_guess && holder.key() == wanted.request.key;
        (holder.id() != wanted.attachment.id && !is_own_guess).then_some(holder)
    }

    /// Whether all VFs were moved ahead, so that the move itself is over.
    fn are_ahead(&self, wanted: &[Wanted]) -> bool {
        wanted.iter().all(|one| self.is_ahead(&one.request.key, &one.device()))
    }

    fn is_ahead(&self, key: &Key, device: &Device) -> bool {
        let guess = self.host.records().guess_of(key);
        guess.is_some_and(|guess| guess.device() == device)
    }

    /// Waits for the carrier of a VF that is in its pod, and for its `port` at the DPU.
    ///
    /// # Errors
    /// The pod cannot have the VF. Its record still says that the ADD was not answered.
    pub(in crate::agent) async fn settle(
        &self,
        arrived: Arrived,
        port: impl Future<Output = ()>,
    ) -> Result<TakenIn, Failure> {
        let Arrived { record, recording, arrival } = arrived;
        match arrival.settle(port).instrument(traces::step("carrier")).await {
            Ok(durations) => Ok(TakenIn { record, recording, durations }),
            Err(failed) => Err(failure_of_move(&record, &failed)),
        }
    }

    /// The records are written before a VF is touched, and all at once. `pod`: the pod's lock, if it is needed, or why
    /// it is not to begin.
    fn enter_now(
        &self,
        wanted: &[Wanted],
        netns: &PodNetns,
        pod: Result<Option<PodLock>, Failure>,
    ) -> Result<Vec<Arrived>, IntakeFailure> {
        let began = Instant::now();
        let record = || traces::step("record").in_scope(|| self.record(wanted.to_vec(), netns));
        let recorded = pod.and_then(|pod| Ok((pod, record()?)));
        let (_pod, (records, moves)) = recorded.map_err(|failure| {
            let found = self.drafts.at_home(wanted);
            IntakeFailure::Unrecorded { failure, found }
        })?;
        let recording = began.elapsed();
        let arrivals = self.move_in_now(&records, moves);
        let arrivals = arrivals.map_err(|failure| IntakeFailure::Unmoved { failure })?;
        let arrived = |(record, arrival)| Arrived { record, recording, arrival };
        Ok(records.into_iter().zip(arrivals).map(arrived).collect())
    }

    /// Writes the records and builds the moves at the same time: preparing a move does not wait for the disk.
    fn record(
        &self,
        wanted: Vec<Wanted>,
        netns: &PodNetns,
    ) -> Result<(Vec<Arc<Record>>, Vec<VfMove>), Failure> {
        let mut host = self.host.rtnl().map_err(not_moved)?;
        let mut records = self.drafts.draft_all(wanted, netns, &mut host)?;
        self.give_way(netns, &mut records)?;
        let records: Vec<_> = records.into_iter().map(Arc::new).collect();
        let written = self.host.records().write_all(&records);
        let moves: Result<Vec<_>, _> =
            records.iter().map(|record| self.begin_move(record)).collect();
        written.wait()?;
        let moves = moves?;
        KillPoint::AttachRecorded.pass();
        for record in &records {
            // In memory only now: no task may rely on a record that a crash would revert.
            self.host.records().keep(record);
            self.cleanliness.proofs().forget(record.device());
        }
        Ok((records, moves))
    }

    /// Raises the priorities of new records' routes above those of their pod and of each other.
    fn give_way(&self, netns: &PodNetns, records: &mut [Record]) -> Result<(), Failure> {
        let is_new = |record: &&mut Record| self.host.records().by_id(record.id()).is_none();
        let new = records.iter_mut().filter(is_new).map(|record| &mut record.attachment);
        open_pod(netns)?.give_way(new).map_err(not_moved)
    }

    /// The move of a record's VF into its pod, of which nothing is done yet.
    fn begin_move(&self, record: &Record) -> Result<VfMove, Failure> {
        let pod = Some(open_pod(&record.netns)?);
        let host = Namespace::open(Arc::clone(self.host.netns())).map_err(not_moved)?;
        let vf_move = VfMove::new(self.host.move_of(record)?, Namespaces { host, pod });
        Ok(match self.is_ahead(&record.key(), record.device()) {
            true => vf_move.moved_speculatively(),
            false => vf_move,
        })
    }

    /// Moves the VFs of records into their pod.
    fn move_in_now(
        &self,
        records: &[Arc<Record>],
        moves: Vec<VfMove>,
    ) -> Result<Vec<Arrival>, Failure> {
        let arrivals = VfMove::move_in_together(moves).map_err(|failed| {
            let all: Vec<_> = records.iter().map(|record| &**record).collect();
            self.with_owner(failure_among(&all, &failed), all[failed.context])
        })?;
        records.iter().try_for_each(|record| write_device_info(record))?;
        Ok(arrivals)
    }

    /// A name that is taken in the pod may be another attachment's: two containers can share a namespace.
    fn with_owner(&self, failure: Failure, record: &Record) -> Failure {
        let name = record.key().interface_name;
        let is_owner = |other: &&Arc<Record>| {
            let is_there = other.netns.id == record.netns.id && other.id() != record.id();
            is_there && other.key().interface_name == name
        };
        match self.host.records().all().iter().find(is_owner) {
            Some(owner) if failure.reason == Reason::InterfaceExists => {
                let message =
                    format!("{}, of attachment {} of {}", failure.message, owner.id(), owner.key());
                Failure::new(failure.reason, message)
            }
            _ => failure,
        }
    }

    /// Moves the VF of a record into its pod, and waits for the carrier and for its `port` at the DPU. The
    /// caller holds the key's lock.
    ///
    /// # Errors
    /// Why it could not be moved; the move is undone, unless it failed when the VF was in the pod.
    pub(in crate::agent) async fn move_in(
        self: &Arc<Self>,
        record: &Arc<Record>,
        port: impl Future<Output = ()>,
    ) -> Result<Durations, Failure> {
        let (this, moved) = (Arc::clone(self), Arc::clone(record));
        let pod = self.host.lock_pod(&record.netns, &[&record.attachment]).await?;
        let work = move || {
            let _pod = pod;
            this.move_in_again(&moved)
        };
        let arrival = self.host.move_vf(Way::In, work).await??;
        let settled = arrival.settle(port).await;
        settled.map_err(|failed| failure_of_move(record, &failed))
    }

    fn move_in_again(&self, record: &Record) -> Result<Arrival, Failure> {
        let arrival = self.begin_move(record)?.move_in();
        let arrival = arrival.map_err(|failed| failure_of_move(record, &failed))?;
        write_device_info(record)?;
        Ok(arrival)
    }

    /// Records that a pod keeps its VFs, all or none. That is on its way to the runtime from here on.
    ///
    /// # Errors
    /// [`Reason::RecordsUnavailable`]: nothing has changed.
    pub(in crate::agent) async fn keep(&self, records: &[Arc<Record>]) -> Result<(), Failure> {
        let live: Vec<_> =
            records.iter().map(|record| Arc::new(record.in_phase(Phase::Live))).collect();
        self.host.records().write_all(&live).done().await?;
        live.iter().for_each(|record| self.host.records().keep(record));
        Ok(())
    }

    /// Marks records as unanswered again. The caller releases the attachments, which is written after this and waited
    /// for, so this write is not waited for.
    pub(in crate::agent) fn keep_no_more(&self, records: &[Arc<Record>]) {
        records.iter().for_each(|record| self.host.records().keep(record));
        drop(self.host.records().write_all(records));
    }

    /// Drops what may have been written of an attachment whose VF was not touched, unless a record of
    /// it is relied on. Tells whether there is none.
    pub(in crate::agent) fn drop_untouched(&self, attachment: &v1::Attachment) -> bool {
        if self.host.records().by_id(&attachment.id).is_some() {
            return false;
        }
        // Its record may have been on its way to the disk.
        self.host.records().remove(&attachment.id);
        true
    }
}

/// A VF that another record holds is never touched.
fn held_by_another(holder: &Record) -> Failure {
    let message = format!(
        "VF {}, which the DPU chose, is held by {} of {}",
        holder.device(),
        holder.id(),
        holder.key()
    );
    Failure::new(Reason::VfNotFree, message)
}

fn write_device_info(record: &Record) -> Result<(), Failure> {
    device_info::write(record).map_err(|error| {
        let path = record.device_info_file.as_deref().unwrap_or_default();
        let message = format!("cannot write the device-info file {path}: {error}");
        // The caller chose the path; only a full disk is a problem of this host.
        let is_of_disk = matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
        Failure::new(if is_of_disk { Reason::MoveFailed } else { Reason::InvalidRequest }, message)
    })
}

/// Opens a pod's namespace, which has to be the one of the attach still.
pub(super) fn open_pod(netns: &PodNetns) -> Result<Namespace, Failure> {
    Namespace::open(Arc::new(netns.open()?)).map_err(not_moved)
}

#[cfg(test)]
pub(in crate::agent) mod tests {
    use netlink::{Link, Rtnl};
    use sriov::Handover;
    use vf_alloc::Device;

    use super::*;
    use crate::{
        agent::vfs::{
            records::tests::record,
            tests::{vfs, vfs_of},
        },
        protocol::AddRequest,
        vf_source::{PfFacts, ResetError, VfIdentity, VfSource},
    };

    /// An ADD of the container whose VF the record `earlier` still holds.
    pub(in crate::agent) fn attach_of(container_id: &str, earlier: &Record) -> Wanted {
        let record = record("new", container_id);
        let plain = AddRequest::plain(record.key(), record.netns.path.clone(), String::new());
        let request = AddRequest { configuration: record.configuration.clone(), ..plain };
        let attachment = v1::Attachment { vf: earlier.attachment.vf.clone(), ..record.attachment };
        Wanted { request, attachment }
    }

    #[tokio::test]
    async fn name_conflict_names_the_owner() {
        let (vfs, _folder) = vfs();
        let taken = || Failure::new(Reason::InterfaceExists, "taken: eth0");
        let newcomer = record("new", "newcomer");
        let told = |failure: Failure| vfs.intake().with_owner(failure, &newcomer).message;
        assert_eq!(told(taken()), "taken: eth0");
        let elsewhere =
            PodNetns { id: netlink::NetnsId { dev: 4, inode: 8 }, ..newcomer.netns.clone() };
        vfs.records().keep(&Arc::new(Record { netns: elsewhere, ..record("far", "elsewhere") }));
        vfs.records().keep(&Arc::new(newcomer.clone()));
        assert_eq!(told(taken()), "taken: eth0");
        vfs.records().keep(&Arc::new(record("old", "owner")));
        let told_of_owner = told(taken());
        assert!(told_of_owner.starts_with("taken: eth0, "), "{told_of_owner}");
        assert!(told_of_owner.ends_with(" old of owner/eth0"), "{told_of_owner}");
        assert_eq!(told(Failure::new(Reason::MoveFailed, "no room")), "no room");
    }

    /// A card whose VFs are all handed over to programs, none of which has one open.
    #[derive(Debug)]
    struct IdleDevices;

    impl VfSource for IdleDevices {
        fn vf_of(&self, _link: &Link) -> Option<VfIdentity> {
            None
        }

        fn pf_of(&self, _vf: &VfIdentity) -> PfFacts {
            PfFacts::default()
        }

        fn reset_vf(&self, _: &Device, _: &Link, _: &mut Rtnl) -> Result<(), ResetError> {
            Ok(())
        }

        fn handover(&self, _device: &Device) -> Result<Option<Handover>, sriov::Error> {
            Ok(Some(Handover::Idle))
        }
    }

    /// Otherwise the DPU would wait for the next inventory and refuse the repeated ADD until then.
    #[tokio::test]
    async fn untouched_vf_is_reported_as_present() {
        let (vfs, _folder) = vfs_of(Arc::new(IdleDevices));
        let wanted = attach_of("ended", &record("old", "holder"));
        let (netns, device) = (record("new", "ended").netns, wanted.device());
        let has_ended = || Err(Failure::new(Reason::DeadlineExceeded, "the caller has ended"));
        let entered = vfs.intake().enter(vec![wanted], netns, has_ended).await;
        let Err(IntakeFailure::Unrecorded { found, .. }) = entered else { panic!("recorded") };
        assert_eq!(found, [device]);
    }
}
