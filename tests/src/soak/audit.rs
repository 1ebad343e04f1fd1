//! Comparison of what was granted with what exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;

use super::{
    cleanliness::{self, Reading},
    ledger::{Grant, Ledger, State},
    others,
};
use crate::{
    Crowd, Fleet,
    crowd::is_of_crowd,
    eventually,
    invariants::{Snapshot, addresses_of, in_domain, twice},
    violation::Violation,
};

/// Timeout for background work.
const SETTLE: Duration = Duration::from_secs(60);

/// Baselines of all VFs before the soak, by PCI address.
#[derive(Debug)]
pub(crate) struct Baselines(BTreeMap<String, Reading>);

impl Baselines {
    pub(crate) fn of(fleet: &Fleet) -> Self {
        Self(readings(fleet))
    }
}

/// All VFs in their hosts' namespaces, by PCI address.
fn readings(fleet: &Fleet) -> BTreeMap<String, Reading> {
    fleet.agents.iter().flat_map(|agent| cleanliness::readings(&agent.card.host)).collect()
}

/// Violations that remain after background work, seen by external tools.
pub(crate) fn violations(
    fleet: &Fleet,
    ledgers: &[Ledger],
    crowd: Option<&Crowd>,
    baselines: &Baselines,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    eventually(SETTLE, || {
        violations = look(fleet, ledgers, crowd, baselines);
        violations.is_empty().then_some(())
    });
    violations
}

fn look(
    fleet: &Fleet,
    ledgers: &[Ledger],
    crowd: Option<&Crowd>,
    baselines: &Baselines,
) -> Vec<Violation> {
    let scenes = fleet.agents.iter().map(|agent| fleet.scene(agent));
    let seen: Vec<_> = scenes.map(|scene| (scene.snapshot(), scene)).collect();
    let mut violations: Vec<_> =
        seen.iter().flat_map(|(snapshot, scene)| scene.violations(snapshot)).collect();
    // Each scene shows everything except for its host's own namespace.
    let (snapshot, _) = &seen[0];
    violations.extend(broken_grants(fleet, snapshot, ledgers, baselines));
    violations.extend(crowd.into_iter().flat_map(|crowd| crowd.violations(snapshot)));
    violations
}

/// Checks that exactly the grants exist and that free objects have their baseline.
fn broken_grants(
    fleet: &Fleet,
    snapshot: &Snapshot,
    ledgers: &[Ledger],
    baselines: &Baselines,
) -> Vec<Violation> {
    let mut violations = Vec::new();
    let grants = grants(ledgers);
    violations.extend(lost(snapshot, &grants).into_iter().map(Violation::lost));
    violations.extend(orphaned(snapshot, ledgers).into_iter().map(Violation::leaked));
    violations.extend(granted_twice(snapshot, &grants).into_iter().map(Violation::doubled));
    let leases = leaked_leases(snapshot, &fleet.operator(0).get("networks"));
    violations.extend(leases.into_iter().map(Violation::leaked));
    violations.extend(others::violations(fleet, ledgers));
    // A pod with upper devices has detached its interface.
    violations
        .extend(snapshot.stacked.iter().map(|link| Violation::unclean(format!("stacked {link}"))));
    violations.extend(unclean(fleet, snapshot, baselines).into_iter().map(Violation::unclean));
    violations
}

/// Free VFs that differ from their baseline.
fn unclean(fleet: &Fleet, snapshot: &Snapshot, baselines: &Baselines) -> Vec<String> {
    let now = readings(fleet);
    let is_free =
        |pci: &String| snapshot.attachments.iter().all(|a| a["vf"]["device"] != pci.as_str());
    let mut reported = Vec::new();
    for (pci, baseline) in baselines.0.iter().filter(|(pci, _)| is_free(pci)) {
        let differences = match now.get(pci) {
            Some(reading) => cleanliness::differences(baseline, reading),
            None => vec!["not in the host's namespace".to_owned()],
        };
        reported
            .extend(differences.into_iter().map(|what| format!("VF {pci} is free, but {what}")));
    }
    reported
}

/// Grants by container and interface.
type Grants<'a> = BTreeMap<(&'a str, &'a str), &'a Grant>;

