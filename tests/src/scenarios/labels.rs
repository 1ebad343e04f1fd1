//! Link group and alias of representors, by which external rules recognise a network's pods.

use std::time::Duration;

use serde_json::Value;

use super::pods::addresses;
use crate::{Lab, Netns, Settings, run, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// A further network whose representors are in a group.
const GROUPED: &str = r#"
[[network]]
name = "grouped"
link_group = 8
subnets = [{ cidr = "10.8.0.0/24", gateway = "10.8.0.1" }, { cidr = "fd00:10:8::/64", gateway = "fd00:10:8::1" }]
"#;

/// A lab with that network and additional keys.
fn lab(settings: &Settings, besides: &str) -> Lab {
    let networks = [&settings.networks, GROUPED, besides].concat();
    Lab::start(&Settings { networks, ..settings.clone() })
}

fn representor(lab: &Lab, pod: &Netns) -> String {
    let (attachments, vfs) = (lab.operator().get("attachments"), lab.operator().get("vfs"));
    let of_pod = |attachment: &&Value| attachment["key"]["containerId"] == pod.name();
    let id = &attachments.iter().find(of_pod).unwrap()["id"];
    let held = vfs.iter().find(|vf| vf["attachmentId"] == *id).unwrap();
    held["representor"].as_str().unwrap().to_owned()
}

/// The representor's link in the DPU's kernel.
fn link(lab: &Lab, name: &str) -> Value {
    lab.card.dpu.json("ip", &["-d", "link", "show", "dev", name]).remove(0)
}

fn nft(netns: &Netns, arguments: &[&str]) -> Value {
    let output = run(netns.command("nft").args(arguments));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "nft {arguments:?}: {error}");
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

/// An external rule that counts packets received at these representors if they are in the group.
fn count_group(dpu: &Netns, representors: &[&str]) {
    let chain = |name: &&str| {
        format!(
            "chain {name} {{ type filter hook ingress device \"{name}\" priority 0; meta iifgroup 8 counter; }};"
        )
    };
    let chains: String = representors.iter().map(chain).collect();
    let _ = nft(dpu, &[&format!("table netdev operators {{ {chains} }};")]);
}

/// Packets that the rule has counted at the representor.
fn counted(dpu: &Netns, representor: &str) -> u64 {
    let listed = nft(dpu, &["-j", "list", "chain", "netdev", "operators", representor]);
    let objects = listed["nftables"].as_array().unwrap();
    let rule = objects.iter().find_map(|object| object.get("rule")).unwrap();
    let counters = rule["expr"].as_array().unwrap().iter();
    counters.filter_map(|of| of["counter"]["packets"].as_u64()).sum()
}

/// External rules that use a network's link group see exactly its pods.
///
/// # Panics
/// If an expectation is not met.
pub fn link_group_covers_exactly_its_networks_pods(settings: &Settings) {
    let lab = lab(settings, "");
    let dpu = &lab.card.dpu;
    let pods = ["grouped", "grouped", "blue", "blue"].map(|network| {
        let pod = Netns::new("pod");
        let given = addresses(&lab.add(network, &pod, "eth0").result());
        let representor = representor(&lab, &pod);
        (pod, given, representor)
    });
    let names = pods.each_ref().map(|(_, _, representor)| representor.as_str());
    let groups = names.map(|name| link(&lab, name)["group"].clone());
    assert_eq!(groups, ["8", "8", "default", "default"]);
    count_group(dpu, &names);
    for [(one, ..), (_, of_other, _)] in [[&pods[0], &pods[1]], [&pods[2], &pods[3]]] {
        for address in of_other {
            assert!(one.pings(address), "{address}");
        }
    }
    let counts = names.map(|name| counted(dpu, name) >= 2);
    assert_eq!(counts, [true, true, false, false], "a request and an answer of each family");
    assert_eq!([names[2], names[3]].map(|name| counted(dpu, name)), [0, 0]);

    let _ = nft(dpu, &["delete", "table", "netdev", "operators"]);
    let freed = names[0].to_owned();
    for ((pod, ..), network) in pods.iter().zip(["grouped", "grouped", "blue", "blue"]) {
        lab.del(network, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
    assert_eq!(link(&lab, &freed)["group"], "default");
}

/// A group that another program changes is restored, with and without a group in the network.
///
/// # Panics
/// If an expectation is not met.
pub fn changed_link_group_is_restored(settings: &Settings) {
    let mut lab = lab(settings, "");
    let [(grouped, of_grouped), (blue, of_blue)] = ["grouped", "blue"].map(|network| {
        let pod = Netns::new("pod");
        let _ = lab.add(network, &pod, "eth0").result();
        let representor = representor(&lab, &pod);
        (pod, representor)
    });
    let meddle = |lab: &Lab| {
        let _ = lab.card.dpu.ip(&["link", "set", &of_grouped, "group", "9"]);
        let _ = lab.card.dpu.ip(&["link", "set", &of_blue, "group", "8"]);
    };
    let groups = |lab: &Lab| [&of_grouped, &of_blue].map(|name| link(lab, name)["group"].clone());
    meddle(&lab);
    wait_for("both groups", LIMIT, || (groups(&lab) == ["8", "default"]).then_some(()));
    let attachments = lab.operator().get("attachments");
    for id in attachments.iter().map(|attachment| attachment["id"].as_str().unwrap()) {
        let described = lab.operator().output(&["describe", "attachment", id]);
        assert!(described.contains("programmed again: representor-label"), "{described}");
    }

    lab.service.crash();
    meddle(&lab);
    lab.start_service();
    wait_for("both groups", LIMIT, || (groups(&lab) == ["8", "default"]).then_some(()));
    lab.wait_until_good();
    lab.assert_invariants();
    for (network, pod) in [("grouped", &grouped), ("blue", &blue)] {
        lab.del(network, pod, "eth0").nothing();
    }
    lab.assert_clean_slate();
}
