//! The steps of a move into the pod.

use std::{sync::Arc, time::Instant};

use netlink::{CarrierWatch, Link, LinkChange, Request};
use saga::{Step, Steps};

use super::{MoveError, Namespace, VfMove, action::Action, configure, outward, port::SetPort};

/// Moves a VF into its pod.
pub const STEPS: &Steps<VfMove, MoveError> = &[
    &Action { name: "check-names", run: check_names },
    &Prepare,
    &SetPort,
    &MoveIn,
    &Action { name: "set-sysctls", run: set_sysctls },
    &Configure,
    &Action { name: WATCH_CARRIER, run: watch_carrier },
];

/// The name of the step that checks the carrier.
pub(super) const WATCH_CARRIER: &str = "watch-carrier";

/// The steps for a VF without a link, such as one for vfio.
pub(super) const DEVICE_STEPS: &Steps<VfMove, MoveError> = &[&SetPort];

/// The names and alternative names of links.
pub(super) fn names(links: &[Link]) -> impl Iterator<Item = &String> {
    links.iter().flat_map(|link| link.alternative_names.iter().chain([&link.name]))
}

/// Checks the name before the move: the kernel's request is not atomic, it would move the VF and then refuse the
/// rename. A VF of a speculative move is in the pod already; its rename fails by itself when the name is taken.
fn check_names(vf_move: &mut VfMove) -> Result<(), MoveError> {
    match !vf_move.is_fresh && is_name_taken(vf_move)? {
        true => Err(interface_exists(vf_move)),
        false => Ok(()),
    }
}

fn is_name_taken(vf_move: &mut VfMove) -> Result<bool, MoveError> {
    let others = other_links(vf_move)?;
    Ok(names(&others).any(|name| *name == vf_move.spec.plan.routing.name))
}

/// The pod's links without the VF's own.
fn other_links(vf_move: &mut VfMove) -> Result<Vec<Link>, MoveError> {
    let mut links = vf_move.pod()?.rtnl.links()?;
    let (source, device) = (&vf_move.spec.source, &vf_move.spec.device);
    links.retain(|link| source.vf_of(link).is_none_or(|vf| vf.device != *device));
    Ok(links)
}

fn interface_exists(vf_move: &VfMove) -> MoveError {
    MoveError::InterfaceExists(vf_move.spec.plan.routing.name.clone())
}

/// Explains a refusal: another process may have taken the name after [`check_names`].
fn why_refused(vf_move: &mut VfMove, error: netlink::Error) -> MoveError {
    match error.is_exists().then(|| is_name_taken(vf_move)) {
        Some(Ok(true)) => interface_exists(vf_move),
        _ => error.into(),
    }
}

/// Switches the VF off and deletes alternative names that would make the kernel refuse the move.
struct Prepare;

impl Step<VfMove> for Prepare {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "prepare"
    }

    fn run(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        if vf_move.is_fresh {
            return Ok(());
        }
        let started = Instant::now();
        prepare(vf_move)?;
        vf_move.durations.configure += started.elapsed();
        Ok(())
    }

    fn undo(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        if vf_move.was_in_pod()? { Ok(()) } else { outward::restore(vf_move) }
    }
}

pub(super) fn prepare(vf_move: &mut VfMove) -> Result<(), MoveError> {
    vf_move.departing = vf_move.in_host()?;
    let Some(link) = vf_move.departing.clone() else { return Ok(()) };
    // Without alternative names nothing can clash here, which saves listing the pod's links.
    let taken = if link.alternative_names.is_empty() { Vec::new() } else { other_links(vf_move)? };
    let clashing = link.alternative_names.iter().filter(|alternative| {
        vf_move.names_to_come.contains(*alternative)
            || names(&taken).any(|name| name == *alternative)
    });
    let mut requests: Vec<_> =
        clashing.map(|name| Request::delete_alternative_name(link.index, name)).collect();
    if link.is_up {
        requests.push(Request::change_link(link.index, &LinkChange::new().down()));
    }
    Ok(vf_move.host.rtnl.batch(&requests)?)
}

