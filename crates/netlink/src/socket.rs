//! The netlink transport: one socket, one exchange at a time.
//!
//! Owns the sequence numbers, the receive buffer and the limits of a send. It takes no locks: `&mut self` keeps
//! exchanges apart. An answer to an exchange that was given up is skipped by its sequence number.

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
    datagram::{Meaning, Object, append_message, messages},
    error::RefusalCause,
};

/// Longest wait for an answer. A request waits for RTNL, which other processes can hold for seconds, for example while
/// the kernel deletes a thousand links.
const ANSWER_WITHIN_S: i64 = 60;

/// Size of the receive buffer.
///
/// The kernel sends dump datagrams of at most 32 KiB (`netlink_dump` in net/netlink/af_netlink.c), unless a single
/// object is longer, such as a link with 64 KiB of alternative names. malloc maps buffers from 128 KiB separately,
/// which costs a page fault for each page and socket.
const BUFFER_BYTES: usize = 64 * 1024;

const NLMSG_NOOP: u16 = 1;

/// Requests in one send. Their acknowledgements queue in the socket's receive buffer until the kernel has carried out
/// all of them, so the buffer must hold all.
const REQUESTS_PER_SEND: usize = 64;

/// Longest datagram that fits the default send buffer of any kernel.
const USUAL_SEND_ROOM: usize = 64 * 1024;

/// Attempts at a dump that the kernel reports as interrupted by a change.
const DUMP_ATTEMPTS: u32 = 16;

/// A message of any netlink family.
pub(crate) trait Outgoing {
    fn append_to(&self, datagram: &mut Vec<u8>, flags: u16, sequence: u32);
}

#[derive(Debug)]
pub(crate) struct KernelSocket {
    socket: Socket,
    sequence: u32,
    buffer: Vec<u8>,
}

/// The cause of a refusal and the position of the refused request.
pub(crate) struct Refusal {
    pub(crate) position: usize,
    pub(crate) cause: RefusalCause,
}

impl From<io::Error> for RefusalCause {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error().map(Errno::from_raw) {
            // EAGAIN is the expiry of SO_RCVTIMEO.
            Some(Errno::EAGAIN) => Self::Answer(format!("no answer within {ANSWER_WITHIN_S} s")),
            Some(errno) => Self::Kernel { errno, sentence: None },
            None => Self::Answer(error.to_string()),
        }
    }
}

impl KernelSocket {
    /// Opens a socket of a protocol, such as `NETLINK_ROUTE`, in the calling thread's namespace.
    pub(crate) fn open(protocol: isize) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // Extended acknowledgements: the kernel says in a sentence why it refuses.
        socket.set_ext_ack(true)?;
        // Capped acknowledgements do not repeat the request. Up to 64 of them queue in the buffer.
        socket.set_cap_ack(true)?;
        // Strict checking: the kernel refuses unknown fields of a query. Without it the kernel ignores them and lists
        // too much.
        socket.set_netlink_get_strict_chk(true)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::seconds(ANSWER_WITHIN_S))?;
        let mut socket = Self { socket, sequence: 0, buffer: Vec::new() };
        socket.show_room()?;
        Ok(socket)
    }

    /// Receives once into the large buffer before the first dump.
    ///
    /// The kernel sizes dump datagrams by the longest receive so far. Before the first one it allows 4 KiB, and a
    /// longer object fails the dump (`netlink_dump` in net/netlink/af_netlink.c). An acknowledged no-op provides that
    /// receive.
    fn show_room(&mut self) -> io::Result<()> {
        let mut datagram = Vec::new();
        append_message(&mut datagram, NLMSG_NOOP, NLM_F_REQUEST | NLM_F_ACK, self.sequence, &[]);
        self.socket.send(&datagram, 0)?;
        self.receive()
    }

    /// Sends requests and waits for all answers.
    ///
    /// # Errors
    /// The first refusal. The requests after it have been carried out or refused too, unless the socket failed.
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

    /// Sends a transaction, including its begin and end messages, and waits for the outcome.
    ///
    /// The kernel acknowledges only the message that asks for it, here the last before the end, and each refused
    /// message. It reports a refusal of the whole transaction with the sequence number of the begin message.
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

    /// Enlarges the send buffer, because a transaction must be one datagram. Best effort: if the kernel grants no more
    /// room, it refuses the datagram itself.
    fn make_room_for(&self, length: usize) {
        if length > USUAL_SEND_ROOM {
            let room = 2 * length;
            let forced = setsockopt(&self.socket, SndBufForce, &room);
            let _ = forced.or_else(|_| setsockopt(&self.socket, SndBuf, &room));
        }
    }

    /// Requests one object and reads it. A malformed answer is an error that says what is wrong.
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
                    Meaning::Refused(cause) => return Err(cause),
                    Meaning::Done => {
                        return Err(RefusalCause::Answer("an empty answer".to_owned()));
                    }
                    Meaning::Nothing => {}
                }
            }
        }
    }

    /// Lists all objects of a kind, and repeats the dump if a change interrupted it. Objects are read one by one,
    /// because the kernel's description of a link is many times larger than the result.
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

    /// Returns `None` if the kernel flagged the dump as interrupted (`NLM_F_DUMP_INTR`): it may lack objects.
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
                    Meaning::Refused(cause) => return Err(cause),
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

    fn receive(&mut self) -> io::Result<()> {
        receive(&self.socket, &mut self.buffer)
    }
}

/// Receives a datagram of any length. It peeks at the length first, because the kernel silently truncates a datagram
/// that exceeds the buffer.
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

/// Reads the answers to the `count` requests from sequence number `base` on: the request's position and its refusal, if
/// any. Answers to earlier, abandoned requests are skipped.
fn answers(
    datagram: &[u8],
    base: u32,
    count: usize,
) -> impl Iterator<Item = (usize, Option<RefusalCause>)> {
    messages(datagram).filter_map(move |message| {
        let position = usize::try_from(message.sequence.wrapping_sub(base)).ok()?;
        let refusal = match message.meaning() {
            Ok(Meaning::Done) => None,
            Ok(Meaning::Refused(cause)) => Some(cause),
            Ok(Meaning::Object(_) | Meaning::Nothing) => return None,
            Err(why) => Some(RefusalCause::Answer(why)),
        };
        (position < count).then_some((position, refusal))
    })
}
