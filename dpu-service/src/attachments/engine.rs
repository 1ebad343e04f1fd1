//! State that all flows share: records, locks and drivers. Flows run to their end even if their caller goes away.

use std::{future::Future, path::PathBuf, sync::Arc};

use jiff::Timestamp;
use keyed_locks::KeyedLocks;
use offload_proto::{Failure, Reason};
use parking_lot::{Mutex, MutexGuard};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use traces::Instrument;
use vf_alloc::FunctionId;

use super::{
    phases::EnginePhases,
    ports::Ports,
    reconciler_state::ReconcilerState,
    registry::{Entry, Registry},
    settings::{Configuration, Settings},
    tombstones::Tombstones,
    unknown,
};
use crate::{
    audit::{AuditAction, AuditEntry, AuditFilter},
    author::{Author, Cause},
    conditions::Refusals,
    events::{EventKind, Events},
    gateway::Gateways,
    records::{Changes, OpenError, Records},
    sessions::Sessions,
};
use drivers::programmer::{Leftover, Programmer};
use model::{AttachmentKey, AttachmentView, Record};

/// The engine of attachments. The page of [`attachments`](super) states its locks, their order and who runs
/// concurrently.
///
/// Every call that changes something runs to its end, even if its caller goes away.
#[derive(Debug)]
pub struct Engine {
    registry: Mutex<Registry>,
    pub(super) records: Records,
    pub(super) ports: Ports,
    pub(super) sessions: Sessions,
    pub(super) events: Arc<Events>,
    /// Every flow of an attachment holds the lock of its key from beginning to end.
    pub(super) keys: KeyedLocks<AttachmentKey>,
    /// The latest Detach of each key. A flow reads and writes a key's tombstone with the key locked.
    pub(super) tombstones: Mutex<Tombstones>,
    /// Serialises changes of networks.
    pub(super) network_changes: tokio::sync::Mutex<()>,
    flows: TaskTracker,
    pub(super) reconciler: ReconcilerState,
    /// The gateways on this DPU.
    pub(crate) gateways: Arc<Gateways>,
    pub(crate) phases: EnginePhases,
    /// Recently refused ADDs.
    pub(crate) refusals: Refusals,
}

impl Engine {
    /// Restores an engine from the journal. Programs nothing: the reconciler does. `open_events` is called once nothing
    /// else can fail.
    ///
    /// # Errors
    /// The journal cannot be read or contradicts itself, or the configuration is invalid.
    pub fn open(
        records: Records,
        open_events: impl FnOnce() -> Arc<Events>,
        programmer: Programmer,
        configuration: Configuration,
        settings: Settings,
    ) -> Result<Arc<Self>, OpenError> {
        let representor_wait = settings.representor_wait;
        let gateways = settings.gateway.clone();
        let gateways = Gateways::new(programmer.clone(), settings.fabric, gateways).into();
        let offered_before = u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default();
        let mut registry =
            Registry::restore(records.load()?, configuration, settings, offered_before)?;
        if programmer.has_representors() {
            // If the kernel cannot be asked yet, the reconciler's first successful survey reports the representors.
            let survey = programmer.survey().unwrap_or_default();
            registry.note_representors(&[], survey.into_keys().collect());
        }
        // Events are opened last: a start that fails here writes no stop event and would be reported as an unclean end.
        // The journal's file lock also keeps a second service from the events.
        let events = open_events();
        Ok(Arc::new(Self {
            registry: Mutex::new(registry),
            records,
            ports: Ports::new(programmer, representor_wait),
            sessions: Sessions::default(),
            events,
            keys: KeyedLocks::default(),
            tombstones: Mutex::default(),
            network_changes: tokio::sync::Mutex::default(),
            flows: TaskTracker::new(),
            reconciler: ReconcilerState::default(),
            gateways,
            phases: EnginePhases::default(),
            refusals: Refusals::default(),
        }))
    }

    pub const fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// The audit entries that match the filter, oldest first.
    pub fn audit(&self, filter: &AuditFilter) -> Vec<Arc<AuditEntry>> {
        self.records.audit.list(filter)
    }

    /// Writes an audit entry for a change that has no other row in the journal.
    ///
    /// # Errors
    /// [`Reason::JournalUnavailable`].
    pub(crate) async fn record_audit(&self, entry: AuditEntry) -> Result<(), Failure> {
        self.records.commit(Changes::default().audited(Some(entry))).await
    }

    /// Records in the audit and as an event that a configuration file is in force, unless the latest entry has the same
    /// digest. An audit that cannot be written does not keep the configuration from being in force.
    pub async fn note_configuration(self: Arc<Self>, path: PathBuf, digest: String) {
        let (object, cause) =
            (path.display().to_string(), Cause::new(Author::ConfigurationFile, ""));
        let latest = self.records.audit.latest(AuditAction::LoadConfiguration);
        let kind = match latest {
            Some(_) => EventKind::ConfigurationReloaded,
            None => EventKind::ConfigurationLoaded,
        };
        let before = latest.map(|entry| entry.after.clone()).unwrap_or_default();
        let entry = AuditEntry::new(&cause, AuditAction::LoadConfiguration, object.clone())
            .after(&json!({ "digest": digest }));
        // A restart with the same file is no change.
        if before == entry.after {
            return;
        }
        if let Err(failure) = self.record_audit(AuditEntry { before, ..entry }).await {
            tracing::error!(error = %failure, "cannot record the loaded configuration in the audit");
        }
        let message = format!("in force, with digest {digest}");
        self.events.record_by(&cause.author, kind, object, message);
    }

