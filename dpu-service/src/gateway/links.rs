//! A gateway's addresses and settings on the link that the fabric provides.

use std::{collections::BTreeMap, net::IpAddr};

use bootstrap::Chain;
use ipnetwork::IpNetwork;
use netlink::{Error, Family, Request, Route, Rtnl, set_sysctl, sysctl};

use super::{
    plan::{self, Plan},
    routes,
};
use drivers::{driver::Refused, fabric::GatewayLink};
use model::Network;

/// The settings of a gateway's link. It forwards. It answers ARP only for its own addresses, because another
/// network may be in the same VLAN. It accepts only sources that it has a route to. It ignores router
/// advertisements.
const SETTINGS: [(Family, &str, &str); 8] = [
    (Family::V4, "forwarding", "1"),
    (Family::V4, "arp_ignore", "1"),
    (Family::V4, "arp_announce", "2"),
    (Family::V4, "rp_filter", "1"),
    (Family::V4, "send_redirects", "0"),
    (Family::V6, "disable_ipv6", "0"),
    (Family::V6, "accept_ra", "0"),
    (Family::V6, "forwarding", "1"),
];

/// Makes the kernel forward IPv6 from this link, whatever the global setting. Kernels before 6.17 do not have it.
const FORCE_FORWARDING: &str = "force_forwarding";

#[derive(Debug, Default)]
pub(super) struct Links {
    socket: Option<Rtnl>,
    /// The links that have their settings, by network.
    set_up: BTreeMap<String, SetUp>,
}

#[derive(Debug, PartialEq, Eq)]
struct SetUp {
    /// The link's index. A link that was created again has another one.
    index: u32,
    /// The network's bridge. A network in another bridge has another link.
    bridge: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct PassReport {
    /// Sentences about all gateways.
    pub(super) problems: Vec<String>,
    /// The networks with a sentence each.
    pub(super) problems_of: Vec<(String, String)>,
    /// Repairs of what had been in place: one sentence each.
    pub(super) repairs: Vec<String>,
}

/// The kernel's state around one gateway's link: its addresses, and those of the DPU's links that are no gateway's.
struct Held<'a> {
    own: &'a [IpNetwork],
    others: &'a [IpNetwork],
    /// The routes of all gateways.
    routes: &'a [Route],
    /// The kernel's routes. `None`: not read.
    connected: Option<&'a [Route]>,
}

impl Links {
    /// Gives each link its addresses, routes and settings, and the uplinks theirs.
    pub(super) fn configure(
        &mut self,
        plan: &Plan,
        links: &[GatewayLink],
        uplinks: &[String],
        is_thorough: bool,
    ) -> Result<PassReport, Refused> {
        let has = addresses_by_link(open(&mut self.socket)?)?;
        let routes = routes::ours(open(&mut self.socket)?)?;
        let connected = match is_thorough {
            true => Some(routes::connected(open(&mut self.socket)?)?),
            false => None,
        };
        let connected = connected.as_deref();
        let is_gateways = |index: &u32| links.iter().any(|link| link.index == *index);
        let others = has.iter().filter(|(index, _)| !is_gateways(index)).flat_map(|(_, held)| held);
        let others: Vec<_> = others.copied().collect();
        // A known link that is missing now was deleted by another program, unless its network is gone, too.
        self.set_up.retain(|name, _| plan.networks.iter().any(|network| network.name == *name));
        let mut report = PassReport::default();
        for network in &plan.networks {
            let Some(link) = links.iter().find(|link| link.network == network.name) else {
                continue;
            };
            let own = has.get(&link.index).map_or(&[][..], Vec::as_slice);
            let held = Held { own, others: &others, routes: &routes, connected };
            if let Err(refused) = self.configure_one(network, link, &held, is_thorough, &mut report)
            {
                let problem = format!("network {}: {}", network.name, Chain(&refused));
                report.problems_of.push((network.name.clone(), problem));
            }
        }
        let has_v6 = plan.networks.iter().any(|network| has_ipv6(network));
        report.problems = uplinks.iter().filter_map(|uplink| problem_of_uplink(uplink)).collect();
        report.problems.extend(has_v6.then(|| problem_of_ipv6(links)).flatten());
        Ok(report)
    }

