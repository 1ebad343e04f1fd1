//! A relay between an agent and its service. It simulates a later version of each for the other: version numbers, a
//! capability, a field in each message, and unknown messages of the session.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    sync::{Arc, mpsc},
    task::{Context, Poll},
    thread,
    time::Duration,
};

use e2e::{Lab, PROXY};
use futures::{
    FutureExt, StreamExt,
    future::{BoxFuture, ready},
    stream::{self, BoxStream},
};
use mtls::{Connector, Limits, Role, Server, incoming};
use offload_proto::{
    PROTOCOL_HIGHEST,
    v1::{self, dpu_message, host_message},
};
use parking_lot::Mutex;
use prost::{
    Message,
    bytes::{Buf, BufMut},
    encoding::{WireType, encode_key, encode_varint},
};
use tokio::{net::TcpListener, runtime::Builder};
use tonic::{
    Extensions, Request, Response, Status, Streaming,
    body::Body,
    client, codec,
    codegen::{Service, http},
    server,
    transport::{self, Channel},
};

/// The session protocol version after the latest.
pub(crate) const NEXT: u32 = PROTOCOL_HIGHEST + 1;

/// A capability and a field number that no present version has.
const CAPABILITY: &str = "teleport";
const FIELD: u32 = 2047;

const LIMIT: Duration = Duration::from_secs(60);

/// The peer that each side sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// Peers that speak the next version and the present ones.
    OfBothVersions,
    /// The service sees an agent that speaks only later versions.
    LaterAgent,
    /// The agent sees a service that speaks only the next version and ignores the agent's versions.
    LaterService,
    /// The agent sees a service without the call that attaches several interfaces at once.
    ServiceWithoutAttachAll,
}

/// What both sides have sent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Lowest and highest version of the agent.
    pub(crate) from_agent: Option<(u32, u32)>,
    /// Version that the service chose.
    pub(crate) from_service: Option<u32>,
    pub(crate) sessions: usize,
    /// Names of all calls.
    pub(crate) calls: BTreeSet<String>,
}

/// A relay, until the test's process ends.
pub(crate) struct Relay(Arc<Mutex<Seen>>);

impl Relay {
    /// Starts a relay at [`PROXY`] of the lab's host, in front of the service at `endpoint`.
    pub(crate) fn start(lab: &Lab, endpoint: &str, peer: Peer) -> Self {
        let seen = Arc::<Mutex<Seen>>::default();
        let server = Server::new(lab.pki.credentials(Role::Dpu, "dpu-1"), LIMIT);
        let host = lab.pki.credentials(Role::Host, "node-1");
        let connector = Connector::new(host, endpoint, "dpu-1", LIMIT).unwrap();
        let netns = lab.card.host.open();
        let (listening, listens) = mpsc::channel();
        let rewriter = Rewriter { peer, seen: Arc::clone(&seen) };
        let serve = async move {
            let listener = TcpListener::bind(PROXY).await.unwrap();
            listening.send(()).unwrap();
            let limits = Limits {
                handshakes: 4,
                connections: 16,
                connections_per_identity: 16,
                unread: LIMIT,
            };
            let calls = Calls { service: connector.channel(), rewriter };
            let router = transport::Server::builder().add_service(calls);
            router.serve_with_incoming(incoming(listener, server, limits)).await.unwrap();
        };
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            netns.run(|| runtime.block_on(serve))
        });
        listens.recv().expect("the relay listens");
        Self(seen)
    }

    pub(crate) fn seen(&self) -> Seen {
        self.0.lock().clone()
    }
}

/// Rewrites messages to those of the peer's version.
#[derive(Clone)]
struct Rewriter {
    peer: Peer,
    seen: Arc<Mutex<Seen>>,
}

impl Rewriter {
    /// What the service receives for a session message of the agent.
    fn rewrite_for_service(&self, message: &[u8]) -> Vec<Vec<u8>> {
        let mut message = v1::HostMessage::decode(message).unwrap();
        let Some(host_message::Message::Hello(hello)) = &mut message.message else {
            return vec![with_unknown_field(message.encode_to_vec())];
        };
        let versions = hello.protocol.as_mut().unwrap();
        {
            let mut seen = self.seen.lock();
            seen.from_agent = Some((versions.lowest, versions.highest));
            seen.sessions += 1;
        }
        versions.highest = NEXT;
        if self.peer == Peer::LaterAgent {
            versions.lowest = NEXT;
        }
        hello.capabilities.push(CAPABILITY.into());
        vec![with_unknown_field(message.encode_to_vec()), with_unknown_field(Vec::new())]
    }

