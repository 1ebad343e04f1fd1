//! The kernel's simulated switchdev card: made, given VFs and deleted through its files.

use std::{fmt, fs, io, path::Path};

use netlink::{Devlink, DevlinkDevice, EswitchMode, Link, LinkChange, Netns, Rtnl};
use vf_alloc::{FunctionId, PfId};

use crate::{CardError, UplinkAlias, plan::uplink_name};

/// Where the kernel takes orders for devices of this kind.
const BUS: &str = "/sys/bus/netdevsim";

/// Where it shows what is for tests only.
const DEBUG: &str = "/sys/kernel/debug/netdevsim";

/// What it calls the bus, and each device with its number.
const NAME: &str = "netdevsim";

/// The first number that is tried. Lower ones are left to people, and from this on devices are cards'.
const FIRST_NUMBER: u32 = 1000;

/// How many VFs a device has unless it is told to have more.
const USUAL_VFS: u16 = 4;

/// A device. It has one port, which is the PF's uplink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Device {
    number: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{NAME}{}", self.number)
    }
}

impl Device {
    /// Makes a device in this namespace. It has no VFs yet.
    pub(crate) fn make(netns: &Netns) -> Result<Self, CardError> {
        if !Path::new(BUS).exists() {
            return Err(CardError::NoNetdevsim { bus: BUS });
        }
        // It is made in the namespace of the thread that asks for it.
        let device = netns.run(Self::make_here)??;
        device.label_uplink(netns).or_else(|error| device.delete().and(Err(error)))?;
        Ok(device)
    }

    fn make_here() -> Result<Self, CardError> {
        let mut number = FIRST_NUMBER;
        loop {
            match write(&format!("{BUS}/new_device"), &format!("{number} 1 1")) {
                Ok(()) => return Ok(Self { number }),
                Err(error) if is_taken(&error) => number += 1,
                Err(error) => return Err(error.told_as("make a netdevsim device")),
            }
        }
    }

    fn label_uplink(&self, netns: &Netns) -> Result<(), CardError> {
        let mut rtnl = Rtnl::open_in(netns)?;
        for port in rtnl.links()?.iter().filter(|link| self.has(link)) {
            rtnl.change_link(port.index, &uplink_label())?;
        }
        Ok(())
    }

    /// The device of that card that is plugged into a namespace with these links, running or left by a
    /// card that died. The kernel takes none but the local controller for its own.
    pub(crate) fn of_controller(controller: u32, links: &[Link]) -> Option<Self> {
        if controller == 0 { links.iter().find_map(Self::of) } else { None }
    }

    /// The device of ours that a link belongs to.
    pub(crate) fn of(link: &Link) -> Option<Self> {
        let number = link.parent_device.as_deref()?.strip_prefix(NAME)?.parse().ok()?;
        let is_ours = link.parent_bus.as_deref() == Some(NAME) && number >= FIRST_NUMBER;
        is_ours.then_some(Self { number })
    }

    /// Whether a link is one of its ports'.
    pub(crate) fn has(&self, link: &Link) -> bool {
        Self::of(link).as_ref() == Some(self)
    }

    /// The VF that a link represents on this device.
    pub(crate) fn represented(&self, link: &Link) -> Option<FunctionId> {
        let port = link.phys_port_name.as_deref().filter(|_| self.has(link))?;
        port.parse().ok()
    }

    /// Whether a link is its uplink, made anew by the kernel: without name and alias.
    pub(crate) fn is_new_uplink(&self, link: &Link) -> bool {
        self.has(link) && self.represented(link).is_none() && link.alias.is_none()
    }

    /// Makes the VFs and their representors.
    pub(crate) fn make_vfs(&self, count: u16, netns: &Netns) -> Result<(), CardError> {
        if count > USUAL_VFS {
            let limit = format!("{DEBUG}/{self}/max_vfs");
            write(&limit, &count.to_string())
                .map_err(|error| error.told_as(&format!("allow {self} {count} VFs")))?;
        }
        let path = format!("{BUS}/devices/{self}/sriov_numvfs");
        write(&path, &count.to_string())
            .map_err(|error| error.told_as(&format!("give {self} {count} VFs")))?;
        let mut devlink = Devlink::open_in(netns)?;
        let device = DevlinkDevice { bus: NAME.to_owned(), name: self.to_string() };
        devlink.set_eswitch_mode(&device, EswitchMode::Switchdev)?;
        Ok(())
    }

    /// Deletes it with all its links.
    pub(crate) fn delete(&self) -> Result<(), CardError> {
        write(&format!("{BUS}/del_device"), &self.number.to_string())
            .map_err(|error| error.told_as(&format!("delete {self}")))
    }
}

/// Gives the uplink its name and alias.
pub(crate) fn uplink_label() -> LinkChange<'static> {
    let id = PfId::local(0);
    LinkChange::new().name(uplink_name(id)).alias(UplinkAlias(id).to_string())
}

/// A file that could not be written.
struct WriteError {
    path: String,
    source: io::Error,
}

impl WriteError {
    fn told_as(self, doing: &str) -> CardError {
        CardError::File { doing: doing.to_owned(), path: self.path, source: self.source }
    }
}

fn write(path: &str, text: &str) -> Result<(), WriteError> {
    fs::write(path, text).map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Whether there is a device of that number.
fn is_taken(error: &WriteError) -> bool {
    error.source.kind() == io::ErrorKind::StorageFull
}
