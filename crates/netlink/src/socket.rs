//! The transport: one socket, one exchange at a time.

use std::io;

use netlink_packet_core::{NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST};
use netlink_sys::{Socket, SocketAddr};
use nix::{
    errno::Errno,
    sys::{
        socket::{
            setsockopt,
            sockopt::{ReceiveTimeout, SndBuf, SndBufForce},
        },
        time::{TimeVal, TimeValLike},
    },
};

use crate::{
    Error,
    datagram::{Meaning, Object, messages},
    generic::append_message,
};

/// How long an answer may take. Requests wait for the kernel's one lock of all links, which
/// others may hold for seconds, for instance while a thousand links are deleted.
const ANSWER_WITHIN_S: i64 = 60;

/// The kernel sends no datagram of a listing that is longer than 32 KiB (netlink_dump in
/// net/netlink/af_netlink.c), unless one object alone is, such as a link with 64 KiB of other names. A
/// buffer that malloc maps by itself, from 128 KiB on, would cost a page fault for each page of each
/// socket.
const BUFFER_BYTES: usize = 64 * 1024;

/// A message that says nothing.
const NLMSG_NOOP: u16 = 1;

/// Requests in one send. Each acknowledgement waits in the socket's buffer until all have been
/// carried out, so there must be room for all.
const REQUESTS_PER_SEND: usize = 64;

/// A datagram up to this length passes the room that every kernel gives a socket.
const USUAL_SEND_ROOM: usize = 64 * 1024;

/// A listing that keeps changing while it is made is given up after so many attempts.
const DUMP_ATTEMPTS: u32 = 16;

/// A message to the kernel, of whatever family.
pub(crate) trait Outgoing {
    /// Appends the message's bytes to a datagram.
    fn append_to(&self, datagram: &mut Vec<u8>, flags: u16, sequence: u32);
}

pub(crate) struct KernelSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// A refusal, and the position of the request that it answers.
pub(crate) struct Refusal {
    pub(crate) position: usize,
    pub(crate) cause: RefusalCause,
}

pub(crate) enum RefusalCause {
    Kernel { errno: Errno, sentence: Option<String> },
    Answer(String),
}

impl RefusalCause {
    pub(crate) fn told_as(self, operation: String) -> Error {
        match self {
            Self::Kernel { errno, sentence } => Error::refused(operation, errno, sentence),
            Self::Answer(why) => Error::answer(operation, why),
        }
    }
}

impl From<io::Error> for RefusalCause {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw) {
            Some(Errno::EAGAIN) => Self::Answer(format!("no answer within {ANSWER_WITHIN_S} s")),
            Some(errno) => Self::Kernel { errno, sentence: None },
            None => Self::Answer(error.to_string()),
        }
    }
}

