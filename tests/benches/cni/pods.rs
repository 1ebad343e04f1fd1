//! The product's pods: CNI calls from exec to exit.

use std::{
    io::Write,
    process::{Command, Stdio},
};

use e2e::{Host, Netns, program};
use serde_json::json;

use crate::turns::Network;

/// Pods that are attached to the network `blue` and detached.
pub(crate) struct Pods<'a> {
    host: &'a Host,
    pods: Vec<Netns>,
    /// The addresses that each pod asks for.
    addresses: fn(usize) -> Vec<String>,
    /// The additional networks that each pod asks for.
    networks: Vec<String>,
}

impl<'a> Pods<'a> {
    pub(crate) fn new(host: &'a Host, count: usize) -> Self {
        Self::asking_for(host, count, |_| Vec::new())
    }

    /// Pods that ask for addresses.
    pub(crate) fn asking_for(
        host: &'a Host,
        count: usize,
        addresses: fn(usize) -> Vec<String>,
    ) -> Self {
        let pods = (0..count).map(|_| Netns::new("pod")).collect();
        Self { host, pods, addresses, networks: Vec::new() }
    }

    /// Pods that ask for additional networks.
    pub(crate) fn on_networks(host: &'a Host, count: usize, networks: Vec<String>) -> Self {
        Self { networks, ..Self::new(host, count) }
    }

    /// Calls STATUS, which concerns no pod.
    pub(crate) fn status(&self) {
        self.call("STATUS", 0);
    }

    /// The command of a call, and the configuration to write to its stdin.
    pub(crate) fn command(&self, verb: &str, number: usize) -> (Command, String) {
        let pod = &self.pods[number];
        let mut command = Command::new(program("host-shim"));
        command
            .env_clear()
            .env("CNI_COMMAND", verb)
            .env("CNI_CONTAINERID", pod.name())
            .env("CNI_NETNS", pod.path())
            .env("CNI_IFNAME", "eth0")
            .env("CNI_PATH", "/opt/cni/bin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut configuration = self.host.configuration("blue");
        let addresses = (self.addresses)(number);
        if !addresses.is_empty() {
            configuration["runtimeConfig"] = json!({ "ips": addresses });
        }
        if !self.networks.is_empty() {
            configuration["networks"] = json!(self.networks);
        }
        (command, configuration.to_string())
    }

    fn call(&self, verb: &str, number: usize) {
        let (command, configuration) = self.command(verb, number);
        run(command, &configuration);
    }
}

impl Network for Pods<'_> {
    fn add(&self, pod: usize) {
        self.call("ADD", pod);
    }

    fn del(&self, pod: usize) {
        self.call("DEL", pod);
    }
}

/// Runs a plugin from exec to exit.
pub(crate) fn run(mut command: Command, configuration: &str) {
    let mut child = command.spawn().expect("start the plugin");
    child.stdin.take().unwrap().write_all(configuration.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}
