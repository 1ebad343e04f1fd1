//! The kernel's interface to links, addresses, routes and queues.

use std::{
    collections::BTreeMap,
    fmt,
    os::fd::{AsFd, AsRawFd},
};

use ipnetwork::IpNetwork;
use netlink_packet_core::DefaultNla;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    address::AddressMessage,
    link::{LinkAttribute, LinkExtentMask, LinkMessage},
    nsid::{NsidAttribute, NsidMessage},
    route::RouteMessage,
    rule::RuleMessage,
};
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::errno::Errno;

use crate::{
    BridgeVlan, Error, FdbEntry, FrameFilter, Limit, LimitInForce, Link, LinkChange, Netns,
    Redirect, Request, Route, Rule, VfSettings, address, bridge,
    datagram::{Object, of_routing},
    fdb, frame_filter, limit, route, rule,
    socket::{KernelSocket, RefusalCause},
    vf,
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

/// What a method that changes something fails with: the kernel's refusal.
type Outcome = Result<(), Error>;

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

    /// Carries out several requests in one send, in their order.
    ///
    /// # Errors
    /// The first refusal. The requests after it are carried out all the same, where they can be.
    pub fn batch(&mut self, requests: &[Request<'_>]) -> Result<(), Error> {
        let refusal = match self.socket.carry_out(requests) {
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

    /// Carries out one request.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn change(&mut self, request: Request<'_>) -> Outcome {
        self.batch(&[request])
    }

    // --- Links

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
        let told =
            |cause: RefusalCause| cause.told_as(format!("number the namespace {}", other.id()));
        let mut message = NsidMessage::default();
        let descriptor = u32::try_from(other.as_fd().as_raw_fd()).unwrap_or(u32::MAX);
        message.attributes.push(NsidAttribute::Fd(descriptor));
        let answer = self.socket.get(&RouteNetlinkMessage::GetNsId(message), of_routing);
        let RouteNetlinkMessage::NewNsId(answer) = answer.map_err(told)? else { return Ok(None) };
        Ok(answer.attributes.iter().find_map(|attribute| match attribute {
            NsidAttribute::Id(id) if *id >= 0 => Some(*id),
            _ => None,
        }))
    }

    /// Changes a link. See [`LinkChange`] for what a failure leaves.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn change_link(&mut self, index: u32, change: &LinkChange<'_>) -> Outcome {
        self.change(Request::change_link(index, change))
    }

    /// What a PF makes of its VFs, by their number. Links that are no PFs have none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn vf_settings(&mut self, pf: u32) -> Result<BTreeMap<u32, VfSettings>, Error> {
        let told = |cause: RefusalCause| cause.told_as(format!("list the VFs of link {pf}"));
        match self.socket.get(&vf::get_message(pf), of_routing).map_err(told)? {
            RouteNetlinkMessage::NewLink(message) => Ok(vf::described_by(&message)),
            _ => Ok(BTreeMap::new()),
        }
    }

    // --- Bridges

    /// The VLANs of the ports of a bridge, and of the bridge itself, by index. Links without any are
    /// left out.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn bridge_vlans(&mut self, bridge: u32) -> Result<BTreeMap<u32, Vec<BridgeVlan>>, Error> {
        let is_of_bridge = LinkAttribute::Controller(bridge);
        let of_port = |object| match object {
            RouteNetlinkMessage::NewLink(message) if message.attributes.contains(&is_of_bridge) => {
                Some((message.header.index, bridge::vlans_of(&message)))
            }
            _ => None,
        };
        let listed = self.list("list the VLANs", &bridge::list_vlans_message(), of_port)?;
        let mut vlans: BTreeMap<u32, Vec<BridgeVlan>> = BTreeMap::new();
        for (index, some) in listed {
            vlans.entry(index).or_default().extend(some);
        }
        vlans.retain(|_, vlans| !vlans.is_empty());
        Ok(vlans)
    }

    /// The forwarding tables of all bridges, without the bridges' own addresses.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn fdb(&mut self) -> Result<Vec<FdbEntry>, Error> {
        self.stations(None)
    }

    /// The entries of one port in the forwarding table of its bridge.
    ///
    /// # Errors
    /// The kernel's refusal; [`Error::is_not_found`] if there is no such link.
    pub fn fdb_of(&mut self, port: u32) -> Result<Vec<FdbEntry>, Error> {
        self.stations(Some(port))
    }

    fn stations(&mut self, port: Option<u32>) -> Result<Vec<FdbEntry>, Error> {
        let entry = |object| match object {
            RouteNetlinkMessage::NewNeighbour(message) => fdb::described_by(&message),
            _ => None,
        };
        self.list("list the forwarding tables", &fdb::list_message(port), entry)
    }

    // --- Addresses and routes

    /// The addresses of a link.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn addresses(&mut self, index: u32) -> Result<Vec<IpNetwork>, Error> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        let message = RouteNetlinkMessage::GetAddress(message);
        let of_link = |object| match object {
            RouteNetlinkMessage::NewAddress(message) if message.header.index == index => {
                address::described_by(&message)
            }
            _ => None,
        };
        self.list("list the addresses", &message, of_link)
    }

    /// The addresses of all links, each with its link's index.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn all_addresses(&mut self) -> Result<Vec<(u32, IpNetwork)>, Error> {
        let message = RouteNetlinkMessage::GetAddress(AddressMessage::default());
        let described = |object| match object {
            RouteNetlinkMessage::NewAddress(message) => {
                Some((message.header.index, address::described_by(&message)?))
            }
            _ => None,
        };
        self.list("list all addresses", &message, described)
    }

    /// The unicast routes of all tables, with those that the kernel made for connected prefixes.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn routes(&mut self) -> Result<Vec<Route>, Error> {
        let message = RouteNetlinkMessage::GetRoute(RouteMessage::default());
        let route = |object| match object {
            RouteNetlinkMessage::NewRoute(message) => route::described_by(&message),
            _ => None,
        };
        self.list("list the routes", &message, route)
    }

    /// The rules that choose by source, of both families.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn rules(&mut self) -> Result<Vec<Rule>, Error> {
        let rule = |object| match object {
            RouteNetlinkMessage::NewRule(message) => rule::described_by(&message),
            _ => None,
        };
        let mut rules = Vec::new();
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut message = RuleMessage::default();
            message.header.family = family;
            let message = RouteNetlinkMessage::GetRule(message);
            rules.extend(self.list("list the rules", &message, rule)?);
        }
        Ok(rules)
    }

    // --- Queues

    /// Limits what a link sends, or no longer. There may be no limit to take off.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_egress_limit(&mut self, index: u32, limit: Option<Limit>) -> Outcome {
        match self.change(Request::set_egress_limit(index, limit)) {
            Err(error) if limit.is_none() && error.is_not_found() => Ok(()),
            outcome => outcome,
        }
    }

    /// The limit that [`Rtnl::set_egress_limit`] has set.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn egress_limit(&mut self, index: u32) -> Result<Option<LimitInForce>, Error> {
        let link = self.link_by_index(index)?;
        if link.and_then(|link| link.queue).as_deref() != Some("tbf") {
            return Ok(None);
        }
        // The kernel tells no single queue without its handle, so all are listed.
        let of_link = |object| match object {
            RouteNetlinkMessage::NewQueueDiscipline(message) => {
                limit::described_by(&message, index)
            }
            _ => None,
        };
        let listed = self.list("list the queues", &limit::list_message(), of_link)?;
        Ok(listed.into_iter().next())
    }

    /// Redirects frames from a hook, in place of any redirection there is.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_redirect(&mut self, redirect: &Redirect) -> Outcome {
        self.change(Request::add_hooks(redirect.from.0))?;
        match self.change(Request::delete_redirect(redirect)) {
            Err(error) if !error.is_not_found() => return Err(error),
            _ => {}
        }
        self.change(Request::add_redirect(redirect))
    }

    /// Filters the frames that come in at a link, in place of any such filter there is.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_frame_filter(&mut self, index: u32, filter: FrameFilter) -> Outcome {
        self.batch(&[Request::add_hooks(index), Request::set_frame_filter(index, filter)])
    }

    /// The filter of the frames that come in at a link. `None`: none that is known.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn frame_filter(&mut self, index: u32) -> Result<Option<FrameFilter>, Error> {
        let filter = |object| match object {
            RouteNetlinkMessage::NewTrafficFilter(message) => frame_filter::described_by(&message),
            _ => None,
        };
        let message = frame_filter::list_message(index);
        let listed = self.list("list the filters of a link", &message, filter)?;
        Ok(listed.into_iter().next())
    }

    /// Takes in what frames may come at a link. There may be no filter to take away, or somebody else's,
    /// which stays. So do the hooks: others may use them.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn clear_frame_filter(&mut self, index: u32) -> Outcome {
        match self.frame_filter(index)? {
            Some(_) => self.change(Request::delete_frame_filter(index)),
            None => Ok(()),
        }
    }

    fn list<T>(
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
