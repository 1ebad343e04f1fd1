//! Host ports, through which the host reaches pods.

use std::{
    fs,
    io::Write,
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::fs::symlink,
    time::Duration,
};

use e2e::{Call, Lab, Netns, Program, Settings, Timeouts, scenarios::pods::addresses, wait_for};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);
const NEXT_BOOT: &str = "7d0c4ae0-0000-4000-8000-000000000002\n";
const ON_BLUE: &str = "[[host_port]]\nnetwork = \"blue\"\n";

/// An agent with these sections and frequent comparisons.
fn settings_with(sections: &str) -> Settings {
    let others = format!("reconcile_s = 1\n{sections}");
    let timeouts = Timeouts { others, ..Timeouts::default() };
    Settings { timeouts, ..Settings::default() }
}

fn start_with(sections: &str) -> Lab {
    Lab::start(&settings_with(sections))
}

/// Rewrites the agent's file with these sections of host ports.
fn configure(lab: &Lab, sections: &str) {
    let text = settings_with(sections).agent_file(lab.path(), &lab.pki);
    fs::write(lab.path().join("host-shim.toml"), text).unwrap();
}

/// The host's attachments on the DPU.
fn host_ports(lab: &Lab) -> Vec<Value> {
    let mut all = lab.operator().get("attachments");
    all.retain(|attachment| attachment["key"]["containerId"] == "host-port");
    all
}

/// The interface with this name in the host's namespace, if it exists and is up.
fn interface(lab: &Lab, name: &str) -> Option<Value> {
    let all = lab.card.host.json("ip", &["address", "show", "up"]);
    all.into_iter().find(|link| link["ifname"] == name)
}

/// Whether the host has the interface of an attachment with its MAC and IP addresses.
fn is_whole(lab: &Lab, attachment: &Value) -> bool {
    let name = attachment["key"]["interfaceName"].as_str().unwrap();
    let Some(link) = interface(lab, name) else { return false };
    let held: Vec<_> =
        link["addr_info"].as_array().unwrap().iter().map(|it| &it["local"]).collect();
    let wanted = attachment["addresses"].as_array().unwrap().iter();
    let bare = |it: &Value| json!(it["address"].as_str().unwrap().split('/').next());
    link["address"] == attachment["mac"] && wanted.map(bare).all(|address| held.contains(&&address))
}

/// Waits until the DPU has one host port and the host its interface. Returns the attachment.
fn wait_for_one(lab: &Lab) -> Value {
    wait_for("the host port", LIMIT, || {
        let [one] = <[Value; 1]>::try_from(host_ports(lab)).ok()?;
        let is_attached = one["state"] == "ATTACHMENT_STATE_ATTACHED";
        (is_attached && is_whole(lab, &one)).then_some(one)
    })
}

/// Waits until there is no host port and nothing remains of it.
fn wait_for_none(lab: &Lab) {
    wait_for("the host port's end", LIMIT, || host_ports(lab).is_empty().then_some(()));
    lab.assert_clean_slate();
}

/// Waits until the host port is complete again, as the same attachment.
fn wait_for_same(lab: &Lab, before: &Value) {
    wait_for("the same host port", LIMIT, || is_whole(lab, before).then_some(()));
    let now = wait_for_one(lab);
    assert_eq!((&now["id"], &now["addresses"]), (&before["id"], &before["addresses"]));
    lab.assert_invariants();
}

/// A pod on `blue` with its addresses.
struct Pod {
    netns: Netns,
    addresses: Vec<String>,
}

impl Pod {
    fn attach(lab: &Lab) -> Self {
        let netns = Netns::new("pod");
        let addresses = addresses(&lab.add("blue", &netns, "eth0").result());
        assert_eq!(addresses.len(), 2);
        Self { netns, addresses }
    }

    /// By echo requests and TCP, in both families.
    fn is_reached_from_host(&self, lab: &Lab) {
        for address in &self.addresses {
            assert!(lab.card.host.pings(address), "the host does not reach {address}");
            assert_connects(&lab.card.host, &self.netns, address);
        }
    }

    fn detach(&self, lab: &Lab) {
        lab.del("blue", &self.netns, "eth0").nothing();
    }
}

