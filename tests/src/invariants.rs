//! Invariants that hold after every step of every test, checked with `ip`, `dpuctl` and the file system:
//!
//! 1. no VF is in two attachments,
//! 2. no address is in two attachments of one layer-2 domain, nor on two pods of one,
//! 3. every VF is free and clean in the host's namespace, or in the netns of its one attachment with
//!    that attachment's name, MAC, MTU and addresses,
//! 4. every representor is programmed if and only if its VF is attached; without an eswitch, every PF
//!    holds a VF to its network if and only if it is attached,
//! 5. journal, agent's record and kernel agree.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
    time::Duration,
};

use serde_json::Value;

use crate::{
    Card, Host, HostEnd, Netns, OpenVswitch, Operator, eventually, fabric::BRIDGE, netns::NAMES,
    run, violation::Violation,
};

/// Timeout for background work to finish.
const SETTLE: Duration = Duration::from_secs(60);

/// The subject of the invariants: a host and its DPU.
#[expect(missing_debug_implementations, reason = "it looks by closures")]
pub struct Scene<'a> {
    /// The host's root namespace.
    pub host: &'a Netns,
    /// Namespaces that belong to no pod.
    pub not_pods: Vec<&'a Netns>,
    /// Pods of a runtime: namespaces by name, with their containers. `None`: each namespace of this test except those
    /// above is a pod, and its name is the container ID.
    pub pods: Option<Box<dyn Fn() -> BTreeMap<String, String> + 'a>>,
    /// Baselines of the VFs by PCI address.
    pub clean: &'a BTreeMap<String, HostEnd>,
    /// The operator that asks the DPU.
    pub operator: Operator<'a>,
    /// What restricts pods to their networks.
    pub enforcement: Enforcement<'a>,
}

/// What restricts pods to their networks.
#[expect(missing_debug_implementations, reason = "it looks by closures")]
pub enum Enforcement<'a> {
    /// Representors, among the DPU's current links as in `ip -d -j link`.
    Representors(Box<dyn Fn() -> Vec<Value> + 'a>),
    /// PFs of a card without a DPU.
    Pfs {
        /// Baselines of their VF settings, as in `ip -j link`, by PCI address.
        clean: &'a BTreeMap<String, Value>,
        /// Their current VF settings.
        now: Box<dyn Fn() -> BTreeMap<String, Value> + 'a>,
    },
}

/// A consistent reading by external tools.
pub(crate) struct Snapshot {
    pub(crate) attachments: Vec<Value>,
    networks: Vec<Value>,
    vfs: Vec<Value>,
    /// Netdevs of VFs in the host's namespace, by PCI address.
    host: BTreeMap<String, HostEnd>,
    /// Netdevs of VFs in pods, by PCI address, with the pod's container.
    pub(crate) pods: Vec<(String, String, HostEnd)>,
    /// Global addresses of pods' interfaces, by container and interface.
    pub(crate) addresses: BTreeMap<(String, String), BTreeSet<String>>,
    /// Representors that are up and in the bridge.
    programmed: BTreeSet<String>,
    /// Idle representors: down, outside the bridge, with the default MTU and no rate limit.
    idle: BTreeSet<String>,
    /// The PFs' VF settings, by PCI address.
    ports: BTreeMap<String, Value>,
    /// Upper devices, in pods and on the host.
    pub(crate) stacked: Vec<String>,
}

/// Container ID of host ports.
const HOST_PORT: &str = "host-port";

/// Kinds of upper devices, as in `ip -d link`.
const STACKED: [&str; 6] = ["macvlan", "macvtap", "ipvlan", "ipvtap", "vlan", "macsec"];

