//! Comparison of what was granted with what exists.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde_json::Value;

use super::{
    cleanliness::{self, Reading},
    ledger::{Ledger, Promise, State},
    others,
};
use crate::{
    Crowd, Fleet,
    breach::Breach,
    crowd::is_of_crowd,
    eventually,
    invariants::{Picture, addresses_of, in_domain, twice},
};

/// Timeout for background work.
const SETTLE: Duration = Duration::from_secs(60);

/// Baselines of all VFs before the soak, by PCI address.
#[derive(Debug)]
pub(crate) struct Originals(BTreeMap<String, Reading>);

impl Originals {
    pub(crate) fn of(fleet: &Fleet) -> Self {
        Self(readings(fleet))
    }
}

/// All VFs in their hosts' namespaces, by PCI address.
fn readings(fleet: &Fleet) -> BTreeMap<String, Reading> {
    fleet.agents.iter().flat_map(|agent| cleanliness::readings(&agent.card.host)).collect()
}

/// Violations that remain after background work, seen by external tools.
pub(crate) fn breaches(
    fleet: &Fleet,
    ledgers: &[Ledger],
    crowd: Option<&Crowd>,
    originals: &Originals,
) -> Vec<Breach> {
    let mut breaches = Vec::new();
    eventually(SETTLE, || {
        breaches = look(fleet, ledgers, crowd, originals);
        breaches.is_empty().then_some(())
    });
    breaches
}

fn look(
    fleet: &Fleet,
    ledgers: &[Ledger],
    crowd: Option<&Crowd>,
    originals: &Originals,
) -> Vec<Breach> {
    let scenes = fleet.agents.iter().map(|agent| fleet.scene(agent));
    let seen: Vec<_> = scenes.map(|scene| (scene.picture(), scene)).collect();
    let mut breaches: Vec<_> =
        seen.iter().flat_map(|(picture, scene)| scene.breaches(picture)).collect();
    // Each scene shows everything except for its host's own namespace.
    let (picture, _) = &seen[0];
    breaches.extend(broken_promises(fleet, picture, ledgers, originals));
    breaches.extend(crowd.into_iter().flat_map(|crowd| crowd.breaches(picture)));
    breaches
}

/// Checks that exactly the grants exist and that free objects have their baseline.
fn broken_promises(
    fleet: &Fleet,
    picture: &Picture,
    ledgers: &[Ledger],
    originals: &Originals,
) -> Vec<Breach> {
    let mut breaches = Vec::new();
    let promises = promises(ledgers);
    breaches.extend(lost(picture, &promises).into_iter().map(Breach::lost));
    breaches.extend(nobodys(picture, ledgers).into_iter().map(Breach::leaked));
    breaches.extend(promised_twice(picture, &promises).into_iter().map(Breach::doubled));
    let leases = leaked_leases(picture, &fleet.operator(0).get("networks"));
    breaches.extend(leases.into_iter().map(Breach::leaked));
    breaches.extend(others::breaches(fleet, ledgers));
    // A pod with upper devices has detached its interface.
    breaches.extend(picture.stacked.iter().map(|link| Breach::unclean(format!("stacked {link}"))));
    breaches.extend(unclean(fleet, picture, originals).into_iter().map(Breach::unclean));
    breaches
}

/// Free VFs that differ from their baseline.
fn unclean(fleet: &Fleet, picture: &Picture, originals: &Originals) -> Vec<String> {
    let now = readings(fleet);
    let is_free =
        |pci: &String| picture.attachments.iter().all(|a| a["vf"]["device"] != pci.as_str());
    let mut told = Vec::new();
    for (pci, original) in originals.0.iter().filter(|(pci, _)| is_free(pci)) {
        let differences = match now.get(pci) {
            Some(reading) => cleanliness::differences(original, reading),
            None => vec!["not in the host's namespace".to_owned()],
        };
        told.extend(differences.into_iter().map(|what| format!("VF {pci} is free, but {what}")));
    }
    told
}

/// Grants by container and interface.
type Promises<'a> = BTreeMap<(&'a str, &'a str), &'a Promise>;

fn promises(ledgers: &[Ledger]) -> Promises<'_> {
    let sandboxes = ledgers.iter().flat_map(Ledger::sandboxes);
    let of_sandbox = |(container, port): (_, &'_ super::ledger::Port)| (container, port.interface);
    let mut promises = Promises::new();
    for sandbox in sandboxes {
        for port in &sandbox.ports {
            let Some(promise) = port.promise() else { continue };
            promises.insert(of_sandbox((sandbox.container.as_str(), port)), promise);
        }
    }
    promises
}

/// Granted interfaces that are missing or differ in their pod.
fn lost(picture: &Picture, promises: &Promises<'_>) -> Vec<String> {
    let is_kept = |(container, interface): (&str, &str), promise: &Promise| {
        let in_pod = picture.pods.iter().any(|(pci, pod, end)| {
            (pci, pod.as_str(), end.name.as_str(), &end.mac)
                == (&promise.pci, container, interface, &promise.mac)
        });
        let place = (container.to_owned(), interface.to_owned());
        in_pod && picture.addresses.get(&place) == Some(&promise.addresses)
    };
    let broken = promises.iter().filter(|(place, promise)| !is_kept(**place, promise));
    broken
        .map(|((container, interface), promise)| {
            format!("{container} {interface} was promised {}", promise.result)
        })
        .collect()
}

