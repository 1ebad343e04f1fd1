use std::{
    collections::VecDeque,
    convert::Infallible,
    fmt,
    future::Future,
    io,
    net::{self, IpAddr, SocketAddr},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{future::select_all, poll};
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
    sync::{Mutex, oneshot},
    time::{Instant, sleep, timeout},
};
use tokio_util::task::AbortOnDropHandle;

use crate::{MetricsSettings, Page};

/// The one path that there is.
const PATH: &str = "/metrics";
const OPEN_METRICS: HeaderValue =
    HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
const PLAIN: HeaderValue = HeaderValue::from_static("text/plain; charset=utf-8");

/// Connections at a time. One more takes the place of one that has not asked, the oldest of whoever has
/// most, so that who makes many without asking loses its own. If all have asked it waits.
const CONNECTIONS: usize = 16;
const TIMES: Times = Times { request: Duration::from_secs(2), connection: Duration::from_secs(10) };
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
    times: Times,
}

#[derive(Clone, Copy, Debug)]
struct Times {
    /// How long a request may take to arrive.
    request: Duration,
    /// How long a connection may take as a whole. It serves one request.
    connection: Duration,
}

impl Endpoint {
    /// Listens where `settings` say. `None`: nowhere. An address that can't be listened on is warned of,
    /// and tried again while it serves.
    ///
    /// # Panics
    /// Outside of tokio's runtime.
    #[must_use]
    pub fn listen(settings: &MetricsSettings) -> Option<Self> {
        let wanted = settings.listen?;
        let (address, listener) = match open(wanted) {
            Ok((listener, address)) => (address, Some(listener)),
            Err(error) => {
                tracing::warn!(
                    %error,
                    "can't serve metrics on {wanted}, which is tried again every {} s: free it, set \
                     `metrics.listen` to another port or address of this machine, or leave it out",
                    LISTEN_PAUSE.as_secs()
                );
                (wanted, None)
            }
        };
        Some(Self { address, listener, times: TIMES })
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
        let mut connections = VecDeque::new();
        loop {
            let (stream, peer) = match listener.accept().await {
                Ok((stream, address)) => (stream, address.ip()),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept scrapes of metrics");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            connections.retain(|open: &Open| !open.task.is_finished());
            while connections.len() == CONNECTIONS {
                free_a_place(&mut connections).await;
            }
            // The first read then finds a request that has come already.
            let _ = stream.writable().await;
            let place = Place::default();
            let task = begin(serve_one(stream, self.times, place.clone(), Arc::clone(&pages)));
            connections.push_back(Open { peer, place, task: task.await });
        }
    }
}

/// A connection.
struct Open {
    peer: IpAddr,
    place: Place,
    task: AbortOnDropHandle<()>,
}

/// A connection's place among [`CONNECTIONS`]. Its request keeps it until the connection ends, unless
/// another connection has taken it before.
#[derive(Clone, Default)]
struct Place(Arc<AtomicBool>);

impl Place {
    /// Whether it was there to be had.
    fn claim(&self) -> bool {
        !self.0.swap(true, Ordering::Relaxed)
    }

