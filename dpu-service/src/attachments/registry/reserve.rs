//! Reserves VF, MAC address and addresses as one unit: all of them or nothing.

use std::sync::Arc;

use jiff::Timestamp;
use offload_proto::{Failure, Reason};
use uuid::Uuid;
use vf_alloc::{FunctionId, Request, ReserveError, VfFacts};

use super::{
    Entry, Registry,
    macs::choose_mac,
    mapped_ports::check_mapped_ports,
    networks::{check_families, distinct_addresses},
};
use crate::host::Asked;
use model::{AttachSpec, AttachmentId, Bandwidth, FurtherLease, LeaseSpec, Network, Phase, Record};

impl Registry {
    /// Reserves what `spec` needs, in memory only. The caller records and programs it.
    pub(crate) fn reserve(
        &mut self,
        spec: &AttachSpec,
        asked: Asked,
        boot_id: String,
        now: u64,
    ) -> Result<Arc<Record>, Failure> {
        let reserved = self.reserve_all_of(spec, asked, boot_id, now);
        reserved.map_err(|refusal| self.or_releasing(self.with_holder(refusal, spec), spec))
    }

    fn reserve_all_of(
        &mut self,
        spec: &AttachSpec,
        asked: Asked,
        boot_id: String,
        now: u64,
    ) -> Result<Arc<Record>, Failure> {
        check_room(self.entries.len(), self.settings.attachments)?;
        let rights = self.hosts.rights(&spec.key.host);
        // Before the lookup: a host must not learn whether a network exists that it may not use.
        rights.check_name(&spec.key.host, spec.interface.named_network())?;
        let network = Arc::clone(self.networks.find(spec.interface.named_network())?.network());
        let (networks, prefix) = (&self.networks, &self.settings.mac_prefix);
        rights.check(spec, &network, prefix)?;
        check_families(spec, &network)?;
        check_mapped_ports(spec, &network, self)?;
        if spec.key.is_host_port() {
            let in_force = networks.iter().map(|entry| &**entry.network());
            self.entries.check_host_port(&network, in_force, &rights)?;
        }
        let addresses = distinct_addresses(spec, &network)?;
        let mac = choose_mac(&self.entries, spec, &rights, prefix, networks)?;
        let id = AttachmentId(Uuid::now_v7());
        // The first reservation: everything before only checks, so its errors need no undo.
        let (vf, facts) = self.reserve_vf(spec, &network, id)?;
        let leases = self.networks.reserve(spec, &addresses, &network, id, now);
        // Each failure undoes the earlier reservations: a refusal leaves nothing behind.
        let leases = leases.inspect_err(|_| {
            self.vfs.forget(&id);
        })?;
        let further_leases = self.reserve_further(spec, &network, id, now).inspect_err(|_| {
            self.networks.forget_unfinished(&network, id, now);
            self.vfs.forget(&id);
        })?;
        let record = Arc::new(Record {
            id,
            key: spec.key.clone(),
            phase: Phase::Held,
            pod: spec.pod.clone(),
            vf,
            device: facts.map(|facts| facts.device).unwrap_or_default(),
            mac,
            leases,
            further_leases,
            bandwidth: tighter(&network.bandwidth, &spec.interface.bandwidth),
            port_mappings: spec.interface.port_mappings.clone(),
            asked_sources: spec.interface.allowed_sources.clone(),
            families: spec.interface.families,
            named_networks: self.networks.named_in(&network),
            network,
            group_interface: spec.group_interface.clone(),
            boot_id,
            created_at: Timestamp::now().as_millisecond(),
        });
        // Before the record is durable: no other flow may get the VF, the MAC or the addresses.
        self.entries.insert(Entry::reserved(Arc::clone(&record), asked));
        Ok(record)
    }

    /// Reserves addresses for interfaces of other plugins: all of them or nothing.
    fn reserve_further(
        &mut self,
        spec: &AttachSpec,
        network: &Network,
        id: AttachmentId,
        now: u64,
    ) -> Result<Vec<FurtherLease>, Failure> {
        let mut reserved: Vec<FurtherLease> = Vec::new();
        for wanted in &spec.further_leases {
            let taken = [network].into_iter().chain(reserved.iter().map(|its| &*its.network));
            let taken: Vec<_> = taken.map(|network| network.name.clone()).collect();
            match self.reserve_lease(spec, wanted, &taken, id, now) {
                Ok(lease) => reserved.push(lease),
                Err(failure) => {
                    for its in &reserved {
                        self.networks.forget_unfinished(&its.network, id, now);
                    }
                    return Err(failure);
                }
            }
        }
        Ok(reserved)
    }

