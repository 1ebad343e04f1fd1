//! STATUS: can ADD be served?

use std::time::{Duration, Instant};

use offload_proto::{Failure, Reason};

use crate::agent::{Agent, dpu::session::Standing, server::Answer};
use crate::{
    cni::error::{CniError, code},
    protocol::Reply,
};

/// Runtimes ask often, and wait.
const PATIENCE: Duration = Duration::from_millis(500);

impl Agent {
    /// Serves a STATUS. Pools that are exhausted are no problem of this kind: a node that is not
    /// ready would lose the pods that run well.
    pub(in crate::agent) async fn status(&self) -> Answer {
        match self.trouble().await {
            None => Reply::Done.into(),
            Some(failure) => self.not_available(failure),
        }
    }

    async fn trouble(&self) -> Option<Failure> {
        let session = match self.session.standing() {
            Standing::Up(session) => session,
            // The grace is for what has worked: a host that had no session since its boot is not ready.
            Standing::Down { since, was_up, failure, .. } => {
                let grace = self.config.timeouts.unreachable_grace();
                return (!was_up || since.elapsed() >= grace).then_some(failure);
            }
        };
        match self.call_status(&session, Instant::now() + PATIENCE).await {
            Ok(problems) if problems.is_empty() => None,
            Ok(problems) => Some(Failure::new(Reason::Draining, problems.join("; "))),
            // The session itself finds out whether the DPU is gone, and since when.
            Err(failure) if is_of_transport(&failure) => None,
            Err(failure) => Some(failure),
        }
    }

    fn not_available(&self, failure: Failure) -> Answer {
        let code = if self.broken().is_empty() {
            code::NOT_AVAILABLE
        } else {
            code::NOT_AVAILABLE_AND_LIMITED
        };
        let refusal = Some(failure.reason);
        let CniError { message, details, .. } = failure.into();
        Answer { reply: Reply::Failed { code, message, details }, refusal }
    }
}

fn is_of_transport(failure: &Failure) -> bool {
    matches!(
        failure.reason,
        Reason::DpuUnreachable
            | Reason::DeadlineExceeded
            | Reason::StaleSession
            | Reason::Overloaded
    )
}
