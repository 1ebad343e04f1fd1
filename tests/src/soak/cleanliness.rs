//! The complete state of free VFs, read by external tools.

use std::{collections::BTreeMap, process::Command};

use serde_json::Value;

use crate::{Netns, card::host_end, command::run};

/// Values that change with a reset, count traffic, or tell the origin of a name or an address.
const VOLATILE: [&str; 15] = [
    "ifindex",
    "link_index",
    "link_netnsid",
    "link",
    "iflink",
    "uevent",
    "statistics",
    "power",
    "byte_queue_limits",
    "carrier_changes",
    "carrier_up_count",
    "carrier_down_count",
    "name_assign_type",
    "addr_assign_type",
    "tx_timeout",
];

/// The state of one VF, by setting.
pub(crate) type Reading = BTreeMap<String, String>;

/// All VFs in the host's namespace, by PCI address.
pub(crate) fn readings(host: &Netns) -> BTreeMap<String, Reading> {
    let links = host.json("ip", &["-d", "link", "show"]);
    let vfs: Vec<_> = links
        .iter()
        .filter_map(|link| host_end(link).map(|(pci, end)| (pci, end.name, link)))
        .collect();
    let mut by_name: BTreeMap<String, Reading> =
        vfs.iter().map(|(_, name, _)| (name.clone(), Reading::new())).collect();
    for (_, name, link) in &vfs {
        note(by_name.get_mut(name), "ip link", link);
    }
    note_features(host, &mut by_name);
    note_queues(host, &mut by_name);
    note_sysfs(host, &mut by_name);
    vfs.into_iter().filter_map(|(pci, name, _)| Some((pci, by_name.remove(&name)?))).collect()
}

fn note_features(host: &Netns, by_name: &mut BTreeMap<String, Reading>) {
    let shown = run(host.command("ethtool").args(["--json", "-k", "*"]));
    let all: Vec<Value> = serde_json::from_slice(&shown.stdout).expect("what ethtool shows");
    for features in &all {
        note(by_name.get_mut(text(&features["ifname"])), "ethtool -k", features);
    }
}

fn note_queues(host: &Netns, by_name: &mut BTreeMap<String, Reading>) {
    for qdisc in host.json("tc", &["qdisc", "show"]) {
        let what = format!("tc qdisc {} {}", text(&qdisc["kind"]), text(&qdisc["handle"]));
        note(by_name.get_mut(text(&qdisc["dev"])), &what, &qdisc);
    }
}

/// Sysfs shows the namespace in which it was mounted, so it is mounted inside.
fn note_sysfs(host: &Netns, by_name: &mut BTreeMap<String, Reading>) {
    let script = "cd /sys/class/net && for link; do grep -rs . $link/; done";
    let mut inside = Command::new("ip");
    inside.args(["netns", "exec", host.name(), "sh", "-c", script, "sh"]);
    let shown = run(inside.args(by_name.keys()));
    for line in String::from_utf8_lossy(&shown.stdout).lines() {
        let Some((path, value)) = line.split_once(':') else { continue };
        let Some((link, file)) = path.split_once('/') else { continue };
        let is_volatile = file.split('/').any(|part| VOLATILE.contains(&part));
        let Some(reading) = by_name.get_mut(link).filter(|_| !is_volatile) else { continue };
        reading.insert(format!("/sys/class/net {file}"), value.to_owned());
    }
}

/// Adds each nested value by its path.
fn note(reading: Option<&mut Reading>, path: &str, value: &Value) {
    let Some(reading) = reading else { return };
    match value {
        Value::Object(parts) => {
            let lasting = parts.iter().filter(|(key, _)| !VOLATILE.contains(&key.as_str()));
            lasting.for_each(|(key, part)| note(Some(reading), &format!("{path} {key}"), part));
        }
        other => drop(reading.insert(path.to_owned(), other.to_string())),
    }
}

/// Differences of a VF from its baseline.
pub(crate) fn differences(baseline: &Reading, now: &Reading) -> Vec<String> {
    let shown = |reading: &Reading, what: &String| {
        reading.get(what).cloned().unwrap_or_else(|| "nothing".to_owned())
    };
    let mut names: Vec<_> = baseline.keys().chain(now.keys()).collect();
    names.sort_unstable();
    names.dedup();
    let changed = names.into_iter().filter(|what| baseline.get(*what) != now.get(*what));
    changed
        .map(|what| format!("{what} was {}, is {}", shown(baseline, what), shown(now, what)))
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}
