//! The hosts' sessions: at most one open session for each host, the newest.
//!
//! Locks: `hosts` before `absences` and `contacts`. No lock is held across an await.

mod asking;
mod clock;
mod contact;
mod question;
mod reports;

use std::{
    collections::{BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use jiff::Timestamp;
use mtls::ConnectionNumber;
use offload_proto::{Failure, Reason, v1};
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use vf_alloc::{Device, PfId};

use clock::HostClock;
pub use contact::{Contact, Refusal};
use question::Question;
pub use question::{Examined, NotExamined};
use reports::Reports;
pub(crate) use reports::{FindingId, Turns, known_code};

use crate::host::{Hello, HostTime, SessionId};
use model::{AttachmentId, AttachmentKey, AttachmentView, HostName};

/// Maximum number of queued commands for a host. A host that falls further behind loses its session; the hello of its
/// next one settles what it missed.
const COMMANDS_WAITING: usize = 8192;

/// A command to a host.
#[derive(Clone, Debug)]
pub enum HostCommand {
    /// Move the VF back into the pod.
    Reattach(AttachmentView),
    /// Return the VF and detach.
    Release {
        id: AttachmentId,
        key: AttachmentKey,
        /// Why: one sentence without a final stop.
        reason: String,
    },
    /// The DPU has no record of these attachments of the host.
    Unrecorded(Vec<AttachmentId>),
    /// A network was applied or deleted.
    NetworkChanged(v1::NetworkChanged),
    /// The service is stopping and takes no new attachments.
    Draining {
        /// Why: one sentence without a final stop.
        reason: String,
    },
    /// Examine all VFs.
    Examine {
        /// Repeated in the answer.
        request_id: u64,
        /// `Some`: repair problems first, but leave these VFs alone if the host has no record of them.
        repair_except: Option<Vec<Device>>,
    },
    /// Create this number of VFs.
    WantedVfs { pf: PfId, count: u32 },
}

/// A session that was just opened.
#[derive(Debug)]
pub struct Session {
    pub id: SessionId,
    /// Commands to the host. Ends when the session is over: replaced by a newer one, or dropped because the host did
    /// not read its commands.
    pub commands: mpsc::Receiver<HostCommand>,
    /// Notified when VFs of the host changed, so that new ones may be offered.
    pub vfs_changed: Arc<Notify>,
    /// Whether it continues the host's previous session.
    pub is_renewed: bool,
    /// Whether it ended another open session of the host.
    pub has_replaced: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView {
    pub name: HostName,
    pub connected: bool,
    /// Version of its agent, once reported.
    pub agent_version: String,
    /// Boot id of its kernel, once reported.
    pub boot_id: String,
    /// When it was connected, or lost its connection.
    pub since: Option<Timestamp>,
    /// Why it is not connected, if known, without a final stop.
    pub absence: Option<String>,
    /// Its latest connection. `None`: there was none.
    pub contact: Option<Contact>,
    /// Problems of its pods that its agent reports.
    pub pod_findings: Vec<v1::Finding>,
    /// Number of further findings that the report left out.
    pub pod_findings_left_out: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Sessions {
    hosts: Mutex<HashMap<HostName, HostEntry>>,
    /// Why hosts are not connected, if known. Locked after `hosts`.
    absences: Mutex<HashMap<HostName, String>>,
    /// The latest connection of each host. No other lock is taken while it is held.
    contacts: Mutex<HashMap<HostName, Contact>>,
}

#[derive(Debug)]
struct HostEntry {
    open: Option<Open>,
    agent_version: String,
    boot_id: String,
    /// The newest connection with a hello of the host.
    connection: ConnectionNumber,
    since: Timestamp,
}

#[derive(Debug)]
struct Open {
    id: SessionId,
    commands: mpsc::Sender<HostCommand>,
    vfs_changed: Arc<Notify>,
    /// Capabilities that both sides support.
    capabilities: Vec<&'static str>,
    /// A question that the host has not answered yet.
    asked: Option<Question>,
    clock: HostClock,
    /// What the agent reports of its pods and its configuration.
    reports: Reports,
}

impl Sessions {
    /// Opens a session for `host` and ends its current one. The newest hello is that of the newest connection: the
    /// host's clock may be set, so its times prove nothing.
    ///
    /// # Errors
    /// [`Reason::StaleSession`]: the host has sent a hello on a newer connection.
    pub(crate) fn open(&self, host: &HostName, hello: &Hello) -> Result<Session, Failure> {
        let mut hosts = self.hosts.lock();
        if hosts.get(host).is_some_and(|entry| hello.connection < entry.connection) {
            let message = format!("host {host} has sent a newer hello on another connection");
            return Err(Failure::new(Reason::StaleSession, message));
        }
        let is_renewed = |entry: &&HostEntry| hello.renewed.is_some_and(|id| entry.is_in(id));
        let renewed_since = hosts.get(host).filter(is_renewed).map(|entry| entry.since);
        let is_open = hosts.get(host).is_some_and(|entry| entry.open.is_some());
        let has_replaced = is_open && renewed_since.is_none();
        let (sender, commands) = mpsc::channel(COMMANDS_WAITING);
        let vfs_changed = Arc::<Notify>::default();
        let id = SessionId::new();
        let entry = HostEntry {
            open: Some(Open {
                id,
                commands: sender,
                vfs_changed: Arc::clone(&vfs_changed),
                capabilities: hello.capabilities.clone(),
                asked: None,
                clock: HostClock::received_now(hello.inventory.as_of),
                reports: Reports::default(),
            }),
            agent_version: hello.agent_version.clone(),
            boot_id: hello.boot_id.clone(),
            connection: hello.connection,
            since: renewed_since.unwrap_or_else(Timestamp::now),
        };
        // Replaces the previous session: dropping its sender ends the old stream.
        hosts.insert(host.clone(), entry);
        self.absences.lock().remove(host);
        Ok(Session { id, commands, vfs_changed, is_renewed: renewed_since.is_some(), has_replaced })
    }

    /// Ends the session unless a newer one has replaced it. Returns whether it did.
    pub(crate) fn close(&self, host: &HostName, id: SessionId, why: Option<String>) -> bool {
        let mut hosts = self.hosts.lock();
        let Some(entry) = hosts.get_mut(host).filter(|entry| entry.is_in(id)) else { return false };
        entry.open = None;
        entry.since = Timestamp::now();
        // With `hosts` locked: a session opened in between would keep this reason.
        if let Some(why) = why {
            self.absences.lock().insert(host.clone(), why);
        }
        true
    }

    /// Ends the session of a host that was removed from the configuration, if it has one.
    pub(crate) fn end(&self, host: &HostName) {
        if let Some(id) = self.current(host) {
            self.close(host, id, None);
        }
    }

    /// Records that the host was accepted from that address.
    pub(crate) fn note_accepted(&self, host: &HostName, address: IpAddr) {
        self.contacts.lock().insert(host.clone(), Contact::accepted(address));
    }

    /// Records that a peer with the host's certificate was refused for `reason`. `why` adds the time and explains the
    /// host's absence if it is not connected.
    pub(crate) fn note_refused(&self, host: &HostName, address: IpAddr, reason: &str, why: String) {
        self.contacts.lock().insert(host.clone(), Contact::refused(address, reason));
        let hosts = self.hosts.lock();
        // Another program with the certificate must not give a connected host a reason for its absence.
        if hosts.get(host).is_none_or(|entry| entry.open.is_none()) {
            self.absences.lock().insert(host.clone(), why);
        }
    }

    /// Replaces what the host has reported in session `id`. Returns what changes, or `None` if that session is not
    /// open. `attachments` are the host's that are not being released.
    pub(crate) fn note_report(
        &self,
        host: &HostName,
        id: SessionId,
        report: v1::PodFindings,
        attachments: &BTreeSet<String>,
    ) -> Option<Turns> {
        let mut hosts = self.hosts.lock();
        let entry = hosts.get_mut(host).filter(|entry| entry.is_in(id))?;
        Some(entry.open.as_mut()?.reports.note(report, attachments))
    }

    /// Whether `id` is the host's open session.
    pub(crate) fn is_current(&self, host: &HostName, id: SessionId) -> bool {
        self.hosts.lock().get(host).is_some_and(|entry| entry.is_in(id))
    }

    pub(crate) fn current(&self, host: &HostName) -> Option<SessionId> {
        self.hosts.lock().get(host)?.open.as_ref().map(|open| open.id)
    }

    /// The boot id that the host reported in session `id`. `None`: that session is not open.
    pub(crate) fn boot_id(&self, host: &HostName, id: SessionId) -> Option<String> {
        let hosts = self.hosts.lock();
        hosts.get(host).filter(|entry| entry.is_in(id)).map(|entry| entry.boot_id.clone())
    }

    /// The latest time that the host's clock can show now.
    pub(crate) fn latest_time(&self, host: &HostName) -> HostTime {
        let hosts = self.hosts.lock();
        let open = hosts.get(host).and_then(|entry| entry.open.as_ref());
        open.map_or(HostTime(u64::MAX), |open| open.clock.latest())
    }

    /// Sends the host a command if it has a session. Without one, its next hello settles what the command would have.
    /// Returns whether the host has just lost its session because it does not read its commands.
    #[must_use]
    pub(crate) fn send(&self, host: &HostName, command: HostCommand) -> bool {
        self.hosts.lock().get_mut(host).is_some_and(|entry| entry.send(command))
    }

    /// Wakes the task that offers the host new VFs.
    pub(crate) fn note_vfs_changed(&self, host: &HostName) {
        let hosts = self.hosts.lock();
        if let Some(open) = hosts.get(host).and_then(|entry| entry.open.as_ref()) {
            // Stored if the task is busy, so no change is lost.
            open.vfs_changed.notify_one();
        }
    }

    /// Sends a command to all hosts with a session. Returns those that have just lost it because they do not read their
    /// commands.
    #[must_use]
    pub(crate) fn broadcast(&self, command: &HostCommand) -> Vec<HostName> {
        let mut hosts = self.hosts.lock();
        let lost = hosts
            .iter_mut()
            .filter_map(|(host, entry)| entry.send(command.clone()).then(|| host.clone()));
        lost.collect()
    }

    pub(crate) fn view(&self, host: &HostName) -> HostView {
        let hosts = self.hosts.lock();
        let entry = hosts.get(host);
        let open = entry.and_then(|entry| entry.open.as_ref());
        let findings = open.and_then(|open| open.reports.latest()).cloned().unwrap_or_default();
        HostView {
            name: host.clone(),
            connected: entry.is_some_and(|entry| entry.open.is_some()),
            agent_version: entry.map(|entry| entry.agent_version.clone()).unwrap_or_default(),
            boot_id: entry.map(|entry| entry.boot_id.clone()).unwrap_or_default(),
            since: entry.map(|entry| entry.since),
            absence: self.absences.lock().get(host).cloned(),
            contact: self.contacts.lock().get(host).cloned(),
            pod_findings: findings.findings,
            pod_findings_left_out: findings.left_out,
        }
    }

    /// Why the host is not connected; an empty string if the reason is unknown. `None`: it is connected.
    pub(crate) fn absence(&self, host: &HostName) -> Option<String> {
        let hosts = self.hosts.lock();
        if hosts.get(host).is_some_and(|entry| entry.open.is_some()) {
            return None;
        }
        let absences = self.absences.lock();
        Some(absences.get(host).cloned().unwrap_or_default())
    }

    /// For each connected host with findings of pods: the first one and their number.
    pub(crate) fn pod_findings(&self) -> Vec<(HostName, v1::Finding, usize)> {
        let first = |(host, entry): (&HostName, &HostEntry)| {
            let (first, number) = entry.open.as_ref()?.reports.of_interfaces()?;
            Some((host.clone(), first, number))
        };
        self.hosts.lock().iter().filter_map(first).collect()
    }

    /// The connected hosts whose agents refused their configuration files, each with the reason.
    pub(crate) fn configuration_problems(&self) -> Vec<(HostName, String)> {
        let problem = |(host, entry): (&HostName, &HostEntry)| {
            let problem = &entry.open.as_ref()?.reports.latest()?.configuration_problem;
            (!problem.is_empty()).then(|| (host.clone(), problem.clone()))
        };
        self.hosts.lock().iter().filter_map(problem).collect()
    }
}

impl HostEntry {
    fn is_in(&self, id: SessionId) -> bool {
        self.open.as_ref().is_some_and(|open| open.id == id)
    }

    /// Returns whether the session is lost because the host does not read its commands.
    fn send(&mut self, command: HostCommand) -> bool {
        let Some(open) = &self.open else { return false };
        // Never waits: the caller holds the lock of all sessions.
        let is_lost = open.commands.try_send(command).is_err();
        if is_lost {
            self.open = None;
            self.since = Timestamp::now();
        }
        is_lost
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::Inventory;

    pub(super) fn host() -> HostName {
        HostName("node-1".into())
    }

    fn draining() -> HostCommand {
        HostCommand::Draining { reason: "maintenance".into() }
    }

    pub(super) fn hello(boot_id: &str, connection: u64) -> Hello {
        Hello {
            connection: ConnectionNumber(connection),
            agent_version: "1".into(),
            boot_id: boot_id.into(),
            capabilities: Vec::new(),
            inventory: Inventory::default(),
            live: Vec::new(),
            pending: Vec::new(),
            renewed: None,
        }
    }

    fn open(sessions: &Sessions) -> Session {
        sessions.open(&host(), &hello("boot", 0)).unwrap()
    }

    #[test]
    fn a_hello_of_an_older_connection_is_refused() {
        let sessions = Sessions::default();
        let open = |boot_id, connection| sessions.open(&host(), &hello(boot_id, connection));
        let newest = open("boot", 5).unwrap();
        for boot_id in ["boot", "another boot"] {
            assert_eq!(open(boot_id, 4).unwrap_err().reason, Reason::StaleSession);
        }
        assert!(sessions.is_current(&host(), newest.id));
        assert!(sessions.close(&host(), newest.id, None));
        assert_eq!(open("boot", 4).unwrap_err().reason, Reason::StaleSession);
        open("boot", 5).unwrap();
        open("next boot", 6).unwrap();
    }

    #[test]
    fn replaced_session_was_open_and_is_not_renewed() {
        let sessions = Sessions::default();
        let open =
            |renewed| sessions.open(&host(), &Hello { renewed, ..hello("boot", 0) }).unwrap();
        let first = open(None);
        let second = open(None);
        let renewed = open(Some(second.id));
        sessions.close(&host(), renewed.id, None);
        let replaced = [first, second, renewed, open(None)].map(|session| session.has_replaced);
        assert_eq!(replaced, [false, true, false, false]);
    }

    #[test]
    fn only_the_open_session_can_be_continued() {
        let sessions = Sessions::default();
        let renew = |renewed| sessions.open(&host(), &Hello { renewed, ..hello("boot", 0) });
        let first = renew(None).unwrap();
        let since = |sessions: &Sessions| sessions.hosts.lock()[&host()].since;
        let began = since(&sessions);
        let second = renew(Some(first.id)).unwrap();
        assert_eq!(since(&sessions), began, "it goes on");
        assert!(!first.is_renewed && second.is_renewed);
        assert!(!renew(Some(first.id)).unwrap().is_renewed, "it is over");
        let last = sessions.current(&host()).unwrap();
        assert!(sessions.close(&host(), last, None));
        assert!(!renew(Some(last)).unwrap().is_renewed, "it has ended");
    }

    #[test]
    fn a_host_without_a_session_misses_commands() {
        let sessions = Sessions::default();
        assert!(!sessions.send(&host(), draining()));
        let mut session = open(&sessions);
        assert!(session.commands.try_recv().is_err());
        assert_eq!(sessions.broadcast(&draining()), []);
        assert!(session.commands.try_recv().is_ok());
    }

    #[test]
    fn host_that_reads_no_commands_loses_its_session() {
        let sessions = Sessions::default();
        let session = open(&sessions);
        let losses = (0..=COMMANDS_WAITING).filter(|_| sessions.send(&host(), draining()));
        assert_eq!(losses.count(), 1);
        assert!(!sessions.is_current(&host(), session.id));
        assert!(!sessions.view(&host()).connected);
    }
}
