//! A netdevsim card, for kernels that have it.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{fs, io::ErrorKind};

use crate::support::TestNetns;

const BUS: &str = "/sys/bus/netdevsim";

/// A parameter of hack/vm.d/switchdevsim for all cards.
const TAKES_TRAP: &str = "/sys/module/switchdevsim/parameters/takes_trap";

/// A card in a test's namespace. It is removed on drop, before the namespace.
pub(crate) struct Netdevsim {
    number: u32,
}

impl Netdevsim {
    /// Plugs in a card with one physical port and `vfs` VFs. Its eswitch is in legacy mode.
    pub(crate) fn plug(netns: &TestNetns, vfs: u32) -> Self {
        let mut numbers = std::process::id() % 10_000..u32::MAX;
        let number = numbers.find(|number| netns.netns.run(|| make(*number)).unwrap());
        let card = Self { number: number.expect("no number is free") };
        card.set_vfs(vfs);
        card
    }

    /// Creates VFs. The card must have none, for example after a reset.
    pub(crate) fn set_vfs(&self, vfs: u32) {
        let path = format!("{BUS}/devices/netdevsim{}/sriov_numvfs", self.number);
        fs::write(path, vfs.to_string()).unwrap();
    }

    /// Name of the card for `devlink`.
    pub(crate) fn device(&self) -> String {
        format!("netdevsim/netdevsim{}", self.number)
    }

    /// Sets a parameter of the driver.
    pub(crate) fn set_knob(&self, knob: &str, value: &str) {
        let path = format!("/sys/kernel/debug/netdevsim/netdevsim{}/{knob}", self.number);
        fs::write(&path, value).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// While this exists, no card accepts filters that trap frames to the kernel.
pub(crate) struct WithoutTrap(());

impl WithoutTrap {
    pub(crate) fn new() -> Self {
        let refused = fs::write(TAKES_TRAP, "N");
        refused.unwrap_or_else(|error| panic!("{TAKES_TRAP}: {error}"));
        Self(())
    }
}

impl Drop for WithoutTrap {
    fn drop(&mut self) {
        let taken = fs::write(TAKES_TRAP, "Y");
        assert!(taken.is_ok() || std::thread::panicking(), "{taken:?}");
    }
}

/// Creates a card in the calling thread's namespace. `false`: the number is taken.
fn make(number: u32) -> bool {
    match fs::write(format!("{BUS}/new_device"), format!("{number} 1 4")) {
        Ok(()) => true,
        Err(error) if error.raw_os_error() == Some(nix::libc::ENOSPC) => false,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            panic!("this kernel has no netdevsim: run it by hack/vm")
        }
        Err(error) => panic!("netdevsim: {error}"),
    }
}

impl Drop for Netdevsim {
    fn drop(&mut self) {
        let taken_out = fs::write(format!("{BUS}/del_device"), self.number.to_string());
        assert!(taken_out.is_ok() || std::thread::panicking(), "{taken_out:?}");
    }
}
