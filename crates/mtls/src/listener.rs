//! A listener that yields only connections with a known peer.
//!
//! One task accepts, and each handshake is a task of its own. Locks: one mutex for the rate limit of the log of refused
//! connections; see also [`ConnectionLimits`].

use std::{
    collections::{HashSet, VecDeque},
    fmt, io,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bootstrap::Chain;
use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{Instant, sleep},
};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    connection_limits::ConnectionLimits,
    server::{HandshakeError, Server, ServerStream},
    tcp,
};

/// Delay after the system refused to accept, such as when file descriptors run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Shortest interval between log lines about refused connections.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// How many accepted connections may wait in the stream.
const WAITING: usize = 64;

/// Limits of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Concurrent handshakes. One more aborts the oldest, so that silent clients only displace each other.
    pub handshakes: usize,
    /// Open connections. Further connections are closed at once.
    pub connections: usize,
    /// Open connections of one identity. Further connections are closed at once.
    pub connections_per_identity: usize,
    /// How long a peer may leave sent data unread before its connection is closed.
    pub unread: Duration,
}

/// Accepts connections on `listener` and performs their handshakes concurrently. Refused peers are logged. Must be
/// called within a tokio runtime. Stops when the stream is dropped.
pub fn incoming(
    listener: TcpListener,
    server: Server,
    limits: Limits,
) -> ReceiverStream<io::Result<ServerStream>> {
    let (accepted, receiver) = mpsc::channel(WAITING);
    let connections =
        Arc::new(ConnectionLimits::new(limits.connections, limits.connections_per_identity));
    let (unread, refusals) = (limits.unread, Arc::default());
    let acceptor = Acceptor { server, connections, unread, refusals, accepted };
    let handshakes = Handshakes { limit: limits.handshakes.max(1), ..Handshakes::default() };
    tokio::spawn(acceptor.run(listener, handshakes));
    ReceiverStream::new(receiver)
}

#[derive(Clone)]
struct Acceptor {
    server: Server,
    connections: Arc<ConnectionLimits>,
    unread: Duration,
    refusals: Arc<Mutex<RefusalLog>>,
    accepted: mpsc::Sender<io::Result<ServerStream>>,
}

impl Acceptor {
    async fn run(self, listener: TcpListener, mut handshakes: Handshakes) {
        loop {
            tokio::select! {
                () = self.accepted.closed() => return,
                Some(ended) = handshakes.running.join_next_with_id() => handshakes.forget(&ended),
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        let acceptor = self.clone();
                        handshakes.begin(async move { acceptor.accept(stream, address).await });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    async fn accept(self, stream: TcpStream, address: SocketAddr) {
        let stream = match self.handshake(stream).await {
            Ok(stream) => stream,
            Err(error) => {
                self.server.report(&error, address);
                return self.log_refusal(address, &Chain(&error));
            }
        };
        match self.connections.admit(&stream.peer().identity) {
            // The send fails only if the stream was dropped, which closes the listener.
            Ok(permit) => drop(self.accepted.send(Ok(stream.keeping(permit))).await),
            Err(limit) => {
                let identity = &stream.peer().identity;
                self.log_refusal(address, &format_args!("{identity}: {limit}"));
            }
        }
    }

    async fn handshake(&self, stream: TcpStream) -> Result<ServerStream, HandshakeError> {
        tcp::prepare(&stream, self.unread).map_err(HandshakeError::Io)?;
        self.server.accept(stream).await
    }

    fn log_refusal(&self, address: SocketAddr, reason: &dyn fmt::Display) {
        let suppressed = self.refusals.lock().take_turn();
        if let Some(suppressed) = suppressed {
            tracing::warn!(%address, %reason, suppressed, "connection refused");
        }
    }
}

/// The rate limit of the log, one refusal per second: a refused peer can reconnect at once.
#[derive(Default)]
struct RefusalLog {
    logged_at: Option<Instant>,
    /// Refusals since then.
    suppressed: u64,
}

impl RefusalLog {
    /// Returns the number of suppressed refusals before this one if this one is logged.
    fn take_turn(&mut self) -> Option<u64> {
        if self.logged_at.is_some_and(|logged_at| logged_at.elapsed() < LOG_INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.logged_at = Some(Instant::now());
        Some(std::mem::take(&mut self.suppressed))
    }
}

/// The running handshakes.
#[derive(Default)]
struct Handshakes {
    limit: usize,
    running: JoinSet<()>,
    /// Started handshakes, oldest first. An ended one is removed when it is the oldest.
    begun: VecDeque<AbortHandle>,
    /// Aborted handshakes that have not ended yet.
    dropped: HashSet<Id>,
}

impl Handshakes {
    fn begin(&mut self, handshake: impl Future<Output = ()> + Send + 'static) {
        while self.begun.front().is_some_and(AbortHandle::is_finished) {
            self.begun.pop_front();
        }
        // Aborted tasks stay in `running` until they are joined. They do not count.
        while self.running.len() - self.dropped.len() >= self.limit && self.drop_oldest() {}
        self.begun.push_back(self.running.spawn(handshake));
    }

    /// Returns whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.begun.pop_front() else { return false };
        if !oldest.is_finished() {
            oldest.abort();
            self.dropped.insert(oldest.id());
            tracing::debug!("too many handshakes; the oldest was aborted");
        }
        true
    }

    fn forget(&mut self, ended: &Result<(Id, ()), JoinError>) {
        let id = ended.as_ref().map_or_else(JoinError::id, |(id, ())| *id);
        self.dropped.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_logged_once_per_second() {
        let mut log = RefusalLog::default();
        assert_eq!(log.take_turn(), Some(0));
        assert_eq!((log.take_turn(), log.take_turn()), (None, None));
        log.logged_at = log.logged_at.and_then(|logged_at| logged_at.checked_sub(LOG_INTERVAL));
        assert_eq!(log.take_turn(), Some(2));
        assert_eq!(log.take_turn(), None);
    }
}
