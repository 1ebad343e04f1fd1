//! The software card between a host netns and a DPU netns, and how its VFs look when nobody has them.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    sync::Arc,
    time::Duration,
};

use netlink::{LinkChange, NetSysfs, Request, Rtnl};
use serde_json::Value;

use crate::{
    CardKind, Netns, Program, Settings, run,
    settings::{FabricKind, Seat, dpu_address},
    wait_for,
};

/// The card, plugged in.
#[derive(Debug)]
pub struct Card {
    /// The process that is the card.
    pub program: Program,
    /// The host's root namespace, which may have cards of other DPUs.
    pub host: Arc<Netns>,
    /// The DPU's namespace, which may have cards of other hosts.
    pub dpu: Arc<Netns>,
    /// VFs by PCI address, as they were after plugging.
    clean: BTreeMap<String, HostEnd>,
    plan: Plan,
}

/// What the card has.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    kind: CardKind,
    /// Where one DPU has several cards, or one host, they differ in it.
    controller: u32,
    pfs: u32,
    vfs: u32,
    whole_checksums: bool,
}

impl Plan {
    /// The card of these settings.
    pub(crate) fn of(settings: &Settings, seat: Seat) -> Self {
        Self {
            kind: settings.card.kind,
            controller: seat.controller,
            pfs: settings.card.pfs,
            vfs: settings.vfs,
            whole_checksums: settings.kind_of_fabric == FabricKind::OpenVswitch,
        }
    }
}

/// A VF's netdev, as `ip -j link` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEnd {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: String,
    /// Its MTU in bytes.
    pub mtu: u64,
    /// Whether it is up.
    pub up: bool,
    /// Its alternative names.
    pub altnames: Vec<String>,
    /// All else that `ip -d -j link` shows of it, without what names the moment.
    pub shown: BTreeMap<String, Value>,
    /// What `ethtool` and sysfs show of it, of one in the host's namespace.
    pub settings: Vec<String>,
}

/// What `ip` shows that names the moment, or where the other end of a veth pair is, or what a driver
/// without an address of its own draws anew each time that it takes a VF.
const OF_THE_MOMENT: [&str; 10] = [
    "permaddr",
    "flags",
    "ifindex",
    "link",
    "link_index",
    "link_netnsid",
    "operstate",
    "qdisc",
    "addr_info",
    "stats64",
];

/// What a link's flags are that a program sets.
const FLAGS_OF_THE_MOMENT: [&str; 4] = ["LOWER_UP", "NO-CARRIER", "M-DOWN", "UP"];

/// What a card says once its links are there: `plugged 4 VFs`.
const PLUGGED: &str = "plugged ";
/// How long that may take.
const LIMIT: Duration = Duration::from_secs(120);

/// The most VFs of which `ethtool` and sysfs are read: the many files of their queues take their time.
const MOST_READ: usize = 24;

/// What `ethtool` is asked of all links at once, since a process for each link takes too long: tests look often. About
/// veth the kernel answers these alone, which `scenarios::clean` checks.
pub(crate) const QUESTIONS_OF_VETH: [&str; 2] = ["-k", "-l"];
pub(crate) const OTHER_QUESTIONS: [&str; 4] = ["-g", "-c", "-a", "--show-priv-flags"];

/// What is read of a link in sysfs. The kernel itself finds out the room of queues.
const FILES: [&str; 4] = ["gro_flush_timeout", "napi_defer_hard_irqs", "threaded", "queues"];
const NO_SETTINGS: [&str; 2] = ["tx_timeout", "byte_queue_limits"];

/// What `ethtool` and sysfs show of links, by name. A link may lack some, or go meanwhile.
fn settings_in(netns: &Netns, links: &[&Value]) -> BTreeMap<String, Vec<String>> {
    let names = links.iter().filter_map(|link| link["ifname"].as_str());
    let mut settings: BTreeMap<_, _> = names.map(|name| (name.to_owned(), Vec::new())).collect();
    if links.is_empty() {
        return settings;
    }
    let are_veth = links.iter().all(|link| link["linkinfo"]["info_kind"] == "veth");
    let others = OTHER_QUESTIONS.iter().filter(|_| !are_veth);
    for question in QUESTIONS_OF_VETH.iter().chain(others) {
        let shown = run(netns.command("ethtool").args([question, "*"]));
        note_by_link(&String::from_utf8_lossy(&shown.stdout), &mut settings);
    }
    let sysfs = NetSysfs::mount(&netns.open()).expect("mount sysfs");
    for (name, of_link) in &mut settings {
        FILES.iter().for_each(|file| read(&sysfs.folder().join(name), file, of_link));
        of_link.sort();
    }
    settings
}

