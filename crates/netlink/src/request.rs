//! One request to the kernel, ready to be sent alone or with others.

use std::marker::PhantomData;

use netlink_packet_core::{
    Emitable, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;

use crate::{Netns, socket::Outgoing};

/// Where the name of the link goes in the text of an operation.
pub(crate) const LINK: &str = "{link}";

/// A change that the kernel is asked for: carried out alone by [`Rtnl::change`](crate::Rtnl::change),
/// or with others by [`Rtnl::batch`](crate::Rtnl::batch).
///
/// `'a` is the life of the namespace that a request may refer to.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// What is asked, for the error: `set MTU 9000 of {link}`.
    operation: String,
    /// The link in question, to be shown by name.
    link: Option<u32>,
    message: RouteNetlinkMessage,
    existing: Existing,
    netns: PhantomData<&'a Netns>,
}

/// What may be there already.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Existing {
    /// The request is about what is there.
    Required,
    /// Refused if there.
    Refused,
    /// Comes after what is there.
    Kept,
    /// Overwritten if there.
    Replaced,
}

impl Request<'_> {
    pub(crate) fn new(
        operation: impl Into<String>,
        link: Option<u32>,
        message: RouteNetlinkMessage,
        existing: Existing,
    ) -> Self {
        Self { operation: operation.into(), link, message, existing, netns: PhantomData }
    }

    pub(crate) fn link(&self) -> Option<u32> {
        self.link
    }

    /// The text of the operation with the link by `name`, if known, and by index.
    pub(crate) fn operation(&self, name: Option<&str>) -> String {
        let link = match (self.link, name) {
            (Some(index), Some(name)) => format!("link {name} ({index})"),
            (Some(index), None) => format!("link {index}"),
            (None, _) => return self.operation.clone(),
        };
        self.operation.replace(LINK, &link)
    }
}

impl Existing {
    fn flags(self) -> u16 {
        match self {
            Self::Required => 0,
            Self::Refused => NLM_F_CREATE | NLM_F_EXCL,
            Self::Kept => NLM_F_CREATE | NLM_F_APPEND,
            Self::Replaced => NLM_F_CREATE | NLM_F_REPLACE,
        }
    }
}

impl Outgoing for Request<'_> {
    fn append_to(&self, datagram: &mut Vec<u8>, flags: u16, sequence: u32) {
        self.message.append_to(datagram, flags | self.existing.flags(), sequence);
    }
}

impl Outgoing for RouteNetlinkMessage {
    fn append_to(&self, datagram: &mut Vec<u8>, flags: u16, sequence: u32) {
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = sequence;
        let payload = NetlinkPayload::InnerMessage(self.clone());
        let mut message = NetlinkMessage::new(header, payload);
        message.finalize();
        let start = datagram.len();
        datagram.resize(start + message.buffer_len(), 0);
        message.emit(&mut datagram[start..]);
    }
}
