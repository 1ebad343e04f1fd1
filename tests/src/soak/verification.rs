//! Verification by `ping`: pods have their network in both directions, and no other pod receives their packets.

use std::{
    collections::BTreeMap,
    fmt,
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use super::ledger::{Grant, Ledger, Sandbox};
use crate::{Fleet, Netns, command::run, eventually};

/// Payload of a packet: more than all other traffic on an idle network.
const PAYLOAD: u64 = 1000;
/// Timeout of the answer to a first packet, in seconds.
const FIRST_ANSWER: &str = "0.9";
/// Timeout until an address can be used as source.
const USABLE: Duration = Duration::from_secs(2);

/// An interface of a pod that sends and answers.
#[derive(Clone, Debug)]
pub(crate) struct Endpoint {
    netns: String,
    interface: String,
    pci: String,
    is_of_layer_2: bool,
    addresses: Vec<String>,
}

impl Endpoint {
    /// The granted interface.
    pub(crate) fn new(netns: &str, interface: &str, grant: &Grant) -> Self {
        let bare = |address: &String| address.split('/').next().unwrap_or_default().to_owned();
        let mut addresses: Vec<_> = grant.addresses.iter().map(bare).collect();
        let is_of_layer_2 = addresses.is_empty();
        if is_of_layer_2 {
            addresses.push(link_local(&grant.mac));
        }
        Self {
            netns: netns.to_owned(),
            interface: interface.to_owned(),
            pci: grant.pci.clone(),
            is_of_layer_2,
            addresses,
        }
    }

    /// On a layer-2 network the interface needs a link-local address of the test. It is lost with the VF, for example
    /// by a card reset.
    fn prepare(&self) {
        for address in self.addresses.iter().filter(|_| self.is_of_layer_2) {
            if self.may_send_from(address) {
                continue;
            }
            let whole = format!("{address}/64");
            let give = ["-n", &self.netns, "address", "replace", &whole, "dev", &self.interface];
            // A failure shows later as a missing answer.
            let _ = run(Command::new("ip").args(give).arg("nodad"));
            // The kernel allows the source only after its own work item has processed the address.
            eventually(USABLE, || self.may_send_from(address).then_some(()));
        }
    }

    fn may_send_from(&self, address: &str) -> bool {
        let show = ["-n", &self.netns, "-j", "-6", "address", "show", "dev", &self.interface];
        let shown = run(Command::new("ip").args(show).args(["to", address, "-tentative"]));
        let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        shown[0]["addr_info"].as_array().is_some_and(|found| !found.is_empty())
    }

    /// Sends one packet to each address of the other, and returns the number of answers.
    pub(crate) fn reaches(&self, other: &Self) -> Result<u64, String> {
        self.prepare();
        other.prepare();
        for address in &other.addresses {
            self.ping(address, other)?;
        }
        Ok(other.addresses.len() as u64)
    }

    fn ping(&self, address: &str, other: &Self) -> Result<(), String> {
        let mut ping = Netns::command_in(&self.netns, "ping");
        ping.args(["-n", "-q", "-c", "1", "-s", &PAYLOAD.to_string(), "-W", FIRST_ANSWER]);
        ping.args(["-I", &self.interface, address]).stdin(Stdio::null());
        // The namespace may be gone.
        let answered = ping.output().map_err(|error| error.to_string()).and_then(|output| {
            let printed = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
            output.status.success().then_some(()).ok_or_else(printed)
        });
        answered.map_err(|printed| {
            let (from, to) = (self.situation(), other.situation());
            format!("{self} does not reach {address} of {other}: {printed}\n{from}\n{to}")
        })
    }

    /// The state of the namespace in `ip`, to find the cause of a failure.
    fn situation(&self) -> String {
        let reported = ["link", "address", "route", "neigh"].map(|what| {
            let shown = run(Command::new("ip").args(["-n", &self.netns, "-br", what]));
            let lines = String::from_utf8_lossy(&shown.stdout).into_owned();
            lines
                .lines()
                .map(|line| format!("  {} {what}: {line}\n", self.netns))
                .collect::<String>()
        });
        reported.concat()
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} {}", self.netns, self.interface)
    }
}

