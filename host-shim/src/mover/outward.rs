//! The steps of a move out of the pod. None is undone: after a failure the call is repeated.

use netlink::{Link, LinkChange, Netns, Request, Rtnl};
use saga::Steps;

use super::{Baseline, MoveError, VfMove, action::Action, configure, port};
use crate::vf_source::{OwnState, PfPort};

/// Moves a VF out of its pod and restores it.
pub const STEPS: &Steps<VfMove, MoveError> = &[
    &Action { name: "loosen", run: loosen },
    &Action { name: "move-out", run: move_out },
    &Action { name: "restore", run: restore },
];

/// The steps for a VF without a link.
pub(super) const DEVICE_STEPS: &Steps<VfMove, MoveError> =
    &[&Action { name: "reset-port", run: port::reset }];

/// Removes from the VF what would make the kernel refuse the move, and from the pod the rules and routes that came with
/// the VF.
pub(super) fn loosen(vf_move: &mut VfMove) -> Result<(), MoveError> {
    let Some(link) = vf_move.in_pod()? else { return Ok(()) };
    // A host port changes no namespace, so the move does not remove its addresses.
    if vf_move.is_within_host() {
        configure::strip(&mut vf_move.host.rtnl, &link)?;
    }
    let Some(pod) = &mut vf_move.pod else { return Ok(()) };
    pod.rtnl.batch(&without_alternative_names(&link))?;
    Ok(configure::remove_shared(&mut pod.rtnl, &vf_move.spec.plan.routing, link.index)?)
}

/// The VF's own name, or a unique one while another link has that name.
fn name_in_host(host: &mut Rtnl, link: &Link, own: &str) -> Result<String, netlink::Error> {
    let is_free = host.link_by_name(own)?.is_none();
    Ok(if is_free { own.into() } else { format!("returned{}", link.index) })
}

pub(super) fn move_out(vf_move: &mut VfMove) -> Result<(), MoveError> {
    let Some(link) = vf_move.in_pod()? else { return Ok(()) };
    // Another program may take the name before the move. The kernel then refuses the move, and the repeated call
    // chooses again.
    let name = name_in_host(&mut vf_move.host.rtnl, &link, &vf_move.spec.original.name)?;
    let Some(pod) = &mut vf_move.pod else { return Ok(()) };
    Ok(pod.rtnl.change(move_to_host(&link, &vf_move.host.netns, name))?)
}

/// Requests that delete the VF's alternative names: one that exists in the host's namespace makes the kernel refuse the
/// move.
fn without_alternative_names(link: &Link) -> Vec<Request<'_>> {
    let names = link.alternative_names.iter();
    names.map(|name| Request::delete_alternative_name(link.index, name)).collect()
}

/// Sets down, namespace and name in one request. The pod's name for the link cannot collide in the host's namespace,
/// and RTNL is taken once.
fn move_to_host<'a>(link: &Link, host: &'a Netns, name: String) -> Request<'a> {
    Request::change_link(link.index, &LinkChange::new().down().netns(host).name(name))
}

/// Restores in the host's namespace what the record holds, from any state. For most VFs that is the whole baseline.
pub(super) fn restore(vf_move: &mut VfMove) -> Result<(), MoveError> {
    port::restore(vf_move, restore_link)
}

fn restore_link(vf_move: &mut VfMove) -> Result<(), MoveError> {
    let link = vf_move.in_host()?.ok_or_else(|| vf_move.missing())?;
    let requests = vf_move.spec.original.restoring_requests(&link);
    Ok(vf_move.host.rtnl.batch(&requests)?)
}

/// Moves a VF's link out of a pod that no record names. The caller then calls [`make_clean`].
///
/// # Errors
/// The kernel refuses the request.
pub fn take_out(
    pod: &mut Rtnl,
    link: &Link,
    host: (&Netns, &mut Rtnl),
    own_name: &str,
) -> Result<(), netlink::Error> {
    let (netns, host) = host;
    let name = name_in_host(host, link, own_name)?;
    let mut requests = without_alternative_names(link);
    requests.push(move_to_host(link, netns, name));
    pod.batch(&requests)
}

/// Makes a VF without a recorded baseline allocatable: down, no addresses, no XDP programs, own name, MTU and MAC
/// address, default settings on its PF's `port`. Settings that are right already are not sent.
///
/// # Errors
/// The kernel refuses a request, for example because another link has the name.
pub fn make_clean(
    host: &mut Rtnl,
    link: &Link,
    own: &OwnState,
    port: Option<&PfPort>,
) -> Result<(), MoveError> {
    // The link comes last: after a crash the reconciler finds an unfinished VF by its link's state.
    if let Some(port) = port {
        port::loosen(host, port, &port::UNUSED, own.mac)?;
    }
    make_link_clean(host, link, own)?;
    port.map_or(Ok(()), |port| port::settle(host, port, &port::UNUSED))
}

fn make_link_clean(host: &mut Rtnl, link: &Link, own: &OwnState) -> Result<(), netlink::Error> {
    let addresses = host.addresses(link.index)?.into_iter();
    let mut requests: Vec<_> =
        addresses.map(|address| Request::delete_address(link.index, address)).collect();
    requests.extend(Baseline::unrecorded(link, own).restoring_requests(link));
    host.batch(&requests)
}
