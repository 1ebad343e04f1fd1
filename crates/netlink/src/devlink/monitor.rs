//! Watching cards and their ports.

use netlink_bindings::devlink::Devlink as Codec;
use netlink_sys::{Socket, protocols::NETLINK_GENERIC};

use super::{
    device::{Attributes, DevlinkDevice, device_of},
    open_family,
    port::{self, DevlinkPort},
};
use crate::{
    Error, Netns,
    datagram::{Meaning, Object, messages},
    generic::of_family,
    watch::{Event, Events, subscribe},
};

/// The group of all events.
const GROUP: &str = "config";

// The commands that tell of something; see enum devlink_command in linux/devlink.h.
const DEVICE_NEW: u8 = 3;
const DEVICE_DELETED: u8 = 4;
const PORT_NEW: u8 = 7;
const PORT_DELETED: u8 = 8;

/// What happened to a card or to one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DevlinkEvent {
    /// A card is new, or something about it changed.
    DeviceChanged(DevlinkDevice),
    /// A card was taken away, or moved to another namespace.
    DeviceGone(DevlinkDevice),
    /// A port is new, or something about it changed, such as its link.
    PortChanged(Box<DevlinkPort>),
    /// A port was taken away.
    PortGone {
        /// Its card.
        device: DevlinkDevice,
        /// Its number there.
        index: u32,
    },
    /// More happened than the kernel could queue: look at everything again.
    Missed,
}

/// The changes of the cards of a namespace, in their order.
#[derive(Debug)]
pub struct DevlinkMonitor(Events<DevlinkEvent>);

impl DevlinkMonitor {
    /// Starts to watch. Nothing that happens from now on is lost, so list the ports after this.
    ///
    /// To be called within a Tokio runtime.
    ///
    /// # Errors
    /// When the process may have no more open files, or may not enter the namespace;
    /// [`Error::is_not_found`] when the kernel has no devlink.
    pub fn open(netns: &Netns) -> Result<Self, Error> {
        Events::of(Ok(netns.run(open_socket)??)).map(Self)
    }

    /// The next event. Cancelling the wait loses none.
    ///
    /// # Errors
    /// When the socket fails for good.
    pub async fn next(&mut self) -> Result<DevlinkEvent, Error> {
        self.0.next().await
    }
}

/// Opens a socket that receives the events of the calling thread's namespace.
fn open_socket() -> Result<Socket, Error> {
    let (_socket, family) = open_family()?;
    let unnamed = || Error::answer(DevlinkEvent::WATCHING, format!("devlink has no group {GROUP}"));
    let group = family.group(GROUP).ok_or_else(unnamed)?;
    subscribe(NETLINK_GENERIC, group).map_err(|error| Error::io(DevlinkEvent::WATCHING, &error))
}

impl Event for DevlinkEvent {
    const WATCHING: &str = "watch the devlink ports";
    const MISSED: Self = Self::Missed;

    fn all_in(datagram: &[u8]) -> impl Iterator<Item = Self> {
        messages(datagram).filter_map(|message| match message.meaning() {
            Ok(Meaning::Object(object)) => event(object),
            Ok(_) => None,
            Err(_) => Some(Self::Missed),
        })
    }
}

fn event(object: Object<'_>) -> Option<DevlinkEvent> {
    let Ok((command, attributes)) = of_family(object) else { return Some(DevlinkEvent::Missed) };
    let attributes = Codec::new(attributes);
    let read: fn(&Attributes<'_>) -> Option<DevlinkEvent> = match command {
        DEVICE_NEW => |attributes| device_of(attributes).map(DevlinkEvent::DeviceChanged),
        DEVICE_DELETED => |attributes| device_of(attributes).map(DevlinkEvent::DeviceGone),
        PORT_NEW => |attributes| {
            port::described_by(attributes).map(|port| DevlinkEvent::PortChanged(Box::new(port)))
        },
        PORT_DELETED => port_gone,
        _ => return None,
    };
    Some(read(&attributes).unwrap_or(DevlinkEvent::Missed))
}

fn port_gone(attributes: &Attributes<'_>) -> Option<DevlinkEvent> {
    let index = attributes.get_port_index().ok()?;
    Some(DevlinkEvent::PortGone { device: device_of(attributes)?, index })
}