impl KernelSocket {
    /// Opens a socket of a protocol, such as `NETLINK_ROUTE`, in the calling thread's network
    /// namespace.
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // The kernel says in a sentence why it refuses.
        socket.set_ext_ack(true)?;
        // An acknowledgement does not repeat the request: many have to wait in the buffer.
        socket.set_cap_ack(true)?;
        // The kernel refuses what it does not know in a query. Otherwise it would ignore that, and list
        // what was not asked for.
        socket.set_netlink_get_strict_chk(true)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(ANSWER_WITHIN_S))?;
        let mut socket = Self { socket, sequence: 0, buffer: Vec::new() };
        socket.show_room()?;
        Ok(socket)
    }

    /// Has the kernel see how much is taken at once: until then an object of a listing has 4 KiB, and one that
    /// is longer can't be listed (netlink_dump in net/netlink/af_netlink.c). Nothing is asked, and that is
    /// acknowledged.
    fn show_room(&mut self) -> io::Result<()> {
        let mut datagram = Vec::new();
        append_message(&mut datagram, NLMSG_NOOP, NLM_F_REQUEST | NLM_F_ACK, self.sequence, &[]);
        self.socket.send(&datagram, 0)?;
        self.receive()
    }

    /// Sends requests, and waits until all have been answered.
    ///
    /// # Errors
    /// The first refusal. The requests after it have been carried out or refused, too, unless the
    /// socket failed.
    pub(crate) fn carry_out(&mut self, requests: &[impl Outgoing]) -> Result<(), Refusal> {
        let mut first_refusal = None;
        for (chunk, requests) in requests.chunks(REQUESTS_PER_SEND).enumerate() {
            let start = chunk * REQUESTS_PER_SEND;
            let refusal = self
                .carry_out_chunk(requests)
                .map_err(|error| Refusal { position: start, cause: error.into() })?;
            if let Some((position, cause)) = refusal {
                first_refusal.get_or_insert(Refusal { position: start + position, cause });
            }
        }
        first_refusal.map_or(Ok(()), Err)
    }

    /// Returns the first refusal with its position. An error means that the socket failed.
    fn carry_out_chunk(
        &mut self,
        requests: &[impl Outgoing],
    ) -> io::Result<Option<(usize, RefusalCause)>> {
        let base = self.sequence.wrapping_add(1);
        let mut datagram = Vec::new();
        for request in requests {
            self.sequence = self.sequence.wrapping_add(1);
            request.append_to(&mut datagram, NLM_F_REQUEST | NLM_F_ACK, self.sequence);
        }
        self.socket.send(&datagram, 0)?;

        let mut first_refusal = None;
        let mut unanswered = requests.len();
        while unanswered > 0 {
            self.receive()?;
            for (position, refusal) in answers(&self.buffer, base, requests.len()) {
                unanswered = unanswered.saturating_sub(1);
                first_refusal = first_refusal.or(refusal.map(|cause| (position, cause)));
            }
        }
        Ok(first_refusal)
    }

    /// Sends a transaction, the beginning and the end included, and waits until it was carried out.
    ///
    /// The kernel answers each refused message, and the last before the end because it is asked to. A
    /// transaction that it refuses as a whole it answers by the number of its beginning.
    ///
    /// # Errors
    /// The first refusal. Nothing has changed.
    pub(crate) fn transact(&mut self, messages: &[impl Outgoing]) -> Result<(), RefusalCause> {
        let (base, last) = (self.sequence.wrapping_add(1), messages.len().saturating_sub(2));
        let mut datagram = Vec::new();
        for (position, message) in messages.iter().enumerate() {
            self.sequence = self.sequence.wrapping_add(1);
            let flags = if position == last { NLM_F_REQUEST | NLM_F_ACK } else { NLM_F_REQUEST };
            message.append_to(&mut datagram, flags, self.sequence);
        }
        self.make_room_for(datagram.len());
        self.socket.send(&datagram, 0)?;
        loop {
            self.receive()?;
            for (position, refusal) in answers(&self.buffer, base, messages.len()) {
                match refusal {
                    Some(cause) => return Err(cause),
                    None if position == last => return Ok(()),
                    None => {}
                }
            }
        }
    }

    /// A datagram can't be sent in parts. Best effort: a kernel that gives no more room refuses what is
    /// too long.
    fn make_room_for(&self, length: usize) {
        if length > USUAL_SEND_ROOM {
            let room = 2 * length;
            let forced = setsockopt(&self.socket, SndBufForce, &room);
            let _ = forced.or_else(|_| setsockopt(&self.socket, SndBuf, &room));
        }
    }

    /// Asks for one object, and reads it. What can't be read is told with what is wrong.
    pub(crate) fn get<T>(
        &mut self,
        message: &impl Outgoing,
        read: impl FnOnce(Object<'_>) -> Result<T, String>,
    ) -> Result<T, RefusalCause> {
        let sequence = self.send_query(message, NLM_F_REQUEST)?;
        loop {
            self.receive()?;
            for message in messages(&self.buffer).filter(|message| message.sequence == sequence) {
                match message.meaning().map_err(RefusalCause::Answer)? {
                    Meaning::Object(object) => {
                        return read(object).map_err(RefusalCause::Answer);
                    }
                    Meaning::Refused { errno, sentence } => {
                        return Err(RefusalCause::Kernel { errno, sentence });
                    }
                    Meaning::Done => {
                        return Err(RefusalCause::Answer("an empty answer".to_owned()));
                    }
                    Meaning::Nothing => {}
                }
            }
        }
    }

    /// Asks for all objects of a kind, again if they changed meanwhile. Each is read as it comes:
    /// the kernel's description of a link is many times what anybody wants of it.
    pub(crate) fn list<T>(
        &mut self,
        message: &impl Outgoing,
        read: impl Fn(Object<'_>) -> Result<Option<T>, String>,
    ) -> Result<Vec<T>, RefusalCause> {
        for _ in 0..DUMP_ATTEMPTS {
            if let Some(objects) = self.list_once(message, &read)? {
                return Ok(objects);
            }
        }
        Err(RefusalCause::Answer("the listing changed each time while it was made".to_owned()))
    }

    /// `None`: the listing changed while it was made.
    fn list_once<T>(
        &mut self,
        message: &impl Outgoing,
        read: impl Fn(Object<'_>) -> Result<Option<T>, String>,
    ) -> Result<Option<Vec<T>>, RefusalCause> {
        let sequence = self.send_query(message, NLM_F_REQUEST | NLM_F_DUMP)?;
        let mut objects = Vec::new();
        let mut is_interrupted = false;
        loop {
            self.receive()?;
            for message in messages(&self.buffer).filter(|message| message.sequence == sequence) {
                is_interrupted |= message.is_interrupted;
                match message.meaning().map_err(RefusalCause::Answer)? {
                    Meaning::Object(object) => {
                        objects.extend(read(object).map_err(RefusalCause::Answer)?);
                    }
                    Meaning::Done => return Ok((!is_interrupted).then_some(objects)),
                    Meaning::Refused { errno, sentence } => {
                        return Err(RefusalCause::Kernel { errno, sentence });
                    }
                    Meaning::Nothing => {}
                }
            }
        }
    }

    fn send_query(&mut self, message: &impl Outgoing, flags: u16) -> io::Result<u32> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut datagram = Vec::new();
        message.append_to(&mut datagram, flags, self.sequence);
        self.socket.send(&datagram, 0)?;
        Ok(self.sequence)
    }

    /// Receives a datagram into the buffer.
    fn receive(&mut self) -> io::Result<()> {
        receive(&self.socket, &mut self.buffer)
    }
}

/// Receives a datagram, however long it is. Its length is asked for first: the kernel cuts off, without a
/// word, what a buffer has no room for.
pub(crate) fn receive(socket: &Socket, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut beginning = [0; 1];
    let peek = nix::libc::MSG_PEEK | nix::libc::MSG_TRUNC;
    let length = uninterrupted(|| socket.recv(&mut &mut beginning[..], peek))?;
    buffer.clear();
    buffer.reserve(length.max(BUFFER_BYTES));
    uninterrupted(|| socket.recv(buffer, 0)).map(drop)
}

fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            outcome => return outcome,
        }
    }
}

/// The answers in a datagram to the `count` requests from number `base` on: which of them it is,
/// and why it was refused if it was. An answer to an earlier request, given up since, is none.
fn answers(
    datagram: &[u8],
    base: u32,
    count: usize,
) -> impl Iterator<Item = (usize, Option<RefusalCause>)> {
    messages(datagram).filter_map(move |message| {
        let position = usize::try_from(message.sequence.wrapping_sub(base)).ok()?;
        let refusal = match message.meaning() {
            Ok(Meaning::Done) => None,
            Ok(Meaning::Refused { errno, sentence }) => {
                Some(RefusalCause::Kernel { errno, sentence })
            }
            Ok(Meaning::Object(_) | Meaning::Nothing) => return None,
            Err(why) => Some(RefusalCause::Answer(why)),
        };
        (position < count).then_some((position, refusal))
    })
}