/// Notes each link's lines of what `ethtool` shows.
fn note_by_link(shown: &str, settings: &mut BTreeMap<String, Vec<String>>) {
    let mut told_of = "";
    for line in shown.lines().filter(|line| !line.is_empty()) {
        if let Some(name) = heading(line) {
            told_of = name;
        } else if let Some(of_link) = settings.get_mut(told_of) {
            of_link.push(line.to_owned());
        }
    }
}

/// Whom the lines below are about, if this is such a line of `ethtool`'s: `Features for eth0:`.
fn heading(line: &str) -> Option<&str> {
    line.strip_suffix(':')?.split_once(" for ").map(|(_, name)| name)
}

/// Reads a file, or all files of a folder and those below, line by line with their path: `queues/rx-0/rps_cpus:0`.
fn read(folder: &Path, file: &str, lines: &mut Vec<String>) {
    let path = folder.join(file);
    if let Ok(entries) = fs::read_dir(&path) {
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        for name in names.filter(|name| !NO_SETTINGS.contains(&name.as_str())) {
            read(folder, &format!("{file}/{name}"), lines);
        }
    } else if let Ok(text) = fs::read_to_string(&path) {
        let filled = text.lines().filter(|line| !line.is_empty());
        lines.extend(filled.map(|line| format!("{file}:{line}")));
    }
}

/// A card that is killed would leave its device to the whole machine.
impl Drop for Card {
    fn drop(&mut self) {
        if !std::thread::panicking() && self.plan.kind == CardKind::Netdevsim {
            self.program.stop();
        }
    }
}

impl Card {
    /// Plugs a card between these namespaces.
    pub(crate) fn between(host: Arc<Netns>, dpu: Arc<Netns>, plan: Plan, folder: &Path) -> Self {
        let program = start(&host, &dpu, plan, folder);
        let mut card = Self { program, host, dpu, clean: BTreeMap::new(), plan };
        card.clean = card.wait_for_ends();
        card
    }

    /// Pulls the card out and plugs it in again: a reset, in which all its netdevs die.
    ///
    /// # Panics
    /// When it does not come up.
    pub fn reset(&mut self, folder: &Path) {
        self.program.stop();
        self.program = start(&self.host, &self.dpu, self.plan, folder);
    }

    /// The representors in the DPU's namespace now, as `ip -d -j link` shows them.
    #[must_use]
    pub fn representors(&self) -> Vec<Value> {
        let mut links = self.dpu.json("ip", &["-d", "link", "show"]);
        links.retain(is_representor);
        links
    }

    /// How each VF looks while nobody has it, by PCI address.
    #[must_use]
    pub fn clean(&self) -> &BTreeMap<String, HostEnd> {
        &self.clean
    }

    /// The VFs' netdevs that are in `netns` now, by PCI address.
    #[must_use]
    pub fn ends_in(netns: &Netns) -> BTreeMap<String, HostEnd> {
        Self::ends_among(netns, &netns.json("ip", &["-d", "link", "show"]))
    }

    /// Those among the links of `netns`, as `ip -d -j link` has shown them.
    pub(crate) fn ends_among(netns: &Netns, links: &[Value]) -> BTreeMap<String, HostEnd> {
        let (mut ends, mut shown) = (BTreeMap::new(), Vec::new());
        for (link, (pci, end)) in links.iter().filter_map(|link| Some((link, host_end(link)?))) {
            ends.insert(pci, end);
            shown.push(link);
        }
        if ends.len() <= MOST_READ {
            let mut settings = settings_in(netns, &shown);
            for end in ends.values_mut() {
                end.settings = settings.remove(&end.name).unwrap_or_default();
            }
        }
        ends
    }

    /// How its VFs look once it is plugged in.
    fn wait_for_ends(&self) -> BTreeMap<String, HostEnd> {
        let count = (self.plan.pfs * self.plan.vfs) as usize;
        let address = dpu_address(self.plan.controller);
        wait_for("the card's VFs", LIMIT, || self.program.log().contains(PLUGGED).then_some(()));
        wait_for("the card's management link", LIMIT, || self.host.pings(&address).then_some(()));
        let ends = self.own_ends();
        assert_eq!(ends.len(), count, "{ends:#?}");
        ends
    }

    /// Its VFs' netdevs that are in the host's namespace now, by PCI address.
    fn own_ends(&self) -> BTreeMap<String, HostEnd> {
        let domains: Vec<_> = (0..self.plan.pfs).map(|pf| self.domain(pf)).collect();
        let mut ends = Self::ends_in(&self.host);
        ends.retain(|pci, _| domains.iter().any(|domain| pci.starts_with(domain)));
        ends
    }

