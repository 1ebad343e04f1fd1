//! Taking apart what the kernel sends: messages, and the acknowledgements with their sentences.

use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_ALIGNTO, NLMSG_DONE, NLMSG_ERROR,
    NLMSG_NOOP, NetlinkBuffer, NlasIterator, ParseableParametrized,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

/// The length of a message's header.
const NETLINK_HEADER_LEN: usize = 16;

/// `NLMSGERR_ATTR_MSG`: the kernel's sentence.
const SENTENCE: u16 = 1;

/// One message of a datagram.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// The number of the request that it answers; 0 for an event.
    pub(crate) sequence: u32,
    /// The listing of which it is part changed while it was made.
    pub(crate) is_interrupted: bool,
    kind: u16,
    flags: u16,
    payload: &'a [u8],
}

/// What a message says.
#[derive(Debug)]
pub(crate) enum Meaning {
    /// A request was carried out, or a listing is complete.
    Done,
    /// A request was refused.
    Refused { errno: Errno, sentence: Option<String> },
    /// An object, or an event about one.
    Object(Box<RouteNetlinkMessage>),
    /// Nothing.
    Nothing,
}

/// The messages of a datagram. One that claims to be longer than the datagram ends them.
pub(crate) fn messages(datagram: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        let frame = NetlinkBuffer::new_checked(rest).ok()?;
        let length = usize::try_from(frame.length()).ok()?;
        let message = Message {
            sequence: frame.sequence_number(),
            is_interrupted: frame.flags() & NLM_F_DUMP_INTR != 0,
            kind: frame.message_type(),
            flags: frame.flags(),
            payload: rest.get(NETLINK_HEADER_LEN..length)?,
        };
        rest = rest.get(aligned(length)..).unwrap_or_default();
        Some(message)
    })
}

impl Message<'_> {
    /// Reads the message.
    ///
    /// # Errors
    /// When it is malformed; with what is wrong.
    pub(crate) fn meaning(&self) -> Result<Meaning, String> {
        match self.kind {
            NLMSG_NOOP => Ok(Meaning::Nothing),
            NLMSG_ERROR => self.outcome(self.sentence_of_acknowledgement()),
            NLMSG_DONE if self.payload.is_empty() => Ok(Meaning::Done),
            NLMSG_DONE => self.outcome(self.sentence_at(4)),
            kind => RouteNetlinkMessage::parse_with_param(self.payload, kind)
                .map(|object| Meaning::Object(Box::new(object)))
                .map_err(|error| error.to_string()),
        }
    }

    fn outcome(&self, sentence: Option<String>) -> Result<Meaning, String> {
        let code = self.payload.first_chunk().ok_or("an acknowledgement without a code")?;
        Ok(match i32::from_ne_bytes(*code) {
            0 => Meaning::Done,
            code => Meaning::Refused { errno: Errno::from_raw(code.saturating_neg()), sentence },
        })
    }

    /// An acknowledgement repeats the request, or only its header if capped, before what it says.
    fn sentence_of_acknowledgement(&self) -> Option<String> {
        let request = NetlinkBuffer::new_checked(self.payload.get(4..)?);
        let repeated = match request {
            Ok(request) if self.flags & NLM_F_CAPPED == 0 => {
                aligned(usize::try_from(request.length()).ok()?)
            }
            _ => NETLINK_HEADER_LEN,
        };
        self.sentence_at(repeated.checked_add(4)?)
    }

    fn sentence_at(&self, offset: usize) -> Option<String> {
        if self.flags & NLM_F_ACK_TLVS == 0 {
            return None;
        }
        let attributes = NlasIterator::new(self.payload.get(offset..)?);
        let sentence = attributes.flatten().find(|attribute| attribute.kind() == SENTENCE)?;
        let text = String::from_utf8_lossy(sentence.value()).trim_end_matches('\0').to_owned();
        (!text.is_empty()).then_some(text)
    }
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(usize::from(NLMSG_ALIGNTO))
}
