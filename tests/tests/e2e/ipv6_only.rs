//! A network with IPv6 only: pods and the way to them need no IPv4.

use std::{fs, time::Duration};

use e2e::{
    Call, Lab, Netns, Settings,
    scenarios::{
        life,
        outages::{self, Pair},
        pods::addresses,
    },
    wait_for,
};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(20);

/// `wire` is in the same broadcast domain, for routers.
const NETWORKS: &str = r#"
[[network]]
name = "blue"
default = true
[network.dns]
nameservers = ["fd00:10:1::53"]
[[network.routes]]
destination = "2001:db8:5::/48"
gateway = "fd00:10:1::fe"
[[network.subnets]]
cidr = "fd00:10:1::/64"
gateway = "fd00:10:1::1"

[[network]]
name = "wire"
"#;

fn settings() -> Settings {
    Settings { networks: NETWORKS.into(), ..Settings::default() }
}

#[test]
fn ipv6_pod_is_configured_without_ipv4() {
    let lab = Lab::start(&settings());
    let pod = Netns::new("pod");
    let result = lab.add("blue", &pod, "eth0").result();
    let ip = &result["ips"].as_array().unwrap()[..];
    assert_eq!(ip.len(), 1, "{result}");
    assert!(ip[0]["address"].as_str().unwrap().starts_with("fd00:10:1::"), "{result}");
    assert_eq!(ip[0]["gateway"], "fd00:10:1::1");
    assert_eq!(result["dns"], json!({ "nameservers": ["fd00:10:1::53"] }));
    let reported: Vec<_> = result["routes"].as_array().unwrap().iter().map(|r| &r["dst"]).collect();
    assert_eq!(reported, ["2001:db8:5::/48", "::/0"]);

    let of_ipv4 = pod.json("ip", &["-4", "addr", "show", "dev", "eth0"]);
    assert!(of_ipv4.iter().all(|link| link["addr_info"] == json!([])), "{of_ipv4:?}");
    assert!(pod.json("ip", &["-4", "route"]).is_empty());
    let routes = pod.json("ip", &["-6", "route"]);
    for (destination, gateway) in
        [("default", "fd00:10:1::1"), ("2001:db8:5::/48", "fd00:10:1::fe")]
    {
        let leads = |route: &&Value| route["dst"] == destination && route["gateway"] == gateway;
        assert!(routes.iter().any(|route| leads(&route)), "{destination} is not in {routes:?}");
    }
    lab.assert_invariants();
    let mut old = lab.configuration("blue");
    old["cniVersion"] = json!("0.4.0");
    let call = Call::new("ADD", &old).of(pod.name(), Some(&pod.path()), "eth0");
    assert_eq!(lab.execute(&call).result()["ips"][0]["version"], "6");
}

#[test]
fn ipv6_pods_survive_restarts_and_reset() {
    life::pods_survive_restarts_and_reset(&settings());
}

#[test]
fn ipv6_release_is_delivered_after_outage() {
    outages::dpu_outage_fails_adds_and_defers_dels(&settings());
}

/// Runtimes such as Docker create namespaces with IPv6 disabled.
#[test]
fn disabled_ipv6_is_enabled_for_its_address() {
    let lab = Lab::start(&settings());
    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    for of in ["all", "default"] {
        let file = format!("/proc/sys/net/ipv6/conf/{of}/disable_ipv6");
        pod.run(|| fs::write(file, "1")).unwrap();
    }
    let of_pod = addresses(&lab.add("blue", &pod, "eth0").result());
    let _ = lab.add("blue", &other, "eth0").result();
    lab.assert_invariants();
    assert!(other.pings(&of_pod[0]));
}

#[test]
fn router_serves_ipv6_pods() {
    let lab = Lab::start(&settings());
    let (pod, router) = (Netns::new("pod"), Netns::new("router"));
    let _ = lab.add("blue", &pod, "eth0").result();
    let _ = lab.add("wire", &router, "eth0").result();
    for address in ["fd00:10:1::1/64", "fd00:10:1::fe/64"] {
        router.ip(&["addr", "add", address, "dev", "eth0", "nodad"]);
    }
    for outside in ["2001:db8:7::1", "2001:db8:5::1"] {
        router.ip(&["addr", "add", &format!("{outside}/128"), "dev", "lo"]);
        assert!(pod.pings(outside), "{outside}");
    }
}

/// Otherwise the neighbour keeps sending to the old MAC address until its entry expires.
#[test]
fn neighbours_learn_new_mac_of_ipv6_address() {
    let lab = Lab::start(&settings());
    let Pair { a, b, .. } = &Pair::attach(&lab);
    let address = "fd00:10:1::77";
    let known = ["lladdr", "02:00:00:00:00:99", "dev", "eth0", "nud", "reachable"];
    a.ip(&[&["-6", "neigh", "replace", address], &known[..]].concat());
    lab.del("blue", b, "eth0").nothing();
    let mut configuration = lab.configuration("blue");
    configuration["runtimeConfig"] = json!({ "ips": [address] });
    let call = Call::new("ADD", &configuration).of(b.name(), Some(&b.path()), "eth0");
    let mac = lab.execute(&call).result()["interfaces"][0]["mac"].clone();
    wait_for("the announcement", LIMIT, || {
        let known = a.json("ip", &["-6", "neigh", "show", address]);
        (known[0]["lladdr"] == mac).then_some(())
    });
    assert!(a.pings(address));
}
