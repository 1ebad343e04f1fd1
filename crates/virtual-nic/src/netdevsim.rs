//! netdevsim devices: creation, VFs and deletion through the kernel's files.

use std::{fmt, fs, io, path::Path};

use netlink::{Devlink, DevlinkDevice, EswitchMode, Link, LinkChange, Netns, Rtnl};
use vf_alloc::{FunctionId, PfId, software_card::CardLink};

use crate::{CardError, plan::uplink_name};

/// Control files of netdevsim.
const BUS: &str = "/sys/bus/netdevsim";

/// Test settings of netdevsim in debugfs.
const DEBUG: &str = "/sys/kernel/debug/netdevsim";

/// Name of the bus and prefix of device names.
const NAME: &str = "netdevsim";

/// First number that is tried. Lower ones are left to users; devices from this number on belong to cards.
const FIRST_NUMBER: u32 = 1000;

/// Default limit of VFs.
const USUAL_VFS: u16 = 4;

/// A netdevsim device. Its only port is the PF's uplink.
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
    /// Creates a device without VFs in a namespace.
    pub(crate) fn make(netns: &Netns) -> Result<Self, CardError> {
        if !Path::new(BUS).exists() {
            return Err(CardError::NoNetdevsim { bus: BUS });
        }
        // The kernel creates it in the namespace of the writing thread.
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
                Err(error) => return Err(error.into_error("make a netdevsim device")),
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

    /// Finds a card's device among a namespace's links, also if the card died. Only controller 0 can have one: the
    /// kernel's representors report that number.
    pub(crate) fn of_controller(controller: u32, links: &[Link]) -> Option<Self> {
        if controller == 0 { links.iter().find_map(Self::of) } else { None }
    }

    /// The card's device to which a link belongs.
    pub(crate) fn of(link: &Link) -> Option<Self> {
        let number = link.parent_device.as_deref()?.strip_prefix(NAME)?.parse().ok()?;
        let is_ours = link.parent_bus.as_deref() == Some(NAME) && number >= FIRST_NUMBER;
        is_ours.then_some(Self { number })
    }

    /// Whether a link is one of this device's ports.
    pub(crate) fn has(&self, link: &Link) -> bool {
        Self::of(link).as_ref() == Some(self)
    }

    pub(crate) fn represented(&self, link: &Link) -> Option<FunctionId> {
        let port = link.phys_port_name.as_deref().filter(|_| self.has(link))?;
        port.parse().ok()
    }

    /// Whether a link is a new uplink: without alias, because the kernel has just created it.
    pub(crate) fn is_new_uplink(&self, link: &Link) -> bool {
        self.has(link) && self.represented(link).is_none() && link.alias.is_none()
    }

    /// Creates the VFs and, by switchdev mode, their representors.
    pub(crate) fn make_vfs(&self, count: u16, netns: &Netns) -> Result<(), CardError> {
        if count > USUAL_VFS {
            let limit = format!("{DEBUG}/{self}/max_vfs");
            write(&limit, &count.to_string())
                .map_err(|error| error.into_error(&format!("allow {self} {count} VFs")))?;
        }
        let path = format!("{BUS}/devices/{self}/sriov_numvfs");
        write(&path, &count.to_string())
            .map_err(|error| error.into_error(&format!("give {self} {count} VFs")))?;
        let mut devlink = Devlink::open_in(netns)?;
        let device = DevlinkDevice { bus: NAME.to_owned(), name: self.to_string() };
        devlink.set_eswitch_mode(&device, EswitchMode::Switchdev)?;
        Ok(())
    }

    /// Deletes the device with all its links.
    pub(crate) fn delete(&self) -> Result<(), CardError> {
        write(&format!("{BUS}/del_device"), &self.number.to_string())
            .map_err(|error| error.into_error(&format!("delete {self}")))
    }
}

/// Name and alias of the uplink.
pub(crate) fn uplink_label() -> LinkChange<'static> {
    let id = PfId::local(0);
    LinkChange::new().name(uplink_name(id)).alias(CardLink::Uplink(id).to_string())
}

struct WriteError {
    path: String,
    source: io::Error,
}

impl WriteError {
    fn into_error(self, doing: &str) -> CardError {
        CardError::File { doing: doing.to_owned(), path: self.path, source: self.source }
    }
}

fn write(path: &str, text: &str) -> Result<(), WriteError> {
    fs::write(path, text).map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Whether the number is taken: the kernel reports ENOSPC then.
fn is_taken(error: &WriteError) -> bool {
    error.source.kind() == io::ErrorKind::StorageFull
}
