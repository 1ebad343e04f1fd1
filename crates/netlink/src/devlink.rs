//! Cards: their ports, their eswitches and their rate limits.

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
pub use port::{DevlinkPort, Flavour, PortFunction, PortNetdev, PortState};
pub use rate::{Rate, RateChange, RateSubject};

use crate::{
    Error, MacAddress, Netns,
    generic::{self, Family, GenericMessage, of_family},
    socket::{KernelSocket, RefusalCause},
};
use device::{Attributes, Command, device_of, of_device};

/// How a card's eswitch works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EswitchMode {
    /// The card switches by MAC address and VLAN, as the PF's driver tells it.
    Legacy,
    /// Each VF has a representor, and the kernel says where frames go.
    Switchdev,
    /// As switchdev, but no frame passes yet.
    SwitchdevInactive,
}

impl EswitchMode {
    const ALL: [Self; 3] = [Self::Legacy, Self::Switchdev, Self::SwitchdevInactive];

    fn number(self) -> u16 {
        match self {
            Self::Legacy => 0,
            Self::Switchdev => 1,
            Self::SwitchdevInactive => 2,
        }
    }

    fn from_number(number: u16) -> Option<Self> {
        Self::ALL.into_iter().find(|mode| mode.number() == number)
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

/// The kernel's interface to the cards of one network namespace: the one in which it was opened.
///
/// All methods wait for the kernel and for the card's driver: a change of an eswitch's mode takes
/// seconds on a real card. Each fails only with the kernel's refusal, or after its silence for a
/// minute.
pub struct Devlink {
    socket: KernelSocket,
    family: u16,
}

impl fmt::Debug for Devlink {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Devlink").finish_non_exhaustive()
    }
}

/// What a method that changes something fails with: the kernel's refusal.
type Outcome = Result<(), Error>;

impl Devlink {
    /// Opens the interface to the calling thread's namespace.
    ///
    /// # Errors
    /// When the process may have no more open files; [`Error::is_not_found`] when the kernel has no
    /// devlink.
    pub fn open() -> Result<Self, Error> {
        let (socket, family) = open_family()?;
        Ok(Self { socket, family: family.id })
    }

    /// Opens the interface to a namespace, which it keeps alive.
    ///
    /// # Errors
    /// As [`Devlink::open`], or when the process may not enter the namespace.
    pub fn open_in(netns: &Netns) -> Result<Self, Error> {
        netns.run(Self::open)?
    }

    // --- Cards

    /// All cards.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn devices(&mut self) -> Result<Vec<DevlinkDevice>, Error> {
        let question = Request::new().op_get_dump().into_encoder();
        self.list("list the devlink devices", question, device_of)
    }

    /// How a card's eswitch works. `None`: it has none, or none that it speaks of.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn eswitch_mode(&mut self, device: &DevlinkDevice) -> Result<Option<EswitchMode>, Error> {
        let question = of_device(Request::new().op_eswitch_get_do().into_encoder(), device);
        let mode = |attributes: &Attributes<'_>| {
            Some(EswitchMode::from_number(attributes.get_eswitch_mode().ok()?))
        };
        match self.get(question, mode) {
            Err(RefusalCause::Kernel { errno: Errno::EOPNOTSUPP, .. }) => Ok(None),
            answer => {
                answer.map_err(|cause| cause.told_as(format!("read the eswitch mode of {device}")))
            }
        }
    }

    /// Sets how a card's eswitch works. The representors come or go with it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set_eswitch_mode(&mut self, device: &DevlinkDevice, mode: EswitchMode) -> Outcome {
        let change = of_device(Request::new().op_eswitch_set_do().into_encoder(), device)
            .push_eswitch_mode(mode.number());
        self.change(change, || format!("set the eswitch mode of {device} to {mode}"))
    }

    // --- Ports

    /// The ports of all cards.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn ports(&mut self) -> Result<Vec<DevlinkPort>, Error> {
        let question = Request::new().op_port_get_dump().into_encoder();
        self.list("list the devlink ports", question, port::described_by)
    }

    /// A port of a card. `None`: there is no such port, or no such card.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn port(
        &mut self,
        device: &DevlinkDevice,
        index: u32,
    ) -> Result<Option<DevlinkPort>, Error> {
        let question = of_port(Request::new().op_port_get_do().into_encoder(), device, index);
        let found = self.get(question, port::described_by);
        found_or_none(found, || format!("look at devlink port {device}/{index}"))
    }

    /// Gives the function behind a port its MAC address. Its driver takes it over when it starts.
    ///
    /// # Errors
    /// The kernel's refusal; [`Error::is_unsupported`] where the card has no say in it.
    pub fn set_port_mac(&mut self, port: &DevlinkPort, mac: MacAddress) -> Outcome {
        let DevlinkPort { device, index, .. } = port;
        let change = of_port(Request::new().op_port_set_do().into_encoder(), device, *index)
            .nested_port_function()
            .push_hw_addr(&mac.0)
            .end_nested();
        self.change(change, || format!("set the MAC address behind devlink port {port} to {mac}"))
    }

    /// Switches the function behind a port on or off.
    ///
    /// # Errors
    /// The kernel's refusal; [`Error::is_unsupported`] where it can't be switched, as with VFs.
    pub fn set_port_state(&mut self, port: &DevlinkPort, state: PortState) -> Outcome {
        let DevlinkPort { device, index, .. } = port;
        let change = of_port(Request::new().op_port_set_do().into_encoder(), device, *index)
            .nested_port_function()
            .push_state(state.number())
            .end_nested();
        self.change(change, || format!("make what is behind devlink port {port} {state}"))
    }

    // --- Rates

    /// The rate limits of all cards: a leaf for each port that can be limited, and the nodes.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn rates(&mut self) -> Result<Vec<Rate>, Error> {
        let question = Request::new().op_rate_get_dump().into_encoder();
        self.list("list the devlink rates", question, rate::described_by)
    }

    /// A rate limit. `None`: there is no such node, or the card does not limit such ports.
    ///
    /// # Errors
    /// The kernel's refusal.
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
    /// The kernel's refusal. Cards take whole Mbit/s, and not every card limits ports.
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

    /// Makes a node, which leaves and other nodes can have for their parent.
    ///
    /// # Errors
    /// The kernel's refusal.
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
    /// The kernel's refusal, such as while it is somebody's parent.
    pub fn delete_rate_node(&mut self, device: &DevlinkDevice, name: &str) -> Outcome {
        let node = RateSubject::Node(name.to_owned());
        let command = of_rate(Request::new().op_rate_del_do().into_encoder(), device, &node);
        self.change(command, || format!("delete {node} of {device}"))
    }

    // --- The exchange

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
        listed.map_err(|cause| cause.told_as(operation.to_owned()))
    }

    fn change(&mut self, command: Command, operation: impl FnOnce() -> String) -> Outcome {
        let message = self.message(command);
        let carried_out = self.socket.carry_out(&[message]);
        carried_out.map_err(|refusal| refusal.cause.told_as(operation()))
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
            let why = "the kernel is built without devlink (CONFIG_NET_DEVLINK)";
            Err(Error::refused(OPENING, errno, Some(why.to_owned())))
        }
        Err(cause) => Err(cause.told_as(OPENING.to_owned())),
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
        Err(cause) => Err(cause.told_as(operation())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_what_the_kernel_numbers() {
        let numbers = EswitchMode::ALL.map(EswitchMode::number);
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(EswitchMode::from_number(1), Some(EswitchMode::Switchdev));
        assert_eq!(EswitchMode::from_number(9), None);
    }
}
