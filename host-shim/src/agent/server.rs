//! Answers the plugin: one call per connection, from root or the agent's own user alone.

use std::{
    convert::Infallible,
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use metrics::{Calls, OK};
use nix::unistd::geteuid;
use offload_proto::{Failure, Reason};
use tokio::{
    io::AsyncReadExt,
    net::UnixStream,
    sync::Semaphore,
    task::JoinError,
    time::{sleep, sleep_until, timeout},
};

use super::{
    caller::Caller,
    defect::defect,
    device_plugin::DevicePlugin,
    scrape,
    socket::Socket,
    verbs::{self, Destination, Doors},
};
use crate::{
    cni::error::{CniError, code},
    protocol::{
        AddRequest, Call, CheckRequest, DOCUMENT_LIMIT, DelRequest, Reply, Request, decode,
    },
};

/// How long a caller may take to say what it wants.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// How long to wait when the system refuses to accept, as it does when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long before its caller gives up a call is given up, so that the answer still arrives.
const MARGIN: Duration = Duration::from_millis(500);

/// How many connections may be open for each call that is answered at a time: who waits for a turn hears
/// that the agent lives, and who does not say what it wants takes nobody's turn.
const OPEN_FOR_EACH: usize = 8;

/// What answers the plugin.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub doors: Doors,
    /// The kubelet that hands out VFs, if one does.
    pub device_plugin: Arc<DevicePlugin>,
    /// The calls that were answered.
    pub calls: Arc<Calls>,
}

/// Serves the plugin, for ever. Beyond the `limit`, callers wait for their turn, and far beyond it in the
/// socket's queue.
pub(super) async fn serve(server: Server, limit: usize, socket: &Socket) -> Infallible {
    let permits = Arc::new(Semaphore::new(limit * OPEN_FOR_EACH));
    let turns = Arc::new(Semaphore::new(limit));
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
        let (server, turns) = (server.clone(), Arc::clone(&turns));
        let tasks = server.doors.tasks.clone();
        tasks.spawn(async move {
            if let Err(error) = converse(server, stream, turns, permit).await {
                tracing::debug!(%error, "a call was broken off");
            }
        });
    }
}