    pub(crate) const fn programmer(&self) -> &Programmer {
        self.ports.programmer()
    }

    /// Why Attach cannot be served, one sentence each: the messages of [`Self::obstacles`].
    pub fn status(&self) -> Vec<String> {
        self.obstacles().into_iter().map(|failure| failure.message).collect()
    }

    /// Why Attach cannot be served, with a reason code each. Empty: it can. Exhausted VFs or addresses are no obstacle,
    /// since running attachments are unaffected. Does not wait.
    pub fn obstacles(&self) -> Vec<Failure> {
        let journal = self.records.problem();
        let fabric =
            self.reconciler.fabric_problem.lock().clone().filter(|problem| !problem.is_partial);
        let fabric = fabric.map(|problem| Failure::new(Reason::FabricUnavailable, problem.what));
        let draining = self
            .registry()
            .draining()
            .map(|reason| Failure::new(Reason::Draining, format!("the DPU is draining: {reason}")));
        [journal, fabric, draining].into_iter().flatten().collect()
    }

    /// Retries a journal whose latest write failed. Waits for the disk.
    ///
    /// # Errors
    /// [`Reason::JournalUnavailable`].
    pub async fn probe_journal(&self) -> Result<(), Failure> {
        self.records.probe().await
    }

    /// Wakes the reconciler: the kernel reported a change of links.
    pub fn kernel_changed(&self) {
        self.ports.note_report();
    }

    /// Requests a thorough comparison: the fabric's daemon has changed or lost something.
    pub(crate) fn fabric_changed(&self) {
        self.reconciler.thorough.notify_one();
    }

    /// Another program has changed nftables. Requests a thorough comparison if the guards have lost rules.
    pub(crate) async fn rules_changed(&self) {
        if self.ports.lost_rules().await {
            self.reconciler.thorough.notify_one();
        }
    }

    pub(crate) fn kernel_reports(&self) -> watch::Receiver<u64> {
        self.ports.reports()
    }

    /// Waits until a thorough comparison is requested.
    pub(crate) async fn thorough_requested(&self) {
        self.reconciler.thorough.notified().await;
    }

    /// Waits for running flows and for pending writes to the journal.
    pub async fn close(self: Arc<Self>) {
        self.flows.close();
        self.flows.wait().await;
        // Commits are ordered: this one returns after every lazy commit before it.
        if let Err(failure) = self.records.commit(Changes::default()).await {
            tracing::error!(error = %failure, "cannot write the last changes to the journal");
        }
    }

    /// Runs a flow to its end, even if its caller goes away. Half a flow would leave a record without its port, or a
    /// port without its record, until the next reconciliation.
    pub(super) async fn to_the_end<T, F>(
        self: &Arc<Self>,
        run: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let flow = self.flows.spawn(run(Arc::clone(self)).in_current_span());
        // No code aborts the task, so an error is a panic of the flow.
        flow.await.unwrap_or_else(|error| {
            Err(Failure::new(Reason::Internal, format!("the call was aborted: {error}")))
        })
    }

    /// Runs a flow in the background; [`Self::close`] waits for it.
    pub(super) fn spawn<F>(&self, flow: F) -> tokio::task::JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.flows.spawn(flow)
    }

    /// Locks the registry. Never held across an await.
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock()
    }

    pub(super) fn record_of(&self, key: &AttachmentKey) -> Option<Arc<Record>> {
        self.registry().entries().by_key(key).map(|entry| Arc::clone(entry.record()))
    }

    pub(super) fn view(&self, record: &Record) -> Result<AttachmentView, Failure> {
        let registry = self.registry();
        let entry = registry.entries().get(record.id);
        entry.map(Entry::view).ok_or_else(|| unknown(&record.id))
    }

    /// Unprograms the representor. The caller holds the VF's lock. If that fails, the VF is unavailable and the
    /// reconciler retries.
    pub(super) async fn unprogram(&self, vf: FunctionId) {
        match self.ports.unprogram(vf).await {
            Ok(()) => self.registry().note_unprogrammed(vf),
            Err(leftover) => self.note_leftover(&leftover),
        }
    }

    /// Makes a VF unavailable whose representor keeps some of its programming: until the reconciler has removed that
    /// or, if the port itself is at fault, until an operator clears the quarantine.
    pub(super) fn note_leftover(&self, leftover: &Leftover) {
        let (vf, reason) = (leftover.vf, leftover.to_string());
        if leftover.is_ports_fault {
            self.registry().quarantine_unclean(vf, &reason);
            self.events.record(EventKind::VfQuarantined, vf, reason);
        } else {
            let reason = format!("{reason}; it becomes available once that is removed");
            self.registry().set_unclean_unavailable(vf, &reason);
            self.events.record(EventKind::RepairFailed, vf, reason);
        }
    }
}

/// Seconds since 1970, UTC: the clock of all pools. Wall time, so that cool-downs outlive a restart.
pub(super) fn now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}
