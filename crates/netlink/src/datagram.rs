//! Datagrams to and from the kernel: messages, and acknowledgements with their extended sentences.

use netlink_packet_core::{
    NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP_INTR, NLMSG_ALIGNTO, NLMSG_DONE, NLMSG_ERROR,
    NLMSG_NOOP, NetlinkBuffer, NlaBuffer, NlasIterator, ParseableParametrized,
};
use netlink_packet_route::RouteNetlinkMessage;
use nix::errno::Errno;

use crate::error::RefusalCause;

#[cfg(test)]
pub(crate) mod fuzz;

const NETLINK_HEADER_LEN: usize = 16;

/// `NLMSGERR_ATTR_MSG`: the sentence of an extended acknowledgement.
const SENTENCE: u16 = 1;

/// One message of a datagram.
#[derive(Debug)]
pub(crate) struct Message<'a> {
    /// Sequence number of the request that the message answers. 0 for an event.
    pub(crate) sequence: u32,
    /// `NLM_F_DUMP_INTR`: the listed objects changed during the dump.
    pub(crate) is_interrupted: bool,
    kind: u16,
    flags: u16,
    payload: &'a [u8],
}

/// The content of a message.
#[derive(Debug)]
pub(crate) enum Meaning<'a> {
    /// The request was carried out, or the dump is complete.
    Done,
    /// The request was refused.
    Refused(RefusalCause),
    /// An object, or an event about one.
    Object(Object<'a>),
    /// No content (`NLMSG_NOOP`).
    Nothing,
}

/// An undecoded object of a netlink family.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object<'a> {
    /// Message type.
    pub(crate) kind: u16,
    /// The bytes after the message's header.
    pub(crate) payload: &'a [u8],
}

/// Decodes an object of rtnetlink.
///
/// # Errors
/// If the object is malformed; says what is wrong.
pub(crate) fn of_routing(object: Object<'_>) -> Result<RouteNetlinkMessage, String> {
    let Object { kind, payload } = object;
    RouteNetlinkMessage::parse_with_param(payload, kind).map_err(|error| error.to_string())
}

/// Splits a datagram into messages. A message whose length exceeds the datagram ends the iteration.
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

impl<'a> Message<'a> {
    /// Interprets the message.
    ///
    /// # Errors
    /// If an acknowledgement is malformed; says what is wrong.
    pub(crate) fn meaning(&self) -> Result<Meaning<'a>, String> {
        match self.kind {
            NLMSG_NOOP => Ok(Meaning::Nothing),
            NLMSG_ERROR => self.outcome(self.sentence_of_acknowledgement()),
            NLMSG_DONE if self.payload.is_empty() => Ok(Meaning::Done),
            NLMSG_DONE => self.outcome(self.sentence_at(4)),
            kind => Ok(Meaning::Object(Object { kind, payload: self.payload })),
        }
    }

    fn outcome(&self, sentence: Option<String>) -> Result<Meaning<'a>, String> {
        let code = self.payload.first_chunk().ok_or("an acknowledgement without a code")?;
        Ok(match i32::from_ne_bytes(*code) {
            0 => Meaning::Done,
            code => {
                let errno = Errno::from_raw(code.saturating_neg());
                Meaning::Refused(RefusalCause::Kernel { errno, sentence })
            }
        })
    }

    /// The attributes of an acknowledgement follow the repeated request, or only its header if `NLM_F_CAPPED` is set.
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

/// Iterates over attributes. A malformed one ends the iteration.
pub(crate) fn attributes_in(bytes: &[u8]) -> impl Iterator<Item = NlaBuffer<&[u8]>> {
    NlasIterator::new(bytes).map_while(Result::ok)
}

/// A set of attribute types below 128. A bit set, because it is queried for each attribute of hundreds of links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Kinds(u128);

impl Kinds {
    /// Unites the lists. All types must be below 128.
    pub(crate) const fn of(lists: &[&[u16]]) -> Self {
        let (mut kinds, mut list) = (0, 0);
        while list < lists.len() {
            let mut place = 0;
            while place < lists[list].len() {
                kinds |= 1 << lists[list][place];
                place += 1;
            }
            list += 1;
        }
        Self(kinds)
    }

    pub(crate) const fn contains(self, kind: u16) -> bool {
        kind < 128 && self.0 & (1 << kind) != 0
    }
}

