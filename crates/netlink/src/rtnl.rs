//! The rtnetlink interface of a network namespace: sends changes and looks up links.
//!
//! Queries for addresses, routes, rules and neighbours are in the modules of those objects.

use std::os::fd::{AsFd, AsRawFd};

use netlink_packet_core::DefaultNla;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkExtentMask, LinkMessage},
    nsid::{NsidAttribute, NsidMessage},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;

use crate::{
    datagram::{Object, of_routing},
    error::{Error, RefusalCause},
    link::Link,
    link_change::{LinkChange, message_about},
    netns::Netns,
    request::Request,
    socket::KernelSocket,
};

/// The rtnetlink interface of the network namespace in which it was opened.
///
/// All methods block until the kernel answers. The kernel serialises changes of links under RTNL. Methods fail only if
/// the kernel refuses, or does not answer within a minute.
#[derive(Debug)]
pub struct Rtnl {
    socket: KernelSocket,
}

impl Rtnl {
    /// Opens the interface in the calling thread's namespace.
    ///
    /// # Errors
    /// If the process has no free file descriptor.
    pub fn open() -> Result<Self, Error> {
        let socket = KernelSocket::open(NETLINK_ROUTE)
            .map_err(|error| Error::io("open a socket to the kernel's routing", &error))?;
        Ok(Self { socket })
    }

    /// Opens the interface in a namespace. Its socket keeps the namespace alive.
    ///
    /// # Errors
    /// If the process has no free file descriptor, or may not enter the namespace.
    pub fn open_in(netns: &Netns) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    /// Changes a link. [`LinkChange`] describes what remains after a failure.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn change_link(&mut self, index: u32, change: &LinkChange<'_>) -> Result<(), Error> {
        self.change(Request::change_link(index, change))
    }

    /// Sends one request and waits for the answer.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn change(&mut self, request: Request<'_>) -> Result<(), Error> {
        self.batch(&[request])
    }

    /// Sends several requests in one datagram. The kernel carries them out in order.
    ///
    /// # Errors
    /// The first refusal. The kernel still carries out the requests after it where possible.
    pub fn batch(&mut self, requests: &[Request<'_>]) -> Result<(), Error> {
        let span = traces::step("netlink");
        let Err(refusal) = span.in_scope(|| self.socket.carry_out(requests)) else { return Ok(()) };
        let operation = match requests.get(refusal.position) {
            Some(request) => self.operation_of(request),
            None => "carry out a request".to_owned(),
        };
        Err(refusal.cause.into_error(operation))
    }

    /// The text of a refused operation, with the link's name.
    fn operation_of(&mut self, request: &Request<'_>) -> String {
        let link = request.link().and_then(|index| self.link_by_index(index).ok().flatten());
        request.operation(link.as_ref().map(|link| link.name.as_str()))
    }

    /// Lists all links.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(brief());
        let listed = self.socket.list(&RouteNetlinkMessage::GetLink(message), Link::described_by);
        listed.map_err(|cause| cause.into_error("list the links"))
    }

    /// Looks up a link by name or alternative name.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, Error> {
        const IFLA_ALT_IFNAME: u16 = 53;
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        let mut message = LinkMessage::default();
        // IFLA_ALT_IFNAME takes names longer than 15 bytes, and the kernel searches both kinds of names.
        let attribute = DefaultNla::new(IFLA_ALT_IFNAME, bytes);
        message.attributes.push(LinkAttribute::Other(attribute));
        self.link(message, || format!("look up the link {name}"))
    }

    /// Looks up a link by index.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, Error> {
        self.link(message_about(index), || format!("look up link {index}"))
    }

    /// Looks up the other end of a veth pair, in whatever namespace it is. Namespace IDs in the result are those of
    /// that namespace.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn peer_of(&mut self, link: &Link) -> Result<Option<Link>, Error> {
        let Some(peer) = link.peer else { return Ok(None) };
        let mut message = message_about(peer);
        message.attributes.extend(link.peer_netns.map(LinkAttribute::IfNetnsId));
        let found = self.link(message, || format!("look up the peer of link {}", link.name));
        match found {
            // The kernel refuses a namespace ID that is no longer valid with EINVAL: the peer's namespace has ended.
            Err(error) if error.errno() == Some(Errno::EINVAL) => Ok(None),
            found => found,
        }
    }

    fn link(
        &mut self,
        mut message: LinkMessage,
        operation: impl FnOnce() -> String,
    ) -> Result<Option<Link>, Error> {
        message.attributes.push(brief());
        match self.socket.get(&RouteNetlinkMessage::GetLink(message), Link::described_by) {
            Ok(Some(link)) => Ok(Some(link)),
            Ok(None) => Err(Error::answer(operation(), "an answer about something else")),
            Err(RefusalCause::Kernel { errno: Errno::ENODEV, .. }) => Ok(None),
            Err(cause) => Err(cause.into_error(operation())),
        }
    }

    /// The ID that this namespace has for `other`. `None`: it has none, so no link here refers to a link there.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn number_of(&mut self, other: &Netns) -> Result<Option<i32>, Error> {
        let mut message = NsidMessage::default();
        let descriptor = u32::try_from(other.as_fd().as_raw_fd()).unwrap_or(u32::MAX);
        message.attributes.push(NsidAttribute::Fd(descriptor));
        let operation = || format!("number the namespace {}", other.id());
        let answer = self.get(operation, &RouteNetlinkMessage::GetNsId(message))?;
        let RouteNetlinkMessage::NewNsId(answer) = answer else { return Ok(None) };
        Ok(answer.attributes.iter().find_map(|attribute| match attribute {
            NsidAttribute::Id(id) if *id >= 0 => Some(*id),
            _ => None,
        }))
    }

    pub(crate) fn get(
        &mut self,
        operation: impl FnOnce() -> String,
        message: &RouteNetlinkMessage,
    ) -> Result<RouteNetlinkMessage, Error> {
        self.socket.get(message, of_routing).map_err(|cause| cause.into_error(operation()))
    }

    /// Lists all objects of a kind and collects what `read` returns for them.
    pub(crate) fn list<T>(
        &mut self,
        operation: &str,
        message: &RouteNetlinkMessage,
        read: impl Fn(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let read = |object: Object<'_>| of_routing(object).map(&read);
        self.socket.list(message, read).map_err(|cause| cause.into_error(operation))
    }
}

/// Omits the counters: they are a large part of a link's description.
fn brief() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}
