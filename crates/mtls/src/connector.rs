//! Opens connections to a DPU.
//!
//! In TLS 1.3 the client's handshake ends before the server has checked the client's certificate. A refusal arrives as
//! an alert in place of the first answer, and gRPC reports it as "transport error". Therefore a connection counts as
//! open only after the server's first bytes, its HTTP/2 settings.
//!
//! Locks: `pause` and `latest` are held briefly, never together. Any number of tasks open connections concurrently.

use std::{
    error::Error,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use http::Uri;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls_pki_types::ServerName;
use tokio::{
    io::AsyncBufReadExt,
    net::TcpStream,
    time::{Instant, timeout},
};
use tokio_rustls::{TlsConnector, client::TlsStream};
use tonic::transport::{Channel, Endpoint};
use tower::Service;

use crate::{
    certificate::date,
    client_stream::ClientStream,
    credentials::Credentials,
    identity::{Identity, IdentityError, Role},
    lifetime::Lifetime,
    live::LiveCredentials,
    reason::{alert, certificate_reason, expiry, explain_alert, tls_error},
    tcp,
    term::Term,
    verifier::Outdated,
};

/// Interval of HTTP/2 pings on an idle connection, which detect that the DPU is gone.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long the DPU may take to answer a ping.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the DPU may leave sent data unacknowledged (TCP_USER_TIMEOUT).
const UNREAD: Duration = Duration::from_secs(30);

/// Backoff after failed attempts: the first and the longest delay. It doubles in between.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A malformed address or DPU name.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum EndpointError {
    #[error("{0:?} is not of the form host:port, such as 192.168.100.2:7443")]
    Address(String),
    /// The DPU's name is malformed.
    #[error(transparent)]
    Name(#[from] IdentityError),
}

/// Why a connection could not be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum ConnectError {
    #[error(
        "this program's certificate {identity} expired on {not_after}: renew it on this machine"
    )]
    OwnExpired {
        identity: Identity,
        /// Its last moment, RFC 3339.
        not_after: String,
    },
    #[error("cannot connect to the DPU at {address}")]
    Dial { address: Arc<str>, source: Arc<io::Error> },
    #[error("the DPU at {address} did not answer within {deadline:?}")]
    TooSlow { address: Arc<str>, deadline: Duration },
    #[error("the server at {address} shows a certificate that is refused: {reason}")]
    ServerRefused { address: Arc<str>, reason: String },
    /// The DPU's certificate has expired and is valid otherwise.
    #[error("the certificate of {dpu} at {address} expired on {not_after}: renew it on the DPU")]
    DpuExpired {
        address: Arc<str>,
        dpu: Identity,
        /// Its last moment, RFC 3339.
        not_after: String,
    },
    #[error(
        "the DPU at {address} refused this program's certificate {identity}: {reason} (alert {alert})"
    )]
    OwnRefused {
        address: Arc<str>,
        identity: Identity,
        /// The most likely meaning of the alert.
        reason: &'static str,
        alert: String,
    },
    #[error("the DPU at {address} closed the connection at once; it may be at its limit")]
    Closed { address: Arc<str> },
    #[error("the TLS handshake with {address} failed")]
    Tls { address: Arc<str>, source: Arc<io::Error> },
}

impl ConnectError {
    /// Whether a certificate of either side caused the error, not the network.
    #[must_use]
    pub fn is_certificate(&self) -> bool {
        matches!(
            self,
            Self::OwnExpired { .. }
                | Self::ServerRefused { .. }
                | Self::DpuExpired { .. }
                | Self::OwnRefused { .. }
        )
    }

    /// Finds a [`ConnectError`] in the source chain of an error such as a `tonic::Status`.
    #[must_use]
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = error.downcast_ref() {
                return Some(found);
            }
            next = error.source();
        }
        None
    }
}

/// Opens connections to one DPU. Clones share the backoff.
#[derive(Clone, Debug)]
pub struct Connector {
    pub(crate) credentials: LiveCredentials,
    address: Arc<str>,
    dpu: Identity,
    deadline: Duration,
    pause: Arc<Mutex<Pause>>,
    pub(crate) latest: Arc<Mutex<Option<Lifetime>>>,
}

/// Backoff while the DPU is not reachable. Only one caller per delay tries; the others get its error at once instead of
/// queueing.
#[derive(Debug, Default)]
struct Pause {
    length: Duration,
    over: Option<(Instant, ConnectError)>,
}

impl Connector {
    /// A connector to the DPU `dpu` of the own trust domain, at `address` (`host:port`). An attempt takes at most
    /// `deadline`.
    ///
    /// # Errors
    /// [`EndpointError`] if address or name are malformed.
    pub fn new(
        credentials: LiveCredentials,
        address: &str,
        dpu: &str,
        deadline: Duration,
    ) -> Result<Self, EndpointError> {
        let identity = credentials.current().identity().clone();
        let dpu = Identity::new(identity.trust_domain(), Role::Dpu, dpu)?;
        check_address(address)?;
        let (pause, latest) = Default::default();
        Ok(Self { credentials, address: address.into(), dpu, deadline, pause, latest })
    }

    /// Checks trust domain, name and address of a DPU.
    ///
    /// # Errors
    /// [`EndpointError`] if one of them is malformed.
    pub fn check(trust_domain: &str, address: &str, dpu: &str) -> Result<(), EndpointError> {
        Identity::new(trust_domain, Role::Dpu, dpu)?;
        check_address(address)
    }

