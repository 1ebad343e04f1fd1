//! Further networks of pods from other CNI plugins: Debian's, and misbehaving ones.

mod others;
mod troubles;

use std::{fs, time::Duration};

use serde_json::{Value, json};

use self::others::{MAKES_A_LINK, leased_of};
pub use self::{others::OtherPlugins, troubles::*};
use super::several::{self, interfaces, links};
use crate::{Call, CardKind, Host, Lab, Netns, Settings, wait_for};

const LIMIT: Duration = Duration::from_secs(30);
/// Number of other plugins' interfaces in the agent's records.
#[must_use]
pub fn kept(host: &Host) -> usize {
    fs::read_dir(host.path().join("agent/delegates")).map_or(0, Iterator::count)
}

fn start(others: &OtherPlugins, settings: &Settings) -> Lab {
    Lab::start(&others.in_lab(&Settings { vfs: 6, pool: 6, ..settings.clone() }))
}

fn assert_clean_slate(lab: &Lab) {
    lab.assert_clean_slate();
    assert_eq!(kept(lab), 0);
}

/// Debian's plugins create, check and delete interfaces beside those of this plugin.
///
/// # Panics
/// If an expectation is not met.
pub fn other_plugins_create_further_interfaces(settings: &Settings) {
    let others = OtherPlugins::new();
    let lab = &start(&others, settings);
    lab.card.host.ip(&["link", "add", "ext0", "type", "veth", "peer", "name", "ext1"]);
    for link in ["ext0", "ext1"] {
        lab.card.host.ip(&["link", "set", link, "up"]);
    }
    others.define(
        "mac",
        &json!([{ "type": "macvlan", "master": "ext0", "ipam": others.ipam(1),
                  "capabilities": { "ips": true } }]),
    );
    others.define(
        "bridged",
        &json!([
            { "type": "bridge", "bridge": "br-cni", "isGateway": true, "ipam": others.ipam(2) },
            { "type": "tuning", "mtu": 1400 },
        ]),
    );
    others.define("point", &json!([{ "type": "ptp", "ipam": others.ipam(3) }]));
    // Its CHECK does not find the routes that it has moved.
    let sourced = json!([{ "type": "ptp", "ipam": others.ipam(4) }, { "type": "sbr" }]);
    let sourced = json!({ "cniVersion": "0.4.0", "name": "sourced", "disableCheck": true, "plugins": sourced });
    fs::write(others.definition("sourced"), sourced.to_string()).unwrap();
    others.define("taken", &json!([{ "type": "host-device", "device": "ext1" }]));

    let pod = Netns::new("pod");
    let own = links(&pod);
    let asked = "mac,green,bridged@data,point,taken,sourced";
    let result = several::add(lab, &pod, asked).result();
    assert_eq!(interfaces(&result), ["eth0", "net1", "net2", "data", "net4", "net5", "net6"]);
    let address = |interface: &str| several::addresses_of(&result, interface)[0].clone();
    for (interface, prefix) in [("net1", "10.77.1."), ("data", "10.77.2."), ("net4", "10.77.3.")] {
        assert!(address(interface).starts_with(prefix), "{result}");
        let shown = pod.json("ip", &["address", "show", interface]);
        assert_eq!(shown[0]["addr_info"][0]["local"], address(interface).as_str(), "{interface}");
    }
    assert_eq!(pod.json("ip", &["link", "show", "data"])[0]["mtu"], 1400);
    let rules = pod.json("ip", &["rule", "show"]);
    assert!(rules.iter().any(|rule| rule["src"] == address("net6").as_str()), "{rules:?}");
    assert_eq!(several::add(lab, &pod, asked).result(), result, "a repeat is the same");
    super::life::check(lab, "blue", &pod, &result).nothing();
    assert_eq!(lab.operator().get("attachments").len(), 2, "the DPU has its own alone");
    pod.ip(&["link", "delete", "net1"]);
    super::life::check(lab, "blue", &pod, &result).fails(152, &["mac", "macvlan", "net1"]);

    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(links(&pod), own);
    for network in ["mac", "bridged", "point", "sourced"] {
        assert_eq!(others.leases(network), 0, "{network}");
    }
    assert!(links(&lab.card.host).contains("ext1"), "it came home");
    assert_clean_slate(lab);
}

