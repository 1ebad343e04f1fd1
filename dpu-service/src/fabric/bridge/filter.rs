//! Which frames a port takes from its pod.

use netlink::{Error, FrameFilter, Rtnl};

use crate::{
    driver::{Reading, Refused},
    eswitch::{Representor, gone_is_done},
    model::PortSettings,
};

/// What is dropped, for people.
pub(super) const WHAT: &str =
    "drops BPDUs and other link-local groups, and tagged frames unless the network has a trunk";

fn wanted(settings: &PortSettings) -> FrameFilter {
    FrameFilter { takes_tagged: !settings.trunk.is_empty() }
}

pub(super) fn set(
    rtnl: &mut Rtnl,
    port: &Representor,
    settings: &PortSettings,
) -> Result<(), Refused> {
    rtnl.traffic_control()
        .set_frame_filter(port.index, wanted(settings))
        .map_err(|error| refused(port, error))
}

pub(super) fn clear(rtnl: &mut Rtnl, port: &Representor) -> Result<(), Refused> {
    gone_is_done(rtnl.traffic_control().clear_frame_filter(port.index))
        .map_err(|error| refused(port, error))
}

pub(super) fn find(
    rtnl: &mut Rtnl,
    port: &Representor,
    settings: &PortSettings,
) -> Result<Reading, Refused> {
    let found =
        rtnl.traffic_control().frame_filter(port.index).map_err(|error| refused(port, error))?;
    let detail = match found {
        None => "any frame may be sent",
        Some(FrameFilter { takes_tagged: true }) => "no link-local groups",
        Some(FrameFilter { takes_tagged: false }) => "no link-local groups, untagged only",
    };
    Ok(Reading { in_place: found == Some(wanted(settings)), detail: detail.to_owned() })
}

fn refused(port: &Representor, error: Error) -> Refused {
    Refused::new(format!("filter what comes in at {}", port.name), error)
}
