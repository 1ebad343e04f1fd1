//! The hosts: who is served, who has a session, and what they are asked.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use jiff::Timestamp;
use offload_proto::{
    ConditionReason, Failure, Finding,
    v1::{Difference, PodFindings},
};
use uuid::Uuid;
use vf_alloc::{Device, FunctionId};

use super::{engine::Engine, refusals::note_failed_on_host};
use crate::{
    events::EventKind,
    host::{Examination, SessionId},
    model::{AttachmentId, HostName, HostRights},
    sessions::{Examined, FindingId, HostCommand, HostView, NotExamined, known_code},
};

/// The code of a host's own repairs.
const REPAIRED: &str = "REPAIRED_BY_HOST";
/// The code of refused peers with a host's certificate.
const REFUSED: &str = "HOST_REFUSED";
/// The code of a VF of the kubelet's that a pod does not use.
const UNUSED: &str = Finding::KubeletVfUnused.as_str();
/// The code of a host's configuration file that is not in force, or is again.
const CONFIGURATION: &str = ConditionReason::HostConfigurationRefused.as_str();

/// What hosts say and are asked: see [`Engine::hosts`].
#[derive(Clone, Copy, Debug)]
pub struct Hosts<'a>(pub(super) &'a Arc<Engine>);

impl Engine {
    /// What hosts say, and what they are asked.
    #[must_use]
    pub const fn hosts(self: &Arc<Self>) -> Hosts<'_> {
        Hosts(self)
    }

    /// Tells the host something, if it has a session. A host that takes no commands loses its session.
    pub(super) fn tell(&self, host: &HostName, command: HostCommand) {
        if self.sessions.send(host, command) {
            self.note_lost(host);
        }
    }

    /// Tells all hosts that have a session.
    pub(super) fn tell_all(&self, command: &HostCommand) {
        self.sessions.broadcast(command).iter().for_each(|host| self.note_lost(host));
    }

    fn note_lost(&self, host: &HostName) {
        let message = "its session ended: it takes no commands";
        self.events.record(EventKind::HostDisconnected, host, message);
    }
}

