//! The steps into the pod.

use std::{sync::Arc, time::Instant};

use netlink::{CarrierWatch, Link, LinkChange, Request};
use saga::{Step, Steps};

use super::{MoveError, Namespace, Scene, configure, outward, port::SetPort};

/// Moves a VF into its pod.
pub const STEPS: &Steps<Scene, MoveError> =
    &[&CheckNames, &Prepare, &SetPort, &MoveIn, &Configure, &WatchCarrier];

/// The step that finds out whether there is a carrier, and what it does where there is none.
pub(super) const WATCH_CARRIER: &str = "watch-carrier";

/// Gives a pod a VF that has no link to move.
pub(super) const DEVICE_STEPS: &Steps<Scene, MoveError> = &[&SetPort];

/// The names that the pod's interfaces have.
fn names(links: &[Link]) -> impl Iterator<Item = &String> {
    links.iter().flat_map(|link| link.alternative_names.iter().chain([&link.name]))
}

/// The kernel would move the VF and then refuse to rename it; so the name is looked at first.
struct CheckNames;

impl Step<Scene> for CheckNames {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "check-names"
    }

    fn run(&self, scene: &mut Scene) -> Result<(), MoveError> {
        if is_name_taken(scene)? { Err(interface_exists(scene)) } else { Ok(()) }
    }
}

fn is_name_taken(scene: &mut Scene) -> Result<bool, MoveError> {
    let mut links = scene.pod()?.rtnl.links()?;
    let (source, pci_address) = (&scene.source, &scene.pci_address);
    links.retain(|link| source.vf_of(link).is_none_or(|vf| vf.pci_address != *pci_address));
    Ok(names(&links).any(|name| *name == scene.plan.name))
}

fn interface_exists(scene: &Scene) -> MoveError {
    MoveError::InterfaceExists(scene.plan.name.clone())
}

/// Another may have taken the name after the look at it.
fn why_refused(scene: &mut Scene, error: netlink::Error) -> MoveError {
    match error.is_exists().then(|| is_name_taken(scene)) {
        Some(Ok(true)) => interface_exists(scene),
        _ => error.into(),
    }
}

/// Switches the VF off and takes the alternative names off it that would be in the move's way.
struct Prepare;

impl Step<Scene> for Prepare {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "prepare"
    }

    fn run(&self, scene: &mut Scene) -> Result<(), MoveError> {
        let started = Instant::now();
        scene.departing = scene.in_host()?;
        let Some(link) = scene.departing.clone() else { return Ok(()) };
        let taken = if link.alternative_names.is_empty() {
            Vec::new()
        } else {
            scene.pod()?.rtnl.links()?
        };
        let clashing = link.alternative_names.iter().filter(|alternative| {
            **alternative == scene.plan.name || names(&taken).any(|name| name == *alternative)
        });
        let mut requests: Vec<_> =
            clashing.map(|name| Request::delete_alternative_name(link.index, name)).collect();
        if link.is_up {
            requests.push(Request::change_link(link.index, &LinkChange::new().down()));
        }
        scene.host.rtnl.batch(&requests)?;
        scene.durations.configure += started.elapsed();
        Ok(())
    }

    fn undo(&self, scene: &mut Scene) -> Result<(), MoveError> {
        if scene.was_in_pod()? { Ok(()) } else { outward::restore(scene) }
    }
}

/// The one move: namespace and name in one request. Where it fails, the VF may be on either side.
struct MoveIn;

impl Step<Scene> for MoveIn {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "move-in"
    }

    fn run(&self, scene: &mut Scene) -> Result<(), MoveError> {
        let started = Instant::now();
        if let Some(link) = scene.departing.take() {
            let netns = Arc::clone(&scene.pod()?.netns);
            let change = LinkChange::new().netns(&netns).name(&scene.plan.name);
            scene.is_fresh = true;
            let moved = scene.host.rtnl.change_link(link.index, &change);
            moved.map_err(|error| why_refused(scene, error))?;
        }
        scene.arrived = Some(arrival(scene)?);
        scene.durations.relocate = started.elapsed();
        Ok(())
    }

    /// What was in its pod before stays there, where it may still serve.
    fn undo(&self, scene: &mut Scene) -> Result<(), MoveError> {
        if scene.was_in_pod()? {
            return Ok(());
        }
        outward::take_down(scene)?;
        outward::move_out(scene)
    }
}

/// The VF in the pod, where it may have another index now. One that was there already, as after a
/// crash, may still have its old name.
fn arrival(scene: &mut Scene) -> Result<Link, MoveError> {
    let link = scene.in_pod()?.ok_or_else(|| scene.missing())?;
    if link.name == scene.plan.name {
        return Ok(link);
    }
    let down = Request::change_link(link.index, &LinkChange::new().down());
    let name = LinkChange::new().name(&scene.plan.name);
    let rename = Request::change_link(link.index, &name);
    let renamed = scene.pod()?.rtnl.batch(&[down, rename]);
    renamed.map_err(|error| why_refused(scene, error))?;
    scene.in_pod()?.ok_or_else(|| scene.missing())
}

/// MAC address, MTU, addresses, routes and rules.
struct Configure;

impl Step<Scene> for Configure {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        "configure"
    }

    fn run(&self, scene: &mut Scene) -> Result<(), MoveError> {
        let started = Instant::now();
        let link = scene.arrived()?;
        let (plan, is_fresh) = (scene.plan.clone(), scene.is_fresh);
        let pod = scene.pod()?;
        configure::configure(&pod.netns, &mut pod.rtnl, &link, &plan, is_fresh)?;
        scene.durations.configure += started.elapsed();
        Ok(())
    }

    fn undo(&self, scene: &mut Scene) -> Result<(), MoveError> {
        match &mut scene.pod {
            Some(pod) if scene.is_fresh => Ok(configure::remove_rules(&mut pod.rtnl, &scene.plan)?),
            _ => Ok(()),
        }
    }
}

/// Looks for the carrier, for which the VF's [`Arrival`](super::Arrival) waits where there is none.
struct WatchCarrier;

impl Step<Scene> for WatchCarrier {
    type Error = MoveError;

    fn name(&self) -> &'static str {
        WATCH_CARRIER
    }

    fn run(&self, scene: &mut Scene) -> Result<(), MoveError> {
        let index = scene.arrived()?.index;
        let Namespace { netns, rtnl } = scene.pod()?;
        scene.carrier = CarrierWatch::unless_there(netns, rtnl, index)?;
        Ok(())
    }
}
