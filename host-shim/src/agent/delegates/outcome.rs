//! What plugins have made, as an attachment: their result, and the interface as the kernel has it.

use netlink::Link;
use offload_proto::{Failure, v1};
use serde_json::Value;

use super::record::Delegated;
use crate::cni::result::{Address, CniResult, Route};

/// The attachment of an interface by the result of its plugins. Interfaces on the host are none of the pod's.
pub(super) fn attachment(
    delegated: &Delegated,
    result: &Value,
    link: &Link,
) -> Result<v1::Attachment, Failure> {
    let result =
        CniResult::read(result).map_err(|error| super::failed(&delegated.chain, &error.message))?;
    let interface_name = &delegated.key.interface_name;
    let position = result
        .interfaces
        .iter()
        .position(|one| one.name == *interface_name && !one.sandbox.is_empty());
    // A plugin that names no interface means the one that it was called for.
    let is_its = |address: &&Address| address.interface.is_none() || address.interface == position;
    Ok(v1::Attachment {
        key: Some(delegated.key.clone().into()),
        network: delegated.network().to_owned(),
        mac: link.mac.map(|mac| mac.to_string()).unwrap_or_default(),
        mtu: link.mtu,
        addresses: result.ips.iter().filter(is_its).map(address).collect(),
        routes: result.routes.iter().map(route).collect(),
        dns: Some(v1::Dns {
            nameservers: result.dns.nameservers,
            domain: result.dns.domain,
            search: result.dns.search,
            options: result.dns.options,
        }),
        group_interface: delegated.group_interface.clone(),
        ..v1::Attachment::default()
    })
}

fn address(address: &Address) -> v1::Address {
    v1::Address { address: address.address.clone(), gateway: address.gateway.clone() }
}

fn route(route: &Route) -> v1::Route {
    v1::Route {
        destination: route.dst.clone(),
        gateway: route.gw.clone(),
        mtu: route.mtu.unwrap_or_default(),
        advmss: route.advmss.unwrap_or_default(),
        priority: route.priority.unwrap_or_default(),
        table: route.table.unwrap_or_default(),
        ..v1::Route::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::record::tests::delegated, *};

    #[test]
    fn attachment_has_the_results_pod_interface() {
        let result = json!({
            "cniVersion": "1.0.0",
            "interfaces": [{"name": "net1"}, {"name": "net1", "sandbox": "/run/netns/c"}],
            "ips": [
                {"address": "10.7.0.1/24", "interface": 0},
                {"address": "10.7.0.5/24", "gateway": "10.7.0.1", "interface": 1},
            ],
            "routes": [{"dst": "10.8.0.0/16", "gw": "10.7.0.1"}],
            "dns": {"nameservers": ["10.7.0.1"]},
        });
        let link = Link::default();
        let attachment = attachment(&delegated("net1"), &result, &link).unwrap();
        assert_eq!(attachment.addresses.len(), 1);
        assert_eq!(attachment.addresses[0].address, "10.7.0.5/24");
        assert_eq!(attachment.routes[0].destination, "10.8.0.0/16");
        assert_eq!(attachment.dns.unwrap().nameservers, ["10.7.0.1"]);
        assert_eq!(
            (attachment.network.as_str(), attachment.group_interface.as_str()),
            ("storage", "eth0")
        );

        let unnamed = json!({"ips": [{"address": "10.7.0.5/24"}]});
        let attachment = super::attachment(&delegated("net1"), &unnamed, &link).unwrap();
        assert_eq!(attachment.addresses.len(), 1);
        let failure = super::attachment(&delegated("net1"), &json!({"ips": 7}), &link).unwrap_err();
        assert!(failure.message.contains("storage"), "{failure}");
    }
}
