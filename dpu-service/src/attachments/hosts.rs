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
    sessions::{Examined, HostView},
};

/// The code of a host's own repairs.
const REPAIRED: &str = "REPAIRED_BY_HOST";

/// What hosts say and are asked: see [`Engine::hosts`].
#[derive(Clone, Copy, Debug)]
pub struct Hosts<'a>(pub(super) &'a Arc<Engine>);

impl Engine {
    /// What hosts say, and what they are asked.
    #[must_use]
    pub const fn hosts(self: &Arc<Self>) -> Hosts<'_> {
        Hosts(self)
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

    /// Somebody at `address` showed the host's certificate, and was refused for `reason`.
    pub fn refused(self, host: &HostName, address: IpAddr, reason: &str) {
        if !self.serves(host) {
            return;
        }
        self.0.sessions.note_refused(host, address, reason);
        let refusal =
            format!("a connection from {address} with its certificate was refused: {reason}");
        let why = format!("at {} {refusal}", Timestamp::now());
        if self.0.sessions.refused(host, &refusal, why.clone()) {
            self.0.events.record(EventKind::HostRefused, host, why);
        }
    }

    /// The host was accepted from that address.
    pub(crate) fn accepted(self, host: &HostName, address: IpAddr) {
        self.0.sessions.note_accepted(host, address);
    }

    /// The host's agent has reported what is not as it should be of its pods: all of it.
    pub fn found_of_pods(self, host: &HostName, session: SessionId, mut findings: PodFindings) {
        // What a host says of others' attachments is ignored.
        findings.findings.retain(|found| self.has_attachment(host, &found.subject));
        let now = findings.findings.clone();
        let Some(before) = self.0.sessions.note_pod_findings(host, session, findings) else {
            return;
        };
        for Difference { subject, message, code, .. } in not_among(&now, &before.findings) {
            let code = known_code(code);
            self.0.events.record_of_host(host, kind_of(code), code, subject, message);
        }
        for Difference { subject, code, .. } in not_among(&before.findings, &now) {
            let code = known_code(code);
            let (kind, message) = end_of(code);
            self.0.events.record_of_host(host, kind, code, subject, message);
        }
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

    /// The host's agent reports why its configuration file is not in force, or with an empty text that it is. Called before
    /// [`Self::found_of_pods`] replaces what the host has reported before.
    pub fn configuration_of_agent(self, host: &HostName, session: SessionId, problem: &str) {
        let before = self.0.sessions.configuration_problem(host, session);
        let (kind, message) = match problem {
            _ if before.as_deref().is_none_or(|before| before == problem) => return,
            "" => (
                EventKind::ConfigurationReloaded,
                "the agent's configuration file is in force again",
            ),
            problem => (EventKind::ConfigurationRefused, problem),
        };
        // With a code of its own: a host could invent any number of texts, each an event of its own.
        let reason = ConditionReason::HostConfigurationRefused.as_str();
        self.0.events.record_of_host(host, kind, reason, host, message);
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
        self.0.sessions.look(host).await
    }

    /// Likewise, once the host has mended what it can. VFs that attachments hold are left to these,
    /// also where the host has no record of them.
    ///
    /// # Errors
    /// [`NotExamined`](crate::sessions::NotExamined).
    pub(crate) async fn mend(self, host: &HostName) -> Examined {
        self.0.sessions.mend(host, self.devices_held(host)).await
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

/// The findings that are not among others. An attachment may have several, each with a code of its own.
fn not_among<'a>(
    findings: &'a [Difference],
    others: &'a [Difference],
) -> impl Iterator<Item = &'a Difference> {
    let identity = |found: &Difference| (found.subject.clone(), found.code.clone());
    let known: BTreeSet<_> = others.iter().map(identity).collect();
    findings.iter().filter(move |found| !known.contains(&identity(found)))
}

/// The kind of the event of a finding with this code.
fn kind_of(code: &str) -> EventKind {
    match code == Finding::KubeletVfUnused.as_str() {
        true => EventKind::KubeletVfUnused,
        false => EventKind::PodDiffers,
    }
}

/// The kind of the event that a finding with this code is over, and its sentence.
fn end_of(code: &str) -> (EventKind, &'static str) {
    match code == Finding::KubeletVfUnused.as_str() {
        true => {
            (EventKind::KubeletVfUnusedCleared, "its pod has no unused VF of the kubelet any more")
        }
        false => (EventKind::PodDiffersCleared, "the pod matches its attachment again"),
    }
}

/// The code of a finding as its event's reason. A host could invent any number of others.
fn known_code(code: &str) -> &'static str {
    let mut known = Finding::ALL.iter().map(|finding| finding.as_str());
    known.find(|known| *known == code).unwrap_or(Finding::PodDiffers.as_str())
}