/// The agent sets, repairs and removes a network file's routes, rules and settings, and the pod's default route, on
/// other plugins' interfaces.
///
/// # Panics
/// If an expectation is not met.
pub fn routes_and_rules_are_added_to_foreign_interfaces(settings: &Settings) {
    let others = OtherPlugins::new();
    let mut lab =
        start(&others, &Settings { timeouts: "reconcile_s = 3600".into(), ..settings.clone() });
    let bridge = |number: u32, bridge: &str| {
        let mut ipam = others.ipam(number);
        ipam["routes"] = json!([{ "dst": "0.0.0.0/0" }]);
        json!([{ "type": "bridge", "bridge": bridge, "ipam": ipam }])
    };
    others.define_with(
        "routed",
        &bridge(1, "br-routed"),
        &json!({ "dpu-offload": {
            "routes": [
                { "destination": "172.30.0.0/16", "gateway": "10.77.1.254", "priority": 50 },
                { "destination": "0.0.0.0/0", "gateway": "169.254.1.1", "onlink": true, "table": 77 },
                { "destination": "10.66.0.0/16", "kind": "blackhole" },
            ],
            "rules": [{ "source": "own", "table": 77, "priority": 900 }],
            "sysctls": { "ipv4": { "rp_filter": 2, "arp_ignore": 1 }, "ipv6": { "accept_ra": 0 } },
        } }),
    );
    others.define("plain", &bridge(2, "br-plain"));
    let pod = Netns::new("pod");
    let own = links(&pod);
    let asked = r#"[{"name": "plain"}, {"name": "routed", "default-route": ["10.77.1.253"]}]"#;
    let result = several::add(&lab, &pod, asked).result();
    let reported = result["routes"].as_array().unwrap();
    let route = json!({ "dst": "172.30.0.0/16", "gw": "10.77.1.254", "priority": 50 });
    assert!(reported.contains(&route), "{result}");
    let defaults: Vec<_> = reported.iter().filter(|it| it["dst"] == "0.0.0.0/0").collect();
    assert!(defaults.contains(&&json!({ "dst": "0.0.0.0/0", "gw": "10.77.1.253" })), "{result}");
    assert_eq!(defaults.len(), 2, "one of each table: {result}");

    let address = several::addresses_of(&result, "net2").remove(0);
    assert_set_beside(&pod, &address);
    assert_eq!(several::add(&lab, &pod, asked).result(), result, "a repeat is the same");
    super::life::check(&lab, "blue", &pod, &result).nothing();
    for (change, reported) in [
        ("route del 172.30.0.0/16", "route 172.30.0.0/16"),
        ("route del blackhole 10.66.0.0/16", "route blackhole"),
        ("rule del pref 900", "lost the rule"),
    ] {
        pod.ip(&change.split(' ').collect::<Vec<_>>());
        super::life::check(&lab, "blue", &pod, &result).fails(152, &["routed.conflist", reported]);
        lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
        assert_set_beside(&pod, &address);
    }
    pod.ip(&["link", "set", "net2", "address", "02:00:00:00:00:99"]);
    super::life::check(&lab, "blue", &pod, &result).fails(152, &["routed", "02:00:00:00:00:99"]);

    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    assert_set_beside(&pod, &address);
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(links(&pod), own);
    assert!(pod.json("ip", &["rule", "show", "pref", "900"]).is_empty());
    assert!(pod.json("ip", &["route", "show", "type", "blackhole"]).is_empty());
    for (reported, additions) in [
        ("unknown field `via`", json!({ "routes": [{ "destination": "::/0", "via": "fe80::1" }] })),
        ("tcp_rmem", json!({ "sysctls": { "ipv4": { "tcp_rmem": 1 } } })),
    ] {
        others.define_with("wrong", &bridge(3, "br-wrong"), &json!({ "dpu-offload": additions }));
        several::add(&lab, &pod, "wrong").fails(151, &["wrong.conflist", reported]);
    }
    assert_clean_slate(&lab);
}

