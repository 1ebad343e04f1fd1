//! Answers the plugin: one call per connection, from root or the agent's own user alone.

use std::{
    convert::Infallible,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use metrics::OK;
use nix::unistd::geteuid;
use offload_proto::{Failure, Reason};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    sync::Semaphore,
    time::{sleep, timeout, timeout_at},
};

use super::{Agent, defect, scrape, socket::Socket};
use crate::{
    cni::error::CniError,
    protocol::{Call, DOCUMENT_LIMIT, Reply, Request, decode},
};

/// How long a caller may take to say what it wants.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait when the system refuses to accept, as it does when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long before its caller gives up a call is given up, so that the answer still arrives.
const MARGIN: Duration = Duration::from_millis(500);

/// Serves the plugin, for ever. Beyond the limit, callers wait in the socket's queue.
pub(super) async fn serve(agent: Arc<Agent>, socket: &Socket) -> Infallible {
    let permits = Arc::new(Semaphore::new(agent.config.limits.connections));
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await;
        let stream = match socket.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept calls");
                sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let agent = Arc::clone(&agent);
        let tasks = agent.tasks.clone();
        tasks.spawn(async move {
            if let Err(error) = converse(agent, stream, permit).await {
                tracing::debug!(%error, "a call was broken off");
            }
        });
    }
}

/// Answers one call, which counts as open until its work is done.
async fn converse(
    agent: Arc<Agent>,
    mut stream: UnixStream,
    permit: impl Send + 'static,
) -> io::Result<()> {
    let arrived = Instant::now();
    let caller = stream.peer_cred()?.uid();
    if caller != 0 && caller != geteuid().as_raw() {
        tracing::warn!(uid = caller, "a call of a stranger is refused");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let call: Call = timeout(READ_LIMIT, read(&mut stream)).await??;
    let deadline = arrived + Duration::from_millis(call.deadline_ms).saturating_sub(MARGIN);
    // A task of its own: a caller that is killed or gives up does not stop the work in the middle.
    let (verb, begun) = (scrape::verb(&call.request), Instant::now());
    let worker = Arc::clone(&agent);
    let work = agent.tasks.spawn(async move {
        let _permit = permit;
        answer(&worker, call.request, deadline).await
    });
    let Answer { reply, refusal } = match timeout_at(deadline.into(), work).await {
        Ok(answer) => answer.unwrap_or_else(|error| failed(defect(&error))),
        Err(_) => failed(late()),
    };
    agent.calls.note(verb.as_str(), refusal.map_or(OK, Reason::as_str), begun.elapsed());
    stream.write_all(&serde_json::to_vec(&reply)?).await?;
    stream.shutdown().await
}

async fn read(stream: &mut UnixStream) -> io::Result<Call> {
    let mut document = Vec::new();
    stream.take(DOCUMENT_LIMIT).read_to_end(&mut document).await?;
    decode(&document)
}

/// What a caller is told.
pub(super) struct Answer {
    pub reply: Reply,
    /// `None`: what was asked for is done.
    pub refusal: Option<Reason>,
}

impl From<Reply> for Answer {
    /// What was asked for is done.
    fn from(reply: Reply) -> Self {
        Self { reply, refusal: None }
    }
}

async fn answer(agent: &Arc<Agent>, request: Request, deadline: Instant) -> Answer {
    let done = |result: Result<(), Failure>| result.map_or_else(failed, |()| Reply::Done.into());
    match request {
        Request::Add(request) => {
            let deadline = deadline.min(Instant::now() + agent.config.timeouts.attach());
            match agent.attach(request, deadline).await {
                Ok(attachment) => Reply::Attached { attachment: Box::new(attachment) }.into(),
                Err(failure) => failed(failure),
            }
        }
        Request::Del(request) => {
            agent.detach(request).await;
            Reply::Done.into()
        }
        Request::Check(request) => done(agent.check(request).await),
        Request::Gc(request) => done(agent.collect(request).await),
        Request::Status => agent.status().await,
    }
}

fn late() -> Failure {
    Failure::new(Reason::DeadlineExceeded, "the agent is still at work on the call")
}

fn failed(failure: Failure) -> Answer {
    let reason = failure.reason;
    tracing::info!(%reason, "refused: {failure}");
    let CniError { code, message, details } = failure.into();
    Answer { reply: Reply::Failed { code, message, details }, refusal: Some(reason) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        agent::{records::tests::record, tests::agent},
        protocol::DelRequest,
    };

    #[tokio::test]
    async fn whoever_waits_too_long_is_told_so() {
        let (agent, _folder) = agent();
        let key = record("a", "c").key();
        let _held = agent.keys.lock(&key).await;
        let request = Request::Del(DelRequest { key, netns: String::new() });
        let call = Call { deadline_ms: 520, request };
        let (mut caller, stream) = UnixStream::pair().unwrap();
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        let conversation = tokio::spawn(converse(Arc::clone(&agent), stream, permit));
        caller.write_all(&serde_json::to_vec(&call).unwrap()).await.unwrap();
        caller.shutdown().await.unwrap();
        let mut answer = Vec::new();
        caller.read_to_end(&mut answer).await.unwrap();
        let Reply::Failed { details, .. } = decode(&answer).unwrap() else { panic!("no failure") };
        assert!(details.starts_with("DEADLINE_EXCEEDED"), "{details}");
        assert_eq!(permits.available_permits(), 0, "the work goes on");
        conversation.await.unwrap().unwrap();
        let page = agent.page().text().unwrap();
        let counted = r#"agent_calls_total{verb="DEL",outcome="DEADLINE_EXCEEDED"} 1"#;
        assert!(page.contains(counted), "as the caller was told: {page}");
    }
}
