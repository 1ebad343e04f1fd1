//! Where an attachment's interface is wanted, and what of the attachment holds there.

use std::net::IpAddr;

use netlink::IpNetwork;
use offload_proto::v1;

/// Where an interface is wanted.
pub(in crate::agent) enum Destination {
    /// In a pod's namespace.
    Pod,
    /// In the host's own, with routes to these destinations and no others: those of the network are for pods,
    /// and one of them is mostly the default route, which the host has already.
    Host { routes: Vec<IpNetwork> },
}

impl Destination {
    /// The DPU's attachment as it is there.
    pub(in crate::agent) fn adapt(&self, attachment: v1::Attachment) -> v1::Attachment {
        match self {
            Self::Pod => attachment,
            Self::Host { routes } => with_own_routes(attachment, routes),
        }
    }
}

/// An attachment as it is in the host's namespace: the host has its own rules and resolver, too, and settings would
/// stay behind there.
fn with_own_routes(attachment: v1::Attachment, destinations: &[IpNetwork]) -> v1::Attachment {
    let routes = destinations.iter().map(|to| v1::Route {
        destination: to.to_string(),
        gateway: gateway_for(&attachment, to).unwrap_or_default(),
        ..v1::Route::default()
    });
    let routes = routes.collect();
    v1::Attachment { routes, rules: Vec::new(), sysctls: None, dns: None, ..attachment }
}

/// The gateway of the destination's family. `None`: the network has none, and the destination is on the link.
fn gateway_for(attachment: &v1::Attachment, to: &IpNetwork) -> Option<String> {
    let of_family = |gateway: &&String| {
        gateway.parse::<IpAddr>().is_ok_and(|gateway| gateway.is_ipv6() == to.is_ipv6())
    };
    attachment.addresses.iter().map(|held| &held.gateway).find(of_family).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_port_routes_use_their_families_gateway() {
        let held = |address: &str, gateway: &str| v1::Address {
            address: address.into(),
            gateway: gateway.into(),
        };
        let default = v1::Route { destination: "0.0.0.0/0".into(), ..v1::Route::default() };
        let attachment = v1::Attachment {
            addresses: vec![held("10.0.0.5/24", "10.0.0.1"), held("fd00::5/64", "")],
            routes: vec![default],
            ..v1::Attachment::default()
        };
        let destinations = ["198.51.100.0/24", "2001:db8::/32"].map(|to| to.parse().unwrap());
        let routes =
            Destination::Host { routes: destinations.into() }.adapt(attachment).routes.into_iter();
        let routes: Vec<_> = routes.map(|route| (route.destination, route.gateway)).collect();
        let wanted = [("198.51.100.0/24", "10.0.0.1"), ("2001:db8::/32", "")];
        assert_eq!(routes, wanted.map(|(to, by)| (to.to_owned(), by.to_owned())));
    }
}
