//! The names of the bridge and its uplinks.

use offload_proto::form::is_interface_name;

use crate::twice::twice;

const NO_INTERFACE: &str =
    "can't name an interface: use 1 to 15 visible characters without / : and %";

/// What is wrong with the names of the bridge and its uplinks, one sentence each.
pub(crate) fn check_names(bridge: &str, uplinks: &[String]) -> Vec<String> {
    let mut problems = Vec::new();
    if !is_interface_name(bridge) {
        problems.push(format!("fabric.bridge = {bridge:?} {NO_INTERFACE}"));
    }
    for uplink in uplinks {
        if !is_interface_name(uplink) {
            problems.push(format!("fabric.uplinks holds {uplink:?}, which {NO_INTERFACE}"));
        }
        if uplink == bridge {
            problems.push(format!("fabric.uplinks holds {uplink:?}, the bridge itself"));
        }
    }
    let names = uplinks.iter().map(String::as_str);
    problems.extend(twice(names).map(|name| format!("fabric.uplinks holds {name:?} twice")));
    problems
}
