//! The DPU as the agent uses it ([`Dpu`], one value for each DPU).
//!
//! [`Session`](session) keeps the connection: it sends a hello and passes on what the DPU sends. [`Calls`](calls) use
//! the current session, and none starts without one. [`Reports`](reports) are the messages that the agent sends
//! unasked.
//!
//! # Locks and races
//!
//! The module's own locks are held only for memory operations. The caller of a call for an attachment holds the
//! attachment's key, in verbs and in late releases (`deliver_detaches`) alike. The DPU orders calls: Attach and Detach
//! name their session and are refused after a newer one began. They also carry the time when they were made. An Attach
//! that arrives after a later Detach of its key reserves nothing.
//!
//! - *A call and the end of its session.* The agent does not know whether the DPU served the call. It repeats an
//!   Attach in the next session or takes it back (`detach_by_key`). It keeps a Detach without a record
//!   (`detach_later`); a Detach with a record is retried from the record.
//! - *A hello and an ADD.* The hello lists calls in progress before records, so that an ADD that moves from one to the
//!   other is in at least one list.
//! - *A hello and an ADD that takes a VF offer.* A session's offers are closed before the next hello lists the VFs in
//!   use.
//! - *An inventory and an Attach with a VF offer.* The inventory may arrive first and list the VF as held; the offer
//!   stays valid.
//! - *A declined offer and a late Attach with it.* The DPU offers the VF again with another number, so that the late
//!   Attach is refused. If the Attach came first, the VF is given already, and its attachment is released.
//! - *An inventory and a Detach.* An inventory is dated before its VFs are listed, and the DPU believes the later of
//!   the two ([`clock`](super::clock)).

mod acceptance_note;
mod calls;
mod dial;
mod established;
mod failure;
mod inventory;
mod networks;
mod pending_detaches;
mod pod_findings;
mod reports;
mod session;
mod vf_offers;

use std::{convert::Infallible, sync::Arc};

use offload_proto::{
    Failure,
    v1::{FailedAdd, Finding, host_message},
};

use self::{
    acceptance_note::AcceptanceNote, calls::Calls, pod_findings::PodFindings, reports::Reports,
    session::Session,
};
pub(super) use self::{
    calls::{detach_request, detach_request_by_key},
    dial::credentials_and_connector,
    established::Established,
    session::{FromDpu, SessionState},
};
use super::{
    config::{Config, DpuSettings},
    vfs::Vfs,
};

/// The DPU that this host's VFs belong to.
#[derive(Debug)]
pub(super) struct Dpu {
    config: Arc<Config>,
    vfs: Arc<Vfs>,
    /// Whether the DPU has accepted this host since the host's boot.
    acceptance: AcceptanceNote,
    session: Arc<Session>,
    reports: Arc<Reports>,
    calls: Calls,
    pod_findings: PodFindings,
}

impl Dpu {
    pub(super) fn new(config: Arc<Config>, boot_id: String, vfs: Arc<Vfs>) -> Self {
        let acceptance = AcceptanceNote::new(&config.state_dir, &boot_id);
        let session = Arc::new(Session::new(acceptance.is_noted()));
        let reports = Arc::new(Reports::new(Arc::clone(&vfs), boot_id, Arc::clone(&session)));
        let (kept, reported) = (Arc::clone(&session), Arc::clone(&reports));
        let calls = Calls::new(config.timeouts, Arc::clone(&vfs), kept, reported);
        let pod_findings = PodFindings::default();
        Self { config, vfs, acceptance, session, reports, calls, pod_findings }
    }

    pub(super) fn session(&self) -> &Session {
        &self.session
    }

    /// The DPU's name and address in the configuration.
    pub(super) fn target(&self) -> &DpuSettings {
        &self.config.dpu
    }

    pub(super) fn reports(&self) -> &Reports {
        &self.reports
    }

    pub(super) fn calls(&self) -> &Calls {
        &self.calls
    }

    pub(super) fn pod_findings(&self) -> &PodFindings {
        &self.pod_findings
    }

    /// Reports the problems of pods and of the agent's configuration to the DPU, unless the session has had the same
    /// report.
    pub(super) fn report_pod_findings(&self) {
        let SessionState::Up(session) = self.session.state() else { return };
        if let Some(news) = self.pod_findings.news(&session.id, self.vfs.records()) {
            session.send(host_message::Message::PodFindings(news));
        }
    }

    pub(super) fn report_unused_vfs(&self, unused: Vec<Finding>) {
        self.pod_findings.set_unused(unused);
        self.report_pod_findings();
    }

    /// Reports the agent's repairs to the DPU, forever. Without a session they wait for the next one.
    pub(super) async fn keep_repairs_reported(&self) -> Infallible {
        loop {
            self.vfs.repairs().noted().await;
            self.report_repairs();
        }
    }

    fn report_repairs(&self) {
        let send = |repaired| self.session.send(host_message::Message::Repaired(repaired));
        self.vfs.repairs().report(send);
    }

    /// Reports an ADD that failed on this host. Without a session nothing is reported: the DPU shows the host as not
    /// connected.
    pub(super) fn report_failed_add(&self, subject: &str, failure: &Failure) {
        let SessionState::Up(session) = self.session.state() else { return };
        let message = match failure.message.contains(subject) {
            true => failure.message.clone(),
            false => format!("{subject}: {}", failure.message),
        };
        let reason = failure.reason.as_str().into();
        session.send(host_message::Message::FailedAdd(FailedAdd { reason, message }));
    }

    /// Keeps a session, forever. `on_message` gets the DPU's messages after waiting reports are sent.
    pub(super) async fn keep_session(&self, on_message: impl Fn(FromDpu)) -> Infallible {
        let hello = async || self.reports.hello().await;
        let on_message = |event: FromDpu| {
            if matches!(event, FromDpu::SessionBegan) {
                self.session_began();
            }
            on_message(event);
        };
        self.session.keep(&self.config, &hello, &on_message).await
    }

    /// Sends reports that waited for a session, as far as they need no answer.
    fn session_began(&self) {
        self.acceptance.note();
        self.reports.report_waiting();
        self.report_repairs();
        self.vfs.signals().inventory_changed();
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::agent::vfs::tests::vfs;

    const CONFIGURATION: &str = "
        netns_folders = []
        [dpu]
        endpoint = '192.168.100.2:7443'
        name = 'dpu-1'
        [tls]
        ca = '/ca.pem'
        certificate = '/host.pem'
        key = '/host.key'
        [timeouts]
        reconnect_ms = 0
    ";

    /// A configuration with an unreachable DPU.
    pub(in crate::agent) fn config() -> Arc<Config> {
        Arc::new(bootstrap::parse_config(CONFIGURATION, "/c.toml".as_ref()).unwrap())
    }

    /// Starts the first attempt to open a session; it never ends.
    pub(in crate::agent) fn begin_first_attempt(dpu: &Dpu) {
        dpu.session().begin();
    }

    /// A DPU without a session, and the folder of the host's records.
    pub(in crate::agent) fn dpu() -> (Arc<Dpu>, TempDir) {
        let (vfs, folder) = vfs();
        (Arc::new(Dpu::new(config(), "boot".into(), vfs)), folder)
    }
}
