//! The steps out of the pod. None is undone: when one fails, the way is forward again.

use netlink::{Link, LinkChange, Netns, Request, Rtnl};
use saga::{Step, Steps};

use super::{MoveError, Original, VfMove, configure, port, port::ResetPort};
use crate::vf_source::{OwnState, PfPort};

/// Takes a VF out of its pod and restores it.
pub const STEPS: &Steps<VfMove, MoveError> = &[&Loosen, &MoveOut, &Restore];

/// Takes a VF back that has no link to move.
pub(super) const DEVICE_STEPS: &Steps<VfMove, MoveError> = &[&ResetPort];

/// Takes off the VF what would be in the move's way, and from its pod what was for the VF alone.
struct Loosen;

impl Step<VfMove> for Loosen {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "loosen"
    }

    fn run(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        loosen(vf_move)
    }
}

/// The one move back.
struct MoveOut;

impl Step<VfMove> for MoveOut {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "move-out"
    }

    fn run(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        move_out(vf_move)
    }
}

/// What the record tells, as it was: most VFs are then as they were in all else, too.
struct Restore;

impl Step<VfMove> for Restore {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "restore"
    }

    fn run(&self, vf_move: &mut VfMove) -> Result<(), MoveError> {
        restore(vf_move)
    }
}

pub(super) fn loosen(vf_move: &mut VfMove) -> Result<(), MoveError> {
    let Some(link) = vf_move.in_pod()? else { return Ok(()) };
    if vf_move.is_within_host() {
        configure::strip(&mut vf_move.host.rtnl, &link)?;
    }
    let Some(pod) = &mut vf_move.pod else { return Ok(()) };
    pod.rtnl.batch(&bare_of_names(&link))?;
    Ok(configure::remove_shared(&mut pod.rtnl, &vf_move.plan.routing, link.index)?)
}

/// The VF's own name, or, while somebody else has it, one that nobody has.
fn homecoming_name(host: &mut Rtnl, link: &Link, own: &str) -> Result<String, netlink::Error> {
    let is_free = host.link_by_name(own)?.is_none();
    Ok(if is_free { own.into() } else { format!("returned{}", link.index) })
}

pub(super) fn move_out(vf_move: &mut VfMove) -> Result<(), MoveError> {
    let Some(link) = vf_move.in_pod()? else { return Ok(()) };
    let name = homecoming_name(&mut vf_move.host.rtnl, &link, &vf_move.original.name)?;
    let Some(pod) = &mut vf_move.pod else { return Ok(()) };
    Ok(pod.rtnl.change(going_home(&link, &vf_move.host.netns, name))?)
}

/// No alternative name of the VF's is in the move's way.
fn bare_of_names(link: &Link) -> Vec<Request<'_>> {
    let names = link.alternative_names.iter();
    names.map(|name| Request::delete_alternative_name(link.index, name)).collect()
}

/// Off, namespace and name in one request, so that no name of the pod's is in its way, and the kernel's lock of links is
/// waited for once.
fn going_home<'a>(link: &Link, host: &'a Netns, name: String) -> Request<'a> {
    Request::change_link(link.index, &LinkChange::new().down().netns(host).name(name))
}

/// Makes the VF in the host's namespace what it was, from whatever it is now.
pub(super) fn restore(vf_move: &mut VfMove) -> Result<(), MoveError> {
    port::restore(vf_move, restore_link)
}

fn restore_link(vf_move: &mut VfMove) -> Result<(), MoveError> {
    let link = vf_move.in_host()?.ok_or_else(|| vf_move.missing())?;
    let requests = vf_move.original.restoring_requests(&link);
    Ok(vf_move.host.rtnl.batch(&requests)?)
}

/// Moves the link of a VF out of a pod of which there is no record. [`make_clean`] is to follow.
///
/// # Errors
/// The kernel's refusal.
pub fn take_out(
    pod: &mut Rtnl,
    link: &Link,
    host: (&Netns, &mut Rtnl),
    own_name: &str,
) -> Result<(), netlink::Error> {
    let (netns, host) = host;
    let name = homecoming_name(host, link, own_name)?;
    let mut requests = bare_of_names(link);
    requests.push(going_home(link, netns, name));
    pod.batch(&requests)
}

/// Makes a VF of which no record tells what it was like fit to be given out: switched off, without
/// addresses and XDP programs, with its own name, MTU and MAC address, and without anything that its
/// PF held it to at this `port`. What is right already is not asked of the kernel.
///
/// # Errors
/// The kernel's refusal, such as that another link has the name.
pub fn make_clean(
    host: &mut Rtnl,
    link: &Link,
    own: &OwnState,
    port: Option<&PfPort>,
) -> Result<(), MoveError> {
    // What a crash leaves half done is found by its link, so that comes last.
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
    requests.extend(Original::unrecorded(link, own).restoring_requests(link));
    host.batch(&requests)
}