impl<'a> Scene<'a> {
    /// A host of a lab with its card, and the DPU's namespace with the representors.
    pub(crate) fn of(
        host: &'a Host,
        card: &'a Card,
        vswitch: Option<&'a OpenVswitch>,
        not_pods: Vec<&'a Netns>,
    ) -> Self {
        let show = move || {
            let links = card.dpu.json("ip", &["-d", "link", "show"]);
            match vswitch {
                Some(vswitch) => joined_by(vswitch, links),
                None => links,
            }
        };
        Self {
            host: host.netns(),
            not_pods,
            pods: None,
            clean: card.clean(),
            operator: host.operator(),
            enforcement: Enforcement::Representors(Box::new(show)),
        }
    }
}

impl Scene<'_> {
    /// Asserts all five invariants after waiting for background work.
    ///
    /// # Panics
    /// If one is still broken, naming each breach.
    pub fn assert_invariants(&self) {
        let mut violations = Vec::new();
        let settled = eventually(SETTLE, || {
            violations = self.violations(&self.snapshot());
            violations.is_empty().then_some(())
        });
        let reported: Vec<_> = violations.iter().map(Violation::to_string).collect();
        assert!(settled.is_some(), "broken invariants:\n{}", reported.join("\n"));
    }

    pub(crate) fn assert_clean_slate(&self) {
        let mut left = Vec::new();
        let clean = eventually(SETTLE, || {
            left = self.operator.get("attachments");
            left.is_empty().then_some(())
        });
        assert!(clean.is_some(), "left: {left:?}");
        self.assert_invariants();
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        let (attachments, vfs) = (self.operator.get("attachments"), self.operator.get("vfs"));
        let links = self.host.json("ip", &["-d", "link", "show"]);
        let mut snapshot = Snapshot {
            attachments,
            networks: self.operator.get("networks"),
            vfs,
            host: Card::ends_among(self.host, &links),
            pods: Vec::new(),
            addresses: BTreeMap::new(),
            programmed: BTreeSet::new(),
            idle: BTreeSet::new(),
            ports: BTreeMap::new(),
            stacked: Vec::new(),
        };
        snapshot.note_stacked(self.host.name(), &links);
        for (netns, pod) in self.pods() {
            self.look_into(&netns, &pod, &mut snapshot);
        }
        if snapshot.host_ports().next().is_some() {
            self.take_host_ports(&mut snapshot);
        }
        match &self.enforcement {
            Enforcement::Representors(links) => snapshot.look_at_representors(&links()),
            Enforcement::Pfs { now, .. } => snapshot.ports = now(),
        }
        snapshot
    }

    /// Network namespaces of pods, with their containers.
    fn pods(&self) -> BTreeMap<String, String> {
        if let Some(pods) = &self.pods {
            return pods();
        }
        let own = format!("-{}-", std::process::id());
        let entries = fs::read_dir(NAMES).into_iter().flatten().filter_map(Result::ok);
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let is_pod = |name: &String| {
            name.contains(&own) && self.not_pods.iter().all(|netns| netns.name() != name)
        };
        names.filter(is_pod).map(|name| (name.clone(), name)).collect()
    }

    fn look_into(&self, netns: &str, pod: &str, snapshot: &mut Snapshot) {
        let links = ip(netns, &["-d", "addr", "show"]);
        snapshot.note_stacked(pod, &links);
        for link in &links {
            let interface = text(&link["ifname"]);
            snapshot.addresses.insert((pod.to_owned(), interface), global_addresses(link));
        }
        let ends = links.iter().filter_map(crate::card::host_end);
        snapshot.pods.extend(ends.map(|(pci, end)| (pci, pod.to_owned(), end)));
    }

    /// Treats a host port's VF as attached where it is, as if the host were a pod.
    fn take_host_ports(&self, snapshot: &mut Snapshot) {
        let links = ip(self.host.name(), &["-d", "addr", "show"]);
        let ports: BTreeSet<_> = snapshot.host_ports().map(|a| text(&a["vf"]["device"])).collect();
        for link in &links {
            let Some((pci, end)) = crate::card::host_end(link) else { continue };
            if ports.contains(&pci) {
                let at = HOST_PORT.to_owned();
                snapshot.addresses.insert((at.clone(), end.name.clone()), global_addresses(link));
                snapshot.host.remove(&pci);
                snapshot.pods.push((pci, at, end));
            }
        }
    }

    pub(crate) fn violations(&self, snapshot: &Snapshot) -> Vec<Violation> {
        let twice = snapshot.held_twice().into_iter();
        let mut violations: Vec<_> = twice.map(Violation::doubled).collect();
        for (pci, clean) in self.clean {
            let holder = snapshot.attachments.iter().find(|a| a["vf"]["device"] == pci.as_str());
            match holder {
                Some(attachment) => {
                    let mut differences = snapshot.attached(pci, attachment);
                    differences.extend(self.keeps(snapshot, pci, attachment));
                    violations.extend(differences.into_iter().map(Violation::lost));
                }
                None => {
                    let mut differences = snapshot.free(pci, clean);
                    differences.extend(self.leftover_programming(snapshot, pci));
                    violations.extend(differences.into_iter().map(Violation::leaked));
                }
            }
        }
        violations
    }

    /// Invariant 4 for the VF of an attachment.
    fn keeps(&self, snapshot: &Snapshot, pci: &str, attachment: &Value) -> Option<String> {
        match &self.enforcement {
            Enforcement::Representors(_) => {
                let name = || snapshot.representor_of(pci);
                let reported = || format!("representor {} of {pci} is not programmed", name());
                (!snapshot.is_programmed(pci)).then(reported)
            }
            Enforcement::Pfs { .. } => {
                let port = &snapshot.ports[pci];
                let vlan = port["vlan_list"][0]["vlan"].as_u64().unwrap_or(0);
                let spoofing_allowed = attachment["antiSpoofing"] == "off";
                let is_kept = port["address"] == attachment["mac"]
                    && Some(vlan) == attachment["vlan"].as_u64()
                    && port["spoofchk"] != spoofing_allowed;
                (!is_kept).then(|| format!("the PF has VF {pci} as {port}, not as {attachment}"))
            }
        }
    }

    /// Invariant 4 for a free VF.
    fn leftover_programming(&self, snapshot: &Snapshot, pci: &str) -> Option<String> {
        match &self.enforcement {
            Enforcement::Representors(_) => {
                let vf = snapshot.vf(pci)?;
                let reported =
                    || format!("VF {pci} is free but its representor is programmed: {vf}");
                (!snapshot.is_idle(pci)).then(reported)
            }
            Enforcement::Pfs { clean, .. } => {
                let port = &snapshot.ports[pci];
                let reported = || format!("VF {pci} is free but the PF has it as {port}");
                (*port != clean[pci]).then(reported)
            }
        }
    }
}

