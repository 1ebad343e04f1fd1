//! Asynchronous reception of kernel events.

use std::{collections::VecDeque, io};

use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;
use tokio::io::{Interest, unix::AsyncFd};

use crate::{
    datagram::{Meaning, Object, messages},
    error::Error,
    socket::receive,
};

/// Receive buffer: room for the events of a thousand links at once.
const BUFFER_BYTES: u32 = 8 << 20;

/// Opens a socket in the calling thread's namespace that receives the events of a multicast group.
pub(crate) fn subscribe(protocol: isize, group: u32) -> io::Result<Socket> {
    let mut socket = Socket::new(protocol)?;
    // Best effort: a smaller buffer only means that more events are missed.
    drop(socket.set_rx_buf_sz(BUFFER_BYTES));
    socket.bind(&SocketAddr::new(0, 0))?;
    socket.add_membership(group)?;
    Ok(socket)
}

/// A kind of kernel event.
pub(crate) trait Event: Sized {
    /// The operation for error messages, such as `watch the links`.
    const WATCHING: &str;

    /// The event for a queue overflow in the kernel.
    const MISSED: Self;

    /// Reads the event that an object describes. `None`: the object is no such event. An error means that it is
    /// malformed.
    fn of(object: Object<'_>) -> Result<Option<Self>, String>;

    /// Reads the events of a datagram. An unreadable one counts as [`Self::MISSED`].
    fn all_in(datagram: &[u8]) -> impl Iterator<Item = Self> {
        messages(datagram).filter_map(|message| match message.meaning() {
            Ok(Meaning::Object(object)) => Self::of(object).unwrap_or(Some(Self::MISSED)),
            Ok(_) => None,
            Err(_) => Some(Self::MISSED),
        })
    }
}

/// The events that a socket from [`subscribe`] receives, in order.
#[derive(Debug)]
pub(crate) struct Events<E> {
    watch: Watch,
    waiting: VecDeque<E>,
}

impl<E: Event> Events<E> {
    /// Must be called within a Tokio runtime.
    pub(crate) fn of(socket: io::Result<Socket>) -> Result<Self, Error> {
        let watch = socket.and_then(Watch::new);
        let watch = watch.map_err(|error| Error::io(E::WATCHING, &error))?;
        Ok(Self { watch, waiting: VecDeque::new() })
    }

    /// Waits for the next event. Cancel safe: no event is lost.
    pub(crate) async fn next(&mut self) -> Result<E, Error> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(event);
            }
            let datagram = self.watch.datagram().await;
            match datagram.map_err(|error| Error::io(E::WATCHING, &error))? {
                Some(datagram) => self.waiting.extend(E::all_in(datagram)),
                None => return Ok(E::MISSED),
            }
        }
    }
}

#[derive(Debug)]
struct Watch {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
}

impl Watch {
    fn new(socket: Socket) -> io::Result<Self> {
        Ok(Self { socket: register(socket)?, buffer: Vec::new() })
    }

    /// Waits for the next datagram. `None`: the kernel's queue overflowed. Cancel safe.
    async fn datagram(&mut self) -> io::Result<Option<&[u8]>> {
        loop {
            let mut ready = self.socket.readable().await?;
            let buffer = &mut self.buffer;
            match ready.try_io(|socket| receive_next(socket.get_ref(), buffer)) {
                Ok(Ok(true)) => return Ok(Some(&self.buffer)),
                Ok(Ok(false)) => return Ok(None),
                Ok(Err(error)) => return Err(error),
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

/// Receives a datagram into the buffer. Returns `false` after a queue overflow, with the queue emptied.
pub(crate) fn receive_next(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<bool> {
    match receive(socket, buffer) {
        Err(error) if is_overrun(&error) => drain(socket, buffer).map(|()| false),
        received => received.map(|()| true),
    }
}

fn is_overrun(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::ENOBUFS as i32)
}

/// Discards everything that is queued. After an overrun the kernel keeps dropping events without another error until
/// the queue has been emptied.
fn drain(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<()> {
    loop {
        match receive(socket, buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if !is_overrun(&error) => return Err(error),
            _ => {}
        }
    }
}
