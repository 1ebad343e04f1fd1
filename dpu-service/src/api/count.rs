//! Counts calls by outcome, refused ones included, and continues their traces.

use std::{
    sync::Arc,
    task::{Context, Poll},
    time::Instant,
};

use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use metrics::{Calls, OK};
use offload_proto::Failure;
use tonic::{Code, Status};
use tower::{Layer, Service};
use traces::TraceParent;
use tracing::Span;

use super::calls::{name_of, names};

pub(crate) fn calls() -> Arc<Calls> {
    Arc::new(Calls::new("method", names()))
}

#[derive(Clone, Debug)]
pub(crate) struct Count(pub(crate) Arc<Calls>);

impl<S> Layer<S> for Count {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { calls: Arc::clone(&self.0), inner }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Counted<S> {
    calls: Arc<Calls>,
    inner: S,
}

impl<S, A, B> Service<Request<A>> for Counted<S>
where
    S: Service<Request<A>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<B>, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<A>) -> Self::Future {
        let begun = Instant::now();
        let uri = request.uri().clone();
        let parent = parent_of(request.headers());
        // A call without a parent trace, such as the agent's background calls, is not traced.
        let span = parent.map_or_else(Span::none, |_| traces::entry(name_of(uri.path())));
        let calls = Arc::clone(&self.calls);
        let answer = self.inner.call(request);
        let work = async move {
            let answer = answer.await?;
            let outcome = outcome(&answer);
            calls.note(name_of(uri.path()), outcome, begun.elapsed());
            if outcome != OK {
                traces::fail(&outcome);
            }
            Ok(answer)
        };
        Box::pin(traces::follow(span, parent, work))
    }
}

fn parent_of(headers: &HeaderMap) -> Option<TraceParent> {
    TraceParent::parse(headers.get(traces::HEADER)?.to_str().ok()?)
}

/// This API's reason code, else gRPC's code. Streams and successful calls report errors only in trailers: they count as
/// OK.
fn outcome<B>(answer: &Response<B>) -> &'static str {
    match Status::from_header_map(answer.headers()) {
        None => OK,
        Some(status) => match Failure::from_status(&status) {
            Some(failure) => failure.reason.as_str(),
            None => name(status.code()),
        },
    }
}

/// Name of a code as in the gRPC specification.
const fn name(code: Code) -> &'static str {
    match code {
        Code::Ok => OK,
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use offload_proto::Reason;

    use super::*;

    #[test]
    fn outcome_is_read_from_the_response() {
        let refused = Failure::new(Reason::VfsExhausted, "pool default has no free VF");
        assert_eq!(outcome(&Status::from(refused).into_http::<()>()), "VFS_EXHAUSTED");
        let unknown = Status::unimplemented("there is no such call");
        assert_eq!(outcome(&unknown.into_http::<()>()), "UNIMPLEMENTED");
        assert_eq!(outcome(&Response::new(())), "OK");
    }
}
