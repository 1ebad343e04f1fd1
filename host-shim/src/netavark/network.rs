//! podman's network. The DPU has the subnets, routes and resolvers; podman's network only names the DPU's network.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::refusal::Refusal;

/// The fields that are checked. Others are podman's own.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Network {
    pub(super) name: String,
    network_interface: Option<String>,
    subnets: Option<Vec<Value>>,
    routes: Option<Vec<Value>>,
    network_dns_servers: Option<Vec<Value>>,
    internal: bool,
    ipam_options: Option<BTreeMap<String, String>>,
    options: Option<BTreeMap<String, String>>,
}

/// The option with the DPU's network. Absent: the one with the name of podman's network. Empty: the DPU's default
/// network.
pub(super) const NETWORK: &str = "network";
/// The option with the agent's socket, if it is not the default one.
pub(super) const AGENT_SOCKET: &str = "agent_socket";

impl Network {
    /// An option of `podman network create -o KEY=VALUE`.
    pub(super) fn option(&self, key: &str) -> Option<&String> {
        self.options.as_ref()?.get(key)
    }

    pub(super) fn check_options(&self) -> Result<(), Refusal> {
        let mut options = self.options.iter().flatten();
        match options.find(|(key, _)| ![NETWORK, AGENT_SOCKET].contains(&key.as_str())) {
            Some((key, value)) => Err(unknown_option(key, value)),
            None => Ok(()),
        }
    }

    /// Refuses settings that the DPU's network decides.
    pub(super) fn check(&self) -> Result<(), Refusal> {
        let has_any =
            |list: &Option<Vec<Value>>| list.as_ref().is_some_and(|list| !list.is_empty());
        let ipam = self.ipam_options.as_ref().and_then(|options| options.get("driver"));
        let is_dhcp = ipam.is_some_and(|driver| driver == "dhcp");
        let has_interface = self.network_interface.as_ref().is_some_and(|name| !name.is_empty());
        let asked = [
            (has_any(&self.subnets), "--subnet", "its network has the subnets"),
            (has_any(&self.routes), "--route", "its network has the routes"),
            (has_any(&self.network_dns_servers), "--dns", "its network has the resolvers"),
            (is_dhcp, "--ipam-driver dhcp", "its network has the addresses"),
            (self.internal, "--internal", "its network has, or has no, way out"),
            (has_interface, "--interface-name", "the host has no interface of a network"),
        ];
        match asked.into_iter().find(|(is_asked, ..)| *is_asked) {
            None => Ok(()),
            Some((_, option, why)) => Err(Refusal(format!(
                "{option} is not for networks of the DPU: {why}; leave it out, and see `dpuctl get networks`"
            ))),
        }
    }
}

/// Returns how podman stores a new network.
pub(super) fn create(mut network: Value) -> Result<Value, Refusal> {
    let read = Network::deserialize(&network)
        .map_err(|error| Refusal(format!("cannot decode netavark's input: {error}")))?;
    read.check()?;
    read.check_options()?;
    // The DPU's networks do not resolve containers' names.
    if let Some(enabled) = network.get_mut("dns_enabled") {
        *enabled = false.into();
    }
    Ok(network)
}

/// Refuses an unknown option of a container or network.
pub(super) fn unknown_option(key: &str, value: &str) -> Refusal {
    let why = match key {
        "mtu" => "the DPU's network has it: set its mtu there".to_owned(),
        _ => "known are network and agent_socket".to_owned(),
    };
    Refusal(format!("the option {key:?} with the value {value:?} is not supported: {why}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// As podman 5.8 passes it for `podman network create -d dpu-offload -o network=green green`.
    fn network() -> Value {
        json!({
            "name": "green",
            "id": "2f259bab93aaaaa2542ba43ef33eb990d0999ee1b9924b557b7be53c0b7a1bb9",
            "driver": "dpu-offload",
            "created": "2026-11-20T10:00:00.000000000Z",
            "ipv6_enabled": false,
            "internal": false,
            "dns_enabled": true,
            "options": { "network": "green" },
            "ipam_options": { "driver": "host-local" },
        })
    }

    #[test]
    fn created_network_only_loses_dns() {
        let mut kept = network();
        kept["dns_enabled"] = false.into();
        assert_eq!(create(network()), Ok(kept));
    }

    #[test]
    fn options_of_the_dpu_are_refused() {
        for (key, value, option) in [
            ("subnets", json!([{ "subnet": "10.9.0.0/24" }]), "--subnet"),
            ("routes", json!([{ "destination": "10.9.0.0/24" }]), "--route"),
            ("network_dns_servers", json!(["192.0.2.1"]), "--dns"),
            ("ipam_options", json!({ "driver": "dhcp" }), "--ipam-driver dhcp"),
            ("internal", json!(true), "--internal"),
            ("network_interface", json!("podman7"), "--interface-name"),
        ] {
            let mut network = network();
            network[key] = value;
            let refusal = create(network).unwrap_err().0;
            assert!(refusal.starts_with(&format!("{option} is not for")), "{refusal}");
        }
    }

    #[test]
    fn unknown_network_option_is_refused() {
        for (key, advice) in [("mtu", "its mtu"), ("vlan", "network and")] {
            let mut network = network();
            network["options"][key] = "9000".into();
            let refusal = create(network).unwrap_err().0;
            assert!(refusal.contains(&format!("{key:?} with the value \"9000\"")), "{refusal}");
            assert!(refusal.contains(advice), "{refusal}");
        }
    }
}