    fn is_claimed(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Spawns `work`, and returns when it has to wait.
async fn begin(work: impl Future<Output = ()> + Send + 'static) -> AbortOnDropHandle<()> {
    let (beginning, waits) = oneshot::channel::<Infallible>();
    let task = tokio::spawn(async move {
        let mut work = pin!(work);
        let first = poll!(&mut work);
        drop(beginning);
        if first.is_pending() {
            work.await;
        }
    });
    let _ = waits.await;
    AbortOnDropHandle::new(task)
}

async fn free_a_place(connections: &mut VecDeque<Open>) {
    if let Some(index) = most_dispensable(connections) {
        if connections[index].place.claim() {
            connections.remove(index);
        }
        return;
    }
    let tasks = connections.iter_mut().map(|open| &mut open.task);
    let (_, index, _) = select_all(tasks).await;
    connections.remove(index);
}

/// Of those that have not asked, the oldest of the peer that has most connections.
fn most_dispensable(connections: &VecDeque<Open>) -> Option<usize> {
    let number_of = |peer| connections.iter().filter(|open| open.peer == peer).count();
    let newest_first = (0..connections.len()).rev();
    let idle = newest_first.filter(|index| !connections[*index].place.is_claimed());
    idle.max_by_key(|index| number_of(connections[*index].peer))
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
async fn serve_one<L, F>(stream: TcpStream, times: Times, place: Place, pages: Arc<Pages<L>>)
where
    L: Fn() -> F,
    F: Future<Output = Page>,
{
    let service = service_fn(|request| {
        place.claim();
        let pages = Arc::clone(&pages);
        async move { Ok::<_, Infallible>(answer(&request, &pages).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(times.request)
        .max_buf_size(REQUEST_LIMIT)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    match timeout(times.connection, connection).await {
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure is a panic at its place")]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpSocket,
        sync::Semaphore,
    };

    use super::*;

    /// More than anything here takes.
    const BOUND: Duration = Duration::from_secs(60);
    const HOUR: Duration = Duration::from_secs(3600);

    const SCRAPE: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: node-1\r\n\r\n";

    /// An endpoint whose connections have all the time in the world.
    fn patient() -> Endpoint {
        let settings = MetricsSettings { listen: Some("127.0.0.1:0".parse().unwrap()) };
        let times = Times { request: HOUR, connection: HOUR };
        Endpoint { times, ..Endpoint::listen(&settings).unwrap() }
    }

    async fn page() -> Page {
        Page::of("example", "1.2.3")
    }

    /// Makes a connection from that address of this machine, and says something.
    async fn connect_from(peer: &str, address: SocketAddr, words: &[u8]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(format!("{peer}:0").parse().unwrap()).unwrap();
        let mut stream = socket.connect(address).await.unwrap();
        // It may have lost its place already.
        let _ = stream.write_all(words).await;
        stream
    }

    async fn crowd(number: usize, peer: &str, address: SocketAddr, words: &[u8]) -> Vec<TcpStream> {
        let mut crowd = Vec::new();
        for _ in 0..number {
            crowd.push(connect_from(peer, address, words).await);
        }
        crowd
    }

    /// All that it is told until it ends.
    async fn told(stream: &mut TcpStream) -> String {
        let mut told = Vec::new();
        let _ = timeout(BOUND, stream.read_to_end(&mut told)).await.unwrap();
        String::from_utf8(told).unwrap()
    }

    async fn is_answered(stream: &mut TcpStream) {
        let told = told(stream).await;
        assert!(told.starts_with("HTTP/1.1 200 "), "{told}");
    }

    #[tokio::test]
    async fn a_crowd_of_slow_ones_keeps_nobody_out() {
        let endpoint = patient();
        let address = endpoint.address();
        tokio::spawn(endpoint.serve(page));
        let mut crowd = crowd(200, "127.0.0.1", address, b"GET /me").await;
        is_answered(&mut connect_from("127.0.0.1", address, SCRAPE).await).await;
        // Those who came first have been let go.
        assert_eq!(told(&mut crowd[0]).await, "");
    }

    #[tokio::test]
    async fn who_makes_many_connections_loses_its_own() {
        let endpoint = patient();
        let address = endpoint.address();
        tokio::spawn(endpoint.serve(page));
        let (begun, rest) = SCRAPE.split_at(20);
        let mut scraper = connect_from("127.0.0.2", address, begun).await;
        let mut crowd = crowd(200, "127.0.0.3", address, begun).await;
        assert_eq!(told(&mut crowd[200 - CONNECTIONS]).await, "");
        scraper.write_all(rest).await.unwrap();
        is_answered(&mut scraper).await;
    }

    /// Serves pages that are made when there is a permit for it.
    fn serve_slowly(endpoint: Endpoint) -> Arc<Semaphore> {
        let permits = Arc::new(Semaphore::new(0));
        let look = {
            let permits = Arc::clone(&permits);
            move || {
                let permits = Arc::clone(&permits);
                async move {
                    let _permit = permits.acquire().await;
                    page().await
                }
            }
        };
        tokio::spawn(endpoint.serve(look));
        permits
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_has_asked_is_answered_however_many_come_meanwhile() {
        let endpoint = patient();
        let address = endpoint.address();
        let mut scrapers = crowd(CONNECTIONS - 1, "127.0.0.1", address, SCRAPE).await;
        let permits = serve_slowly(endpoint);
        let flood = async move { while !crowd(200, "127.0.0.1", address, b"").await.is_empty() {} };
        let _flood = AbortOnDropHandle::new(tokio::spawn(flood));
        for _ in 0..20 {
            let mut idle = connect_from("127.0.0.1", address, b"").await;
            assert_eq!(told(&mut idle).await, "");
        }
        permits.add_permits(1);
        for scraper in &mut scrapers {
            is_answered(scraper).await;
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn who_asks_when_all_places_are_kept_waits() {
        let endpoint = patient();
        let address = endpoint.address();
        let mut scrapers = crowd(3 * CONNECTIONS, "127.0.0.1", address, SCRAPE).await;
        let permits = serve_slowly(endpoint);
        for scraper in &scrapers {
            let moment = Duration::from_millis(5);
            assert!(timeout(moment, scraper.readable()).await.is_err(), "it was let go");
        }
        permits.add_permits(1);
        for scraper in &mut scrapers {
            is_answered(scraper).await;
        }
    }
}