/// Appends an attribute unchanged, with padding.
pub(crate) fn append(attributes: &mut Vec<u8>, attribute: &NlaBuffer<&[u8]>) {
    let whole = attribute.into_inner();
    attributes.extend_from_slice(&whole[..usize::from(attribute.length())]);
    attributes.resize(aligned(attributes.len()), 0);
}

fn aligned(length: usize) -> usize {
    length.next_multiple_of(usize::from(NLMSG_ALIGNTO))
}

/// Appends a message with its header to a datagram.
pub(crate) fn append_message(
    datagram: &mut Vec<u8>,
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &[u8],
) {
    const PORT: [u8; 4] = [0; 4];
    let length = NETLINK_HEADER_LEN + payload.len();
    // Messages of this crate are far below 4 GiB, so the fallback is never used.
    datagram.extend(u32::try_from(length).unwrap_or(u32::MAX).to_ne_bytes());
    datagram.extend(kind.to_ne_bytes());
    datagram.extend(flags.to_ne_bytes());
    datagram.extend(sequence.to_ne_bytes());
    datagram.extend(PORT);
    datagram.extend(payload);
    datagram.resize(datagram.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A message as the kernel lays it out.
    fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(NETLINK_HEADER_LEN + payload.len()).unwrap();
        let mut bytes = length.to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(flags.to_ne_bytes());
        bytes.extend(7_u32.to_ne_bytes());
        bytes.extend([0; 4]);
        bytes.extend(payload);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(4 + value.len()).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(value);
        bytes.resize(aligned(bytes.len()), 0);
        bytes
    }

    fn refused(datagram: &[u8]) -> (Errno, Option<String>) {
        match messages(datagram).next().unwrap().meaning().unwrap() {
            Meaning::Refused(RefusalCause::Kernel { errno, sentence }) => (errno, sentence),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn sentence_follows_whole_or_capped_request() {
        let request = message(16, 5, &[9; 13]);
        let attributes = [attribute(2, &[1, 2, 3, 4]), attribute(SENTENCE, b"not so\0")].concat();
        let code = (-22_i32).to_ne_bytes();
        let whole = [&code[..], &request, &attributes].concat();
        let whole = message(NLMSG_ERROR, NLM_F_ACK_TLVS, &whole);
        assert_eq!(refused(&whole), (Errno::EINVAL, Some("not so".to_owned())));
        let capped = [&code[..], &request[..NETLINK_HEADER_LEN], &attributes].concat();
        let capped = message(NLMSG_ERROR, NLM_F_ACK_TLVS | NLM_F_CAPPED, &capped);
        assert_eq!(refused(&capped), (Errno::EINVAL, Some("not so".to_owned())));
        let done = message(NLMSG_DONE, NLM_F_ACK_TLVS, &[&code[..], &attributes].concat());
        assert_eq!(refused(&done), (Errno::EINVAL, Some("not so".to_owned())));
    }

    #[test]
    fn no_sentence_without_its_flag() {
        let request = message(16, 5, &[9; 13]);
        let refusal = [&(-17_i32).to_ne_bytes()[..], &request].concat();
        assert_eq!(refused(&message(NLMSG_ERROR, 0, &refusal)), (Errno::EEXIST, None));
    }

    #[test]
    fn datagram_splits_into_messages() {
        let acknowledgement = [&[0; 4][..], &message(16, 5, &[])].concat();
        let one = message(NLMSG_ERROR, NLM_F_CAPPED, &acknowledgement);
        let datagram = [message(NLMSG_NOOP, 0, &[1]), one, message(NLMSG_DONE, 0, &[])].concat();
        let meanings: Vec<_> = messages(&datagram).map(|m| m.meaning().unwrap()).collect();
        assert!(
            matches!(meanings[..], [Meaning::Nothing, Meaning::Done, Meaning::Done]),
            "{meanings:?}"
        );
    }

    #[test]
    fn garbled_messages_cause_no_panic() {
        let refusal = [&(-22_i32).to_ne_bytes()[..], &message(16, 5, &[9; 13])].concat();
        let whole = [
            message(NLMSG_ERROR, NLM_F_ACK_TLVS, &refusal),
            message(16, 0, &[0; 40]),
            message(NLMSG_DONE, NLM_F_ACK_TLVS, &[1, 2]),
        ]
        .concat();
        for end in 0..whole.len() {
            for position in 0..end {
                let mut datagram = whole[..end].to_vec();
                datagram[position] ^= 0xff;
                for message in messages(&datagram) {
                    if let Ok(Meaning::Object(object)) = message.meaning() {
                        drop(of_routing(object));
                    }
                }
            }
        }
    }
}
