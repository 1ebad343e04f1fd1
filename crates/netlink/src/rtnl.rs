//! The kernel's interface to a network namespace: changes are carried out, links are looked up.
//!
//! What can be asked about addresses, routes and the like stands with these, as do the requests that
//! change them.

use std::{
    fmt,
    os::fd::{AsFd, AsRawFd},
};

use netlink_packet_core::DefaultNla;
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkExtentMask, LinkMessage},
    nsid::{NsidAttribute, NsidMessage},
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;

use crate::{
    Error, Link, LinkChange, Netns, Request,
    datagram::{Object, of_routing},
    socket::{KernelSocket, RefusalCause},
};

/// The kernel's interface to one network namespace: the one in which it was opened.
///
/// All methods wait for the kernel, which carries out changes of all links one at a time. None
/// fails for a reason of its own: an error is the kernel's refusal, or its silence for a minute.
pub struct Rtnl {
    socket: KernelSocket,
}

impl fmt::Debug for Rtnl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Rtnl").finish_non_exhaustive()
    }
}

impl Rtnl {
    /// Opens the interface to the calling thread's namespace.
    ///
    /// # Errors
    /// When the process may have no more open files.
    pub fn open() -> Result<Self, Error> {
        let socket = KernelSocket::open(NETLINK_ROUTE)
            .map_err(|error| Error::io("open a socket to the kernel's routing", &error))?;
        Ok(Self { socket })
    }

    /// Opens the interface to a namespace, which it keeps alive.
    ///
    /// # Errors
    /// When the process may have no more open files, or may not enter the namespace.
    pub fn open_in(netns: &Netns) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    /// Changes a link. See [`LinkChange`] for what a failure leaves.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn change_link(&mut self, index: u32, change: &LinkChange<'_>) -> Result<(), Error> {
        self.change(Request::change_link(index, change))
    }

    /// Carries out one request.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn change(&mut self, request: Request<'_>) -> Result<(), Error> {
        self.batch(&[request])
    }

    /// Carries out several requests in one send, in their order.
    ///
    /// # Errors
    /// The first refusal. The requests after it are carried out all the same, where they can be.
    pub fn batch(&mut self, requests: &[Request<'_>]) -> Result<(), Error> {
        let span = traces::step("netlink");
        let refusal = match span.in_scope(|| self.socket.carry_out(requests)) {
            Ok(()) => return Ok(()),
            Err(refusal) => refusal,
        };
        let operation = match requests.get(refusal.position) {
            Some(request) => self.operation_of(request),
            None => "carry out a request".to_owned(),
        };
        Err(refusal.cause.told_as(operation))
    }

    /// The text of a refused operation, with the name of its link.
    fn operation_of(&mut self, request: &Request<'_>) -> String {
        let link = request.link().and_then(|index| self.link_by_index(index).ok().flatten());
        request.operation(link.as_ref().map(|link| link.name.as_str()))
    }

    /// All links.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn links(&mut self) -> Result<Vec<Link>, Error> {
        let mut message = LinkMessage::default();
        message.attributes.push(brief());
        let listed = self.socket.list(&RouteNetlinkMessage::GetLink(message), Link::described_by);
        listed.map_err(|cause| cause.told_as("list the links".to_owned()))
    }

    /// The link of this name or alternative name.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn link_by_name(&mut self, name: &str) -> Result<Option<Link>, Error> {
        const IFLA_ALT_IFNAME: u16 = 53;
        let mut bytes = name.as_bytes().to_vec();
        bytes.push(0);
        let mut message = LinkMessage::default();
        // As an alternative name, so that it may be longer than a name; the kernel looks for both.
        let attribute = DefaultNla::new(IFLA_ALT_IFNAME, bytes);
        message.attributes.push(LinkAttribute::Other(attribute));
        self.link(message, || format!("look up the link {name}"))
    }

    /// The link of this index.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn link_by_index(&mut self, index: u32) -> Result<Option<Link>, Error> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.link(message, || format!("look up link {index}"))
    }

    /// The other end of a veth pair, in whatever namespace it is. The namespaces that the `peer`'s
    /// own indices refer to are numbered there.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn peer_of(&mut self, link: &Link) -> Result<Option<Link>, Error> {
        let Some(peer) = link.peer else { return Ok(None) };
        let mut message = LinkMessage::default();
        message.header.index = peer;
        message.attributes.extend(link.peer_netns.map(LinkAttribute::IfNetnsId));
        let found = self.link(message, || format!("look up the peer of link {}", link.name));
        match found {
            // The peer's namespace has ended.
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
            Err(cause) => Err(cause.told_as(operation())),
        }
    }

    /// What `other` is numbered in this namespace, where links in it are referred to by that.
    /// `None`: it has no number here, so that no link here refers to one there.
    ///
    /// # Errors
    /// The kernel's refusal.
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

    /// Asks for one object.
    pub(crate) fn get(
        &mut self,
        operation: impl FnOnce() -> String,
        message: &RouteNetlinkMessage,
    ) -> Result<RouteNetlinkMessage, Error> {
        self.socket.get(message, of_routing).map_err(|cause| cause.told_as(operation()))
    }

    /// Asks for all objects of a kind, and keeps what `read` makes of them.
    pub(crate) fn list<T>(
        &mut self,
        operation: &str,
        message: &RouteNetlinkMessage,
        read: impl Fn(RouteNetlinkMessage) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let read = |object: Object<'_>| of_routing(object).map(&read);
        self.socket.list(message, read).map_err(|cause| cause.told_as(operation.to_owned()))
    }
}

/// Asks for a link's description without its counters.
fn brief() -> LinkAttribute {
    LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats])
}
