//! State that all gRPC services share.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use bootstrap::ConfigFile;
use jiff::Timestamp;
use metrics::Calls;
use mtls::{Identity, LiveCredentials, Role};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{attachments::Engine, conditions::Conditions, refused_peers::RefusedPeers};
use model::HostName;

/// State of the configuration file.
#[derive(Debug)]
pub(crate) struct ConfigurationState {
    in_force: ConfigFile,
    /// Why the current file is not in force: one sentence each.
    problems: Vec<String>,
    maintenance: BTreeSet<HostName>,
}

impl ConfigurationState {
    /// A file that is completely in force.
    pub(crate) const fn of(in_force: ConfigFile, maintenance: BTreeSet<HostName>) -> Self {
        Self { in_force, problems: Vec::new(), maintenance }
    }
}

/// Time limits of sessions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLimits {
    /// Interval of heartbeats.
    pub(crate) heartbeat: Duration,
    /// Time limit for the hello after the connection.
    pub(crate) hello_timeout: Duration,
}

/// Limits of operators' long calls.
#[derive(Debug)]
pub(crate) struct OperatorLimits {
    pub(crate) watchers: Arc<Semaphore>,
    /// Held during a diagnosis.
    pub(crate) examination: tokio::sync::Mutex<()>,
}

/// Shared state of the services.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    /// This DPU's certificate, which also contains its name.
    pub(crate) credentials: LiveCredentials,
    /// How long before its end the certificate counts as expiring.
    pub(crate) certificate_warning: Duration,
    pub(crate) started_at: Timestamp,
    pub(crate) session_limits: SessionLimits,
    pub(crate) operator_limits: OperatorLimits,
    pub(crate) configuration: Mutex<ConfigurationState>,
    pub(crate) conditions: Conditions,
    /// Refused peers that are not known hosts.
    pub(crate) refused_peers: RefusedPeers,
    /// Counters of calls.
    pub(crate) calls: Arc<Calls>,
    pub(crate) sessions: TaskTracker,
    /// Cancelled when the service stops: long streams end.
    pub(crate) stopping: CancellationToken,
}

impl Shared {
    pub(crate) fn dpu(&self) -> String {
        self.credentials.current().identity().name().to_owned()
    }

    /// Stores why the current configuration file is not in force: one sentence each.
    pub(crate) fn set_configuration_problems(&self, problems: Vec<String>) {
        self.configuration().problems = problems;
    }

    pub(crate) fn configuration_digest(&self) -> String {
        self.configuration().in_force.digest()
    }

    pub(crate) fn configuration_problems(&self) -> Vec<String> {
        self.configuration().problems.clone()
    }

    /// Whether the host is under maintenance: its absence is not reported.
    pub(crate) fn is_under_maintenance(&self, host: &HostName) -> bool {
        self.configuration().maintenance.contains(host)
    }

    pub(crate) fn configuration_without_secrets(&self) -> String {
        self.configuration().in_force.without_secrets()
    }

    pub(crate) fn set_configuration(&self, in_force: ConfigFile, maintenance: BTreeSet<HostName>) {
        let mut configuration = self.configuration();
        configuration.in_force = in_force;
        configuration.maintenance = maintenance;
    }

    fn configuration(&self) -> MutexGuard<'_, ConfigurationState> {
        self.configuration.lock()
    }

    /// Why Attach cannot be served, one sentence each. An invalid certificate counts, too: open connections survive it,
    /// but new ones are refused.
    pub(crate) fn status(&self) -> Vec<String> {
        let invalid = self.credentials.outside_validity();
        self.engine.status().into_iter().chain(invalid).collect()
    }

    /// Notes a peer at `address` that was refused at the handshake or at a call. `holder`: the identity in its
    /// certificate, if the DPU's CA issued it.
    pub(crate) fn note_refused(&self, address: IpAddr, holder: Option<&Identity>, reason: &str) {
        let hosts = self.engine.hosts();
        let host = holder.filter(|holder| holder.role() == Role::Host);
        let host = host.map(|holder| HostName(holder.name().into()));
        match host.filter(|host| hosts.serves(host)) {
            Some(host) => hosts.refused(&host, address, reason),
            None => self.refused_peers.note(address, holder, reason, self.engine.events()),
        }
    }

    /// One sentence if the certificate expires soon or has expired.
    pub(crate) fn expiring(&self) -> Option<String> {
        self.credentials.expiring(self.certificate_warning)
    }
}
