//! [`Vfs`] hands out the module's parts.

use std::{path::PathBuf, sync::Arc, time::Duration};

use netlink::{LinkMonitor, MacAddress, Netns};
use offload_proto::{Failure, Reason};
use tokio_util::task::TaskTracker;

use super::{
    abroad::Abroad,
    ahead::Ahead,
    claims::Claims,
    cleanliness::Cleanliness,
    free_vfs::FreeVfs,
    homecoming::Homecoming,
    host::Host,
    intake::Intake,
    keys::Keys,
    location::VfLocation,
    numbers::Numbers,
    originals::Originals,
    pauses::Pauses,
    pod_locks::PodLocks,
    records::{Record, Records},
    renewal::Renewer,
};
use crate::{
    agent::{kill_points::KillPoint, repairs::Repairs, signals::Signals},
    mover::{Announcer, PodState, inspect, state_in_pod},
    vf_source::VfSource,
};

/// The VFs of this host, and who has which.
#[derive(Debug)]
pub(in crate::agent) struct Vfs {
    host: Arc<Host>,
    keys: Keys,
    cleanliness: Arc<Cleanliness>,
    renewer: Arc<Renewer>,
    numbers: Arc<Numbers>,
    free_vfs: Arc<FreeVfs>,
    abroad: Arc<Abroad>,
    claims: Claims,
    ahead: Arc<Ahead>,
    intake: Arc<Intake>,
    homecoming: Arc<Homecoming>,
    /// How long to wait before the VF of an attachment is worked at again, by the attachment's id.
    pauses: Arc<Pauses>,
    signals: Arc<Signals>,
    repairs: Arc<Repairs>,
}

/// What a host's VFs are worked on with.
pub(in crate::agent) struct Furnishing {
    pub source: Arc<dyn VfSource>,
    /// The host's own namespace.
    pub netns: Netns,
    pub boot_id: String,
    pub records: Records,
    pub originals: Originals,
    /// What the host's agents take turns at pods by.
    pub pods: PodLocks,
    pub announcer: Announcer,
    /// How long a carrier is waited for.
    pub carrier_limit: Duration,
    /// Where VFs are looked for that no record names.
    pub netns_folders: Vec<PathBuf>,
    /// Through which folders network namespaces can be reached.
    pub reachable_netns: Vec<PathBuf>,
    pub signals: Arc<Signals>,
    /// Work that is finished before the agent ends.
    pub tasks: TaskTracker,
}

impl Vfs {
    pub(in crate::agent) fn new(with: Furnishing) -> Self {
        let Furnishing { signals, tasks, .. } = with;
        let repairs = Arc::new(Repairs::default());
        let host = Host::new(
            with.source,
            with.netns,
            with.records,
            with.pods,
            with.announcer,
            with.carrier_limit,
        );
        let host = Arc::new(host);
        let cleanliness =
            Cleanliness::new(&host, with.originals, with.reachable_netns, Arc::clone(&repairs));
        let cleanliness = Arc::new(cleanliness);
        let renewer =
            Renewer::new(&host, &cleanliness, Arc::clone(&signals), Arc::clone(&repairs), tasks);
        let renewer = Arc::new(renewer);
        let numbers = Numbers::new(&host, &cleanliness, &renewer, Arc::clone(&repairs));
        let numbers = Arc::new(numbers);
        let free_vfs = FreeVfs::new(&host, &cleanliness, &renewer);
        let abroad = Abroad::new(
            &host,
            &cleanliness,
            with.netns_folders,
            Arc::clone(&signals),
            Arc::clone(&repairs),
        );
        let claims = Claims::new(&host, &cleanliness, &renewer);
        let ahead = Ahead::new(&host, &cleanliness, &numbers, with.boot_id.clone());
        let intake = Intake::new(&host, &cleanliness, &numbers, with.boot_id);
        let pauses = Arc::new(Pauses::default());
        let homecoming =
            Homecoming::new(&host, &cleanliness, &renewer, &pauses, Arc::clone(&signals));
        Self {
            keys: Keys::default(),
            free_vfs: Arc::new(free_vfs),
            abroad: Arc::new(abroad),
            claims,
            ahead: Arc::new(ahead),
            intake: Arc::new(intake),
            homecoming: Arc::new(homecoming),
            host,
            cleanliness,
            renewer,
            numbers,
            pauses,
            signals,
            repairs,
        }
    }

    /// The host's cards and links, and looks at them.
    pub(in crate::agent) fn host(&self) -> &Arc<Host> {
        &self.host
    }

    /// The records, for reading.
    pub(in crate::agent) fn records(&self) -> &Records {
        self.host.records()
    }

    /// The locks of attachments.
    pub(in crate::agent) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Whether VFs are as they were.
    pub(in crate::agent) fn cleanliness(&self) -> &Arc<Cleanliness> {
        &self.cleanliness
    }

    /// Resets VFs.
    pub(in crate::agent) fn renewer(&self) -> &Arc<Renewer> {
        &self.renewer
    }

    /// How many VFs there are.
    pub(in crate::agent) fn numbers(&self) -> &Arc<Numbers> {
        &self.numbers
    }

    /// Restores free VFs.
    pub(in crate::agent) fn free_vfs(&self) -> &Arc<FreeVfs> {
        &self.free_vfs
    }

    /// The VFs where no record has them.
    pub(in crate::agent) fn abroad(&self) -> &Arc<Abroad> {
        &self.abroad
    }

    /// The VFs that are kept for ADDs that are under way.
    pub(in crate::agent) fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The way into pods of VFs that are guessed.
    pub(in crate::agent) fn ahead(&self) -> &Arc<Ahead> {
        &self.ahead
    }

