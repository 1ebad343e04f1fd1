//! Accepting connections.

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
use rustls_pki_types::CertificateDer;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::mpsc,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tonic::transport::server::Connected;

use crate::{
    guests::Place,
    identity::Identity,
    live::LiveCredentials,
    provider::ALPN,
    reason::{alert, certificate_reason, refusal_of_own, tls_error},
    term::Term,
    verifier::Outdated,
};

/// Numbers a server's connections in the order in which their peers dialled, if they dial one after
/// another: the number is given before the peer can say anything, and so before it can give up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionNumber(pub u64);

/// Who is at the other end. Found in the extensions of every request that came by a
/// [`ServerStream`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Whose certificate it showed.
    pub identity: Identity,
    /// Where it calls from.
    pub address: SocketAddr,
    /// The last moment of its certificate. The connection ends then, or with an intermediate certificate
    /// before.
    pub certificate_end: SystemTime,
    /// By which connection.
    pub connection: ConnectionNumber,
}

/// A peer whose connection was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedPeer {
    /// Whom our CA has issued its certificate to, if only the dates of that are wrong. That the peer has the key is not
    /// proved.
    pub holder: Option<Identity>,
    /// Where it called from.
    pub address: SocketAddr,
    /// Why: one clause without a final stop.
    pub reason: String,
}

/// Why a connection was not accepted. The texts say nothing that the peer could not know.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandshakeError {
    /// The peer did not finish in time.
    #[error("the TLS handshake was not over after {0:?}")]
    TooSlow(Duration),
    /// The peer's certificate was refused, or it had none.
    #[error("the peer's certificate is refused: {0}")]
    Certificate(String),
    /// The peer's certificate is refused for its dates alone.
    #[error("the peer shows the certificate of {holder}, which is refused: {reason}")]
    Outdated {
        /// Whom our CA has issued it to.
        holder: Identity,
        /// What is wrong with the dates.
        reason: String,
    },
    /// The peer refuses our own certificate.
    #[error("the peer refuses this program's certificate: {0}")]
    ByPeer(&'static str),
    /// The peer did not ask for HTTP/2.
    #[error("the peer does not offer HTTP/2 by ALPN")]
    Protocol,
    /// TLS failed otherwise.
    #[error("the TLS handshake failed")]
    Tls(#[source] rustls::Error),
    /// The connection failed.
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
    /// What refused peers are reported to.
    refused: Option<mpsc::Sender<RefusedPeer>>,
    /// How many connections there have been.
    opened: Arc<AtomicU64>,
}

impl Server {
    /// A server of these credentials, which are looked at anew for each connection. A handshake
    /// that takes longer than `deadline` is given up.
    #[must_use]
    pub fn new(credentials: LiveCredentials, deadline: Duration) -> Self {
        Self { credentials, deadline, refused: None, opened: Arc::default() }
    }

    /// Reports the peers that [`crate::incoming`] refuses to `refused`, as far as it takes them.
    #[must_use]
    pub fn reporting(self, refused: mpsc::Sender<RefusedPeer>) -> Self {
        Self { refused: Some(refused), ..self }
    }

    pub(crate) fn report(&self, error: &HandshakeError, address: SocketAddr) {
        let Some(refused) = &self.refused else { return };
        let (holder, reason) = match error {
            HandshakeError::Outdated { holder, reason } => (Some(holder.clone()), reason.clone()),
            // A peer that only looks whether the port is open, as a load balancer does, has nothing to be told of.
            HandshakeError::Io(_) => return,
            error => (None, Chain(error).to_string()),
        };
        // A receiver that does not keep up misses reports of peers that try again anyway.
        let _ = refused.try_send(RefusedPeer { holder, address, reason });
    }

    /// Does the handshake on `stream`.
    ///
    /// # Errors
    /// [`HandshakeError`], if the peer is too slow, speaks something else, or shows no certificate
    /// of a host or operator of our trust domain.
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
        let term = term(connection.peer_certificates(), begun)?;
        let (identity, certificate_end) = (term.peer().clone(), term.certificate_end());
        let peer = Peer { identity, address, certificate_end, connection: number };
        Ok(ServerStream { stream, peer, term, is_blocked: false, reader: None, _place: None })
    }
}

/// Whom the handshake's verifier has admitted, and until when.
fn term(chain: Option<&[CertificateDer<'_>]>, begun: SystemTime) -> Result<Term, HandshakeError> {
    let none = || HandshakeError::Certificate("no certificate was presented".into());
    Term::of(chain.ok_or_else(none)?, begun)
        .map_err(|problem| HandshakeError::Certificate(problem.to_string()))
}

/// A connection whose peer is known, and which ends with the peer's certificates. A peer that does not
/// take what it is sent is not listened to meanwhile: what it would be answered next had to be kept in
/// memory, without bound.
#[derive(Debug)]
pub struct ServerStream {
    stream: TlsStream<TcpStream>,
    peer: Peer,
    term: Term,
    /// The peer takes no more at the moment.
    is_blocked: bool,
    /// Who is to read on when the peer takes something.
    reader: Option<Waker>,
    /// Counts the connection as long as it is open.
    _place: Option<Place>,
}

impl ServerStream {
    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.peer
    }

    pub(crate) fn keeping(self, place: Place) -> Self {
        Self { _place: Some(place), ..self }
    }

    /// Notes whether the peer takes what it is sent.
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
