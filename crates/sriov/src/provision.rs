//! How many VFs a PF has.

use std::{
    io,
    path::Path,
    time::{Duration, Instant},
};

use crate::{
    Error, PciAddress, Sysfs, VirtualFunction,
    events::DeviceEvents,
    is_vfio,
    sysfs::{text, write},
};

/// What is known besides the number when the VFs of a PF are made.
#[derive(Clone, Copy, Debug)]
pub struct Provisioning<'a> {
    /// The VFs that somebody uses. While one of them is the PF's, its number of VFs stays.
    pub in_use: &'a [PciAddress],
    /// Whether the kernel looks for drivers for the new VFs. `None`: as it is.
    pub probe_drivers: Option<bool>,
    /// How long to wait for the netdevs of VFs whose driver makes one.
    pub patience: Duration,
}

impl Default for Provisioning<'_> {
    fn default() -> Self {
        Self { in_use: &[], probe_drivers: None, patience: Duration::from_secs(10) }
    }
}

impl Sysfs {
    /// Gives a PF so many VFs, and waits for their netdevs. A PF that has as many keeps them. The
    /// kernel changes the number only from 0 or to 0, so all VFs of the PF go and come anew. A number
    /// that the kernel refuses leaves the PF with none.
    ///
    /// # Errors
    /// [`Error::TooMany`], [`Error::InUse`]: nothing was changed. [`Error::NoNetdev`]: the VFs are
    /// there, but not all of their netdevs. Else the kernel's refusal.
    pub fn set_num_vfs(
        &self,
        pf: PciAddress,
        wanted: u32,
        how: &Provisioning<'_>,
    ) -> Result<Vec<VirtualFunction>, Error> {
        if !self.is_change_due(pf, wanted, how.in_use)? {
            return self.virtual_functions(pf);
        }
        let function = self.physical_function(pf)?;
        if let Some(on) = how.probe_drivers {
            self.set_probing(pf, on)?;
        }
        let path = self.device(pf).join("sriov_numvfs");
        // Before the VFs are made, or the event that tells of a netdev could be missed.
        let events = DeviceEvents::open()
            .map_err(|source| Error::Read { path: "the kernel's device events".into(), source })?;
        if function.num_vfs != 0 {
            write(&path, "0")?;
        }
        if wanted != 0 {
            write(&path, &wanted.to_string())?;
        }
        self.await_netdevs(pf, &events, Instant::now() + how.patience)
    }

    /// Whether a PF has another number of VFs than wanted, and nothing is known to be in the way of a
    /// change. Changes nothing.
    ///
    /// # Errors
    /// [`Error::TooMany`], [`Error::InUse`]; else sysfs can't be read.
    pub fn is_change_due(
        &self,
        pf: PciAddress,
        wanted: u32,
        in_use: &[PciAddress],
    ) -> Result<bool, Error> {
        let pf = self.physical_function(pf)?;
        if pf.num_vfs == wanted {
            return Ok(false);
        }
        if wanted > pf.total_vfs {
            let (pf, total) = (pf.address, pf.total_vfs);
            return Err(Error::TooMany { pf, wanted, total });
        }
        let vfs = self.virtual_functions(pf.address)?;
        match vfs.iter().find(|vf| in_use.contains(&vf.address)) {
            None => Ok(true),
            Some(vf) => Err(Error::InUse {
                pf: pf.address,
                present: pf.num_vfs,
                wanted,
                in_use: vf.address,
            }),
        }
    }

    /// Kernels before 4.12 always look for drivers.
    fn set_probing(&self, pf: PciAddress, on: bool) -> Result<(), Error> {
        let path = self.device(pf).join("sriov_drivers_autoprobe");
        let value = if on { "1" } else { "0" };
        match text(&path)? {
            Some(present) if present != value => write(&path, value),
            None if !on => Err(unsupported(&path, value)),
            _ => Ok(()),
        }
    }

    fn await_netdevs(
        &self,
        pf: PciAddress,
        events: &DeviceEvents,
        deadline: Instant,
    ) -> Result<Vec<VirtualFunction>, Error> {
        loop {
            let vfs = self.virtual_functions(pf)?;
            let Some(late) = vfs.iter().find(|vf| vf.lacks_netdev()) else { return Ok(vfs) };
            if Instant::now() >= deadline {
                let (vf, driver) = (late.address, late.driver.clone());
                return Err(Error::NoNetdev { pf, vf, driver });
            }
            let path = Path::new("the kernel's device events");
            events.wait(deadline).map_err(|source| Error::Read { path: path.into(), source })?;
        }
    }
}

impl VirtualFunction {
    /// Whether its driver is one that makes a netdev, and has not made it yet.
    fn lacks_netdev(&self) -> bool {
        let is_netdev_driver = self.driver.as_deref().is_some_and(|driver| !is_vfio(driver));
        is_netdev_driver && self.netdevs.is_empty()
    }
}

fn unsupported(path: &Path, value: &str) -> Error {
    let source = io::ErrorKind::Unsupported.into();
    Error::Write { path: path.to_owned(), value: value.to_owned(), source }
}