    /// What the agent receives for a session message of the service.
    fn rewrite_for_agent(&self, message: &[u8]) -> Vec<Vec<u8>> {
        let mut message = v1::DpuMessage::decode(message).unwrap();
        let Some(dpu_message::Message::HelloReply(hello_reply)) = &mut message.message else {
            return vec![with_unknown_field(message.encode_to_vec())];
        };
        self.seen.lock().from_service = Some(hello_reply.protocol);
        if self.peer == Peer::LaterService {
            hello_reply.protocol = NEXT;
        }
        hello_reply.capabilities.push(CAPABILITY.into());
        vec![with_unknown_field(message.encode_to_vec()), with_unknown_field(Vec::new())]
    }
}

/// Adds a field with an unknown number. An empty session message thereby becomes an unknown one.
fn with_unknown_field(mut message: Vec<u8>) -> Vec<u8> {
    const TEXT: &[u8] = b"later";
    encode_key(FIELD, WireType::LengthDelimited, &mut message);
    encode_varint(TEXT.len() as u64, &mut message);
    message.extend(TEXT);
    message
}

/// A host's calls, forwarded to the service.
#[derive(Clone)]
struct Calls {
    service: Channel,
    rewriter: Rewriter,
}

impl server::NamedService for Calls {
    const NAME: &'static str = "offload.v1.WorkloadNetwork";
}

impl Service<http::Request<Body>> for Calls {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path().parse().unwrap();
        let call = Call { path, calls: self.clone() };
        async move { Ok(server::Grpc::new(RawCodec).streaming(call, request).await) }.boxed()
    }
}

/// One call.
struct Call {
    path: http::uri::PathAndQuery,
    calls: Calls,
}

impl server::StreamingService<Vec<u8>> for Call {
    type Response = Vec<u8>;
    type ResponseStream = BoxStream<'static, Result<Vec<u8>, Status>>;
    type Future = BoxFuture<'static, Result<Response<Self::ResponseStream>, Status>>;

    fn call(&mut self, request: Request<Streaming<Vec<u8>>>) -> Self::Future {
        let (path, Calls { service, rewriter }) = (self.path.clone(), self.calls.clone());
        let name = path.as_str().rsplit('/').next().unwrap().to_owned();
        let is_session = name == "Session";
        if name == "AttachAll" && rewriter.peer == Peer::ServiceWithoutAttachAll {
            return ready(Err(Status::unimplemented("no such call"))).boxed();
        }
        rewriter.seen.lock().calls.insert(name);
        let (metadata, _, messages) = request.into_parts();
        let of_agent = rewriter.clone();
        let messages = messages
            .take_while(|message| ready(message.is_ok()))
            .filter_map(|message| ready(message.ok()));
        let messages = messages.flat_map(move |message| {
            stream::iter(match is_session {
                true => of_agent.rewrite_for_service(&message),
                false => vec![with_unknown_field(message)],
            })
        });
        let request = Request::from_parts(metadata, Extensions::default(), messages);
        async move {
            let mut service = client::Grpc::new(service);
            service.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let answer = service.streaming(request, path, RawCodec).await?;
            let changed = move |message| match (message, is_session) {
                (Err(status), _) => vec![Err(status)],
                (Ok(message), false) => vec![Ok(with_unknown_field(message))],
                (Ok(message), true) => {
                    rewriter.rewrite_for_agent(&message).into_iter().map(Ok).collect()
                }
            };
            let messages = |answer: Streaming<Vec<u8>>| {
                answer.flat_map(move |message| stream::iter(changed(message))).boxed()
            };
            Ok(answer.map(messages))
        }
        .boxed()
    }
}

/// A codec that leaves messages as bytes.
#[derive(Clone, Copy, Debug)]
struct RawCodec;

impl codec::Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl codec::Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, out: &mut codec::EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&message);
        Ok(())
    }
}

impl codec::Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, bytes: &mut codec::DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut message = vec![0; bytes.remaining()];
        bytes.copy_to_slice(&mut message);
        Ok(Some(message))
    }
}
