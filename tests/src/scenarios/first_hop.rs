//! Pods that reach all others through their first hop, an external router.

use std::time::Duration;

use serde_json::Value;

use super::pods::addresses;
use crate::{Lab, Netns, Settings, run, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// Networks with link-local first hops and a router on the link.
const NETWORKS: &str = r#"
[[network]]
name = "routed"
first_hop = true
subnets = [{ cidr = "10.8.0.0/24", gateway = "169.254.77.1" }, { cidr = "fd00:10:8::/64", gateway = "fe80::77" }]

[[network]]
name = "routers"
anti_spoofing = "off"
"#;

/// Makes a pod the router.
fn set_up(router: &Netns) {
    for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
        let output = run(router.command("sysctl").args(["-qw", setting]));
        assert!(output.status.success(), "{setting}: {output:?}");
    }
    for line in [
        "address add 169.254.77.1/32 dev eth0",
        "address add fe80::77/64 dev eth0 nodad",
        "route add 10.8.0.0/24 dev eth0",
        "route add fd00:10:8::/64 dev eth0",
    ] {
        let _ = router.ip(&line.split(' ').collect::<Vec<_>>());
    }
}

/// Prefix lengths of a pod's own addresses, IPv4 first.
#[must_use]
pub fn lengths(pod: &Netns) -> Vec<Value> {
    let link = pod.json("ip", &["address", "show", "dev", "eth0", "scope", "global"]).remove(0);
    let held = link["addr_info"].as_array().unwrap().iter();
    // `ip` prints an empty object for an address of another scope.
    held.filter_map(|held| held.get("prefixlen").cloned()).collect()
}

/// Destination and gateway of a pod's routes of a family, without the kernel's own.
#[must_use]
pub fn routes(pod: &Netns, family: &str) -> Vec<(Value, Value)> {
    let routes = pod.json("ip", &[family, "route", "show", "dev", "eth0"]).into_iter();
    let routes = routes.filter(|route| route["protocol"] != "kernel");
    routes.map(|route| (route["dst"].clone(), route["gateway"].clone())).collect()
}

/// Pods of one network reach each other only through a router with link-local addresses.
///
/// # Panics
/// If an expectation is not met.
pub fn pods_communicate_by_link_router(settings: &Settings) {
    let networks = [&settings.networks, NETWORKS].concat();
    let lab = Lab::start(&Settings { networks, ..settings.clone() });
    let [router, a, b] = ["router", "a", "b"].map(Netns::new);
    let _ = lab.add("routers", &router, "eth0").result();
    let _ = lab.add("routed", &a, "eth0").result();
    let of_b = addresses(&lab.add("routed", &b, "eth0").result());
    for pod in [&a, &b] {
        assert_eq!(lengths(pod), [32, 128]);
        let by = |gateway: &str| (Value::from("default"), Value::from(gateway));
        let on_link = (Value::from("169.254.77.1"), Value::Null);
        assert_eq!(routes(pod, "-4"), [by("169.254.77.1"), on_link]);
        assert_eq!(routes(pod, "-6"), [by("fe80::77")]);
    }
    for address in &of_b {
        assert!(!a.pings(address), "{address} is reached past the router");
    }
    set_up(&router);
    for address in &of_b {
        wait_for(address, LIMIT, || a.pings(address).then_some(()));
    }
    for (network, pod) in [("routed", &a), ("routed", &b), ("routers", &router)] {
        lab.del(network, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}
