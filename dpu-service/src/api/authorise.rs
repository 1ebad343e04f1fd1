//! Authorisation and admission: checks each call's role and limits before it reaches its service.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::{Extensions, Request, Response};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use mtls::{Peer, Role};
use offload_proto::{Failure, MESSAGE_LIMIT, Reason};
use tokio::time::timeout;
use tonic::{Status, body::Body};
use tower::{Layer, Service, ServiceExt};

use super::{
    answer::Answer,
    call_limits::{CallLimits, CallPermit},
    calls::{HOSTS, Kind, rules},
    convert::read,
};
use crate::{
    author::{Author, Cause},
    config::Limits,
    shared::Shared,
};
use model::HostName;

/// Maximum length of a request: a message and its gRPC prefix.
const LONGEST_REQUEST: usize = MESSAGE_LIMIT + 5;

/// Admits a call if its peer's role may make it and the limits allow it.
#[derive(Clone, Debug)]
pub(crate) struct Authorise {
    shared: Arc<Shared>,
    calls: Arc<CallLimits>,
    /// Time limit for a peer to send a request.
    unread: Duration,
}

impl Authorise {
    /// One value for all connections: the limits are shared.
    pub(crate) fn new(shared: Arc<Shared>, limits: &Limits) -> Self {
        Self { shared, calls: Arc::new(CallLimits::new(limits)), unread: limits.unread() }
    }

    fn admit<B>(&self, request: &Request<B>) -> Result<(CallPermit, Kind), Status> {
        let peer = peer(request.extensions())?;
        let path = request.uri().path();
        let Some((kind, roles)) = rules(path) else {
            return Err(Status::unimplemented(format!("there is no call {path}")));
        };
        let note_refused = |refusal: &Failure| {
            let (address, holder) = (peer.address.ip(), Some(&peer.identity));
            self.shared.note_refused(address, holder, &refusal.message);
        };
        self.check(peer, path, roles).inspect_err(note_refused)?;
        Ok((self.calls.admit(&peer.identity), kind))
    }

    fn check(&self, peer: &Peer, path: &str, roles: &[Role]) -> Result<(), Failure> {
        let identity = &peer.identity;
        if !roles.contains(&identity.role()) {
            let allowed: Vec<_> = roles.iter().map(|role| role.as_str()).collect();
            return Err(Failure::new(
                Reason::NotAuthorised,
                format!(
                    "{identity} may not call {path}: it takes a certificate of role {}",
                    allowed.join(" or ")
                ),
            ));
        }
        // Health and reflection stay available to hosts that are not configured.
        let name = identity.name();
        let hosts = self.shared.engine.hosts();
        if identity.role() != Role::Host || roles != HOSTS || hosts.serves(&HostName(name.into())) {
            return Ok(());
        }
        let message = format!(
            "host {name} is none of those that this DPU serves: add a [[host]] of that name"
        );
        Err(Failure::new(Reason::HostUnknown, message))
    }
}

pub(crate) fn peer(extensions: &Extensions) -> Result<&Peer, Failure> {
    extensions
        .get()
        .ok_or_else(|| Failure::new(Reason::Internal, "the call came without its peer's identity"))
}

pub(crate) fn calling_host<T>(request: &tonic::Request<T>) -> Result<HostName, Failure> {
    Ok(HostName(peer(request.extensions())?.identity.name().into()))
}

/// The calling operator with the request's `reason`.
pub(crate) fn cause<T>(request: &tonic::Request<T>, reason: &str) -> Result<Cause, Failure> {
    let author = Author::Operator(peer(request.extensions())?.identity.name().to_owned());
    Ok(Cause::new(author, read::reason(reason)?))
}

impl<S> Layer<S> for Authorise {
    type Service = Authorised<S>;

    fn layer(&self, inner: S) -> Authorised<S> {
        Authorised { rules: self.clone(), inner }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Authorised<S> {
    rules: Authorise,
    inner: S,
}

impl<S> Service<Request<Body>> for Authorised<S>
where
    S: Service<Request<Body>, Response = Response<Body>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (mut permit, kind) = match self.rules.admit(&request) {
            Ok(admitted) => admitted,
            Err(status) => {
                let refusal = status.into_http();
                return Box::pin(async move { Ok(refusal) });
            }
        };
        let (inner, unread) = (self.inner.clone(), self.rules.unread);
        Box::pin(async move {
            let request = match enter(request, kind, unread, &mut permit).await {
                Ok(request) => request,
                Err(failure) => return Ok(Status::from(failure).into_http()),
            };
            // After taking a place and before the work: concurrent lists would fill the memory.
            let _turn = match kind {
                Kind::List => Some(permit.turn().await),
                Kind::Call | Kind::Stream => None,
            };
            let held = Answer::hold(inner.oneshot(request).await?, permit);
            Ok(held.unwrap_or_else(|failure| Status::from(failure).into_http()))
        })
    }
}

/// Admits a request. Unary requests are read completely first, so that a peer which does not finish one occupies
/// neither a place nor a turn.
async fn enter(
    request: Request<Body>,
    kind: Kind,
    unread: Duration,
    permit: &mut CallPermit,
) -> Result<Request<Body>, Failure> {
    let request = match kind {
        Kind::Stream => request,
        Kind::Call | Kind::List => read_whole(request, unread, permit).await?,
    };
    permit.enter(kind)?;
    Ok(request)
}

/// Reads the whole request, for no longer than `unread`.
///
/// # Errors
/// [`Reason::DeadlineExceeded`]; [`Reason::Overloaded`] if the peer has too many bytes of other requests under way; or
/// [`Reason::InvalidRequest`] for a request that is too long or ends early.
async fn read_whole(
    request: Request<Body>,
    unread: Duration,
    permit: &mut CallPermit,
) -> Result<Request<Body>, Failure> {
    let (head, body) = request.into_parts();
    let whole = timeout(unread, collect(body, permit)).await.map_err(|_| {
        let message = format!("the request was not sent within {unread:?}");
        Failure::new(Reason::DeadlineExceeded, message)
    })?;
    Ok(Request::from_parts(head, Body::new(Full::new(whole?))))
}

async fn collect(body: Body, permit: &mut CallPermit) -> Result<Bytes, Failure> {
    let mut body = Limited::new(body, LONGEST_REQUEST);
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| {
            let message = match error.is::<LengthLimitError>() {
                true => format!("the request is longer than {MESSAGE_LIMIT} bytes"),
                false => format!("the request can't be read: {error}"),
            };
            Failure::new(Reason::InvalidRequest, message)
        })?;
        if let Ok(data) = frame.into_data() {
            // Reserved before the copy: many unfinished requests together must stay within the limit.
            permit.hold(whole.len() + data.len())?;
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.freeze())
}
