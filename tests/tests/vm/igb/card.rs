//! The card: a PF with a changing number of VFs.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command};

use e2e::run;
use serde_json::Value;

/// The first igb card. Its VFs are removed on drop.
pub(super) struct Card {
    pub(super) pf: PathBuf,
}

impl Card {
    pub(super) fn new() -> Self {
        let devices = fs::read_dir("/sys/bus/pci/devices").unwrap();
        let mut pfs: Vec<_> = devices.map(|entry| entry.unwrap().path()).collect();
        pfs.retain(|device| device.join("sriov_totalvfs").exists());
        pfs.sort();
        let card = Self { pf: pfs.first().expect("hack/vm has igb cards").clone() };
        card.set("sriov_numvfs", "0");
        run_ok("ip", &["link", "set", &card.netdev(), "up"]);
        card
    }

    pub(super) fn set(&self, file: &str, value: &str) {
        fs::write(self.pf.join(file), value).unwrap();
    }

    pub(super) fn address(&self) -> String {
        self.pf.file_name().unwrap().to_str().unwrap().to_owned()
    }

    pub(super) fn netdev(&self) -> String {
        let name = fs::read_dir(self.pf.join("net")).unwrap().next().unwrap().unwrap();
        name.file_name().into_string().unwrap()
    }

    pub(super) fn count(&self) -> usize {
        fs::read_to_string(self.pf.join("sriov_numvfs")).unwrap().trim().parse().unwrap()
    }

    pub(super) fn vf_address(&self, vf: usize) -> String {
        let link = fs::read_link(self.pf.join(format!("virtfn{vf}"))).unwrap();
        link.file_name().unwrap().to_str().unwrap().to_owned()
    }

    /// The PF's settings for a VF, as in `ip`.
    pub(super) fn port(&self, vf: usize) -> Value {
        let shown = run_ok("ip", &["-j", "link", "show", &self.netdev()]);
        let links: Value = serde_json::from_str(&shown).unwrap();
        links[0]["vfinfo_list"][vf].clone()
    }

    /// The PF's settings for all VFs, by PCI address.
    pub(super) fn ports(&self) -> BTreeMap<String, Value> {
        (0..self.count()).map(|vf| (self.vf_address(vf), self.port(vf))).collect()
    }

    /// Unbinds the VF's driver and binds it again.
    pub(super) fn rebind(&self, vf: usize) {
        self.bind(vf, "igbvf");
    }

    /// Unbinds the VF's driver and binds this one.
    pub(super) fn bind(&self, vf: usize, driver: &str) {
        self.unbind(vf);
        self.keep_for(vf, driver);
        fs::write("/sys/bus/pci/drivers_probe", self.vf_address(vf)).unwrap();
    }

    pub(super) fn device(&self, vf: usize) -> PathBuf {
        self.pf.parent().unwrap().join(self.vf_address(vf))
    }

    pub(super) fn unbind(&self, vf: usize) {
        fs::write(self.device(vf).join("driver/unbind"), self.vf_address(vf)).unwrap();
    }

    /// Sets `driver_override` of the VF. A newline clears it.
    pub(super) fn keep_for(&self, vf: usize, driver: &str) {
        fs::write(self.device(vf).join("driver_override"), driver).unwrap();
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let _ = fs::write(self.pf.join("sriov_numvfs"), "0");
    }
}

pub(super) fn run_ok(program: &str, arguments: &[&str]) -> String {
    let output = run(Command::new(program).args(arguments));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{program} {arguments:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}
