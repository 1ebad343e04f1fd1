//! Named network namespaces, made and read by the `ip` program.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::mount::{MntFlags, umount2};
use serde_json::Value;

use crate::command::run;

/// A named network namespace. It is deleted on drop, unless another program created it.
#[derive(Debug)]
pub struct Netns {
    name: String,
    is_ours: bool,
}

impl Netns {
    /// Creates a namespace with `lo` down, as a runtime does. `label` is for display.
    ///
    /// # Panics
    /// If `ip netns add` fails.
    #[must_use]
    pub fn new(label: &str) -> Self {
        let netns = Self::named(label);
        netns.succeed(Command::new("ip").args(["netns", "add", &netns.name]));
        netns
    }

    /// Names the namespace of this process until drop.
    ///
    /// # Panics
    /// If `ip netns attach` fails.
    #[must_use]
    pub fn of_this_process(label: &str) -> Self {
        let netns = Self::named(label);
        let process = std::process::id().to_string();
        netns.succeed(Command::new("ip").args(["netns", "attach", &netns.name, &process]));
        netns
    }

    /// A namespace that another program created and deletes.
    pub(crate) fn existing(name: &str) -> Self {
        Self { name: name.to_owned(), is_ours: false }
    }

    fn named(label: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("{label}-{}-{number}", std::process::id()), is_ours: true }
    }

    /// Name in `ip netns`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Path that a runtime passes in `CNI_NETNS`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.name)
    }

    /// Opens the namespace with the product's netlink library.
    ///
    /// # Panics
    /// If there is no such namespace.
    #[must_use]
    pub fn open(&self) -> netlink::Netns {
        let opened = netlink::Netns::open(&self.path());
        opened.unwrap_or_else(|error| panic!("open {}: {error}", self.name))
    }

    /// Runs `work` inside on the calling thread. `work` must not start a thread: it would stay inside.
    ///
    /// # Panics
    /// If the thread cannot enter.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let done = self.open().run(work);
        done.unwrap_or_else(|error| panic!("enter {}: {error}", self.name))
    }

    /// A command that runs inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Self::command_in(&self.name, program)
    }

    /// A command that runs inside a named namespace.
    pub(crate) fn command_in(name: &str, program: impl AsRef<OsStr>) -> Command {
        netlink::Netns::command(&path_of(name), program).expect("a name")
    }

    /// The JSON output of an iproute2 tool: `netns.json("ip", &["link"])`.
    ///
    /// # Panics
    /// If the tool fails or prints no JSON.
    #[must_use]
    pub fn json(&self, tool: &str, arguments: &[&str]) -> Vec<Value> {
        let text = self.succeed(self.command(tool).arg("-j").args(arguments));
        if text.trim().is_empty() {
            return Vec::new();
        }
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{tool} {arguments:?}: {error}"))
    }

    /// Runs `ip` inside.
    ///
    /// # Panics
    /// If it fails.
    pub fn ip(&self, arguments: &[&str]) -> String {
        self.succeed(self.command("ip").args(arguments))
    }

    /// Whether `address` answers three of three echo requests.
    #[must_use]
    pub fn pings(&self, address: &str) -> bool {
        let arguments = ["-n", "-q", "-c", "3", "-i", "0.02", "-W", "2", address];
        run(self.command("ping").args(arguments)).status.success()
    }

    fn succeed(&self, command: &mut Command) -> String {
        let output = run(command);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "in {}: {command:?}: {error}", self.name);
        String::from_utf8(output.stdout).expect("UTF-8")
    }
}

/// Deletes the namespace like `ip netns delete`.
impl Drop for Netns {
    fn drop(&mut self) {
        if self.is_ours {
            // A test may have deleted it already.
            let _ = umount2(&self.path(), MntFlags::MNT_DETACH);
            let _ = fs::remove_file(self.path());
        }
    }
}

/// Folder of named namespaces.
pub(crate) const NAMES: &str = "/run/netns";

fn path_of(name: &str) -> PathBuf {
    Path::new(NAMES).join(name)
}
