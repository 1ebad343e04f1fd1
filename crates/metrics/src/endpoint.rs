use std::{
    convert::Infallible,
    fmt,
    future::Future,
    io,
    net::{self, SocketAddr},
    sync::Arc,
    time::Duration,
};

use http_body_util::Full;
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header::{ALLOW, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Mutex,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use crate::Page;

/// The one path that there is.
const PATH: &str = "/metrics";
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Connections at a time; one more waits until one of them ends.
const CONNECTIONS: usize = 64;
/// How long a request may take to arrive.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// How long a connection may take as a whole. It serves one request.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Longest request line with all headers, in bytes. It is the least that hyper knows.
const REQUEST_LIMIT: usize = 8 * 1024;
/// How long to wait when the system refuses to accept, as it does when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How soon an address that can't be listened on is tried again: it may be somebody else's for now, or
/// of a network that comes later.
const LISTEN_PAUSE: Duration = Duration::from_secs(2);
/// How long a page is shown before another is made, so that who asks without end makes little work.
const PAGE_TIME: Duration = Duration::from_secs(1);

/// Where metrics are read.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    /// `None`: the address can't be listened on as yet.
    listener: Option<TcpListener>,
}

impl Endpoint {
    /// Listens on `wanted`. `None`: nowhere. An address that can't be listened on is warned of,
    /// and tried again while it serves.
    ///
    /// # Panics
    /// Outside of tokio's runtime.
    #[must_use]
    pub fn listen(wanted: Option<SocketAddr>) -> Option<Self> {
        let wanted = wanted?;
        let (address, listener) = match open(wanted) {
            Ok((listener, address)) => (address, Some(listener)),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "can't serve metrics on {wanted}, which is tried again every {} s: free it, set \
                     `metrics.listen` to another port or address of this machine, or to \"off\"",
                    LISTEN_PAUSE.as_secs()
                );
                (wanted, None)
            }
        };
        Some(Self { address, listener })
    }

    /// Where it listens, or will.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves what `look` sees, until it is dropped. Scrapes within a second read the same page.
    pub async fn serve<F>(self, look: impl Fn() -> F + Send + Sync + 'static) -> Infallible
    where
        F: Future<Output = Page> + Send + 'static,
    {
        let listener = match self.listener {
            Some(listener) => listener,
            None => open_when_possible(self.address).await,
        };
        let pages = Arc::new(Pages { look, latest: Mutex::default() });
        let mut connections = JoinSet::new();
        loop {
            while connections.try_join_next().is_some() {}
            if connections.len() == CONNECTIONS {
                connections.join_next().await;
            }
            match listener.accept().await {
                Ok((stream, _)) => drop(connections.spawn(serve_one(stream, Arc::clone(&pages)))),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept scrapes of metrics");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

fn open(address: SocketAddr) -> io::Result<(TcpListener, SocketAddr)> {
    let listener = net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    let address = listener.local_addr()?;
    tracing::info!(%address, "metrics are served");
    Ok((TcpListener::from_std(listener)?, address))
}

async fn open_when_possible(address: SocketAddr) -> TcpListener {
    loop {
        sleep(LISTEN_PAUSE).await;
        match open(address) {
            Ok((listener, _)) => return listener,
            Err(error) => tracing::debug!(%error, %address, "still no place for metrics"),
        }
    }
}

/// What all scrapes read.
struct Pages<L> {
    look: L,
    /// When it was made, and its text. Locked while one is made: whoever asks meanwhile reads that one.
    latest: Mutex<Option<(Instant, Bytes)>>,
}

impl<L, F> Pages<L>
where
    L: Fn() -> F,
    F: Future<Output = Page>,
{
    async fn text(&self) -> Result<Bytes, fmt::Error> {
        let mut latest = self.latest.lock().await;
        if let Some((made_at, text)) = &*latest
            && made_at.elapsed() < PAGE_TIME
        {
            return Ok(text.clone());
        }
        let text = Bytes::from((self.look)().await.text()?);
        *latest = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

/// One request on one connection.
async fn serve_one<L, F>(stream: TcpStream, pages: Arc<Pages<L>>)
where
    L: Fn() -> F,
    F: Future<Output = Page>,
{
    let service = service_fn(|request| {
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(answer(&request, &pages).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(REQUEST_TIME)
        .max_buf_size(REQUEST_LIMIT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(CONNECTION_TIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "a scrape of metrics broke off"),
        Err(_) => tracing::debug!("a scrape of metrics took too long"),
    }
}

async fn answer<L, F>(request: &Request<Incoming>, pages: &Pages<L>) -> Response<Full<Bytes>>
where
    L: Fn() -> F,
    F: Future<Output = Page>,
{
    if request.uri().path() != PATH {
        return plain(StatusCode::NOT_FOUND, "there is only /metrics\n");
    }
    if request.method() != Method::GET {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "metrics can only be read: GET\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refusal;
    }
    match pages.text().await {
        Ok(text) => response(StatusCode::OK, OPEN_METRICS, text),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the metrics can't be written\n"),
    }
}

fn plain(status: StatusCode, sentence: &'static str) -> Response<Full<Bytes>> {
    response(status, PLAIN, sentence)
}

fn response(
    status: StatusCode,
    kind: HeaderValue,
    body: impl Into<Bytes>,
) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
