//! What operators should know of though Attach can be served.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use vf_alloc::{FunctionId, PoolSpec, Selector, VfState};

use super::{
    conflicts,
    networks::too_large_for_uplinks,
    operators::Operators,
    registry::{Entry, PooledNetwork, Registry},
    requirements::unmet,
};
use crate::model::{GatewayMode, HostName, Network};

/// How many of the attachments that a host has lost track of are named in a warning.
const UNCLAIMED_SHOWN: usize = 3;

/// Likewise, of those whose representor is missing or not as it should be.
const FIRST_SHOWN: usize = 2;

impl Operators<'_> {
    /// What operators should know of though Attach can be served, one sentence each.
    #[must_use]
    pub fn warnings(self) -> Vec<String> {
        let registry = self.0.registry();
        let suspended = registry.networks().suspended().map(|(name, why)| {
            format!("network {name}, made through the API, is not in force: {why}")
        });
        let networks = registry.networks().iter();
        let too_large = networks.filter_map(|entry| too_large_for_uplinks(self.0, entry.network()));
        let fabric = self.0.reconciler.fabric_problem().filter(|problem| problem.is_partial);
        let fabric = fabric.map(|problem| problem.what);
        let unserved = self.0.programmer().problems();
        let gateways = self.0.gateways().problems();
        let in_force = registry.networks().iter().map(|entry| &**entry.network());
        let overlaps = registry.entries().conflicts_with_host_ports(in_force);
        let of_networks =
            suspended.chain(too_large).chain(unmet(self.0, &registry)).chain(overlaps);
        let of_kernel = fabric.into_iter().chain(unserved).chain(gateways);
        let of_hosts = unclaimed(&registry).into_iter().chain(of_removed_hosts(&registry));
        let held = registry.networks().conflicts_with_leases(registry.entries());
        let of_attachments = former_gateways(&registry).into_iter().chain(held).chain(of_hosts);
        of_networks.chain(of_attachments).chain(unowned(&registry)).chain(of_kernel).collect()
    }

    /// What operators should know of VFs and attachments, one sentence for all of a kind: [`Self::examine_dpu`] finds them
    /// one by one.
    #[must_use]
    pub fn vf_warnings(self) -> Vec<String> {
        let registry = self.0.registry();
        let pools = registry.vfs().pools().filter_map(|pool| quarantined(&registry, pool));
        let of_ports = [without_representors(&registry), beyond_repair(&registry)];
        let conflicts = conflicts::warnings(&registry);
        of_ports.into_iter().flatten().chain(pools).chain(conflicts).collect()
    }
}

/// One sentence for each network whose attachments use a gateway that is no longer there.
fn former_gateways(registry: &Registry) -> Vec<String> {
    let mut users = BTreeMap::<&str, Vec<&Entry>>::new();
    for entry in registry.entries().iter().filter(|entry| entry.is_held()) {
        let then = &entry.record().network;
        let now = registry.networks().get(&then.name).map(PooledNetwork::network);
        if now.is_none_or(|now| !Arc::ptr_eq(then, now)) && has_lost_gateway(then, now) {
            users.entry(&then.name).or_default().push(entry);
        }
    }
    let tell = |(network, users): (&str, Vec<&Entry>)| {
        let (number, shown) = told(users.into_iter())?;
        let attachments = if number == 1 { "attachment uses" } else { "attachments use" };
        Some(format!(
            "network {network}: {number} {attachments} a gateway that the network no longer has, among them {shown}: \
             recreate their pods"
        ))
    };
    users.into_iter().filter_map(tell).collect()
}

/// Whether attachments of the network as it was `then` have a gateway that does not answer them `now`. A router answers
/// whatever becomes of the network; of a network that was deleted, nothing is known of it.
fn has_lost_gateway(then: &Network, now: Option<&Arc<Network>>) -> bool {
    let Some(now) = now else {
        return then.gateway_mode == GatewayMode::Dpu && gateways(then).next().is_some();
    };
    let is_moved = then.gateway_mode == GatewayMode::Dpu
        && ((now.gateway_mode, &now.bridge, now.vlan)
            != (GatewayMode::Dpu, &then.bridge, then.vlan));
    gateways(then).any(|gateway| is_moved || gateways(now).all(|current| current != gateway))
}

fn gateways(network: &Network) -> impl Iterator<Item = IpAddr> {
    network.subnets.iter().filter_map(|subnet| subnet.gateway)
}