/// Attachments without a grant and without a pending call.
fn nobodys(picture: &Picture, ledgers: &[Ledger]) -> Vec<String> {
    let mut wanted = BTreeSet::new();
    for sandbox in ledgers.iter().flat_map(Ledger::sandboxes) {
        for port in &sandbox.ports {
            if matches!(port.state, State::Promised(_) | State::Misused | State::Unknown) {
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
    let theirs = picture.attachments.iter().filter(|attachment| !is_of_crowd(attachment));
    let strange = theirs.filter(|attachment| !is_wanted(attachment));
    strange.map(|attachment| format!("nobody has {attachment}")).collect()
}

fn promised_twice(picture: &Picture, promises: &Promises<'_>) -> Vec<String> {
    let all = |of: fn(&Promise) -> Vec<String>| promises.values().flat_map(move |p| of(p));
    let mut doubled = twice(all(|p| vec![p.pci.clone()]), "VF promised twice");
    doubled.extend(twice(all(|p| vec![p.mac.clone()]), "MAC address promised twice"));
    let addresses = promises.values().flat_map(|promise| {
        let domain = picture.domain_of(&promise.configuration["name"]);
        promise.addresses.iter().map(move |address| in_domain(address, &domain))
    });
    doubled.extend(twice(addresses, "address promised twice"));
    doubled
}

/// Networks that hold more or fewer addresses than their attachments have.
fn leaked_leases(picture: &Picture, networks: &[Value]) -> Vec<String> {
    let mut differences = Vec::new();
    for network in networks {
        let name = &network["network"]["name"];
        let further = |a: &Value| a["furtherLeases"].as_array().cloned().unwrap_or_default();
        let holders =
            picture.attachments.iter().flat_map(|a| further(a).into_iter().chain([a.clone()]));
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
    use crate::{DpuPlan, Settings, breach::Harm, soak::ledger::Kind, wait_for};

    /// A lab with one attachment and its grant.
    fn kept_promise() -> (Fleet, Vec<Ledger>, Originals) {
        let settings = Settings::with_vfs(2);
        let lab = Fleet::start(&[DpuPlan { name: "dpu-1", hosts: vec!["node-1"], settings }]);
        let originals = Originals::of(&lab);
        let mut ledger = Ledger::new(0, 0, [Kind::OneByOne].into_iter());
        let pod = &mut ledger.pods[0];
        let result = lab.agents[0].add("blue", pod.netns.as_ref().unwrap(), "eth0").result();
        let promise = Promise::new(result, lab.agents[0].configuration("blue"), 0);
        pod.ports[0].state = State::Promised(Box::new(promise));
        let ledgers = vec![ledger];
        await_harms(&lab, &ledgers, &originals, &[]);
        (lab, ledgers, originals)
    }

    fn await_harms(lab: &Fleet, ledgers: &[Ledger], originals: &Originals, harms: &[Harm]) {
        wait_for(&format!("{harms:?} to be seen"), SETTLE, || {
            (seen(lab, ledgers, originals) == harms).then_some(())
        });
    }

    fn seen(lab: &Fleet, ledgers: &[Ledger], originals: &Originals) -> Vec<Harm> {
        look(lab, ledgers, None, originals).iter().map(|breach| breach.harm).collect()
    }

    #[test]
    fn what_is_lost_is_seen() {
        let (lab, ledgers, originals) = kept_promise();
        lab.agents[0].del("blue", ledgers[0].pods[0].netns.as_ref().unwrap(), "eth0").nothing();
        await_harms(&lab, &ledgers, &originals, &[Harm::Lost]);
    }

    #[test]
    fn what_nobody_has_is_seen() {
        let (lab, mut ledgers, originals) = kept_promise();
        ledgers[0].pods[0].ports[0].state = State::Absent;
        await_harms(&lab, &ledgers, &originals, &[Harm::Leaked]);
    }

    #[test]
    fn an_address_taken_away_in_the_pod_is_seen() {
        let (lab, ledgers, originals) = kept_promise();
        let pod = ledgers[0].pods[0].netns.as_ref().unwrap();
        // The attachment and the grant both differ now, and the agent may restore the address at any time.
        wait_for("two losses to be seen", SETTLE, || {
            pod.ip(&["-4", "address", "flush", "dev", "eth0"]);
            (seen(&lab, &ledgers, &originals) == [Harm::Lost, Harm::Lost]).then_some(())
        });
    }

    #[test]
    fn what_two_were_promised_is_seen() {
        let (lab, mut ledgers, originals) = kept_promise();
        let again = ledgers[0].pods[0].ports[0].state.clone();
        ledgers[0].pods[0].ports[1].state = again;
        // A VF, a MAC address and two addresses, and none of them in the second pod.
        let harms = [Harm::Lost, Harm::Doubled, Harm::Doubled, Harm::Doubled, Harm::Doubled];
        await_harms(&lab, &ledgers, &originals, &harms);
    }

    #[test]
    fn what_is_stacked_on_an_interface_is_seen() {
        let (lab, ledgers, originals) = kept_promise();
        let (pod, elsewhere) = (ledgers[0].pods[0].netns.as_ref().unwrap(), &ledgers[0].elsewhere);
        let stack = ["link", "add", "link", "eth0", "netns", elsewhere.name()];
        pod.ip(&[&stack[..], &["type", "macvlan", "mode", "bridge"]].concat());
        await_harms(&lab, &ledgers, &originals, &[Harm::Unclean]);
    }

    #[test]
    fn what_is_not_as_it_was_is_seen() {
        let (lab, ledgers, mut originals) = kept_promise();
        for reading in originals.0.values_mut() {
            reading.insert("/sys/class/net queues/rx-0/rps_cpus".into(), "3".into());
        }
        // One of the two VFs is free.
        await_harms(&lab, &ledgers, &originals, &[Harm::Unclean]);
    }
}
