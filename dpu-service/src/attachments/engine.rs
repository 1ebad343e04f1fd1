//! What all flows share: the state, the locks, and that a flow runs to its end.

use std::{
    future::Future,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use jiff::Timestamp;
use offload_proto::{Failure, Reason};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::task::TaskTracker;
use traces::Instrument;
use vf_alloc::FunctionId;

use super::{
    keys::Keys,
    phases::EnginePhases,
    ports::Ports,
    reconciler_state::ReconcilerState,
    registry::{Entry, Registry},
    settings::{Configuration, Settings},
    unknown,
};
use crate::{
    audit::{AuditAction, AuditEntry, AuditFilter},
    author::{Author, Cause},
    conditions::Refusals,
    events::{EventKind, Events},
    gateway::Gateways,
    model::{AttachmentKey, AttachmentView, Record},
    programmer::{Leftover, Programmer},
    records::{Changes, OpenError, Records},
    sessions::Sessions,
};

/// The engine of attachments. The page of its room says who races with whom, and what is locked in
/// which order.
///
/// Every call that changes something runs to its end, even when its caller goes away meanwhile.
#[derive(Debug)]
pub struct Engine {
    registry: Mutex<Registry>,
    pub(super) records: Records,
    pub(super) ports: Ports,
    pub(super) sessions: Sessions,
    pub(super) events: Arc<Events>,
    pub(super) keys: Keys,
    /// Held while networks change.
    pub(super) network_changes: tokio::sync::Mutex<()>,
    flows: TaskTracker,
    pub(super) reconciler: ReconcilerState,
    gateways: Arc<Gateways>,
    pub(super) phases: EnginePhases,
    refusals: Refusals,
}

impl Engine {
    /// An engine with what the journal holds, which records what happens in the events that `open_events` returns. Nothing
    /// is programmed yet: the reconciler does that.
    ///
    /// # Errors
    /// The journal can't be read or contradicts itself, or the configuration can't be.
    pub fn open(
        records: Records,
        open_events: impl FnOnce() -> Arc<Events>,
        programmer: Programmer,
        configuration: Configuration,
        settings: Settings,
    ) -> Result<Arc<Self>, OpenError> {
        let patience = settings.representor_wait;
        let gateways = settings.gateway.clone();
        let gateways = Gateways::new(programmer.clone(), settings.fabric, gateways).into();
        let mut registry =
            Registry::restore(records.load()?, configuration, settings, microseconds())?;
        if programmer.has_representors() {
            // Where the kernel can't be asked yet, the reconciler's first good look tells.
            let survey = programmer.survey().unwrap_or_default();
            registry.note_representors(&[], survey.into_keys().collect());
        }
        // Last: a start that fails has no stop, and would count as unclean. The lock of the journal keeps a second service
        // from the events, too.
        let events = open_events();
        Ok(Arc::new(Self {
            registry: Mutex::new(registry),
            records,
            ports: Ports::new(programmer, patience),
            sessions: Sessions::default(),
            events,
            keys: Keys::default(),
            network_changes: tokio::sync::Mutex::default(),
            flows: TaskTracker::new(),
            reconciler: ReconcilerState::default(),
            gateways,
            phases: EnginePhases::default(),
            refusals: Refusals::default(),
        }))
    }

    /// What happened, and what happens.
    #[must_use]
    pub const fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// The changes that were audited and that the filter lets pass, oldest first.
    #[must_use]
    pub fn audit(&self, filter: &AuditFilter) -> Vec<Arc<AuditEntry>> {
        self.records.audit(filter)
    }

    /// Records a change that has no other row in the journal.
    ///
    /// # Errors
    /// [`Reason::JournalUnavailable`].
    pub(crate) async fn record_audit(&self, entry: AuditEntry) -> Result<(), Failure> {
        self.records.commit(Changes::default().audited(Some(entry))).await
    }

    /// Records in the audit and as an event that the configuration file is in force, unless the audit's latest entry has its
    /// digest. An audit that can't be written keeps no configuration from being in force.
    pub async fn note_configuration(self: Arc<Self>, path: PathBuf, digest: String) {
        let (object, cause) =
            (path.display().to_string(), Cause::new(Author::ConfigurationFile, ""));
        let latest = self.records.latest_audit(AuditAction::LoadConfiguration);
        let kind = match latest {
            Some(_) => EventKind::ConfigurationReloaded,
            None => EventKind::ConfigurationLoaded,
        };
        let before = latest.map(|entry| entry.after.clone()).unwrap_or_default();
        let entry = AuditEntry::new(&cause, AuditAction::LoadConfiguration, object.clone())
            .after(&json!({ "digest": digest }));
        if before == entry.after {
            return;
        }
        if let Err(failure) = self.record_audit(AuditEntry { before, ..entry }).await {
            tracing::error!(%failure, "a configuration is missing in the audit");
        }
        let message = format!("in force, with digest {digest}");
        self.events.record_by(&cause.author, kind, object, message);
    }

    /// The networks whose gateway this DPU is.
    pub(crate) const fn gateways(&self) -> &Arc<Gateways> {
        &self.gateways
    }

    /// How long what took.
    pub(crate) const fn phases(&self) -> &EnginePhases {
        &self.phases
    }

    /// The ADDs that were refused lately.
    pub(crate) const fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The drivers.
    #[must_use]
    pub(crate) const fn programmer(&self) -> &Programmer {
        self.ports.programmer()
    }

    /// Why Attach can't be served, one sentence each: see [`Self::obstacles`].
    pub fn status(&self) -> Vec<String> {
        self.obstacles().into_iter().map(|failure| failure.message).collect()
    }

    /// Why Attach can't be served, with the code of each reason. Empty: it can. VFs or addresses that have run out
    /// are no reason: what runs, runs well. Waits for nothing.
    #[must_use]
    pub fn obstacles(&self) -> Vec<Failure> {
        let journal = self.records.problem();
        let fabric = self.reconciler.fabric_problem().filter(|problem| !problem.is_partial);
        let fabric = fabric.map(|problem| Failure::new(Reason::FabricUnavailable, problem.what));
        let draining = self
            .registry()
            .draining()
            .map(|reason| Failure::new(Reason::Draining, format!("the DPU is draining: {reason}")));
        [journal, fabric, draining].into_iter().flatten().collect()
    }

    /// Tries a journal whose latest write failed. Waits for its disk.
    ///
    /// # Errors
    /// [`Reason::JournalUnavailable`].
    pub async fn probe_journal(&self) -> Result<(), Failure> {
        self.records.probe().await
    }

    /// The kernel reported a change of links: the reconciler will look into it.
    pub fn kernel_changed(&self) {
        self.ports.note_report();
    }

    /// The fabric's own daemon has changed something, or has lost it: the reconciler will look at all of it.
    pub(crate) fn fabric_changed(&self) {
        self.reconciler.look_closely();
    }

    /// Another program has changed nftables. If guards have lost rules there, the reconciler compares everything.
    pub(crate) async fn rules_changed(&self) {
        if self.ports.lost_rules().await {
            self.reconciler.look_closely();
        }
    }

    pub(crate) fn kernel_reports(&self) -> watch::Receiver<u64> {
        self.ports.reports()
    }

    /// Returns when the reconciler is to look at all there is.
    pub(crate) async fn close_look_wanted(&self) {
        self.reconciler.close_look_wanted().await;
    }

    /// Lets what is under way finish, and the journal write what it still has to.
    pub async fn close(self: Arc<Self>) {
        self.flows.close();
        self.flows.wait().await;
        // Whatever was committed lazily comes before it.
        if let Err(failure) = self.records.commit(Changes::default()).await {
            tracing::error!(%failure, "the journal can't be closed in good order");
        }
    }

    /// Runs a flow to its end, whatever becomes of the caller that waits for it. Half of it would be
    /// a record without its port, or a port without its record, until the reconciler comes.
    pub(super) async fn to_the_end<T, F>(
        self: &Arc<Self>,
        run: impl FnOnce(Arc<Self>) -> F,
    ) -> Result<T, Failure>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Failure>> + Send + 'static,
    {
        let flow = self.flows.spawn(run(Arc::clone(self)).in_current_span());
        flow.await.unwrap_or_else(|error| {
            Err(Failure::new(Reason::Internal, format!("the call broke off: {error}")))
        })
    }

    /// Goes on by itself; [`Self::close`] waits for it.
    pub(super) fn spawn<F>(&self, flow: F) -> tokio::task::JoinHandle<()>
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.flows.spawn(flow)
    }

    /// Never held across an await.
    pub(super) fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn record_of(&self, key: &AttachmentKey) -> Option<Arc<Record>> {
        self.registry().entries().by_key(key).map(|entry| Arc::clone(entry.record()))
    }

    pub(super) fn view(&self, record: &Record) -> Result<AttachmentView, Failure> {
        let registry = self.registry();
        let entry = registry.entries().get(record.id);
        entry.map(Entry::view).ok_or_else(|| unknown(&record.id))
    }

    /// Takes the representor's programming back. The caller holds the VF's lock. What can't be taken back
    /// keeps the VF from being given out; the reconciler goes on trying.
    pub(super) async fn unprogram(&self, vf: FunctionId) {
        match self.ports.unprogram(vf).await {
            Ok(()) => self.registry().note_unprogrammed(vf),
            Err(leftover) => self.note_leftover(&leftover),
        }
    }

    /// A VF whose representor keeps some of its programming is not to be given out: until that is taken
    /// back, or, where the port itself is to blame, until an operator says so.
    pub(super) fn note_leftover(&self, leftover: &Leftover) {
        let (vf, reason) = (leftover.vf, leftover.to_string());
        if leftover.is_ports_fault {
            self.registry().quarantine_unclean(vf, &reason);
            self.events.record(EventKind::VfQuarantined, vf, reason);
        } else {
            let reason = format!("{reason}; it is given out again once that is taken back");
            self.registry().withhold_unclean(vf, &reason);
            self.events.record(EventKind::RepairFailed, vf, reason);
        }
    }
}

/// Seconds since 1970, UTC: the clock of all pools, so that rests outlive a restart.
pub(super) fn now() -> u64 {
    u64::try_from(Timestamp::now().as_second()).unwrap_or_default()
}

/// Likewise in microseconds.
fn microseconds() -> u64 {
    u64::try_from(Timestamp::now().as_microsecond()).unwrap_or_default()
}