/// Like a kubelet's TCP probe.
fn assert_connects(host: &Netns, pod: &Netns, address: &str) {
    let any = SocketAddr::new(address.parse().unwrap(), 0);
    let listener = pod.run(|| TcpListener::bind(any)).unwrap();
    let to = listener.local_addr().unwrap();
    let connected = host.run(|| TcpStream::connect_timeout(&to, Duration::from_secs(10)));
    connected.unwrap().write_all(b"probe").unwrap();
}

#[test]
fn host_port_reaches_pods() {
    let lab = start_with(ON_BLUE);
    let port = wait_for_one(&lab);
    let pod = Pod::attach(&lab);
    pod.is_reached_from_host(&lab);
    let own = port["addresses"][0]["address"].as_str().unwrap().split('/').next().unwrap();
    assert!(pod.netns.pings(own), "the pod does not reach the host");
    let by_port = lab.card.host.json("ip", &["route", "show", "default", "dev", "offload0"]);
    assert_eq!(by_port, Vec::<Value>::new(), "the host keeps its own default route");
    assert!(lab.operator().output(&["get", "attachments"]).contains("(host port)"));

    let mut gc = lab.configuration("blue");
    gc["cni.dev/valid-attachments"] = json!([]);
    lab.execute(&Call::new("GC", &gc)).nothing();
    wait_for("the pod's end", LIMIT, || {
        (lab.operator().get("attachments").len() == 1).then_some(())
    });
    for verb in ["ADD", "DEL"] {
        let call = Call::new(verb, &lab.configuration("blue"));
        let of_port = call.of("host-port", Some(&pod.netns.path()), "offload0");
        lab.execute(&of_port).fails(100, &["host-port"]);
    }
    let own = lab.card.host.path();
    let into_host = Call::new("ADD", &lab.configuration("blue")).of("c", Some(&own), "eth0");
    lab.execute(&into_host).fails(8, &["same"]);
    wait_for_same(&lab, &port);
    let found = lab.operator().output(&["doctor", "-o", "json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["findings"], json!([]));
    let mut vfs = found["vfs"].as_array().unwrap().iter();
    let vf = vfs.find(|vf| vf["found"]["netdev"] == "offload0").unwrap();
    assert_eq!(vf["found"]["place"], "VF_PLACE_HOST");
}

#[test]
fn host_port_survives_program_deaths() {
    let mut lab = start_with(ON_BLUE);
    let port = wait_for_one(&lab);
    let pod = Pod::attach(&lab);
    let stop: fn(&mut Program) = |program| assert!(program.stop().success());
    for end in [stop, Program::crash] {
        end(&mut lab.agent);
        pod.is_reached_from_host(&lab);
        lab.start_agent();
        lab.wait_until_good();
        wait_for_same(&lab, &port);
        end(&mut lab.service);
        pod.is_reached_from_host(&lab);
        lab.start_service();
        lab.wait_until_good();
        wait_for_same(&lab, &port);
        pod.is_reached_from_host(&lab);
    }
    pod.detach(&lab);
}

#[test]
fn foreign_host_port_changes_are_repaired() {
    let lab = start_with(ON_BLUE);
    let port = wait_for_one(&lab);
    let (pod, host) = (Pod::attach(&lab), &lab.card.host);
    let elsewhere = Netns::new("stranger");
    let folder = lab.path().join("netns");
    fs::create_dir_all(&folder).unwrap();
    symlink(elsewhere.path(), folder.join("stranger")).unwrap();
    let deeds: [&[&str]; 6] = [
        &["link", "set", "offload0", "down"],
        &["link", "set", "offload0", "name", "mine"],
        &["address", "flush", "dev", "offload0"],
        &["link", "set", "offload0", "mtu", "1300"],
        &["link", "set", "offload0", "netns", elsewhere.name()],
        &["link", "delete", "offload0"],
    ];
    for deed in deeds {
        host.ip(deed);
        wait_for_same(&lab, &port);
        pod.is_reached_from_host(&lab);
    }
    pod.detach(&lab);
}

#[test]
fn host_port_follows_the_agents_file() {
    let mut lab = start_with("");
    let reload = |lab: &Lab, sections: &str| {
        configure(lab, sections);
        lab.agent.signal(Signal::SIGHUP);
    };
    reload(&lab, ON_BLUE);
    let port = wait_for_one(&lab);

    let with_routes =
        "[[host_port]]\nnetwork = \"blue\"\nroutes = [\"198.51.100.0/24\", \"2001:db8:7::/64\"]\n";
    let has_routes = |lab: &Lab| {
        ["198.51.100.1", "2001:db8:7::1"].iter().all(|to| {
            let route = lab.card.host.command("ip").args(["route", "get", to]).output().unwrap();
            String::from_utf8_lossy(&route.stdout).contains("offload0")
        })
    };
    reload(&lab, with_routes);
    wait_for("the routes", LIMIT, || has_routes(&lab).then_some(()));
    reload(&lab, ON_BLUE);
    wait_for("the routes' end", LIMIT, || (!has_routes(&lab)).then_some(()));
    wait_for_same(&lab, &port);

    reload(&lab, "[[host_port]]\nnetwork = \"blue\"\nnmae = \"x\"\n");
    wait_for("a refusal", LIMIT, || lab.agent.log().contains("nmae").then_some(()));
    wait_for_same(&lab, &port);

    reload(&lab, "[[host_port]]\nnetwork = \"green\"\nname = \"pods0\"\n");
    wait_for("another", LIMIT, || {
        (host_ports(&lab).len() == 1 && interface(&lab, "pods0").is_some()).then_some(())
    });
    assert_eq!(wait_for_one(&lab)["network"], "green");
    reload(&lab, "");
    wait_for_none(&lab);

    reload(&lab, ON_BLUE);
    wait_for_one(&lab);
    lab.agent.stop();
    configure(&lab, "");
    lab.start_agent();
    lab.wait_until_good();
    wait_for_none(&lab);
}

/// Waits until the doctor reports why a host port is missing.
fn wait_for_reason(lab: &Lab, reason: &str) {
    wait_for(reason, LIMIT, || {
        let output = lab.operator().dpuctl(&["doctor", "-o", "json"]);
        let found: Value = serde_json::from_slice(&output.stdout).ok()?;
        let reported =
            found["findings"].as_array()?.iter().find(|it| it["code"] == "HOST_PORT_MISSING")?;
        reported["message"].as_str()?.contains(reason).then_some(())
    });
}

#[test]
fn host_port_obstacle_is_reported() {
    let settings = Settings { vfs: 1, pool: 1, cool_down: 0, ..settings_with("") };
    let lab = Lab::start(&settings);
    let reload = |sections: &str| {
        configure(&lab, sections);
        lab.agent.signal(Signal::SIGHUP);
    };
    reload("[[host_port]]\nnetwork = \"violet\"\n");
    wait_for_reason(&lab, "violet");

    lab.card.host.ip(&["link", "add", "offload0", "type", "veth", "peer", "name", "other0"]);
    reload(ON_BLUE);
    wait_for_reason(&lab, "already has an interface offload0");
    assert_eq!(host_ports(&lab), Vec::<Value>::new());
    lab.card.host.ip(&["link", "delete", "offload0"]);
    wait_for_one(&lab);

    reload("");
    wait_for_none(&lab);
    let pod = Pod::attach(&lab);
    reload(ON_BLUE);
    wait_for_reason(&lab, "default");
    pod.detach(&lab);
    wait_for_one(&lab);
}

#[test]
fn host_port_survives_card_and_host_resets() {
    let mut lab = start_with(ON_BLUE);
    let port = wait_for_one(&lab);
    lab.agent.stop();
    lab.service.stop();
    lab.start_agent();
    wait_for("the agent", LIMIT, || lab.agent.log().contains("ready").then_some(()));
    lab.start_service();
    lab.wait_until_good();
    wait_for_same(&lab, &port);

    lab.reset_card();
    // The reset also affected the link to the DPU.
    lab.wait_until_good();
    wait_for_same(&lab, &port);
    let pod = Pod::attach(&lab);
    pod.is_reached_from_host(&lab);

    lab.agent.crash();
    lab.reset_card();
    lab.new_boot_id(NEXT_BOOT);
    drop(pod);
    lab.start_agent();
    lab.wait_until_good();
    wait_for("another attachment", LIMIT, || {
        (wait_for_one(&lab)["id"] != port["id"]).then_some(())
    });
    Pod::attach(&lab).is_reached_from_host(&lab);
}
