//! Faults of attachments, networks and pools, for conditions.

use std::{collections::BTreeMap, time::Duration};

use offload_proto::{ConditionReason, v1};
use vf_alloc::{FunctionId, PoolSpec, Selector, VfState};

use super::{
    conflicts, former_gateways,
    listing::number_and_first,
    networks::too_large_for_uplinks,
    operators::Operators,
    registry::{Entry, Registry},
    requirements::unmet,
};
use crate::conditions::Fault;
use drivers::programmer::Uplink;
use model::HostName;

/// How many unclaimed attachments of a host a message names.
const UNCLAIMED_SHOWN: usize = 3;

/// How many unrecorded VFs of a host a message names.
const FIRST_SHOWN: usize = 2;

/// Time after which a release counts as stuck; most take less than a second.
const RELEASED_AFTER: Duration = Duration::from_secs(30);

impl Operators<'_> {
    /// All faults that do not keep Attach from being served.
    pub(crate) fn faults(self) -> Vec<Fault> {
        let configurations = host_configurations(self);
        [self.network_faults(), self.driver_faults(), self.attachment_faults(), configurations]
            .concat()
    }

    /// Faults of networks and of their pools.
    pub fn network_faults(self) -> Vec<Fault> {
        let registry = self.0.registry();
        let networks = || registry.networks().iter().map(|entry| &**entry.network());
        let suspended = registry.networks().suspended().map(|(name, why)| {
            let message = format!("network {name}, made through the API, is not in force: {why}");
            Fault::of_network(ConditionReason::NetworkSuspended, name, message)
        });
        let too_large = networks().filter_map(|network| {
            let message = too_large_for_uplinks(self.0, network)?;
            Some(Fault::of_network(ConditionReason::MtuTooLarge, &network.name, message))
        });
        let overlaps = networks().filter_map(|network| {
            let message = registry.entries().conflict_with_host_port(network)?;
            Some(Fault::of_network(ConditionReason::SubnetConflict, &network.name, message))
        });
        let of_networks =
            suspended.chain(too_large).chain(unmet(self.0, &registry)).chain(overlaps);
        of_networks.chain(unowned(&registry)).collect()
    }

    /// Faults of eswitch, fabric and gateways.
    pub fn driver_faults(self) -> Vec<Fault> {
        let partial = self.0.reconciler.fabric_problem.lock().clone();
        let partial = partial
            .filter(|problem| problem.is_partial)
            .map(|problem| Fault::of_dpu(ConditionReason::FabricIncomplete, problem.what));
        let unserved = self.0.programmer().problems().into_iter();
        let unserved = unserved.map(|it| Fault::of_dpu(ConditionReason::PortsUnserved, it));
        partial.into_iter().chain(unserved).chain(self.0.gateways.faults()).collect()
    }

    /// Faults of attachments and their VFs, one for all of a host, network or pool. [`Self::examine_dpu`] lists each.
    pub fn attachment_faults(self) -> Vec<Fault> {
        let registry = self.0.registry();
        let held = registry.networks().conflicts_with_leases(registry.entries()).into_iter();
        let held = held.map(|(network, message)| {
            Fault::of_network(ConditionReason::AddressTaken, network, message)
        });
        let of_networks = former_gateways::faults(&registry).into_iter().chain(held);
        let pools = registry.vfs().pools().filter_map(|pool| quarantined(&registry, pool));
        let all =
            of_networks.chain(by_hosts(&registry)).chain(of_removed_hosts(&registry)).chain(pools);
        all.chain(conflicts::faults(&registry)).chain(pods(self)).collect()
    }

    /// Faults of the uplinks. Reads the links that have the configured names now.
    pub(crate) async fn uplink_faults(self) -> Vec<Fault> {
        match self.0.ports.uplink_links().await {
            Ok(uplinks) => uplinks.iter().filter_map(uplink_fault).collect(),
            Err(failure) => {
                vec![Fault::of_dpu(ConditionReason::UplinksUnreadable, failure.message)]
            }
        }
    }
}

/// `None`: the uplink carries frames.
fn uplink_fault(uplink: &Uplink) -> Option<Fault> {
    let advice = uplink.finding()?.advice_for(&uplink.name);
    let message = format!("{}; {advice}", uplink.problem()?);
    Some(Fault { reason: uplink.condition()?, object: format!("uplink/{}", uplink.name), message })
}

