//! What happens to a DPU's fabric behind the service's back, on each kind of it.

use crate::{Netns, OpenVswitch};

/// The bridge of all DPUs.
pub(crate) const BRIDGE: &str = "br-offload";

/// Takes a port out of the bridge, as somebody may who knows nothing of the service.
pub(crate) fn take_out(dpu: &Netns, vswitch: Option<&OpenVswitch>, port: &str) {
    match vswitch {
        None => drop(dpu.ip(&["link", "set", port, "nomaster"])),
        Some(vswitch) => drop(vswitch.vsctl(&format!("del-port {BRIDGE} {port}"))),
    }
}

/// Puts a link into the bridge as the service does, which knows nothing of it.
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
