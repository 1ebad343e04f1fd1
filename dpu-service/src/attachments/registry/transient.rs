//! Refusals that may soon pass: the requested VF or address is being released, or the VF has lost its representor.
//!
//! The DPU answers a DEL before everything is free, so the next ADD may come too early, on any host. A VF in reset
//! loses its representor for a moment.

use std::{sync::Arc, time::Duration};

use offload_proto::{Failure, Reason};
use vf_alloc::FunctionId;

use super::{Entry, Registry};
use model::{AttachSpec, FormerOwner, Record};

/// A release usually takes less than a second. A longer one waits for its host, with no known end.
const SOON: Duration = Duration::from_secs(10);

impl Registry {
    /// Returns the refusal, or [`Reason::Releasing`] if a retry may succeed.
    pub(super) fn or_releasing(&self, refusal: Failure, spec: &AttachSpec) -> Failure {
        let passing = self
            .releasing_with(refusal.reason, spec)
            .or_else(|| self.without_representor(refusal.reason, spec));
        match passing {
            None => refusal,
            Some(what) => Failure::new(Reason::Releasing, format!("{}: {what}", refusal.message)),
        }
    }

    /// Describes the attachment being released that holds what was refused.
    fn releasing_with(&self, refusal: Reason, spec: &AttachSpec) -> Option<String> {
        let releasing = self.entries.iter().filter(|entry| entry.is_releasing_for_less_than(SOON));
        let mut releasing = releasing.map(Entry::record).map(Arc::as_ref);
        let record = releasing.find(|record| self.is_in_the_way(record, refusal, spec))?;
        Some(format!("{} is being released", record.named_to(&spec.key.host)))
    }

    /// Describes the VF that the request would have got if its representor had not vanished a moment ago.
    fn without_representor(&self, refusal: Reason, spec: &AttachSpec) -> Option<String> {
        let host = self.hosts.number(&spec.key.host).ok()?;
        let is_wanted = |vf: FunctionId| {
            let facts = self.vfs.facts(vf).filter(|facts| facts.host == host);
            self.vfs.lacks_only_port(vf)
                && self.is_in_pool_for(vf, spec)
                && facts.is_some_and(|facts| match refusal {
                    Reason::VfsExhausted => true,
                    Reason::VfNotFree => spec.interface.device.as_ref() == Some(&facts.device),
                    _ => false,
                })
        };
        let lost = self.lost_representors.iter().filter(|(_, since)| since.elapsed() < SOON);
        let vf = lost.map(|(vf, _)| *vf).find(|vf| is_wanted(*vf))?;
        Some(format!("VF {vf} lost its representor less than {} s ago", SOON.as_secs()))
    }

    /// Adds the attachment of the same host that holds the requested address.
    pub(super) fn with_holder(&self, refusal: Failure, spec: &AttachSpec) -> Failure {
        if refusal.reason != Reason::AddressInUse {
            return refusal;
        }
        let wanted = self.networks.wanted_at(spec);
        let mut holders = wanted.iter().filter_map(|at| self.entries.holder(at)).map(Entry::record);
        match holders.find(|record| record.key.host == spec.key.host) {
            None => refusal,
            Some(own) => {
                Failure::new(refusal.reason, format!("{}, attachment {}", refusal.message, own.id))
            }
        }
    }

    /// Whether the record holds what was refused.
    fn is_in_the_way(&self, record: &Record, refusal: Reason, spec: &AttachSpec) -> bool {
        let is_of_host = record.key.host == spec.key.host;
        match refusal {
            Reason::VfsExhausted => is_of_host && self.is_in_pool_for(record.vf, spec),
            Reason::VfNotFree => {
                is_of_host && spec.interface.device.as_ref() == Some(&record.device)
            }
            Reason::AddressesExhausted => {
                let is_asked =
                    |one: &Arc<_>| self.networks.has_stayed(one) && self.asks_for(spec, &one.name);
                self.frees_addresses_for(record, spec) && record.networks().any(is_asked)
            }
            Reason::AddressInUse => {
                let is_held = |at| {
                    self.entries.holder(at).is_some_and(|holder| holder.record().id == record.id)
                };
                self.frees_addresses_for(record, spec)
                    && self.networks.wanted_at(spec).iter().any(is_held)
            }
            Reason::MacInUse => spec.interface.mac == Some(record.mac),
            _ => false,
        }
    }

    /// Whether the VF is in the pool of the requested network.
    fn is_in_pool_for(&self, vf: FunctionId, spec: &AttachSpec) -> bool {
        let network = self.networks.find(spec.interface.named_network());
        let mut pools = self.vfs.open_pools_of(vf);
        network.is_ok_and(|network| pools.any(|pool| pool.name == network.network().pool))
    }

    /// Whether the request may use the record's addresses right after the release: their cool-down excludes other
    /// owners.
    fn frees_addresses_for(&self, record: &Record, spec: &AttachSpec) -> bool {
        !self.networks.has_cool_down() || FormerOwner::of(record).asks(spec)
    }

    /// Whether an attach requests an address of the network.
    fn asks_for(&self, spec: &AttachSpec, network: &str) -> bool {
        let own = self.networks.find(spec.interface.named_network());
        own.is_ok_and(|own| own.network().name == network)
            || spec.further_leases.iter().any(|lease| lease.network == network)
    }
}
