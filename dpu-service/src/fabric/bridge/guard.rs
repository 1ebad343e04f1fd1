//! What a port takes from its pod: a filter at the representor's ingress, before the bridge sees a frame.

use std::collections::BTreeMap;

use netlink::{Error, Guarding, Rtnl};

use crate::{
    driver::{Reading, Refused},
    eswitch::{Representor, gone_is_done},
    fabric::guard::{told, wanted},
    model::PortSettings,
};

/// What is done where it can be, for people.
pub(super) const WHERE: &str = "in software, where the kernel sees a frame: what a card forwards by itself is not \
                                looked at";

pub(super) fn set(
    rtnl: &mut Rtnl,
    port: &Representor,
    settings: &PortSettings,
) -> Result<(), Refused> {
    rtnl.traffic_control()
        .set_guard(port.index, &wanted(settings))
        .map_err(|error| refused(port, error))
}

pub(super) fn clear(rtnl: &mut Rtnl, port: &Representor) -> Result<(), Refused> {
    gone_is_done(rtnl.traffic_control().clear_guard(port.index))
        .map_err(|error| refused(port, error))
}

pub(super) fn find(
    rtnl: &mut Rtnl,
    port: &Representor,
    settings: &PortSettings,
) -> Result<Reading, Refused> {
    let wanted = wanted(settings);
    let found = rtnl.traffic_control().guarding(port.index, &wanted);
    Ok(match found.map_err(|error| refused(port, error))? {
        Guarding::AsWanted => Reading::in_place(told(&wanted)),
        Guarding::Otherwise => Reading::missing("something else is filtered"),
        Guarding::Missing => Reading::missing("any frame may be sent"),
    })
}

/// How many packets were dropped where guards are, by link. What others have dropped there is counted along.
pub(super) fn drops(rtnl: &mut Rtnl) -> Result<BTreeMap<u32, u64>, Refused> {
    let drops = rtnl.traffic_control().drops();
    let drops = drops.map_err(|error| Refused::new("count what the guards have dropped", error))?;
    Ok(drops.into_iter().map(|(index, drops)| (index, drops.by_filters)).collect())
}

fn refused(port: &Representor, error: Error) -> Refused {
    Refused::new(format!("filter what comes in at {}", port.name), error)
}
