//! Routes and policy rules of a network in its pods.

use std::{collections::BTreeSet, time::Duration};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::life;
use crate::{Lab, Netns, Settings, eventually, run, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// The agent's timer is off: it compares pods with its records only on request.
const ON_DEMAND: &str = "reconcile_s = 3600";

/// All fields of routes, rules and settings, in either family.
const NETWORK: &str = r#"
[[network]]
name = "routed"
sysctls = { ipv4 = { rp_filter = 2, arp_ignore = 1, forwarding = 1 }, ipv6.accept_ra = 2 }
[[network.subnets]]
cidr = "10.8.0.0/24"
gateway = "10.8.0.1"
[[network.subnets]]
cidr = "fd00:10:8::/64"
gateway = "fd00:10:8::1"
[[network.routes]]
destination = "172.20.0.0/16"
gateway = "10.8.0.254"
mtu = 1300
advmss = 1200
priority = 50
[[network.routes]]
destination = "172.21.0.0/16"
[[network.routes]]
destination = "0.0.0.0/0"
gateway = "10.8.0.2"
table = 100
[[network.routes]]
destination = "2001:db8:20::/48"
gateway = "fd00:10:8::fe"
mtu = 1400
advmss = 1220
priority = 60
[[network.routes]]
destination = "2001:db8:21::/48"
[[network.routes]]
destination = "::/0"
gateway = "fd00:10:8::2"
table = 100000
[[network.routes]]
destination = "198.18.0.0/15"
gateway = "169.254.7.1"
onlink = true
table = 110
[[network.routes]]
destination = "2001:db8:18::/48"
gateway = "2001:db8:ffff::1"
onlink = true
table = 110
[[network.routes]]
destination = "2001:db8:19::/48"
gateway = "fe80::1"
[[network.routes]]
destination = "172.22.0.0/16"
scope = "host"
[[network.routes]]
destination = "172.23.0.0/16"
scope = "global"
[[network.routes]]
destination = "10.66.0.0/16"
kind = "blackhole"
[[network.routes]]
destination = "172.24.0.0/16"
kind = "prohibit"
table = 110
priority = 70
[[network.routes]]
destination = "fd66::/16"
kind = "unreachable"
[[network.rules]]
source = "own"
table = 110
priority = 900
[[network.rules]]
source = "10.8.0.0/24"
table = 100
priority = 1000
[[network.rules]]
source = "fd00:10:8::/64"
table = 100000
priority = 1001
[[network.rules]]
source = "10.99.0.0/16"
table = 200
[[network.rules]]
source = "0.0.0.0/0"
table = 201
priority = 1002
[[network.rules]]
source = "::/0"
table = 201
priority = 1003
"#;

/// The pod's expected routes, as in `ip`.
const ROUTES: [&str; 16] = [
    "198.18.0.0/15 via 169.254.7.1 table 110 flags onlink",
    "2001:db8:18::/48 via 2001:db8:ffff::1 table 110 metric 1024 flags onlink",
    "2001:db8:19::/48 via fe80::1 metric 1024 flags onlink",
    "172.22.0.0/16 scope host",
    "172.23.0.0/16",
    "blackhole 10.66.0.0/16",
    "prohibit 172.24.0.0/16 table 110 metric 70",
    "unreachable fd66::/16 metric 1024",
    "default via 10.8.0.1",
    "default via 10.8.0.2 table 100",
    "172.20.0.0/16 via 10.8.0.254 metric 50 mtu 1300 advmss 1200",
    "172.21.0.0/16 scope link",
    "default via fd00:10:8::1 metric 1024",
    "default via fd00:10:8::2 table 100000 metric 1024",
    "2001:db8:20::/48 via fd00:10:8::fe metric 60 mtu 1400 advmss 1220",
    "2001:db8:21::/48 metric 1024",
];

/// The pod's expected rules. The kernel puts a rule without a priority before those that have one.
const RULES: [&str; 5] = [
    "899: from 10.99.0.0/16 lookup 200",
    "1000: from 10.8.0.0/24 lookup 100",
    "1001: from fd00:10:8::/64 lookup 100000",
    "1002: from all lookup 201",
    "1003: from all lookup 201",
];

/// Expected settings of the interface, including the usual ones of all pods.
const SETTINGS: [(&str, &str); 6] = [
    ("ipv4/conf/eth0/rp_filter", "2"),
    ("ipv4/conf/eth0/arp_ignore", "1"),
    ("ipv4/conf/eth0/forwarding", "1"),
    ("ipv6/conf/eth0/accept_ra", "2"),
    ("ipv6/conf/eth0/keep_addr_on_down", "1"),
    ("ipv6/conf/eth0/ndisc_notify", "1"),
];

/// A rule of the pod itself, after all others.
const OWN_RULE: &str = "2000: from 192.0.2.7 lookup 55";

/// Changes by pods to their routes and rules, with what CHECK then reports.
const LOSSES: [(&str, &str); 12] = [
    ("-4 route del blackhole 10.66.0.0/16", "blackhole 10.66.0.0/16"),
    ("-6 route del unreachable fd66::/16", "unreachable fd66::/16"),
    ("-6 route flush table 110", "2001:db8:18::/48 via 2001:db8:ffff::1 in table 110"),
    ("-6 rule del pref 900", "from fd00:10:8::"),
    ("-4 route flush table 100", "0.0.0.0/0 via 10.8.0.2 in table 100"),
    ("-6 route flush table 100000", "::/0 via fd00:10:8::2 in table 100000"),
    ("-4 route del 172.20.0.0/16", "172.20.0.0/16 via 10.8.0.254"),
    ("-4 route del 172.21.0.0/16", "172.21.0.0/16"),
    ("-6 route del 2001:db8:20::/48", "2001:db8:20::/48 via fd00:10:8::fe"),
    ("-6 route flush default", "::/0 via fd00:10:8::1"),
    ("-4 rule del pref 1000", "from 10.8.0.0/24 to table 100"),
    ("-6 rule del pref 1003", "from ::/0 to table 201"),
];

/// The settings with the network `routed`.
#[must_use]
pub fn settings_with_routes(settings: &Settings) -> Settings {
    let mut settings = Settings { timeouts: ON_DEMAND.into(), ..settings.clone() };
    settings.networks.push_str(NETWORK);
    settings
}

/// Routes and rules of a network are set in the pod. CHECK names each that is missing. They are repaired with the
/// interface and removed with the attachment.
///
/// # Panics
/// If an expectation is not met.
pub fn network_routes_and_rules_are_kept(settings: &Settings) {
    let mut lab = Lab::start(&settings_with_routes(settings));
    let pod = Netns::new("pod");
    pod.ip(&["rule", "add", "from", "192.0.2.7", "table", "55", "pref", "2000"]);
    let result = lab.add("routed", &pod, "eth0").result();
    assert_routed(&pod);
    lab.assert_invariants();
    let assert_put_back = |change: &dyn Fn(), lost: &str| {
        let failed = wait_for("a CHECK that fails", LIMIT, || {
            // The agent may repair the pod at any time.
            change();
            let answer = life::check(&lab, "routed", &pod, &result);
            (!answer.status.success()).then_some(answer)
        });
        failed.fails(132, &[lost]);
        lab.agent.signal(Signal::SIGHUP);
        assert_routed(&pod);
    };
    for (change, lost) in LOSSES {
        assert_put_back(&|| drop(run(pod.command("ip").args(change.split(' ')))), lost);
    }
    assert_put_back(&|| switch_off_and_on(&pod), "the pod has lost the route");
    // Settings that a pod or a chained plugin changed stay until the interface is configured again.
    set(&pod, "ipv4/conf/eth0/rp_filter", "0");
    life::check(&lab, "routed", &pod, &result).nothing();
    lab.agent.crash();
    pod.ip(&["link", "set", "eth0", "down"]);
    lab.start_agent();
    assert_routed(&pod);
    lab.wait_until_good();
    lab.reset_card();
    assert_routed(&pod);
    lab.wait_until_good();
    lab.assert_invariants();

    life::check(&lab, "routed", &pod, &result).nothing();
    lab.del("routed", &pod, "eth0").nothing();
    assert!(routes(&pod).is_empty(), "{:?}", routes(&pod));
    assert_eq!(rules(&pod), BTreeSet::from([OWN_RULE.into()]));
    lab.assert_clean_slate();
}

/// Switches a pod's interface off and on. Its addresses stay; the kernel removes the routes.
///
/// # Panics
/// If an expectation is not met.
pub fn switch_off_and_on(pod: &Netns) {
    for state in ["down", "up"] {
        pod.ip(&["link", "set", "eth0", state]);
        let held = ["10.8.0.", "fd00:10:8::"].map(|begin| held_address(pod, begin));
        assert!(held.iter().all(Option::is_some), "{state}: {held:?}");
    }
}

/// Asserts that a pod soon has exactly the routes and rules of the network `routed`, and that they take effect.
///
/// # Panics
/// If an expectation is not met.
pub fn assert_routed(pod: &Netns) {
    let expected = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
    let (all_routes, mut all_rules): (BTreeSet<_>, BTreeSet<_>) =
        (expected(&ROUTES), expected(&RULES));
    let own = ["10.8.0.", "fd00:10:8::"].map(|begin| address_of(pod, begin));
    all_rules.extend(own.map(|address| format!("900: from {address} lookup 110")));
    let has_all = || {
        let own = OWN_RULE.to_owned();
        let has = rules(pod).into_iter().filter(|rule| *rule != own).collect::<BTreeSet<_>>();
        let is_set = |(name, value): (&str, &str)| setting(pod, name) == value;
        routes(pod) == all_routes && has == all_rules && SETTINGS.into_iter().all(is_set)
    };
    let came = eventually(LIMIT, || has_all().then_some(()));
    let settings = SETTINGS.map(|(name, _)| format!("{name} {}", setting(pod, name)));
    assert!(came.is_some(), "{:#?}\n{:#?}\n{settings:#?}", routes(pod), rules(pod));
    for (outside, source, gateway) in [
        ("198.51.100.1", "10.8.0.", "10.8.0.2"),
        ("2001:db8::1", "fd00:10:8::", "fd00:10:8::2"),
        ("198.18.0.1", "10.8.0.", "169.254.7.1"),
        ("2001:db8:18::1", "fd00:10:8::", "2001:db8:ffff::1"),
    ] {
        let address = address_of(pod, source);
        let route = &pod.json("ip", &["route", "get", outside, "from", &address])[0];
        assert_eq!(route["gateway"], gateway, "{route}");
    }
}

/// A sysctl of a pod below `/proc/sys/net`.
pub(super) fn setting(pod: &Netns, name: &str) -> String {
    sysctl(pod, &["-n", &format!("net/{name}")])
}

fn set(pod: &Netns, name: &str, value: &str) {
    let _ = sysctl(pod, &["-w", &format!("net/{name}={value}")]);
}

fn sysctl(pod: &Netns, arguments: &[&str]) -> String {
    let output = run(pod.command("sysctl").args(arguments));
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// Waits for the pod's address with this prefix.
fn address_of(pod: &Netns, begin: &str) -> String {
    wait_for(&format!("an address that begins with {begin}"), LIMIT, || held_address(pod, begin))
}

/// `None`: the pod has no such address, or no interface.
fn held_address(pod: &Netns, begin: &str) -> Option<String> {
    let shown = run(pod.command("ip").args(["-j", "addr", "show", "dev", "eth0"])).stdout;
    let links: Vec<Value> = serde_json::from_slice(&shown).ok()?;
    let held = links.first()?["addr_info"].as_array()?.iter();
    held.map(|held| text(&held["local"])).find(|address| address.starts_with(begin))
}

/// Routes of a pod's interface without the kernel's own, and routes that drop packets.
fn routes(pod: &Netns) -> BTreeSet<String> {
    let of = |family| pod.json("ip", &[family, "route", "show", "table", "all"]);
    let all = of("-4").into_iter().chain(of("-6"));
    let is_ours = |route: &Value| {
        let is_rejecting =
            ["blackhole", "unreachable", "prohibit"].iter().any(|kind| route["type"] == *kind);
        is_rejecting || (route["dev"] == "eth0" && route["protocol"] != "kernel")
    };
    all.filter(is_ours).map(|route| described(&route)).collect()
}

fn described(route: &Value) -> String {
    let metrics = &route["metrics"][0];
    let words = [
        ("via", &route["gateway"]),
        ("table", &route["table"]),
        ("scope", &route["scope"]),
        ("metric", &route["metric"]),
        ("mtu", &metrics["mtu"]),
        ("advmss", &metrics["advmss"]),
        ("flags", &route["flags"][0]),
    ];
    let reported = words.into_iter().filter(|(_, value)| !value.is_null());
    let reported = reported.map(|(word, value)| format!(" {word} {}", text(value)));
    let kind = route["type"].as_str().map(|kind| format!("{kind} ")).unwrap_or_default();
    [kind, text(&route["dst"])].into_iter().chain(reported).collect()
}

/// Rules of a pod beyond those of every namespace.
fn rules(pod: &Netns) -> BTreeSet<String> {
    let of = |family| pod.json("ip", &[family, "rule"]);
    let all = of("-4").into_iter().chain(of("-6"));
    let is_own =
        |rule: &Value| !["local", "main", "default"].contains(&text(&rule["table"]).as_str());
    all.filter(is_own).map(|rule| rule_described(&rule)).collect()
}

fn rule_described(rule: &Value) -> String {
    let prefix = rule["srclen"].as_u64().map(|length| format!("/{length}")).unwrap_or_default();
    let (priority, source, table) = (&rule["priority"], text(&rule["src"]), text(&rule["table"]));
    format!("{priority}: from {source}{prefix} lookup {table}")
}

/// `ip` prints numbers as numbers or as text.
fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
