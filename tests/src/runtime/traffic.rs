//! TCP connections between network namespaces.

use std::{
    io::{self, Read, Write},
    net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    time::Duration,
};

/// Timeout for data from the other side, including TCP's retransmissions.
const TIMEOUT: Duration = Duration::from_secs(20);

/// An open connection with both ends.
#[derive(Debug)]
pub struct Conversation {
    ends: [TcpStream; 2],
    target: SocketAddr,
}

impl Conversation {
    /// Connects from one named network namespace to an address in another.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn begin(from: &str, to: &str, address: &str) -> Self {
        let listener = listen(to, SocketAddr::new(address.parse().unwrap(), 0));
        Self::with(&listener, from, listener.local_addr().unwrap())
    }

    /// Connects from one namespace through `target` to the port of another.
    ///
    /// # Panics
    /// If that fails.
    #[must_use]
    pub fn by_port(from: &str, (to, port): (&str, u16), target: SocketAddr) -> Self {
        let listener = listen(to, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port));
        Self::with(&listener, from, target)
    }

    fn with(listener: &TcpListener, from: &str, target: SocketAddr) -> Self {
        let connect = || TcpStream::connect_timeout(&target, TIMEOUT);
        let client = enter(from).run(connect).unwrap();
        let client = client.unwrap_or_else(|error| panic!("TCP from {from} to {target}: {error}"));
        let (server, _) = listener.accept().unwrap();
        let conversation = Self { ends: [client, server], target };
        conversation.goes_on();
        conversation
    }

    /// Asserts that each end receives what the other sends.
    ///
    /// # Panics
    /// If it does not.
    pub fn goes_on(&self) {
        let [client, server] = &self.ends;
        for (from, to) in [(client, server), (server, client)] {
            let received = send_line(from, to);
            assert!(received.is_ok(), "TCP to {}: {received:?}", self.target);
        }
    }
}

fn enter(netns: &str) -> netlink::Netns {
    netlink::Netns::open(&Path::new("/run/netns").join(netns)).unwrap()
}

fn listen(netns: &str, address: SocketAddr) -> TcpListener {
    enter(netns).run(|| TcpListener::bind(address)).unwrap().unwrap()
}

fn send_line(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut received = [0; 5];
    to.set_read_timeout(Some(TIMEOUT))?;
    from.write_all(b"hello")?;
    to.read_exact(&mut received)
}
