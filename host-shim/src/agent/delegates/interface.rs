//! The interface that plugins make, as the kernel has it in its pod, and what is set on it beside what they do.

use std::sync::Arc;

use ipnetwork::IpNetwork;
use netlink::{Link, MacAddress, Netns, Request, Rtnl};
use offload_proto::{Failure, Reason, v1};
use tokio::task::spawn_blocking;

use super::{failed, record::Delegated};
use crate::{
    agent::defect::defect,
    mover::{ForeignInterface, Routing, Shared, remove_routing},
    protocol::ExpectedInterface,
};

/// Before anything is made: what is there already is not ours to take back.
pub(super) async fn refuse_taken_name(delegated: &Delegated) -> Result<(), Failure> {
    match link_in_pod(delegated).await? {
        None => Ok(()),
        Some(link) => {
            let message = format!("there is an interface {} in the pod already", link.name);
            Err(Failure::new(Reason::InterfaceExists, message))
        }
    }
}

/// The link of its name in the pod.
pub(super) async fn link_in_pod(delegated: &Delegated) -> Result<Option<Link>, Failure> {
    at(delegated, |found| Ok(found.map(|found| found.link))).await
}

/// Removes default routes from the interface that a requested one replaces, and gives additional routes priorities that
/// the pod does not use.
pub(super) async fn make_way(
    delegated: &Delegated,
    mut added: v1::Attachment,
) -> Result<v1::Attachment, Failure> {
    let families = delegated.default_routes.families_asked_for();
    at_its(delegated, move |mut its| {
        families.into_iter().try_for_each(|of_ipv6| its.drop_default_routes(of_ipv6))?;
        its.pod.give_way([&mut added])?;
        Ok(added)
    })
    .await
}

/// Sets what is to be set beside.
pub(super) async fn set(delegated: &Delegated, added: &v1::Attachment) -> Result<(), Failure> {
    let routing = routing(delegated, added)?;
    at_its(delegated, move |mut its| its.set(&routing)).await
}

/// What the pod has lost of what was set beside. `None`: nothing, or all with its interface.
pub(super) async fn lost(delegated: &Delegated) -> Result<Option<String>, Failure> {
    let Some(added) = &delegated.added else { return Ok(None) };
    let routing = routing(delegated, added)?;
    at(delegated, move |found| found.map_or(Ok(None), |mut its| its.lost(&routing))).await
}

/// Compares the kernel with the runtime's result and the agent's additions.
///
/// # Errors
/// The first problem.
pub(super) async fn compare(
    delegated: &Delegated,
    promise: &ExpectedInterface,
) -> Result<(), Failure> {
    let routing = delegated.added.as_ref().map(|added| routing(delegated, added)).transpose()?;
    let promise = promise.clone();
    let difference = at_its(delegated, move |mut its| {
        if let Some(broken) = broken(&promise, &mut its)? {
            return Ok(Some(broken));
        }
        routing.map_or(Ok(None), |routing| its.lacks(&routing))
    });
    difference.await?.map_or(Ok(()), |what| Err(failed(&delegated.chain, &what)))
}

fn broken(
    promise: &ExpectedInterface,
    its: &mut ForeignInterface,
) -> Result<Option<String>, netlink::Error> {
    let mac = its.link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    if let Some(promised) = promise.mac.as_ref().filter(|it| !it.eq_ignore_ascii_case(&mac)) {
        return Ok(Some(format!("its MAC address is {mac}, not {promised}")));
    }
    let held = its.addresses()?;
    let is_held = |told: &&String| told.parse::<IpNetwork>().is_ok_and(|it| held.contains(&it));
    let lost = promise.addresses.iter().find(|told| !is_held(told));
    Ok(lost.map(|lost| format!("its interface does not hold {lost}")))
}

/// Takes out of the pod what was set beside, but for what `others` bring as well.
pub(super) async fn take_off_added(delegated: &Delegated, others: Shared) {
    let Some(added) = &delegated.added else { return };
    let Some(netns) = delegated.netns.living() else { return };
    let Ok(routing) = routing(delegated, added) else { return };
    let routing = Routing { shared_by_others: others, ..routing };
    let taken = spawn_blocking(move || remove_routing(Arc::new(netns), &routing)).await;
    if let Ok(Err(error)) = taken {
        tracing::warn!(key = %delegated.key, %error, "cannot remove the interface's routes and rules from the pod");
    }
}

/// Deletes the link of its name in the pod, unless it is known to be another. Hardware can't be deleted: it comes home by
/// itself when the pod ends.
pub(super) async fn delete_link(delegated: &Delegated) {
    let Some(netns) = delegated.netns.living() else { return };
    let name = delegated.key.interface_name.clone();
    let made = delegated.attachment.as_ref().and_then(|made| made.mac.parse().ok());
    let deleted = spawn_blocking(move || delete_link_in(&netns, &name, made)).await;
    if let Ok(Err(error)) = deleted {
        tracing::warn!(key = %delegated.key, %error, "cannot delete the interface from the pod");
    }
}

fn delete_link_in(
    netns: &Netns,
    name: &str,
    made: Option<MacAddress>,
) -> Result<(), netlink::Error> {
    let mut rtnl = Rtnl::open_in(netns)?;
    let is_it = |link: &Link| made.is_none() || link.mac == made;
    match rtnl.link_by_name(name)?.filter(is_it) {
        Some(link) => rtnl.change(Request::delete_link(link.index)),
        None => Ok(()),
    }
}

fn routing(delegated: &Delegated, added: &v1::Attachment) -> Result<Routing, Failure> {
    let unread = |error: crate::mover::PlanError| {
        failed(&delegated.chain, &format!("cannot add routes to it: it has {}", error.held()))
    };
    Routing::new(added).map_err(unread)
}

/// Works at the interface, which has to be there.
async fn at_its<T: Send + 'static>(
    delegated: &Delegated,
    work: impl FnOnce(ForeignInterface) -> Result<T, netlink::Error> + Send + 'static,
) -> Result<T, Failure> {
    let found = at(delegated, |found| found.map(work).transpose()).await?;
    found.ok_or_else(|| {
        let name = &delegated.key.interface_name;
        failed(&delegated.chain, &format!("there is no interface {name} in the pod"))
    })
}

/// Works at the interface of its name in the pod, if it is there, on a thread that may block.
async fn at<T: Send + 'static>(
    delegated: &Delegated,
    work: impl FnOnce(Option<ForeignInterface>) -> Result<T, netlink::Error> + Send + 'static,
) -> Result<T, Failure> {
    let netns = delegated.netns.open()?;
    let name = delegated.key.interface_name.clone();
    let worked =
        spawn_blocking(move || work(ForeignInterface::find(Arc::new(netns), &name)?)).await;
    let worked = worked.map_err(|error| defect(&error))?;
    worked.map_err(|error| failed(&delegated.chain, &error.to_string()))
}
