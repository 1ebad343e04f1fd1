//! Calls and messages in flight between a host and its DPU.
//!
//! The messages of one session stay in order. Calls may overtake messages and each other, also on one connection,
//! because each is served by a task of its own. One order is simplified: a Detach without an id ends no later
//! Attach of its host, so the model serves it before that Attach. Its report about a VF has the same effect then:
//! if the Attach has got that VF, the report is ignored.

use crate::names::{AttachmentId, BootId, HostTime, Key, Offer, Record, SessionId, Vf};

/// What is in flight between one host and the DPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Wire {
    /// Calls that the service has not started yet.
    pub requests: Vec<Request>,
    /// Answers that the agent has not received yet.
    pub answers: Vec<(Key, Answer)>,
    /// The sessions' streams.
    pub streams: Vec<Stream>,
}

/// A unary call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Request {
    /// The key of its attachment.
    pub key: Key,
    /// The session whose connection carries it.
    pub connection: SessionId,
    /// The call.
    pub call: Call,
    /// Whether a caller waits for the answer.
    pub is_awaited: bool,
}

/// A call of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Call {
    /// `AttachRequest`.
    Attach {
        /// The key.
        key: Key,
        /// The current session, as the host believes.
        session: SessionId,
        /// `as_of_ns`: the time of the call.
        as_of: HostTime,
        /// `AttachRequest.offered`: this VF or none.
        offered: Option<Offer>,
    },
    /// `DetachRequest`.
    Detach(Detach),
}

/// `DetachRequest`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Detach {
    /// The key.
    pub key: Key,
    /// The attachment, if only one is meant.
    pub id: Option<AttachmentId>,
    /// `vf_returned`: the VF is home and clean.
    pub returned: bool,
    /// `returned_device`: this VF is home and clean, whichever attachment it has.
    pub returned_vf: Option<Vf>,
    /// `as_of_ns`: the time of that observation.
    pub as_of: HostTime,
}

/// An answer of the DPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Answer {
    /// `AttachResponse`.
    Attached(Record),
    /// Refused as `StaleSession`.
    Stale,
    /// Refused as `Releasing`: an earlier attachment of the key is being released.
    Releasing,
    /// Refused as `VfNotFree`: the offered VF that was named is not available.
    NotFree,
    /// Refused as `VfsOffered`: all free VFs are offered.
    Offered,
    /// Any other refusal.
    Refused,
    /// `DetachResponse`.
    Detached,
}

/// A session's stream.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stream {
    /// The session.
    pub session: SessionId,
    /// Messages from the host, in order.
    pub up: Vec<HostMessage>,
    /// Messages from the DPU, in order.
    pub down: Vec<DpuMessage>,
    /// Whether the agent still reads it. Messages sent before may still arrive.
    pub agent_listens: bool,
    /// Whether the service has ended it, as for a newer session.
    pub is_ended: bool,
}

/// A message of the host's agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum HostMessage {
    /// The first message.
    Hello(Hello),
    /// The VF is in the pod.
    Attached(AttachmentId),
    /// The host's current VFs.
    Inventory(Inventory),
    /// The agent declines this offer; the VF is at home.
    Declined(Offer),
}

/// A message of the DPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DpuMessage {
    /// The first message.
    HelloReply,
    /// One offer of a message with several.
    Offers(Offer),
    /// Asks the host to release the attachment.
    Release(Key, AttachmentId),
}

/// The first message of a host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hello {
    /// The host kernel's boot.
    pub boot_id: BootId,
    /// The host's VFs.
    pub inventory: Inventory,
    /// The attachments that it keeps, and whether their VFs are in the pods.
    pub live: Vec<(AttachmentId, bool)>,
    /// The keys of attaches in progress.
    pub pending: Vec<Key>,
}

/// The state of a host's VFs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Inventory {
    /// The time of the observation.
    pub as_of: HostTime,
    /// The state of each VF.
    pub conditions: Vec<(Vf, VfCondition)>,
}

/// The state of a VF on its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VfCondition {
    /// At home, with its own name, and in no record.
    Clean,
    /// In a record of the agent.
    InUse,
    /// Unreachable, or not restored yet.
    Missing,
}

/// What happens to calls and messages in flight when a connection or a program ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InFlight {
    /// It is lost.
    Lost,
    /// It arrives later.
    Late,
}

impl Call {
    /// The key of the call.
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

    /// Whether an Attach that names an offer is in flight.
    #[must_use]
    pub fn has_offer_named(&self) -> bool {
        let names_one =
            |request: &Request| matches!(request.call, Call::Attach { offered: Some(_), .. });
        self.requests.iter().any(names_one)
    }

    /// Makes all named offers invalid.
    pub fn invalidate_offers(&mut self) {
        for request in &mut self.requests {
            if let Call::Attach { offered: Some(offer), .. } = &mut request.call {
                offer.number = 0;
            }
        }
        self.requests.sort_unstable();
    }

    /// Whether an Attach waits behind an earlier Detach of its key on the same connection.
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

    /// The agent abandons a session.
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