    /// A channel that connects at its first use, and again after a broken connection. While the DPU is not reachable
    /// calls fail at once; [`ConnectError::find`] returns the reason.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.endpoint().connect_with_connector_lazy(self.clone())
    }

    /// Opens a channel and waits until it is connected.
    ///
    /// # Errors
    /// [`ConnectError`] if the connection could not be opened.
    pub async fn connect(&self) -> Result<Channel, ConnectError> {
        let connected = self.endpoint().connect_with_connector(self.clone()).await;
        connected.map_err(|error| match ConnectError::find(&error) {
            Some(found) => found.clone(),
            None => ConnectError::Tls {
                address: Arc::clone(&self.address),
                source: Arc::new(io::Error::other(error)),
            },
        })
    }

    /// The `http` scheme keeps tonic from adding TLS a second time: this connector dials and does TLS itself. `new` has
    /// checked that the address parses.
    fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.address))
            .unwrap_or_else(|_| Endpoint::from_static("http://dpu"))
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
    }

    async fn open(self) -> Result<TokioIo<ClientStream>, ConnectError> {
        if let Some(error) = self.paused() {
            return Err(error);
        }
        // One limit for dialling, TLS and the first bytes: a DPU can hang in each of them.
        let opened = timeout(self.deadline, self.attempt()).await.unwrap_or_else(|_| {
            let (address, deadline) = (Arc::clone(&self.address), self.deadline);
            Err(ConnectError::TooSlow { address, deadline })
        });
        self.remember(opened.as_ref().err());
        opened.map(TokioIo::new)
    }

    async fn attempt(&self) -> Result<ClientStream, ConnectError> {
        let own = self.credentials.current();
        Self::check_own(&own)?;
        let stream = self.dial().await.map_err(|error| self.dial_failed(error))?;
        // Taken before the verifier runs: it accepts no certificate that had expired at this time.
        let begun = SystemTime::now();
        let mut stream = self.handshake(&own, stream).await?;
        self.await_first_bytes(&mut stream).await?;
        let term = Term::of(stream.get_ref().1.peer_certificates(), begun)
            .map_err(|problem| self.tls_failed(io::Error::other(problem)))?;
        // Either side closes the connection when the first certificate of the other expires.
        *self.latest.lock() = Some(Lifetime::until(term.end().min(own.first_end())));
        Ok(ClientStream { stream, term })
    }

    fn check_own(own: &Credentials) -> Result<(), ConnectError> {
        if SystemTime::now() <= own.validity().not_after {
            return Ok(());
        }
        Err(ConnectError::OwnExpired {
            identity: own.identity().clone(),
            not_after: date(own.validity().not_after),
        })
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let stream = TcpStream::connect(&*self.address).await?;
        tcp::prepare(&stream, UNREAD)?;
        Ok(stream)
    }

    async fn handshake(
        &self,
        own: &Credentials,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ConnectError> {
        // The name is not checked: the verifier identifies the server by its certificate. rustls sends no SNI for an IP
        // address.
        let name = ServerName::IpAddress(std::net::Ipv4Addr::UNSPECIFIED.into());
        let outdated = Outdated::default();
        let config = own.client_config(self.dpu.clone(), outdated.clone());
        let config = config.map_err(|error| self.tls_failed(io::Error::other(error)))?;
        let connecting = TlsConnector::from(Arc::new(config)).connect(name, stream);
        connecting.await.map_err(|error| {
            self.dpu_expired(&error, &outdated).unwrap_or_else(|| self.tls_failed(error))
        })
    }

    fn dpu_expired(&self, error: &io::Error, outdated: &Outdated) -> Option<ConnectError> {
        let (dpu, not_after) = (outdated.holder()?.clone(), expiry(tls_error(error)?)?);
        let address = Arc::clone(&self.address);
        Some(ConnectError::DpuExpired { address, dpu, not_after: date(not_after) })
    }

    async fn await_first_bytes(
        &self,
        stream: &mut TlsStream<TcpStream>,
    ) -> Result<(), ConnectError> {
        match stream.fill_buf().await {
            Ok([]) => Err(ConnectError::Closed { address: Arc::clone(&self.address) }),
            Ok(_) => Ok(()),
            Err(error) => Err(self.tls_failed(error)),
        }
    }

    fn paused(&self) -> Option<ConnectError> {
        let pause = self.pause.lock();
        let (until, error) = pause.over.as_ref()?;
        (Instant::now() < *until).then(|| error.clone())
    }

    fn remember(&self, error: Option<&ConnectError>) {
        let mut pause = self.pause.lock();
        // One success ends the backoff for all clones.
        let Some(error) = error else {
            *pause = Pause::default();
            return;
        };
        pause.length = (pause.length * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        pause.over = Some((Instant::now() + pause.length, error.clone()));
    }

    fn dial_failed(&self, error: io::Error) -> ConnectError {
        ConnectError::Dial { address: Arc::clone(&self.address), source: Arc::new(error) }
    }

    fn tls_failed(&self, error: io::Error) -> ConnectError {
        let address = Arc::clone(&self.address);
        if let Some(alert) = alert(&error) {
            return ConnectError::OwnRefused {
                address,
                identity: self.credentials.current().identity().clone(),
                reason: explain_alert(alert),
                alert: format!("{alert:?}"),
            };
        }
        match tls_error(&error).and_then(certificate_reason) {
            Some(reason) => ConnectError::ServerRefused { address, reason },
            None => ConnectError::Tls { address, source: Arc::new(error) },
        }
    }
}

fn check_address(address: &str) -> Result<(), EndpointError> {
    let malformed = || EndpointError::Address(address.into());
    let authority: http::uri::Authority = address.parse().map_err(|_| malformed())?;
    let (host, port) = (authority.host(), authority.port_u16());
    port.filter(|_| !host.is_empty()).map(drop).ok_or_else(malformed)
}

impl Service<Uri> for Connector {
    type Response = TokioIo<ClientStream>;
    type Error = ConnectError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, ConnectError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        Box::pin(self.clone().open())
    }
}
