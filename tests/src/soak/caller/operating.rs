//! What an operator does: releases, and networks that come and go.

use std::{fs, path::Path, process::Output};

use serde_json::{Value, json};

use super::Caller;
use crate::{breach::Breach, soak::ledger::State};

impl Caller<'_> {
    pub(super) fn release(&mut self, pod: usize, interface: usize) {
        let sandbox = &self.ledger.pods[pod];
        let port = &sandbox.ports[interface];
        if !matches!(port.state, State::Promised(_) | State::Misused) {
            return;
        }
        let place = format!("{} {}", sandbox.container, port.interface);
        let listed = self.site.operator().dpuctl(&["get", "attachments", "-o", "json"]);
        let list: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
        let attachments = list["attachments"].as_array().into_iter().flatten();
        let mut own = attachments.filter(|attachment| {
            attachment["key"]["containerId"] == sandbox.container.as_str()
                && attachment["key"]["interfaceName"] == port.interface
        });
        let Some(id) = own.next().and_then(|attachment| attachment["id"].as_str()) else {
            if self.quiet || listed.status.success() {
                let what = format!("the DPU has no attachment of {place}: {listed:?}");
                self.common.complain(Breach::lost(what));
            }
            return;
        };
        let released = self.site.operator().dpuctl(&["release", id, "--reason", "soak", "--yes"]);
        self.refused_in_quiet("release", &released);
        let port = &mut self.ledger.pods[pod].ports[interface];
        if released.status.success() { port.state = State::Leaving } else { port.doubt() }
    }

    pub(super) fn apply(&self) {
        let name = self.ledger.own_network();
        let network = json!({
            "name": name,
            "subnets": [{ "cidr": format!("10.{}.0.0/24", 100 + self.ledger.caller) }],
        });
        let file = self.site.path().join(format!("{name}.json"));
        fs::write(&file, network.to_string()).expect("write a network");
        let applied = self.site.operator().dpuctl(&["apply", "-f", &text(&file)]);
        self.refused_in_quiet("apply", &applied);
    }

    pub(super) fn delete(&self) {
        let name = self.ledger.own_network();
        let deleted = self.site.operator().dpuctl(&["delete", "network", &name]);
        let ports = self.ledger.sandboxes().flat_map(|sandbox| &sandbox.ports);
        let in_use = ports.filter(|port| port.network == name && port.promise().is_some()).count();
        if deleted.status.success() && in_use > 0 {
            let what = format!("network {name} was deleted with {in_use} attachments");
            self.common.complain(Breach::lost(what));
        }
    }

    pub(super) fn refused_in_quiet(&self, what: &str, output: &Output) {
        if self.quiet && !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr);
            self.common.complain(Breach::lost(format!("dpuctl {what}: {error}")));
        }
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path of ours").to_owned()
}