fn grants(ledgers: &[Ledger]) -> Grants<'_> {
    let sandboxes = ledgers.iter().flat_map(Ledger::sandboxes);
    let of_sandbox = |(container, port): (_, &'_ super::ledger::Port)| (container, port.interface);
    let mut grants = Grants::new();
    for sandbox in sandboxes {
        for port in &sandbox.ports {
            let Some(grant) = port.grant() else { continue };
            grants.insert(of_sandbox((sandbox.container.as_str(), port)), grant);
        }
    }
    grants
}

/// Granted interfaces that are missing or differ in their pod.
fn lost(snapshot: &Snapshot, grants: &Grants<'_>) -> Vec<String> {
    let is_kept = |(container, interface): (&str, &str), grant: &Grant| {
        let in_pod = snapshot.pods.iter().any(|(pci, pod, end)| {
            (pci, pod.as_str(), end.name.as_str(), &end.mac)
                == (&grant.pci, container, interface, &grant.mac)
        });
        let place = (container.to_owned(), interface.to_owned());
        in_pod && snapshot.addresses.get(&place) == Some(&grant.addresses)
    };
    let broken = grants.iter().filter(|(place, grant)| !is_kept(**place, grant));
    broken
        .map(|((container, interface), grant)| {
            format!("{container} {interface} was offered {}", grant.result)
        })
        .collect()
}

/// Attachments without a grant and without a pending call.
fn orphaned(snapshot: &Snapshot, ledgers: &[Ledger]) -> Vec<String> {
    let mut wanted = BTreeSet::new();
    for sandbox in ledgers.iter().flat_map(Ledger::sandboxes) {
        for port in &sandbox.ports {
            if matches!(port.state, State::Granted(_) | State::Misused | State::Unknown) {
                wanted.insert((sandbox.container.as_str(), port.interface));
            }
        }
    }
    let key = |attachment: &Value, name: &str| {
        attachment["key"][name].as_str().unwrap_or_default().to_owned()
    };
    let is_wanted = |attachment: &&Value| {
        let (container, interface) =
            (key(attachment, "containerId"), key(attachment, "interfaceName"));
        wanted.contains(&(container.as_str(), interface.as_str()))
    };
    let theirs = snapshot.attachments.iter().filter(|attachment| !is_of_crowd(attachment));
    let strange = theirs.filter(|attachment| !is_wanted(attachment));
    strange.map(|attachment| format!("no host has {attachment}")).collect()
}

fn granted_twice(snapshot: &Snapshot, grants: &Grants<'_>) -> Vec<String> {
    let all = |of: fn(&Grant) -> Vec<String>| grants.values().flat_map(move |p| of(p));
    let mut doubled = twice(all(|p| vec![p.pci.clone()]), "VF offered twice");
    doubled.extend(twice(all(|p| vec![p.mac.clone()]), "MAC address offered twice"));
    let addresses = grants.values().flat_map(|grant| {
        let domain = snapshot.domain_of(&grant.configuration["name"]);
        grant.addresses.iter().map(move |address| in_domain(address, &domain))
    });
    doubled.extend(twice(addresses, "address offered twice"));
    doubled
}

