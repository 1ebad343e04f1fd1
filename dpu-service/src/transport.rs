//! HTTP/2 on connections whose peers are known.
//!
//! - **Does**: serves a service on each connection. Hands answers to HTTP/2 in chunks, the next one once the connection
//!   has written the one before. Resets a stream whose peer takes no chunk for twice `limits.keepalive_s`.
//! - **Owns**: the tasks of connections and streams.
//! - **Locks**: the progress of a stream, never across an await.
//! - **Concurrent**: the task of a connection drops a chunk that it has written; the task of the stream waits for that.
//!
//! tonic's server gives no handle on a stream. hyper gives each stream to the executor as a future, and a stream that is
//! dropped is reset. hyper from 1.12 on takes a chunk from the body before it waits for the peer's window, so that a
//! stream which stalls always has a chunk that is not written.

use std::{
    convert::Infallible,
    future::poll_fn,
    io, mem,
    pin::{Pin, pin},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use http::{HeaderValue, Request, Response, header::DATE};
use hyper::{
    body::{Body as HttpBody, Frame, Incoming},
    rt::Executor,
    server::conn::http2,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use jiff::{Timestamp, fmt::rfc2822::DateTimePrinter};
use mtls::ServerStream;
use tokio::{
    task_local,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Status, body::Body};
use tower::{Service, ServiceExt};

use crate::config::Limits;

/// How much of an answer HTTP/2 has at a time: a frame of the default size.
const CHUNK: usize = 16 * 1024;

/// How many times within its limit a stream is examined.
const CHECKS_PER_LIMIT: u32 = 4;

task_local! {
    /// The progress of the stream whose task this is.
    static PROGRESS: Progress;
}

/// Serves `service` on all connections until `stop`, then until the connections have ended.
pub(crate) async fn serve<S, B>(
    connections: impl Stream<Item = io::Result<ServerStream>>,
    service: S,
    limits: &Limits,
    stop: CancellationToken,
) where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let open = TaskTracker::new();
    // The listener closes with it, before the open connections end.
    let accept = async {
        let mut connections = pin!(connections);
        while let Some(accepted) = connections.next().await {
            if let Ok(connection) = accepted {
                let (service, limits) = (service.clone(), limits.clone());
                open.spawn(serve_connection(connection, service, limits, stop.clone()));
            }
        }
    };
    stop.run_until_cancelled(accept).await;
    open.close();
    open.wait().await;
}

async fn serve_connection<S, B>(
    connection: ServerStream,
    service: S,
    limits: Limits,
    stop: CancellationToken,
) where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + 'static,
    S::Future: Send,
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let peer = connection.peer().clone();
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(peer.clone());
        let answer = service.clone().oneshot(request.map(Body::new));
        async move { answer.await.map(|answer| dated(answer.map(ChunkedBody::of))) }
    });
    let stalled = CancellationToken::new();
    let http2 = settings(&limits, Streams { limit: limits.unread(), stalled: stalled.clone() });
    let mut served = pin!(http2.serve_connection(TokioIo::new(connection), service));
    tokio::select! {
        ended = served.as_mut() => return note_end(ended),
        () = stalled.cancelled() => return tracing::debug!("the peer takes no answers: closing its connection"),
        () = stop.cancelled() => served.as_mut().graceful_shutdown(),
    }
    note_end(served.await);
}

/// Gives an answer the time of this machine, by which operators' programs compute ages. hyper's own date never goes back
/// when the clock is set back.
fn dated(mut answer: Response<Body>) -> Response<Body> {
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&Timestamp::now());
    // A year that has no such form is left to hyper.
    if let Some(date) = date.ok().and_then(|date| HeaderValue::try_from(date).ok()) {
        answer.headers_mut().insert(DATE, date);
    }
    answer
}

fn note_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended");
    }
}

fn settings(limits: &Limits, streams: Streams) -> http2::Builder<Streams> {
    let keepalive = Duration::from_secs(limits.keepalive_s);
    let mut http2 = http2::Builder::new(streams);
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.streams_per_connection)
        .max_header_list_size(limits.header_bytes)
        .keep_alive_interval(keepalive)
        .keep_alive_timeout(keepalive);
    http2
}

/// Runs the streams of a connection.
#[derive(Clone, Debug)]
struct Streams {
    /// How long a peer may take nothing.
    limit: Duration,
    /// Ends the connection.
    stalled: CancellationToken,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let Self { limit, stalled } = self.clone();
        let progress = Progress::default();
        tokio::spawn(PROGRESS.scope(progress.clone(), async move {
            tokio::select! {
                () = stream => {}
                // The stream is dropped, and so reset.
                () = progress.stall(limit) => return,
            }
            // HTTP/2 has all of the answer, and a stream that has ended cannot be reset.
            tokio::select! {
                () = poll_fn(|context| progress.poll_written(context)) => {}
                () = progress.stall(limit) => stalled.cancel(),
            }
        }));
    }
}

/// Whether the connection has written the chunk that HTTP/2 has of a stream's answer.
#[derive(Clone, Debug, Default)]
struct Progress(Arc<Mutex<Given>>);

#[derive(Debug, Default)]
struct Given {
    /// When the chunk was given to HTTP/2. `None`: it is written.
    since: Option<Instant>,
    /// The stream's task, if it waits.
    waiting: Option<Waker>,
}

impl Progress {
    /// The chunk as HTTP/2 gets it.
    fn give(&self, chunk: Bytes) -> Bytes {
        self.lock().since = Some(Instant::now());
        Bytes::from_owner(UnwrittenChunk { chunk, progress: self.clone() })
    }

    fn note_written(&self) {
        let Given { waiting, .. } = mem::take(&mut *self.lock());
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    fn poll_written(&self, context: &Context<'_>) -> Poll<()> {
        let mut given = self.lock();
        if given.since.is_none() {
            return Poll::Ready(());
        }
        given.waiting = Some(context.waker().clone());
        Poll::Pending
    }

    /// Returns when a chunk was not written for as long as `limit`.
    async fn stall(&self, limit: Duration) {
        while self.lock().since.is_none_or(|since| since.elapsed() < limit) {
            sleep(limit / CHECKS_PER_LIMIT).await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Given> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A chunk until the connection has written it.
struct UnwrittenChunk {
    chunk: Bytes,
    progress: Progress,
}

impl AsRef<[u8]> for UnwrittenChunk {
    fn as_ref(&self) -> &[u8] {
        &self.chunk
    }
}

impl Drop for UnwrittenChunk {
    fn drop(&mut self) {
        self.progress.note_written();
    }
}

/// The body of an answer, in chunks: HTTP/2 gets the next one once the one before is written.
struct ChunkedBody {
    body: Body,
    /// What is left of the body's last frame.
    rest: Bytes,
}

impl ChunkedBody {
    fn of<B>(body: B) -> Body
    where
        B: HttpBody<Data = Bytes> + Send + 'static,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Body::new(Self { body: Body::new(body), rest: Bytes::new() })
    }
}

impl HttpBody for ChunkedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        while self.rest.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)).transpose()? {
                None => return Poll::Ready(None),
                Some(frame) => match frame.into_data() {
                    Ok(data) => self.rest = data,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
            }
        }
        let progress = PROGRESS.with(Clone::clone);
        ready!(progress.poll_written(context));
        let length = self.rest.len().min(CHUNK);
        let chunk = progress.give(self.rest.split_to(length));
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}
