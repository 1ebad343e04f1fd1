//! State that all gRPC services share.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use bootstrap::ConfigFile;
use jiff::Timestamp;
use metrics::Calls;
use mtls::{Identity, LiveCredentials, Role};
use parking_lot::Mutex;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{attachments::Engine, conditions::Conditions, refused_peers::RefusedPeers};
use model::HostName;

#[derive(Debug)]
pub(crate) struct ConfigurationState {
    pub(crate) in_force: ConfigFile,
    /// Why the current file is not in force: one sentence each.
    pub(crate) problems: Vec<String>,
    /// Hosts whose absence is not reported.
    pub(crate) maintenance: BTreeSet<HostName>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct SessionLimits {
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
    pub(crate) calls: Arc<Calls>,
    pub(crate) sessions: TaskTracker,
    /// Cancelled when the service stops: long streams end.
    pub(crate) stopping: CancellationToken,
}

impl Shared {
    pub(crate) fn dpu(&self) -> String {
        self.credentials.current().identity().name().to_owned()
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