/// Answers one call, which counts as open until its work is done.
async fn converse(
    server: Server,
    mut stream: UnixStream,
    turns: Arc<Semaphore>,
    permit: impl Send + 'static,
) -> io::Result<()> {
    let uid = stream.peer_cred()?.uid();
    if uid != 0 && uid != geteuid().as_raw() {
        tracing::warn!(uid, "a call is refused: only root and the agent's own user may call");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let call: Call = timeout(READ_LIMIT, read(&mut stream)).await??;
    let deadline = Instant::now() + call.time_left().saturating_sub(MARGIN);
    let caller = Arc::new(Caller::new(stream, deadline)?);
    let (verb, begun) = (scrape::verb(&call.request), Instant::now());
    // A task of its own: a caller that ends does not stop the work in the middle.
    let (answering, asker) = (server.clone(), Arc::clone(&caller));
    let mut work = server.doors.tasks.spawn(async move {
        let _permit = permit;
        let _turn = turns.acquire().await;
        answer(&answering, call.request, &asker).await
    });
    let refusal = tokio::select! {
        biased;
        ended = &mut work => of_ended(&caller, ended).await,
        never = caller.keep_company() => match never {},
        () = sleep_until(deadline.into()) => {
            let Answer { reply, refusal } = failed(late());
            match caller.give_up(&reply).await {
                Ok(()) => refusal,
                // It was answered just now, or has ended.
                Err(_) => of_ended(&caller, work.await).await,
            }
        }
    };
    server.calls.note(verb.as_str(), refusal.map_or(OK, Reason::as_str), begun.elapsed());
    Ok(())
}

/// What came of the work, for whom also its own failure is an answer.
async fn of_ended(caller: &Caller, ended: Result<Option<Reason>, JoinError>) -> Option<Reason> {
    match ended {
        Ok(refusal) => refusal,
        Err(error) => tell(caller, failed(defect(&error))).await,
    }
}

/// Answers, if somebody still waits, and returns why it was refused.
async fn tell(caller: &Caller, Answer { reply, refusal }: Answer) -> Option<Reason> {
    if let Err(failure) = caller.answer(&reply).await {
        tracing::debug!("nobody was answered: {failure}");
    }
    refusal
}

async fn read(stream: &mut UnixStream) -> io::Result<Call> {
    let mut document = Vec::new();
    stream.take(DOCUMENT_LIMIT).read_to_end(&mut document).await?;
    decode(&document)
}

/// What a caller is told.
struct Answer {
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

/// Does what is asked for, and answers. A call that nobody waits for any more is not begun: its caller
/// may have made another since. Returns why it was refused.
async fn answer(server: &Server, request: Request, caller: &Arc<Caller>) -> Option<Reason> {
    let doors = &server.doors;
    if let Err(failure) = caller.is_waiting() {
        return tell(caller, failed(failure)).await;
    }
    if let Err(failure) = refuse_host_port(&request) {
        return tell(caller, failed(failure)).await;
    }
    let done = |result: Result<(), Failure>| result.map_or_else(failed, |()| Reply::Done.into());
    let answer = match request {
        Request::Add(request) => match attach(server, *request, caller).await {
            Ok(()) => return None,
            Err(failure) => failed(failure),
        },
        Request::Del(request) => {
            verbs::detach(doors, request).await;
            Reply::Done.into()
        }
        Request::Check(request) => done(verbs::check(doors, request).await),
        Request::Gc(request) => done(verbs::gc(doors, request).await),
        Request::Status => match verbs::trouble(doors).await {
            None => Reply::Done.into(),
            Some(failure) => not_available(doors, failure),
        },
    };
    tell(caller, answer).await
}

/// Attaches a VF, and the one that the kubelet has chosen where the DPU gives none that nobody names. Which of a
/// pod's interfaces is meant to have the kubelet's is known by that alone: the others' networks have other pools.
async fn attach(server: &Server, request: AddRequest, caller: &Arc<Caller>) -> Result<(), Failure> {
    let attach =
        async |request| verbs::attach(&server.doors, request, &Destination::Pod, caller).await;
    match attach(request.clone()).await {
        Err(refusal) if refusal.reason == Reason::PoolPinnedOnly => {
            let chosen = server.device_plugin.chosen(&request, caller.deadline()).await?;
            let device = chosen.ok_or(refusal)?;
            attach(AddRequest { device: Some(device), ..request }).await
        }
        attached => attached,
    }
}

/// No runtime makes, takes or asks for a host port.
fn refuse_host_port(request: &Request) -> Result<(), Failure> {
    let key = match request {
        Request::Add(add) => &add.key,
        Request::Del(DelRequest { key, .. }) | Request::Check(CheckRequest { key, .. }) => key,
        Request::Gc(_) | Request::Status => return Ok(()),
    };
    if !key.is_of_host_port() {
        return Ok(());
    }
    let id = &key.container_id;
    let message = format!(
        "the container id {id} is that of the host's own ports, which are in the agent's file"
    );
    Err(Failure::new(Reason::InvalidRequest, message))
}

/// What STATUS is told. With a pod that has lost its VF, the runtime is to know that what runs is limited, too.
fn not_available(doors: &Doors, failure: Failure) -> Answer {
    let code = match doors.vfs.records().broken() {
        0 => code::NOT_AVAILABLE,
        _ => code::NOT_AVAILABLE_AND_LIMITED,
    };
    let refusal = Some(failure.reason);
    let CniError { message, details, .. } = failure.into();
    Answer { reply: Reply::Failed { code, message, details }, refusal }
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
    use tokio::io::AsyncWriteExt;

    use super::*;
    use crate::{
        agent::{dpu::tests::config, verbs::tests::doors, vfs::record},
        protocol::{DelRequest, SIGN_OF_LIFE},
    };

    fn server() -> (Server, tempfile::TempDir) {
        let (doors, folder) = doors();
        (
            Server {
                doors,
                device_plugin: Arc::new(DevicePlugin::new(None)),
                calls: scrape::calls(),
            },
            folder,
        )
    }

    #[tokio::test]
    async fn who_waits_for_a_turn_hears_that_the_agent_lives() {
        let (server, _folder) = server();
        let turns = Arc::new(Semaphore::new(1));
        let turn = Arc::clone(&turns).try_acquire_owned().unwrap();
        let (mut caller, stream) = UnixStream::pair().unwrap();
        let conversation = tokio::spawn(converse(server, stream, turns, ()));
        let call = Call::new(Duration::from_secs(60), Request::Status);
        caller.write_all(&serde_json::to_vec(&call).unwrap()).await.unwrap();
        caller.shutdown().await.unwrap();
        let mut heard = [0; 1];
        caller.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, SIGN_OF_LIFE);
        drop(turn);
        let mut answer = Vec::new();
        caller.read_to_end(&mut answer).await.unwrap();
        assert!(matches!(decode(&answer).unwrap(), Reply::Failed { code: 50, .. }));
        conversation.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn whoever_waits_too_long_is_told_so() {
        let (server, _folder) = server();
        let key = record("a", "c").key();
        let _held = server.doors.vfs.keys().lock(&key).await;
        let request = Request::Del(DelRequest { key, netns: String::new() });
        let call = Call::new(MARGIN + Duration::from_millis(20), request);
        let (mut caller, stream) = UnixStream::pair().unwrap();
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        let turns = Arc::new(Semaphore::new(1));
        let conversation = tokio::spawn(converse(server.clone(), stream, turns, permit));
        caller.write_all(&serde_json::to_vec(&call).unwrap()).await.unwrap();
        caller.shutdown().await.unwrap();
        let mut answer = Vec::new();
        caller.read_to_end(&mut answer).await.unwrap();
        let Reply::Failed { details, .. } = decode(&answer).unwrap() else { panic!("no failure") };
        assert!(details.starts_with("DEADLINE_EXCEEDED"), "{details}");
        assert_eq!(permits.available_permits(), 0, "the work goes on");
        conversation.await.unwrap().unwrap();
        let Server { doors, calls, .. } = server;
        let page = scrape::page(&config(), &doors.vfs, &doors.dpu, &calls).text().unwrap();
        let counted = r#"agent_calls_total{verb="DEL",outcome="DEADLINE_EXCEEDED"} 1"#;
        assert!(page.contains(counted), "as the caller was told: {page}");
    }
}