    fn configure_one(
        &mut self,
        network: &Network,
        link: &GatewayLink,
        held: &Held<'_>,
        is_thorough: bool,
        report: &mut PassReport,
    ) -> Result<(), Refused> {
        let now = SetUp { index: link.index, bridge: network.bridge.clone() };
        let before = self.set_up.get(&network.name);
        let is_new = before != Some(&now);
        // A network that has moved to another bridge has a new link, which is no repair.
        let is_made_again = is_new && before.is_some_and(|before| before.bridge == now.bridge);
        if is_new || is_thorough {
            let refused = |error| Refused::new(format!("set up {}", link.name), error);
            set_all(&link.name).map_err(refused)?;
        }
        // After the settings: with the kernel's defaults, the link would answer ARP for all addresses of the DPU.
        check_others(network, held.others)?;
        let rtnl = open(&mut self.socket)?;
        let lacked_address = configure_addresses(rtnl, network, link, held)?;
        let lacked_route = routes::configure_routes(rtnl, network, link, held.routes)?;
        self.set_up.insert(network.name.clone(), now);
        let possible = [
            (is_made_again, "link was missing: created it again"),
            (lacked_address && !is_new, "addresses were changed: put them back"),
            (lacked_route && !is_new, "routes were missing: put them back"),
        ];
        let sentence = |(_, what)| format!("network {}: its gateway's {what}", network.name);
        report.repairs.extend(possible.into_iter().filter(|(is_done, _)| *is_done).map(sentence));
        Ok(())
    }

    /// Resets the uplinks' forwarding to the kernel's global setting, because there is no gateway any more.
    pub(super) fn reset_uplinks(&mut self, uplinks: &[String]) {
        self.set_up.clear();
        for uplink in uplinks {
            let usual = sysctl(Family::V4, "all", "forwarding");
            let restored =
                usual.and_then(|usual| set_sysctl(Family::V4, uplink, "forwarding", &usual));
            let unforced = set_sysctl(Family::V6, uplink, FORCE_FORWARDING, "0");
            for error in [restored.err(), unforced.err()].into_iter().flatten() {
                tracing::debug!(uplink, %error, "cannot reset the uplink's forwarding");
            }
        }
    }
}

/// The families for which this DPU is not a router itself: it forwards only for its gateways.
pub(super) fn unrouted_families() -> Vec<Family> {
    let forwards = |family| sysctl(family, "all", "forwarding").is_ok_and(|set| set == "1");
    [Family::V4, Family::V6].into_iter().filter(|family| !forwards(*family)).collect()
}

fn open(socket: &mut Option<Rtnl>) -> Result<&mut Rtnl, Refused> {
    if let Some(open) = socket {
        return Ok(open);
    }
    let opened = Rtnl::open().map_err(|error| Refused::new("ask the kernel", error))?;
    Ok(socket.insert(opened))
}

fn addresses_by_link(rtnl: &mut Rtnl) -> Result<BTreeMap<u32, Vec<IpNetwork>>, Refused> {
    let all = rtnl.all_addresses();
    let all = all.map_err(|error| Refused::new("ask the kernel for addresses", error))?;
    let mut by_link: BTreeMap<u32, Vec<IpNetwork>> = BTreeMap::new();
    for (index, address) in all {
        by_link.entry(index).or_default().push(address);
    }
    Ok(by_link)
}

/// Refuses a subnet that the DPU has an address of on another link: the gateway would draw the DPU's own traffic to
/// hosts and operators into the pods' network.
fn check_others(network: &Network, others: &[IpNetwork]) -> Result<(), Refused> {
    let subnets = network.subnets.iter().map(|subnet| subnet.cidr);
    let clash = subnets.flat_map(|subnet| others.iter().map(move |other| (subnet, *other)));
    let meet = |(subnet, other): &(IpNetwork, IpNetwork)| {
        subnet.contains(other.ip()) || other.contains(subnet.ip())
    };
    match clash.into_iter().find(meet) {
        None => Ok(()),
        Some((subnet, other)) => Err(Refused::because(format!(
            "its subnet {subnet} overlaps {other}, which this DPU has on another link: use another subnet"
        ))),
    }
}