/// Adds the bridge as master to the links that are ports of Open vSwitch: the kernel does not know it.
fn joined_by(vswitch: &OpenVswitch, mut links: Vec<Value>) -> Vec<Value> {
    let bridges = vswitch.vsctl("list-br");
    let ports = |bridge| vswitch.vsctl(&format!("list-ports {bridge}"));
    for port in bridges.lines().map(ports).collect::<String>().lines() {
        let link = links.iter_mut().find(|link| link["ifname"] == port);
        link.into_iter().for_each(|link| link["master"] = BRIDGE.into());
    }
    links
}

/// Global addresses of a link in `ip`'s output.
fn global_addresses(link: &Value) -> BTreeSet<String> {
    let addresses = link["addr_info"].as_array().into_iter().flatten();
    let global = addresses.filter(|address| address["scope"] == "global");
    global.map(|a| format!("{}/{}", text(&a["local"]), a["prefixlen"])).collect()
}

impl Snapshot {
    /// Attachments of the host itself.
    fn host_ports(&self) -> impl Iterator<Item = &Value> {
        self.attachments.iter().filter(|a| a["key"]["containerId"] == HOST_PORT)
    }

    /// Whether a VF's representor is up and in the bridge.
    pub(crate) fn is_programmed(&self, pci: &str) -> bool {
        self.programmed.contains(&self.representor_of(pci))
    }

