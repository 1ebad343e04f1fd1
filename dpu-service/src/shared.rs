//! What all services of the program share.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bootstrap::ConfigFile;
use jiff::Timestamp;
use metrics::Calls;
use mtls::{Identity, LiveCredentials, Role};
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    attachments::Engine, conditions::Conditions, model::HostName, refused_peers::RefusedPeers,
};

/// The configuration file.
#[derive(Debug)]
pub(crate) struct ConfigurationState {
    /// The content in force.
    in_force: ConfigFile,
    /// Why the file, as it is now, is not in force: one sentence each.
    problems: Vec<String>,
    /// The hosts under maintenance.
    maintenance: BTreeSet<HostName>,
}

impl ConfigurationState {
    /// The file is in force as a whole.
    pub(crate) const fn of(in_force: ConfigFile, maintenance: BTreeSet<HostName>) -> Self {
        Self { in_force, problems: Vec::new(), maintenance }
    }
}

/// What an agent has to keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLimits {
    /// How often it sends its heartbeat.
    pub(crate) heartbeat: Duration,
    /// How long it may take to say hello.
    pub(crate) hello_timeout: Duration,
}

/// What bounds the long calls of operators.
#[derive(Debug)]
pub(crate) struct OperatorLimits {
    /// One permit for each `Watch`.
    pub(crate) watchers: Arc<Semaphore>,
    /// Held while hosts, DPU and records are compared.
    pub(crate) examination: tokio::sync::Mutex<()>,
}

/// What the services share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    /// This DPU's certificate, and with it its name.
    pub(crate) credentials: LiveCredentials,
    /// How long before its end the certificate counts as expiring.
    pub(crate) certificate_warning: Duration,
    pub(crate) started_at: Timestamp,
    pub(crate) session_limits: SessionLimits,
    pub(crate) operator_limits: OperatorLimits,
    pub(crate) configuration: Mutex<ConfigurationState>,
    pub(crate) conditions: Conditions,
    /// Peers that were refused and are none of the hosts.
    pub(crate) refused_peers: RefusedPeers,
    /// The calls that were answered.
    pub(crate) calls: Arc<Calls>,
    /// The tasks of open sessions.
    pub(crate) sessions: TaskTracker,
    /// The service stops: long streams end.
    pub(crate) stopping: CancellationToken,
}

impl Shared {
    /// This DPU's name.
    pub(crate) fn dpu(&self) -> String {
        self.credentials.current().identity().name().to_owned()
    }

    /// Why the configuration file, as it is now, is not in force: one sentence each.
    pub(crate) fn set_configuration_problems(&self, problems: Vec<String>) {
        self.configuration().problems = problems;
    }

    /// The SHA-256 of the configuration file in force.
    pub(crate) fn configuration_digest(&self) -> String {
        self.configuration().in_force.digest()
    }

    pub(crate) fn configuration_problems(&self) -> Vec<String> {
        self.configuration().problems.clone()
    }

    /// Whether the host may be away without a word of it.
    pub(crate) fn is_under_maintenance(&self, host: &HostName) -> bool {
        self.configuration().maintenance.contains(host)
    }

    /// The configuration file in force, without values that may be secret.
    pub(crate) fn configuration_without_secrets(&self) -> String {
        self.configuration().in_force.without_secrets()
    }

    pub(crate) fn set_configuration(&self, in_force: ConfigFile, maintenance: BTreeSet<HostName>) {
        let mut configuration = self.configuration();
        configuration.in_force = in_force;
        configuration.maintenance = maintenance;
    }

    fn configuration(&self) -> MutexGuard<'_, ConfigurationState> {
        self.configuration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why Attach can't be served, one sentence each. Open connections survive a certificate that is not valid any more
    /// or not yet, new ones don't.
    pub(crate) fn status(&self) -> Vec<String> {
        let invalid = self.credentials.outside_validity();
        self.engine.status().into_iter().chain(invalid).collect()
    }

    /// A peer at `address` was refused, at the handshake or at a call. `holder`: whose certificate it showed, if that is by
    /// the DPU's CA.
    pub(crate) fn note_refused(&self, address: IpAddr, holder: Option<&Identity>, reason: &str) {
        let hosts = self.engine.hosts();
        let host = holder.filter(|holder| holder.role() == Role::Host);
        let host = host.map(|holder| HostName(holder.name().into()));
        match host.filter(|host| hosts.serves(host)) {
            Some(host) => hosts.refused(&host, address, reason),
            None => self.refused_peers.note(address, holder, reason, self.engine.events()),
        }
    }

    /// That the certificate expires soon, or has expired: one sentence.
    pub(crate) fn expiring(&self) -> Option<String> {
        self.credentials.expiring(self.certificate_warning)
    }
}
