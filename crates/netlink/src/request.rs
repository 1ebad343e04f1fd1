//! A request to the kernel, sent alone or in a batch.

use std::marker::PhantomData;

use netlink_packet_core::{
    Emitable, NLM_F_APPEND, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;

use crate::{netns::Netns, socket::Outgoing};

/// Placeholder for the link's name in the text of an operation.
pub(crate) const LINK: &str = "{link}";

/// A change request to the kernel. [`Rtnl::change`](crate::Rtnl::change) sends one, [`Rtnl::batch`](crate::Rtnl::batch)
/// several.
///
/// `'a` is the lifetime of the namespace that the request may refer to: the message holds its descriptor as a number.
#[derive(Clone, Debug)]
pub struct Request<'a> {
    /// The operation for error messages: `set MTU 9000 of {link}`.
    operation: String,
    /// The link that error messages show by name.
    link: Option<u32>,
    message: RouteNetlinkMessage,
    existing: Existing,
    netns: PhantomData<&'a Netns>,
}

/// How the kernel treats an existing object.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Existing {
    /// The object must exist.
    Required,
    /// An existing object is an error (`NLM_F_EXCL`).
    Refused,
    /// The new object is added after existing ones (`NLM_F_APPEND`).
    Kept,
    /// An existing object is replaced (`NLM_F_REPLACE`).
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
