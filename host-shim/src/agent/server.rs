//! Accepts calls of root and of the agent's own user: the plugin's, one per connection, and gRPC connections, which
//! `workloads` serves.
//!
//! Each connection is a task. A semaphore bounds the open connections; the dispatcher bounds the calls that run at a
//! time.

use std::{
    convert::Infallible,
    io,
    os::fd::AsRawFd,
    sync::Arc,
    time::{Duration, Instant},
};

use nix::{
    sys::socket::{MsgFlags, recv},
    unistd::geteuid,
};
use offload_proto::{Failure, Reason};
use serde::Serialize;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, Interest},
    net::UnixStream,
    sync::Semaphore,
    time::{sleep, timeout},
};
use tracing::{Span, field::display};

use super::{
    caller::{Answer, Caller, Form},
    device_plugin::DevicePlugin,
    dispatcher::{Dispatcher, refused},
    host_port,
    report::report,
    scrape,
    socket::Socket,
    verbs::{self, Destination, Doors},
    workloads::Connections,
};
use crate::{
    cni::{environment::Verb, error::code},
    protocol::{AddRequest, Asked, Call, DOCUMENT_LIMIT, END_OF_ANSWER, Key, Request, decode},
};

/// How long a caller may take to send its request.
const READ_LIMIT: Duration = Duration::from_secs(5);
/// The first byte of an HTTP/2 connection; no plugin document begins with it.
const BEGINNING_OF_HTTP: u8 = b'P';
/// The delay after a failed accept, for example without free file descriptors.
const ACCEPT_DELAY: Duration = Duration::from_millis(100);
/// How long before its caller's deadline a call is answered without a result, so that the answer still arrives.
const MARGIN: Duration = Duration::from_millis(500);

/// The number of open connections for each call that may run. Waiting callers get heartbeats, and slow senders take no
/// turn of a running call.
const OPEN_FOR_EACH: usize = 8;

/// What the server passes calls to.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub doors: Doors,
    pub device_plugin: Arc<DevicePlugin>,
    pub dispatcher: Dispatcher,
    pub workloads: Connections,
}

/// Accepts callers forever. Above the bound of open connections, derived from `limit`, callers wait in the socket's
/// backlog.
pub(super) async fn serve(server: Server, limit: usize, socket: &Socket) -> Infallible {
    let permits = Arc::new(Semaphore::new(limit * OPEN_FOR_EACH));
    loop {
        let permit = Arc::clone(&permits).acquire_owned().await;
        let stream = match socket.accept().await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept calls");
                // An immediate retry would spin while file descriptors are exhausted.
                sleep(ACCEPT_DELAY).await;
                continue;
            }
        };
        let server = server.clone();
        let tasks = server.doors.tasks.clone();
        tasks.spawn(async move {
            if let Err(error) = converse(server, stream, permit).await {
                tracing::debug!(%error, "a connection ended without an answer");
            }
        });
    }
}

