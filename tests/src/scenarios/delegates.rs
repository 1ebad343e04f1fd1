//! Further networks of pods that other CNI plugins make: Debian's, and such as misbehave.

mod others;

use std::{fs, time::Duration};

use serde_json::{Value, json};

pub use self::others::Others;
use self::others::{MAKES_A_LINK, leased_of};
use super::several::{self, interfaces, links};
use crate::{Call, Host, Lab, Netns, Settings, wait_for};

const LIMIT: Duration = Duration::from_secs(30);
/// How many pods' interfaces of other plugins the agent of a host keeps in mind.
#[must_use]
pub fn kept(host: &Host) -> usize {
    fs::read_dir(host.path().join("agent/delegates")).map_or(0, Iterator::count)
}

fn start(others: &Others, settings: &Settings) -> Lab {
    Lab::start(&others.in_lab(&Settings { vfs: 6, pool: 6, ..settings.clone() }))
}

fn assert_clean_slate(lab: &Lab) {
    lab.assert_clean_slate();
    assert_eq!(kept(lab), 0);
}

/// Debian's plugins make, show and take back what they are asked for, beside our own interfaces.
///
/// # Panics
/// When they don't.
pub fn other_plugins_make_further_interfaces(settings: &Settings) {
    let others = Others::new();
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

/// What a network's file says of routes, rules and settings, and what the pod says of its default route, is set on what
/// plugins make, looked after, and gone with it.
///
/// # Panics
/// When it is not so.
pub fn routes_rules_and_settings_are_set_beside_what_plugins_make(settings: &Settings) {
    let others = Others::new();
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
    let told = result["routes"].as_array().unwrap();
    let route = json!({ "dst": "172.30.0.0/16", "gw": "10.77.1.254", "priority": 50 });
    assert!(told.contains(&route), "{result}");
    let defaults: Vec<_> = told.iter().filter(|it| it["dst"] == "0.0.0.0/0").collect();
    assert!(defaults.contains(&&json!({ "dst": "0.0.0.0/0", "gw": "10.77.1.253" })), "{result}");
    assert_eq!(defaults.len(), 2, "one of each table: {result}");

    let address = several::addresses_of(&result, "net2").remove(0);
    assert_set_beside(&pod, &address);
    assert_eq!(several::add(&lab, &pod, asked).result(), result, "a repeat is the same");
    super::life::check(&lab, "blue", &pod, &result).nothing();
    for (change, told) in [
        ("route del 172.30.0.0/16", "lost the route 172.30.0.0/16"),
        ("route del blackhole 10.66.0.0/16", "lost the route blackhole"),
        ("rule del pref 900", "lost the rule"),
    ] {
        pod.ip(&change.split(' ').collect::<Vec<_>>());
        super::life::check(&lab, "blue", &pod, &result).fails(152, &["routed.conflist", told]);
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
    for (told, additions) in [
        ("unknown field `via`", json!({ "routes": [{ "destination": "::/0", "via": "fe80::1" }] })),
        ("tcp_rmem", json!({ "sysctls": { "ipv4": { "tcp_rmem": 1 } } })),
    ] {
        others.define_with("wrong", &bridge(3, "br-wrong"), &json!({ "dpu-offload": additions }));
        several::add(&lab, &pod, "wrong").fails(151, &["wrong.conflist", told]);
    }
    assert_clean_slate(&lab);
}

/// Asserts that the pod has soon all that the network `routed` sets beside its interface.
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

/// What plugins make has addresses of the DPU's where their file says so: leased with the pod's first interface, nobody
/// else's meanwhile, and given back with it.
///
/// # Panics
/// When it is not so.
pub fn what_plugins_make_has_addresses_of_the_dpu(settings: &Settings) {
    let others = Others::new();
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
    assert_eq!(held(&lab, "green"), 0);

    let refused = |ipam: Value, code: u64, told: &[&str]| {
        others.define("refused", &bridge(ipam));
        several::add(&lab, &a, "refused").fails(code, told);
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

/// STATUS asks for each further network of the configuration whether it can be served, whoever serves it.
///
/// # Panics
/// When it does not.
pub fn status_asks_further_networks(settings: &Settings) {
    let others = Others::new();
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
    for (network, told) in [
        ("purple", &["NETWORK_UNKNOWN", "purple"][..]),
        ("sick", &["network sick", "sick.conflist", "plugins/sick", "out of order"]),
        ("slow", &["network slow", "slow.conflist", "plugins/slow", "did not end in time"]),
        ("absent", &["network absent", "absent.conflist", "no plugin absent"]),
        ("bare", &["network bare", "no plugin host-shim"]),
        ("broken", &["broken.conflist"]),
    ] {
        status(json!(["green", network])).fails(50, told);
    }
    others.lend_our_plugin();
    status(json!(["bare"])).fails(50, &["NETWORK_UNKNOWN", "purple"]);
}

/// How many addresses of a network of the DPU's are held.
fn held(lab: &Lab, network: &str) -> u64 {
    let networks = lab.operator().get("networks");
    let its = networks.iter().find(|it| it["network"]["name"] == network).unwrap();
    let subnets = its["subnets"].as_array().unwrap();
    subnets.iter().map(|subnet| subnet["held"].as_str().unwrap().parse::<u64>().unwrap()).sum()
}

/// What can't be had of one of them leaves nothing: neither of the others, nor of our own.
///
/// # Panics
/// When something is left.
pub fn a_plugin_that_fails_leaves_nothing(settings: &Settings) {
    let others = Others::with_links("good", "green");
    let (lab, pod) = (&start(&others, settings), Netns::new("pod"));
    let own = links(&pod);
    let leave = r#"[ $CNI_COMMAND = ADD ] || exit 0
        nsenter --net="$CNI_NETNS" ip link add "$CNI_IFNAME" type veth peer name "p-$CNI_IFNAME""#;
    for (name, script, told) in [
        ("hangs", "[ $CNI_COMMAND = ADD ] || exit 0; sleep 600", "did not end in time"),
        ("rubbish", "echo nonsense", "no JSON object: nonsense"),
        ("talks", "yes", "more than 1048576 bytes"),
        ("refuses", r#"echo '{"code": 7, "msg": "no such master"}'; exit 1"#, "no such master"),
        ("dies", "kill -9 $$", "signal: 9"),
        ("empty", "exit 0", "answered nothing"),
        ("nothing", "echo '{}'", "no interface net3"),
        ("halfway", &format!("{leave}; exit 7"), "exit status: 7"),
        ("absent", "", "no plugin absent in"),
        ("old", "", "speak"),
    ] {
        match name {
            "absent" => {}
            "old" => {
                others.write_plugin(name, "");
                let path = others.path("plugins").join(name);
                let text = fs::read_to_string(&path).unwrap();
                let text = text.replace(r#"["0.4.0", "1.0.0"]"#, r#"["0.1.0"]"#);
                fs::write(&path, text).unwrap();
            }
            _ => others.write_plugin(name, script),
        }
        others.define(name, &json!([{ "type": name }]));
        let (code, text) = several::add(lab, &pod, &format!("green,good,{name}")).error();
        assert_eq!(code, 152, "{name}: {text}");
        let file = format!("{name}.conflist");
        assert!(text.contains(told) && text.contains(&file), "{name}: {text}");
        fs::remove_file(others.path("plugins").join(name)).ok();
        others.write_plugin(name, "exit 0");
        wait_for(&format!("{name} to be taken back"), LIMIT, || {
            lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
            (kept(lab) == 0).then_some(())
        });
        assert_eq!(links(&pod), own, "{name}");
        assert_clean_slate(lab);
    }
    pod.ip(&["link", "add", "net2", "type", "veth", "peer", "name", "other"]);
    several::add(lab, &pod, "green,good").fails(128, &["net2"]);
    pod.ip(&["link", "delete", "net2"]);
    several::add(lab, &pod, "good@eth0").fails(7, &["eth0"]);
    let folder = others.path("networks");
    several::add(lab, &pod, "none").fails(101, &["nor does a file in", folder.to_str().unwrap()]);
    several::add(lab, &pod, r#"[{"name": "good", "ips": ["10.1.1.1"]}]"#)
        .fails(105, &["10.1.1.1", "green"]);
    fs::write(others.definition("broken"), "{").unwrap();
    several::add(lab, &pod, "broken").fails(151, &["broken.conflist"]);
    lab.add("good", &pod, "eth0").fails(109, &["eth0"]);
    let definition = json!({
        "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "banks", "namespace": "bank" },
        "spec": { "config": json!({ "type": "good" }).to_string() },
    });
    fs::write(others.path("networks").join("banks.json"), definition.to_string()).unwrap();
    several::add(lab, &pod, "banks").fails(141, &["NETWORK_NOT_ALLOWED", "banks.json"]);

    others.write_plugin("leaves", &format!("[ $CNI_COMMAND = DEL ] && exit 0\n{MAKES_A_LINK}"));
    others.define("leaves", &json!([{ "type": "leaves" }]));
    let _ = several::add(lab, &pod, "leaves").result();
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(links(&pod), own, "it says that the link is gone");

    fs::rename(&folder, others.path("aside")).unwrap();
    fs::write(&folder, "").unwrap();
    several::add(lab, &pod, "good").fails(151, &[folder.to_str().unwrap()]);
    let _ = lab.add("blue", &pod, "eth0").result();
    lab.del("blue", &pod, "eth0").nothing();
    assert_clean_slate(lab);
}

/// Of what a plugin does to the interface that we have made nothing reaches the next pod, and a pod that lacks by it what it
/// was to have is not answered.
///
/// # Panics
/// When it is not so.
pub fn a_plugin_that_changes_our_interface_harms_its_pod_alone(settings: &Settings) {
    let others = Others::new();
    let (lab, pod) = (&start(&others, settings), Netns::new("pod"));
    let own = links(&pod);
    for (name, what, is_harm) in [
        ("flushes", "address flush dev eth0", true),
        ("queues", "link set eth0 txqueuelen 5 group 7", false),
        ("stops", "link set eth0 down", true),
        ("stacks", "link add link eth0 name on-eth0 type macvlan", false),
        ("renames", "link set eth0 down name stolen", true),
    ] {
        let meddles = format!(r#"[ $CNI_COMMAND != ADD ] || nsenter --net="$CNI_NETNS" ip {what}"#);
        others.write_plugin(name, &format!("{meddles}\n{MAKES_A_LINK}"));
        others.define(name, &json!([{ "type": name }]));
        let answer = several::add(lab, &pod, name);
        if is_harm {
            answer.fails(152, &["eth0", &format!("{name}.conflist")]);
        } else {
            assert_eq!(interfaces(&answer.result()), ["eth0", "net1"], "{name}");
            lab.del("blue", &pod, "eth0").nothing();
        }
        assert_clean_slate(lab);
        // What is stacked on a VF ends once that is made anew, which nobody waits for.
        wait_for(&format!("{name}'s links to go"), LIMIT, || (links(&pod) == own).then_some(()));
    }
}

/// An address of the DPU's is nobody else's before the interface that has it is gone: here one that its plugin does not
/// take back, and that is not known again by its MAC address.
///
/// # Panics
/// When it is not so.
pub fn an_address_is_held_while_an_interface_has_it(settings: &Settings) {
    let others = Others::new();
    let (lab, pod) = (&start(&others, settings), Netns::new("pod"));
    others.write_plugin("clings", &format!("[ $CNI_COMMAND = DEL ] && exit 3\n{MAKES_A_LINK}"));
    others.lend_our_plugin();
    others.define("clings", &json!([{ "type": "clings", "ipam": leased_of("green") }]));
    let own = links(&pod);
    let _ = several::add(lab, &pod, "clings").result();
    pod.ip(&["link", "set", "net1", "address", "02:00:00:00:77:01"]);
    // So that the VF is made anew, and its attachment forgotten after that.
    pod.ip(&["link", "set", "eth0", "gso_max_size", "20000"]);
    lab.del("blue", &pod, "eth0").nothing();
    assert!(links(&pod).contains("net1"));
    assert!(left(lab).unwrap().contains("exit status: 3"));
    tell_of_vfs(lab);
    assert!(held(lab, "green") > 0, "it is in use");

    others.write_plugin("clings", MAKES_A_LINK);
    wait_for("it to be taken back", LIMIT, || {
        lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
        (kept(lab) == 0 && held(lab, "green") == 0).then_some(())
    });
    assert_eq!((links(&pod), left(lab)), (own, None));
    assert_clean_slate(lab);
}

/// Has the host take the last VF itself and give it back, and waits until the DPU has heard of either.
fn tell_of_vfs(lab: &Lab) {
    for (verb, is_free) in [("add", false), ("delete", true)] {
        lab.card.host.ip(&["address", verb, "192.0.2.1/24", "dev", "p0v5"]);
        wait_for(&format!("the DPU to hear of {verb}"), LIMIT, || {
            // Addresses are looked at with each comparison, and nobody waits for the next one.
            lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
            let vf = lab.operator().get("vfs").pop()?;
            ((vf["state"] == "VF_STATE_FREE") == is_free).then_some(())
        });
    }
}

/// What was made is taken back as it was made, though its file is gone; and where its plugin is gone too, the pod has it
/// no more, and the plugin is called once it is back.
///
/// # Panics
/// When it is not so.
pub fn what_was_made_is_taken_back_whatever_has_gone(settings: &Settings) {
    let others = Others::new();
    let mut lab = start(&others, settings);
    let pod = Netns::new("pod");
    others.write_plugin("good", MAKES_A_LINK);
    others.define("good", &json!([{ "type": "good", "told": "then" }]));
    let own = links(&pod);
    let result = several::add(&lab, &pod, "green,good").result();
    fs::remove_file(others.definition("good")).unwrap();
    assert_eq!(several::add(&lab, &pod, "green,good").result(), result);
    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    super::life::check(&lab, "blue", &pod, &result).nothing();
    let deleted = others.path("deleted");
    assert!(!deleted.exists(), "a restart takes nothing from a pod");

    let plugin = others.path("plugins").join("good");
    let aside = others.path("aside");
    fs::rename(&plugin, &aside).unwrap();
    lab.del("blue", &pod, "eth0").nothing();
    assert_eq!(links(&pod), own);
    lab.assert_clean_slate();
    assert_eq!(kept(&lab), 1);
    assert!(left(&lab).unwrap().contains("there is no plugin good"));
    fs::rename(&aside, &plugin).unwrap();
    lab.agent.crash();
    lab.start_agent();
    wait_for("the plugin to be called", LIMIT, || (kept(&lab) == 0).then_some(()));
    let told = fs::read_to_string(&deleted).unwrap();
    let document = told.lines().next().unwrap().split_once(' ').unwrap().1;
    let document: Value = serde_json::from_str(document).unwrap();
    assert_eq!(document["told"], "then");
    assert_eq!(document["prevResult"]["interfaces"][0]["name"], "net2");
    lab.wait_until_good();
    assert_eq!(left(&lab), None);
    assert_clean_slate(&lab);
}

/// Why plugins have not taken back what they made, as the doctor tells it.
fn left(lab: &Lab) -> Option<String> {
    let output = lab.operator().dpuctl(&["doctor", "-o", "json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let mut differences = found["differences"].as_array().unwrap().iter();
    let left = differences.find(|difference| difference["code"] == "DELEGATE_LEFT")?;
    Some(left["message"].as_str().unwrap().to_owned())
}

/// A pod that ends takes what was made with it, and its plugins are told so.
///
/// # Panics
/// When something is left.
pub fn a_pod_that_ends_leaves_nothing_of_other_plugins(settings: &Settings) {
    let others = Others::with_links("good", "green");
    let lab = &start(&others, settings);
    let pod = Netns::new("pod");
    let _ = several::add(lab, &pod, "good,green").result();
    drop(pod);
    wait_for("the plugin to be called", LIMIT, || (kept(lab) == 0).then_some(()));
    let told = fs::read_to_string(others.path("deleted")).unwrap();
    assert!(told.starts_with(' '), "it is told of no namespace: {told}");
    assert_clean_slate(lab);
}

/// A program that is still at work on an interface when the agent dies ends before it is taken back.
///
/// # Panics
/// When something is left.
pub fn a_plugin_that_outlives_the_agent_is_waited_for(settings: &Settings) {
    let others = Others::new();
    let mut lab = start(&others, settings);
    let pod = Netns::new("pod");
    let own = links(&pod);
    let waits = format!(
        "[ $CNI_COMMAND = ADD ] && {{ touch $STATE/begun; read -r _ < $STATE/gate; }}\n{MAKES_A_LINK}"
    );
    others.write_plugin("slow", &waits);
    others.lend_our_plugin();
    others.define("slow", &json!([{ "type": "slow", "ipam": leased_of("green") }]));
    let gate = others.path("gate");
    nix::unistd::mkfifo(&gate, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let call = several::call(&lab, "ADD", &pod, "slow");
    let mut caller = call.begin(&lab.card.host);
    let begun = others.path("begun");
    wait_for("the plugin to begin", LIMIT, || begun.exists().then_some(()));
    lab.agent.crash();
    caller.kill().unwrap();
    caller.wait().unwrap();
    lab.start_agent();
    lab.wait_until_good();
    assert_eq!(kept(&lab), 1, "nothing is taken back that is still being made");
    tell_of_vfs(&lab);
    assert!(held(&lab, "green") > 0, "it may set its address still");
    fs::write(&gate, "go\n").unwrap();
    wait_for("it to be taken back", LIMIT, || {
        lab.agent.signal(nix::sys::signal::Signal::SIGHUP);
        (kept(&lab) == 0 && held(&lab, "green") == 0).then_some(())
    });
    assert_eq!(links(&pod), own);
    assert_clean_slate(&lab);
}

/// Debian's plugins that need more of the kernel than most have: ipvlan, vlan, and bandwidth behind ptp.
///
/// # Panics
/// When they don't make, show and take back what they are asked for.
pub fn plugins_for_stacked_links_and_rates_make_further_interfaces(settings: &Settings) {
    let others = Others::new();
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
