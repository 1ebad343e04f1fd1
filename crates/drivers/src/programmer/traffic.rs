//! Counters of ports, offload state, and the fabric's flows.

use std::collections::{BTreeMap, BTreeSet};

use vf_alloc::FunctionId;

use super::{Drivers, Programmer};
use crate::{
    counters::{PortCounters, PortTraffic},
    driver::Refused,
    eswitch::Carried,
};

/// A representor's index, and its port's counters.
type Counted = (u32, PortCounters);

impl Programmer {
    /// The counters of each port. The number of requests to the kernel does not depend on the number of ports.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn counters(&self) -> Result<BTreeMap<FunctionId, PortCounters>, Refused> {
        let Some(drivers) = &self.drivers else { return Ok(BTreeMap::new()) };
        let counted = drivers.count()?.into_iter();
        Ok(counted.map(|(vf, (_, counters))| (vf, counters)).collect())
    }

    /// The counters of these VFs' ports, and how much the card offloads: one more request per port.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn traffic(
        &self,
        vfs: &BTreeSet<FunctionId>,
    ) -> Result<BTreeMap<FunctionId, PortTraffic>, Refused> {
        let Some(drivers) = &self.drivers else { return Ok(BTreeMap::new()) };
        let mut counted = drivers.count()?;
        counted.retain(|vf, _| vfs.contains(vf));
        let indices = counted.values().map(|(index, _)| *index).collect();
        let offloaded = drivers.fabric.offloaded(&indices)?;
        let traffic = |(vf, (index, counters))| {
            let offloaded = offloaded.get(&index).copied().unwrap_or_default();
            (vf, PortTraffic { counters, offloaded })
        };
        Ok(counted.into_iter().map(traffic).collect())
    }

    /// The flows of the fabric's bridges: see [`crate::fabric::Fabric::flows`].
    ///
    /// # Errors
    /// When the flows can't be listed.
    pub fn flows(&self) -> Result<Vec<String>, Refused> {
        self.drivers.as_ref().map_or(Ok(Vec::new()), |drivers| drivers.fabric.flows())
    }
}

impl Drivers {
    /// Skips a representor that appeared after the counters were read.
    fn count(&self) -> Result<BTreeMap<FunctionId, Counted>, Refused> {
        let carried = self.eswitch.carried()?;
        let drops = self.fabric.drops()?;
        let representors = self.eswitch.representors()?.into_iter();
        let counted = representors.filter_map(|representor| {
            let index = representor.index;
            let Carried { sent, received, ingress_limit_drops } = *carried.get(&index)?;
            let drops = drops.get(&index).copied().unwrap_or_default();
            let counters = PortCounters { sent, received, drops, ingress_limit_drops };
            Some((representor.vf, (index, counters)))
        });
        Ok(counted.collect())
    }
}
