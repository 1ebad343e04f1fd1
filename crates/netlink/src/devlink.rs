//! Devlink: cards with their ports, eswitches and rate limits.

mod device;
#[cfg(test)]
mod fuzz;
mod monitor;
mod port;
mod rate;

use std::fmt;

use netlink_bindings::{
    devlink::{Devlink as Codec, PROTONAME_CSTR, Request},
    utils::RequestBuf,
};
use nix::errno::Errno;

pub use device::{DevlinkDevice, ParseDevlinkError};
pub use monitor::{DevlinkEvent, DevlinkMonitor};
pub use port::{DevlinkPort, PortVf};
pub use rate::{Rate, RateChange, RateSubject};

use crate::{
    error::{Error, RefusalCause},
    generic::{self, Family, GenericMessage, of_family},
    mac::MacAddress,
    netns::Netns,
    socket::KernelSocket,
};
use device::{Attributes, Command, device_of, of_device};

/// Mode of a card's eswitch, with the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EswitchMode {
    /// The card forwards by MAC address and VLAN, configured by the PF's driver.
    Legacy = 0,
    /// Each VF has a representor, and the kernel decides where frames go.
    Switchdev = 1,
    /// Switchdev, but no traffic passes yet.
    SwitchdevInactive = 2,
}

impl EswitchMode {
    const ALL: [Self; 3] = [Self::Legacy, Self::Switchdev, Self::SwitchdevInactive];

    fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| *mode as u16 == number)
    }
}

impl fmt::Display for EswitchMode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Legacy => "legacy",
            Self::Switchdev => "switchdev",
            Self::SwitchdevInactive => "switchdev_inactive",
        })
    }
}

/// The devlink interface of the network namespace in which it was opened.
///
/// All methods block until the kernel and the card's driver answer. On a real card, a change of the eswitch mode takes
/// seconds. Methods fail only if the kernel refuses, or does not answer within a minute.
#[derive(Debug)]
pub struct Devlink {
    socket: KernelSocket,
    family: u16,
}

/// Result of a change: nothing, or the kernel's refusal.
type Outcome = Result<(), Error>;

impl Devlink {
    /// Opens the interface in the calling thread's namespace.
    ///
    /// # Errors
    /// If the process has no free file descriptor; [`Error::is_not_found`] if the kernel has no devlink.
    pub fn open() -> Result<Self, Error> {
        let (socket, family) = open_family()?;
        Ok(Self { socket, family: family.id })
    }

    /// Opens the interface in a namespace. Its socket keeps the namespace alive.
    ///
    /// # Errors
    /// Those of [`Devlink::open`], or the process may not enter the namespace.
    pub fn open_in(netns: &Netns) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    // --- Cards

