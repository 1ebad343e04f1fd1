//! Reserving a VF, a MAC address and addresses as one unit: all of them or nothing.

use std::sync::Arc;

use jiff::Timestamp;
use offload_proto::{Failure, Reason};
use uuid::Uuid;
use vf_alloc::{FunctionId, Request, ReserveError, VfFacts};

use super::{Entry, Registry, mapped_ports::check_mapped_ports, networks::distinct_addresses};
use crate::{
    host::Asked,
    model::{AttachSpec, AttachmentId, Bandwidth, Network, Phase, Record},
};

impl Registry {
    /// Reserves for `spec` all that it needs. Only in memory: journal and kernel come next.
    pub(crate) fn reserve(
        &mut self,
        spec: &AttachSpec,
        asked: Asked,
        boot_id: String,
        now: u64,
    ) -> Result<Arc<Record>, Failure> {
        check_room(self.entries.len(), self.settings.attachments)?;
        let network = Arc::clone(self.networks.find(spec.network.as_deref())?.network());
        let (networks, prefix) = (&self.networks, &self.settings.mac_prefix);
        self.hosts.rights(&spec.key.host).check(spec, &network, prefix)?;
        check_mapped_ports(spec, &network, self)?;
        let addresses = distinct_addresses(spec, &network)?;
        let mac = self.entries.choose_mac(spec.mac, prefix, networks)?;
        let id = AttachmentId(Uuid::now_v7());
        let (vf, facts) = self.reserve_vf(spec, &network, id)?;
        let leases = self.networks.reserve(spec, &addresses, &network, id, now);
        let leases = leases.inspect_err(|_| {
            self.vfs.release(&id);
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
            bandwidth: tighter(&network.bandwidth, &spec.bandwidth),
            port_mappings: spec.port_mappings.clone(),
            asked_sources: spec.asked_sources.clone(),
            named_networks: self.networks.named_in(&network),
            network,
            lead: spec.lead.clone(),
            boot_id,
            created_at: Timestamp::now().as_millisecond(),
        });
        self.entries.insert(Entry::reserved(Arc::clone(&record), asked));
        Ok(record)
    }

    fn reserve_vf(
        &mut self,
        spec: &AttachSpec,
        network: &Network,
        id: AttachmentId,
    ) -> Result<(FunctionId, Option<VfFacts>), Failure> {
        let host = self.hosts.number(&spec.key.host)?;
        let request = Request { host, pool: &network.pool, pinned: spec.device.as_ref() };
        let vf = self.vfs.reserve(&request, id).map_err(|error| vf_failure(&error))?;
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

/// The network's limits, or tighter ones that were asked for.
pub(crate) fn tighter(network: &Bandwidth, asked: &Bandwidth) -> Bandwidth {
    let (ingress_rate, ingress_burst) = tighter_rate(
        (network.ingress_rate, network.ingress_burst),
        (asked.ingress_rate, asked.ingress_burst),
    );
    let (egress_rate, egress_burst) = tighter_rate(
        (network.egress_rate, network.egress_burst),
        (asked.egress_rate, asked.egress_burst),
    );
    // Nobody is sure of more than it may send.
    let egress_share = match egress_rate {
        0 => network.egress_share,
        rate => network.egress_share.min(rate),
    };
    Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst, egress_share }
}

/// Rates with their bursts; a rate of 0 is no limit.
fn tighter_rate(network: (u64, u64), asked: (u64, u64)) -> (u64, u64) {
    match (network, asked) {
        (network, (0, _)) => network,
        ((0, _), asked) => asked,
        (network, asked) if asked.0 < network.0 => asked,
        (network, _) => network,
    }
}

fn vf_failure(error: &ReserveError) -> Failure {
    let reason = match error {
        ReserveError::PoolUnknown { .. } => Reason::InvalidRequest,
        ReserveError::Exhausted { .. } => Reason::VfsExhausted,
        ReserveError::PinnedOnly { .. } => Reason::PoolPinnedOnly,
        ReserveError::PinnedUnknown { .. } => Reason::VfUnknown,
        ReserveError::PinnedNotFree { .. } | ReserveError::PinnedNotInPool { .. } => {
            Reason::VfNotFree
        }
        // An id is new, so that it can't hold anything yet.
        ReserveError::KeyHoldsAnother { .. }
        | ReserveError::KeyReleasing { .. }
        | ReserveError::OtherHost { .. } => Reason::Internal,
    };
    let message = match error {
        ReserveError::PoolUnknown { .. } => {
            format!("{error}: list the pools with `dpuctl get pools`")
        }
        _ => error.to_string(),
    };
    Failure::new(reason, message)
}
