//! Real VFs of a real driver on the host's side: QEMU's igb cards, whose PFs keep the pods to their
//! MAC addresses and VLANs, for the cards have no DPU. The host is the machine itself, as VFs come
//! back to its first namespace alone; the service has neither eswitch nor fabric: the cards switch
//! between their VFs by themselves.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use e2e::{
    Answer, Call, HostEnd, Keeper, Netns, Operator, Pki, Program, Scene, Settings, eventually, run,
    wait_for,
};
use serde_json::{Value, json};
use tempfile::TempDir;

/// An emulated card's carrier takes seconds to come.
const LIMIT: Duration = Duration::from_secs(90);
const MOST_VFS: usize = 7;
const NETWORKS: &str = r#"
[[network]]
name = "blue"
vlan = 100
mtu = 1400
[[network.subnet]]
cidr = "10.1.0.0/24"
[[network]]
name = "green"
vlan = 200
[[network.subnet]]
cidr = "10.2.0.0/24"
[[network]]
name = "open"
allow_mac_spoofing = true
[[network.subnet]]
cidr = "10.3.0.0/24"
[[network]]
name = "trunked"
trunk = [300, 301]
"#;

/// An igb card, the agent that gives its VFs to pods, and a service.
struct Lab {
    agent: Program,
    _service: Program,
    pki: Pki,
    card: Card,
    dpu: Netns,
    host: Netns,
    folder: TempDir,
}

/// The first igb card, without VFs again when it is dropped.
struct Card {
    pf: PathBuf,
}

/// A pod's attachment.
struct Attached {
    /// The VF's number.
    vf: usize,
    mac: String,
    address: String,
    /// What ADD printed.
    result: Value,
}

/// How VFs look while nobody has one, by PCI address.
struct Clean {
    ends: BTreeMap<String, HostEnd>,
    ports: BTreeMap<String, Value>,
}

/// What a VF is like.
#[derive(Debug, PartialEq, Eq)]
struct Vf {
    name: String,
    mac: String,
    mtu: u64,
    is_up: bool,
}

impl Card {
    fn new() -> Self {
        let devices = fs::read_dir("/sys/bus/pci/devices").unwrap();
        let mut pfs: Vec<_> = devices.map(|entry| entry.unwrap().path()).collect();
        pfs.retain(|device| device.join("sriov_totalvfs").exists());
        pfs.sort();
        let card = Self { pf: pfs.first().expect("hack/vm has igb cards").clone() };
        card.set("sriov_numvfs", "0");
        run_ok("ip", &["link", "set", &card.netdev(), "up"]);
        card
    }

    fn set(&self, file: &str, value: &str) {
        fs::write(self.pf.join(file), value).unwrap();
    }

    fn address(&self) -> String {
        self.pf.file_name().unwrap().to_str().unwrap().to_owned()
    }

    fn netdev(&self) -> String {
        let name = fs::read_dir(self.pf.join("net")).unwrap().next().unwrap().unwrap();
        name.file_name().into_string().unwrap()
    }

    fn count(&self) -> usize {
        fs::read_to_string(self.pf.join("sriov_numvfs")).unwrap().trim().parse().unwrap()
    }

