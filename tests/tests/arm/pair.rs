//! Two pods that reach each other.

use std::process::Command;

use e2e::{ArmLab, Netns, eventually, run};
use serde_json::Value;

use crate::LIMIT;

/// Two pods on `blue` that reach each other.
pub(crate) struct Pair {
    pub(crate) a: Netns,
    pub(crate) b: Netns,
    addresses_of_b: Vec<String>,
}

impl Pair {
    pub(crate) fn attach(lab: &ArmLab) -> Self {
        let (a, b) = (Netns::new("a"), Netns::new("b"));
        let _ = lab.add("blue", &a, "eth0").result();
        let addresses_of_b = addresses(&lab.add("blue", &b, "eth0").result());
        assert_eq!(addresses_of_b.len(), 2, "{addresses_of_b:?}");
        let pair = Self { a, b, addresses_of_b };
        pair.assert_reach();
        lab.assert_invariants();
        pair
    }

    /// Whether one echo request in each family is answered soon.
    pub(crate) fn reach(&self) -> bool {
        self.addresses_of_b.iter().all(|address| answers(&self.a, address))
    }

    pub(crate) fn assert_reach(&self) {
        let reached = eventually(LIMIT, || self.reach().then_some(()));
        assert!(reached.is_some(), "{} does not reach {}", self.a.name(), self.b.name());
    }

    pub(crate) fn detach(&self, lab: &ArmLab) {
        lab.del("blue", &self.a, "eth0").nothing();
        lab.del("blue", &self.b, "eth0").nothing();
        lab.assert_clean_slate();
    }
}

/// Whether `address` answers one echo request within half a second.
pub(crate) fn answers(from: &Netns, address: &str) -> bool {
    let mut ping: Command = from.command("ping");
    run(ping.args(["-n", "-q", "-c", "1", "-W", "0.5", address])).status.success()
}

/// The addresses of a result, without prefix length.
pub(crate) fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    let address =
        |ip: &Value| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned();
    ips.map(address).collect()
}

/// The attachments' ids, in order.
pub(crate) fn ids(lab: &ArmLab) -> Vec<String> {
    let attachments = lab.operator().get("attachments");
    let mut ids: Vec<_> = attachments.iter().map(|a| a["id"].as_str().unwrap().into()).collect();
    ids.sort_unstable();
    ids
}
