//! Attachments: who holds which VF and which addresses, from the first request to the last trace.

mod allocation;
mod attach;
mod collect;
mod detach;
mod engine;
mod examine;
mod forwarding;
#[cfg(test)]
mod fuzz;
mod listing;
mod mend;
mod network_changes;
mod networks;
mod overtaken;
mod registry;
mod settings;
mod views;
mod warnings;
mod welcome;

use std::{fmt, net::IpAddr, sync::Arc, time::Duration};

use jiff::Timestamp;
use offload_proto::{Failure, Reason};
use tokio::{sync::watch, task::JoinHandle};
use vf_alloc::VfId;

pub use attach::Asked;
pub use detach::Detach;
pub use examine::{DpuHalf, VfHalf};
pub use mend::Depth;
pub use settings::{Configuration, Settings};
pub use views::{
    Applied, AttachmentDetail, AttachmentFilter, NetworkView, Origin, PoolView, SubnetUsage, VfView,
};

use crate::{
    driver::Capability,
    events::{EventKind, Events},
    host::{Examination, Hello, Inventory, SessionId},
    model::{
        AttachSpec, AttachmentId, AttachmentKey, AttachmentState, AttachmentView, HostName,
        Network, Record,
    },
    programmer::Programmer,
    records::{OpenError, Records},
    sessions::{Examined, HostCommand, HostView, Session},
};
use engine::Engine;
use registry::Registry;

/// The engine of attachments. Cloning it is cheap and gives the same one.
///
/// Every call that changes something runs to its end, even when its caller goes away meanwhile.
#[derive(Clone, Debug)]
pub struct Attachments(Arc<Engine>);

impl Attachments {
    /// An engine with what the journal holds. Nothing is programmed yet: the reconciler does that.
    ///
    /// # Errors
    /// The journal can't be read or contradicts itself, or the configuration can't be.
    pub fn open(
        records: Records,
        programmer: Programmer,
        configuration: Configuration,
        settings: Settings,
    ) -> Result<Self, OpenError> {
        let mut registry = Registry::restore(records.load()?, configuration, settings)?;
        if programmer.has_representors() {
            // Where the kernel can't be asked yet, the reconciler's first good look tells.
            let survey = programmer.survey().unwrap_or_default();
            registry.vfs.set_ports(survey.into_keys().collect());
        }
        Ok(Self(Arc::new(Engine::new(registry, records, programmer))))
    }

    /// Reserves a VF, a MAC address and addresses, records that, and programs the representor.
    /// Repeating the call gives the same attachment.
    ///
    /// # Errors
    /// What was refused or failed; then nothing of it is left.
    pub async fn attach(&self, spec: AttachSpec, asked: Asked) -> Result<AttachmentView, Failure> {
        self.flow(async move |engine: Arc<Engine>| engine.attach(spec, asked).await).await
    }

    /// Gives an attachment back. One that is gone already, or not the one that is meant, is no error.
    /// Unless its VF has returned, it is held until the host says that it is back.
    ///
    /// # Errors
    /// [`Reason::JournalUnavailable`] or [`Reason::StaleSession`]: to be repeated.
    pub async fn detach(&self, detach: Detach) -> Result<(), Failure> {
        self.flow(async move |engine: Arc<Engine>| engine.detach(detach).await).await
    }

    /// Compares an attachment's record with what the kernel has.
    ///
    /// # Errors
    /// [`Reason::AttachmentUnknown`], [`Reason::Releasing`] or [`Reason::CheckFailed`].
    pub async fn check(
        &self,
        key: AttachmentKey,
        id: Option<AttachmentId>,
    ) -> Result<AttachmentView, Failure> {
        self.0.check(key, id).await
    }