    fn vf_address(&self, vf: usize) -> String {
        let link = fs::read_link(self.pf.join(format!("virtfn{vf}"))).unwrap();
        link.file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// What the PF makes of a VF, as `ip` shows it.
    fn port(&self, vf: usize) -> Value {
        let shown = run_ok("ip", &["-j", "link", "show", &self.netdev()]);
        let links: Value = serde_json::from_str(&shown).unwrap();
        links[0]["vfinfo_list"][vf].clone()
    }

    /// What the PF makes of each VF, by PCI address.
    fn ports(&self) -> BTreeMap<String, Value> {
        (0..self.count()).map(|vf| (self.vf_address(vf), self.port(vf))).collect()
    }

    /// Takes the VF away from its driver and gives it back.
    fn rebind(&self, vf: usize) {
        self.bind(vf, "igbvf");
    }

    /// Takes the VF away from its driver and gives it to one.
    fn bind(&self, vf: usize, driver: &str) {
        self.unbind(vf);
        self.keep_for(vf, driver);
        fs::write("/sys/bus/pci/drivers_probe", self.vf_address(vf)).unwrap();
    }

    fn device(&self, vf: usize) -> PathBuf {
        self.pf.parent().unwrap().join(self.vf_address(vf))
    }

    fn unbind(&self, vf: usize) {
        fs::write(self.device(vf).join("driver/unbind"), self.vf_address(vf)).unwrap();
    }

    /// No other driver takes the VF from now on. The end of a line: any that knows it does.
    fn keep_for(&self, vf: usize, driver: &str) {
        fs::write(self.device(vf).join("driver_override"), driver).unwrap();
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let _ = fs::write(self.pf.join("sriov_numvfs"), "0");
    }
}

impl Lab {
    /// Brings all of it up, with so many VFs wanted.
    fn start(vfs: usize) -> Self {
        let folder = tempfile::Builder::new().prefix("igb-").tempdir().unwrap();
        let path = folder.path();
        let card = Card::new();
        let (host, dpu) = (Netns::of_this_process("host"), Netns::new("dpu"));
        plug_dpu(&host, &dpu);
        let pki = Pki::make(path.join("pki"));
        fs::write(path.join("boot-id"), "7d0c4ae0-0000-4000-8000-000000000001\n").unwrap();
        fs::create_dir(path.join("faults")).unwrap();
        write_service_file(&folder, &pki, vfs);
        let settings = Settings::default().agent_file(path, &pki);
        let pci = format!(
            "kind = \"pci\"\nmode = \"legacy\"\npfs = [{{ address = \"{}\" }}]",
            card.address()
        );
        let settings = settings.replace("kind = \"virtual\"", &pci);
        fs::write(path.join("host-shim.toml"), settings).unwrap();
        let service = start("dpu-service", "dpu-service.toml", &dpu, &folder);
        let agent = start("host-shim-agent", "host-shim.toml", &host, &folder);
        let lab = Self { agent, _service: service, pki, card, dpu, host, folder };
        lab.wait_for_free(vfs);
        lab
    }

    fn want(&self, vfs: usize) {
        write_service_file(&self.folder, &self.pki, vfs);
    }

    /// Waits until the card has so many VFs, and the DPU may give all of them out.
    fn wait_for_free(&self, vfs: usize) {
        wait_for("free VFs", LIMIT, || {
            (self.card.count() == vfs && self.free() == vfs).then_some(())
        });
    }

    fn free(&self) -> usize {
        self.free_vfs().len()
    }

    fn is_free(&self, address: &str) -> bool {
        self.free_vfs().iter().any(|vf| vf["vf"]["pciAddress"] == address)
    }

    fn free_vfs(&self) -> Vec<Value> {
        let listed = self.operator().dpuctl(&["get", "vfs", "-o", "json"]).stdout;
        let list: Value = serde_json::from_slice(&listed).unwrap_or_default();
        let mut vfs = list["vfs"].as_array().cloned().unwrap_or_default();
        vfs.retain(|vf| vf["state"] == "VF_STATE_FREE");
        vfs
    }

    fn operator(&self) -> Operator<'_> {
        let configuration = self.folder.path().join("dpuctl.toml");
        let tls = self.pki.section("operator", "admin");
        let text = format!("endpoint = \"192.168.100.2:7443\"\ndpu = \"dpu-1\"\n{tls}");
        fs::write(&configuration, text).unwrap();
        Operator::new(&self.host, configuration)
    }

    /// What `dpuctl doctor` finds by that code.
    #[track_caller]
    fn doctor(&self, arguments: &[&str], code: &str) -> Value {
        let all = [&["doctor", "-o", "json", "--timeout", "60"], arguments].concat();
        let told = self.operator().dpuctl(&all).stdout;
        let diagnosis: Value = serde_json::from_slice(&told).unwrap();
        let mut found = diagnosis["differences"].as_array().unwrap().iter();
        let found = found.find(|found| found["code"] == code);
        found.unwrap_or_else(|| panic!("no {code} in {diagnosis:#}")).clone()
    }

    /// The five invariants, of VFs that look so while nobody has them.
    fn assert_invariants(&self, clean: &Clean) {
        let now = || self.card.ports();
        let scene = Scene {
            host: &self.host,
            not_pods: [&self.host, &self.dpu],
            clean: &clean.ends,
            operator: self.operator(),
            keeper: Keeper::Pfs { clean: &clean.ports, now: Box::new(now) },
        };
        scene.assert_invariants();
    }

