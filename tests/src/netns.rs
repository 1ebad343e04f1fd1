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

/// A network namespace of its own name, deleted when dropped, unless another program made it.
#[derive(Debug)]
pub struct Netns {
    name: String,
    is_ours: bool,
}

impl Netns {
    /// Makes one with `lo` down, as a runtime does. `label` is for people.
    ///
    /// # Panics
    /// When `ip netns add` fails.
    #[must_use]
    pub fn new(label: &str) -> Self {
        let netns = Self::named(label);
        netns.succeed(Command::new("ip").args(["netns", "add", &netns.name]));
        netns
    }

    /// Gives the namespace of this process a name, which it loses when dropped.
    ///
    /// # Panics
    /// When `ip netns attach` fails.
    #[must_use]
    pub fn of_this_process(label: &str) -> Self {
        let netns = Self::named(label);
        let process = std::process::id().to_string();
        netns.succeed(Command::new("ip").args(["netns", "attach", &netns.name, &process]));
        netns
    }

    /// One that another program made, and deletes.
    pub(crate) fn existing(name: &str) -> Self {
        Self { name: name.to_owned(), is_ours: false }
    }

    fn named(label: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { name: format!("{label}-{}-{number}", std::process::id()), is_ours: true }
    }

    /// Its name, as `ip netns` knows it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The path that a runtime passes in `CNI_NETNS`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path_of(&self.name)
    }

    /// Its handle for the programs' own netlink library, which does not keep the name.
    ///
    /// # Panics
    /// When there is no such namespace.
    #[must_use]
    pub fn open(&self) -> netlink::Netns {
        let opened = netlink::Netns::open(&self.path());
        opened.unwrap_or_else(|error| panic!("open {}: {error}", self.name))
    }

    /// Does `work` inside, on the calling thread. It must start no thread, which would stay inside.
    ///
    /// # Panics
    /// When the thread cannot enter.
    pub fn run<T>(&self, work: impl FnOnce() -> T) -> T {
        let done = self.open().run(work);
        done.unwrap_or_else(|error| panic!("enter {}: {error}", self.name))
    }

    /// A command that runs inside.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        Self::command_in(&self.name, program)
    }

    /// A command that runs inside the namespace of that name.
    pub(crate) fn command_in(name: &str, program: impl AsRef<OsStr>) -> Command {
        netlink::Netns::command(&path_of(name), program).expect("a name")
    }

    /// What a tool of iproute2 prints as JSON: `netns.json("ip", &["link"])`.
    ///
    /// # Panics
    /// When the tool fails or prints no JSON.
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
    /// When it fails.
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

/// As `ip netns delete` does.
impl Drop for Netns {
    fn drop(&mut self) {
        if self.is_ours {
            // A test may have deleted it already.
            let _ = umount2(&self.path(), MntFlags::MNT_DETACH);
            let _ = fs::remove_file(self.path());
        }
    }
}

/// Where namespaces have names.
pub(crate) const NAMES: &str = "/run/netns";

fn path_of(name: &str) -> PathBuf {
    Path::new(NAMES).join(name)
}