    /// Lists all cards.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn devices(&mut self) -> Result<Vec<DevlinkDevice>, Error> {
        let question = Request::new().op_get_dump().into_encoder();
        self.list("list the devlink devices", question, device_of)
    }

    /// Reads the mode of a card's eswitch. `None`: the card has no eswitch, or its mode is unknown to this crate.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn eswitch_mode(&mut self, device: &DevlinkDevice) -> Result<Option<EswitchMode>, Error> {
        let question = of_device(Request::new().op_eswitch_get_do().into_encoder(), device);
        let mode = |attributes: &Attributes<'_>| {
            Some(EswitchMode::from_number(attributes.get_eswitch_mode().ok()?))
        };
        match self.get(question, mode) {
            Err(RefusalCause::Kernel { errno: Errno::EOPNOTSUPP, .. }) => Ok(None),
            answer => answer
                .map_err(|cause| cause.into_error(format!("read the eswitch mode of {device}"))),
        }
    }

    /// Sets the mode of a card's eswitch. This creates or removes the representors.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn set_eswitch_mode(&mut self, device: &DevlinkDevice, mode: EswitchMode) -> Outcome {
        let change = of_device(Request::new().op_eswitch_set_do().into_encoder(), device)
            .push_eswitch_mode(mode as u16);
        self.change(change, || format!("set the eswitch mode of {device} to {mode}"))
    }

    // --- Ports

    /// Lists the ports of all cards.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn ports(&mut self) -> Result<Vec<DevlinkPort>, Error> {
        let question = Request::new().op_port_get_dump().into_encoder();
        self.list("list the devlink ports", question, port::described_by)
    }

    /// Reads a port of a card. `None`: the port or the card does not exist.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn port(
        &mut self,
        device: &DevlinkDevice,
        index: u32,
    ) -> Result<Option<DevlinkPort>, Error> {
        let question = of_port(Request::new().op_port_get_do().into_encoder(), device, index);
        let found = self.get(question, port::described_by);
        found_or_none(found, || format!("look at devlink port {device}/{index}"))
    }

    /// Sets the MAC address of the function behind a port. The function's driver reads it when it starts.
    ///
    /// # Errors
    /// If the kernel refuses; [`Error::is_unsupported`] if the card does not manage the address.
    pub fn set_port_mac(&mut self, port: &DevlinkPort, mac: MacAddress) -> Outcome {
        let DevlinkPort { device, index, .. } = port;
        let change = of_port(Request::new().op_port_set_do().into_encoder(), device, *index)
            .nested_port_function()
            .push_hw_addr(&mac.0)
            .end_nested();
        self.change(change, || format!("set the MAC address behind devlink port {port} to {mac}"))
    }

    // --- Rates

    /// Lists the rate limits of all cards: a leaf for each port that can be limited, and the nodes.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn rates(&mut self) -> Result<Vec<Rate>, Error> {
        let question = Request::new().op_rate_get_dump().into_encoder();
        self.list("list the devlink rates", question, rate::described_by)
    }

    /// Reads a rate limit. `None`: the node does not exist, or the card cannot limit the port.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn rate(
        &mut self,
        device: &DevlinkDevice,
        subject: &RateSubject,
    ) -> Result<Option<Rate>, Error> {
        let question = of_rate(Request::new().op_rate_get_do().into_encoder(), device, subject);
        let found = self.get(question, rate::described_by);
        found_or_none(found, || format!("read the rate of {subject} of {device}"))
    }

    /// Changes a rate limit.
    ///
    /// # Errors
    /// If the kernel refuses. Cards accept whole Mbit/s only, and some cannot limit ports.
    pub fn set_rate(
        &mut self,
        device: &DevlinkDevice,
        subject: &RateSubject,
        change: &RateChange,
    ) -> Outcome {
        let command = of_rate(Request::new().op_rate_set_do().into_encoder(), device, subject);
        self.change(change.describe(command), || {
            format!("set the rate of {subject} of {device} to {change}")
        })
    }

    /// Adds a node, which can be the parent of leaves and other nodes.
    ///
    /// # Errors
    /// If the kernel refuses the request.
    pub fn add_rate_node(
        &mut self,
        device: &DevlinkDevice,
        name: &str,
        rate: &RateChange,
    ) -> Outcome {
        let node = RateSubject::Node(name.to_owned());
        let command = of_rate(Request::new().op_rate_new_do().into_encoder(), device, &node);
        self.change(rate.describe(command), || format!("add {node} to {device}"))
    }

    /// Deletes a node.
    ///
    /// # Errors
    /// If the kernel refuses, for example while the node is a parent.
    pub fn delete_rate_node(&mut self, device: &DevlinkDevice, name: &str) -> Outcome {
        let node = RateSubject::Node(name.to_owned());
        let command = of_rate(Request::new().op_rate_del_do().into_encoder(), device, &node);
        self.change(command, || format!("delete {node} of {device}"))
    }

    // --- Requests

    fn get<T>(
        &mut self,
        question: Command,
        read: impl FnOnce(&Attributes<'_>) -> Option<T>,
    ) -> Result<T, RefusalCause> {
        self.socket.get(&self.message(question), |object| {
            let (_command, attributes) = of_family(object)?;
            read(&Codec::new(attributes)).ok_or_else(|| "an answer about something else".to_owned())
        })
    }

    fn list<T>(
        &mut self,
        operation: &str,
        question: Command,
        read: impl Fn(&Attributes<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Error> {
        let listed = self.socket.list(&self.message(question), |object| {
            let (_command, attributes) = of_family(object)?;
            Ok(read(&Codec::new(attributes)))
        });
        listed.map_err(|cause| cause.into_error(operation))
    }

    fn change(&mut self, command: Command, operation: impl FnOnce() -> String) -> Outcome {
        let message = self.message(command);
        let carried_out = self.socket.carry_out(&[message]);
        carried_out.map_err(|refusal| refusal.cause.into_error(operation()))
    }

    fn message(&self, command: Command) -> GenericMessage {
        let payload = match command.end_nested() {
            RequestBuf::Own(payload) => payload,
            RequestBuf::Ref(payload) => payload.clone(),
        };
        GenericMessage { family: self.family, payload }
    }
}

fn open_family() -> Result<(KernelSocket, Family), Error> {
    const OPENING: &str = "open a socket to the kernel's devlink";
    let mut socket = generic::open_socket().map_err(|error| Error::io(OPENING, &error))?;
    match Family::find(&mut socket, PROTONAME_CSTR) {
        Ok(family) => Ok((socket, family)),
        Err(RefusalCause::Kernel { errno: errno @ Errno::ENOENT, .. }) => {
            let why = "the kernel is built without devlink (CONFIG_NET_DEVLINK)".to_owned();
            Err(RefusalCause::Kernel { errno, sentence: Some(why) }.into_error(OPENING))
        }
        Err(cause) => Err(cause.into_error(OPENING)),
    }
}

fn of_port(command: Command, device: &DevlinkDevice, index: u32) -> Command {
    of_device(command, device).push_port_index(index)
}

fn of_rate(command: Command, device: &DevlinkDevice, subject: &RateSubject) -> Command {
    match subject {
        RateSubject::Leaf(port) => of_port(command, device, *port),
        RateSubject::Node(name) => {
            of_device(command, device).push_rate_node_name_bytes(name.as_bytes())
        }
    }
}

fn found_or_none<T>(
    found: Result<T, RefusalCause>,
    operation: impl FnOnce() -> String,
) -> Result<Option<T>, Error> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(RefusalCause::Kernel { errno: Errno::ENODEV, .. }) => Ok(None),
        Err(cause) => Err(cause.into_error(operation())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eswitch_modes_match_kernel_numbers() {
        assert_eq!(EswitchMode::ALL.map(|mode| mode as u16), [0, 1, 2]);
        assert_eq!(EswitchMode::from_number(1), Some(EswitchMode::Switchdev));
        assert_eq!(EswitchMode::from_number(9), None);
    }
}