/// Returns whether an address, or the route that the kernel derives from it, was missing.
fn configure_addresses(
    rtnl: &mut Rtnl,
    network: &Network,
    link: &GatewayLink,
    held: &Held<'_>,
) -> Result<bool, Refused> {
    let refused = |error| Refused::new(format!("give {} its addresses", link.name), error);
    let wanted = plan::addresses(network);
    let is_whole = |address: &IpNetwork| held.own.contains(address) && held.leads(link, *address);
    let missing: Vec<_> = wanted.iter().filter(|address| !is_whole(address)).collect();
    // The kernel creates an address's route only when the address is added, so a lost route needs a new address.
    let surplus = held.own.iter().filter(|address| {
        missing.contains(address) || !wanted.contains(address) && !is_kernels(address.ip())
    });
    for address in surplus {
        rtnl.change(Request::delete_address(link.index, *address)).map_err(refused)?;
    }
    for address in &missing {
        added(rtnl.change(Request::add_address(link.index, **address))).map_err(refused)?;
    }
    Ok(!missing.is_empty())
}

impl Held<'_> {
    /// Whether the kernel has the route to the address's prefix. `true` if the routes were not read.
    fn leads(&self, link: &GatewayLink, address: IpNetwork) -> bool {
        self.connected.is_none_or(|routes| routes::leads_to_neighbours(routes, link, address))
    }
}

fn set_all(link: &str) -> Result<(), Error> {
    for (family, key, value) in SETTINGS {
        set_sysctl(family, link, key, value)?;
    }
    force_ipv6(link)
}

fn force_ipv6(link: &str) -> Result<(), Error> {
    match set_sysctl(Family::V6, link, FORCE_FORWARDING, "1") {
        // This kernel does not have the setting.
        Err(error) if error.is_not_found() => Ok(()),
        outcome => outcome,
    }
}

fn added(outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        // Another program has added it since the addresses were read.
        Err(error) if error.is_exists() => Ok(()),
        outcome => outcome,
    }
}

/// Whether the kernel derived the address from a MAC address (EUI-64: `ff:fe` in the middle).
fn is_kernels(address: IpAddr) -> bool {
    match address {
        IpAddr::V6(v6) => v6.is_unicast_link_local() && v6.octets()[11..13] == [0xff, 0xfe],
        IpAddr::V4(_) => false,
    }
}

fn has_ipv6(network: &Network) -> bool {
    network.subnets.iter().any(|subnet| subnet.cidr.is_ipv6() && subnet.gateway.is_some())
}

/// Makes the uplink forward. Packets that return by an uplink are forwarded by its own setting. For IPv6 the uplink
/// stays a host as far as the kernel can tell, so that it keeps accepting routes from routers.
fn problem_of_uplink(uplink: &str) -> Option<String> {
    let forwards =
        set_sysctl(Family::V4, uplink, "forwarding", "1").and_then(|()| force_ipv6(uplink));
    let why = match forwards {
        Ok(()) => return None,
        Err(error) if error.is_not_found() => "there is no such link".to_owned(),
        Err(error) => error.to_string(),
    };
    Some(format!("gateway.uplinks holds {uplink}, by which this DPU can't forward: {why}"))
}

fn problem_of_ipv6(links: &[GatewayLink]) -> Option<String> {
    let link = links.first()?;
    let is_forced = sysctl(Family::V6, &link.name, FORCE_FORWARDING).is_ok_and(|set| set == "1");
    let is_global = sysctl(Family::V6, "all", "forwarding").is_ok_and(|set| set == "1");
    (!is_forced && !is_global).then(|| {
        "gateways answer, but do not forward IPv6: this kernel forwards it only where \
         net.ipv6.conf.all.forwarding is 1; set that, and accept_ra to 2 on links of this DPU that take \
         their routes from routers"
            .to_owned()
    })
}