    /// How the VFs look now, when nobody has one.
    fn clean(&self) -> Clean {
        let ports = self.card.ports();
        let mut ends = e2e::Card::ends_in(&self.host);
        ends.retain(|pci, _| ports.contains_key(pci));
        Clean { ends, ports }
    }

    fn call(&self, verb: &str, network: &str, pod: &Netns) -> Answer {
        self.call_with(verb, network, pod, &json!({}))
    }

    /// A call with more keys in its configuration.
    fn call_with(&self, verb: &str, network: &str, pod: &Netns, extra: &Value) -> Answer {
        let mut configuration = json!({
            "cniVersion": "1.1.0",
            "name": network,
            "type": "host-shim",
            "agentSocket": self.folder.path().join("agent.sock"),
            "capabilities": { "deviceID": true, "CNIDeviceInfoFile": true },
        });
        let extra = extra.as_object().unwrap().clone();
        configuration.as_object_mut().unwrap().extend(extra);
        let call = Call::new(verb, &configuration).of(pod.name(), Some(&pod.path()), "net1");
        call.execute(&self.host)
    }

    /// Attaches a pod.
    fn add(&self, network: &str, pod: &Netns) -> Attached {
        let result = self.call("ADD", network, pod).result();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let interface = &result["interfaces"][0];
        let pci = text(&interface["pciID"]);
        let numbers = 0..self.card.count();
        let vf = numbers.into_iter().find(|vf| self.card.vf_address(*vf) == pci).unwrap();
        let address = text(&result["ips"][0]["address"]);
        let address = address.split('/').next().unwrap().to_owned();
        Attached { vf, mac: text(&interface["mac"]), address, result }
    }

    fn check(&self, network: &str, pod: &Netns, result: &Value) {
        let extra = json!({ "prevResult": result });
        self.call_with("CHECK", network, pod, &extra).nothing();
    }

    /// A VF in a namespace. `None`: it is not there.
    fn vf_in(&self, netns: &Netns, vf: usize) -> Option<Vf> {
        let address = self.card.vf_address(vf);
        let links = netns.json("ip", &["-d", "link", "show"]);
        let link = links.iter().find(|link| link["parentdev"] == address.as_str())?;
        Some(Vf {
            name: link["ifname"].as_str()?.to_owned(),
            mac: link["address"].as_str()?.to_owned(),
            mtu: link["mtu"].as_u64()?,
            is_up: link["flags"].as_array()?.iter().any(|flag| flag == "UP"),
        })
    }

    /// The VFs as they are on the host, and what the PF makes of them.
    fn all_on_host(&self) -> Vec<(Option<Vf>, Value)> {
        let vfs = 0..self.card.count();
        vfs.map(|vf| (self.vf_in(&self.host, vf), self.card.port(vf))).collect()
    }

    fn assert_becomes(&self, before: &[(Option<Vf>, Value)]) {
        let settled = eventually(LIMIT, || (self.all_on_host() == before).then_some(()));
        assert!(settled.is_some(), "{:#?}\ninstead of\n{before:#?}", self.all_on_host());
    }

    /// The agent dies, and what it knew of attachments is lost.
    fn lose_records(&mut self) {
        self.agent.crash();
        let state = self.folder.path().join("agent");
        for entry in fs::read_dir(state).unwrap() {
            let path = entry.unwrap().path();
            match path.file_name().unwrap().to_str().unwrap() {
                "vfs.json" => {}
                _ if path.is_dir() => fs::remove_dir_all(&path).unwrap(),
                _ => fs::remove_file(&path).unwrap(),
            }
        }
    }

    fn restart_agent(&mut self) {
        self.agent = start("host-shim-agent", "host-shim.toml", &self.host, &self.folder);
    }
}

/// The management link: without an eswitch there is nothing else.
fn plug_dpu(host: &Netns, dpu: &Netns) {
    dpu.ip(&["link", "set", "lo", "up"]);
    host.ip(&[
        "link",
        "add",
        "mgmt0",
        "type",
        "veth",
        "peer",
        "name",
        "mgmt0",
        "netns",
        dpu.name(),
    ]);
    for (netns, address) in [(host, "192.168.100.1/30"), (dpu, "192.168.100.2/30")] {
        netns.ip(&["address", "add", address, "dev", "mgmt0"]);
        netns.ip(&["link", "set", "mgmt0", "up"]);
    }
}

