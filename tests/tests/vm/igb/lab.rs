//! A lab around the card: an agent that attaches its VFs, and a service.

use std::{collections::BTreeMap, fs, time::Duration};

use e2e::{
    Answer, Call, CardSettings, Enforcement, HostEnd, Kubelet, Netns, Operator, Pki, Program,
    Scene, Settings, eventually, wait_for,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::card::Card;

/// An emulated card's carrier takes seconds to come.
pub(super) const LIMIT: Duration = Duration::from_secs(90);
const MOST_VFS: usize = 7;
const NETWORKS: &str = r#"
[[network]]
name = "blue"
anti_spoofing = "mac"
vlan = 100
mtu = 1400
[[network.subnets]]
cidr = "10.1.0.0/24"
[[network]]
name = "green"
anti_spoofing = "mac"
vlan = 200
[[network.subnets]]
cidr = "10.2.0.0/24"
[[network]]
name = "open"
anti_spoofing = "off"
[[network.subnets]]
cidr = "10.3.0.0/24"
[[network]]
name = "trunked"
anti_spoofing = "mac"
trunk = [300, 301]
"#;

/// An igb card, its agent, and a service.
pub(super) struct Lab {
    pub(super) agent: Program,
    pub(super) _service: Program,
    pub(super) pki: Pki,
    pub(super) card: Card,
    pub(super) dpu: Netns,
    pub(super) host: Netns,
    pub(super) folder: TempDir,
    /// Further keys of the pool.
    pool: &'static str,
}

/// A pod's attachment.
pub(super) struct Attached {
    /// Number of the VF.
    pub(super) vf: usize,
    pub(super) mac: String,
    pub(super) address: String,
    /// Result of the ADD.
    pub(super) result: Value,
}

/// Baselines of the VFs by PCI address.
pub(super) struct Clean {
    ends: BTreeMap<String, HostEnd>,
    ports: BTreeMap<String, Value>,
}

/// State of a VF.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Vf {
    pub(super) name: String,
    pub(super) mac: String,
    pub(super) mtu: u64,
    pub(super) is_up: bool,
}

impl Lab {
    /// Starts everything with this number of VFs.
    pub(super) fn start(vfs: usize) -> Self {
        Self::with(vfs, "", "")
    }

    /// Starts everything with this number of VFs, which the kubelet assigns.
    pub(super) fn of_kubelet(vfs: usize, kubelet: &Kubelet) -> Self {
        Self::with(vfs, "pinned_only = true\n", &kubelet.section())
    }

    /// `pool`: further keys of the pool. `agent`: further sections of the agent's configuration.
    fn with(vfs: usize, pool: &'static str, agent: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("igb-").tempdir().unwrap();
        let path = folder.path();
        let card = Card::new();
        let (host, dpu) = (Netns::of_this_process("host"), Netns::new("dpu"));
        plug_dpu(&host, &dpu);
        let pki = Pki::make(path.join("pki"));
        fs::write(path.join("boot-id"), "7d0c4ae0-0000-4000-8000-000000000001\n").unwrap();
        fs::create_dir(path.join("faults")).unwrap();
        write_service_file(&folder, &pki, vfs, pool);
        let settings = Settings::default().agent_file(path, &pki);
        let pci = format!(
            "kind = \"pci\"\nmode = \"legacy\"\npfs = [{{ address = \"{}\" }}]",
            card.address()
        );
        let settings = settings.replace("kind = \"virtual\"", &pci) + "\n" + agent;
        fs::write(path.join("host-shim.toml"), settings).unwrap();
        let service = start("dpu-service", "dpu-service.toml", &dpu, &folder);
        let agent = start("host-shim-agent", "host-shim.toml", &host, &folder);
        let lab = Self { agent, _service: service, pki, card, dpu, host, folder, pool };
        lab.wait_for_free(vfs);
        lab
    }

    pub(super) fn want(&self, vfs: usize) {
        write_service_file(&self.folder, &self.pki, vfs, self.pool);
    }

    /// Waits until the card has this number of VFs and all are free on the DPU.
    pub(super) fn wait_for_free(&self, vfs: usize) {
        wait_for("free VFs", LIMIT, || {
            (self.card.count() == vfs && self.free() == vfs).then_some(())
        });
    }

    pub(super) fn free(&self) -> usize {
        self.free_vfs().len()
    }

