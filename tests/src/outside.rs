//! The network beyond a lab's DPU, for networks with the DPU as gateway: a host behind its uplink.

use std::time::Duration;

use crate::{Lab, Netns, wait_for};

const LIMIT: Duration = Duration::from_secs(30);

/// `blue` reaches `green` and the outside with its own addresses, `nated` with the DPU's. `green` reaches only the
/// outside. `routed` has a link-local first hop.
pub(crate) const NETWORKS: &str = r#"
[gateway]
uplinks = ["out"]

[[network]]
name = "blue"
default = true
gateway_mode = "dpu"
reaches = ["green"]
subnets = [{ cidr = "10.1.0.0/16", gateway = "10.1.0.1" }, { cidr = "fd00:10:1::/64", gateway = "fd00:10:1::1" }]

[[network]]
name = "green"
gateway_mode = "dpu"
subnets = [{ cidr = "10.2.0.0/24", gateway = "10.2.0.1" }, { cidr = "fd00:10:2::/64", gateway = "fd00:10:2::1" }]

[[network]]
name = "nated"
gateway_mode = "dpu"
nat = true
subnets = [{ cidr = "10.3.0.0/24", gateway = "10.3.0.1" }, { cidr = "fd00:10:3::/64", gateway = "fe80::1" }]
"#;

/// Addresses of the host outside.
pub const OUTSIDE: [&str; 2] = ["192.0.2.2", "2001:db8::2"];
/// The DPU's addresses on that link.
pub const DPU_OUTSIDE: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

/// Creates a host behind the DPU's new link `out`, with routes to the subnets of `blue`.
///
/// # Panics
/// If the gateway does not accept the link.
#[must_use]
pub fn outside_of(lab: &Lab) -> Netns {
    let outside = Netns::new("outside");
    let dpu = &lab.card.dpu;
    dpu.ip(&[
        "link",
        "add",
        "out",
        "type",
        "veth",
        "peer",
        "name",
        "eth0",
        "netns",
        outside.name(),
    ]);
    for (netns, link, addresses) in [(&**dpu, "out", DPU_OUTSIDE), (&outside, "eth0", OUTSIDE)] {
        netns.ip(&["addr", "add", &format!("{}/24", addresses[0]), "dev", link]);
        netns.ip(&["addr", "add", &format!("{}/64", addresses[1]), "dev", link, "nodad"]);
        netns.ip(&["link", "set", link, "up"]);
    }
    for (subnet, by) in [("10.1.0.0/16", DPU_OUTSIDE[0]), ("fd00:10:1::/64", DPU_OUTSIDE[1])] {
        outside.ip(&["route", "add", subnet, "via", by]);
    }
    wait_for("gateways without problems", LIMIT, || {
        lab.operator().faults().is_empty().then_some(())
    });
    for netns in [&*lab.card.dpu, &outside] {
        wait_for("addresses to be sure of", LIMIT, || is_sure_of_addresses(netns).then_some(()));
    }
    outside
}

/// Whether all IPv6 addresses have passed duplicate address detection (up to 2 s). The kernel sends no solicitation
/// from a tentative address.
fn is_sure_of_addresses(netns: &Netns) -> bool {
    let links = netns.json("ip", &["-6", "address", "show", "tentative"]);
    links.iter().all(|link| link["addr_info"].as_array().is_none_or(Vec::is_empty))
}
