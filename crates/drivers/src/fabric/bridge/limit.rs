//! The limit of what a pod sends: police at the representor's ingress, after the guard.

use netlink::{Police, PoliceInForce, Rtnl, gone_is_done};

use crate::{
    driver::{Reading, Refused},
    eswitch::Representor,
    fabric::EgressLimit,
};

/// What the limit covers: a sentence for people.
pub(super) const WHERE: &str = "by police at the representor's ingress, for VFs whose card limits nothing; frames that the \
                                card forwards by itself only where it carries out filters";

fn police(limit: &EgressLimit) -> Police {
    Police { rate_bits: limit.rate, burst_bits: limit.burst }
}

pub(super) fn set(rtnl: &mut Rtnl, port: &Representor, limit: &EgressLimit) -> Result<(), Refused> {
    rtnl.traffic_control()
        .set_police(port.index, police(limit), port.offloads_filters)
        .map_err(|error| Refused::new(format!("limit what comes in at {}", port.name), error))
}

pub(super) fn clear(rtnl: &mut Rtnl, port: &Representor) -> Result<(), Refused> {
    gone_is_done(rtnl.traffic_control().clear_police(port.index))
        .map_err(|error| Refused::new(format!("take the limit of {} away", port.name), error))
}

pub(super) fn find(
    rtnl: &mut Rtnl,
    port: &Representor,
    wanted: Option<&EgressLimit>,
) -> Result<Reading, Refused> {
    let found = rtnl.traffic_control().police(port.index);
    let unable = |error| Refused::new(format!("read the limit of {}", port.name), error);
    let found = found.map_err(unable)?;
    let in_place = found == wanted.map(police).map(PoliceInForce::from);
    let detail = match (found, wanted) {
        (None, _) => "unlimited".to_owned(),
        (Some(_), Some(wanted)) if in_place => wanted.to_string(),
        (Some(found), _) => format!("from the pod {} bit/s", found.rate_bits()),
    };
    Ok(Reading { in_place, detail })
}
