//! Opening connections to a DPU.
//!
//! In TLS 1.3 the client's handshake is over before the server has looked at the client's
//! certificate. A refusal arrives as an alert where the first answer is expected, and gRPC shows it
//! as "transport error". Therefore a connection counts as open only when the server's first bytes,
//! its HTTP/2 settings, are there.

use std::{
    error::Error,
    future::Future,
    io,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
    time::{Duration, SystemTime},
};

use http::Uri;
use hyper_util::rt::TokioIo;
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

/// An idle connection is tried this often, so that a DPU that went away is noticed.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long the DPU may take to answer such a trial.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long it may leave untaken what it is sent.
const UNREAD: Duration = Duration::from_secs(30);

/// Pauses after failed attempts: the first, and the longest. They double in between.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// An address or name that no DPU can have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// It is not `host:port`.
    #[error("{0:?} is not of the form host:port, such as 192.168.100.2:7443")]
    Address(String),
    /// The DPU's name is not one.
    #[error(transparent)]
    Name(#[from] IdentityError),
}

/// Why no connection could be opened.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The own certificate has expired since it was read.
    #[error("our certificate {identity} expired on {not_after}: renew it on this machine")]
    OwnExpired {
        /// Whose it is.
        identity: Identity,
        /// Its last moment, RFC 3339.
        not_after: String,
    },
    /// Nobody answers there.
    #[error("cannot connect to the DPU at {address}")]
    Dial {
        /// Where.
        address: Arc<str>,
        /// What the system said.
        source: Arc<io::Error>,
    },
    /// It took too long.
    #[error("the DPU at {address} did not answer within {deadline:?}")]
    TooSlow {
        /// Where.
        address: Arc<str>,
        /// The time it had.
        deadline: Duration,
    },
    /// We refuse the server's certificate.
    #[error("the server at {address} shows a certificate that is refused: {reason}")]
    ServerRefused {
        /// Where.
        address: Arc<str>,
        /// Why.
        reason: String,
    },
    /// The DPU's certificate has expired, and nothing else is wrong with it.
    #[error("the certificate of {dpu} at {address} expired on {not_after}: renew it on the DPU")]
    DpuExpired {
        /// Where.
        address: Arc<str>,
        /// Whose it is.
        dpu: Identity,
        /// Its last moment, RFC 3339.
        not_after: String,
    },
    /// The DPU refuses our certificate.
    #[error("the DPU at {address} refused our certificate {identity}: {reason} (alert {alert})")]
    OwnRefused {
        /// Where.
        address: Arc<str>,
        /// Whose certificate was refused.
        identity: Identity,
        /// What the alert most likely means.
        reason: &'static str,
        /// The TLS alert.
        alert: String,
    },
    /// The other side closed the connection right after the handshake.
    #[error("the DPU at {address} closed the connection at once; it may be at its limit")]
    Closed {
        /// Where.
        address: Arc<str>,
    },
    /// TLS failed otherwise.
    #[error("the TLS handshake with {address} failed")]
    Tls {
        /// Where.
        address: Arc<str>,
        /// What failed.
        source: Arc<io::Error>,
    },
}

impl ConnectError {
    /// Whether a certificate is to blame, ours or theirs, rather than the way to the DPU.
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

    /// Finds the reason inside an error that tonic wrapped around it, such as a `tonic::Status`.
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

/// Opens connections to one DPU. Clones share their memory of failures.
#[derive(Clone, Debug)]
pub struct Connector {
    pub(crate) credentials: LiveCredentials,
    address: Arc<str>,
    dpu: Identity,
    deadline: Duration,
    pause: Arc<Mutex<Pause>>,
    latest: Arc<Mutex<Option<Lifetime>>>,
}

/// While a DPU can't be reached, only one caller in a while tries; the others learn at once what
/// came of it, instead of queueing for their turn to wait.
#[derive(Debug, Default)]
struct Pause {
    length: Duration,
    over: Option<(Instant, ConnectError)>,
}

impl Connector {
    /// A connector to the DPU named `dpu` of our trust domain, at `address` (`host:port`). An
    /// attempt takes `deadline` at most.
    ///
    /// # Errors
    /// [`EndpointError`], if address or name are malformed.
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

    /// Whether a connector could be made to a DPU of this trust domain, name and address.
    ///
    /// # Errors
    /// [`EndpointError`], if not.
    pub fn check(trust_domain: &str, address: &str, dpu: &str) -> Result<(), EndpointError> {
        Identity::new(trust_domain, Role::Dpu, dpu)?;
        check_address(address)
    }

    /// A channel that connects when it is first used, and again whenever the connection broke.
    /// Calls fail at once while the DPU can't be reached; [`ConnectError::find`] tells why.
    #[must_use]
    pub fn channel(&self) -> Channel {
        self.endpoint().connect_with_connector_lazy(self.clone())
    }

    /// A channel that is connected.
    ///
    /// # Errors
    /// [`ConnectError`].
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

    /// The address is only told to the server; dialling is ours, and so is TLS: for `https` tonic would
    /// do it once more. `new` has seen that it parses.
    fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://{}", self.address))
            .unwrap_or_else(|_| Endpoint::from_static("http://dpu"))
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .keep_alive_while_idle(true)
    }

    /// How long the connection lasts that was opened last.
    pub(crate) fn latest(&self) -> MutexGuard<'_, Option<Lifetime>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn open(self) -> Result<TokioIo<ClientStream>, ConnectError> {
        if let Some(error) = self.paused() {
            return Err(error);
        }
        let opened = match timeout(self.deadline, self.attempt()).await {
            Ok(opened) => opened,
            Err(_) => Err(self.too_slow()),
        };
        self.remember(opened.as_ref().err());
        opened.map(TokioIo::new)
    }

    async fn attempt(&self) -> Result<ClientStream, ConnectError> {
        let own = self.credentials.current();
        Self::check_own(&own)?;
        let stream = self.dial().await.map_err(|error| self.dial_failed(error))?;
        // Before the verifier looks: what has ended by now it won't have accepted.
        let begun = SystemTime::now();
        let mut stream = self.handshake(&own, stream).await?;
        self.await_first_bytes(&mut stream).await?;
        let term = self.term(&stream, begun)?;
        *self.latest() = Some(Lifetime::until(term.end().min(own.first_end())));
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
        // Never looked at: the verifier knows the server by the identity in its certificate. Of an IP
        // address rustls tells the server nothing.
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

    /// The end of the chain that the verifier has accepted.
    fn term(&self, stream: &TlsStream<TcpStream>, begun: SystemTime) -> Result<Term, ConnectError> {
        let shown = stream.get_ref().1.peer_certificates();
        let none = || self.tls_failed(io::Error::other("the server showed no certificate"));
        Term::of(shown.ok_or_else(none)?, begun)
            .map_err(|problem| self.tls_failed(io::Error::other(problem)))
    }

    fn paused(&self) -> Option<ConnectError> {
        let pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        let (until, error) = pause.over.as_ref()?;
        (Instant::now() < *until).then(|| error.clone())
    }

    fn remember(&self, error: Option<&ConnectError>) {
        let mut pause = self.pause.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(error) = error else {
            *pause = Pause::default();
            return;
        };
        pause.length = (pause.length * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
        pause.over = Some((Instant::now() + pause.length, error.clone()));
    }

    fn too_slow(&self) -> ConnectError {
        ConnectError::TooSlow { address: Arc::clone(&self.address), deadline: self.deadline }
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
