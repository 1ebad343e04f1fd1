use std::{
    convert::Infallible,
    fmt,
    future::Future,
    io,
    net::{self, SocketAddr},
    pin::Pin,
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

const PATH: &str = "/metrics";
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Concurrent connections. Further ones wait until one of them ends.
const CONNECTIONS: usize = 64;
/// Time limit for a request to arrive.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// Time limit for a connection, which serves one request.
const CONNECTION_TIME: Duration = Duration::from_secs(10);
/// Longest request line with all headers, in bytes: the minimum of hyper.
const REQUEST_LIMIT: usize = 8 * 1024;
/// Delay after the system refused to accept, such as when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Delay between attempts to listen: another program may use the address, or its network may not be up yet.
const LISTEN_PAUSE: Duration = Duration::from_secs(2);
/// How long a page is reused. This bounds the load of frequent scrapes.
const PAGE_TIME: Duration = Duration::from_secs(1);

/// The HTTP endpoint of metrics.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    /// `None`: listening has not succeeded yet.
    listener: Option<TcpListener>,
}

impl Endpoint {
    /// Listens on `wanted`. `None`: metrics are off. If listening fails it logs a warning, and [`Self::serve`] tries
    /// again.
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
                    address = %wanted,
                    retry_s = LISTEN_PAUSE.as_secs(),
                    "cannot serve metrics on this address; retrying. Free the address, or set `metrics.listen` to \
                     another port or address of this machine, or to \"off\""
                );
                (wanted, None)
            }
        };
        Some(Self { address, listener })
    }

    /// The address of the listener, or the wanted one.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves the pages of `look`. Scrapes within a second read the same page. Never returns.
    pub async fn serve<F>(self, look: impl Fn() -> F + Send + Sync + 'static) -> Infallible
    where
        F: Future<Output = Page> + Send + 'static,
    {
        let listener = match self.listener {
            Some(listener) => listener,
            None => open_when_possible(self.address).await,
        };
        let look: Look = Box::new(move || Box::pin(look()));
        let pages = Arc::new(Pages { look, latest: Mutex::default() });
        let mut connections = JoinSet::new();
        loop {
            // A JoinSet keeps ended tasks until they are joined.
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
    tracing::info!(%address, "serving metrics");
    Ok((TcpListener::from_std(listener)?, address))
}

async fn open_when_possible(address: SocketAddr) -> TcpListener {
    loop {
        sleep(LISTEN_PAUSE).await;
        match open(address) {
            Ok((listener, _)) => return listener,
            Err(error) => tracing::debug!(%error, %address, "cannot serve metrics yet"),
        }
    }
}

/// Builds a page of the program's state.
type Look = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Page> + Send>> + Send + Sync>;

/// The page that all scrapes share.
struct Pages {
    look: Look,
    /// The time of the latest page, and its text. Locked while a page is built, so that concurrent scrapes wait for
    /// that page.
    latest: Mutex<Option<(Instant, Bytes)>>,
}

impl Pages {
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

/// Serves one request on one connection.
async fn serve_one(stream: TcpStream, pages: Arc<Pages>) {
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
        Ok(Err(error)) => tracing::debug!(%error, "a scrape of metrics failed"),
        Err(_) => tracing::debug!("a scrape of metrics took too long"),
    }
}

async fn answer(request: &Request<Incoming>, pages: &Pages) -> Response<Full<Bytes>> {
    if request.uri().path() != PATH {
        return plain(StatusCode::NOT_FOUND, "not found: the only path is /metrics\n");
    }
    if request.method() != Method::GET {
        let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, "method not allowed: use GET\n");
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET"));
        return refusal;
    }
    match pages.text().await {
        Ok(text) => response(StatusCode::OK, OPEN_METRICS, text),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "cannot encode the metrics\n"),
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
