//! A network as podman keeps it, and what of it can be had here: the DPU has the subnets, routes and resolvers,
//! and podman's user only says which of its networks is meant.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;

use super::Refusal;

/// What is looked at of a network. The rest is podman's own business.
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

/// The options of `podman network create -o KEY=VALUE`.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// The DPU's network. Absent: of the same name as podman's. Empty: the DPU's default one.
    pub(super) network: Option<String>,
    /// The agent's socket, where it is another than the usual one.
    pub(super) agent_socket: Option<String>,
}

impl Network {
    pub(super) fn options(&self) -> Result<Options, Refusal> {
        let mut read = Options::default();
        for (key, value) in self.options.iter().flatten() {
            match key.as_str() {
                "network" => read.network = Some(value.clone()),
                "agent_socket" => read.agent_socket = Some(value.clone()),
                _ => return Err(unknown_option(key, value)),
            }
        }
        Ok(read)
    }

    /// Likewise of a network that may have become anything: whom to ask is all that counts.
    pub(super) fn options_for_teardown(&self) -> Options {
        let agent_socket = self.options.iter().flatten().find(|(key, _)| *key == "agent_socket");
        Options { network: None, agent_socket: agent_socket.map(|(_, path)| path.clone()) }
    }

    /// What the DPU decides, and podman's user can't.
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

/// Says how podman is to keep a network that it has been told to create.
pub(super) fn create(mut network: Value) -> Result<Value, Refusal> {
    let read = Network::deserialize(&network)
        .map_err(|error| Refusal(format!("what netavark says can't be decoded: {error}")))?;
    read.check()?;
    read.options()?;
    // Names of containers are answered by nobody in the DPU's networks.
    if let Some(enabled) = network.get_mut("dns_enabled") {
        *enabled = false.into();
    }
    Ok(network)
}

/// Options that a container or a network may not have here.
pub(super) fn unknown_option(key: &str, value: &str) -> Refusal {
    let why = match key {
        "mtu" => "the DPU's network has it: set its mtu there".to_owned(),
        _ => "known are network and agent_socket".to_owned(),
    };
    Refusal(format!("the option {key:?} with the value {value:?} can't be had: {why}"))
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
    fn a_network_is_kept_as_it_is_but_for_names_of_containers() {
        let mut kept = network();
        kept["dns_enabled"] = false.into();
        assert_eq!(create(network()), Ok(kept));
    }

    #[test]
    fn what_the_dpu_decides_is_refused_by_its_name() {
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
    fn an_option_that_nobody_knows_is_refused_by_name_and_value() {
        for (key, advice) in [("mtu", "its mtu"), ("vlan", "network and")] {
            let mut network = network();
            network["options"][key] = "9000".into();
            let refusal = create(network).unwrap_err().0;
            assert!(refusal.contains(&format!("{key:?} with the value \"9000\"")), "{refusal}");
            assert!(refusal.contains(advice), "{refusal}");
        }
    }
}