    /// Reserves addresses of one further network, under the same rights as an attach to it. `taken`: networks in which
    /// the attachment already has an address.
    fn reserve_lease(
        &mut self,
        spec: &AttachSpec,
        wanted: &LeaseSpec,
        taken: &[String],
        id: AttachmentId,
        now: u64,
    ) -> Result<FurtherLease, Failure> {
        let LeaseSpec { interface_name, network, .. } = wanted;
        self.hosts.rights(&spec.key.host).check_name(&spec.key.host, Some(network))?;
        let network = Arc::clone(self.networks.find(Some(network))?.network());
        let refused = |why: &str| {
            let message =
                format!("an address of network {} for {interface_name}: {why}", network.name);
            Err(Failure::new(Reason::InvalidRequest, message))
        };
        if taken.contains(&network.name) {
            return refused("the attachment has one already: name another network");
        }
        if network.subnets.is_empty() {
            return refused("the network has no subnet: give it one, or name another network");
        }
        let its = spec.of_lease(wanted);
        self.hosts.rights(&spec.key.host).check(&its, &network, &self.settings.mac_prefix)?;
        let addresses = distinct_addresses(&its, &network)?;
        let leases = self.networks.reserve(&its, &addresses, &network, id, now)?;
        Ok(FurtherLease { interface_name: Arc::clone(interface_name), network, leases })
    }

    fn reserve_vf(
        &mut self,
        spec: &AttachSpec,
        network: &Network,
        id: AttachmentId,
    ) -> Result<(FunctionId, Option<VfFacts>), Failure> {
        let host = self.hosts.number(&spec.key.host)?;
        let pinned = spec.interface.device.as_ref();
        let offered = spec.offered.as_ref();
        let request = Request { host, pool: &network.pool, pinned, offered };
        let vf = self.vfs.reserve(&request, id);
        let vf = vf.map_err(|error| vf_failure(&error, offered.is_some()))?;
        Ok((vf, self.vfs.facts(vf).cloned()))
    }
}

fn check_room(held: usize, limit: usize) -> Result<(), Failure> {
    if held < limit {
        return Ok(());
    }
    Err(Failure::new(
        Reason::Overloaded,
        format!("this DPU serves as many attachments as limits.attachments allows: {limit}"),
    ))
}

/// The tighter of the network's and the requested limits.
pub(crate) fn tighter(network: &Bandwidth, asked: &Bandwidth) -> Bandwidth {
    let (ingress_rate, ingress_burst) = tighter_rate(
        (network.ingress_rate, network.ingress_burst),
        (asked.ingress_rate, asked.ingress_burst),
    );
    let (egress_rate, egress_burst) = tighter_rate(
        (network.egress_rate, network.egress_burst),
        (asked.egress_rate, asked.egress_burst),
    );
    // A guaranteed share above the limit would be pointless.
    let egress_share = match egress_rate {
        0 => network.egress_share,
        rate => network.egress_share.min(rate),
    };
    Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst, egress_share }
}

/// The tighter of two rates with their bursts. A rate of 0 means no limit.
fn tighter_rate(network: (u64, u64), asked: (u64, u64)) -> (u64, u64) {
    match (network, asked) {
        (network, (0, _)) => network,
        ((0, _), asked) => asked,
        (network, asked) if asked.0 < network.0 => asked,
        (network, _) => network,
    }
}

/// `is_named`: the request names an offered VF.
fn vf_failure(error: &ReserveError, is_named: bool) -> Failure {
    let reason = match error {
        ReserveError::PoolUnknown { .. } => Reason::InvalidRequest,
        // The free VFs are offered to the host, whose agent may not have received the offers yet.
        ReserveError::Exhausted { usage, .. } if usage.free > 0 => Reason::VfsOffered,
        ReserveError::NotOffered { .. } if !is_named => Reason::VfsOffered,
        ReserveError::Exhausted { .. } => Reason::VfsExhausted,
        ReserveError::PinnedOnly { .. } => Reason::PoolPinnedOnly,
        ReserveError::PinnedUnknown { .. } => Reason::VfUnknown,
        ReserveError::PinnedNotFree { .. }
        | ReserveError::NotOffered { .. }
        | ReserveError::PinnedNotInPool { .. } => Reason::VfNotFree,
        // The id is new, so it holds nothing yet.
        ReserveError::KeyHoldsAnother { .. }
        | ReserveError::KeyReleasing { .. }
        | ReserveError::OtherHost { .. } => Reason::Internal,
    };
    let message = match error {
        ReserveError::PoolUnknown { .. } => {
            format!("{error}: list the pools with `dpuctl get pools`")
        }
        ReserveError::PinnedOnly { pool } => format!(
            "{error}: have the pod ask for dpu-offload.io/{pool}, or with the agent's own `device_plugin.prefix`"
        ),
        _ => error.to_string(),
    };
    Failure::new(reason, message)
}

#[cfg(test)]
mod tests {
    use super::tighter_rate;

    #[test]
    fn smaller_rate_counts_and_zero_is_no_limit() {
        for (network, asked, tighter) in [
            ((0, 0), (0, 0), (0, 0)),
            ((0, 0), (5, 1), (5, 1)),
            ((5, 1), (0, 0), (5, 1)),
            ((5, 1), (4, 2), (4, 2)),
            ((5, 1), (5, 2), (5, 1)),
            ((5, 1), (6, 2), (5, 1)),
        ] {
            assert_eq!(tighter_rate(network, asked), tighter, "{network:?} and {asked:?}");
        }
    }
}
