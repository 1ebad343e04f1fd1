//! By which of a pod's interfaces its default routes go, where an ADD asks for that.

use std::net::IpAddr;

use netlink::IpNetwork;
use offload_proto::{Failure, Reason, v1};

use crate::{
    agent::delegates::Delegation,
    mover::{default_destination, is_default_route},
    protocol::FurtherInterface,
};

/// Moves the default route of a family to the interface whose gateway of that family was requested, and removes all
/// others. Also reports whether each gateway can be reached.
pub(super) fn with_default_routes(
    mut attachments: Vec<v1::Attachment>,
    further: &[FurtherInterface],
    delegations: &[Delegation],
) -> (Vec<v1::Attachment>, Result<(), Failure>) {
    let mut reached = Ok(());
    let elsewhere = delegations.iter().flat_map(Delegation::default_gateways);
    elsewhere.for_each(|gateway| drop_default_routes(&mut attachments, *gateway));
    for (position, interface) in further.iter().enumerate() {
        for gateway in &interface.default_gateways {
            drop_default_routes(&mut attachments, *gateway);
            // Index 0 is the ADD's own interface, which is not among the further ones.
            let its = &mut attachments[position + 1];
            reached = reached.and_then(|()| check_reached(its, *gateway));
            its.routes.push(v1::Route {
                destination: default_destination(gateway.is_ipv6()).into(),
                gateway: gateway.to_string(),
                ..v1::Route::default()
            });
        }
    }
    (attachments, reached)
}

/// That a gateway that was asked for can be on the interface's link. Routes are set without the kernel's asking.
fn check_reached(attachment: &v1::Attachment, gateway: IpAddr) -> Result<(), Failure> {
    let told = gateway.to_string();
    let is_near = |held: &v1::Address| {
        held.gateway == told
            || held.address.parse().is_ok_and(|subnet: IpNetwork| subnet.contains(gateway))
    };
    let is_link_local = matches!(gateway, IpAddr::V6(address) if address.is_unicast_link_local());
    if is_link_local || attachment.addresses.iter().any(is_near) {
        return Ok(());
    }
    let name = attachment.key.as_ref().map_or("", |key| &key.interface_name);
    let message = format!(
        "default-route {gateway} is in no subnet of {name}'s network {}: name a router of that network",
        attachment.network
    );
    Err(Failure::new(Reason::InvalidRequest, message))
}

/// Those of the gateway's family.
fn drop_default_routes(attachments: &mut [v1::Attachment], gateway: IpAddr) {
    let its_destination = default_destination(gateway.is_ipv6());
    let is_other =
        |route: &v1::Route| !is_default_route(route) || route.destination != its_destination;
    attachments.iter_mut().for_each(|attachment| attachment.routes.retain(is_other));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment(address: &str, gateway: &str) -> v1::Attachment {
        let address = v1::Address { address: address.into(), gateway: gateway.into() };
        v1::Attachment { addresses: vec![address], ..v1::Attachment::default() }
    }

    fn route(destination: &str, gateway: &str) -> v1::Route {
        v1::Route {
            destination: destination.into(),
            gateway: gateway.into(),
            ..v1::Route::default()
        }
    }

    /// What an ADD gets whose one further interface is to have the default route by that gateway.
    fn moved(its: v1::Attachment, gateway: &str) -> (Vec<v1::Attachment>, Result<(), Failure>) {
        let mut lead = attachment("10.1.0.5/16", "10.1.0.1");
        lead.routes = vec![route("0.0.0.0/0", "10.1.0.1"), route("::/0", "fd00::1")];
        let default_gateways = vec![gateway.parse().unwrap()];
        let further = FurtherInterface { default_gateways, ..FurtherInterface::default() };
        with_default_routes(vec![lead, its], &[further], &[])
    }

    #[test]
    fn requested_interface_has_the_default_route() {
        let mut its = attachment("10.2.0.5/24", "10.2.0.1");
        its.routes = vec![route("0.0.0.0/0", "10.2.0.1")];
        let (moved, reached) = moved(its, "10.2.0.9");
        reached.unwrap();
        assert_eq!(moved[0].routes, [route("::/0", "fd00::1")]);
        assert_eq!(moved[1].routes, [route("0.0.0.0/0", "10.2.0.9")]);
    }

    /// The gateway of a network with `first_hop` is in the prefix of no address.
    #[test]
    fn requested_gateway_must_be_reachable() {
        for (address, own, asked, is_reached) in [
            ("10.2.0.5/24", "", "10.2.0.9", true),
            ("10.2.0.5/24", "10.2.0.1", "10.9.0.1", false),
            ("10.2.0.5/32", "169.254.77.1", "169.254.77.1", true),
            ("10.2.0.5/32", "169.254.77.1", "10.2.0.1", false),
            ("fd00::5/64", "", "fe80::1", true),
        ] {
            let (_, reached) = moved(attachment(address, own), asked);
            assert_eq!(reached.is_ok(), is_reached, "{address} by {asked}: {reached:?}");
        }
    }
}
