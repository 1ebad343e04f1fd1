//! The software card between a host netns and a DPU netns, and how its VFs look when nobody has them.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
    sync::Arc,
    time::Duration,
};

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

/// The most VFs of which `ethtool` and sysfs are read: the many files of their queues take their time.
const MOST_READ: usize = 24;

/// Shows what `ethtool` has of all links, and what the files and folders of sysfs hold that are named: a process for
/// each question, not for each link too, because tests look often. A link may lack some, or go meanwhile. The room of
/// queues is found out by the kernel itself.
const SETTINGS: &str = r#"
mount -t sysfs sysfs /mnt && cd /mnt/class/net || exit 1
{
    for question in -k -g -l -c -a --show-priv-flags; do ethtool $question '*'; done
    grep -rH . "$@" | grep -v -e tx_timeout -e byte_queue_limits/
} 2>/dev/null
exit 0
"#;

/// What is read of a link in sysfs.
const FILES: [&str; 4] = ["gro_flush_timeout", "napi_defer_hard_irqs", "threaded", "queues"];

/// What `ethtool` and sysfs show of links, by name.
fn settings_in(netns: &Netns, names: &[&str]) -> BTreeMap<String, Vec<String>> {
    if names.is_empty() {
        return BTreeMap::new();
    }
    let files = names.iter().flat_map(|name| FILES.map(|file| format!("{name}/{file}")));
    let mut command = netns.command("unshare");
    let output = run(command.args(["--mount", "sh", "-c", SETTINGS, "sh"]).args(files));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    by_link(&String::from_utf8_lossy(&output.stdout), names)
}

/// Each link's lines of what `SETTINGS` shows, in an order that does not change.
fn by_link(shown: &str, names: &[&str]) -> BTreeMap<String, Vec<String>> {
    let mut settings: BTreeMap<_, _> =
        names.iter().map(|&name| (name.to_owned(), Vec::new())).collect();
    let mut told_of = "";
    for line in shown.lines().filter(|line| !line.is_empty()) {
        if let Some((name, file)) = line.split_once('/').filter(|(name, _)| names.contains(name)) {
            settings.entry(name.to_owned()).or_default().push(file.to_owned());
        } else if let Some(name) = heading(line) {
            told_of = name;
        } else if let Some(of_link) = settings.get_mut(told_of) {
            of_link.push(line.to_owned());
        }
    }
    settings.values_mut().for_each(|of_link| of_link.sort());
    settings
}

/// Whom the lines below are about, if this is such a line of `ethtool`'s: `Features for eth0:`.
fn heading(line: &str) -> Option<&str> {
    line.strip_suffix(':')?.split_once(" for ").map(|(_, name)| name)
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
        let links = netns.json("ip", &["-d", "link", "show"]);
        let mut ends: BTreeMap<_, _> = links.iter().filter_map(host_end).collect();
        let names: Vec<_> = ends.values().map(|end| end.name.as_str()).collect();
        let mut settings = match names.len() {
            0..=MOST_READ => settings_in(netns, &names),
            _ => BTreeMap::new(),
        };
        for end in ends.values_mut() {
            end.settings = settings.remove(&end.name).unwrap_or_default();
        }
        ends
    }

    fn wait_for_ends(&self) -> BTreeMap<String, HostEnd> {
        let count = (self.plan.pfs * self.plan.vfs) as usize;
        let address = dpu_address(self.plan.controller);
        wait_for("the card's VFs and management link", Duration::from_secs(120), || {
            let ends = self.own_ends();
            (ends.len() == count && self.host.pings(&address)).then_some(ends)
        })
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
    netns.ip(&["link", "set", "lo", "up"]);
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
