//! What is under way between a host and its DPU.
//!
//! The messages of one session stay in order. Calls may overtake those messages and each other, also on
//! one connection: each is served by a task of its own. One order is simplified: a Detach without an id
//! ends nothing that its host has asked for since, and so it is served before that Attach here. What it tells
//! of a VF comes to the same then: if the Attach has got that one, it tells nothing of it.

use crate::names::{AttachmentId, BootId, HostTime, Key, Promise, Record, SessionId, Vf};

/// What is under way between one host and the DPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wire {
    /// Calls that the service has not taken up yet.
    pub requests: Vec<Request>,
    /// Answers that the agent has not heard yet.
    pub answers: Vec<(Key, Answer)>,
    /// The streams of sessions.
    pub streams: Vec<Stream>,
}

/// A unary call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// Whose attachment it is about.
    pub key: Key,
    /// The session on whose connection it was made.
    pub connection: SessionId,
    /// What is asked.
    pub call: Call,
    /// Somebody still waits for the answer.
    pub is_awaited: bool,
}

/// What the host asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// `AttachRequest`.
    Attach {
        /// For whom.
        key: Key,
        /// The session in force, as the host believes.
        session: SessionId,
        /// `as_of_ns`: when the host asked.
        as_of: HostTime,
        /// `promised_device` and `promise_number`: that VF, or none.
        promised: Option<Promise>,
    },
    /// `DetachRequest`.
    Detach(Detach),
}

/// `DetachRequest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Detach {
    /// Whose attachment.
    pub key: Key,
    /// This one only.
    pub id: Option<AttachmentId>,
    /// `vf_returned`: the VF is home and clean.
    pub returned: bool,
    /// `returned_device`: likewise this VF, whichever attachment it is of, if of any.
    pub returned_vf: Option<Vf>,
    /// `as_of_ns`: when that was so.
    pub as_of: HostTime,
}

/// What the DPU answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// `AttachResponse`.
    Attached(Record),
    /// Refused as `StaleSession`.
    Stale,
    /// Refused as `Releasing`: an earlier attachment of the key is being given back.
    Releasing,
    /// Refused as `VfNotFree`: the VF that was named as promised can't be had.
    NotFree,
    /// Refused as `VfsPromised`: all that are free are promised.
    Promised,
    /// Any other refusal.
    Refused,
    /// `DetachResponse`.
    Detached,
}

/// The stream of a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// Its session.
    pub session: SessionId,
    /// From the host, in order.
    pub up: Vec<HostMessage>,
    /// From the DPU, in order.
    pub down: Vec<DpuMessage>,
    /// The agent has not given it up. What it sent before may arrive all the same.
    pub agent_listens: bool,
    /// The service has ended it, as for a newer session.
    pub is_ended: bool,
}

/// From the host's agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostMessage {
    /// The first message.
    Hello(Hello),
    /// The pod has the VF.
    Attached(AttachmentId),
    /// What the host has now.
    Inventory(Inventory),
    /// It has taken that VF for nothing, and has it at home.
    Untaken(Promise),
}

/// From the DPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DpuMessage {
    /// The first message.
    Welcome,
    /// One of those in a message of that name.
    Promises(Promise),
    /// Give it back.
    Release(Key, AttachmentId),
}

/// The host's first words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// The host kernel's boot.
    pub boot_id: BootId,
    /// What it has.
    pub inventory: Inventory,
    /// The attachments that it keeps, and whether their pods have them.
    pub live: Vec<(AttachmentId, bool)>,
    /// The keys of attaches under way.
    pub pending: Vec<Key>,
}

/// How a host's VFs are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inventory {
    /// When the host looked.
    pub as_of: HostTime,
    /// Each VF of the host.
    pub conditions: Vec<(Vf, VfCondition)>,
}

/// How a VF is on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VfCondition {
    /// At home, with its own name, and in no record.
    Clean,
    /// In a record of the agent's.
    InUse,
    /// Nowhere, or not restored yet.
    Missing,
}

/// What becomes of what is under way when a connection or a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InFlight {
    /// It is lost.
    Lost,
    /// It arrives later.
    Late,
}

impl Call {
    /// Whose call it is.
    #[must_use]
    pub fn key(&self) -> Key {
        match self {
            Self::Attach { key, .. } | Self::Detach(Detach { key, .. }) => *key,
        }
    }
}

impl Wire {
    /// Sends a call.
    pub fn ask(&mut self, connection: SessionId, call: Call) {
        self.requests.push(Request { key: call.key(), connection, call, is_awaited: true });
        self.requests.sort_unstable();
    }

    /// Whether an Attach is under way that names a promised VF.
    #[must_use]
    pub fn has_promised(&self) -> bool {
        let names_one =
            |request: &Request| matches!(request.call, Call::Attach { promised: Some(_), .. });
        self.requests.iter().any(names_one)
    }

    /// What is named as promised can't be had.
    pub fn thwart_promised(&mut self) {
        for request in &mut self.requests {
            if let Call::Attach { promised: Some(promise), .. } = &mut request.call {
                promise.number = 0;
            }
        }
        self.requests.sort_unstable();
    }

    /// Whether an Attach waits behind a Detach of its key that was made earlier on the same connection.
    #[must_use]
    pub fn waits_behind_detach(&self, attach: &Request) -> bool {
        let Call::Attach { as_of, .. } = attach.call else { return false };
        let is_of_it =
            |other: &&Request| (other.key, other.connection) == (attach.key, attach.connection);
        let is_earlier = |other: &Request| matches!(other.call, Call::Detach(Detach { as_of: earlier, .. }) if earlier < as_of);
        self.requests.iter().filter(is_of_it).any(is_earlier)
    }

    /// Sends an answer.
    pub fn answer(&mut self, key: Key, answer: Answer) {
        self.answers.push((key, answer));
        self.answers.sort_unstable();
    }

    /// Takes the answer to a key's call.
    pub fn take_answer(&mut self, key: Key) -> Option<Answer> {
        let place = self.answers.iter().position(|(of, _)| *of == key)?;
        Some(self.answers.remove(place).1)
    }

    /// The caller no longer waits for the answer to a key's call.
    pub fn abandon(&mut self, key: Key, in_flight: InFlight) {
        self.answers.retain(|(of, _)| *of != key);
        let is_meant = |request: &Request| request.is_awaited && request.key == key;
        if in_flight == InFlight::Lost {
            self.requests.retain(|request| !is_meant(request));
        }
        for request in self.requests.iter_mut().filter(|request| is_meant(request)) {
            request.is_awaited = false;
        }
    }

    /// The agent gives a session up.
    pub fn hang_up(&mut self, in_flight: InFlight) {
        for stream in &mut self.streams {
            stream.agent_listens = false;
            stream.down.clear();
            if in_flight == InFlight::Lost {
                stream.up.clear();
            }
        }
    }

    /// The stream of a session.
    pub fn stream_mut(&mut self, session: SessionId) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|stream| stream.session == session)
    }
}
