//! An operator's calls: releases, and networks that are applied and deleted.

use std::{fs, path::Path};

use serde_json::{Value, json};

use super::World;
use crate::{
    soak::ledger::{Ledger, State},
    violation::Violation,
};

pub(super) fn release(world: World<'_>, ledger: &mut Ledger, pod: usize, interface: usize) {
    let sandbox = &ledger.pods[pod];
    let port = &sandbox.ports[interface];
    if !matches!(port.state, State::Granted(_) | State::Misused) {
        return;
    }
    let place = format!("{} {}", sandbox.container, port.interface);
    let listed = world.host.operator().dpuctl(&["get", "attachments", "-o", "json"]);
    let list: Value = serde_json::from_slice(&listed.stdout).unwrap_or_default();
    let attachments = list["attachments"].as_array().into_iter().flatten();
    let mut own = attachments.filter(|attachment| {
        attachment["key"]["containerId"] == sandbox.container.as_str()
            && attachment["key"]["interfaceName"] == port.interface
    });
    let Some(id) = own.next().and_then(|attachment| attachment["id"].as_str()) else {
        if world.quiet || listed.status.success() {
            let what = format!("the DPU has no attachment of {place}: {listed:?}");
            world.common.complain(Violation::lost(what));
        }
        return;
    };
    let released = world.host.operator().dpuctl(&["release", id, "--reason", "soak", "--yes"]);
    world.note_done("release", &released);
    let port = &mut ledger.pods[pod].ports[interface];
    if released.status.success() { port.state = State::Leaving } else { port.mark_unknown() }
}

pub(super) fn apply(world: World<'_>, ledger: &Ledger) {
    let name = ledger.own_network();
    let network = json!({
        "name": name,
        "subnets": [{ "cidr": format!("10.{}.0.0/24", 100 + ledger.caller) }],
    });
    let file = world.host.path().join(format!("{name}.json"));
    fs::write(&file, network.to_string()).expect("write a network");
    let applied = world.host.operator().dpuctl(&["apply", "-f", &text(&file)]);
    world.note_done("apply", &applied);
}

pub(super) fn delete(world: World<'_>, ledger: &Ledger) {
    let name = ledger.own_network();
    let deleted = world.host.operator().dpuctl(&["delete", "network", &name]);
    let ports = ledger.sandboxes().flat_map(|sandbox| &sandbox.ports);
    let in_use = ports.filter(|port| port.network == name && port.grant().is_some()).count();
    if deleted.status.success() && in_use > 0 {
        let what = format!("network {name} was deleted with {in_use} attachments");
        world.common.complain(Violation::lost(what));
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path of ours").to_owned()
}
