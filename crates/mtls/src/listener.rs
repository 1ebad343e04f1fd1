//! A listener that hands over only connections whose peer is known.

use std::{
    collections::{HashSet, VecDeque},
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bootstrap::Chain;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{AbortHandle, Id, JoinError, JoinSet},
    time::{Instant, sleep},
};
use tokio_stream::wrappers::ReceiverStream;

use crate::{
    guests::Guests,
    server::{HandshakeError, Server, ServerStream},
    tcp,
};

/// How long to wait when the system refuses to accept, as it does when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How often a refused connection is logged, at most.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// How many good connections may wait to be taken.
const WAITING: usize = 64;

/// How much a listener takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Handshakes under way at the same time. One more drops the oldest, so that whoever opens
    /// connections and says nothing keeps out only his like.
    pub handshakes: usize,
    /// Open connections; further ones are closed at once.
    pub connections: usize,
    /// Open connections of one identity; further ones are closed at once.
    pub connections_per_identity: usize,
    /// How long a peer may leave untaken what it is sent; its connection is closed then.
    pub unread: Duration,
}

/// Accepts connections on `listener` and does their handshakes side by side. Refused peers are
/// logged. Must be called within a tokio runtime; stops accepting when the stream is dropped.
pub fn incoming(
    listener: TcpListener,
    server: Server,
    limits: Limits,
) -> ReceiverStream<io::Result<ServerStream>> {
    let (accepted, receiver) = mpsc::channel(WAITING);
    let guests = Arc::new(Guests::new(limits.connections, limits.connections_per_identity));
    let door = Door { server, guests, unread: limits.unread, refusals: Arc::default(), accepted };
    let handshakes = Handshakes { limit: limits.handshakes.max(1), ..Handshakes::default() };
    tokio::spawn(door.stand(listener, handshakes));
    ReceiverStream::new(receiver)
}

#[derive(Clone)]
struct Door {
    server: Server,
    guests: Arc<Guests>,
    unread: Duration,
    refusals: Arc<Refusals>,
    accepted: mpsc::Sender<io::Result<ServerStream>>,
}

impl Door {
    async fn stand(self, listener: TcpListener, mut handshakes: Handshakes) {
        loop {
            tokio::select! {
                () = self.accepted.closed() => return,
                Some(ended) = handshakes.running.join_next_with_id() => handshakes.forget(&ended),
                accepted = listener.accept() => match accepted {
                    Ok((stream, address)) => {
                        let door = self.clone();
                        handshakes.begin(async move { door.greet(stream, address).await });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept connections");
                        sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
    }

    async fn greet(self, stream: TcpStream, address: SocketAddr) {
        let stream = match self.shake_hands(stream).await {
            Ok(stream) => stream,
            Err(error) => {
                self.server.report(&error, address);
                return self.refusals.tell(address, &Chain(&error));
            }
        };
        match self.guests.admit(&stream.peer().identity) {
            // Nobody takes it: the listener is being closed.
            Ok(place) => drop(self.accepted.send(Ok(stream.keeping(place))).await),
            Err(limit) => {
                let identity = &stream.peer().identity;
                self.refusals.tell(address, &format_args!("{identity}: {limit}"));
            }
        }
    }

    async fn shake_hands(&self, stream: TcpStream) -> Result<ServerStream, HandshakeError> {
        tcp::prepare(&stream, self.unread).map_err(HandshakeError::Io)?;
        self.server.accept(stream).await
    }
}

/// Tells of refused connections, one in a second: whoever is refused may come again at once.
#[derive(Default)]
struct Refusals(Mutex<Untold>);

#[derive(Default)]
struct Untold {
    told_at: Option<Instant>,
    /// Refused since then.
    count: u64,
}

impl Refusals {
    fn tell(&self, address: SocketAddr, reason: &dyn fmt::Display) {
        let untold = self.0.lock().unwrap_or_else(PoisonError::into_inner).take_turn();
        if let Some(untold) = untold {
            tracing::warn!(%address, %reason, untold, "connection refused");
        }
    }
}

impl Untold {
    /// Whether this refusal is told, and then how many before it were not.
    fn take_turn(&mut self) -> Option<u64> {
        if self.told_at.is_some_and(|told_at| told_at.elapsed() < TELL_EVERY) {
            self.count += 1;
            return None;
        }
        self.told_at = Some(Instant::now());
        Some(std::mem::take(&mut self.count))
    }
}

/// The handshakes under way.
#[derive(Default)]
struct Handshakes {
    limit: usize,
    running: JoinSet<()>,
    /// Of those that were begun, oldest first. What has ended leaves when it is the oldest.
    begun: VecDeque<AbortHandle>,
    /// Those that were dropped and have not yet ended.
    dropped: HashSet<Id>,
}

impl Handshakes {
    fn begin(&mut self, handshake: impl Future<Output = ()> + Send + 'static) {
        while self.begun.front().is_some_and(AbortHandle::is_finished) {
            self.begun.pop_front();
        }
        while self.running.len() - self.dropped.len() >= self.limit && self.drop_oldest() {}
        self.begun.push_back(self.running.spawn(handshake));
    }

    /// Tells whether there was one.
    fn drop_oldest(&mut self) -> bool {
        let Some(oldest) = self.begun.pop_front() else { return false };
        if !oldest.is_finished() {
            oldest.abort();
            self.dropped.insert(oldest.id());
            tracing::debug!("the oldest handshake was dropped: too many are under way");
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
        let mut untold = Untold::default();
        assert_eq!(untold.take_turn(), Some(0));
        assert_eq!((untold.take_turn(), untold.take_turn()), (None, None));
        untold.told_at = untold.told_at.and_then(|told_at| told_at.checked_sub(TELL_EVERY));
        assert_eq!(untold.take_turn(), Some(2));
        assert_eq!(untold.take_turn(), None);
    }
}
