//! The addresses of pods, as their gateways know them.
//!
//! A network that has got another VLAN or bridge has taken its gateway along. Pods that were attached before the change
//! are not there: the gateway may meet another pod that has the same address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::Registry;
use crate::{gateway::PodAddress, model::Record};

/// The addresses of all attachments that are held.
pub(crate) fn pod_addresses(registry: &Registry) -> Vec<PodAddress> {
    let held = registry.entries().iter().filter(|entry| entry.is_held());
    held.flat_map(|entry| pod_addresses_of(registry, entry.record())).collect()
}

/// Those of `these` that an attachment holds.
pub(crate) fn pod_addresses_among(registry: &Registry, these: &[PodAddress]) -> Vec<PodAddress> {
    let entries = registry.entries();
    // No attachment holds a link-local address: it follows from the MAC address.
    let holder = |pod: &PodAddress| {
        entries.holder_in(&pod.network, pod.address).or_else(|| entries.by_mac(pod.mac))
    };
    let holders = these.iter().filter_map(holder).filter(|entry| entry.is_held());
    let holders: BTreeMap<_, _> = holders.map(|entry| (entry.record().id, entry)).collect();
    let held = holders.values().flat_map(|entry| pod_addresses_of(registry, entry.record()));
    let these: BTreeSet<IpAddr> = these.iter().map(|pod| pod.address).collect();
    held.filter(|pod| these.contains(&pod.address)).collect()
}

/// Those of an attachment's own port, with the link-local one that follows from its MAC address: by that a pod asks for
/// its neighbours.
pub(crate) fn pod_addresses_of(registry: &Registry, record: &Record) -> Vec<PodAddress> {
    if !registry.networks().has_stayed(&record.network) {
        return Vec::new();
    }
    let leased = || record.leases.iter().map(|lease| lease.address.ip());
    let own = leased().any(|address| address.is_ipv6()).then(|| record.mac.link_local().into());
    let pod =
        |address| PodAddress { network: Arc::clone(&record.network), address, mac: record.mac };
    leased().chain(own).map(pod).collect()
}
