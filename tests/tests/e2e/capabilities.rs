//! Arguments that runtimes pass by the shipped conflist: limits and resolvers.

use std::fs;

use e2e::{
    Lab, Netns, Settings,
    scenarios::{
        capabilities::{self, add, limits, settings_with_limits},
        life,
    },
};
use serde_json::json;

fn lab() -> Lab {
    Lab::start(&settings_with_limits(&Settings::default()))
}

#[test]
fn lower_ingress_limit_applies() {
    let settings = Settings::default();
    capabilities::lower_ingress_limit_applies(&settings);
}

/// The software card does not limit what pods send: the fabric does, or refuses by name.
#[test]
fn egress_limit_is_kept_or_refused() {
    let lab = lab();
    let pod = Netns::new("pod");
    let is_kept = lab.operator().has_egress_limits();
    for bandwidth in [
        json!({ "egressRate": 8_000_000 }),
        json!({ "ingressRate": 8_000_000, "egressRate": 8_000_000, "egressBurst": 80_000 }),
    ] {
        let added = add(&lab, "limited", &pod, &json!({ "bandwidth": bandwidth }));
        if is_kept {
            let _ = added.result();
            assert!(in_force(&lab).contains("from the pod 8000000 bit/s"), "{}", in_force(&lab));
            lab.assert_invariants();
            lab.del("limited", &pod, "eth0").nothing();
        } else {
            added.fails(109, &["an egress rate of 8000000 bit/s", "CONFIG_NET_ACT_POLICE"]);
        }
        assert_eq!(limits(&lab), []);
        lab.assert_clean_slate();
    }
    for (bandwidth, words) in [
        (json!({ "ingressRate": 7_999 }), ["ingressRate", "7999"]),
        (json!({ "ingressBurst": 80_000 }), ["ingressBurst", "ingressRate"]),
    ] {
        let refused = add(&lab, "limited", &pod, &json!({ "bandwidth": bandwidth }));
        assert!(words.iter().all(|word| refused.error().1.contains(word)), "{refused:?}");
        lab.assert_clean_slate();
    }
    // None of these failures counts against the VF.
    let _ = add(&lab, "limited", &pod, &json!({})).result();
    lab.assert_invariants();
}

/// A pod's own limit is refused at its ADD: see the test above.
#[test]
fn unenforceable_limit_is_refused_on_apply() {
    let lab = lab();
    let operator = lab.operator();
    let file = lab.path().join("slow.yaml");
    fs::write(&file, "name: slow\nbandwidth: { egress_rate: 8000000 }\n").unwrap();
    let apply = ["apply", "-f", file.to_str().unwrap()];
    let apply_dry = [&apply[..], &["--dry-run"]].concat();
    if operator.has_egress_limits() {
        let _ = operator.output(&apply_dry);
        let _ = operator.output(&apply);
        let pod = Netns::new("pod");
        let _ = add(&lab, "slow", &pod, &json!({})).result();
        assert!(in_force(&lab).contains("from the pod 8000000 bit/s"), "{}", in_force(&lab));
        return lab.assert_invariants();
    }
    let before = operator.get("networks");
    for arguments in [&apply_dry[..], &apply] {
        let refused = operator.is_refused(arguments);
        for words in [
            "UNSUPPORTED",
            "network slow ",
            "host node-1: ",
            "egress rate of 8000000 bit/s",
            "CONFIG_NET_ACT_POLICE",
        ] {
            assert!(refused.contains(words), "{words:?} is not in {refused}");
        }
    }
    assert_eq!(operator.get("networks"), before);
    lab.assert_clean_slate();
}

/// A network of the file is loaded nevertheless: it is reported, and each ADD is refused.
#[test]
fn unenforceable_limit_in_file_is_reported() {
    let slow = "[[network]]\nname = \"slow\"\nbandwidth = { egress_rate = 8000000 }\n";
    let networks = format!("{}\n{slow}", Settings::default().networks);
    let lab = Lab::start(&Settings { networks, ..Settings::default() });
    let unsupported = lab.operator().fault("NETWORK_UNSUPPORTED");
    let is_reported = unsupported.as_ref().is_some_and(|it| it["object"] == "network/slow");
    let pod = Netns::new("pod");
    let added = add(&lab, "slow", &pod, &json!({}));
    if lab.operator().has_egress_limits() {
        assert!(!is_reported, "{unsupported:?}");
        let _ = added.result();
    } else {
        assert!(is_reported, "{unsupported:?}");
        added.fails(109, &["network slow", "an egress rate of 8000000 bit/s"]);
    }
    lab.assert_invariants();
}

/// The attachment's limit in the kernel or switch, as `dpuctl` reports it.
fn in_force(lab: &Lab) -> String {
    let operator = lab.operator();
    let id = operator.get("attachments")[0]["id"].as_str().unwrap().to_owned();
    let described = operator.output(&["describe", "attachment", &id]);
    let step = described.lines().find(|line| line.trim_start().starts_with("egress-limit"));
    step.unwrap_or_else(|| panic!("{described}")).to_owned()
}

#[test]
fn runtime_resolvers_replace_the_networks() {
    let mut lab = lab();
    let (pod, other) = (Netns::new("pod"), Netns::new("other"));
    let of_network = add(&lab, "limited", &other, &json!({})).result();
    let expected = json!({
        "nameservers": ["10.9.0.53"], "domain": "limited.example", "search": ["limited.example"],
    });
    assert_eq!(of_network["dns"], expected);
    let asked = json!({ "dns": {
        "servers": ["10.96.0.10", "fd00::10"],
        "searches": ["shop.svc.cluster.local", "svc.cluster.local"],
        "options": ["ndots:5"],
    } });
    let result = add(&lab, "limited", &pod, &asked).result();
    let expected = json!({
        "nameservers": ["10.96.0.10", "fd00::10"],
        "search": ["shop.svc.cluster.local", "svc.cluster.local"],
        "options": ["ndots:5"],
    });
    assert_eq!(result["dns"], expected);
    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    assert_eq!(add(&lab, "limited", &pod, &asked).result(), result);
    life::check(&lab, "limited", &pod, &result).nothing();
    let unknown =
        add(&lab, "limited", &Netns::new("late"), &json!({ "dns": { "servers": [], "port": 53 } }));
    unknown.fails(2, &["runtimeConfig.dns.port", "servers, searches, "]);
    lab.assert_invariants();
}
