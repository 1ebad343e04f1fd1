//! Converts a CNI result to netavark's answer.

use serde_json::{Map, Value, json};

use super::refusal::Refusal;
use crate::cni::result::CniResult;

/// The status of the container's interface.
pub(super) fn of_result(result: &Value, interface_name: &str) -> Result<Value, Refusal> {
    let result = CniResult::read(result)?;
    let is_own = |name: &str, sandbox: &str| name == interface_name && !sandbox.is_empty();
    let found = result.interfaces.iter().find(|one| is_own(&one.name, &one.sandbox));
    let mac = found.map(|interface| interface.mac.as_str()).unwrap_or_default();
    let subnets: Vec<_> =
        result.ips.iter().map(|held| subnet(&held.address, &held.gateway)).collect();
    let mut interfaces = Map::new();
    interfaces.insert(interface_name.into(), json!({ "mac_address": mac, "subnets": subnets }));
    Ok(json!({
        "dns_server_ips": result.dns.nameservers,
        "dns_search_domains": result.dns.search,
        "interfaces": interfaces,
    }))
}

/// An address of the container. netavark accepts a missing gateway, but not an empty one.
fn subnet(address: &str, gateway: &str) -> Value {
    match gateway.is_empty() {
        true => json!({ "ipnet": address }),
        false => json!({ "ipnet": address, "gateway": gateway }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_has_the_interface_and_addresses() {
        let result = json!({
            "cniVersion": "1.1.0",
            "interfaces": [{ "name": "eth0", "mac": "02:00:00:00:00:09", "sandbox": "/run/netns/a" }],
            "ips": [
                { "interface": 0, "address": "10.1.0.5/16", "gateway": "10.1.0.1" },
                { "interface": 0, "address": "fd00:10:1::5/64" },
            ],
            "dns": { "nameservers": ["192.0.2.53"], "search": ["lan"] },
        });
        let expected = json!({
            "dns_server_ips": ["192.0.2.53"],
            "dns_search_domains": ["lan"],
            "interfaces": { "eth0": {
                "mac_address": "02:00:00:00:00:09",
                "subnets": [
                    { "ipnet": "10.1.0.5/16", "gateway": "10.1.0.1" },
                    { "ipnet": "fd00:10:1::5/64" },
                ],
            } },
        });
        assert_eq!(of_result(&result, "eth0"), Ok(expected));
    }
}