    pub(super) fn is_free(&self, address: &str) -> bool {
        self.free_vfs().iter().any(|vf| vf["vf"]["device"] == address)
    }

    pub(super) fn free_vfs(&self) -> Vec<Value> {
        let listed = self.operator().dpuctl(&["get", "vfs", "-o", "json"]).stdout;
        let list: Value = serde_json::from_slice(&listed).unwrap_or_default();
        let mut vfs = list["vfs"].as_array().cloned().unwrap_or_default();
        vfs.retain(|vf| vf["state"] == "VF_STATE_FREE");
        vfs
    }

    pub(super) fn operator(&self) -> Operator<'_> {
        let configuration = self.folder.path().join("dpuctl.toml");
        let tls = self.pki.section("operator", "admin");
        let text = format!("endpoint = \"192.168.100.2:7443\"\ndpu = \"dpu-1\"\n{tls}");
        fs::write(&configuration, text).unwrap();
        Operator::new(&self.host, configuration)
    }

    /// The finding of `dpuctl doctor` with this code.
    #[track_caller]
    pub(super) fn doctor(&self, arguments: &[&str], code: &str) -> Value {
        let all = [&["doctor", "-o", "json", "--timeout", "60"], arguments].concat();
        let reported = self.operator().dpuctl(&all).stdout;
        let diagnosis: Value = serde_json::from_slice(&reported).unwrap();
        let mut found = diagnosis["findings"].as_array().unwrap().iter();
        let found = found.find(|found| found["code"] == code);
        found.unwrap_or_else(|| panic!("no {code} in {diagnosis:#}")).clone()
    }

    /// Asserts the five invariants with these baselines.
    pub(super) fn assert_invariants(&self, clean: &Clean) {
        let now = || self.card.ports();
        let scene = Scene {
            host: &self.host,
            not_pods: vec![&self.host, &self.dpu],
            pods: None,
            clean: &clean.ends,
            operator: self.operator(),
            enforcement: Enforcement::Pfs { clean: &clean.ports, now: Box::new(now) },
        };
        scene.assert_invariants();
    }

    /// Baselines of the VFs, read now.
    pub(super) fn clean(&self) -> Clean {
        let ports = self.card.ports();
        let mut ends = e2e::Card::ends_in(&self.host);
        ends.retain(|pci, _| ports.contains_key(pci));
        Clean { ends, ports }
    }

    pub(super) fn call(&self, verb: &str, network: &str, pod: &Netns) -> Answer {
        self.call_with(verb, network, pod, &json!({}))
    }

    /// A call with further keys in its configuration.
    pub(super) fn call_with(
        &self,
        verb: &str,
        network: &str,
        pod: &Netns,
        extra: &Value,
    ) -> Answer {
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
    pub(super) fn add(&self, network: &str, pod: &Netns) -> Attached {
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

    pub(super) fn check(&self, network: &str, pod: &Netns, result: &Value) {
        let extra = json!({ "prevResult": result });
        self.call_with("CHECK", network, pod, &extra).nothing();
    }

    /// A VF in a namespace. `None`: it is not there.
    pub(super) fn vf_in(&self, netns: &Netns, vf: usize) -> Option<Vf> {
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

    /// States of the VFs on the host, with the PF's settings.
    pub(super) fn all_on_host(&self) -> Vec<(Option<Vf>, Value)> {
        let vfs = 0..self.card.count();
        vfs.map(|vf| (self.vf_in(&self.host, vf), self.card.port(vf))).collect()
    }

    pub(super) fn assert_becomes(&self, before: &[(Option<Vf>, Value)]) {
        let settled = eventually(LIMIT, || (self.all_on_host() == before).then_some(()));
        assert!(settled.is_some(), "{:#?}\ninstead of\n{before:#?}", self.all_on_host());
    }

    /// Kills the agent and deletes its records.
    pub(super) fn lose_records(&mut self) {
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

    pub(super) fn restart_agent(&mut self) {
        self.agent = start("host-shim-agent", "host-shim.toml", &self.host, &self.folder);
    }
}

/// Creates the management link, the only link without an eswitch.
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

fn write_service_file(folder: &TempDir, pki: &Pki, vfs: usize, pool: &str) {
    let settings = Settings {
        card: CardSettings { has_eswitch: false, ..CardSettings::default() },
        pool: u32::try_from(MOST_VFS).unwrap(),
        networks: NETWORKS.into(),
        service: pool.into(),
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
