//! Comparison with the containernetworking plugins with host-local, if they are installed.

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

/// Where distributions install the containernetworking plugins.
const FOLDERS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

const CALLERS: [usize; 2] = [1, 8];

/// Further configuration of a plugin for a pod, by the pod's number.
type Keys = fn(usize) -> Value;

const PLUGINS: [(&str, Keys); 4] = [
    (HOST_DEVICE, |pod| json!({ "device": device(pod) })),
    ("bridge", |_| json!({ "bridge": "peers-bridge", "isGateway": true })),
    ("ptp", |_| json!({})),
    ("macvlan", |_| json!({ "master": MASTER })),
];
pub(crate) const HOST_DEVICE: &str = "host-device";
const MASTER: &str = "peers-uplink";

/// Address families of the charted tables, with the operations and rounds of each. There are few with both families,
/// because the other plugins wait seconds for duplicate address detection.
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

/// Note in place of what needs the plugins.
pub(crate) const NOT_INSTALLED: &str =
    "Not measured: containernetworking-plugins is not installed.";

/// The folder in which the plugin is installed.
pub(crate) fn folder_of(plugin: &str) -> Option<&'static str> {
    FOLDERS.into_iter().find(|folder| Path::new(folder).join(plugin).exists())
}

/// Runs a function in a network namespace of its own, where plugins are executed without a program that enters it.
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

/// Settings of a card with that many VFs.
pub(crate) fn with_vfs(count: usize) -> Settings {
    Settings::with_vfs(u32::try_from(count).unwrap())
}

/// Definition of the plugin's network.
pub(crate) fn network(families: Families) -> String {
    let sections = subnets(OURS_AT, families);
    let sections = sections.iter().map(|cidr| format!("[[network.subnets]]\ncidr = {cidr:?}\n"));
    format!("[[network]]\nname = \"blue\"\ndefault = true\n{}", sections.collect::<String>())
}

/// Index of this plugin's subnet. No two plugins of a host share one.
pub(crate) const OURS_AT: usize = PLUGINS.len();

fn subnets(number: usize, families: Families) -> Vec<String> {
    let (v4, v6) = (format!("10.{}.0.0/16", 80 + number), format!("fd00:{}::/64", 80 + number));
    if families == Families::V4 { vec![v4] } else { vec![v4, v6] }
}

/// Addresses of the IPv4 subnet, without the first ones, which pods would get.
pub(crate) fn addresses(number: usize) -> impl Iterator<Item = Ipv4Addr> {
    let second = u8::try_from(80 + number).unwrap();
    (1 << 8..).map(move |host: u16| {
        let [high, low] = host.to_be_bytes();
        Ipv4Addr::new(10, second, high, low)
    })
}

/// Makes a link for each pod, and one for those that are created on top of it.
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

/// The link that host-device moves into a pod.
fn device(pod: usize) -> String {
    format!("peer-{pod}")
}

/// A plugin with host-local, executed in the caller's network namespace.
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

    /// host-device on the first subnet, with links made for it.
    pub(crate) fn host_device(folder: &str, pods: usize) -> Self {
        make_links(pods);
        let [(plugin, keys), ..] = PLUGINS;
        Self::new(folder, plugin, pods, &subnets(0, Families::V4), keys)
    }

    /// Writes leases of other pods, in the format of host-local.
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

/// The network's name, which is also the name of host-local's folder.
const NAME: &str = "peers";

impl Network for Peer {
    fn add(&self, pod: usize) {
        self.call("ADD", pod);
    }

    fn del(&self, pod: usize) {
        self.call("DEL", pod);
    }
}
