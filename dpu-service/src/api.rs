//! The gRPC API: what each service's calls do, and who may make them.

mod answer;
mod authorise;
mod calls;
mod convert;
mod count;
mod doctor;
mod finish;
#[cfg(test)]
mod fuzz;
mod operator;
mod room;
mod session;
mod workload;

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use mtls::LiveCredentials;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

pub(crate) use authorise::Authorise;
pub(crate) use count::{Count, calls};
pub(crate) use finish::Finish;
pub(crate) use operator::OperatorApi;
pub(crate) use workload::WorkloadApi;

use crate::attachments::Engine;

/// The problem of a DPU without networks.
const NO_NETWORKS: &str = "there is no network, so no pod can attach: add a [[network]] to the configuration file, or run \
                           `dpuctl apply`";

/// The configuration file.
#[derive(Debug)]
pub(crate) struct ConfigurationState {
    /// The SHA-256 of the content in force.
    pub(crate) digest: String,
    /// Why the file, as it is now, is not in force: one sentence each.
    pub(crate) problems: Vec<String>,
}

/// What the services share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<Engine>,
    /// This DPU's certificate, and with it its name.
    pub(crate) credentials: LiveCredentials,
    /// How long before its end it is told that the certificate expires.
    pub(crate) certificate_warning: Duration,
    pub(crate) started_at: Timestamp,
    /// How often an agent sends its heartbeat.
    pub(crate) heartbeat: Duration,
    /// How long an agent may take to say hello.
    pub(crate) hello_timeout: Duration,
    /// One permit for each `Watch`.
    pub(crate) watchers: Arc<Semaphore>,
    /// Held while hosts, DPU and records are compared for an operator.
    pub(crate) examination: tokio::sync::Mutex<()>,
    pub(crate) configuration: Mutex<ConfigurationState>,
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
        self.configuration().digest.clone()
    }

    pub(crate) fn set_configuration_digest(&self, digest: String) {
        self.configuration().digest = digest;
    }

    fn configuration(&self) -> MutexGuard<'_, ConfigurationState> {
        self.configuration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why Attach can't be served, one sentence each. Open connections survive an expired certificate,
    /// new ones don't.
    pub(crate) async fn status(&self) -> Vec<String> {
        let obstacles = self.engine.status().await;
        obstacles.into_iter().chain(self.credentials.expired()).collect()
    }

    /// That the certificate expires soon, or has expired: one sentence.
    pub(crate) fn expiring(&self) -> Option<String> {
        self.credentials.expiring(self.certificate_warning)
    }

    /// All that is wrong, one sentence each.
    pub(crate) async fn problems(&self) -> Vec<String> {
        self.all_problems(self.status().await)
    }

    /// All that is wrong, given why Attach can't be served.
    pub(crate) fn all_problems(&self, mut status: Vec<String>) -> Vec<String> {
        let of_vfs = self.engine.operators().vf_warnings();
        let others = self.other_problems().into_iter().chain(of_vfs).chain(self.expiring());
        for problem in others {
            if !status.contains(&problem) {
                status.push(problem);
            }
        }
        status
    }

    /// What is wrong besides what keeps Attach from being served, one sentence each. The doctor tells
    /// it, too, and of VFs more than these are told here.
    pub(crate) fn other_problems(&self) -> Vec<String> {
        let configuration = self.configuration().problems.clone();
        let certificate = self.credentials.problem();
        let networks = self.engine.networks().is_empty().then(|| NO_NETWORKS.to_owned());
        let warnings = self.engine.operators().warnings();
        configuration.into_iter().chain(certificate).chain(networks).chain(warnings).collect()
    }
}
