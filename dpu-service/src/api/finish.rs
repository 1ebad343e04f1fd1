//! Runs calls to their end even if their callers have gone.

use std::{
    future::Future,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use tower::{Layer, Service};

use crate::tasks::finished;

/// Runs each call in a task of its own, because its work continues even if the caller has gone. So inner layers see the
/// end of every call and count it. A call with a stream ends when its response begins. The permit is returned when the
/// response was written: see `answer`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Finish;

impl<S> Layer<S> for Finish {
    type Service = Finished<S>;

    fn layer(&self, inner: S) -> Finished<S> {
        Finished(inner)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Finished<S>(S);

impl<S, R> Service<R> for Finished<S>
where
    S: Service<R>,
    S::Future: Future<Output = Result<S::Response, S::Error>> + Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let call = tokio::spawn(self.0.call(request));
        Box::pin(async { finished(call.await) })
    }
}
