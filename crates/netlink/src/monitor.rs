//! Monitors of the links of a namespace.

use std::io;

use netlink_packet_route::{AddressFamily, RouteNetlinkMessage, link::LinkMessage};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use crate::{
    datagram::{Object, of_routing},
    error::Error,
    link::Link,
    netns::Netns,
    watch::{Event, Events, receive_next, subscribe},
};

/// `RTNLGRP_LINK`
const LINK_GROUP: u32 = 1;

/// What happened to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// The link is new in this namespace, or changed. The kernel sends no event for a new alias or group of a link that
    /// is down.
    Changed(Box<Link>),
    /// Settings of the link as a bridge port changed, such as `isolated`. For some settings this is the kernel's only
    /// event.
    PortChanged {
        /// Index of the link.
        index: u32,
        /// Index of the bridge.
        bridge: u32,
    },
    /// The link was deleted or moved to another namespace.
    Gone {
        /// Index of the link.
        index: u32,
        /// Name of the link.
        name: String,
        /// Alias of the link.
        alias: Option<String>,
        /// Bus and name of the parent device, such as `pci` and `0000:03:00.2`.
        parent: Option<(String, String)>,
    },
    /// The kernel's queue overflowed and events are lost. List all links again.
    Missed,
}

/// Receives the changes of a namespace's links, in order. Its socket keeps the namespace alive, so never open one in a
/// pod's.
#[derive(Debug)]
pub struct LinkMonitor(Events<LinkEvent>);

impl LinkMonitor {
    /// Starts to watch. List the links after this call, so that no change is lost in between.
    ///
    /// Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// If the process has no free file descriptor, or may not enter the namespace.
    pub fn open(netns: &Netns) -> Result<Self, Error> {
        Self::with_socket(netns.run(open_socket)?)
    }

    /// Starts to watch the namespace and every namespace that has an ID there. A namespace gets an ID when the other
    /// end of a veth pair of `netns` is seen in it. Only `netns` is kept alive. An event does not say which namespace
    /// it is from, so recognise links by their alias.
    ///
    /// Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// If the process has no free file descriptor, may not enter the namespace, or lacks CAP_NET_BROADCAST there
    /// (`netlink_setsockopt` in net/netlink/af_netlink.c).
    pub fn open_with_neighbours(netns: &Netns) -> Result<Self, Error> {
        let open = || {
            let socket = open_socket()?;
            socket.set_listen_all_namespaces(true)?;
            Ok(socket)
        };
        Self::with_socket(netns.run(open)?)
    }

    pub(crate) fn with_socket(socket: io::Result<Socket>) -> Result<Self, Error> {
        Events::of(socket).map(Self)
    }

    /// Waits for the next event. Cancel safe: no event is lost.
    ///
    /// # Errors
    /// If the socket fails permanently.
    pub async fn next(&mut self) -> Result<LinkEvent, Error> {
        self.0.next().await
    }
}

/// Collects the changes of a namespace's links for a caller that polls.
///
/// The kernel queues an event before the change becomes visible. A listing plus all events since is therefore as
/// current as a new listing.
#[derive(Debug)]
pub struct LinkChanges {
    socket: Socket,
    buffer: Vec<u8>,
}

impl LinkChanges {
    /// Starts to watch. List the links after this call, so that no change is lost in between.
    ///
    /// # Errors
    /// If the process has no free file descriptor, or may not enter the namespace.
    pub fn open(netns: &Netns) -> Result<Self, Error> {
        let open = || {
            let socket = open_socket()?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        let socket = netns.run(open)?.map_err(|error| Error::io(LinkEvent::WATCHING, &error))?;
        Ok(Self { socket, buffer: Vec::new() })
    }

    /// Returns the events since the last call, in order, without waiting.
    ///
    /// # Errors
    /// If the socket fails permanently.
    pub fn take(&mut self) -> Result<Vec<LinkEvent>, Error> {
        self.receive_all().map_err(|error| Error::io(LinkEvent::WATCHING, &error))
    }

    fn receive_all(&mut self) -> io::Result<Vec<LinkEvent>> {
        let mut events = Vec::new();
        loop {
            match receive_next(&self.socket, &mut self.buffer) {
                Ok(true) => events.extend(LinkEvent::all_in(&self.buffer)),
                Ok(false) => return Ok(vec![LinkEvent::MISSED]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(events),
                Err(error) => return Err(error),
            }
        }
    }
}

pub(crate) fn open_socket() -> io::Result<Socket> {
    subscribe(NETLINK_ROUTE, LINK_GROUP)
}

impl Event for LinkEvent {
    const WATCHING: &str = "watch the links";
    const MISSED: Self = Self::Missed;

    /// A bridge reports its ports with the same messages but family `AF_BRIDGE`: a port that leaves its bridge is
    /// "deleted" there.
    fn of(object: Object<'_>) -> Result<Option<Self>, String> {
        let is_of = |message: &LinkMessage, family| message.header.interface_family == family;
        Ok(match of_routing(object)? {
            RouteNetlinkMessage::NewLink(message) if is_of(&message, AddressFamily::Unspec) => {
                Link::described_by(object)?.map(|link| Self::Changed(Box::new(link)))
            }
            RouteNetlinkMessage::NewLink(message) if is_of(&message, AddressFamily::Bridge) => {
                let Link { index, master, .. } = message.into();
                master.map(|bridge| Self::PortChanged { index, bridge })
            }
            RouteNetlinkMessage::DelLink(message) if is_of(&message, AddressFamily::Unspec) => {
                let Link { index, name, alias, parent_bus, parent_device, .. } = message.into();
                Some(Self::Gone { index, name, alias, parent: parent_bus.zip(parent_device) })
            }
            _ => None,
        })
    }
}