    /// Puts those of the host's attachments of `network` (`None`: the default one) that are not
    /// `valid` into releasing, and returns them: the host gives their VFs back and detaches them.
    ///
    /// # Errors
    /// [`Reason::NetworkUnknown`] or [`Reason::JournalUnavailable`].
    pub async fn collect(
        &self,
        host: HostName,
        network: Option<String>,
        valid: Vec<AttachmentKey>,
    ) -> Result<Vec<AttachmentView>, Failure> {
        self.flow(async move |engine: Arc<Engine>| engine.collect(host, network, valid).await).await
    }

    /// Why Attach can't be served, one sentence each. Empty: it can. VFs or addresses that have run
    /// out are no reason: what runs, runs well.
    pub async fn status(&self) -> Vec<String> {
        self.0.status().await
    }

    /// What operators should know of though Attach can be served, one sentence each.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        self.0.warnings()
    }

    /// Likewise, of VFs: what [`Self::examine_dpu`] finds one by one.
    #[must_use]
    pub fn vf_warnings(&self) -> Vec<String> {
        self.0.vf_warnings()
    }

    /// Opens a session for the host. Returns once everything that its words settle is settled.
    ///
    /// # Errors
    /// The host is not served, it names a PF of another host, or it has said a newer hello since.
    pub async fn hello(&self, host: HostName, hello: Hello) -> Result<Session, Failure> {
        self.flow(async move |engine: Arc<Engine>| engine.hello(host, hello).await).await
    }

    /// Whether the attachment's port forwards.
    pub async fn forwards(&self, id: AttachmentId) -> bool {
        self.0.forwards(id).await
    }

    /// Waits until the port of the host's attachment forwards, and tells whether it does.
    ///
    /// # Errors
    /// [`Reason::AttachmentUnknown`].
    pub async fn await_port(
        &self,
        host: &HostName,
        id: AttachmentId,
        limit: Duration,
    ) -> Result<bool, Failure> {
        self.0.await_port(host, id, limit).await
    }

    /// The host said that the pod has the VF.
    pub fn host_attached(&self, host: &HostName, session: SessionId, id: AttachmentId) {
        self.0.host_attached(host, session, id);
    }

    /// The host said what it has now. The pools know at once; freeing what is back goes on in a task
    /// of its own, which the caller may wait for.
    ///
    /// # Errors
    /// It names a PF of another host, or the session is over.
    pub fn inventory(
        &self,
        host: &HostName,
        session: SessionId,
        inventory: &Inventory,
    ) -> Result<JoinHandle<()>, Failure> {
        let returned = self.0.inventory(host, session, inventory)?;
        let engine = Arc::clone(&self.0);
        let free = async move { engine.free_returned(session, returned).await };
        Ok(self.0.flows.spawn(free))
    }

    /// Asks the host what it finds of its VFs.
    ///
    /// # Errors
    /// [`NotExamined`](crate::sessions::NotExamined).
    pub async fn examine_host(&self, host: &HostName) -> Examined {
        self.0.sessions.look(host).await
    }

    /// Likewise, once the host has mended what it can.
    ///
    /// # Errors
    /// [`NotExamined`](crate::sessions::NotExamined).
    pub async fn mend_host(&self, host: &HostName) -> Examined {
        self.0.sessions.mend(host, || self.0.pci_addresses_held_of(host)).await
    }

    /// The host found something, or tells why it could not look.
    pub fn host_examined(
        &self,
        host: &HostName,
        session: SessionId,
        request_id: u64,
        found: Result<Examination, String>,
    ) {
        self.0.sessions.examined(host, session, request_id, found);
    }

    /// Compares the records with what the DPU's kernel has, and changes nothing.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub async fn examine_dpu(&self) -> Result<DpuHalf, Failure> {
        self.0.examine().await
    }

    /// The host's session ended, and why, if that tells why the host stays away: one clause.
    pub fn goodbye(&self, host: &HostName, session: SessionId, why: Option<String>) {
        let message = why.clone().unwrap_or_else(|| "its session ended".into());
        if self.0.sessions.close(host, session, why) {
            self.0.events.record(EventKind::HostDisconnected, host, message);
        }
    }

    /// Somebody at `address` showed the host's certificate, and was refused for `reason`.
    pub fn host_refused(&self, host: &HostName, address: IpAddr, reason: &str) {
        if !self.serves(host) {
            return;
        }
        let refusal =
            format!("a connection from {address} with its certificate was refused: {reason}");
        let why = format!("at {} {refusal}", Timestamp::now());
        if self.0.sessions.refused(host, &refusal, why.clone()) {
            self.0.events.record(EventKind::HostRefused, host, why);
        }
    }

    /// Whether that session is the host's session in force.
    #[must_use]
    pub fn is_current(&self, host: &HostName, session: SessionId) -> bool {
        self.0.sessions.is_current(host, session)
    }

    /// Takes an attachment away from its pod, for an operator.
    ///
    /// # Errors
    /// [`Reason::AttachmentUnknown`] or [`Reason::JournalUnavailable`].
    pub async fn release(
        &self,
        id: AttachmentId,
        reason: String,
    ) -> Result<AttachmentView, Failure> {
        self.flow(async move |engine: Arc<Engine>| engine.release(id, reason).await).await
    }

    /// Gives a quarantined VF back to its pools.
    ///
    /// # Errors
    /// [`Reason::VfUnknown`] or [`Reason::VfNotQuarantined`].
    pub async fn clear_quarantine(&self, vf: VfId) -> Result<VfView, Failure> {
        let cleared = self.0.registry().vfs.clear(vf);
        cleared.map_err(|error| {
            let reason = match error {
                vf_alloc::ClearError::Unknown { .. } => Reason::VfUnknown,
                vf_alloc::ClearError::NotQuarantined { .. } => Reason::VfNotQuarantined,
            };
            Failure::new(reason, error.to_string())
        })?;
        self.0.events.record(EventKind::VfCleared, vf, "an operator cleared it");
        self.0.vf(vf).await
    }

    /// Creates a network or replaces it; with `dry_run`, only says what that would do. Its form is
    /// the caller's to check. Running attachments keep the settings that they were made with.
    ///
    /// # Errors
    /// The network can't be, a lease is in the way, or the journal can't be written.
    pub async fn apply_network(
        &self,
        network: Network,
        dry_run: bool,
    ) -> Result<(NetworkView, Applied), Failure> {
        self.flow(async move |engine: Arc<Engine>| engine.apply_network(network, dry_run).await)
            .await
    }

    /// Deletes a network. With `force` even while attachments use it: they keep their snapshot of it.
    ///
    /// # Errors
    /// [`Reason::NetworkUnknown`], [`Reason::NetworkFixed`], [`Reason::NetworkInUse`] or
    /// [`Reason::JournalUnavailable`].
    pub async fn delete_network(&self, name: String, force: bool) -> Result<(), Failure> {
        self.flow(async move |engine: Arc<Engine>| engine.delete_network(name, force).await).await
    }

    /// Takes a changed configuration file over: all of it or, when something in it can't be, nothing.
    ///
    /// # Errors
    /// What can't be.
    pub async fn load_configuration(&self, configuration: Configuration) -> Result<(), Failure> {
        self.flow(async move |engine: Arc<Engine>| engine.load_configuration(configuration).await)
            .await
    }

    /// Refuses new attachments, for that reason, or takes them again.
    pub fn set_draining(&self, reason: Option<String>) {
        self.0.registry().draining.clone_from(&reason);
        match reason {
            Some(reason) => {
                self.0.events.record(EventKind::Draining, "dpu", reason.clone());
                self.0.sessions.broadcast(&HostCommand::Draining { reason });
            }
            None => self.0.events.record(EventKind::Draining, "dpu", "over"),
        }
    }

    /// All networks, by name.
    #[must_use]
    pub fn networks(&self) -> Vec<NetworkView> {
        self.0.networks()
    }

    /// All pools of VFs, in the configuration's order.
    #[must_use]
    pub fn pools(&self) -> Vec<PoolView> {
        self.0.pools()
    }

    /// All VFs, in the order of their numbers.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub async fn vfs(&self) -> Result<Vec<VfView>, Failure> {
        self.0.vfs().await
    }

    /// The attachments that the filter lets pass, oldest first.
    #[must_use]
    pub fn attachments(&self, filter: &AttachmentFilter) -> Vec<AttachmentView> {
        self.0.attachments(filter)
    }

    /// How many attachments there are in each state.
    #[must_use]
    pub fn attachments_by_state(&self) -> [(AttachmentState, usize); 4] {
        self.0.attachments_by_state()
    }

    /// The attachment whose id is `id`, or begins so: at least 4 characters.
    ///
    /// # Errors
    /// [`Reason::AttachmentUnknown`], or [`Reason::InvalidRequest`] where several ids begin so.
    pub async fn attachment(&self, id: &str) -> Result<AttachmentDetail, Failure> {
        self.0.attachment(id).await
    }

    /// How many attachments there are.
    #[must_use]
    pub fn attachment_count(&self) -> usize {
        self.0.registry().len()
    }

    /// Whether the host is one that is served.
    #[must_use]
    pub fn serves(&self, host: &HostName) -> bool {
        self.0.registry().hosts.contains_key(host)
    }

    /// The hosts that are served, by name.
    #[must_use]
    pub fn hosts(&self) -> Vec<HostView> {
        self.0.hosts()
    }

    /// What happened, and what happens.
    #[must_use]
    pub fn events(&self) -> &Arc<Events> {
        &self.0.events
    }

    /// The drivers.
    #[must_use]
    pub fn programmer(&self) -> &Programmer {
        &self.0.programmer
    }

    /// What kernel and card can do, as probed at start.
    #[must_use]
    pub fn capabilities(&self) -> Vec<Capability> {
        self.0.programmer.capabilities()
    }

    /// Whether the journal could be written when that was tried last.
    #[must_use]
    pub fn journal_can_be_written(&self) -> bool {
        self.0.records.can_be_written()
    }

    /// What the journal has done since it was opened.
    #[must_use]
    pub fn journal_statistics(&self) -> journal::Statistics {
        self.0.records.statistics()
    }

    /// Makes the kernel agree with the records, once.
    pub async fn reconcile(&self, depth: Depth) {
        let reconciled = self.flow(async move |engine: Arc<Engine>| {
            engine.reconcile(depth).await;
            Ok(())
        });
        if let Err(failure) = reconciled.await {
            tracing::error!(%failure, "the reconciler broke off");
        }
    }

    /// How long ago the latest comparison ended.
    #[must_use]
    pub fn since_reconciled(&self) -> Duration {
        self.0.since_reconciled()
    }

    /// The kernel reported a change of links: the reconciler will look into it.
    pub fn kernel_changed(&self) {
        self.0.kernel_reports.send_modify(|count| *count += 1);
    }

    pub(crate) fn kernel_reports(&self) -> watch::Receiver<u64> {
        self.0.kernel_reports.subscribe()
    }

    pub(crate) async fn host_spoke(&self) {
        self.0.host_spoke.notified().await;
    }

    /// Lets what is under way finish, and the journal write what it still has to.
    pub async fn close(self) {
        self.0.flows.close();
        self.0.flows.wait().await;
        // Whatever was committed lazily comes before it.
        if let Err(failure) = self.0.records.commit(crate::records::Changes::default()).await {
            tracing::error!(%failure, "the journal can't be closed in good order");
        }
    }
}

fn unknown(what: &dyn fmt::Display) -> Failure {
    Failure::new(Reason::AttachmentUnknown, format!("there is no attachment {what}"))
}

fn stale(session: SessionId) -> Failure {
    Failure::new(Reason::StaleSession, format!("session {session} is not the host's session"))
}

fn releasing(record: &Record) -> Failure {
    Failure::new(
        Reason::Releasing,
        format!("{} is attachment {}, which is being given back", record.key, record.id),
    )
}