/// An address derived from a MAC address in another way than the kernel's.
fn link_local(mac: &str) -> String {
    let groups: Vec<_> = mac.split(':').collect();
    let pairs: Vec<_> = groups.chunks(2).map(<[&str]>::concat).collect();
    format!("fe80::{}", pairs.join(":"))
}

/// A permanent pod in each configured network.
#[derive(Debug)]
pub(crate) struct ReferencePods(BTreeMap<String, Endpoint>);

impl ReferencePods {
    /// The first interfaces of these pods.
    pub(crate) fn of_pods(ledger: &Ledger) -> Self {
        let endpoint = |sandbox: &Sandbox| {
            let port = &sandbox.ports[0];
            let own = Endpoint::new(&sandbox.container, port.interface, port.grant()?);
            Some((port.network.clone(), own))
        };
        Self(ledger.pods.iter().filter_map(endpoint).collect())
    }

    pub(crate) fn of(&self, network: &str) -> Option<&Endpoint> {
        self.0.get(network)
    }
}

/// The VFs' ports on the DPU.
#[derive(Debug)]
pub(crate) struct Ports {
    dpu: String,
    /// Representors of the VFs, by PCI address.
    representors: BTreeMap<String, String>,
}

impl Ports {
    pub(crate) fn of(fleet: &Fleet) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let vfs = fleet.operator(0).get("vfs");
        let named = vfs.iter().map(|vf| (text(&vf["vf"]["device"]), text(&vf["representor"])));
        Self { dpu: fleet.dpus[0].netns.name().to_owned(), representors: named.collect() }
    }

    /// Bytes that each representor has delivered to its VF.
    pub(crate) fn delivered(&self) -> Deliveries {
        let shown =
            run(Netns::command_in(&self.dpu, "ip").args(["-j", "-s", "-d", "link", "show"]));
        let links: Vec<Value> = serde_json::from_slice(&shown.stdout).expect("what ip shows");
        let representors = links.iter().filter(|link| crate::card::is_representor(link));
        let bytes = representors.filter_map(|link| {
            let name = link["ifname"].as_str()?.to_owned();
            Some((name, link["stats64"]["tx"]["bytes"].as_u64()?))
        });
        Deliveries(bytes.collect())
    }

    /// Whether the port belongs to one of these interfaces.
    pub(crate) fn is_of(&self, representor: &str, endpoints: [&Endpoint; 2]) -> bool {
        let of = |endpoint: &Endpoint| self.representors.get(&endpoint.pci);
        endpoints.iter().any(|endpoint| of(endpoint).is_some_and(|own| own == representor))
    }
}

/// Bytes that representors have delivered to their VFs.
#[derive(Debug)]
pub(crate) struct Deliveries(BTreeMap<String, u64>);

impl Deliveries {
    /// Representors that have delivered a test packet since then.
    pub(crate) fn receivers_since(&self, earlier: &Self) -> Vec<&String> {
        let before = |name: &String| earlier.0.get(name).copied().unwrap_or(0);
        let grown = |(name, now): &(&String, &u64)| now.saturating_sub(before(name)) >= PAYLOAD;
        self.0.iter().filter(grown).map(|(name, _)| name).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_address_derives_from_mac() {
        assert_eq!(link_local("02:00:5e:10:00:01"), "fe80::0200:5e10:0001");
    }

    #[test]
    fn unintended_receiver_is_noticed() {
        let deliveries = |a, b| Deliveries([("a".into(), a), ("b".into(), b)].into());
        let later = deliveries(5000, 700);
        assert_eq!(later.receivers_since(&deliveries(100, 600)), ["a"]);
    }
}