fn write_service_file(folder: &TempDir, pki: &Pki, vfs: usize) {
    let settings = Settings {
        has_eswitch: false,
        pool: u32::try_from(MOST_VFS).unwrap(),
        networks: NETWORKS.into(),
        cool_down: 0,
        ..Settings::default()
    };
    let text = settings.service_file(folder.path(), pki);
    let wish = format!("pfs = [\"p0\"]\nvfs = {{ p0 = {vfs} }}");
    let text = text.replace("pfs = [\"p0\"]", &wish);
    fs::write(folder.path().join("dpu-service.toml"), text).unwrap();
}

fn start(name: &'static str, file: &str, netns: &Netns, folder: &TempDir) -> Program {
    let configuration = folder.path().join(file);
    let arguments = ["--config".as_ref(), configuration.as_os_str()];
    let faults = folder.path().join("faults");
    Program::start(name, netns, folder.path(), arguments, &[("OFFLOAD_FAULTS", &faults)])
}

fn run_ok(program: &str, arguments: &[&str]) -> String {
    let output = run(Command::new(program).args(arguments));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

fn pings(pod: &Netns, address: &str) -> bool {
    let once = ["-n", "-q", "-c", "1", "-W", "2", address];
    run(pod.command("ping").args(once)).status.success()
}

#[track_caller]
fn assert_comes_to_ping(pod: &Netns, address: &str) {
    let reached = eventually(LIMIT, || pings(pod, address).then_some(()));
    assert!(reached.is_some(), "{} does not reach {address}", pod.name());
}

/// Pods get VFs by PCI address, reach each other through the card within their VLAN only, and give
/// the VFs back as they were; so does a namespace that ends with its VF inside.
#[test]
fn vfs_go_into_pods_and_come_back_as_they_were() {
    let lab = Lab::start(3);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    lab.assert_invariants(&clean);
    let (one, two, other) = (Netns::new("one"), Netns::new("two"), Netns::new("other"));
    let Attached { vf, mac, address, result } = lab.add("blue", &one);
    let its_address = lab.add("blue", &two).address;
    lab.add("green", &other);
    let expected = Vf { name: "net1".into(), mac: mac.clone(), mtu: 1400, is_up: true };
    assert_eq!(lab.vf_in(&one, vf), Some(expected));
    let port = lab.card.port(vf);
    assert_eq!(port["address"], mac.as_str(), "{port}");
    assert_eq!(port["vlan_list"][0]["vlan"], 100, "{port}");
    assert_eq!(port["spoofchk"], true, "{port}");
    lab.check("blue", &one, &result);
    lab.assert_invariants(&clean);
    assert_comes_to_ping(&one, &its_address);
    assert_comes_to_ping(&two, &address);
    other.ip(&["address", "add", "10.1.0.200/24", "dev", "net1"]);
    assert!(!pings(&other, &address), "another VLAN is another network");

    lab.call("DEL", "blue", &one).nothing();
    drop(two);
    lab.call("DEL", "green", &other).nothing();
    lab.assert_becomes(&before);
    lab.wait_for_free(3);
    lab.assert_invariants(&clean);
    for _ in 0..2 {
        lab.add("green", &one);
        lab.call("DEL", "green", &one).nothing();
    }
    lab.assert_becomes(&before);
}

/// A PF checks the senders' addresses where the network does not allow others, and can't do trunks.
#[test]
fn what_the_network_allows_the_pf_allows() {
    let lab = Lab::start(1);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    let pod = Netns::new("pod");
    let vf = lab.add("open", &pod).vf;
    assert_eq!(lab.card.port(vf)["spoofchk"], false);
    lab.assert_invariants(&clean);
    lab.call("DEL", "open", &pod).nothing();
    lab.assert_becomes(&before);

    let (_, refused) = lab.call("ADD", "trunked", &pod).error();
    assert!(refused.contains("a trunk of VLANs 300, 301 can't be done here"), "{refused}");
    lab.assert_becomes(&before);
    lab.wait_for_free(1);
}

/// A VF that comes home without a record of it gets back what it was like, and its PF holds it to
/// nothing any more.
#[test]
fn a_vf_that_nobody_has_a_record_of_is_free_of_its_pods_settings() {
    let mut lab = Lab::start(1);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    let pod = Netns::new("pod");
    let vf = lab.add("blue", &pod).vf;
    assert_eq!(lab.card.port(vf)["vlan_list"][0]["vlan"], 100);
    lab.lose_records();
    drop(pod);
    wait_for("the VF on the host", LIMIT, || lab.vf_in(&lab.host, vf));
    lab.restart_agent();
    lab.assert_becomes(&before);
    lab.wait_for_free(1);
    lab.assert_invariants(&clean);
}

/// The number of VFs follows the DPU's wish from 0 by 7 to 3, but never while one is in use.
#[test]
fn the_number_of_vfs_follows_the_dpus_wish() {
    let lab = Lab::start(7);
    let clean = lab.clean();
    let pod = Netns::new("pod");
    lab.add("blue", &pod);
    lab.want(3);
    let told = || lab.agent.log().contains("keeps its 7 VFs instead of 3");
    wait_for("the agent's word on a VF in use", LIMIT, || told().then_some(()));
    assert_eq!(lab.card.count(), 7);
    lab.assert_invariants(&clean);
    lab.call("DEL", "blue", &pod).nothing();
    lab.wait_for_free(3);
    let clean = lab.clean();
    lab.add("blue", &pod);
    lab.assert_invariants(&clean);
    lab.call("DEL", "blue", &pod).nothing();
    lab.wait_for_free(3);
    lab.assert_invariants(&clean);
}

/// A driver that is taken away and given back makes the netdev anew, on the host: the pod gets it
/// back as it was, whether the attach had come to its end or not.
#[test]
fn a_driver_rebound_in_the_middle_of_an_attach_costs_the_pod_nothing() {
    let mut lab = Lab::start(2);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    let (pod, peer) = (Netns::new("pod"), Netns::new("peer"));
    let its_address = lab.add("blue", &peer).address;
    fs::write(lab.folder.path().join("faults/kill-configure"), "").unwrap();
    let cut_short = lab.call("ADD", "blue", &pod);
    assert!(!cut_short.status.success(), "{cut_short:?}");
    wait_for("the agent's end", LIMIT, || lab.agent.ended());
    let vf = (0..2).find(|vf| lab.vf_in(&pod, *vf).is_some()).expect("the VF is in the pod");
    lab.card.rebind(vf);
    assert!(lab.vf_in(&pod, vf).is_none(), "its netdev is another one now");
    lab.restart_agent();
    let Attached { vf: again, mac, .. } = again(&lab, &pod);
    assert_eq!(again, vf);
    let expected = Vf { name: "net1".into(), mac, mtu: 1400, is_up: true };
    assert_eq!(lab.vf_in(&pod, vf).as_ref(), Some(&expected));
    lab.assert_invariants(&clean);
    assert_comes_to_ping(&pod, &its_address);

    lab.card.rebind(vf);
    let back =
        eventually(LIMIT, || (lab.vf_in(&pod, vf).as_ref() == Some(&expected)).then_some(()));
    assert!(back.is_some(), "{:?}", lab.vf_in(&pod, vf));
    lab.assert_invariants(&clean);
    assert_comes_to_ping(&pod, &its_address);
    for pod in [&pod, &peer] {
        lab.call("DEL", "blue", pod).nothing();
    }
    lab.assert_becomes(&before);
    lab.wait_for_free(2);
    lab.assert_invariants(&clean);
}

/// `dpuctl doctor` names a VF without a driver, and `--fix` finds it one: the VF is as it was, on the
/// host or in its pod.
#[test]
fn a_vf_without_a_driver_is_named_and_given_one() {
    let lab = Lab::start(2);
    let (before, clean) = (lab.all_on_host(), lab.clean());
    lab.card.keep_for(1, "nonesuch");
    lab.card.unbind(1);
    let unmended = lab.doctor(&["--fix"], "VF_UNBOUND");
    assert_eq!(unmended["state"], "DIFFERENCE_STATE_UNMENDED");
    let why = unmended["why"].as_str().unwrap();
    assert!(why.starts_with("driver nonesuch, which alone may have it, does not take"), "{why}");
    assert!(!unmended["advice"].as_str().unwrap().contains("--fix"), "{unmended}");
    lab.card.keep_for(1, "\n");
    assert_eq!(lab.doctor(&[], "VF_UNBOUND")["state"], "DIFFERENCE_STATE_FOUND");
    assert_eq!(lab.doctor(&["--fix"], "VF_UNBOUND")["state"], "DIFFERENCE_STATE_MENDED");
    lab.assert_becomes(&before);
    lab.wait_for_free(2);

    let pod = Netns::new("pod");
    let Attached { vf, mac, .. } = lab.add("blue", &pod);
    lab.card.unbind(vf);
    assert_eq!(lab.doctor(&["--fix"], "POD_VF_MISSING")["state"], "DIFFERENCE_STATE_MENDED");
    let expected = Vf { name: "net1".into(), mac, mtu: 1400, is_up: true };
    assert_eq!(lab.vf_in(&pod, vf), Some(expected));
    lab.assert_invariants(&clean);
    lab.call("DEL", "blue", &pod).nothing();
    lab.assert_becomes(&before);
}

/// A VF that a program is to drive itself has no link to move: the pod is told its address, and its
/// PF what the pod may do.
#[test]
fn a_vf_of_vfio_is_attached_as_a_device() {
    let lab = Lab::start(2);
    run_ok("modprobe", &["vfio-pci"]);
    let address = lab.card.vf_address(1);
    lab.card.bind(1, "vfio-pci");
    wait_for("a VF without a netdev that is free", LIMIT, || {
        (lab.is_free(&address) && lab.vf_in(&lab.host, 1).is_none()).then_some(())
    });
    let before = lab.card.port(1);
    let pod = Netns::new("pod");
    let machine = VirtualMachine::with(&lab.card, 1);
    let pinned = json!({ "runtimeConfig": { "deviceID": address } });
    drop(lab.call_with("ADD", "blue", &pod, &pinned).error());
    wait_for("a VF that is in use", LIMIT, || (!lab.is_free(&address)).then_some(()));
    drop(machine);
    wait_for("a VF that is free again", LIMIT, || lab.is_free(&address).then_some(()));
    let file = lab.folder.path().join("device.json");
    let wishes = json!({ "runtimeConfig": { "deviceID": address, "CNIDeviceInfoFile": file } });
    let result = lab.call_with("ADD", "blue", &pod, &wishes).result();
    let interface = &result["interfaces"][0];
    assert_eq!(interface["pciID"], address.as_str(), "{result}");
    assert!(lab.vf_in(&pod, 1).is_none() && lab.vf_in(&lab.host, 1).is_none());
    let device: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(device["pci"]["pci-address"], address.as_str(), "{device}");
    let port = lab.card.port(1);
    assert_eq!((&port["address"], &port["vlan_list"][0]["vlan"]), (&interface["mac"], &json!(100)));
    lab.check("blue", &pod, &result);
    lab.call_with("DEL", "blue", &pod, &wishes).nothing();
    assert!(!file.exists());
    assert_eq!(lab.card.port(1)["vlan_list"], before["vlan_list"]);
    lab.wait_for_free(2);
}

/// A program that has a VF open, as a virtual machine would.
struct VirtualMachine(Child);

impl VirtualMachine {
    /// It has the VF once it says so.
    fn with(card: &Card, vf: usize) -> Self {
        let address = card.vf_address(vf);
        let group = fs::read_link(card.pf.join(format!("virtfn{vf}/iommu_group"))).unwrap();
        let group = format!("/dev/vfio/{}", group.file_name().unwrap().to_str().unwrap());
        let mut command = Command::new("perl");
        command.args(["-e", OPEN_DEVICE, &group, &address]).stdin(Stdio::piped());
        let mut program = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(program.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "open\n");
        Self(program)
    }
}

impl Drop for VirtualMachine {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// VFIO_GROUP_SET_CONTAINER, VFIO_SET_IOMMU of type 1, VFIO_GROUP_GET_DEVICE_FD.
const OPEN_DEVICE: &str = r#"
my ($path, $address) = @ARGV;
open(my $container, '+<', '/dev/vfio/vfio') or die "container: $!";
open(my $group, '+<', $path) or die "group: $!";
my $number = pack('i', fileno($container));
ioctl($group, 0x3b68, $number) or die "set container: $!";
ioctl($container, 0x3b66, 1) or die "set IOMMU: $!";
my $device = "$address\0";
ioctl($group, 0x3b6a, $device) or die "get device: $!";
$| = 1;
print "open\n";
<STDIN>;
"#;

/// ADD until it succeeds, as a runtime repeats it: the agent has only just started.
fn again(lab: &Lab, pod: &Netns) -> Attached {
    let is_ready = || lab.call("ADD", "blue", pod).status.success().then_some(());
    wait_for("the attach", LIMIT, is_ready);
    lab.add("blue", pod)
}
