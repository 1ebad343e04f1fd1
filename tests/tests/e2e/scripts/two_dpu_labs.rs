//! Labs with two DPUs.

use std::{fs, path::PathBuf};

use e2e::{Call, Netns, run, scenarios::pods::addresses};
use serde_json::json;

use super::{HackLab, dpuctl, text};

/// A network of large packets that shares its subnet with the other DPU's.
fn jumbo(of_the_other: &str) -> String {
    let subnet = json!({"cidr": "10.9.0.0/24", "exclude": [of_the_other]});
    json!({"name": "jumbo", "mtu": 9000, "subnets": [subnet]}).to_string()
}

/// Whether a packet of that network's full size passes unfragmented.
fn passes_jumbo(pod: &Netns, address: &str) -> bool {
    let arguments = ["-n", "-q", "-c", "1", "-W", "5", "-M", "do", "-s", "8972", address];
    run(pod.command("ping").args(arguments)).status.success()
}

fn pods_of_two_dpus_reach_each_other(fabric: &str) {
    let lab = HackLab::new();
    lab.succeeds(&["up", "--vfs", "3", "--dpus", "2", "--fabric", fabric]);
    let (here, pods) = (Netns::of_this_process("here"), ["a", "b"].map(Netns::new));
    let mut found: Vec<Vec<String>> = Vec::new();
    let dpus = [(&["env"][..], "10.9.0.128/25"), (&["env", "2"], "10.9.0.0/25")];
    for (pod, (assignments, of_the_other)) in pods.iter().zip(dpus) {
        let environment = lab.environment_by(assignments);
        let file = PathBuf::from(&environment["STATE_DIR"]).join("jumbo.json");
        fs::write(&file, jumbo(of_the_other)).unwrap();
        let applied = dpuctl(&environment, &["apply", "-f", file.to_str().unwrap()]);
        assert!(applied.status.success(), "{}", text(&applied));
        let attach = |network: &str, interface: &str| {
            let configuration = json!({
                "cniVersion": "1.1.0", "name": network, "type": "host-shim",
                "agentSocket": environment["AGENT_SOCKET"],
            });
            let call = Call::new("ADD", &configuration);
            addresses(&call.of(pod.name(), Some(&pod.path()), interface).execute(&here).result())
        };
        found.push([attach("blue", "eth0"), attach("jumbo", "net1")].concat());
    }
    let [a, b] = &pods;
    for address in &found[1] {
        assert!(a.pings(address), "{fabric}: {address} of {found:?}");
    }
    assert!(found[0].iter().all(|address| b.pings(address)), "{fabric}: {found:?}");
    let large = found[1].last().unwrap();
    assert!(passes_jumbo(a, large), "{fabric}: {large}");
    let process = lab.environment_by(&["env", "2"])["DPU_SERVICE_PID"].clone();
    lab.succeeds(&["restart", "service", "2"]);
    assert_ne!(lab.environment_by(&["env", "2"])["DPU_SERVICE_PID"], process);
    lab.succeeds(&["down"]);
    assert_eq!(lab.left(), "");
}

#[test]
fn two_dpu_lab_pods_reach_each_other() {
    pods_of_two_dpus_reach_each_other("bridge");
}

#[test]
fn two_dpu_ovs_lab_pods_reach_each_other() {
    pods_of_two_dpus_reach_each_other("ovs");
}
