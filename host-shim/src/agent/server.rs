//! The agent's socket: one call per connection, from root or the agent's own user alone.

use std::{
    convert::Infallible,
    fs::{self, DirBuilder, Permissions},
    io,
    os::unix::{
        fs::{DirBuilderExt, FileTypeExt, PermissionsExt},
        net::UnixStream as StdStream,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use metrics::OK;
use nix::unistd::geteuid;
use offload_proto::{Failure, Reason};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::Semaphore,
    time::{sleep, timeout, timeout_at},
};

use super::{Agent, defect, scrape};
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

/// Why the agent can't listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// Another agent listens there.
    #[error("another agent listens on {}", .0.display())]
    InUse(PathBuf),
    /// There is something else.
    #[error("{} is there already and is no socket", .0.display())]
    NotASocket(PathBuf),
    /// The system refused.
    #[error("can't listen on {}", path.display())]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A socket that is listened on.
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
}

impl Drop for Socket {
    /// Nobody is to find a socket that nobody listens on. One that stays all the same is replaced.
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Listens on `path`: in a folder that only the agent's user can enter, in place of a socket that
/// nobody listens on any more.
///
/// # Errors
/// [`ListenError`].
pub(super) fn listen(path: &Path) -> Result<Socket, ListenError> {
    let failed = |source| ListenError::Io { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(folder);
        made.map_err(failed)?;
    }
    remove_stale(path)?;
    let listener = UnixListener::bind(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
    Ok(Socket { listener, path: path.to_owned() })
}

fn remove_stale(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Err(_) => return Ok(()),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(ListenError::NotASocket(path.to_owned()));
        }
        Ok(_) => {}
    }
    if StdStream::connect(path).is_ok() {
        return Err(ListenError::InUse(path.to_owned()));
    }
    fs::remove_file(path).map_err(|source| ListenError::Io { path: path.to_owned(), source })
}

/// Serves the plugin, for ever. Beyond the limit, callers wait in the socket's queue.
pub(super) async fn serve(agent: Arc<Agent>, socket: Socket) -> Infallible {
    let permits = Arc::new(Semaphore::new(agent.config.limits.connections));
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await;
        let stream = match socket.listener.accept().await {
            Ok((stream, _)) => stream,
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
    use std::os::unix::net::UnixListener as StdListener;

    use super::*;
    use crate::{
        agent::{records::tests::record, tests::agent},
        protocol::DelRequest,
    };

    #[tokio::test]
    async fn the_socket_is_closed_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/agent.sock");
        let _listener = listen(&path).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_a_living_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists(), "a killed agent leaves its socket");
        let _second = listen(&path).unwrap();
        assert!(matches!(listen(&path), Err(ListenError::InUse(_))));
    }

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

    #[tokio::test]
    async fn a_socket_ends_with_its_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        drop(listen(&path).unwrap());
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn what_is_no_socket_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("agent.sock");
        fs::write(&path, "mine").unwrap();
        assert!(matches!(listen(&path), Err(ListenError::NotASocket(_))));
        assert_eq!(fs::read_to_string(&path).unwrap(), "mine");
    }
}