/// Changes namespace and name in one request; after a speculative move the name only. When it fails, the VF may be on
/// either side.
struct MoveIn;

impl Step<VfMove> for MoveIn {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "move-in"
    }

    fn run(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        let started = Instant::now();
        // `RTM_SETLINK` moves first and renames then. A failed rename leaves the VF in the pod under its old name;
        // `undo` looks on both sides.
        if let Some(link) = vf_move.departing.take() {
            let netns = Arc::clone(&vf_move.pod()?.netns);
            let change = LinkChange::new().netns(&netns).name(&vf_move.spec.plan.routing.name);
            // Set before the request, whose second half may fail: `undo` must move a VF out that arrived without its
            // name.
            vf_move.is_fresh = !vf_move.is_within_host();
            let moved = vf_move.host.rtnl.change_link(link.index, &change);
            moved.map_err(|error| why_refused(vf_move, error))?;
        }
        vf_move.arrived = Some(arrival(vf_move)?);
        vf_move.durations.relocate = started.elapsed();
        Ok(())
    }

    /// A VF that was in the pod before this call stays there: the pod may be using it.
    fn undo(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        if vf_move.was_in_pod()? {
            return Ok(());
        }
        outward::loosen(vf_move)?;
        outward::move_out(vf_move)
    }
}

/// The VF's link in the pod, where its index may differ. A link from before a crash may still have its old name.
fn arrival(vf_move: &mut VfMove) -> Result<Link, MoveError> {
    let mut link = vf_move.in_pod()?.ok_or_else(|| vf_move.missing())?;
    if link.name == vf_move.spec.plan.routing.name {
        return Ok(link);
    }
    // Kernels before 6.2 refuse to rename a link that is up.
    let down = Request::change_link(link.index, &LinkChange::new().down());
    let name = LinkChange::new().name(&vf_move.spec.plan.routing.name);
    let rename = Request::change_link(link.index, &name);
    let renamed = vf_move.pod()?.rtnl.batch(&[down, rename]);
    renamed.map_err(|error| why_refused(vf_move, error))?;
    link.name.clone_from(&vf_move.spec.plan.routing.name);
    link.is_up = false;
    Ok(link)
}

/// Sets the interface's sysctls. A namespace change resets them, so there is no undo.
fn set_sysctls(vf_move: &mut VfMove) -> Result<(), MoveError> {
    let started = Instant::now();
    let link = vf_move.arrived()?;
    let netns = Arc::clone(&vf_move.pod()?.netns);
    configure::set_sysctls(&netns, &link, &vf_move.spec.plan, vf_move.extent(&link))?;
    vf_move.durations.configure += started.elapsed();
    Ok(())
}

/// Sets MAC address, MTU, addresses, routes and rules.
struct Configure;

impl Step<VfMove> for Configure {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "configure"
    }

    fn run(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        let started = Instant::now();
        let link = vf_move.arrived()?;
        let (plan, extent) = (vf_move.spec.plan.clone(), vf_move.extent(&link));
        let pod = vf_move.pod()?;
        configure::configure(&mut pod.rtnl, &link, &plan, extent)?;
        vf_move.durations.configure += started.elapsed();
        Ok(())
    }

    fn undo(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        match (&mut vf_move.pod, &vf_move.arrived) {
            (Some(pod), Some(link)) if vf_move.is_fresh => {
                Ok(configure::remove_shared(&mut pod.rtnl, &vf_move.spec.plan.routing, link.index)?)
            }
            _ => Ok(()),
        }
    }
}

/// Checks the carrier. If it is down, the [`Arrival`](super::Arrival) waits for it.
fn watch_carrier(vf_move: &mut VfMove) -> Result<(), MoveError> {
    let index = vf_move.arrived()?.index;
    let Namespace { netns, rtnl } = vf_move.pod()?;
    vf_move.carrier = CarrierWatch::unless_there(netns, rtnl, index)?;
    Ok(())
}
