//! A host with a VF and a pod, and checks of both before and after a move.

use std::{
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use host_shim::{
    mover::{Announcer, Arrival, Baseline, Durations, MoveSpec, Namespaces, Plan, VfMove, inspect},
    vf_source::VirtualCard,
};
use netlink::{LinkChange, Netns, Request, Rtnl, VethEnd};
use offload_proto::v1;
use serde_json::{Value, json};

pub(crate) const PCI_ADDRESS: &str = "d000:00:00.4";

pub(crate) const ALIAS: &str = "virtual-nic d000:00:00.4 pf0vf3";

pub(crate) const OWN_NAME: &str = "p0v3";

pub(crate) const OWN_MAC: &str = "02:00:00:00:00:77";

pub(crate) const POD_MAC: &str = "02:00:00:00:00:0a";

/// A network namespace, kept alive by a process until dropped.
pub(crate) struct Space {
    pub(crate) keeper: Child,
    pub(crate) _stdin: ChildStdin,
}

impl Space {
    pub(crate) fn new() -> Self {
        let mut keeper = Command::new("unshare")
            .args(["-n", "sh", "-c", "echo ready; exec cat"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(keeper.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "these tests need `unshare -rnm`");
        Self { _stdin: keeper.stdin.take().unwrap(), keeper }
    }

    pub(crate) fn netns(&self) -> Netns {
        Netns::open(&self.path()).unwrap()
    }

    fn path(&self) -> PathBuf {
        format!("/proc/{}/ns/net", self.keeper.id()).into()
    }

    /// The output of a program that runs inside.
    fn output(&self, program: &str, arguments: &[&str]) -> Vec<u8> {
        let output =
            Netns::command(&self.path(), program).unwrap().args(arguments).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{program} {arguments:?}: {errors}");
        output.stdout
    }

    pub(crate) fn rtnl(&self) -> Rtnl {
        Rtnl::open_in(&self.netns()).unwrap()
    }

    pub(crate) fn ip(&self, arguments: &str) -> Value {
        let arguments: Vec<_> = ["-j", "-d"].into_iter().chain(arguments.split(' ')).collect();
        serde_json::from_slice(&self.output("ip", &arguments)).unwrap_or(Value::Null)
    }

    /// A sysctl of an interface, such as `ipv4.rp_filter`.
    pub(crate) fn sysctl(&self, interface: &str, setting: &str) -> String {
        let (family, key) = setting.split_once('.').unwrap();
        let key = format!("net/{family}/conf/{interface}/{key}");
        String::from_utf8(self.output("sysctl", &["-n", &key])).unwrap().trim().to_owned()
    }

    /// All links except `lo`, without fields that change by themselves.
    pub(crate) fn links(&self) -> Vec<Value> {
        let mut links = self.ip("link show").as_array().unwrap().clone();
        links.retain(|link| link["ifname"] != "lo");
        for link in &mut links {
            let link = link.as_object_mut().unwrap();
            for changing in ["ifindex", "link_index", "operstate", "link", "link_netnsid"] {
                link.remove(changing);
            }
        }
        links
    }

    pub(crate) fn link_names(&self) -> Vec<String> {
        self.links().iter().map(|link| link["ifname"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// A host with a VF, its representor in another namespace, and a pod.
pub(crate) struct Stage {
    pub(crate) host: Space,
    pub(crate) dpu: Space,
    pub(crate) pod: Space,
}

impl Stage {
    pub(crate) fn new() -> Self {
        let stage = Self { host: Space::new(), dpu: Space::new(), pod: Space::new() };
        stage.plug();
        stage
    }

    /// Plugs the VF in, clean.
    pub(crate) fn plug(&self) {
        let vf = VethEnd::new(OWN_NAME).mac(OWN_MAC.parse().unwrap());
        self.plug_vf(OWN_NAME, &vf, ALIAS, "pf0vf3");
        let mut host = self.host.rtnl();
        let index = host.link_by_name(OWN_NAME).unwrap().unwrap().index;
        host.change(Request::add_alternative_name(index, "enp3s0f0v3")).unwrap();
    }

    /// Plugs a VF in and sets its representor up.
    pub(crate) fn plug_vf(&self, name: &str, vf: &VethEnd<'_>, alias: &str, representor: &str) {
        let (mut host, mut dpu) = (self.host.rtnl(), self.dpu.rtnl());
        let in_dpu = self.dpu.netns();
        host.change(Request::add_veth(vf, &VethEnd::new(representor).netns(&in_dpu))).unwrap();
        let index = host.link_by_name(name).unwrap().unwrap().index;
        host.change_link(index, &LinkChange::new().alias(alias)).unwrap();
        let representor = dpu.link_by_name(representor).unwrap().unwrap().index;
        dpu.change_link(representor, &LinkChange::new().up()).unwrap();
    }

    pub(crate) fn baseline(&self) -> Baseline {
        Baseline::from(&self.host.rtnl().link_by_name(OWN_NAME).unwrap().unwrap())
    }

    pub(crate) fn vf_move(&self, spec: &MoveSpec) -> VfMove {
        let pod = Some(Arc::new(self.pod.netns()));
        VfMove::new(spec.clone(), self.namespaces(pod))
    }

    pub(crate) fn move_in(&self, spec: &MoveSpec) -> Arrival {
        self.vf_move(spec).move_in().unwrap()
    }

    pub(crate) fn namespaces(&self, pod: Option<Arc<Netns>>) -> Namespaces {
        Namespaces::open(&Arc::new(self.host.netns()), pod).unwrap()
    }
}

/// Finishes a move while `work` runs.
pub(crate) fn settled_during(arrival: Arrival, work: impl FnOnce()) -> Durations {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let both = async { tokio::join!(arrival.settle(std::future::ready(())), async { work() }).0 };
    runtime.block_on(both).unwrap()
}

pub(crate) fn settled(arrival: Arrival) -> Durations {
    settled_during(arrival, || ())
}

pub(crate) fn plan() -> Plan {
    let address = |address: &str, gateway: &str| v1::Address {
        address: address.into(),
        gateway: gateway.into(),
    };
    let route = |destination: &str, gateway: &str, table| v1::Route {
        destination: destination.into(),
        gateway: gateway.into(),
        table,
        ..Default::default()
    };
    let attachment = v1::Attachment {
        key: Some(v1::AttachmentKey { container_id: "c".into(), interface_name: "eth0".into() }),
        mac: POD_MAC.into(),
        mtu: 9000,
        addresses: vec![address("10.1.0.5/16", "10.1.0.1"), address("fd00::5/64", "fd00::1")],
        routes: vec![
            route("0.0.0.0/0", "10.1.0.1", 0),
            route("::/0", "fd00::1", 0),
            route("192.0.2.0/24", "169.254.1.1", 0),
            route("198.51.100.0/24", "10.1.0.1", 77),
            v1::Route { scope: "host".into(), ..route("203.0.113.0/24", "", 0) },
            v1::Route { kind: "blackhole".into(), ..route("10.66.0.0/16", "", 254) },
            v1::Route { kind: "unreachable".into(), ..route("fd66::/16", "", 77) },
        ],
        rules: vec![v1::PolicyRule { source: "10.1.0.5/32".into(), table: 77, priority: 100 }],
        sysctls: Some(v1::Sysctls {
            ipv4: [("rp_filter".into(), 2), ("arp_ignore".into(), 1)].into(),
            ipv6: [("accept_ra".into(), 2)].into(),
        }),
        ..Default::default()
    };
    Plan::new(&attachment, Duration::from_secs(2)).unwrap()
}

pub(crate) fn spec(stage: &Stage) -> MoveSpec {
    MoveSpec {
        source: Arc::new(VirtualCard::default()),
        device: PCI_ADDRESS.into(),
        original: stage.baseline(),
        plan: plan(),
        announcer: Announcer::start().unwrap(),
    }
}

pub(crate) fn assert_in_pod(stage: &Stage, spec: &MoveSpec) {
    assert_eq!(inspect(spec, &stage.pod.netns(), None).unwrap(), None);
    assert!(stage.host.link_names().is_empty());
    let link = &stage.pod.ip("addr show dev eth0")[0];
    assert_eq!(link["address"], POD_MAC);
    assert_eq!(link["mtu"], 9000);
    let held: Vec<_> = link["addr_info"].as_array().unwrap().iter().collect();
    let has = |address: &str| held.iter().any(|info| info["local"] == address);
    assert!(has("10.1.0.5") && has("fd00::5"), "{held:?}");
    let tentative = held.iter().any(|info| info["local"] == "fd00::5" && info["tentative"] == true);
    assert!(!tentative, "the address is usable at once");
    let routes = stage.pod.ip("route show");
    let has_route = |destination: &str, gateway: &str| {
        let routes = routes.as_array().unwrap().iter();
        routes.into_iter().any(|route| route["dst"] == destination && route["gateway"] == gateway)
    };
    assert!(has_route("default", "10.1.0.1"), "{routes}");
    assert!(has_route("192.0.2.0/24", "169.254.1.1"), "{routes}");
    assert_eq!(stage.pod.ip("route show table 77")[0]["dst"], "198.51.100.0/24");
    assert_eq!(stage.pod.ip("route show 203.0.113.0/24")[0]["scope"], "host");
    assert_eq!(
        rejecting(stage),
        [json!(["blackhole", "10.66.0.0/16"]), json!(["unreachable", "fd66::/16"])]
    );
    for (setting, value) in SETTINGS {
        assert_eq!(stage.pod.sysctl("eth0", setting), value, "{setting}");
    }
    let rules = stage.pod.ip("rule show");
    assert!(rules.as_array().unwrap().iter().any(|rule| rule["priority"] == 100), "{rules}");
    let loopback = &stage.pod.ip("link show dev lo")[0];
    assert!(loopback["flags"].as_array().unwrap().contains(&"UP".into()));
}

/// Sysctls of the plan, and the usual ones.
const SETTINGS: [(&str, &str); 5] = [
    ("ipv4.rp_filter", "2"),
    ("ipv4.arp_ignore", "1"),
    ("ipv4.arp_notify", "1"),
    ("ipv6.accept_ra", "2"),
    ("ipv6.keep_addr_on_down", "1"),
];

/// The pod's rejecting routes.
fn rejecting(stage: &Stage) -> Vec<Value> {
    let of = |family| stage.pod.ip(&format!("{family} route show table all"));
    let all = ["-4", "-6"].map(of);
    let all = all.iter().flat_map(|routes| routes.as_array().unwrap());
    let kinds = ["blackhole", "unreachable", "prohibit"].map(Value::from);
    let rejecting = all.filter(|route| kinds.contains(&route["type"]));
    rejecting.map(|route| json!([route["type"], route["dst"]])).collect()
}

/// Asserts that the host has what it had, and the pod nothing.
pub(crate) fn assert_clean(stage: &Stage, before: &[Value]) {
    assert_eq!(stage.host.links(), before);
    assert!(stage.pod.links().is_empty(), "{:?}", stage.pod.links());
    assert_eq!(rejecting(stage), [Value::Null; 0]);
    let rules = stage.pod.ip("rule show");
    assert!(rules.as_array().unwrap().iter().all(|rule| rule["priority"] != 100), "{rules}");
}