    /// The way into pods.
    pub(in crate::agent) fn intake(&self) -> &Arc<Intake> {
        &self.intake
    }

    /// The way home.
    pub(in crate::agent) fn homecoming(&self) -> &Arc<Homecoming> {
        &self.homecoming
    }

    /// How long to wait before the VF of an attachment is worked at again that an event asks for.
    pub(in crate::agent) fn pause_of(&self, id: &str) -> Duration {
        self.pauses.of(id)
    }

    /// Where the VF of a record is, and whether its pod's namespace is still there. Remembers whether the pod has
    /// lost it. The kernel is asked, and not the records: whatever moved the VF, that is where it is.
    ///
    /// # Errors
    /// [`Reason::MoveFailed`]: it can't be looked at.
    pub(in crate::agent) async fn locate(
        &self,
        record: &Arc<Record>,
    ) -> Result<(VfLocation, bool), Failure> {
        let (host, wanted) = (Arc::clone(&self.host), Arc::clone(record));
        let located = self.host.look(move || host.locate(&wanted)).await?;
        let located =
            located.map_err(|error| Failure::new(Reason::MoveFailed, error.to_string()))?;
        match located {
            (VfLocation::Pod, _) => self.note_in_pod(record),
            (VfLocation::Nowhere, true) => self.records().note_broken(record.id(), true),
            _ => {}
        }
        Ok(located)
    }

    /// Gets the VF of a record back into its pod, which has lost it, and waits for the carrier and for the VF's
    /// `port` at the DPU. The caller holds the key's lock.
    ///
    /// # Errors
    /// Why it is not there.
    pub(in crate::agent) async fn put_back(
        &self,
        record: &Arc<Record>,
        port: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        self.records().note_broken(record.id(), true);
        if let Err(failure) = self.intake.move_in(record, port).await {
            self.pauses.failed(record.id());
            return Err(failure);
        }
        KillPoint::PutBack.pass();
        self.note_in_pod(record);
        Ok(())
    }

    fn note_in_pod(&self, record: &Record) {
        self.pauses.succeeded(record.id());
        self.records().note_broken(record.id(), false);
    }

    /// How the interface of a record is in its pod. Where the pod's namespace has ended it is complete.
    ///
    /// # Errors
    /// [`Reason::MoveFailed`]: it can't be looked at.
    pub(in crate::agent) async fn state_in_pod(
        &self,
        record: &Record,
    ) -> Result<PodState, Failure> {
        let Some(pod) = record.netns.living() else { return Ok(PodState::Complete) };
        let spec = self.host.move_of(record)?;
        let state = self.host.look(move || state_in_pod(&spec, &pod)).await?;
        state.map_err(|error| Failure::new(error.reason(), error.to_string()))
    }

    /// What wakes the keepers.
    pub(in crate::agent) fn signals(&self) -> &Arc<Signals> {
        &self.signals
    }

    /// What was repaired lately.
    pub(in crate::agent) fn repairs(&self) -> &Arc<Repairs> {
        &self.repairs
    }

    /// Opens the monitor of links in the host's namespace.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(in crate::agent) fn monitor(&self) -> Result<LinkMonitor, netlink::Error> {
        LinkMonitor::open(self.host.netns())
    }

    /// The problem of a record's pod, whose namespace exists. `mac`: the interface's address in a previous result.
    ///
    /// # Errors
    /// [`Reason::CheckFailed`]: the pod cannot be examined.
    pub(in crate::agent) async fn inspect(
        &self,
        record: &Record,
        pod: Netns,
        mac: Option<MacAddress>,
    ) -> Result<Option<String>, Failure> {
        let spec = self.host.move_of(record)?;
        let inspected = self.host.look(move || inspect(&spec, &pod, mac)).await?;
        inspected.map_err(|error| Failure::new(Reason::CheckFailed, error.to_string()))
    }
}

#[cfg(test)]
pub(in crate::agent) mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::{agent::vfs::move_turns::Way, vf_source::VirtualCard};

    /// The VFs of a host that has none, and the folder of its records.
    pub(in crate::agent) fn vfs() -> (Arc<Vfs>, TempDir) {
        vfs_of(Arc::new(VirtualCard::default()))
    }

    /// Waits for a turn at moving a VF.
    pub(in crate::agent) async fn turn_at_moving(vfs: &Vfs) -> Result<(), Failure> {
        vfs.host.move_vf(Way::In, || ()).await
    }

    /// Waits until the number of VFs could be changed.
    pub(in crate::agent) async fn change_of_numbers(vfs: &Vfs) {
        drop(vfs.numbers.no_attach().await);
    }

    /// The VFs of a host with a card of that kind, and the folder of its records.
    pub(in crate::agent) fn vfs_of(source: Arc<dyn VfSource>) -> (Arc<Vfs>, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let vfs = Vfs::new(Furnishing {
            source,
            netns: Netns::current().unwrap(),
            boot_id: "boot".into(),
            records: Records::open(folder.path(), "boot").unwrap(),
            pods: PodLocks::open(&folder.path().join("pods.lock")).unwrap(),
            originals: Originals::open(folder.path().join("vfs.json"), "boot".into()).unwrap(),
            announcer: Announcer::start().unwrap(),
            carrier_limit: Duration::from_millis(200),
            netns_folders: Vec::new(),
            reachable_netns: vec!["/run/netns".into(), "/run/docker/netns".into(), "/proc".into()],
            signals: Arc::default(),
            tasks: TaskTracker::new(),
        });
        (Arc::new(vfs), folder)
    }
}