/// Faults of attachments, one of each kind for a host.
fn by_hosts(registry: &Registry) -> Vec<Fault> {
    let is_suspect = |entry: &&Entry| {
        !entry.is_held()
            || entry.is_unclaimed()
            || entry.is_beyond_repair()
            || entry.missing_for().is_some()
    };
    let mut suspects = BTreeMap::<&HostName, Vec<&Entry>>::new();
    for entry in registry.entries().iter().filter(is_suspect) {
        suspects.entry(&entry.record().key.host).or_default().push(entry);
    }
    let faults = suspects.into_iter().flat_map(|(host, entries)| of_host(registry, host, &entries));
    faults.chain(unrecorded(registry)).collect()
}

fn of_host(registry: &Registry, host: &HostName, suspects: &[&Entry]) -> Vec<Fault> {
    let grace = registry.settings().missing_reported_after;
    let faults = [
        (ConditionReason::RepresentorMissing, without_representors(suspects, grace)),
        (ConditionReason::RepairFailed, beyond_repair(suspects)),
        (ConditionReason::AttachmentUnclaimed, unclaimed(suspects, host)),
        (ConditionReason::ReleaseStuck, stuck_releases(suspects, host)),
    ];
    let fault =
        |(reason, message): (_, Option<String>)| Some(Fault::of_host(reason, host, message?));
    faults.into_iter().filter_map(fault).collect()
}

/// One sentence on the host's unclaimed attachments.
fn unclaimed(suspects: &[&Entry], host: &HostName) -> Option<String> {
    let unclaimed = suspects.iter().filter(|entry| entry.is_unclaimed());
    let ids: Vec<_> = unclaimed.map(|entry| entry.record().id.to_string()).collect();
    let shown = ids.iter().take(UNCLAIMED_SHOWN).cloned().collect::<Vec<_>>().join(", ");
    (!ids.is_empty()).then(|| {
        format!(
            "host {host} does not know {} of this DPU and does not have the VFs back: release \
             what has no pod any more: {shown}",
            counted(ids.len(), "attachment")
        )
    })
}

/// One fault for each host with VFs in pods that the journal does not have: the journal was lost or is older than the
/// pods.
fn unrecorded(registry: &Registry) -> Vec<Fault> {
    let mut by_host = BTreeMap::<&HostName, Vec<String>>::new();
    for vf in &registry.anomalies().unaccounted {
        if let Some(host) = registry.hosts().owner(vf.pf) {
            by_host.entry(host).or_default().push(vf.to_string());
        }
    }
    let fault = |(host, vfs): (&HostName, Vec<String>)| {
        let shown = vfs.iter().take(FIRST_SHOWN).cloned().collect::<Vec<_>>().join(" and ");
        let message = format!(
            "host {host} has {} in pods that this DPU's journal does not know, among them {shown}: these pods are \
             cut off; recreate them",
            counted(vfs.len(), "VF")
        );
        Fault::of_host(ConditionReason::AttachmentUnrecorded, host, message)
    };
    by_host.into_iter().map(fault).collect()
}

/// One fault for each host whose agent reports pods that differ from their attachments.
fn pods(operators: Operators<'_>) -> Vec<Fault> {
    let fault = |(host, first, number): (HostName, v1::Finding, usize)| {
        let message = format!(
            "host {host} reports {} with {} in the pod, among them {} ({}): `dpuctl doctor` names each, and what to do",
            counted(number, "attachment"),
            if number == 1 { "a finding" } else { "findings" },
            first.subject,
            first.message
        );
        Fault::of_host(ConditionReason::PodDiffers, &host, message)
    };
    operators.0.sessions.pod_findings().into_iter().map(fault).collect()
}

/// One fault for each host whose agent refused its configuration file.
fn host_configurations(operators: Operators<'_>) -> Vec<Fault> {
    let fault = |(host, problem): (HostName, String)| {
        let reason = ConditionReason::HostConfigurationRefused;
        Fault::of_host(reason, &host, format!("host {host}: {problem}"))
    };
    operators.0.sessions.configuration_problems().into_iter().map(fault).collect()
}

/// Formats a count, such as `1 VF` or `2 VFs`.
fn counted(number: usize, noun: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{ending}")
}

