//! Attachments whose gateway their network no longer has.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use offload_proto::{ConditionReason, FindingCode, v1::Finding};

use super::{
    listing::number_and_first,
    registry::{Entry, PooledNetwork, Registry},
};
use crate::conditions::Fault;
use model::{GatewayMode, Network};

/// One fault for each network that has such attachments.
pub(super) fn faults(registry: &Registry) -> Vec<Fault> {
    let mut by_network = BTreeMap::<&str, Vec<&Entry>>::new();
    for entry in users(registry) {
        by_network.entry(&entry.record().network.name).or_default().push(entry);
    }
    let fault = |(network, users): (&str, Vec<&Entry>)| {
        let (number, shown) = number_and_first(users.into_iter())?;
        let attachments = if number == 1 { "attachment uses" } else { "attachments use" };
        let message = format!(
            "network {network}: {number} {attachments} a gateway that the network no longer has, among them {shown}: \
             recreate their pods"
        );
        Some(Fault::of_network(ConditionReason::GatewayGone, network, message))
    };
    by_network.into_iter().filter_map(fault).collect()
}

/// One finding for each such attachment, for `dpuctl doctor`.
pub(super) fn findings(registry: &Registry) -> Vec<Finding> {
    let finding = |entry: &Entry| {
        let record = entry.record();
        let gateways: Vec<_> = gateways(&record.network).map(|ip| ip.to_string()).collect();
        let message = format!(
            "{} uses gateway {} of network {}, which the network no longer has",
            record.key,
            gateways.join(" and "),
            record.network.name
        );
        FindingCode::GatewayGone.of(record.id, message)
    };
    users(registry).map(finding).collect()
}

fn users(registry: &Registry) -> impl Iterator<Item = &Entry> {
    let is_user = |entry: &&Entry| {
        let then = &entry.record().network;
        let now = registry.networks().get(&then.name).map(PooledNetwork::network);
        now.is_none_or(|now| !Arc::ptr_eq(then, now)) && has_lost_gateway(then, now)
    };
    registry.entries().iter().filter(|entry| entry.is_held()).filter(is_user)
}

/// Whether attachments of the network as it was `then` have a gateway that does not answer `now`. A router answers
/// whatever happens to the network; whether the router of a deleted network still exists is unknown.
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
