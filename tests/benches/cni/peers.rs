//! What users would run instead: plugins of containernetworking with host-local, where they are installed.

use std::{
    fs,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
};

use e2e::{Lab, Netns, Settings};
use netlink::{LinkChange, Request, Rtnl, VethEnd};
use nix::sched::{CloneFlags, unshare};
use serde_json::{Value, json};

use crate::{
    floor::{Families, Floor},
    pictures::{self, OURS, PEERS},
    pods::{Pods, run},
    table::Report,
    timing::Timing,
    turns::{self, Load, Network, System},
};

/// Where distributions put the plugins of containernetworking.
const FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

const CALLERS: [usize; 2] = [1, 8];

/// What a plugin is told of a pod besides, by the pod's number.
type Keys = fn(usize) -> Value;

const PLUGINS: [(&str, Keys); 4] = [
    (HOST_DEVICE, |pod| json!({ "device": device(pod) })),
    ("bridge", |_| json!({ "bridge": "peers-bridge", "isGateway": true })),
    ("ptp", |_| json!({})),
    ("macvlan", |_| json!({ "master": MASTER })),
];
pub(crate) const HOST_DEVICE: &str = "host-device";
const MASTER: &str = "peers-uplink";

/// What the pods of each of the pictured tables get, with how many are measured and in how many rounds. Peers wait for
/// duplicate address detection, seconds each, so that these are few with both families.
const KINDS: [(Families, usize, usize); 2] = [(Families::V4, 48, 2), (Families::Both, 16, 1)];

pub(crate) fn print(report: &mut Report) {
    let Some(folder) = folder_of(HOST_DEVICE) else {
        println!("\n### Beside the peers\n\n{NOT_INSTALLED}");
        return;
    };
    for ((_, title), (families, count, rounds)) in PEERS.into_iter().zip(KINDS) {
        on_a_host(|| compare(report, folder, (title, families, Load::new(count, rounds))));
    }
}

/// What is said of what needs the plugins.
pub(crate) const NOT_INSTALLED: &str =
    "Not measured: containernetworking-plugins is not installed.";

/// Where that plugin is installed, if it is.
pub(crate) fn folder_of(plugin: &str) -> Option<&'static str> {
    FOLDERS.into_iter().find(|folder| Path::new(folder).join(plugin).exists())
}

/// Does it in a network namespace of its own, where plugins are executed as on a host, by no program that enters it.
pub(crate) fn on_a_host(work: impl FnOnce() + Send) {
    let host = || {
        unshare(CloneFlags::CLONE_NEWNET).unwrap();
        work();
    };
    thread::scope(|scope| scope.spawn(host).join().unwrap());
}

fn compare(report: &mut Report, folder: &str, (title, families, load): (&str, Families, Load)) {
    let pods = load.pods();
    let lab = Lab::start(&Settings { networks: network(families), ..with_vfs(pods) });
    let (floor, ours) = (Floor::new(pods, families), Pods::new(&lab, pods));
    make_links(pods);
    let peer = |(number, (plugin, keys))| {
        Peer::new(folder, plugin, pods, &subnets(number, families), keys)
    };
    let peers: Vec<Peer> = PLUGINS.into_iter().enumerate().map(peer).collect();
    let mut systems =
        vec![System { name: Floor::NAME, network: &floor }, System { name: OURS, network: &ours }];
    systems.extend(peers.iter().map(|peer| System { name: peer.plugin, network: peer }));
    let mut table = report.table(title, &[&[pictures::CALLERS], &turns::COLUMNS[..]].concat());
    for callers in CALLERS {
        let figures = load.measure(&systems, callers, Timing::Apart);
        turns::rows(callers, callers, &systems, &figures).for_each(|(row, _)| table.row(row));
    }
}

/// A card with as many VFs.
pub(crate) fn with_vfs(count: usize) -> Settings {
    Settings::with_vfs(u32::try_from(count).unwrap())
}

/// Ours.
pub(crate) fn network(families: Families) -> String {
    let sections = subnets(OURS_AT, families);
    let sections = sections.iter().map(|cidr| format!("[[network.subnets]]\ncidr = {cidr:?}\n"));
    format!("[[network]]\nname = \"blue\"\ndefault = true\n{}", sections.collect::<String>())
}

