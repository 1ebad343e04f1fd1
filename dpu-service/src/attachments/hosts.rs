//! Hosts: which are served, which have a session, what they report and which commands they get.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use jiff::Timestamp;
use offload_proto::{
    ConditionReason, Failure, FindingCode,
    v1::{Finding, PodFindings},
};
use uuid::Uuid;
use vf_alloc::{Device, FunctionId};

use super::{engine::Engine, refusals::note_failed_on_host};
use crate::{
    events::EventKind,
    host::{Examination, SessionId},
    sessions::{Examined, FindingId, HostCommand, HostView, NotExamined, known_code},
};
use model::{AttachmentId, HostName, HostRights};

/// Reason code of a host's own repairs.
const REPAIRED: &str = "REPAIRED_BY_HOST";
/// Reason code of refused peers with a host's certificate.
const REFUSED: &str = "HOST_REFUSED";
/// Reason code of a VF that the kubelet allocated and the pod does not use.
const UNUSED: &str = FindingCode::KubeletVfUnused.as_str();
/// Reason code of a host's configuration file that was refused, or is in force again.
const CONFIGURATION: &str = ConditionReason::HostConfigurationRefused.as_str();

/// The hosts' part of the engine: see [`Engine::hosts`].
#[derive(Clone, Copy, Debug)]
pub struct Hosts<'a>(pub(super) &'a Arc<Engine>);

impl Engine {
    pub const fn hosts(self: &Arc<Self>) -> Hosts<'_> {
        Hosts(self)
    }

    /// Sends the host a command, if it has a session. A host that does not read its commands loses its session.
    pub(super) fn send_command(&self, host: &HostName, command: HostCommand) {
        if self.sessions.send(host, command) {
            self.note_lost(host);
        }
    }

    /// Sends a command to all hosts that have a session.
    pub(super) fn broadcast(&self, command: &HostCommand) {
        self.sessions.broadcast(command).iter().for_each(|host| self.note_lost(host));
    }

    fn note_lost(&self, host: &HostName) {
        let message = "its session ended: the host does not read its commands";
        self.events.record(EventKind::HostDisconnected, host, message);
    }
}

