//! Addresses of the DPU for interfaces that other plugins make: asked for by `ipam` of a plugin's configuration, leased
//! with the attachment that leads the interface, and told to the plugin by our own program as its IPAM plugin.

use offload_proto::v1;
use serde_json::{Map, Value, json};

use crate::{
    cni::{
        go_json, ipam,
        result::{Address, CniResult, Dns},
    },
    mover::is_default_route,
};

/// What `ipam` says for addresses of the DPU, by `type`.
const OURS: &str = "dpu-offload";

/// The DPU's network from which a plugin's configuration wants addresses. `None`: its `ipam` is not the DPU's.
///
/// # Errors
/// What can't be meant, one sentence.
pub(super) fn network_of(plugin: &Map<String, Value>) -> Result<Option<&str>, String> {
    let ipam = go_json::get(plugin, "ipam").and_then(Value::as_object);
    let is_ours =
        |ipam: &&Map<String, Value>| go_json::get(ipam, "type").is_some_and(|it| it == OURS);
    let Some(ipam) = ipam.filter(is_ours) else { return Ok(None) };
    let is_known = |key: &String| ["type", "network"].iter().any(|name| go_json::fits(key, name));
    if let Some(key) = ipam.keys().find(|key| !is_known(key)) {
        return Err(format!("`ipam` of {OURS} has `type` and `network`, and no `{key}`"));
    }
    let network = go_json::get(ipam, "network").and_then(Value::as_str);
    match network.filter(|name| !name.is_empty()) {
        Some(network) => Ok(Some(network)),
        None => Err(format!("`ipam` of {OURS} names no `network`")),
    }
}

/// What `ipam` says for addresses of this network of the DPU's.
pub(super) fn section(network: &str) -> Value {
    json!({ "type": OURS, "network": network })
}

/// A plugin's configuration with `ipam` as our program reads it.
pub(super) fn told(mut plugin: Map<String, Value>, lease: &v1::FurtherLease) -> Map<String, Value> {
    if let Ok(Some(_)) = network_of(&plugin) {
        go_json::set(&mut plugin, "ipam", ipam::section(result(lease)));
    }
    plugin
}

/// The addresses and resolvers for the plugin. Routes are added by the agent: plugins send a route without a gateway to
/// their first gateway, and cannot express rejecting routes.
fn result(lease: &v1::FurtherLease) -> CniResult {
    let dns = lease.dns.clone().unwrap_or_default();
    CniResult {
        ips: lease.addresses.iter().map(address).collect(),
        dns: Dns {
            nameservers: dns.nameservers,
            domain: dns.domain,
            search: dns.search,
            options: dns.options,
        },
        ..CniResult::default()
    }
}

/// The routes that come with the addresses but the default ones, which stay with the pod's first interface unless the
/// pod asks otherwise.
pub(super) fn routes(lease: &v1::FurtherLease) -> impl Iterator<Item = v1::Route> {
    lease.routes.iter().filter(|route| !is_default_route(route)).cloned()
}

fn address(held: &v1::Address) -> Address {
    Address { address: held.address.clone(), gateway: held.gateway.clone(), ..Address::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(ipam: Value) -> Map<String, Value> {
        Map::from_iter([("type".to_owned(), "bridge".into()), ("ipam".to_owned(), ipam)])
    }

    #[test]
    fn lease_is_requested_by_network() {
        let asked = |ipam| network_of(&plugin(ipam)).map(|it| it.map(str::to_owned));
        let ours = json!({"type": "dpu-offload", "network": "green"});
        assert_eq!(asked(ours).unwrap().as_deref(), Some("green"));
        assert_eq!(asked(json!({"type": "host-local", "subnet": "x"})), Ok(None));
        assert!(asked(json!({"type": "dpu-offload"})).unwrap_err().contains("no `network`"));
        let more = json!({"type": "dpu-offload", "network": "green", "subnet": "x"});
        assert!(asked(more).unwrap_err().contains("`subnet`"));
    }

    #[test]
    fn ipam_keys_match_in_any_case() {
        let asking = json!({"type": "bridge", "IPAM": {"Type": "dpu-offload", "NETWORK": "green"}});
        let asking = asking.as_object().unwrap().clone();
        assert_eq!(network_of(&asking), Ok(Some("green")));
        let told = told(asking, &v1::FurtherLease::default());
        assert_eq!(told["IPAM"]["type"], ipam::PROGRAM);
        assert_eq!(Vec::from_iter(told.keys()), ["IPAM", "type"], "there is one IPAM plugin");
    }

    #[test]
    fn plugin_gets_addresses_without_routes() {
        let address = v1::Address { address: "10.2.0.5/24".into(), gateway: "10.2.0.1".into() };
        let routes = vec![v1::Route { destination: "10.9.0.0/16".into(), ..Default::default() }];
        let lease =
            v1::FurtherLease { addresses: vec![address], routes, ..v1::FurtherLease::default() };
        let ours = plugin(json!({"type": "dpu-offload", "network": "green"}));
        let result = told(ours, &lease)["ipam"]["result"].take();
        assert_eq!(result["ips"], json!([{"address": "10.2.0.5/24", "gateway": "10.2.0.1"}]));
        assert_eq!(result.get("routes"), None);
        let others = plugin(json!({"type": "host-local"}));
        assert_eq!(told(others.clone(), &lease), others);
    }
}
