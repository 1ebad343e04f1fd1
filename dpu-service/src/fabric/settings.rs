//! What the configuration tells the driver.

use offload_proto::form::is_interface_name;

use crate::twice::twice;

const NO_INTERFACE: &str =
    "can't name an interface: use 1 to 15 visible characters without / : and %";

/// Which bridge, and what leads outside of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgeSettings {
    /// The bridge's name. It is created if it does not exist.
    pub name: String,
    /// Netdevs that join it as uplinks.
    pub uplinks: Vec<String>,
}

impl BridgeSettings {
    /// What makes no sense in them, one sentence each.
    pub(crate) fn check(&self) -> Vec<String> {
        let Self { name, uplinks } = self;
        let mut problems = Vec::new();
        if !is_interface_name(name) {
            problems.push(format!("fabric.bridge = {name:?} {NO_INTERFACE}"));
        }
        for uplink in uplinks {
            if !is_interface_name(uplink) {
                problems.push(format!("fabric.uplinks holds {uplink:?}, which {NO_INTERFACE}"));
            }
            if uplink == name {
                problems.push(format!("fabric.uplinks holds {uplink:?}, the bridge itself"));
            }
        }
        let names = uplinks.iter().map(String::as_str);
        problems.extend(twice(names).map(|name| format!("fabric.uplinks holds {name:?} twice")));
        problems
    }
}
