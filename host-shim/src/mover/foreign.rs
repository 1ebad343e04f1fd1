//! Pod interfaces that another CNI plugin created: our routes, rules and sysctls are added to those that the interface
//! has.

use std::sync::Arc;

use model::MAIN_TABLE;
use netlink::{Error, IpNetwork, Link, Netns, Request, Route, RouteKind, sysctl};

use super::{
    Namespace, Routing,
    configure::{Extent, has_route, leading_on, remove_shared, set_chosen},
    inspect::{has_place_taken, missing},
};

/// A pod interface that another CNI plugin created. The value keeps the pod's namespace alive, so keep it only for one
/// call.
#[derive(Debug)]
pub struct ForeignInterface {
    /// The pod's namespace.
    pub pod: Namespace,
    /// The interface.
    pub link: Link,
}

impl ForeignInterface {
    /// Finds the interface by its name. `None`: the pod has no such interface.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn find(netns: Arc<Netns>, name: &str) -> Result<Option<Self>, Error> {
        let mut pod = Namespace::open(netns)?;
        Ok(pod.rtnl.link_by_name(name)?.map(|link| Self { pod, link }))
    }

    /// Returns the interface's addresses.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn addresses(&mut self) -> Result<Vec<IpNetwork>, Error> {
        self.pod.rtnl.addresses(self.link.index)
    }

    /// Deletes the interface's default routes of one family from the main table.
    ///
    /// # Errors
    /// The kernel refuses the request.
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

    /// Adds missing routes, rules and sysctls. Addresses belong to the plugin that created the interface.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn set(&mut self, routing: &Routing) -> Result<(), Error> {
        let (netns, link) = (&self.pod.netns, &self.link);
        netns.run(|| set_chosen(link, &routing.sysctls))??;
        let present = self.pod.rtnl.routes()?;
        let requests =
            leading_on(&mut self.pod.rtnl, &self.link, routing, &present, Extent::Whole)?;
        self.pod.rtnl.batch(&requests)
    }

    /// Names the first address, route, rule or sysctl that is missing or differs. `None`: all are in place.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn lacks(&mut self, routing: &Routing) -> Result<Option<String>, Error> {
        self.difference(routing, has_route)
    }

    /// Names the first missing route, rule or sysctl. Ignores addresses, and routes that the pod replaced by a route to
    /// the same destination.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn lost(&mut self, routing: &Routing) -> Result<Option<String>, Error> {
        let routing = Routing { addresses: Vec::new(), ..routing.clone() };
        self.difference(&routing, has_place_taken)
    }

    fn difference(
        &mut self,
        routing: &Routing,
        is_there: fn(&[Route], &Route) -> bool,
    ) -> Result<Option<String>, Error> {
        // The kernel added the connected routes with the addresses, which the other plugin chose: they are not
        // compared.
        let routing = Routing { connected: Vec::new(), ..routing.clone() };
        match missing(&mut self.pod.rtnl, &self.link, &routing, is_there)? {
            None => misset(&self.pod.netns, &self.link, &routing),
            lost => Ok(lost),
        }
    }
}

/// Deletes the routes and rules that were added for an interface, even if the interface is gone. Its sysctls end with
/// it.
///
/// # Errors
/// The kernel refuses the request.
pub fn remove_routing(netns: Arc<Netns>, routing: &Routing) -> Result<(), Error> {
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

/// Names a sysctl of the network that the interface has with another value.
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