/// Networks that hold more or fewer addresses than their attachments have.
fn leaked_leases(snapshot: &Snapshot, networks: &[Value]) -> Vec<String> {
    let mut differences = Vec::new();
    for network in networks {
        let name = &network["network"]["name"];
        let further = |a: &Value| a["furtherLeases"].as_array().cloned().unwrap_or_default();
        let holders =
            snapshot.attachments.iter().flat_map(|a| further(a).into_iter().chain([a.clone()]));
        let used: usize =
            holders.filter(|a| &a["network"] == name).map(|a| addresses_of(&a).len()).sum();
        let used = used as u64;
        let subnets = network["subnets"].as_array().into_iter().flatten();
        let held: u64 = subnets.map(|subnet| subnet["held"].as_u64().unwrap_or_default()).sum();
        if held != used {
            differences.push(format!("network {name} holds {held} addresses, {used} are used"));
        }
    }
    differences
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DpuPlan, Settings, soak::ledger::Kind, violation::ViolationKind, wait_for};

    /// A lab with one attachment and its grant.
    fn kept_grant() -> (Fleet, Vec<Ledger>, Baselines) {
        let settings = Settings::with_vfs(2);
        let lab = Fleet::start(&[DpuPlan { name: "dpu-1", hosts: vec!["node-1"], settings }]);
        let baselines = Baselines::of(&lab);
        let mut ledger = Ledger::new(0, 0, [Kind::OneByOne].into_iter());
        let pod = &mut ledger.pods[0];
        let result = lab.agents[0].add("blue", pod.netns.as_ref().unwrap(), "eth0").result();
        let grant = Grant::new(result, lab.agents[0].configuration("blue"), 0);
        pod.ports[0].state = State::Granted(Box::new(grant));
        let ledgers = vec![ledger];
        await_violations(&lab, &ledgers, &baselines, &[]);
        (lab, ledgers, baselines)
    }

    fn await_violations(
        lab: &Fleet,
        ledgers: &[Ledger],
        baselines: &Baselines,
        kinds_of_violation: &[ViolationKind],
    ) {
        wait_for(&format!("{kinds_of_violation:?} to be seen"), SETTLE, || {
            (seen(lab, ledgers, baselines) == kinds_of_violation).then_some(())
        });
    }

    fn seen(lab: &Fleet, ledgers: &[Ledger], baselines: &Baselines) -> Vec<ViolationKind> {
        look(lab, ledgers, None, baselines).iter().map(|violation| violation.kind).collect()
    }

    #[test]
    fn lost_grant_is_noticed() {
        let (lab, ledgers, baselines) = kept_grant();
        lab.agents[0].del("blue", ledgers[0].pods[0].netns.as_ref().unwrap(), "eth0").nothing();
        await_violations(&lab, &ledgers, &baselines, &[ViolationKind::Lost]);
    }

    #[test]
    fn orphaned_attachment_is_noticed() {
        let (lab, mut ledgers, baselines) = kept_grant();
        ledgers[0].pods[0].ports[0].state = State::Absent;
        await_violations(&lab, &ledgers, &baselines, &[ViolationKind::Leaked]);
    }

    #[test]
    fn removed_pod_address_is_noticed() {
        let (lab, ledgers, baselines) = kept_grant();
        let pod = ledgers[0].pods[0].netns.as_ref().unwrap();
        // The attachment and the grant both differ now, and the agent may restore the address at any time.
        wait_for("two losses to be seen", SETTLE, || {
            pod.ip(&["-4", "address", "flush", "dev", "eth0"]);
            (seen(&lab, &ledgers, &baselines) == [ViolationKind::Lost, ViolationKind::Lost])
                .then_some(())
        });
    }

    #[test]
    fn double_grant_is_noticed() {
        let (lab, mut ledgers, baselines) = kept_grant();
        let again = ledgers[0].pods[0].ports[0].state.clone();
        ledgers[0].pods[0].ports[1].state = again;
        // A VF, a MAC address and two addresses, and none of them in the second pod.
        let kinds_of_violation = [
            ViolationKind::Lost,
            ViolationKind::Doubled,
            ViolationKind::Doubled,
            ViolationKind::Doubled,
            ViolationKind::Doubled,
        ];
        await_violations(&lab, &ledgers, &baselines, &kinds_of_violation);
    }

    #[test]
    fn upper_device_is_noticed() {
        let (lab, ledgers, baselines) = kept_grant();
        let (pod, elsewhere) = (ledgers[0].pods[0].netns.as_ref().unwrap(), &ledgers[0].elsewhere);
        let stack = ["link", "add", "link", "eth0", "netns", elsewhere.name()];
        pod.ip(&[&stack[..], &["type", "macvlan", "mode", "bridge"]].concat());
        await_violations(&lab, &ledgers, &baselines, &[ViolationKind::Unclean]);
    }

    #[test]
    fn changed_free_vf_is_noticed() {
        let (lab, ledgers, mut baselines) = kept_grant();
        for reading in baselines.0.values_mut() {
            reading.insert("/sys/class/net queues/rx-0/rps_cpus".into(), "3".into());
        }
        // One of the two VFs is free.
        await_violations(&lab, &ledgers, &baselines, &[ViolationKind::Unclean]);
    }
}
