//! Networks in several bridges of one fabric.

use std::time::Duration;

use e2e::{Lab, Netns, Settings, program, run, scenarios::pods::addresses, wait_for};

const LIMIT: Duration = Duration::from_secs(30);

const NETWORKS: &str = r#"
[[network]]
name = "blue"
default = true
[[network.subnets]]
cidr = "10.1.0.0/16"

[[network]]
name = "storage"
bridge = "br-storage"
mtu = 9000
[[network.subnets]]
cidr = "10.9.0.0/24"
"#;

fn settings() -> Settings {
    let fabric = "bridges = [{ name = 'br-storage' }]".into();
    Settings { fabric, networks: NETWORKS.into(), ..Settings::default() }
}

/// The bridge of a representor according to other tools. Empty: none.
fn bridge_of(lab: &Lab, representor: &str) -> String {
    match &lab.vswitch {
        None => {
            let link = &lab.card.dpu.json("ip", &["link", "show", representor])[0];
            link["master"].as_str().unwrap_or_default().to_owned()
        }
        Some(vswitch) => {
            let is_in = |bridge: &&str| {
                vswitch
                    .vsctl(&format!("list-ports {bridge}"))
                    .lines()
                    .any(|port| port == representor)
            };
            ["br-offload", "br-storage"]
                .iter()
                .find(|bridge| is_in(bridge))
                .copied()
                .unwrap_or_default()
                .to_owned()
        }
    }
}

/// Moves a port as another program would.
fn move_to_first(lab: &Lab, representor: &str) {
    match &lab.vswitch {
        None => drop(lab.card.dpu.ip(&["link", "set", representor, "master", "br-offload"])),
        Some(vswitch) => {
            let moved = format!("del-port {representor} -- add-port br-offload {representor}");
            let marked = format!("set port {representor} external_ids:owner=dpu-offload");
            drop(vswitch.vsctl(&format!("{moved} -- {marked}")));
        }
    }
}

fn representor_of(lab: &Lab, network: &str) -> String {
    let attachments = lab.operator().get("attachments");
    let attachment = attachments.iter().find(|of| of["network"] == network).unwrap();
    let vfs = lab.operator().get("vfs");
    let vf = vfs.iter().find(|vf| vf["attachmentId"] == attachment["id"]).unwrap();
    vf["representor"].as_str().unwrap().to_owned()
}

#[test]
fn pods_use_their_networks_bridge() {
    let lab = Lab::start(&settings());
    let [a, b] = ["a", "b"].map(Netns::new);
    let _ = lab.add("blue", &a, "eth0").result();
    let _ = lab.add("storage", &a, "net1").result();
    let of_b = addresses(&lab.add("storage", &b, "net1").result());
    let port = representor_of(&lab, "storage");
    assert_eq!(bridge_of(&lab, &port), "br-storage");
    assert_eq!(bridge_of(&lab, &representor_of(&lab, "blue")), "br-offload");
    let large = ["-n", "-q", "-c", "1", "-W", "5", "-M", "do", "-s", "8972", &of_b[0]];
    assert!(run(a.command("ping").args(large)).status.success(), "{of_b:?}");
    let described = lab.operator().output(&["describe", "network", "storage"]);
    assert!(described.contains("br-storage"), "{described}");

    move_to_first(&lab, &port);
    wait_for("the port's return to its bridge", LIMIT, || {
        (bridge_of(&lab, &port) == "br-storage" && a.pings(&of_b[0])).then_some(())
    });
    for (network, pod, interface) in
        [("blue", &a, "eth0"), ("storage", &a, "net1"), ("storage", &b, "net1")]
    {
        lab.del(network, pod, interface).nothing();
    }
    lab.assert_clean_slate();
}

#[test]
fn missing_bridge_is_reported_and_restored() {
    let mut lab = Lab::start(&settings());
    let [a, b] = ["a", "b"].map(Netns::new);
    let _ = lab.add("storage", &a, "net1").result();
    let of_b = addresses(&lab.add("storage", &b, "net1").result());
    let id = lab.operator().get("attachments")[0]["id"].as_str().unwrap().to_owned();
    lab.service.stop();
    let without = Settings {
        fabric: String::new(),
        networks: NETWORKS.replace("bridge = \"br-storage\"", ""),
        ..settings()
    };
    lab.configure_service(&without);
    let file = lab.path().join("dpu-service.toml");
    let started = run(lab.card.dpu.command(program("dpu-service")).arg("--config").arg(&file));
    let printed = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(!started.status.success(), "{printed}");
    assert!(
        printed.contains("no bridge \"br-storage\"") && printed.contains("attachment"),
        "{printed}"
    );
    assert!(a.pings(&of_b[0]), "pods run on");

    lab.configure_service(&settings());
    lab.start_service();
    lab.wait_until_good();
    assert!(
        lab.operator().get("attachments").iter().any(|attachment| attachment["id"] == id.as_str())
    );
    for pod in [&a, &b] {
        lab.del("storage", pod, "net1").nothing();
    }
    lab.assert_clean_slate();
}