/// Which of the subnets ours has: peers on one host have none in common.
pub(crate) const OURS_AT: usize = PLUGINS.len();

fn subnets(number: usize, families: Families) -> Vec<String> {
    let (v4, v6) = (format!("10.{}.0.0/16", 80 + number), format!("fd00:{}::/64", 80 + number));
    if families == Families::V4 { vec![v4] } else { vec![v4, v6] }
}

/// Addresses of the subnet of IPv4, none of which is the first that a pod would get.
pub(crate) fn addresses(number: usize) -> impl Iterator<Item = Ipv4Addr> {
    let second = u8::try_from(80 + number).unwrap();
    (1 << 8..).map(move |host: u16| {
        let [high, low] = host.to_be_bytes();
        Ipv4Addr::new(10, second, high, low)
    })
}

/// A link for each pod to have, and one for those that are made on top of it.
fn make_links(pods: usize) {
    let mut rtnl = Rtnl::open().unwrap();
    let mut add = |name: String| {
        let peer = format!("{name}-r");
        rtnl.change(Request::add_veth(&VethEnd::new(&name), &VethEnd::new(&peer))).unwrap();
        let up = |name: &str| Request::change_link_named(name, &LinkChange::new().up());
        rtnl.batch(&[up(&name), up(&peer)]).unwrap();
    };
    (0..pods).map(device).for_each(&mut add);
    add(MASTER.to_owned());
}

/// What host-device moves into a pod.
fn device(pod: usize) -> String {
    format!("peer-{pod}")
}

/// A plugin with host-local, executed in the network namespace of whoever calls.
pub(crate) struct Peer {
    folder: PathBuf,
    plugin: &'static str,
    keys: Keys,
    pods: Vec<Netns>,
    ipam: Value,
    leases: tempfile::TempDir,
}

impl Peer {
    fn new(
        folder: &str,
        plugin: &'static str,
        pods: usize,
        subnets: &[String],
        keys: Keys,
    ) -> Self {
        let leases = tempfile::tempdir().unwrap();
        let range = |subnet: &String| json!([{ "subnet": subnet }]);
        let default = |subnet: &String| json!({ "dst": if subnet.contains(':') { "::/0" } else { "0.0.0.0/0" } });
        let ipam = json!({
            "type": "host-local",
            "dataDir": leases.path(),
            "ranges": subnets.iter().map(range).collect::<Value>(),
            "routes": subnets.iter().map(default).collect::<Value>(),
        });
        let pods = (0..pods).map(|_| Netns::new("peer-pod")).collect();
        Self { folder: folder.into(), plugin, keys, pods, ipam, leases }
    }

    /// host-device on the first of the subnets, with links made for it.
    pub(crate) fn host_device(folder: &str, pods: usize) -> Self {
        make_links(pods);
        let [(plugin, keys), ..] = PLUGINS;
        Self::new(folder, plugin, pods, &subnets(0, Families::V4), keys)
    }

    /// Has host-local hold leases of other pods, written as it writes them.
    pub(crate) fn hold(&self, held: usize) {
        let folder = self.leases.path().join(NAME);
        fs::create_dir(&folder).unwrap();
        for (number, address) in addresses(0).take(held).enumerate() {
            fs::write(folder.join(address.to_string()), format!("other-pod-{number}\r\neth0"))
                .unwrap();
            fs::write(folder.join("last_reserved_ip.0"), address.to_string()).unwrap();
        }
    }

    fn call(&self, verb: &str, number: usize) {
        let pod = &self.pods[number];
        let mut configuration = (self.keys)(number);
        configuration["cniVersion"] = json!("1.0.0");
        configuration["name"] = json!(NAME);
        configuration["type"] = json!(self.plugin);
        configuration["ipam"] = self.ipam.clone();
        let mut command = Command::new(self.folder.join(self.plugin));
        command
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", pod.name())
            .env("CNI_NETNS", pod.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", &self.folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        run(command, &configuration.to_string());
    }
}

/// The name of a peer's network, for which host-local has a folder.
const NAME: &str = "peers";

impl Network for Peer {
    fn add(&self, pod: usize) {
        self.call("ADD", pod);
    }

    fn del(&self, pod: usize) {
        self.call("DEL", pod);
    }
}
