//! The addresses of pods, for their gateways.
//!
//! A network that changes its VLAN or bridge takes its gateway along, but not the pods attached before. These are left
//! out: in the new domain another pod may have the same address.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use super::Registry;
use crate::gateway::PodAddress;
use model::Record;

/// The addresses of all held attachments.
pub(crate) fn pod_addresses(registry: &Registry) -> Vec<PodAddress> {
    let held = registry.entries().iter().filter(|entry| entry.is_held());
    held.flat_map(|entry| pod_addresses_of(registry, entry.record())).collect()
}

/// Those of `these` that an attachment holds.
pub(crate) fn pod_addresses_among(registry: &Registry, these: &[PodAddress]) -> Vec<PodAddress> {
    let entries = registry.entries();
    // Link-local addresses are no leases: their holder is found by the MAC address they derive from.
    let holder = |pod: &PodAddress| {
        entries.holder_in(&pod.network, pod.address).or_else(|| entries.by_mac(pod.mac))
    };
    let holders = these.iter().filter_map(holder).filter(|entry| entry.is_held());
    let holders: BTreeMap<_, _> = holders.map(|entry| (entry.record().id, entry)).collect();
    let held = holders.values().flat_map(|entry| pod_addresses_of(registry, entry.record()));
    let these: BTreeSet<IpAddr> = these.iter().map(|pod| pod.address).collect();
    held.filter(|pod| these.contains(&pod.address)).collect()
}

/// The addresses of an attachment's own port, including the link-local one that derives from its MAC address: the pod
/// sends its neighbour solicitations from it.
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