    /// The name of both ends of its management link.
    pub(crate) fn management_link(&self) -> String {
        format!("mgmt{}", self.plan.controller)
    }

    /// The PCI address of a PF.
    pub(crate) fn pf_address(&self, pf: u32) -> String {
        format!("{}:00:00.0", self.domain(pf))
    }

    fn domain(&self, pf: u32) -> String {
        format!("{:04x}", 0xd000 + 16 * self.plan.controller + pf)
    }
}

/// A new namespace for the programs of a host or a DPU.
pub(crate) fn root(label: &str) -> Arc<Netns> {
    let netns = Netns::new(label);
    let lo_up = Request::change_link_named("lo", &LinkChange::new().up());
    Rtnl::open_in(&netns.open()).and_then(|mut rtnl| rtnl.change(lo_up)).expect("lo to be up");
    Arc::new(netns)
}

fn start(host: &Netns, dpu: &Netns, plan: Plan, folder: &Path) -> Program {
    let [controller, pfs, vfs] = [plan.controller, plan.pfs, plan.vfs].map(|n| n.to_string());
    let arguments = [
        "plug",
        "--kind",
        plan.kind.name(),
        "--host-netns",
        host.name(),
        "--dpu-netns",
        dpu.name(),
        "--controller",
        &controller,
        "--pfs",
        &pfs,
        "--vfs",
        &vfs,
    ];
    let checksums = plan.whole_checksums.then_some("--whole-checksums");
    let arguments = arguments.into_iter().chain(checksums);
    Program::start("virtual-nic", dpu, folder, arguments, &[])
}

/// Whether a link of the DPU represents a VF, of either kind of card.
pub(crate) fn is_representor(link: &Value) -> bool {
    let text = |key: &str| link[key].as_str().unwrap_or_default();
    let simulated = text("parentbus") == "netdevsim" && text("phys_port_name").starts_with("pf");
    simulated || text("ifalias").starts_with("virtual-nic representor")
}

/// The PCI address of a link on the host's side of the card: its device's, or that of its alias,
/// `virtual-nic <pci> <vf>`.
fn device(link: &Value) -> Option<&str> {
    if link["parentbus"] == "pci" {
        return link["parentdev"].as_str();
    }
    let alias = link["ifalias"].as_str()?.strip_prefix("virtual-nic ")?;
    alias.split(' ').next().filter(|pci| pci.contains(':'))
}

/// A link on the host's side of the card, by PCI address.
pub(crate) fn host_end(link: &Value) -> Option<(String, HostEnd)> {
    let pci = device(link)?;
    let altnames = link["altnames"]
        .as_array()
        .map(|names| names.iter().filter_map(Value::as_str).map(str::to_owned).collect());
    let end = HostEnd {
        name: link["ifname"].as_str()?.to_owned(),
        mac: link["address"].as_str()?.to_owned(),
        mtu: link["mtu"].as_u64()?,
        up: link["flags"].as_array()?.iter().any(|flag| flag == "UP"),
        altnames: altnames.unwrap_or_default(),
        shown: shown(link),
        settings: Vec::new(),
    };
    Some((pci.to_owned(), end))
}

fn shown(link: &Value) -> BTreeMap<String, Value> {
    let all = link.as_object().into_iter().flatten();
    let kept = all.filter(|(key, _)| !OF_THE_MOMENT.contains(&key.as_str()));
    let mut shown: BTreeMap<_, _> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    let flags = link["flags"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let flags = flags.filter(|flag| !FLAGS_OF_THE_MOMENT.contains(flag));
    shown.insert("flags".into(), flags.map(Value::from).collect());
    shown
}

impl HostEnd {
    /// What is not as in another, each in a line. Settings tell nothing of an end of which they were not
    /// read, being one of many.
    pub(crate) fn differences(&self, other: &Self) -> Vec<String> {
        let are_read = !self.settings.is_empty() && !other.settings.is_empty();
        let lines = |end: &Self| -> BTreeSet<String> {
            let plain = (&end.name, &end.mac, end.mtu, end.up, &end.altnames);
            let shown = end.shown.iter().map(|(key, value)| format!("{key}: {value}"));
            let settings = end.settings.iter().filter(|_| are_read).cloned();
            shown.chain(settings).chain([format!("{plain:?}")]).collect()
        };
        let (these, those) = (lines(self), lines(other));
        these.symmetric_difference(&those).cloned().collect()
    }
}