/// Asserts that the pod soon has everything that the network `routed` adds to its interface.
fn assert_set_beside(pod: &Netns, address: &str) {
    wait_for("what is set beside", LIMIT, || {
        let defaults = pod.json("ip", &["route", "show", "default"]);
        let by_table = pod.json("ip", &["route", "show", "table", "77"]);
        let priority = pod.json("ip", &["route", "show", "172.30.0.0/16"]);
        let rules = pod.json("ip", &["rule", "show", "pref", "900"]);
        let is_all = defaults.len() == 1
            && defaults[0]["dev"] == "net2"
            && defaults[0]["gateway"] == "10.77.1.253"
            && by_table.first().is_some_and(|it| it["gateway"] == "169.254.1.1")
            && priority.first().is_some_and(|it| it["metric"] == 50)
            && rules.first().is_some_and(|it| it["src"] == address && it["table"] == "77")
            && pod.json("ip", &["route", "show", "type", "blackhole"]).len() == 1;
        is_all.then_some(())
    });
    for (name, value) in [
        ("ipv4/conf/net2/rp_filter", "2"),
        ("ipv4/conf/net2/arp_ignore", "1"),
        ("ipv6/conf/net2/accept_ra", "0"),
    ] {
        assert_eq!(super::routing::setting(pod, name), value, "{name}");
    }
}

/// Other plugins' interfaces get addresses of the DPU if their file says so. The addresses are leased with the pod's
/// first interface and released with it.
///
/// # Panics
/// If an expectation is not met.
pub fn foreign_interfaces_get_dpu_addresses(settings: &Settings) {
    let others = OtherPlugins::new();
    others.lend_our_plugin();
    let mut lab = start(&others, settings);
    let bridge = |ipam: Value| json!([{ "type": "bridge", "bridge": "br-leased", "ipam": ipam }]);
    others.define("leased", &bridge(leased_of("green")));
    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let own = links(&a);
    let asked = r#"[{"name": "leased", "ips": ["10.2.0.77"]}]"#;
    let of_a = several::add(&lab, &a, asked).result();
    let addresses = several::addresses_of(&of_a, "net1");
    assert!(addresses.contains(&"10.2.0.77".to_owned()), "{of_a}");
    let shown = a.json("ip", &["address", "show", "net1"]);
    let info = shown[0]["addr_info"].as_array().unwrap();
    for address in &addresses {
        assert!(info.iter().any(|held| held["local"] == address.as_str()), "{address}: {shown:?}");
    }
    assert_eq!(several::add(&lab, &a, asked).result(), of_a, "a repeat is the same");
    super::life::check(&lab, "blue", &a, &of_a).nothing();
    let of_b = several::add(&lab, &b, "leased").result();
    assert!(b.pings("10.2.0.77"), "{of_b}");
    assert_eq!(held(&lab, "green"), 2 * addresses.len() as u64);

    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(several::add(&lab, &a, asked).result(), of_a, "it is the same after a crash");
    lab.del("blue", &b, "eth0").nothing();
    several::add(&lab, &b, asked).fails(104, &["10.2.0.77"]);
    lab.del("blue", &a, "eth0").nothing();
    assert_eq!(links(&a), own);
    lab.await_settled();
    assert_eq!(held(&lab, "green"), 0);

    let refused = |ipam: Value, code: u64, reported: &[&str]| {
        others.define("refused", &bridge(ipam));
        several::add(&lab, &a, "refused").fails(code, reported);
    };
    refused(leased_of("purple"), 101, &["purple"]);
    refused(leased_of("blue"), 100, &["blue", "net1"]);
    refused(leased_of("wire"), 100, &["wire", "no subnet"]);
    refused(json!({ "type": "dpu-offload" }), 151, &["refused.conflist", "`network`"]);
    others.write_plugin("broken", "exit 3");
    others.define("broken", &json!([{ "type": "broken", "ipam": leased_of("green") }]));
    several::add(&lab, &a, "broken").fails(152, &["broken.conflist"]);
    others.write_plugin("broken", "exit 0");
    wait_for("it to be taken back", LIMIT, || {
        lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
        (kept(&lab) == 0).then_some(())
    });
    assert_eq!(held(&lab, "green"), 0);
    assert_clean_slate(&lab);
}

