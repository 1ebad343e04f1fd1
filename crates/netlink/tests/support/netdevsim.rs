//! A netdevsim card, for tests on a kernel that has it.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{fs, io::ErrorKind, path::PathBuf};

use crate::support::TestNetns;

const BUS: &str = "/sys/bus/netdevsim";

/// A card in a test's namespace, which is taken out when this goes.
pub(crate) struct Netdevsim {
    number: u32,
}

impl Netdevsim {
    /// Plugs in a card with one port to the wire and `vfs` VFs. Its eswitch is in legacy mode.
    pub(crate) fn plug(netns: &TestNetns, vfs: u32) -> Self {
        let numbers = std::process::id() % 10_000..u32::MAX;
        let card = numbers
            .map(|number| Self { number })
            .find(|card| netns.netns.run(|| card.make()).unwrap())
            .expect("no number is free");
        fs::write(card.folder().join("sriov_numvfs"), vfs.to_string()).unwrap();
        card
    }

    /// Whether its number was free. Made in the calling thread's namespace.
    fn make(&self) -> bool {
        match fs::write(format!("{BUS}/new_device"), format!("{} 1 4", self.number)) {
            Ok(()) => true,
            Err(error) if error.raw_os_error() == Some(nix::libc::EEXIST) => false,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                panic!("this kernel has no netdevsim: run it by hack/vm")
            }
            Err(error) => panic!("netdevsim: {error}"),
        }
    }

    /// Its name for `devlink`.
    pub(crate) fn device(&self) -> String {
        format!("netdevsim/netdevsim{}", self.number)
    }

    pub(crate) fn folder(&self) -> PathBuf {
        format!("{BUS}/devices/netdevsim{}", self.number).into()
    }

    /// Turns a knob of the driver's.
    pub(crate) fn set_knob(&self, knob: &str, value: &str) {
        let path = format!("/sys/kernel/debug/netdevsim/netdevsim{}/{knob}", self.number);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

impl Drop for Netdevsim {
    fn drop(&mut self) {
        fs::write(format!("{BUS}/del_device"), self.number.to_string()).unwrap();
    }
}
