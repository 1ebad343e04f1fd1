//! Where networks lead whose gateway is this DPU: the section of the configuration, and what makes sense
//! with it.

use offload_proto::form::{INTERFACE_NAMES, is_interface_name};
use serde::{Deserialize, Serialize};

use crate::{
    drivers::{FabricDriver, FabricSettings},
    model::{GatewayMode, Network},
    twice::twice,
};

/// The section.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewaySettings {
    /// The DPU's own links that lead outside, with addresses and routes that somebody else gave them.
    pub uplinks: Vec<String>,
}

impl GatewaySettings {
    /// What makes no sense in the section, one sentence each.
    pub(crate) fn check(&self, fabric: &FabricSettings) -> Vec<String> {
        let check = |name: &String| {
            let why = if !is_interface_name(name) {
                &format!("which can't name an interface: use {INTERFACE_NAMES}")
            } else if fabric.has_link(name) {
                "which is one of fabric.uplinks or fabric.keep: those have no addresses; name a link \
                 that has"
            } else {
                return None;
            };
            Some(format!("gateway.uplinks holds {name:?}, {why}"))
        };
        let mut problems: Vec<_> = self.uplinks.iter().filter_map(check).collect();
        let names = self.uplinks.iter().map(String::as_str);
        problems.extend(twice(names).map(|name| format!("gateway.uplinks holds {name:?} twice")));
        problems
    }

    /// Why this DPU can't be the gateway of the network as it wants, one sentence.
    pub(crate) fn check_network(&self, network: &Network, fabric: FabricDriver) -> Option<String> {
        if network.gateway_mode == GatewayMode::Router {
            return None;
        }
        let lack = fabric.lacks("gateway_mode = \"dpu\"", FabricDriver::has_gateways);
        let why = lack.or_else(|| self.lack_of_uplinks(network))?;
        Some(format!("network {:?}: {why}", network.name))
    }

    fn lack_of_uplinks(&self, network: &Network) -> Option<String> {
        (network.nat && self.uplinks.is_empty()).then(|| {
            "nat = true needs an uplink: name the DPU's links that lead outside in gateway.uplinks"
                .into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(uplinks: &[&str]) -> GatewaySettings {
        GatewaySettings { uplinks: uplinks.iter().map(ToString::to_string).collect() }
    }

    #[test]
    fn uplinks_are_links_with_addresses_of_their_own() {
        let fabric = FabricSettings { uplinks: vec!["p0".into()], ..FabricSettings::default() };
        assert_eq!(settings(&["p1", "p2"]).check(&fabric), [""; 0]);
        let told = settings(&["p0", "a/b", "p1", "p1"]).check(&fabric);
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told[0].contains("\"p0\", which is one of fabric.uplinks"), "{told:?}");
        assert!(told[1].contains("\"a/b\", which can't name an interface"), "{told:?}");
        assert!(told[2].contains("holds \"p1\" twice"), "{told:?}");
    }

    #[test]
    fn translation_needs_an_uplink_and_a_gateway_a_fabric() {
        let network = |nat: bool| {
            let text = format!("name = 'blue'\ngateway_mode = 'dpu'\nnat = {nat}");
            toml::from_str::<Network>(&text).unwrap()
        };
        let bridge = FabricDriver::Bridge;
        assert_eq!(settings(&[]).check_network(&network(false), bridge), None);
        assert_eq!(settings(&["p1"]).check_network(&network(true), bridge), None);
        let told = settings(&[]).check_network(&network(true), bridge).unwrap();
        assert!(told.contains("network \"blue\": nat = true needs an uplink"), "{told}");
        for fabric in [FabricDriver::Ovs, FabricDriver::None] {
            let told = settings(&[]).check_network(&network(false), fabric).unwrap();
            let expected =
                format!("needs fabric.driver = \"bridge\", and this DPU has {:?}", fabric.name());
            assert!(told.contains(&expected), "{told}");
        }
    }
}
