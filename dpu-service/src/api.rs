//! The gRPC API: what each service's calls do, and who may make them.

mod authorise;
mod convert;
mod operator;
mod session;
mod workload;

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use jiff::Timestamp;
use offload_proto::Failure;
use tokio::sync::Semaphore;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::Status;

pub(crate) use authorise::Authorise;
pub(crate) use operator::OperatorApi;
pub(crate) use workload::WorkloadApi;

use crate::attachments::Attachments;

/// What the services share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Attachments,
    /// This DPU's name, from its certificate.
    pub(crate) dpu: String,
    pub(crate) started_at: Timestamp,
    /// How often an agent sends its heartbeat.
    pub(crate) heartbeat: Duration,
    /// How long an agent may take to say hello.
    pub(crate) hello_timeout: Duration,
    /// One permit for each `Watch`.
    pub(crate) watchers: Arc<Semaphore>,
    /// Why the configuration file, as it is now, is not in force.
    pub(crate) configuration_problem: Mutex<Option<String>>,
    /// All flows under way. They finish even when their caller has gone: a saga that stopped in the
    /// middle would leave its work half done.
    pub(crate) flows: TaskTracker,
    /// The service stops: long streams end.
    pub(crate) stopping: CancellationToken,
}

impl Shared {
    /// Runs a flow to its end, whether its caller waits for it or not.
    pub(crate) async fn flow<T: Send + 'static>(
        &self,
        flow: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Status> {
        match self.flows.spawn(flow).await {
            Ok(result) => result.map_err(Status::from),
            Err(error) => Err(Status::internal(format!("the call's task ended early: {error}"))),
        }
    }

    /// Why the configuration file, as it is now, is not in force. `None`: it is.
    pub(crate) fn set_configuration_problem(&self, problem: Option<String>) {
        *self.configuration_problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    pub(crate) fn configuration_problem(&self) -> Option<String> {
        self.configuration_problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
