//! STATUS: can ADD be served?

use std::time::{Duration, Instant};

use offload_proto::{Failure, Reason};

use super::doors::Doors;
use crate::agent::dpu::Standing;

/// Runtimes ask often, and wait.
const PATIENCE: Duration = Duration::from_millis(500);

/// Serves a STATUS: why no ADD can be served, if so. Pools that are exhausted are no trouble of this
/// kind: a node that is not ready would lose the pods that run well.
pub(in crate::agent) async fn trouble(doors: &Doors) -> Option<Failure> {
    let session = match doors.dpu.session().standing() {
        Standing::Up(session) => session,
        // The grace is for what has worked: a host that had no session since its boot is not ready.
        Standing::Down { since, was_up, failure, .. } => {
            let grace = doors.timeouts.unreachable_grace();
            return (!was_up || since.elapsed() >= grace).then_some(failure);
        }
    };
    match doors.dpu.calls().status(&session, Instant::now() + PATIENCE).await {
        Ok(problems) if problems.is_empty() => None,
        Ok(problems) => Some(Failure::new(Reason::Draining, problems.join("; "))),
        // The session itself finds out whether the DPU is gone, and since when.
        Err(failure) if is_of_transport(&failure) => None,
        Err(failure) => Some(failure),
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
