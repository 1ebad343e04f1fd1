//! The configuration section `gateway`: the way out of networks whose gateway is this DPU.

use offload_proto::form::{INTERFACE_NAMES, is_interface_name};
use serde::{Deserialize, Serialize};

use drivers::settings::{FabricDriver, FabricSettings};
use model::{GatewayMode, Network, duplicates};

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GatewaySettings {
    /// The DPU's own links that lead outside. Another program gives them addresses and routes.
    pub uplinks: Vec<String>,
}

impl GatewaySettings {
    /// Finds errors in the section: one sentence each.
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
        problems
            .extend(duplicates(names).map(|name| format!("gateway.uplinks holds {name:?} twice")));
        problems
    }

    /// One sentence about why this DPU can't be the gateway of the network.
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
