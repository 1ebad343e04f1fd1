//! Plugging in and unplugging.

use std::process::Command;

use netlink::{IpNetwork, Link, LinkChange, Netns, Request, Rtnl, VethEnd, gone_is_done};
use vf_alloc::{FunctionId, PfId, software_card::CardLink};

use crate::{
    CardError, Kind, Namespaces, Plan, Side,
    netdevsim::Device,
    plan::{FIRST_MTU, first_mac, management_name, vf_name, wire_name},
    wires::{self, WIRE_MTU},
};

/// Queue length of a link with an alias. The kernel sends no event for a new alias of a link that is down, but it does
/// for a new queue length. So every link gets both in one request.
const LABELLED_QUEUE: u32 = 1000;

/// Queue length of a link without an alias yet. If the card dies before it sets the alias, this length identifies the
/// link.
const fn unlabelled_queue(controller: u32) -> u32 {
    LABELLED_QUEUE + 1 + controller
}

/// Sets a link's alias and triggers an event.
pub(crate) fn label(link: CardLink) -> LinkChange<'static> {
    LinkChange::new().alias(link.to_string()).queue_length(LABELLED_QUEUE)
}

/// The request that creates a VF and its inner end, to be sent in the host's namespace. From the DPU's, older kernels
/// refuse it if the DPU has a link with the VF's name or index.
pub(crate) fn make_pair<'a>(
    id: FunctionId,
    vf: VethEnd<'a>,
    kind: Kind,
    namespaces: &'a Namespaces,
) -> Request<'a> {
    let queue = unlabelled_queue(id.pf.controller);
    let inner = inner_end(&kind.inner_name(id), kind, namespaces).queue_length(queue);
    Request::add_veth(&vf.queue_length(queue), &inner)
}

/// The request that sets the inner end's alias, to be sent in the DPU's namespace.
pub(crate) fn label_inner(id: FunctionId, kind: Kind) -> Request<'static> {
    let label = inner_label(kind, kind.inner_link(id));
    Request::change_link_named(&kind.inner_name(id), &label)
}

fn inner_end<'a>(name: &str, kind: Kind, namespaces: &'a Namespaces) -> VethEnd<'a> {
    let end = VethEnd::new(name).netns(&namespaces.dpu);
    match kind {
        Kind::Veth => end,
        Kind::Netdevsim => end.mtu(WIRE_MTU),
    }
}

/// A wire is always up; the representor's state decides whether frames flow.
fn inner_label(kind: Kind, link: CardLink) -> LinkChange<'static> {
    match kind {
        Kind::Veth => label(link),
        Kind::Netdevsim => label(link).up(),
    }
}

/// Creates all links of a card, or none.
pub(crate) fn plug(namespaces: &Namespaces, plan: &Plan) -> Result<(), CardError> {
    plan.check()?;
    if namespaces.host.id() == namespaces.dpu.id() {
        return Err(CardError::SameNetns(namespaces.host.id()));
    }
    check_room(namespaces, plan)?;
    let made = match plan.kind {
        Kind::Veth => make_links(namespaces, plan).map_err(Into::into),
        Kind::Netdevsim => make_simulated(namespaces, plan),
    };
    made.map_err(|error| match unplug(namespaces, plan.controller) {
        Ok(_) => error,
        Err(left) => left,
    })
}

fn make_simulated(namespaces: &Namespaces, plan: &Plan) -> Result<(), CardError> {
    let device = Device::make(&namespaces.dpu)?;
    device.make_vfs(plan.vfs, &namespaces.dpu)?;
    make_links(namespaces, plan)?;
    wires::join_all(&device, &namespaces.dpu, &mut Rtnl::open_in(&namespaces.dpu)?)?;
    Ok(())
}

/// Checks that the card does not exist and that its names are free.
fn check_room(namespaces: &Namespaces, plan: &Plan) -> Result<(), CardError> {
    let names = plan.names(namespaces);
    for (side, netns) in namespaces.sides() {
        for link in Rtnl::open_in(netns)?.links()? {
            if side != Side::Wire && is_part(&link, plan.controller) {
                return Err(CardError::PluggedIn { link: link.name, side });
            }
            for name in link.alternative_names.into_iter().chain([link.name]) {
                if names.contains(&(side, name.clone())) {
                    return Err(CardError::NameTaken { name, side });
                }
            }
        }
    }
    Ok(())
}

fn make_links(namespaces: &Namespaces, plan: &Plan) -> Result<(), netlink::Error> {
    let mut dpu = Rtnl::open_in(&namespaces.dpu)?;
    let mut host = Rtnl::open_in(&namespaces.host)?;
    let vf = |id| VethEnd::new(vf_name(id)).mac(first_mac(id, namespaces)).mtu(FIRST_MTU);
    let pairs = plan.vf_ids().map(|id| make_pair(id, vf(id), plan.kind, namespaces));
    host.batch(&pairs.collect::<Vec<_>>())?;
    let labels = plan.vf_ids().map(|id| label_inner(id, plan.kind));
    dpu.batch(&labels.collect::<Vec<_>>())?;
    // Set this before the alias: with an alias, an agent may move the VF away.
    if plan.whole_checksums {
        plan.vf_ids().for_each(|id| finish_checksums(&namespaces.host, &vf_name(id)));
    }
    let labels =
        plan.vf_ids().map(|id| Request::change_link_named(&vf_name(id), &label(CardLink::Vf(id))));
    host.batch(&labels.collect::<Vec<_>>())?;
    if plan.management {
        make_management(plan.controller, namespaces, &mut host, &mut dpu)?;
    }
    if namespaces.wire.is_some() {
        let uplinks = plan.pf_ids().flat_map(|id| make_uplink(id, plan.kind, namespaces));
        dpu.batch(&uplinks.collect::<Vec<_>>())?;
    }
    Ok(())
}

