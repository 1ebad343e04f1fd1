//! Changes of a PF's number of VFs.

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

/// Options for a change of the number of VFs.
#[derive(Clone, Copy, Debug)]
pub struct Provisioning<'a> {
    /// VFs in use. While the PF has one of them, its number of VFs does not change.
    pub in_use: &'a [PciAddress],
    /// Whether the kernel binds drivers to new VFs. `None`: unchanged.
    pub probe_drivers: Option<bool>,
    /// Timeout for the netdevs of new VFs.
    pub timeout: Duration,
}

impl Default for Provisioning<'_> {
    fn default() -> Self {
        Self { in_use: &[], probe_drivers: None, timeout: Duration::from_secs(10) }
    }
}

impl Sysfs {
    /// Sets the number of VFs of a PF and waits for their netdevs. A PF that has this number keeps its VFs.
    ///
    /// The kernel only changes the number from or to 0, so all VFs are removed and created again. If the kernel refuses
    /// the number, the PF has none.
    ///
    /// # Errors
    /// [`Error::TooMany`] or [`Error::InUse`]: nothing has changed. [`Error::NoNetdev`]: the VFs exist, but some
    /// netdevs are missing. Otherwise the kernel's refusal.
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
        // Subscribe before the VFs are created, so that no netdev's event is missed.
        let events = DeviceEvents::open()
            .map_err(|source| Error::Read { path: "the kernel's device events".into(), source })?;
        if function.num_vfs != 0 {
            write(&path, "0")?;
        }
        if wanted != 0 {
            write(&path, &wanted.to_string())?;
        }
        self.await_netdevs(pf, &events, Instant::now() + how.timeout)
    }

    /// Whether the PF's number of VFs differs from `wanted` and nothing prevents a change. Changes nothing.
    ///
    /// # Errors
    /// [`Error::TooMany`], [`Error::InUse`], or sysfs cannot be read.
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

    /// Sets `sriov_drivers_autoprobe`. Kernels before 4.12 lack it and always bind drivers.
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
    /// Whether the driver creates netdevs and has not created this VF's yet.
    fn lacks_netdev(&self) -> bool {
        let is_netdev_driver = self.driver.as_deref().is_some_and(|driver| !is_vfio(driver));
        is_netdev_driver && self.netdevs.is_empty()
    }
}

fn unsupported(path: &Path, value: &str) -> Error {
    let source = io::ErrorKind::Unsupported.into();
    Error::Write { path: path.to_owned(), value: value.to_owned(), source }
}
