//! Monitor of cards and their ports.

use netlink_bindings::devlink::Devlink as Codec;
use netlink_sys::{Socket, protocols::NETLINK_GENERIC};

use super::{
    device::{Attributes, DevlinkDevice, device_of},
    open_family,
    port::{self, DevlinkPort},
};
use crate::{
    datagram::Object,
    error::Error,
    generic::of_family,
    netns::Netns,
    watch::{Event, Events, subscribe},
};

/// The multicast group of all devlink events.
const GROUP: &str = "config";

// Commands of events: enum devlink_command in linux/devlink.h.
const DEVICE_NEW: u8 = 3;
const DEVICE_DELETED: u8 = 4;
const PORT_NEW: u8 = 7;
const PORT_DELETED: u8 = 8;

/// An event of a card or of one of its ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DevlinkEvent {
    /// A card is new or changed.
    DeviceChanged(DevlinkDevice),
    /// A card was removed, or moved to another namespace.
    DeviceGone(DevlinkDevice),
    /// A port is new or changed, for example got a link.
    PortChanged(DevlinkPort),
    /// A port was removed.
    PortGone {
        /// The card of the port.
        device: DevlinkDevice,
        /// Index of the port on the card.
        index: u32,
    },
    /// The kernel's queue overflowed and events are lost. Read everything again.
    Missed,
}

/// Receives the events of a namespace's cards, in order.
#[derive(Debug)]
pub struct DevlinkMonitor(Events<DevlinkEvent>);

impl DevlinkMonitor {
    /// Starts to watch. List the ports after this call, so that no change is lost in between.
    ///
    /// Must be called within a Tokio runtime.
    ///
    /// # Errors
    /// If the process has no free file descriptor or may not enter the namespace; [`Error::is_not_found`] if the kernel
    /// has no devlink.
    pub fn open(netns: &Netns) -> Result<Self, Error> {
        Events::of(Ok(netns.run(open_socket)??)).map(Self)
    }

    /// Waits for the next event. Cancel safe: no event is lost.
    ///
    /// # Errors
    /// If the socket fails permanently.
    pub async fn next(&mut self) -> Result<DevlinkEvent, Error> {
        self.0.next().await
    }
}

fn open_socket() -> Result<Socket, Error> {
    let (_socket, family) = open_family()?;
    let unnamed = || Error::answer(DevlinkEvent::WATCHING, format!("devlink has no group {GROUP}"));
    let group = family.group(GROUP).ok_or_else(unnamed)?;
    subscribe(NETLINK_GENERIC, group).map_err(|error| Error::io(DevlinkEvent::WATCHING, &error))
}

impl Event for DevlinkEvent {
    const WATCHING: &str = "watch the devlink ports";
    const MISSED: Self = Self::Missed;

    fn of(object: Object<'_>) -> Result<Option<Self>, String> {
        let (command, attributes) = of_family(object)?;
        let attributes = Codec::new(attributes);
        let event = match command {
            DEVICE_NEW => device_of(&attributes).map(Self::DeviceChanged),
            DEVICE_DELETED => device_of(&attributes).map(Self::DeviceGone),
            PORT_NEW => port::described_by(&attributes).map(Self::PortChanged),
            PORT_DELETED => port_gone(&attributes),
            _ => return Ok(None),
        };
        Ok(Some(event.unwrap_or(Self::Missed)))
    }
}

fn port_gone(attributes: &Attributes<'_>) -> Option<DevlinkEvent> {
    let index = attributes.get_port_index().ok()?;
    Some(DevlinkEvent::PortGone { device: device_of(attributes)?, index })
}