/// One sentence on the host's releases that do not end.
fn stuck_releases(suspects: &[&Entry], host: &HostName) -> Option<String> {
    let is_stuck =
        |entry: &&Entry| !entry.is_held() && !entry.is_releasing_for_less_than(RELEASED_AFTER);
    let (number, shown) = number_and_first(suspects.iter().copied().filter(is_stuck))?;
    Some(format!(
        "host {host} keeps {} in Releasing, so that VFs and addresses are not free, among them {shown}: see that \
         the host's agent runs, and `dpuctl describe attachment`",
        counted(number, "attachment")
    ))
}

/// One fault for each host with attachments that is no longer configured.
fn of_removed_hosts(registry: &Registry) -> Vec<Fault> {
    let mut removed = BTreeMap::<&HostName, usize>::new();
    for entry in registry.entries().iter() {
        let host = &entry.record().key.host;
        if !registry.hosts().serves(host) {
            *removed.entry(host).or_default() += 1;
        }
    }
    let fault = |(host, attachments): (&HostName, usize)| {
        let message = format!(
            "host {host} is not in the configuration and has {}: put the host back, or end what it has by `dpuctl \
             release --host {host} --reason TEXT`",
            counted(attachments, "attachment")
        );
        Fault::of_host(ConditionReason::HostRemoved, host, message)
    };
    removed.into_iter().map(fault).collect()
}

/// One fault for each pool that selects a PF of no host.
fn unowned(registry: &Registry) -> Vec<Fault> {
    let is_unowned = |selector: &&Selector| match selector {
        Selector::Functions { pf, .. } => registry.hosts().owner(*pf).is_none(),
        _ => false,
    };
    let fault = |pool: &PoolSpec| {
        let selector = pool.select.iter().find(is_unowned)?;
        let message = format!(
            "pool {} selects {selector}, and no [[host]] has that PF in its pfs: add it to one, or change the pool",
            pool.name
        );
        Some(Fault::of_pool(ConditionReason::PoolWithoutHost, &pool.name, message))
    };
    registry.vfs().pools().filter_map(fault).collect()
}

/// One sentence on the host's attachments whose representors have been missing for longer than `grace`: after a reset
/// the card soon creates them again.
fn without_representors(suspects: &[&Entry], grace: Duration) -> Option<String> {
    let is_missing = |entry: &&Entry| {
        entry.is_held() && entry.missing_for().is_some_and(|missing| missing >= grace)
    };
    let (number, shown) = number_and_first(suspects.iter().copied().filter(is_missing))?;
    Some(format!(
        "this DPU has no representor for {}, so that pods are cut off, among them {shown}: look at the card, and run \
         `dpuctl doctor`",
        counted(number, "attachment")
    ))
}

/// One sentence on the host's attachments whose representors cannot be programmed.
fn beyond_repair(suspects: &[&Entry]) -> Option<String> {
    let is_it = |entry: &&Entry| entry.is_held() && entry.is_beyond_repair();
    let (number, shown) = number_and_first(suspects.iter().copied().filter(is_it))?;
    Some(format!(
        "{} can't be programmed, so that pods may be cut off, or send what they must not, among them {shown}: `dpuctl \
         doctor` says why",
        counted(number, "attachment")
    ))
}

/// A fault if the pool has no free VF and only quarantine is the cause.
fn quarantined(registry: &Registry, pool: &PoolSpec) -> Option<Fault> {
    let vfs = registry.vfs();
    let usage = vfs.usage(&pool.name).unwrap_or_default();
    if usage.free > 0 {
        return None;
    }
    let is_in_pool = |vf: FunctionId| vfs.pools_of(vf).any(|name| name == pool.name);
    // A VF without a port is unavailable for that reason already.
    let quarantined = vfs.vfs().filter(|view| {
        view.has_port && matches!(view.state, VfState::Quarantined { .. }) && is_in_pool(view.vf)
    });
    let quarantined: Vec<_> = quarantined.map(|view| view.vf).collect();
    let first = quarantined.first()?;
    let message = format!(
        "pool {} has no free VF, and {} in quarantine: repair what `dpuctl get vfs` says of each, \
         then clear it, such as by `dpuctl clear-quarantine {first}`",
        pool.name,
        quarantined.len()
    );
    Some(Fault::of_pool(ConditionReason::PoolQuarantined, &pool.name, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_kind_is_singular() {
        assert_eq!([0, 1, 2].map(|number| counted(number, "VF")), ["0 VFs", "1 VF", "2 VFs"]);
    }
}