    /// Whether a VF's representor is down, outside the bridge, with the default MTU and no rate limit.
    pub(crate) fn is_idle(&self, pci: &str) -> bool {
        self.idle.contains(&self.representor_of(pci))
    }

    fn note_stacked(&mut self, netns: &str, links: &[Value]) {
        let is_stacked = |link: &&Value| {
            link["linkinfo"]["info_kind"].as_str().is_some_and(|kind| STACKED.contains(&kind))
        };
        let stacked = links.iter().filter(is_stacked);
        self.stacked.extend(stacked.map(|link| format!("in {netns}: {link}")));
    }

    fn look_at_representors(&mut self, links: &[Value]) {
        for link in links.iter().filter(|link| crate::card::is_representor(link)) {
            let in_bridge = link["master"] == BRIDGE;
            let up = flags(link).contains("UP");
            let is_plain =
                link["mtu"] == 1500 && link["qdisc"] != "tbf" && link["group"] == "default";
            let name = text(&link["ifname"]);
            match (in_bridge, up) {
                (true, true) => self.programmed.insert(name),
                (false, false) if is_plain => self.idle.insert(name),
                _ => false,
            };
        }
    }

    /// Invariants 1 and 2.
    fn held_twice(&self) -> Vec<String> {
        let vfs = self.attachments.iter().map(|a| text(&a["vf"]["device"]));
        let addresses = self.attachments.iter().flat_map(|it| self.held_addresses_of(it));
        let on_pods = self.addresses.iter().flat_map(|((container, interface), addresses)| {
            let domain = self.domain_of_interface(container, interface);
            addresses.iter().map(move |address| in_domain(address, &domain))
        });
        let mut violations = twice(vfs, "VF in two attachments");
        violations.extend(twice(addresses, "address in two attachments"));
        violations.extend(twice(on_pods, "address on two pods"));
        violations
    }

    /// Layer-2 domain of a network: bridge and VLAN.
    pub(crate) fn domain_of(&self, network: &Value) -> Domain {
        let found = self.networks.iter().map(|it| &it["network"]).find(|it| it["name"] == *network);
        found.map(|it| (text(&it["bridge"]), it["vlan"].as_u64().unwrap_or(0))).unwrap_or_default()
    }

    /// Layer-2 domain of an attachment, which keeps the VLAN of its creation.
    fn domain_of_attachment(&self, attachment: &Value) -> Domain {
        let (bridge, _) = self.domain_of(&attachment["network"]);
        (bridge, attachment["vlan"].as_u64().unwrap_or(0))
    }

    /// Layer-2 domain of a pod's interface, which another plugin may have created.
    fn domain_of_interface(&self, container: &str, interface: &str) -> Domain {
        let mut of_container =
            self.attachments.iter().filter(|it| it["key"]["containerId"] == container);
        let its = of_container.clone().find(|it| it["key"]["interfaceName"] == interface);
        let lease = of_container
            .find_map(|it| further_leases_of(it).find(|lease| lease["interfaceName"] == interface));
        match (its, lease) {
            (Some(attachment), _) => self.domain_of_attachment(attachment),
            (None, Some(lease)) => self.domain_of(&lease["network"]),
            (None, None) => Domain::default(),
        }
    }

    /// Addresses of an attachment with their domains, including those for other plugins' interfaces.
    fn held_addresses_of(&self, attachment: &Value) -> Vec<String> {
        let own = [(attachment, self.domain_of_attachment(attachment))];
        let further =
            further_leases_of(attachment).map(|lease| (lease, self.domain_of(&lease["network"])));
        let all = own.into_iter().chain(further);
        all.flat_map(|(holder, domain)| {
            addresses_of(holder).into_iter().map(move |address| in_domain(&address, &domain))
        })
        .collect()
    }

