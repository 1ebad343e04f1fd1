//! Changes of a DPU's fabric by another program, for each kind.

use crate::{Netns, OpenVswitch};

/// Name of all DPUs' bridge.
pub(crate) const BRIDGE: &str = "br-offload";

/// Removes a port from the bridge without the service's knowledge.
pub(crate) fn take_out(dpu: &Netns, vswitch: Option<&OpenVswitch>, port: &str) {
    match vswitch {
        None => drop(dpu.ip(&["link", "set", port, "nomaster"])),
        Some(vswitch) => drop(vswitch.vsctl(&format!("del-port {BRIDGE} {port}"))),
    }
}

/// Adds a link to the bridge without the service's knowledge.
pub(crate) fn put_in(dpu: &Netns, vswitch: Option<&OpenVswitch>, link: &str) {
    match vswitch {
        None => drop(dpu.ip(&["link", "set", link, "master", BRIDGE])),
        Some(vswitch) => {
            let index = &dpu.json("ip", &["link", "show", link])[0]["ifindex"];
            let port = format!("set port {link} external_ids:owner=dpu-offload");
            let interface = format!("set interface {link} external_ids:ifindex={index}");
            let _ = vswitch.vsctl(&format!("add-port {BRIDGE} {link} -- {port} -- {interface}"));
        }
    }
}
