//! Interfaces of a pod that somebody else has made: routes, rules and settings are set on them as on one of ours,
//! beside what they have.

use std::sync::Arc;

use netlink::{Error, IpNetwork, Link, Netns, Request, Route, RouteKind, sysctl};

use super::{
    Namespace, Routing,
    configure::{Extent, has_route, leading_on, remove_shared, set_chosen},
    inspect::{has_place_taken, missing},
    plan::MAIN_TABLE,
};

/// An interface of a pod that somebody else has made. It keeps the pod's namespace alive, and so lasts no longer than
/// a look or a change.
#[derive(Debug)]
pub struct Beside {
    /// The pod's namespace.
    pub pod: Namespace,
    /// The interface.
    pub link: Link,
}

impl Beside {
    /// The one of that name. `None`: there is none.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn find(netns: Arc<Netns>, name: &str) -> Result<Option<Self>, Error> {
        let mut pod = Namespace::open(netns)?;
        Ok(pod.rtnl.link_by_name(name)?.map(|link| Self { pod, link }))
    }

    /// Its addresses.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn addresses(&mut self) -> Result<Vec<IpNetwork>, Error> {
        self.pod.rtnl.addresses(self.link.index)
    }

    /// Takes the default routes of a family off it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn drop_default_routes(&mut self, of_ipv6: bool) -> Result<(), Error> {
        let index = self.link.index;
        let is_default = |route: &&Route| {
            route.output == index
                && route.kind == RouteKind::Unicast
                && route.destination.prefix() == 0
                && route.destination.is_ipv6() == of_ipv6
                && route.table.is_none_or(|table| table == MAIN_TABLE)
        };
        let routes = self.pod.rtnl.routes()?;
        let requests: Vec<_> =
            routes.iter().filter(is_default).map(Request::delete_route).collect();
        self.pod.rtnl.batch(&requests)
    }

    /// Sets routes, rules and settings; addresses are left to whoever has made it. What is there already is left.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn set(&mut self, routing: &Routing) -> Result<(), Error> {
        let (netns, link) = (&self.pod.netns, &self.link);
        netns.run(|| set_chosen(link, &routing.sysctls))??;
        let present = self.pod.rtnl.routes()?;
        let requests =
            leading_on(&mut self.pod.rtnl, &self.link, routing, &present, Extent::Whole)?;
        self.pod.rtnl.batch(&requests)
    }

    /// What it or the pod does not have of this, or has otherwise. `None`: all is in place.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn lacks(&mut self, routing: &Routing) -> Result<Option<String>, Error> {
        self.difference(routing, has_route)
    }

    /// Likewise, but for addresses, and for routes that the pod has put in the place of one.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn lost(&mut self, routing: &Routing) -> Result<Option<String>, Error> {
        let routing = Routing { addresses: Vec::new(), ..routing.clone() };
        self.difference(&routing, has_place_taken)
    }

    fn difference(
        &mut self,
        routing: &Routing,
        is_there: fn(&[Route], &Route) -> bool,
    ) -> Result<Option<String>, Error> {
        // The plugin that made the interface has set its addresses, and with them the routes to their subnets.
        let routing = Routing { connected: Vec::new(), ..routing.clone() };
        match missing(&mut self.pod.rtnl, &self.link, &routing, is_there)? {
            None => misset(&self.pod.netns, &self.link, &routing),
            lost => Ok(lost),
        }
    }
}

/// Takes routes and rules out of a pod that were set beside an interface, be it there still or not. Settings end with
/// it.
///
/// # Errors
/// The kernel's refusal.
pub fn take_off(netns: Arc<Netns>, routing: &Routing) -> Result<(), Error> {
    let mut pod = Namespace::open(netns)?;
    let link = pod.rtnl.link_by_name(&routing.name)?;
    let index = link.map_or(0, |link| link.index);
    remove_shared(&mut pod.rtnl, routing, index)?;
    let present = pod.rtnl.routes()?;
    let set: Vec<_> = routing.routes_by(index).collect();
    let set = set.iter().filter(|route| index != 0 && has_route(&present, route));
    let requests: Vec<_> = set.map(Request::delete_route).collect();
    pod.rtnl.batch(&requests)
}

/// A setting of the network's that the pod's interface has otherwise.
fn misset(pod: &Netns, link: &Link, routing: &Routing) -> Result<Option<String>, Error> {
    if routing.sysctls.is_empty() {
        return Ok(None);
    }
    pod.run(|| {
        for wanted in &routing.sysctls {
            let found = sysctl(wanted.family, &link.name, wanted.key)?;
            if found != wanted.value {
                let (family, key, value) = (wanted.family, wanted.key, &wanted.value);
                return Ok(Some(format!(
                    "its interface has {family}.{key} {found} instead of {value}"
                )));
            }
        }
        Ok(None)
    })?
}
