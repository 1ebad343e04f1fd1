//! Watching links.

use std::{collections::VecDeque, io};

use netlink_packet_route::{AddressFamily, RouteNetlinkMessage, link::LinkMessage};
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::errno::Errno;
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    Error, Link, Netns,
    datagram::{Meaning, messages},
    socket::receive,
};

/// `RTNLGRP_LINK`
const LINK_GROUP: u32 = 1;

/// Room for the events of a thousand links at once.
const BUFFER_BYTES: u32 = 8 << 20;

/// What happened to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// It is new in this namespace, or something about it changed. The kernel does not tell of a
    /// new alias or group of a link that is down.
    Changed(Box<Link>),
    /// It was deleted, or moved to another namespace.
    Gone {
        /// Its index.
        index: u32,
        /// Its name.
        name: String,
        /// Its alias.
        alias: Option<String>,
    },
    /// More happened than the kernel could queue: look at all links again.
    Missed,
}

/// The changes of the links of a namespace, in their order. Like every socket, it keeps the
/// namespace alive: never watch a pod's.
#[derive(Debug)]
pub struct LinkMonitor {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
    events: VecDeque<LinkEvent>,
}

impl LinkMonitor {
    /// Starts to watch. Nothing that happens from now on is lost, so list the links after this.
    ///
    /// To be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the process may have no more open files, or may not enter the namespace.
    pub fn open(netns: &Netns) -> Result<Self, Error> {
        Self::with_socket(netns.run(open_socket)?)
    }

    /// Starts to watch the namespace and all others that it has a number for: those in which the
    /// other end of one of its veth pairs was ever seen. It keeps only `netns` alive. Events do
    /// not tell their namespace, so a link is to be recognised by its alias.
    ///
    /// To be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the process may have no more open files, or may not enter the namespace.
    pub fn open_with_neighbours(netns: &Netns) -> Result<Self, Error> {
        let open = || {
            let socket = open_socket()?;
            socket.set_listen_all_namespaces(true)?;
            Ok(socket)
        };
        Self::with_socket(netns.run(open)?)
    }

    fn with_socket(socket: io::Result<Socket>) -> Result<Self, Error> {
        let socket =
            socket.and_then(register).map_err(|error| Error::io("watch the links", &error))?;
        Ok(Self { socket, buffer: Vec::new(), events: VecDeque::new() })
    }

    /// The next event. Cancelling the wait loses none.
    ///
    /// # Errors
    /// When the socket fails for good.
    pub async fn next(&mut self) -> Result<LinkEvent, Error> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let failed = |error: io::Error| Error::io("watch the links", &error);
            let mut ready = self.socket.readable().await.map_err(failed)?;
            let buffer = &mut self.buffer;
            match ready.try_io(|socket| receive(socket.get_ref(), buffer)) {
                Ok(Ok(())) => self.events.extend(events(&self.buffer)),
                Ok(Err(error)) if is_overrun(&error) => {
                    drain(self.socket.get_ref(), &mut self.buffer).map_err(failed)?;
                    return Ok(LinkEvent::Missed);
                }
                Ok(Err(error)) => return Err(failed(error)),
                Err(_would_block) => {}
            }
        }
    }
}

#[expect(unsafe_code, reason = "Tokio has no safe registration of a foreign socket")]
fn register(socket: Socket) -> io::Result<AsyncFd<Socket>> {
    socket.set_non_blocking(true)?;
    // SAFETY: the socket owns its descriptor and closes it only when dropped. The registration
    // owns the socket, and never gives it away.
    let registered = unsafe { AsyncFd::register_with_interest(socket, Interest::READABLE) };
    Ok(registered?)
}

/// Opens a socket that receives the events of the calling thread's namespace.
pub(crate) fn open_socket() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    // Best effort: a smaller buffer only means that more events are missed.
    drop(socket.set_rx_buf_sz(BUFFER_BYTES));
    socket.bind(&SocketAddr::new(0, 0))?;
    socket.add_membership(LINK_GROUP)?;
    Ok(socket)
}

fn is_overrun(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

/// Receives all that waits, for nothing: after an overrun the kernel drops events, without
/// another word, until all that waited before has been received.
fn drain(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<()> {
    loop {
        match receive(socket, buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if !is_overrun(&error) => return Err(error),
            _ => {}
        }
    }
}

/// The events in a datagram. What can't be read is told as missed.
fn events(datagram: &[u8]) -> impl Iterator<Item = LinkEvent> {
    messages(datagram).filter_map(|message| match message.meaning() {
        Ok(Meaning::Object(object)) => event(*object),
        Ok(_) => None,
        Err(_) => Some(LinkEvent::Missed),
    })
}

fn event(object: RouteNetlinkMessage) -> Option<LinkEvent> {
    match object {
        RouteNetlinkMessage::NewLink(message) if is_about_link(&message) => {
            Some(LinkEvent::Changed(Box::new(message.into())))
        }
        RouteNetlinkMessage::DelLink(message) if is_about_link(&message) => {
            let Link { index, name, alias, .. } = message.into();
            Some(LinkEvent::Gone { index, name, alias })
        }
        _ => None,
    }
}

/// Bridges tell of their ports in the same way: one that leaves its bridge is "deleted".
fn is_about_link(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Unspec
}
