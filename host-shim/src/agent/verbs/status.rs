//! STATUS: can ADD be served?

use std::time::{Duration, Instant};

use futures::future::try_join_all;
use offload_proto::{Failure, Reason, v1::StatusResponse};

use super::doors::Doors;
use crate::{
    agent::{caller::Caller, dpu::SessionState},
    protocol::{CallerFolders, StatusRequest},
};

/// Runtimes ask often, and wait.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Serves a STATUS: whether ADDs can be served, with each of the further networks that are named.
///
/// # Errors
/// Why not.
pub(in crate::agent) async fn status(
    doors: &Doors,
    request: &StatusRequest,
    caller: &Caller,
) -> Result<(), Failure> {
    trouble(doors, None).await.map_or(Ok(()), Err)?;
    let StatusRequest { networks, folders } = request;
    let deadline = caller.deadline();
    let asked = networks.iter().map(|network| ask_of(doors, network, folders, deadline));
    try_join_all(asked).await.map(drop)
}

/// Whether a further network can be served: by its plugins, or by the DPU. It may be one without addresses.
async fn ask_of(
    doors: &Doors,
    network: &str,
    folders: &CallerFolders,
    deadline: Instant,
) -> Result<(), Failure> {
    let deadline = deadline.checked_sub(TIMEOUT).unwrap_or(deadline);
    let Some(network) = doors.delegates.asked_of_dpu(network, folders, deadline).await? else {
        return Ok(());
    };
    let SessionState::Up(session) = doors.dpu.session().state() else { return Ok(()) };
    let patience = Instant::now() + TIMEOUT;
    match doors.dpu.calls().status(&session, Some(&network), patience).await {
        Err(failure) if !is_of_transport(&failure) => Err(failure),
        _ => Ok(()),
    }
}

/// Why no ADD can be served, if so; with a network, why none to it can. Pools that are exhausted are
/// no trouble of this kind: a node that is not ready would lose the pods that run well.
pub(in crate::agent) async fn trouble(doors: &Doors, network: Option<&str>) -> Option<Failure> {
    let session = match doors.dpu.session().state() {
        SessionState::Up(session) => session,
        // The grace is for what has worked: a host that had no session since its boot is not ready.
        SessionState::Down { since, was_up, failure, .. } => {
            let grace = doors.timeouts.unreachable_grace();
            return (!was_up || since.elapsed() >= grace).then_some(failure);
        }
    };
    match doors.dpu.calls().status(&session, network, Instant::now() + TIMEOUT).await {
        Ok(standing) => of_standing(&standing, network.unwrap_or_default()),
        // The session itself finds out whether the DPU is gone, and since when.
        Err(failure) if is_of_transport(&failure) => None,
        Err(failure) => Some(failure),
    }
}

/// Older DPUs report nothing about networks.
fn of_standing(standing: &StatusResponse, network: &str) -> Option<Failure> {
    if !standing.problems.is_empty() {
        // A code of a later version means no less than that the DPU takes no new attachments.
        let reason = Reason::parse(&standing.reason).unwrap_or(Reason::Draining);
        return Some(Failure::new(reason, standing.problems.join("; ")));
    }
    let is_bare = standing.network.as_ref().is_some_and(|network| network.prefixes.is_empty());
    let which = match network {
        "" => "the DPU's networks have no subnet".to_owned(),
        named => format!("network {named:?} has no subnet"),
    };
    let message = format!("no prefixes available: {which}");
    is_bare.then(|| Failure::new(Reason::AddressesExhausted, message))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_has_the_code_of_its_problem() {
        let reason = |reason: &str| {
            let problems = vec!["there is no bridge br-offload".into()];
            let standing = StatusResponse { problems, reason: reason.into(), network: None };
            of_standing(&standing, "").unwrap().reason
        };
        for known in [Reason::FabricUnavailable, Reason::JournalUnavailable, Reason::Draining] {
            assert_eq!(reason(known.as_str()), known);
        }
        assert_eq!(reason("OF_A_LATER_VERSION"), Reason::Draining);
    }
}