    /// Invariants 3 and 5 for a free VF.
    fn free(&self, pci: &str, clean: &HostEnd) -> Vec<String> {
        let mut violations = Vec::new();
        match self.host.get(pci) {
            Some(end) if end.differences(clean).is_empty() => {}
            Some(end) => {
                let what = end.differences(clean).join("; ");
                violations.push(format!("VF {pci} is free but not clean: {what}"));
            }
            None => violations.push(format!("VF {pci} is free but not in the host's namespace")),
        }
        if let Some((_, pod, _)) = self.pods.iter().find(|(at, ..)| at == pci) {
            violations.push(format!("VF {pci} is free but in {pod}"));
        }
        if let Some(vf) = self.vf(pci).filter(|vf| vf["state"] != "VF_STATE_FREE") {
            violations.push(format!("VF {pci} is in no attachment but {vf}"));
        }
        violations
    }

    /// Invariants 3 and 5 for the VF of an attachment.
    fn attached(&self, pci: &str, attachment: &Value) -> Vec<String> {
        let mut violations = Vec::new();
        if attachment["state"] != "ATTACHMENT_STATE_ATTACHED" {
            return vec![format!("not attached: {attachment}")];
        }
        if let Some(end) = self.host.get(pci) {
            violations.push(format!("VF {pci} is attached but on the host: {end:?}"));
        }
        let pod = text(&attachment["key"]["containerId"]);
        let Some((_, at, end)) = self.pods.iter().find(|(at, ..)| at == pci) else {
            return vec![format!("VF {pci} is in no pod, but in {attachment}")];
        };
        let wanted = (
            pod.as_str(),
            text(&attachment["key"]["interfaceName"]),
            text(&attachment["mac"]),
            attachment["mtu"].as_u64(),
        );
        if (at.as_str(), end.name.clone(), end.mac.clone(), Some(end.mtu)) != wanted {
            violations.push(format!("VF {pci} in {at} is {end:?}, not as {attachment}"));
        }
        let has = self.addresses.get(&(at.clone(), end.name.clone()));
        if has != Some(&addresses_of(attachment).into_iter().collect()) {
            violations.push(format!("{at} has the addresses {has:?}, not those of {attachment}"));
        }
        violations
    }

    fn representor_of(&self, pci: &str) -> String {
        self.vf(pci).map(|vf| text(&vf["representor"])).unwrap_or_default()
    }

    fn vf(&self, pci: &str) -> Option<&Value> {
        self.vfs.iter().find(|vf| vf["vf"]["device"] == pci)
    }
}

pub(crate) fn addresses_of(attachment: &Value) -> Vec<String> {
    let addresses = attachment["addresses"].as_array().into_iter().flatten();
    addresses.map(|address| text(&address["address"])).collect()
}

fn further_leases_of(attachment: &Value) -> impl Iterator<Item = &Value> {
    attachment["furtherLeases"].as_array().into_iter().flatten()
}

/// Bridge and VLAN. The first bridge has an empty name; VLAN 0 means untagged.
pub(crate) type Domain = (String, u64);

/// An address in a domain, which may have one holder.
pub(crate) fn in_domain(address: &str, (bridge, vlan): &Domain) -> String {
    format!("{address} of bridge {bridge:?} and VLAN {vlan}")
}

pub(crate) fn twice(items: impl Iterator<Item = String>, what: &str) -> Vec<String> {
    let mut seen = BTreeSet::new();
    items.filter(|item| !seen.insert(item.clone())).map(|item| format!("{what}: {item}")).collect()
}

fn ip(netns: &str, arguments: &[&str]) -> Vec<Value> {
    let output = run(Command::new("ip").args(["-n", netns, "-j"]).args(arguments));
    serde_json::from_slice(&output.stdout).unwrap_or_default()
}

fn flags(link: &Value) -> BTreeSet<String> {
    link["flags"].as_array().into_iter().flatten().map(text).collect()
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}