impl Hosts<'_> {
    pub(crate) fn serves(self, host: &HostName) -> bool {
        self.0.registry().hosts().serves(host)
    }

    pub fn list(self) -> Vec<HostView> {
        let hosts: Vec<_> = self.0.registry().hosts().names().cloned().collect();
        hosts.iter().map(|host| self.0.sessions.view(host)).collect()
    }

    /// The hosts without a session, each with the reason if it is known.
    pub(crate) fn absent(self) -> Vec<(HostName, String)> {
        let registry = self.0.registry();
        let absent = |host: &HostName| Some((host.clone(), self.0.sessions.absence(host)?));
        registry.hosts().names().filter_map(absent).collect()
    }

    pub fn rights(self, host: &HostName) -> HostRights {
        self.0.registry().hosts().rights(host)
    }

    /// Ends the host's session. `how` is one clause; `why` is a sentence on why the host stays away, if that is known.
    pub fn goodbye(self, host: &HostName, session: SessionId, how: &str, why: Option<String>) {
        let message = why.clone().unwrap_or_else(|| format!("its session ended: {how}"));
        if !self.0.sessions.close(host, session, why) {
            return;
        }
        // A stop ends all sessions and has its own event: one disconnect event for each host would only repeat it.
        if self.0.registry().draining().is_some() {
            return tracing::info!(%host, "host session ended by the stop of the service");
        }
        self.0.events.record(EventKind::HostDisconnected, host, message);
    }

    /// A peer at `address` with the host's certificate was refused for `reason`. Recorded as one event for each host
    /// with a count: a peer may retry without end.
    pub fn refused(self, host: &HostName, address: IpAddr, reason: &str) {
        if !self.serves(host) {
            return;
        }
        let refusal = format!("a peer at {address} with its certificate was refused: {reason}");
        let why = format!("at {} {refusal}", Timestamp::now());
        self.0.sessions.note_refused(host, address, reason, why);
        self.0.events.record_reason(EventKind::HostRefused, REFUSED, host, refusal);
    }

    pub(crate) fn accepted(self, host: &HostName, address: IpAddr) {
        self.0.sessions.note_accepted(host, address);
    }

    /// Stores the complete list of problems that the host's agent reports of its pods and its configuration.
    pub fn reported(self, host: &HostName, session: SessionId, mut report: PodFindings) {
        let attachments = self.held_by(host);
        // A host must not report on other hosts' attachments.
        report.findings.retain(|found| attachments.contains(&found.subject));
        let problem = report.configuration_problem.clone();
        let turns = self.0.sessions.note_report(host, session, report, &attachments);
        let Some(turns) = turns else { return };
        // The first report of a session is compared with the events: the file may have changed while the host was away.
        let before = turns.configuration_before.unwrap_or_else(|| self.known_problem(host));
        self.note_configuration(host, &before, &problem);
        for found in turns.begun {
            self.note_begun(host, found);
        }
        for cured in turns.cured {
            self.note_cured(host, cured);
        }
    }

    /// The ids of the host's attachments that are not being released.
    fn held_by(self, host: &HostName) -> BTreeSet<String> {
        let registry = self.0.registry();
        let held = registry.entries().of_host(host).filter(|entry| entry.is_held());
        held.map(|entry| entry.record().id.to_string()).collect()
    }

    fn note_begun(self, host: &HostName, found: Finding) {
        let code = known_code(&found.code);
        let kind = match code == UNUSED {
            true => EventKind::KubeletVfUnused,
            false => EventKind::PodDiffers,
        };
        self.0.events.record_of_host(host, kind, code, found.subject, found.message);
    }

    fn note_cured(self, host: &HostName, (subject, code): FindingId) {
        let (kind, message) = match code == UNUSED {
            true => (
                EventKind::KubeletVfUnusedCleared,
                "its pod has no unused VF of the kubelet any more",
            ),
            false => (EventKind::PodDiffersCleared, "the pod matches its attachment again"),
        };
        self.0.events.record_of_host(host, kind, code, subject, message);
    }

    /// The configuration problem of an earlier session, from its events. Empty: the file was in force.
    fn known_problem(self, host: &HostName) -> String {
        let events = self.0.events.about(&host.0);
        let mut of_file = events.into_iter().rev();
        let latest = of_file.find(|event| event.reason.as_deref() == Some(CONFIGURATION));
        let refused = latest.filter(|event| event.kind == EventKind::ConfigurationRefused);
        refused.map(|event| event.message).unwrap_or_default()
    }

    /// Records a change of the configuration problem. Empty: the file is in force.
    fn note_configuration(self, host: &HostName, before: &str, problem: &str) {
        let (kind, message) = match problem {
            _ if before == problem => return,
            "" => (
                EventKind::ConfigurationReloaded,
                "the agent's configuration file is in force again",
            ),
            problem => (EventKind::ConfigurationRefused, problem),
        };
        // A fixed reason code folds all texts into one event: a host could invent any number of texts.
        self.0.events.record_of_host(host, kind, CONFIGURATION, host, message);
    }

    fn has_attachment(self, host: &HostName, subject: &str) -> bool {
        let Ok(id) = Uuid::parse_str(subject) else { return false };
        let registry = self.0.registry();
        registry
            .entries()
            .get(AttachmentId(id))
            .is_some_and(|entry| entry.record().key.host == *host)
    }

    pub fn add_failed(self, host: &HostName, session: SessionId, failure: &Failure) {
        if self.0.sessions.is_current(host, session) {
            note_failed_on_host(self.0, host, failure);
        }
    }

    /// Records a repair that the host's agent made by itself.
    pub fn repaired(self, host: &HostName, session: SessionId, subject: &str, what: &str) {
        if !self.0.sessions.is_current(host, session) {
            return;
        }
        // Unknown subjects count as the host: a host could invent any number of subjects, each with its own event.
        let (subject, what) = match self.has_attachment(host, subject) || self.has_vf(host, subject)
        {
            true => (subject.to_owned(), what.to_owned()),
            false => (host.to_string(), format!("{subject}: {what}")),
        };
        self.0.events.record_of_host(host, EventKind::Repaired, REPAIRED, subject, what);
    }

    /// Whether `subject` names a VF of the host for which this DPU has a port.
    fn has_vf(self, host: &HostName, subject: &str) -> bool {
        let Ok(vf) = subject.parse::<FunctionId>() else { return false };
        let registry = self.0.registry();
        let is_there = || registry.vfs().vfs().any(|view| view.vf == vf && view.has_port);
        registry.hosts().owner(vf.pf) == Some(host) && is_there()
    }

    /// Asks the host to examine its VFs.
    pub(crate) async fn examine(self, host: &HostName) -> Examined {
        let examined = self.0.sessions.look(host).await;
        self.noting_loss(host, examined)
    }

    /// Asks the host to repair what it can and then to examine its VFs. The host leaves VFs alone that attachments
    /// hold, even if it has no record of them.
    pub(crate) async fn repair(self, host: &HostName) -> Examined {
        let examined = self.0.sessions.repair(host, self.devices_held(host)).await;
        self.noting_loss(host, examined)
    }

    /// Records the loss of the host's session if the question caused it.
    fn noting_loss(self, host: &HostName, examined: Examined) -> Examined {
        if matches!(examined, Err(NotExamined::TakesNoCommands)) {
            self.0.note_lost(host);
        }
        examined
    }

    /// Passes on the host's answer: its findings, or why it could not examine its VFs.
    pub(crate) fn examined(
        self,
        host: &HostName,
        session: SessionId,
        request_id: u64,
        found: Result<Examination, String>,
    ) {
        self.0.sessions.examined(host, session, request_id, found);
    }

    /// The devices of all VFs that the host's attachments hold.
    fn devices_held(self, host: &HostName) -> Vec<Device> {
        let registry = self.0.registry();
        let held = registry.entries().of_host(host);
        let devices = held.map(|entry| &entry.record().device);
        devices.filter(|device| !device.is_empty()).cloned().collect()
    }
}
