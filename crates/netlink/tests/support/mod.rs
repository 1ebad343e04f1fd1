//! Shared helpers of the namespace tests.
//!
//! Each test creates its own namespaces and checks them with `ip`, `bridge` and `tc`, so that an error in the crate's
//! encoder cannot be hidden by the same error in its decoder.
#![allow(dead_code, reason = "each test binary uses its part")]

use std::{
    path::PathBuf,
    process::Command,
    sync::mpsc::{Sender, channel},
    thread::JoinHandle,
};

use netlink::{Netns, Rtnl};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

/// A network namespace that lives as long as this value: a thread keeps it.
pub(crate) struct TestNetns {
    pub(crate) netns: Netns,
    thread: String,
    keeper: Option<(Sender<()>, JoinHandle<()>)>,
}

impl TestNetns {
    /// Creates an empty namespace. Panics without the privilege.
    pub(crate) fn new() -> Self {
        let (tell, reported) = channel();
        let (stop, stopped) = channel::<()>();
        let keeper = std::thread::spawn(move || {
            unshare(CloneFlags::CLONE_NEWNET).expect("these tests need `unshare -rn`");
            let thread = format!("/proc/{}/task/{}", nix::unistd::getpid(), nix::unistd::gettid());
            tell.send((Netns::current().unwrap(), thread)).unwrap();
            // The thread ends when the sender is dropped.
            let _ended = stopped.recv();
        });
        let (netns, thread) = reported.recv().unwrap();
        Self { netns, thread, keeper: Some((stop, keeper)) }
    }

    /// A path of the namespace.
    pub(crate) fn path(&self) -> PathBuf {
        PathBuf::from(format!("{}/ns/net", self.thread))
    }

    pub(crate) fn rtnl(&self) -> Rtnl {
        Rtnl::open_in(&self.netns).unwrap()
    }

    /// Runs a command inside, and returns what it prints. Panics if it fails.
    pub(crate) fn run(&self, command: &str) -> String {
        let mut words = command.split_whitespace();
        let mut process = Command::new(words.next().unwrap());
        process.args(words);
        let output = self.netns.run(|| process.output().unwrap()).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {errors}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command inside that prints JSON.
    pub(crate) fn json(&self, command: &str) -> Value {
        serde_json::from_str(&self.run(command)).unwrap_or(Value::Null)
    }

    /// A link as `ip -j -d link show` displays it. Panics if it does not exist.
    pub(crate) fn link(&self, name: &str) -> Value {
        self.json(&format!("ip -j -d link show dev {name}"))[0].clone()
    }

    /// The names of all links but `lo`, sorted.
    pub(crate) fn link_names(&self) -> Vec<String> {
        let links = self.json("ip -j link show");
        let names = links.as_array().unwrap().iter().map(|link| link["ifname"].as_str().unwrap());
        let mut names: Vec<_> = names.filter(|name| *name != "lo").map(str::to_owned).collect();
        names.sort();
        names
    }
}

impl Drop for TestNetns {
    fn drop(&mut self) {
        if let Some((stop, keeper)) = self.keeper.take() {
            drop(stop);
            keeper.join().unwrap();
        }
    }
}
