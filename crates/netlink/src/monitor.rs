//! Watching links.

use std::io;

use netlink_packet_route::{AddressFamily, RouteNetlinkMessage, link::LinkMessage};
use netlink_sys::{Socket, protocols::NETLINK_ROUTE};

use crate::{
    Error, Link, Netns,
    datagram::{Meaning, Object, messages, of_routing},
    watch::{Event, Events, receive_next, subscribe},
};

/// `RTNLGRP_LINK`
const LINK_GROUP: u32 = 1;

/// What happened to a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkEvent {
    /// It is new in this namespace, or something about it changed. The kernel does not tell of a
    /// new alias or group of a link that is down.
    Changed(Box<Link>),
    /// Settings of it as a port of a bridge changed, such as `isolated`. The kernel tells of some of them in no other way.
    PortChanged {
        /// Its index.
        index: u32,
        /// The index of the bridge.
        bridge: u32,
    },
    /// It was deleted, or moved to another namespace.
    Gone {
        /// Its index.
        index: u32,
        /// Its name.
        name: String,
        /// Its alias.
        alias: Option<String>,
        /// The bus of the device behind it, and the device, such as `pci` and `0000:03:00.2`.
        parent: Option<(String, String)>,
    },
    /// More happened than the kernel could queue: look at all links again.
    Missed,
}

/// The changes of the links of a namespace, in their order. Like every socket, it keeps the
/// namespace alive: never watch a pod's.
#[derive(Debug)]
pub struct LinkMonitor(Events<LinkEvent>);

impl LinkMonitor {
    /// Starts to watch. Nothing that happens from now on is lost, so list the links after this.
    ///
    /// To be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the process may have no more open files, or may not enter the namespace.
    pub fn open(netns: &Netns) -> Result<Self, Error> {
        Self::with_socket(netns.run(open_socket)?)
    }

    /// Starts to watch the namespace and all others that it has a number for: those in which the
    /// other end of one of its veth pairs was ever seen. It keeps only `netns` alive. Events do
    /// not tell their namespace, so a link is to be recognised by its alias.
    ///
    /// To be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the process may have no more open files, may not enter the namespace, or lacks CAP_NET_BROADCAST there
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

    /// The next event. Cancelling the wait loses none.
    ///
    /// # Errors
    /// When the socket fails for good.
    pub async fn next(&mut self) -> Result<LinkEvent, Error> {
        self.0.next().await
    }
}

/// Likewise for who asks from time to time what has happened, and waits for nothing. The kernel tells of a change before
/// it lets anybody see it, so that who knows all links and what is told since knows what a listing would show.
#[derive(Debug)]
pub struct LinkChanges {
    socket: Socket,
    buffer: Vec<u8>,
}

impl LinkChanges {
    /// Starts to watch. Nothing that happens from now on is lost, so list the links after this.
    ///
    /// # Errors
    /// When the process may have no more open files, or may not enter the namespace.
    pub fn open(netns: &Netns) -> Result<Self, Error> {
        let open = || {
            let socket = open_socket()?;
            socket.set_non_blocking(true)?;
            Ok(socket)
        };
        let socket = netns.run(open)?.map_err(|error| Error::io(LinkEvent::WATCHING, &error))?;
        Ok(Self { socket, buffer: Vec::new() })
    }

    /// What has happened since it was asked last, in its order.
    ///
    /// # Errors
    /// When the socket fails for good.
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

/// Opens a socket that receives the events of the calling thread's namespace.
pub(crate) fn open_socket() -> io::Result<Socket> {
    subscribe(NETLINK_ROUTE, LINK_GROUP)
}

impl Event for LinkEvent {
    const WATCHING: &str = "watch the links";
    const MISSED: Self = Self::Missed;

    fn all_in(datagram: &[u8]) -> impl Iterator<Item = Self> {
        messages(datagram).filter_map(|message| match message.meaning() {
            Ok(Meaning::Object(object)) => event(object).unwrap_or(Some(Self::Missed)),
            Ok(_) => None,
            Err(_) => Some(Self::Missed),
        })
    }
}

fn event(object: Object<'_>) -> Result<Option<LinkEvent>, String> {
    Ok(match of_routing(object)? {
        RouteNetlinkMessage::NewLink(message) if is_about_link(&message) => {
            Link::described_by(object)?.map(|link| LinkEvent::Changed(Box::new(link)))
        }
        RouteNetlinkMessage::NewLink(message) if is_about_port(&message) => {
            let Link { index, master, .. } = message.into();
            master.map(|bridge| LinkEvent::PortChanged { index, bridge })
        }
        RouteNetlinkMessage::DelLink(message) if is_about_link(&message) => {
            let Link { index, name, alias, parent_bus, parent_device, .. } = message.into();
            Some(LinkEvent::Gone { index, name, alias, parent: parent_bus.zip(parent_device) })
        }
        _ => None,
    })
}

/// Bridges tell of their ports in the same way: one that leaves its bridge is "deleted".
fn is_about_link(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Unspec
}

fn is_about_port(message: &LinkMessage) -> bool {
    message.header.interface_family == AddressFamily::Bridge
}
