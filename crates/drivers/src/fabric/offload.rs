//! Counts the filters at representors that a card carries out, no matter which program set them.

use std::collections::{BTreeMap, BTreeSet};

use netlink::{Offload, Rtnl};

use crate::{counters::Offloaded, driver::Refused};

/// Counts the ingress filters of these links, by index.
pub(super) fn of_filters(
    rtnl: &mut Rtnl,
    ports: &BTreeSet<u32>,
) -> Result<BTreeMap<u32, Offloaded>, Refused> {
    let mut traffic_control = rtnl.traffic_control();
    let of_port = |port: &u32| {
        let offload = traffic_control.offload(*port);
        let Offload { filters: rules, in_hardware } =
            offload.map_err(|error| Refused::new(format!("look at link {port}"), error))?;
        Ok((*port, Offloaded { rules, in_hardware }))
    };
    ports.iter().map(of_port).collect()
}