/// One sentence for each host that has lost track of attachments.
fn unclaimed(registry: &Registry) -> Vec<String> {
    let tell = |host: &HostName| {
        let unclaimed = registry.entries().of_host(host).filter(|entry| entry.is_unclaimed());
        let ids: Vec<_> = unclaimed.map(|entry| entry.record().id.to_string()).collect();
        let shown = ids.iter().take(UNCLAIMED_SHOWN).cloned().collect::<Vec<_>>().join(", ");
        (!ids.is_empty()).then(|| {
            format!(
                "host {host} does not know {} of its attachments, whose VFs it does not have \
                 back: they are kept; release those whose pods have gone: {shown}",
                ids.len()
            )
        })
    };
    registry.hosts().names().filter_map(tell).collect()
}

/// One sentence for each host that was removed from the configuration and has attachments.
fn of_removed_hosts(registry: &Registry) -> Vec<String> {
    let mut removed = BTreeMap::<&HostName, usize>::new();
    for entry in registry.entries().iter() {
        let host = &entry.record().key.host;
        if !registry.hosts().serves(host) {
            *removed.entry(host).or_default() += 1;
        }
    }
    let tell = |(host, attachments): (&HostName, usize)| {
        format!(
            "host {host} is not in the configuration, and {attachments} of its attachments go on: put it back, or end \
             them by `dpuctl release --host {host} --reason TEXT`"
        )
    };
    removed.into_iter().map(tell).collect()
}

/// One sentence for each pool that names a PF of no host.
fn unowned(registry: &Registry) -> Vec<String> {
    let is_unowned = |selector: &&Selector| match selector {
        Selector::Functions { pf, .. } => registry.hosts().owner(*pf).is_none(),
        _ => false,
    };
    let tell = |pool: &PoolSpec| {
        let selector = pool.select.iter().find(is_unowned)?;
        Some(format!(
            "pool {} selects {selector}, and no [[host]] has that PF in its pfs: add it to one, or change the pool",
            pool.name
        ))
    };
    registry.vfs().pools().filter_map(tell).collect()
}

/// One sentence for all attachments whose representors have been missing for some time: a card
/// that was reset soon has them again.
fn without_representors(registry: &Registry) -> Option<String> {
    let patience = registry.settings().missing_told_after;
    let is_missing = |entry: &&Entry| {
        entry.is_held() && entry.missing_for().is_some_and(|missing| missing >= patience)
    };
    let (number, shown) = told(registry.entries().iter().filter(is_missing))?;
    Some(format!(
        "this DPU has no representor for {number} of its attachments, whose pods are cut off, among them {shown}: look \
         at the card, and run `dpuctl doctor`"
    ))
}

/// One sentence for all attachments whose representors can't be programmed as they should be.
fn beyond_repair(registry: &Registry) -> Option<String> {
    let is_it = |entry: &&Entry| entry.is_held() && entry.is_beyond_repair();
    let (number, shown) = told(registry.entries().iter().filter(is_it))?;
    Some(format!(
        "{number} attachments can't be programmed as they should be, so that their pods may be cut \
         off, or send what they must not, among them {shown}: `dpuctl doctor` says why"
    ))
}

/// How many they are, and the first of them. `None`: there is none.
fn told<'a>(entries: impl Iterator<Item = &'a Entry>) -> Option<(usize, String)> {
    let mut records: Vec<_> = entries.map(Entry::record).collect();
    records.sort_by_key(|record| record.vf);
    let shown = records.iter().take(FIRST_SHOWN);
    let shown: Vec<_> = shown.map(|record| format!("{} ({})", record.id, record.vf)).collect();
    (!records.is_empty()).then(|| (records.len(), shown.join(" and ")))
}

/// One sentence if nothing but quarantine keeps the pool from having a VF to give.
fn quarantined(registry: &Registry, pool: &PoolSpec) -> Option<String> {
    let vfs = registry.vfs();
    let usage = vfs.usage(&pool.name).unwrap_or_default();
    if usage.free > 0 {
        return None;
    }
    let is_in_pool = |vf: FunctionId| vfs.pools_of(vf).any(|name| name == pool.name);
    // Without a port it could not be given out either.
    let quarantined = vfs.vfs().filter(|view| {
        view.has_port && matches!(view.state, VfState::Quarantined { .. }) && is_in_pool(view.vf)
    });
    let quarantined: Vec<_> = quarantined.map(|view| view.vf).collect();
    let first = quarantined.first()?;
    Some(format!(
        "pool {} has no free VF, and {} in quarantine: mend what `dpuctl get vfs` says of each, \
         then clear it, such as by `dpuctl clear-quarantine {first}`",
        pool.name,
        quarantined.len()
    ))
}
