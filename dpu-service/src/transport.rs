//! HTTP/2 on authenticated connections.
//!
//! Serves a service on each connection. Passes responses to HTTP/2 in chunks, each after the connection has written the
//! one before. Resets a stream whose peer reads no chunk for twice `limits.keepalive_s`.
//!
//! Owns: the tasks of connections and streams.
//!
//! Locks: the progress of a stream, never across an await.
//!
//! Concurrently: the task of a connection drops a chunk when it is written; the task of the stream waits for that.
//!
//! tonic's server offers no handle on a stream. hyper passes each stream to the executor as a future, and dropping that
//! future resets the stream. hyper 1.12 and later take a chunk from the body before they wait for the peer's window, so
//! a stalled stream always has an unwritten chunk.

use std::{
    convert::Infallible,
    future::poll_fn,
    io, mem,
    pin::{Pin, pin},
    sync::Arc,
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
use parking_lot::Mutex;
use tokio::{
    task_local,
    time::{Instant, sleep},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tonic::{Status, body::Body};
use tower::{Service, ServiceExt};

use crate::config::Limits;

/// Maximum size of a chunk: a frame of the default size.
const CHUNK: usize = 16 * 1024;

/// How often within its time limit a stream is checked.
const CHECKS_PER_LIMIT: u32 = 4;

task_local! {
    /// Progress of the stream whose task this is.
    static PROGRESS: Progress;
}

/// Serves `service` on all connections until `stop`, and then until the connections have ended.
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
    // Owns the listener: dropping this future closes it before the open connections end.
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
        () = stalled.cancelled() => return tracing::debug!("a peer does not read its responses; closing the connection"),
        () = stop.cancelled() => served.as_mut().graceful_shutdown(),
    }
    note_end(served.await);
}

/// Adds a Date header with this machine's time, from which clients compute ages. hyper's own date never goes back, even
/// if the clock is set back.
fn dated(mut answer: Response<Body>) -> Response<Body> {
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&Timestamp::now());
    // hyper adds its own date for a year that RFC 9110 cannot express.
    if let Some(date) = date.ok().and_then(|date| HeaderValue::try_from(date).ok()) {
        answer.headers_mut().insert(DATE, date);
    }
    answer
}

fn note_end(ended: hyper::Result<()>) {
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended with an error");
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

/// Executor of a connection's streams.
#[derive(Clone, Debug)]
struct Streams {
    /// Time limit for a peer that does not read.
    limit: Duration,
    stalled: CancellationToken,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        let Self { limit, stalled } = self.clone();
        let progress = Progress::default();
        tokio::spawn(PROGRESS.scope(progress.clone(), async move {
            tokio::select! {
                () = stream => {}
                // Returning drops the stream's future, which resets the stream.
                () = progress.stall(limit) => return,
            }
            // HTTP/2 has the whole response. A finished stream cannot be reset, so the connection is closed instead.
            tokio::select! {
                () = poll_fn(|context| progress.poll_written(context)) => {}
                () = progress.stall(limit) => stalled.cancel(),
            }
        }));
    }
}

/// Whether the connection has written the chunk that HTTP/2 has of a stream's response.
#[derive(Clone, Debug, Default)]
struct Progress(Arc<Mutex<Given>>);

#[derive(Debug, Default)]
struct Given {
    /// When the chunk was passed to HTTP/2. `None`: it is written.
    since: Option<Instant>,
    /// The stream's task, if it waits.
    waiting: Option<Waker>,
}

impl Progress {
    /// Wraps a chunk so that its drop is noticed.
    fn give(&self, chunk: Bytes) -> Bytes {
        self.0.lock().since = Some(Instant::now());
        Bytes::from_owner(UnwrittenChunk { chunk, progress: self.clone() })
    }

    fn note_written(&self) {
        let Given { waiting, .. } = mem::take(&mut *self.0.lock());
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    fn poll_written(&self, context: &Context<'_>) -> Poll<()> {
        let mut given = self.0.lock();
        if given.since.is_none() {
            return Poll::Ready(());
        }
        given.waiting = Some(context.waker().clone());
        Poll::Pending
    }

    /// Returns once a chunk was not written for `limit`.
    async fn stall(&self, limit: Duration) {
        while self.0.lock().since.is_none_or(|since| since.elapsed() < limit) {
            sleep(limit / CHECKS_PER_LIMIT).await;
        }
    }
}

/// A chunk that notes when the connection has written and dropped it.
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

/// Body of a response in chunks: HTTP/2 gets the next one after the previous one is written.
struct ChunkedBody {
    body: Body,
    /// Rest of the body's last frame.
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
        // One chunk at a time: a stalled stream keeps no more than that in memory.
        ready!(progress.poll_written(context));
        let length = self.rest.len().min(CHUNK);
        let chunk = progress.give(self.rest.split_to(length));
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }
}
