//! Accepts connections.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::{Duration, SystemTime},
};

use bootstrap::Chain;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

use crate::{
    connection_limits::ConnectionPermit,
    identity::Identity,
    live::LiveCredentials,
    provider::ALPN,
    reason::{alert, certificate_reason, refusal_of_own, tls_error},
    term::Term,
    verifier::Outdated,
};

/// Numbers a server's connections in the order of their arrival. The number is assigned before the handshake: a peer that
/// gives up a connection and dials again gets a higher number, even if the first handshake ends later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionNumber(pub u64);

/// The peer of a connection. Every request through a [`ServerStream`] has it in its extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The identity in its certificate.
    pub identity: Identity,
    /// Its address.
    pub address: SocketAddr,
    /// When its certificate expires. The connection ends then, or earlier with an intermediate certificate.
    pub certificate_end: SystemTime,
    /// The number of its connection.
    pub connection: ConnectionNumber,
}

/// A peer whose connection was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPeer {
    /// The identity in its certificate, if the CA issued it and only its dates are invalid. The peer has not proved
    /// that it has the key.
    pub holder: Option<Identity>,
    /// Its address.
    pub address: SocketAddr,
    /// Why: one clause without a final stop.
    pub reason: String,
}

/// Why a connection was refused. The texts contain nothing that the peer does not know.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the sentences explain the variants and their fields")]
#[non_exhaustive]
pub enum HandshakeError {
    #[error("the TLS handshake was not over after {0:?}")]
    TooSlow(Duration),
    #[error("the peer's certificate is refused: {0}")]
    Certificate(String),
    /// The peer's certificate is refused only for its dates.
    #[error("the peer shows the certificate of {holder}, which is refused: {reason}")]
    Outdated { holder: Identity, reason: String },
    #[error("the peer refuses this program's certificate: {0}")]
    ByPeer(&'static str),
    #[error("the peer does not offer HTTP/2 by ALPN")]
    Protocol,
    #[error("the TLS handshake failed")]
    Tls(#[source] rustls::Error),
    #[error("the connection failed during the TLS handshake")]
    Io(#[source] io::Error),
}

impl From<io::Error> for HandshakeError {
    fn from(error: io::Error) -> Self {
        if let Some(why) = alert(&error).and_then(refusal_of_own) {
            return Self::ByPeer(why);
        }
        match tls_error(&error) {
            Some(tls) => {
                certificate_reason(tls).map_or_else(|| Self::Tls(tls.clone()), Self::Certificate)
            }
            None => Self::Io(error),
        }
    }
}

impl HandshakeError {
    fn of(error: io::Error, outdated: &Outdated) -> Self {
        match (Self::from(error), outdated.holder().cloned()) {
            (Self::Certificate(reason), Some(holder)) => Self::Outdated { holder, reason },
            (error, _) => error,
        }
    }
}

/// Turns TCP connections into mutually authenticated ones.
#[derive(Clone, Debug)]
pub struct Server {
    credentials: LiveCredentials,
    deadline: Duration,
    /// Receives reports of refused peers.
    refused: Option<mpsc::Sender<RefusedPeer>>,
    /// The number of the next connection.
    opened: Arc<AtomicU64>,
}

impl Server {
    /// A server with these credentials; each connection uses the current ones. A handshake that takes longer than
    /// `deadline` is aborted.
    #[must_use]
    pub fn new(credentials: LiveCredentials, deadline: Duration) -> Self {
        Self { credentials, deadline, refused: None, opened: Arc::default() }
    }

    /// Reports the peers that [`crate::incoming`] refuses to `refused`, as long as the channel has room.
    #[must_use]
    pub fn reporting(self, refused: mpsc::Sender<RefusedPeer>) -> Self {
        Self { refused: Some(refused), ..self }
    }

    pub(crate) fn report(&self, error: &HandshakeError, address: SocketAddr) {
        let Some(refused) = &self.refused else { return };
        let (holder, reason) = match error {
            HandshakeError::Outdated { holder, reason } => (Some(holder.clone()), reason.clone()),
            // Port probes, such as a load balancer's, end here and are not reported.
            HandshakeError::Io(_) => return,
            error => (None, Chain(error).to_string()),
        };
        // A full channel loses reports. Refused peers usually try again.
        let _ = refused.try_send(RefusedPeer { holder, address, reason });
    }

    /// Performs the handshake on `stream`.
    ///
    /// # Errors
    /// [`HandshakeError`] if the peer is too slow, does not speak TLS 1.3 and HTTP/2, or has no valid certificate of a
    /// host or operator of this trust domain.
    pub async fn accept(&self, stream: TcpStream) -> Result<ServerStream, HandshakeError> {
        timeout(self.deadline, self.handshake(stream))
            .await
            .map_err(|_| HandshakeError::TooSlow(self.deadline))?
    }

    async fn handshake(&self, stream: TcpStream) -> Result<ServerStream, HandshakeError> {
        let number = ConnectionNumber(self.opened.fetch_add(1, Ordering::Relaxed));
        let (address, begun) = (stream.peer_addr()?, SystemTime::now());
        let (own, outdated) = (self.credentials.current(), Outdated::default());
        let config = own.server_config(outdated.clone()).map_err(HandshakeError::Tls)?;
        let accepted = TlsAcceptor::from(Arc::new(config)).accept(stream).await;
        let stream = accepted.map_err(|error| HandshakeError::of(error, &outdated))?;
        let (_, connection) = stream.get_ref();
        if connection.alpn_protocol() != Some(ALPN) {
            return Err(HandshakeError::Protocol);
        }
        let term = Term::of(connection.peer_certificates(), begun)
            .map_err(|problem| HandshakeError::Certificate(problem.to_string()))?;
        let (identity, certificate_end) = (term.peer().clone(), term.certificate_end());
        let peer = Peer { identity, address, certificate_end, connection: number };
        Ok(ServerStream { stream, peer, term, is_blocked: false, reader: None, _permit: None })
    }
}

/// A connection with a known peer. It ends when a certificate of the peer's chain expires. While the peer does not read
/// its answers the server does not read its requests, because queued answers would use memory without bound.
#[derive(Debug)]
pub struct ServerStream {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    term: Term,
    /// The latest write did not complete.
    is_blocked: bool,
    /// The task to wake when a write completes.
    reader: Option<Waker>,
    /// Counts the connection while it is open.
    _permit: Option<ConnectionPermit>,
}

impl ServerStream {
    /// The peer.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn keeping(self, permit: ConnectionPermit) -> Self {
        Self { _permit: Some(permit), ..self }
    }

    /// Records whether the peer accepts data, and wakes the reader when it does again.
    fn sent<T>(&mut self, outcome: Poll<T>) -> Poll<T> {
        self.is_blocked = outcome.is_pending();
        if !self.is_blocked
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
        outcome
    }
}

impl Connected for ServerStream {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for ServerStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // Before the check of `is_blocked`: a peer that does not read must not keep an expired connection open.
        if let Poll::Ready(over) = self.term.poll_over(context) {
            return Poll::Ready(Err(over));
        }
        if self.is_blocked {
            self.reader = Some(context.waker().clone());
            return Poll::Pending;
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for ServerStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.sent(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.sent(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.sent(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
