//! A node: a lab with a runtime and pods.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

use super::{Conversation, Kind, Runtime};
use crate::{Lab, Netns, Scene, Settings, run};

/// A lab and a runtime on its host.
#[expect(missing_debug_implementations, reason = "runtimes differ")]
pub struct Node {
    /// The runtime. It is dropped first.
    pub runtime: Box<dyn Runtime>,
    /// Card, service and agent.
    pub lab: Lab,
}

/// What `ip` shows of a pod's interface.
#[derive(Debug)]
pub struct Inside {
    /// The alias, which contains the VF's PCI address.
    pub alias: String,
    /// Global addresses, IPv4 first, without prefix lengths.
    pub addresses: Vec<String>,
}

impl Node {
    /// Starts everything.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn start(kind: Kind, settings: &Settings) -> Self {
        Self::on(kind, Lab::start(settings))
    }

    /// Sets the runtime up on a lab's host.
    ///
    /// # Panics
    /// If it does not come up.
    #[must_use]
    pub fn on(kind: Kind, lab: Lab) -> Self {
        Self { runtime: kind.install(&lab), lab }
    }

    /// Runs a pod and returns its ID.
    ///
    /// # Panics
    /// If the runtime fails.
    #[must_use]
    pub fn run(&self, name: &str) -> String {
        self.runtime.run(name).unwrap_or_else(|complaint| panic!("{name}: {complaint}"))
    }

    /// Removes a pod.
    ///
    /// # Panics
    /// If the runtime fails.
    pub fn remove(&self, id: &str) {
        self.runtime.remove(id).unwrap_or_else(|complaint| panic!("{id}: {complaint}"));
    }

    /// Removes all pods that the runtime knows, in whatever state.
    pub fn remove_all(&self) {
        for id in self.runtime.ids() {
            self.remove(&id);
        }
    }

    /// A pod's `eth0` in the output of `ip`.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn inside(&self, id: &str) -> Inside {
        let links = self.in_pod(id, &["ip", "-d", "-j", "address", "show", "dev", "eth0"]);
        let links: Vec<Value> = serde_json::from_str(&links).unwrap();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let addresses = links[0]["addr_info"].as_array().into_iter().flatten();
        let global = addresses.filter(|address| address["scope"] == "global");
        Inside {
            alias: text(&links[0]["ifalias"]),
            addresses: global.map(|address| text(&address["local"])).collect(),
        }
    }

    /// Asserts that one pod reaches the other's addresses of both families, by echo requests and TCP.
    ///
    /// # Panics
    /// If it does not.
    pub fn assert_reaches(&self, from: &str, to: &str) {
        let addresses = self.inside(to).addresses;
        for address in &addresses {
            self.in_pod(from, &["ping", "-n", "-q", "-c", "2", "-i", "0.02", "-W", "5", address]);
        }
        let _ = self.connect(from, to);
    }

    /// Connects one pod to the other's addresses of both families.
    ///
    /// # Panics
    /// If a connection fails.
    #[must_use]
    pub fn connect(&self, from: &str, to: &str) -> Vec<Conversation> {
        let addresses = self.inside(to).addresses;
        assert_eq!(addresses.len(), 2, "{addresses:?}");
        let [from, to] = [from, to].map(|id| self.netns(id));
        addresses.iter().map(|address| Conversation::begin(&from, &to, address)).collect()
    }

    /// The name of a pod's network namespace.
    ///
    /// # Panics
    /// If it has none.
    #[must_use]
    pub fn netns(&self, id: &str) -> String {
        self.runtime.netns(id).unwrap_or_else(|| panic!("{id} has no netns"))
    }

    fn in_pod(&self, id: &str, command: &[&str]) -> String {
        let netns = self.netns(id);
        let output = run(Netns::command_in(&netns, command[0]).args(&command[1..]));
        assert!(output.status.success(), "{command:?} in {netns}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Deletes a pod's network namespace.
    ///
    /// # Panics
    /// If there is none.
    pub fn delete_netns(&self, id: &str) {
        let netns = self.netns(id);
        let output = run(Command::new("ip").args(["netns", "delete", &netns]));
        assert!(output.status.success(), "{output:?}");
    }

    /// Asserts the five invariants after waiting for background work.
    ///
    /// # Panics
    /// If one is still broken, naming each breach.
    pub fn assert_invariants(&self) {
        self.scene().assert_invariants();
    }

    /// Asserts the invariants, that nothing is attached and that the runtime has no pods.
    ///
    /// # Panics
    /// If something is left.
    pub fn assert_clean_slate(&self) {
        let left = self.runtime.ids();
        assert!(left.is_empty(), "{left:?}");
        self.scene().assert_clean_slate();
    }

    /// The lab's scene with the runtime's pods instead of the test's.
    fn scene(&self) -> Scene<'_> {
        let pods = || -> BTreeMap<String, String> {
            let ids = self.runtime.ids().into_iter();
            ids.filter_map(|id| Some((self.runtime.netns(&id)?, id))).collect()
        };
        Scene { pods: Some(Box::new(pods)), ..self.lab.scene() }
    }
}
