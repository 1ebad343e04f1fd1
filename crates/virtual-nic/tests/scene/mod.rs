//! A card as a process, and its namespaces.
#![allow(dead_code, reason = "each test binary uses its part")]

#[path = "../../../netlink/tests/support/mod.rs"]
pub(crate) mod support;

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Output, Stdio},
    sync::Arc,
    thread,
};

use netlink::LinkChange;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use parking_lot::Mutex;
use serde_json::Value;
use support::TestNetns;
use test_clock::wait_until;

/// Namespaces of a host and a DPU.
pub(crate) struct Scene {
    kind: &'static str,
    pub(crate) host: TestNetns,
    pub(crate) dpu: TestNetns,
}

/// A plugged-in card with its log.
pub(crate) struct Card {
    process: Child,
    log: Arc<Mutex<String>>,
}

impl Scene {
    /// Two empty namespaces for cards of this kind.
    pub(crate) fn of_kind(kind: &'static str) -> Self {
        Self { kind, host: TestNetns::new(), dpu: TestNetns::new() }
    }

    pub(crate) fn new() -> Self {
        Self::of_kind("veth")
    }

    pub(crate) fn command(&self, command: &str) -> Command {
        let mut process = Command::new(env!("CARGO_BIN_EXE_virtual-nic"));
        process.arg(command);
        process.arg("--host-netns").arg(self.host.path());
        process.arg("--dpu-netns").arg(self.dpu.path());
        process
    }

    /// Plugs in a card and waits until it is ready.
    pub(crate) fn plug(&self, arguments: &str) -> Card {
        let mut process = self.command("plug");
        process
            .args(["--kind", self.kind])
            .args(arguments.split_whitespace())
            .env("DPU_OFFLOAD_LOG", "debug");
        let mut child = process.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (errors, kept) = (child.stderr.take().unwrap(), Arc::clone(&log));
        thread::spawn(move || {
            for line in BufReader::new(errors).lines().map_while(Result::ok) {
                kept.lock().push_str(&(line + "\n"));
            }
        });
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("plugged "), "{line:?}");
        Card { process: child, log }
    }

    /// Tries to plug in a card, which must fail, and returns the error.
    pub(crate) fn refusal(&self, arguments: &str) -> String {
        let mut process = self.command("plug");
        process.args(["--kind", self.kind]).args(arguments.split_whitespace());
        let Output { status, stderr, .. } = process.output().unwrap();
        assert_eq!(status.code(), Some(1));
        String::from_utf8(stderr).unwrap()
    }

    pub(crate) fn assert_empty(&self) {
        assert_eq!(self.host.link_names(), Vec::<String>::new());
        assert_eq!(self.dpu.link_names(), Vec::<String>::new());
    }

    /// Moves a VF into a pod under a new name, and waits until the card has read it there.
    pub(crate) fn give(&self, card: &Card, vf: &str, pod: &TestNetns, name: &str) {
        card.log.lock().clear();
        let mut host = self.host.rtnl();
        let index = host.link_by_name(vf).unwrap().unwrap().index;
        host.change_link(index, &LinkChange::new().netns(&pod.netns).name(name)).unwrap();
        let seen = format!("\"name\":\"{name}\"");
        wait_until("the card sees the VF in the pod", || card.log.lock().contains(&seen));
    }

    /// Waits for the VF with this PCI address on the host.
    pub(crate) fn vf(&self, pci: &str) -> Value {
        let mut found = Value::Null;
        let alias = format!("virtual-nic {pci} ");
        wait_until("the VF is back", || {
            let links = self.host.json("ip -j -d addr show");
            let is_it = |link: &&Value| {
                link["ifalias"].as_str().is_some_and(|shown| shown.starts_with(&alias))
            };
            found = links.as_array().unwrap().iter().find(is_it).cloned().unwrap_or_default();
            !found.is_null()
        });
        found
    }
}

impl Card {
    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    pub(crate) fn pull(mut self) {
        self.signal(Signal::SIGTERM);
        assert_eq!(self.process.wait().unwrap().code(), Some(0));
    }

    pub(crate) fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.process.wait().unwrap();
    }
}

impl Drop for Card {
    #[expect(clippy::print_stdout, reason = "the test harness shows it")]
    fn drop(&mut self) {
        if thread::panicking() {
            println!("the card said:\n{}", self.log.lock());
        }
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

pub(crate) fn flags(link: &Value) -> String {
    link["flags"].to_string()
}