impl Hosts<'_> {
    /// Whether the host is one that is served.
    #[must_use]
    pub(crate) fn serves(self, host: &HostName) -> bool {
        self.0.registry().hosts().serves(host)
    }

    /// The hosts that are served, by name.
    #[must_use]
    pub fn list(self) -> Vec<HostView> {
        let hosts: Vec<_> = self.0.registry().hosts().names().cloned().collect();
        hosts.iter().map(|host| self.0.sessions.view(host)).collect()
    }

    /// The hosts that are served and not connected, each with why, as far as that is known.
    pub(crate) fn absent(self) -> Vec<(HostName, String)> {
        let registry = self.0.registry();
        let absent = |host: &HostName| Some((host.clone(), self.0.sessions.absence(host)?));
        registry.hosts().names().filter_map(absent).collect()
    }

    /// What the host may ask for.
    #[must_use]
    pub fn rights(self, host: &HostName) -> HostRights {
        self.0.registry().hosts().rights(host)
    }

    /// The host's session ended; `how`: one clause. `why` tells why the host stays away, if that is known: one sentence.
    pub fn goodbye(self, host: &HostName, session: SessionId, how: &str, why: Option<String>) {
        let message = why.clone().unwrap_or_else(|| format!("its session ended: {how}"));
        if !self.0.sessions.close(host, session, why) {
            return;
        }
        // A service that stops ends all sessions, and has an event of its own.
        if self.0.registry().draining().is_some() {
            return tracing::info!(%host, "the session ends with the service");
        }
        self.0.events.record(EventKind::HostDisconnected, host, message);
    }

    /// A peer at `address` showed the host's certificate, and was refused for `reason`. One event for each host, with a
    /// count: a peer may try without end.
    pub fn refused(self, host: &HostName, address: IpAddr, reason: &str) {
        if !self.serves(host) {
            return;
        }
        let refusal = format!("a peer at {address} with its certificate was refused: {reason}");
        let why = format!("at {} {refusal}", Timestamp::now());
        self.0.sessions.note_refused(host, address, reason, why);
        self.0.events.record_reason(EventKind::HostRefused, REFUSED, host, refusal);
    }

    /// The host was accepted from that address.
    pub(crate) fn accepted(self, host: &HostName, address: IpAddr) {
        self.0.sessions.note_accepted(host, address);
    }

    /// The host's agent has reported the problems of its pods and of its configuration: all of them.
    pub fn reported(self, host: &HostName, session: SessionId, mut report: PodFindings) {
        let attachments = self.held_by(host);
        // What a host says of others' attachments is ignored.
        report.findings.retain(|found| attachments.contains(&found.subject));
        let problem = report.configuration_problem.clone();
        let turns = self.0.sessions.note_report(host, session, report, &attachments);
        let Some(turns) = turns else { return };
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

    fn note_begun(self, host: &HostName, found: Difference) {
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

    /// The problem of the agent's configuration file that the events have of an earlier session. Empty: it was in force.
    fn known_problem(self, host: &HostName) -> String {
        let events = self.0.events.about(&host.0);
        let mut of_file = events.into_iter().rev();
        let latest = of_file.find(|event| event.reason.as_deref() == Some(CONFIGURATION));
        let refused = latest.filter(|event| event.kind == EventKind::ConfigurationRefused);
        refused.map(|event| event.message).unwrap_or_default()
    }

    /// Records that the problem of the agent's configuration file has changed. Empty: the file is in force.
    fn note_configuration(self, host: &HostName, before: &str, problem: &str) {
        let (kind, message) = match problem {
            _ if before == problem => return,
            "" => (
                EventKind::ConfigurationReloaded,
                "the agent's configuration file is in force again",
            ),
            problem => (EventKind::ConfigurationRefused, problem),
        };
        // With a code of its own: a host could invent any number of texts, each an event of its own.
        self.0.events.record_of_host(host, kind, CONFIGURATION, host, message);
    }

    /// Whether `subject` is the id of an attachment of the host.
    fn has_attachment(self, host: &HostName, subject: &str) -> bool {
        let Ok(id) = Uuid::parse_str(subject) else { return false };
        let registry = self.0.registry();
        registry
            .entries()
            .get(AttachmentId(id))
            .is_some_and(|entry| entry.record().key.host == *host)
    }

    /// The host's agent reports an ADD that failed there.
    pub fn add_failed(self, host: &HostName, session: SessionId, failure: &Failure) {
        if self.0.sessions.is_current(host, session) {
            note_failed_on_host(self.0, host, failure);
        }
    }

    /// The host's agent has repaired something by itself.
    pub fn repaired(self, host: &HostName, session: SessionId, subject: &str, what: &str) {
        if !self.0.sessions.is_current(host, session) {
            return;
        }
        // A host could invent any number of other subjects, each with an event of its own.
        let (subject, what) = match self.has_attachment(host, subject) || self.has_vf(host, subject)
        {
            true => (subject.to_owned(), what.to_owned()),
            false => (host.to_string(), format!("{subject}: {what}")),
        };
        self.0.events.record_of_host(host, EventKind::Repaired, REPAIRED, subject, what);
    }

    /// Whether `subject` is the name of a VF that the host has, and for which this DPU has a port.
    fn has_vf(self, host: &HostName, subject: &str) -> bool {
        let Ok(vf) = subject.parse::<FunctionId>() else { return false };
        let registry = self.0.registry();
        let is_there = || registry.vfs().vfs().any(|view| view.vf == vf && view.has_port);
        registry.hosts().owner(vf.pf) == Some(host) && is_there()
    }

    /// Asks the host what it finds of its VFs.
    ///
    /// # Errors
    /// [`NotExamined`](crate::sessions::NotExamined).
    pub(crate) async fn examine(self, host: &HostName) -> Examined {
        let examined = self.0.sessions.look(host).await;
        self.noting_loss(host, examined)
    }

    /// Likewise, once the host has mended what it can. VFs that attachments hold are left to these,
    /// also where the host has no record of them.
    ///
    /// # Errors
    /// [`NotExamined`](crate::sessions::NotExamined).
    pub(crate) async fn mend(self, host: &HostName) -> Examined {
        let examined = self.0.sessions.mend(host, self.devices_held(host)).await;
        self.noting_loss(host, examined)
    }

    /// What asking a host has led to, with an event if it has lost its session by that.
    fn noting_loss(self, host: &HostName, examined: Examined) -> Examined {
        if matches!(examined, Err(NotExamined::TakesNoCommands)) {
            self.0.note_lost(host);
        }
        examined
    }

    /// The host found something, or tells why it could not look.
    pub(crate) fn examined(
        self,
        host: &HostName,
        session: SessionId,
        request_id: u64,
        found: Result<Examination, String>,
    ) {
        self.0.sessions.examined(host, session, request_id, found);
    }

    /// What the VFs are known by that the host's attachments hold.
    fn devices_held(self, host: &HostName) -> Vec<Device> {
        let registry = self.0.registry();
        let held = registry.entries().of_host(host);
        let devices = held.map(|entry| &entry.record().device);
        devices.filter(|device| !device.is_empty()).cloned().collect()
    }
}