/// Answers one call, or passes a gRPC connection on. `permit` is held until the call's work or the connection ends.
///
/// What follows the first bytes is on the heap: a connection that sends nothing must not take the memory of a call.
async fn converse(
    server: Server,
    mut stream: UnixStream,
    permit: impl Send + 'static,
) -> io::Result<()> {
    // The socket's mode excludes other users, but a person can change that mode.
    let uid = stream.peer_cred()?.uid();
    if uid != 0 && uid != geteuid().as_raw() {
        tracing::warn!(uid, "the call is refused: only root and the agent's own user may call");
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    if timeout(READ_LIMIT, first_byte(&stream)).await?? == Some(BEGINNING_OF_HTTP) {
        return Box::pin(server.workloads.take(stream, permit)).await;
    }
    let mut document = Vec::new();
    let mut request = (&mut stream).take(DOCUMENT_LIMIT);
    timeout(READ_LIMIT, request.read_to_end(&mut document)).await??;
    Box::pin(serve_call(server, stream, document, permit)).await
}

/// Answers the call in a document.
async fn serve_call(
    server: Server,
    mut stream: UnixStream,
    document: Vec<u8>,
    permit: impl Send + 'static,
) -> io::Result<()> {
    let call: Call<Asked> = match decode(&document) {
        Ok(call) => call,
        Err(error) => return answer_undecodable(&mut stream, &document, error).await,
    };
    drop(document);
    let deadline = Instant::now() + call.time_left().saturating_sub(MARGIN);
    let parent = call.traceparent;
    let (request, form) = match call.request {
        Asked::Report => {
            let report = report(&server.doors, server.dispatcher.failures()).await;
            return write_answer(&mut stream, &report).await;
        }
        Asked::Plain(request) => (request, Form::Plain),
        Asked::Cni(call) => match Form::of(*call) {
            Ok(asked) => asked,
            Err(reply) => return write_answer(&mut stream, &reply).await,
        },
    };
    let caller = Arc::new(Caller::plugin(stream, form, deadline)?);
    let (verb, asker) = (scrape::verb(&request), Arc::clone(&caller));
    let dispatcher = server.dispatcher.clone();
    let span = entry(verb, request.key(), parent.is_some());
    let subject = subject_of(&request);
    let work = async move {
        // Held until the work ends, even if the caller exits before.
        let _permit = permit;
        answer(&server, request, &asker).await.inspect(note_failure)
    };
    dispatcher.attend(verb, subject, &caller, traces::follow(span, parent, work)).await;
    Ok(())
}

/// The pod or attachment of a call, for people.
fn subject_of(request: &Request) -> String {
    match request {
        Request::Add(add) if !add.pod.name.is_empty() => {
            format!("{}/{} {}", add.pod.namespace, add.pod.name, add.key.interface_name)
        }
        Request::Gc(gc) => gc.configuration.clone(),
        other => other.key().map(Key::to_string).unwrap_or_default(),
    }
}

/// The span of a call. STATUS, which runtimes call every few seconds, starts no trace.
fn entry(verb: Verb, key: Option<&Key>, is_traced: bool) -> Span {
    if verb == Verb::Status && !is_traced {
        return Span::none();
    }
    let span = traces::entry(verb.as_str());
    if let Some(key) = key {
        span.record("attachment", display(key));
    }
    span
}

fn note_failure(answer: &Answer) {
    if let Answer::Refused { failure, .. } = answer {
        traces::fail(&format_args!("{}: {failure}", failure.reason));
    }
}

/// Peeks at the caller's first byte. `None`: the caller sent nothing.
async fn first_byte(stream: &UnixStream) -> io::Result<Option<u8>> {
    let mut byte = [0];
    let look = || Ok(recv(stream.as_raw_fd(), &mut byte, MsgFlags::MSG_PEEK)?);
    let count = stream.async_io(Interest::READABLE, look).await?;
    Ok((count > 0).then_some(byte[0]))
}

/// Answers an undecodable call. Without an answer the caller would take the agent for one that restarts, and retry.
async fn answer_undecodable(
    stream: &mut UnixStream,
    document: &[u8],
    error: io::Error,
) -> io::Result<()> {
    match Form::undecodable(document, &error) {
        Some(reply) => write_answer(stream, &reply).await,
        None => Err(error),
    }
}

/// Writes an answer that needs no work and is not counted as a call.
async fn write_answer(stream: &mut UnixStream, reply: &impl Serialize) -> io::Result<()> {
    let mut document = serde_json::to_vec(reply)?;
    document.push(END_OF_ANSWER);
    timeout(READ_LIMIT, stream.write_all(&document)).await?
}

/// Does the work of a request. `None`: the caller was answered already.
async fn answer(server: &Server, request: Request, caller: &Arc<Caller>) -> Option<Answer> {
    let doors = &server.doors;
    if let Some(Err(failure)) = request.key().map(|key| host_port::refuse(&key.container_id)) {
        return Some(refused(failure));
    }
    Some(match request {
        Request::Add(request) => refused(attach(server, *request, caller).await.err()?),
        Request::Del(request) => {
            verbs::detach(doors, request).await;
            Answer::Done
        }
        Request::Check(request) => match verbs::check(doors, request).await {
            Ok(warning) => warning.map_or(Answer::Done, Answer::Warned),
            Err(failure) => refused(failure),
        },
        Request::Gc(request) => {
            verbs::gc(doors, request).await.map_or_else(refused, |()| Answer::Done)
        }
        Request::Status(request) => match verbs::status(doors, &request, caller).await {
            Ok(()) => Answer::Done,
            Err(failure) => not_available(doors, failure),
        },
    })
}

/// Attaches a VF. If the network's pool has only VFs for the kubelet to hand out, repeats the call with the VF that the
/// kubelet chose. Only that refusal shows which of a pod's interfaces needs the kubelet's VF.
async fn attach(
    server: &Server,
    mut request: AddRequest,
    caller: &Arc<Caller>,
) -> Result<(), Failure> {
    let attach =
        async |request| verbs::attach(&server.doors, request, &Destination::Pod, caller).await;
    match attach(request.clone()).await {
        Err(refusal) if refusal.reason == Reason::PoolPinnedOnly => {
            let (kubelet, deadline) = (&server.device_plugin, caller.deadline());
            let Some(device) = kubelet.chosen(&refusal, &request, deadline).await? else {
                return Err(kubelet.with_unreported_container(refusal, &request, deadline).await);
            };
            request.interface.device = Some(device);
            attach(request).await
        }
        attached => attached,
    }
}

/// The answer to STATUS. If a pod has lost its VF, the code also says that running pods are limited.
fn not_available(doors: &Doors, failure: Failure) -> Answer {
    let code = match doors.vfs.records().broken() {
        0 => code::NOT_AVAILABLE,
        _ => code::NOT_AVAILABLE_AND_LIMITED,
    };
    Answer::Refused { failure, code }
}

#[cfg(test)]
mod tests {
    use metrics::Calls;
    use serde_json::{Value, json};
    use tokio::{sync::oneshot, task::yield_now};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{
        agent::{dpu::tests::config, verbs::tests::doors, vfs::record, workloads::Workloads},
        cni::environment::Verb,
        protocol::{DelRequest, HEARTBEAT, Reply, StatusRequest},
    };

    /// A server that answers one call at a time and counts calls.
    fn server(calls: &Arc<Calls>) -> (Server, tempfile::TempDir) {
        let (doors, folder) = doors();
        let dispatcher =
            Dispatcher::new(doors.tasks.clone(), 1, Arc::clone(calls), Arc::clone(&doors.dpu));
        let device_plugin = Arc::new(DevicePlugin::new(None, Arc::clone(&doors.vfs)));
        let service = Workloads::new(doors.clone(), dispatcher.clone(), String::new());
        let workloads = Connections::serve(service, 1, CancellationToken::new());
        (Server { doors, device_plugin, dispatcher, workloads }, folder)
    }

    #[tokio::test(start_paused = true)]
    async fn queued_caller_gets_heartbeats() {
        let (server, _folder) = server(&scrape::calls());
        let (end, work) = oneshot::channel();
        let (first, _receiver) = Caller::task(Instant::now() + Duration::from_secs(60));
        let (dispatcher, first) = (server.dispatcher.clone(), Arc::new(first));
        tokio::spawn(async move {
            dispatcher.attend(Verb::Del, String::new(), &first, async { work.await.ok() }).await;
        });
        yield_now().await;
        let (mut caller, stream) = UnixStream::pair().unwrap();
        let conversation = tokio::spawn(converse(server, stream, ()));
        let call = Call::new(Duration::from_secs(60), Request::Status(StatusRequest::default()));
        caller.write_all(&serde_json::to_vec(&call).unwrap()).await.unwrap();
        caller.shutdown().await.unwrap();
        let mut received = [0; 1];
        caller.read_exact(&mut received).await.unwrap();
        assert_eq!(received, HEARTBEAT);
        end.send(Answer::Done).unwrap();
        let mut answer = Vec::new();
        caller.read_to_end(&mut answer).await.unwrap();
        assert!(matches!(decode(&answer).unwrap(), Reply::Failed { code: 50, .. }));
        conversation.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn malformed_calls_are_answered_in_their_form() {
        let (server, _folder) = server(&scrape::calls());
        let key = json!({"container_id": "c", "interface_name": "eth0"});
        for (call, expected) in [
            (json!({"deadline_ms": 1, "verb": "cni", "command": "DEL"}), "`configuration`"),
            (json!({"verb": "cni", "command": "DEL", "configuration": {}}), "`deadline_ms`"),
            (
                json!({"deadline_ms": 1, "verb": "cni", "command": "DEL", "configuration": {}, "path": "/a"}),
                "`path`",
            ),
            (json!({"deadline_ms": 1, "verb": "del"}), "`key`"),
            (
                json!({"deadline_ms": 1, "verb": "add", "key": key, "netns": "/n", "configuration": "",
                       "interface": {"netwrok": "blue"}}),
                "`netwrok`",
            ),
            (
                json!({"deadline_ms": 1, "verb": "add", "key": key, "netns": "/n", "configuration": "",
                       "interface": {}, "network": "blue"}),
                "`network`",
            ),
        ] {
            let (mut caller, stream) = UnixStream::pair().unwrap();
            caller.write_all(call.to_string().as_bytes()).await.unwrap();
            caller.shutdown().await.unwrap();
            let conversed = converse(server.clone(), stream, ()).await;
            assert!(conversed.is_ok(), "{conversed:?}");
            let mut answer = Vec::new();
            caller.read_to_end(&mut answer).await.unwrap();
            let answer: Value = serde_json::from_slice(&answer).unwrap();
            let (error, message) = match call["verb"] == "cni" {
                true => (&answer["error"], "msg"),
                false => (&answer, "message"),
            };
            let message = error[message].as_str().unwrap();
            assert!(error["code"] == code::UNDECODABLE && message.contains(expected), "{answer}");
        }
    }

    #[tokio::test]
    async fn caller_is_answered_at_its_deadline() {
        let calls = scrape::calls();
        let (server, _folder) = server(&calls);
        let key = record("a", "c").key();
        let _held = server.doors.vfs.keys().lock(&key).await;
        let request = Request::Del(DelRequest { key, netns: String::new() });
        let call = Call::new(MARGIN + Duration::from_millis(300), request);
        let (mut caller, stream) = UnixStream::pair().unwrap();
        let permits = Arc::new(Semaphore::new(1));
        let permit = Arc::clone(&permits).try_acquire_owned().unwrap();
        let conversation = tokio::spawn(converse(server.clone(), stream, permit));
        caller.write_all(&serde_json::to_vec(&call).unwrap()).await.unwrap();
        caller.shutdown().await.unwrap();
        let mut answer = Vec::new();
        caller.read_to_end(&mut answer).await.unwrap();
        let Reply::Failed { details, .. } = decode(&answer).unwrap() else { panic!("no failure") };
        assert!(details.starts_with("DEADLINE_EXCEEDED"), "{details}");
        assert_eq!(permits.available_permits(), 0, "the work goes on");
        conversation.await.unwrap().unwrap();
        let page = scrape::page(&config(), &server.doors, &calls).text().unwrap();
        let counted = r#"agent_calls_total{verb="DEL",outcome="DEADLINE_EXCEEDED"} 1"#;
        assert!(page.contains(counted), "as the caller was answered: {page}");
    }
}
