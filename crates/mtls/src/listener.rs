//! A listener that hands over only connections whose peer is known.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use bootstrap::Chain;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, mpsc},
    time::sleep,
};
use tokio_stream::wrappers::ReceiverStream;

use crate::server::{Server, ServerStream};

/// How long to wait when the system refuses to accept, as it does when files run out.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How much a listener takes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Handshakes under way at the same time; further connections wait.
    pub handshakes: usize,
    /// Open connections; further ones are closed at once.
    pub connections: usize,
}

/// Accepts connections on `listener` and does their handshakes side by side. Refused peers are
/// logged. Must be called within a tokio runtime; stops accepting when the stream is dropped.
pub fn incoming(
    listener: TcpListener,
    server: Server,
    limits: Limits,
) -> ReceiverStream<io::Result<ServerStream>> {
    let (accepted, receiver) = mpsc::channel(1);
    let door = Door {
        server,
        handshakes: Arc::new(Semaphore::new(limits.handshakes)),
        connections: Arc::new(Semaphore::new(limits.connections)),
        accepted,
    };
    tokio::spawn(door.stand(listener));
    ReceiverStream::new(receiver)
}

#[derive(Clone)]
struct Door {
    server: Server,
    handshakes: Arc<Semaphore>,
    connections: Arc<Semaphore>,
    accepted: mpsc::Sender<io::Result<ServerStream>>,
}

impl Door {
    async fn stand(self, listener: TcpListener) {
        let closed = self.accepted.clone();
        tokio::select! {
            () = closed.closed() => {}
            () = self.accept_all(&listener) => {}
        }
    }

    async fn accept_all(&self, listener: &TcpListener) {
        while let Ok(handshake) = Arc::clone(&self.handshakes).acquire_owned().await {
            match listener.accept().await {
                Ok((stream, address)) => self.admit(stream, address, handshake),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn admit(&self, stream: TcpStream, address: SocketAddr, handshake: OwnedSemaphorePermit) {
        let Ok(connection) = Arc::clone(&self.connections).try_acquire_owned() else {
            tracing::warn!(%address, "connection closed: too many are open");
            return;
        };
        let door = self.clone();
        tokio::spawn(async move {
            let greeted = door.server.accept(stream).await;
            drop(handshake);
            match greeted {
                Ok(stream) => drop(door.accepted.send(Ok(stream.counted_by(connection))).await),
                Err(error) => {
                    tracing::warn!(%address, reason = %Chain(&error), "connection refused");
                }
            }
        });
    }
}