/// STATUS checks each further network of the configuration.
///
/// # Panics
/// If it does not.
pub fn status_asks_further_networks(settings: &Settings) {
    let others = OtherPlugins::new();
    let lab = &start(&others, settings);
    let status = |networks: Value| {
        let mut configuration = lab.configuration("blue");
        configuration["networks"] = networks;
        lab.execute(&Call::new("STATUS", &configuration))
    };
    others.write_plugin("old", "exit 1");
    others.define("old", &json!([{ "type": "old" }]));
    let of_version = json!({ "cniVersion": "1.1.0" });
    for (name, script) in [
        ("sick", r#"echo '{"code": 50, "msg": "out of order"}'; exit 1"#),
        ("slow", "sleep 600"),
        ("sound", "[ $CNI_COMMAND = STATUS ]"),
    ] {
        others.write_plugin(name, script);
        let path = others.path("plugins").join(name);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace(r#""1.0.0"]"#, r#""1.0.0", "1.1.0"]"#)).unwrap();
        others.define_with(name, &json!([{ "type": name }]), &of_version);
    }
    others.define("absent", &json!([{ "type": "absent" }]));
    others.define("bare", &json!([{ "type": "old", "ipam": leased_of("purple") }]));
    fs::write(others.definition("broken"), "{").unwrap();

    status(json!(["green", "wire@data", { "name": "old" }, "sound"])).nothing();
    for (network, reported) in [
        ("purple", &["NETWORK_UNKNOWN", "purple"][..]),
        ("sick", &["network sick", "sick.conflist", "plugins/sick", "out of order"]),
        ("slow", &["network slow", "slow.conflist", "plugins/slow", "in time"]),
        ("absent", &["network absent", "absent.conflist", "no plugin absent"]),
        ("bare", &["network bare", "no plugin host-shim"]),
        ("broken", &["broken.conflist"]),
    ] {
        status(json!(["green", network])).fails(50, reported);
    }
    others.lend_our_plugin();
    status(json!(["bare"])).fails(50, &["NETWORK_UNKNOWN", "purple"]);
}

/// A caller's folders of plugins and networks have priority over those of the agent's configuration, also when the
/// agent deletes interfaces.
///
/// # Panics
/// If an expectation is not met.
pub fn callers_folders_are_honoured(settings: &Settings) {
    let (host, caller) = (OtherPlugins::new(), OtherPlugins::new());
    host.write_plugin("maker", "exit 3");
    host.write_plugin("hosts", MAKES_A_LINK);
    host.define("hosts", &json!([{ "type": "hosts" }]));
    host.define("both", &json!([{ "type": "absent" }]));
    caller.write_plugin("maker", &format!("echo \"$CNI_PATH\" > $STATE/path{MAKES_A_LINK}"));
    for name in ["callers", "both"] {
        caller.define(name, &json!([{ "type": "maker" }]));
    }
    // A runtime's folder also contains this plugin's configuration.
    caller.define("blue", &json!([{ "type": "host-shim" }, { "type": "portmap" }]));
    let [plugins, networks] = ["plugins", "networks"].map(|name| caller.path(name));
    let with_folders = |call: Call| {
        let path = format!("{}:/nonexistent", plugins.display());
        call.with("CNI_PATH", path).with("CNI_CONF_DIR", &networks)
    };
    let mut lab = start(&host, settings);
    let pod = Netns::new("pod");
    let own = links(&pod);
    let of_host = host.path("networks");
    several::add(&lab, &pod, "callers").fails(101, &["callers", of_host.to_str().unwrap()]);

    let add = with_folders(several::call(&lab, "ADD", &pod, "callers,hosts,both"));
    let result = lab.execute(&add).result();
    assert_eq!(interfaces(&result), ["eth0", "net1", "net2", "net3"]);
    let path = fs::read_to_string(caller.path("path")).unwrap();
    let of_agent = host.path("plugins");
    let expected = [plugins.to_str().unwrap(), "/nonexistent", of_agent.to_str().unwrap()];
    assert!(path.starts_with(&expected.join(":")), "{path}");
    super::life::check(&lab, "blue", &pod, &result).nothing();
    let mut configuration = lab.configuration("blue");
    configuration["networks"] = json!(["callers"]);
    let status = Call::new("STATUS", &configuration);
    lab.execute(&with_folders(status.clone())).nothing();
    lab.execute(&status).fails(50, &["NETWORK_UNKNOWN", "callers"]);

    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(links(&pod), own);
    let taken_back = fs::read_to_string(caller.path("deleted")).unwrap();
    assert!(taken_back.lines().count() >= 2, "by the caller's plugin: {taken_back}");
    assert_clean_slate(&lab);
}

const STORE: &str = r#"
[[network]]
name = "store"
mtu = 1400
[[network.routes]]
destination = "172.20.0.0/16"
gateway = "10.66.0.254"
[[network.subnets]]
cidr = "10.66.0.0/24"
gateway = "10.66.0.1"
"#;

/// One network of the DPU gives addresses, MTU and routes to macvlan and ipvlan interfaces. Objects of the host name
/// the link of each.
///
/// # Panics
/// If an expectation is not met.
pub fn one_network_serves_macvlan_and_ipvlan(settings: &Settings) {
    let others = OtherPlugins::new();
    others.lend_our_plugin();
    let has_ipvlan = settings.card.kind == CardKind::Netdevsim;
    if !has_ipvlan {
        // This machine's kernel may lack ipvlan: the test checks the input of its plugin instead.
        let tells = r#"[ $CNI_COMMAND = ADD ] && echo "$document" > $STATE/told"#;
        others.write_plugin("ipvlan", &format!("{tells}{MAKES_A_LINK}"));
    }
    let mut settings = settings.clone();
    settings.networks.push_str(STORE);
    let lab = &start(&others, &settings);
    lab.card.host.ip(&["link", "add", "ext0", "type", "veth", "peer", "name", "ext1"]);
    for link in ["ext0", "ext1"] {
        lab.card.host.ip(&["link", "set", link, "up"]);
    }
    others.define_object("store", "{type: macvlan, master: ext0}");
    others.define_object("sliced", "{network: store, type: ipvlan, master: ext1}");

    let (a, b) = (Netns::new("a"), Netns::new("b"));
    let own = [&a, &b].map(links);
    let of_a = several::add(lab, &a, "store").result();
    let of_b = several::add(lab, &b, r#"[{"name": "sliced", "ips": ["10.66.0.77"]}]"#).result();
    assert!(several::addresses_of(&of_a, "net1")[0].starts_with("10.66.0."), "{of_a}");
    assert_eq!(held(lab, "store"), 2);
    assert_is_of_store(&a, "macvlan");
    if has_ipvlan {
        assert_eq!(several::addresses_of(&of_b, "net1"), ["10.66.0.77"]);
        assert_is_of_store(&b, "ipvlan");
        assert!(a.pings("10.66.0.77"), "{of_b}");
    } else {
        let reported: Value =
            serde_json::from_str(&fs::read_to_string(others.path("told")).unwrap()).unwrap();
        assert_eq!((&reported["master"], &reported["mtu"]), (&json!("ext1"), &json!(1400)));
        let addresses = json!([{ "address": "10.66.0.77/24", "gateway": "10.66.0.1" }]);
        assert_eq!(reported["ipam"]["result"]["ips"], addresses);
    }
    for (pod, result) in [(&a, &of_a), (&b, &of_b)] {
        super::life::check(lab, "blue", pod, result).nothing();
    }
    lab.assert_invariants();

    others.define_object("odd", "{type: bridge, master: ext0}");
    let other = Netns::new("other");
    several::add(lab, &other, "odd").fails(151, &["odd.yaml", "`bridge`", "`ipvlan`"]);
    for (pod, own) in [&a, &b].into_iter().zip(&own) {
        lab.del("blue", pod, "eth0").nothing();
        assert_eq!(links(pod), *own);
    }
    lab.await_settled();
    assert_eq!(held(lab, "store"), 0);
    assert_clean_slate(lab);
}

/// Asserts that the pod's `net1` is of this kind and has what the network `store` defines.
fn assert_is_of_store(pod: &Netns, kind: &str) {
    let shown = pod.json("ip", &["-d", "address", "show", "net1"]).remove(0);
    assert_eq!(shown["linkinfo"]["info_kind"], kind, "{shown}");
    assert_eq!(shown["mtu"], 1400, "{shown}");
    let route = pod.json("ip", &["route", "show", "172.20.0.0/16"]);
    assert_eq!((&route[0]["dev"], &route[0]["gateway"]), (&json!("net1"), &json!("10.66.0.254")));
}

/// Number of leased addresses in a network of the DPU.
fn held(lab: &Lab, network: &str) -> u64 {
    let networks = lab.operator().get("networks");
    let its = networks.iter().find(|it| it["network"]["name"] == network).unwrap();
    let subnets = its["subnets"].as_array().unwrap();
    subnets.iter().map(|subnet| subnet["held"].as_u64().unwrap()).sum()
}

/// Debian's plugins that need rarer kernel features: ipvlan, vlan, and bandwidth after ptp.
///
/// # Panics
/// If an expectation is not met.
pub fn upper_device_and_rate_plugins_work(settings: &Settings) {
    let others = OtherPlugins::new();
    let lab = &start(&others, settings);
    let host = &lab.card.host;
    for (link, peer) in [("ext0", "ext1"), ("ext2", "ext3")] {
        host.ip(&["link", "add", link, "type", "veth", "peer", "name", peer]);
        host.ip(&["link", "set", link, "up"]);
        host.ip(&["link", "set", peer, "up"]);
    }
    others
        .define("slave", &json!([{ "type": "ipvlan", "master": "ext0", "ipam": others.ipam(1) }]));
    let tagged =
        json!([{ "type": "vlan", "master": "ext2", "vlanId": 77, "ipam": others.ipam(2) }]);
    others.define("tagged", &tagged);
    let slow = json!([
        { "type": "ptp", "ipam": others.ipam(3) },
        { "type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 800_000,
          "egressRate": 4_000_000, "egressBurst": 400_000 },
    ]);
    others.define("slow", &slow);

    let (pod, of_host) = (Netns::new("pod"), links(host));
    let own = links(&pod);
    let result = several::add(lab, &pod, "slave,tagged,slow").result();
    assert_eq!(interfaces(&result)[..4], ["eth0", "net1", "net2", "net3"]);
    for (interface, kind, prefix) in
        [("net1", "ipvlan", "10.77.1."), ("net2", "vlan", "10.77.2."), ("net3", "veth", "10.77.3.")]
    {
        let shown = pod.json("ip", &["-d", "address", "show", interface]).remove(0);
        assert_eq!(shown["linkinfo"]["info_kind"], kind, "{shown}");
        let address = shown["addr_info"][0]["local"].as_str().unwrap();
        assert!(address.starts_with(prefix), "{shown}");
    }
    let tag = pod.json("ip", &["-d", "link", "show", "net2"]).remove(0);
    assert_eq!(tag["linkinfo"]["info_data"]["id"], 77, "{tag}");
    let queues = host.json("tc", &["qdisc", "show"]);
    let buckets = queues.iter().filter(|queue| queue["kind"] == "tbf").count();
    assert_eq!(buckets, 2, "one for each direction: {queues:?}");
    super::life::check(lab, "blue", &pod, &result).nothing();

    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(links(&pod), own);
    let left: Vec<_> = links(host).difference(&of_host).cloned().collect();
    assert!(
        left.iter().all(|link| !link.starts_with("bwp") && !link.starts_with("veth")),
        "{left:?}"
    );
    assert_clean_slate(lab);
}
