//! The software card between a host's and a DPU's namespace, and the baseline of its VFs.

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
    settings::{CardPosition, FabricKind, dpu_address},
    wait_for,
};

/// The card, plugged in.
#[derive(Debug)]
pub struct Card {
    /// The card's process.
    pub program: Program,
    /// The host's root namespace, which may have cards of other DPUs.
    pub host: Arc<Netns>,
    /// The DPU's namespace, which may have cards of other hosts.
    pub dpu: Arc<Netns>,
    /// Baselines of the VFs by PCI address, read after plugging in.
    clean: BTreeMap<String, HostEnd>,
    plan: Plan,
}

/// Configuration of a card.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    kind: CardKind,
    /// The controller. Cards of one DPU, or of one host, have different ones.
    controller: u32,
    pfs: u32,
    vfs: u32,
    whole_checksums: bool,
}

impl Plan {
    /// The card of these settings.
    pub(crate) fn of(settings: &Settings, position: CardPosition) -> Self {
        Self {
            kind: settings.card.kind,
            controller: position.controller,
            pfs: settings.card.pfs,
            vfs: settings.vfs,
            whole_checksums: settings.kind_of_fabric == FabricKind::OpenVswitch,
        }
    }
}

/// A VF's netdev, as `ip -j link` shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostEnd {
    /// Name.
    pub name: String,
    /// MAC address.
    pub mac: String,
    /// MTU in bytes.
    pub mtu: u64,
    /// Whether the VF is up.
    pub up: bool,
    /// Alternative names.
    pub altnames: Vec<String>,
    /// Everything else in the output of `ip -d -j link`, without momentary values.
    pub shown: BTreeMap<String, Value>,
    /// Settings from `ethtool` and sysfs, if the VF is in the host's namespace.
    pub settings: Vec<String>,
}

/// Momentary values in the output of `ip`. Also those that name the other end of a veth pair, and those that drivers
/// without an own address choose at random for each binding.
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

/// Flags that programs do not set.
const FLAGS_OF_THE_MOMENT: [&str; 4] = ["LOWER_UP", "NO-CARRIER", "M-DOWN", "UP"];

/// Start of the card's output when its links exist: `plugged 4 VFs`.
const PLUGGED: &str = "plugged ";
/// Timeout for plugging in.
const LIMIT: Duration = Duration::from_secs(120);

/// Largest number of VFs whose `ethtool` and sysfs settings are read: reading the files of the queues is slow.
const MOST_READ: usize = 24;

/// Options of `ethtool` that are asked for all links in one process, because tests read often. For veth the kernel
/// answers only these, which `scenarios::clean` checks.
pub(crate) const QUESTIONS_OF_VETH: [&str; 2] = ["-k", "-l"];
pub(crate) const OTHER_QUESTIONS: [&str; 4] = ["-g", "-c", "-a", "--show-priv-flags"];

/// Files of a link in sysfs that are read. The limits of queues are left out, because the kernel adjusts them.
const FILES: [&str; 4] = ["gro_flush_timeout", "napi_defer_hard_irqs", "threaded", "queues"];
const NO_SETTINGS: [&str; 2] = ["tx_timeout", "byte_queue_limits"];

/// Settings of links from `ethtool` and sysfs, by name. A link may lack some, or vanish during the call.
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

/// Adds the lines of `ethtool`'s output to their links.
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

/// The link of the following lines, if this is a heading of `ethtool`: `Features for eth0:`.
fn heading(line: &str) -> Option<&str> {
    line.strip_suffix(':')?.split_once(" for ").map(|(_, name)| name)
}

/// Reads a file or all files below a folder as lines with their path: `queues/rx-0/rps_cpus:0`.
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

/// Stops the card in order: a killed card would leave its device to the whole machine.
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

    /// Resets the card: all its netdevs are deleted and created again.
    ///
    /// # Panics
    /// If it does not come up.
    pub fn reset(&mut self, folder: &Path) {
        self.program.stop();
        self.program = start(&self.host, &self.dpu, self.plan, folder);
    }

    /// The current representors in the DPU's namespace, as in `ip -d -j link`.
    #[must_use]
    pub fn representors(&self) -> Vec<Value> {
        let mut links = self.dpu.json("ip", &["-d", "link", "show"]);
        links.retain(is_representor);
        links
    }

    /// Baselines of the VFs by PCI address.
    #[must_use]
    pub fn clean(&self) -> &BTreeMap<String, HostEnd> {
        &self.clean
    }

    /// Netdevs of VFs that are now in `netns`, by PCI address.
    #[must_use]
    pub fn ends_in(netns: &Netns) -> BTreeMap<String, HostEnd> {
        Self::ends_among(netns, &netns.json("ip", &["-d", "link", "show"]))
    }

    /// Netdevs of VFs among the links of `netns` as shown by `ip -d -j link`.
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

    /// Reads the VFs once all are plugged in.
    fn wait_for_ends(&self) -> BTreeMap<String, HostEnd> {
        let count = (self.plan.pfs * self.plan.vfs) as usize;
        let address = dpu_address(self.plan.controller);
        wait_for("the card's VFs", LIMIT, || self.program.log().contains(PLUGGED).then_some(()));
        wait_for("the card's management link", LIMIT, || self.host.pings(&address).then_some(()));
        let ends = self.own_ends();
        assert_eq!(ends.len(), count, "{ends:#?}");
        ends
    }

    /// Netdevs of this card's VFs that are now in the host's namespace, by PCI address.
    fn own_ends(&self) -> BTreeMap<String, HostEnd> {
        let domains: Vec<_> = (0..self.plan.pfs).map(|pf| self.domain(pf)).collect();
        let mut ends = Self::ends_in(&self.host);
        ends.retain(|pci, _| domains.iter().any(|domain| pci.starts_with(domain)));
        ends
    }

    /// Name of both ends of the management link.
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

/// Whether a link of the DPU is a representor, for either kind of card.
pub(crate) fn is_representor(link: &Value) -> bool {
    let text = |key: &str| link[key].as_str().unwrap_or_default();
    let simulated = text("parentbus") == "netdevsim" && text("phys_port_name").starts_with("pf");
    simulated || text("ifalias").starts_with("virtual-nic representor")
}

/// PCI address of a host's link: its device's, or the one in its alias `virtual-nic <pci> <vf>`.
fn device(link: &Value) -> Option<&str> {
    if link["parentbus"] == "pci" {
        return link["parentdev"].as_str();
    }
    let alias = link["ifalias"].as_str()?.strip_prefix("virtual-nic ")?;
    alias.split(' ').next().filter(|pci| pci.contains(':'))
}

/// A VF's netdev with its PCI address, if the link is one.
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
    /// Lists the differences from another state. Settings are only compared if both sides have read them.
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