/// Makes a VF complete the checksums of what it sends.
pub(crate) fn finish_checksums(host: &Netns, vf: &str) {
    let ethtool = || Command::new("ethtool").args(["-K", vf, "tx", "off"]).output();
    let why = match host.run(ethtool) {
        Ok(Ok(output)) if output.status.success() => return,
        Ok(Ok(output)) => String::from_utf8_lossy(&output.stderr).trim().to_owned(),
        Ok(Err(error)) => error.to_string(),
        Err(error) => error.to_string(),
    };
    tracing::error!(vf, why, "cannot turn off checksum offload of a VF: is ethtool installed?");
}

/// Creates the management link between host and DPU, with addresses, up.
fn make_management(
    controller: u32,
    namespaces: &Namespaces,
    host: &mut Rtnl,
    dpu: &mut Rtnl,
) -> Result<(), netlink::Error> {
    let name = management_name(controller);
    let end = VethEnd::new(&name);
    let (host_end, dpu_end) = (end.clone().netns(&namespaces.host), end.netns(&namespaces.dpu));
    let label = label(CardLink::Management(controller)).up();
    let labelled = || Request::change_link_named(&name, &label);
    dpu.batch(&[Request::add_veth(&host_end, &dpu_end), labelled()])?;
    host.batch(&[labelled()])?;
    add_management_address(host, controller, 1)?;
    add_management_address(dpu, controller, 2)
}

/// Each card's management link is a network of its own, because a host of several DPUs has an end of each link.
fn add_management_address(
    rtnl: &mut Rtnl,
    controller: u32,
    side: u8,
) -> Result<(), netlink::Error> {
    let [.., number] = controller.to_be_bytes();
    let network = IpNetwork::new([192, 168, 100 + number, side].into(), 30).ok();
    match (rtnl.link_by_name(&management_name(controller))?, network) {
        (Some(link), Some(network)) => rtnl.change(Request::add_address(link.index, network)),
        _ => Ok(()),
    }
}

fn make_uplink(id: PfId, kind: Kind, namespaces: &Namespaces) -> Vec<Request<'_>> {
    let Some(wire) = &namespaces.wire else { return Vec::new() };
    let name = kind.inner_uplink_name(id);
    let queue = unlabelled_queue(id.controller);
    let inner = inner_end(&name, kind, namespaces).queue_length(queue);
    let far_end = VethEnd::new(wire_name(id)).netns(wire);
    let label = inner_label(kind, kind.inner_uplink(id));
    vec![Request::add_veth(&far_end, &inner), Request::change_link_named(&name, &label)]
}

/// Removes all links of a controller's card, wherever its VFs are. Pods lose their VFs. Returns how many links the two
/// namespaces had.
///
/// # Errors
/// If the kernel refuses. Everything else is removed.
pub fn unplug(namespaces: &Namespaces, controller: u32) -> Result<usize, CardError> {
    let mut dpu = Rtnl::open_in(&namespaces.dpu)?;
    let simulated = remove_device(&mut dpu, controller);
    // Deleting an inner end deletes its VF. The host only keeps links of an unfinished plugging.
    let mut removed = remove_parts(&mut dpu, controller)?;
    removed += remove_parts(&mut Rtnl::open_in(&namespaces.host)?, controller)?;
    Ok(removed + simulated?)
}

/// Deletes the simulated device, if it exists. Its links cannot be deleted one by one.
fn remove_device(rtnl: &mut Rtnl, controller: u32) -> Result<usize, CardError> {
    let links = rtnl.links()?;
    let Some(device) = Device::of_controller(controller, &links) else { return Ok(0) };
    device.delete()?;
    Ok(links.iter().filter(|link| device.has(link)).count())
}

/// Deletes the card's pairs in a namespace all at once by group. Single deletes would each wait for an RCU grace
/// period.
fn remove_parts(rtnl: &mut Rtnl, controller: u32) -> Result<usize, netlink::Error> {
    let links = rtnl.links()?;
    let is_pairs = |link: &&Link| is_part(link, controller) && Device::of(link).is_none();
    let parts: Vec<_> = links.iter().filter(is_pairs).collect();
    if parts.is_empty() {
        return Ok(0);
    }
    let group = unused_group(&links);
    let regroup = LinkChange::new().group(group);
    let regrouped = parts.iter().map(|link| Request::change_link(link.index, &regroup));
    // A pod that has just ended takes its VF and representor with it. The kernel carries out the rest of the batch.
    gone_is_done(rtnl.batch(&regrouped.collect::<Vec<_>>()))?;
    gone_is_done(rtnl.batch(&[Request::delete_group(group)]))?;
    Ok(parts.len())
}

fn unused_group(links: &[Link]) -> u32 {
    const FIRST: u32 = 0x766e_6963;
    (FIRST..).find(|group| links.iter().all(|link| link.group != *group)).unwrap_or(FIRST)
}

/// Whether a link belongs to a controller's card, including one that died before it set the link's alias.
fn is_part(link: &Link, controller: u32) -> bool {
    let is_veth = link.kind.as_deref() == Some("veth");
    let is_unlabelled = || is_veth && link.queue_length == unlabelled_queue(controller);
    let is_labelled =
        |alias: &str| CardLink::of(alias).is_some_and(|link| link.controller() == controller);
    Device::of_controller(controller, std::slice::from_ref(link)).is_some()
        || link.alias.as_deref().map_or_else(is_unlabelled, is_labelled)
}
