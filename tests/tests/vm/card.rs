//! The simulated card of a lab in `devlink`, sysfs and debugfs.

use std::{fs, process::Output};

use e2e::{Lab, run};
use serde_json::Value;

/// A parameter of hack/vm.d/switchdevsim for all cards.
const TAKES_TRAP: &str = "/sys/module/switchdevsim/parameters/takes_trap";

/// While this exists, no card accepts filters that trap frames to the kernel.
pub(crate) struct WithoutTrap(());

impl WithoutTrap {
    pub(crate) fn new() -> Self {
        fs::write(TAKES_TRAP, "N").unwrap();
        Self(())
    }
}

impl Drop for WithoutTrap {
    fn drop(&mut self) {
        let taken = fs::write(TAKES_TRAP, "Y");
        assert!(taken.is_ok() || std::thread::panicking(), "{taken:?}");
    }
}

/// The card's device, handled with user tools.
pub(crate) struct Device<'a> {
    lab: &'a Lab,
    name: String,
}

impl<'a> Device<'a> {
    pub(crate) fn of(lab: &'a Lab) -> Self {
        let representors = lab.card.representors();
        let name = representors[0]["parentdev"].as_str().unwrap().to_owned();
        Self { lab, name }
    }

    fn devlink(&self, arguments: &[&str]) -> Output {
        run(self.lab.card.dpu.command("devlink").args(arguments))
    }

    /// Name for `devlink`.
    pub(crate) fn handle(&self) -> String {
        format!("netdevsim/{}", self.name)
    }

    /// Rates of the limited ports.
    pub(crate) fn rates(&self) -> Vec<Value> {
        let output = self.devlink(&["-j", "port", "function", "rate", "show"]);
        let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
        let rates = shown["rate"].as_object().into_iter().flatten();
        let of_card = rates.filter(|(port, _)| port.starts_with(&self.handle()));
        of_card.map(|(_, rate)| rate.clone()).filter(|rate| rate["tx_max"].is_number()).collect()
    }

    /// Sets the eswitch mode. Representors exist in mode `switchdev` only.
    pub(crate) fn set_mode(&self, mode: &str) {
        let output = self.devlink(&["dev", "eswitch", "set", &self.handle(), "mode", mode]);
        assert!(output.status.success(), "{output:?}");
    }

    /// Restarts the driver without VFs. Returns whether it could.
    pub(crate) fn reload(&self) -> bool {
        self.devlink(&["dev", "reload", &self.handle()]).status.success()
    }

    /// Sets a debugfs parameter.
    pub(crate) fn turn(&self, knob: &str, value: &str) {
        fs::write(format!("/sys/kernel/debug/netdevsim/{}/{knob}", self.name), value).unwrap();
    }

    pub(crate) fn make_vfs(&self, count: u32) {
        let path = format!("/sys/bus/netdevsim/devices/{}/sriov_numvfs", self.name);
        fs::write(path, count.to_string()).unwrap();
    }
}
