//! Refusals that may soon be over: what is asked for is being given back, or has lost its representor.
//!
//! The DPU answers a DEL before it has everything back, so the next ADD may come too early, on any host. A VF that is
//! reset loses its representor for a moment.

use std::{sync::Arc, time::Duration};

use offload_proto::{Failure, Reason};
use vf_alloc::FunctionId;

use super::{Entry, Registry};
use crate::model::{AttachSpec, FormerOwner, Record};

/// As a rule an attachment is given back within a second. What takes longer waits for its host, and nobody knows for how
/// long.
const SOON: Duration = Duration::from_secs(10);

impl Registry {
    /// The refusal, or [`Reason::Releasing`] if the same request may succeed a moment later.
    pub(super) fn or_releasing(&self, refusal: Failure, spec: &AttachSpec) -> Failure {
        let passing = self
            .leaving_with(refusal.reason, spec)
            .or_else(|| self.without_representor(refusal.reason, spec));
        match passing {
            None => refusal,
            Some(what) => Failure::new(Reason::Releasing, format!("{}: {what}", refusal.message)),
        }
    }

    /// The attachment that leaves with what is refused for that reason.
    fn leaving_with(&self, refusal: Reason, spec: &AttachSpec) -> Option<String> {
        let leaving = self.entries.iter().filter(|entry| entry.is_leaving_for_less_than(SOON));
        let mut leaving = leaving.map(Entry::record).map(Arc::as_ref);
        let record = leaving.find(|record| self.is_in_the_way(record, refusal, spec))?;
        Some(format!("{} is just being given back", record.named_to(&spec.key.host)))
    }

    /// The VF that the request would get if its representor, which went a moment ago, were back.
    fn without_representor(&self, refusal: Reason, spec: &AttachSpec) -> Option<String> {
        let host = self.hosts.number(&spec.key.host).ok()?;
        let is_wanted = |vf: FunctionId| {
            let facts = self.vfs.facts(vf).filter(|facts| facts.host == host);
            self.vfs.lacks_only_port(vf)
                && self.is_in_pool_for(vf, spec)
                && facts.is_some_and(|facts| match refusal {
                    Reason::VfsExhausted => true,
                    Reason::VfNotFree => spec.device.as_ref() == Some(&facts.device),
                    _ => false,
                })
        };
        let lost = self.lost_representors.iter().filter(|(_, since)| since.elapsed() < SOON);
        let vf = lost.map(|(vf, _)| *vf).find(|vf| is_wanted(*vf))?;
        Some(format!("VF {vf} lost its representor less than {} s ago", SOON.as_secs()))
    }

    /// The refusal of an address, with the attachment of the same host that has it.
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

    /// Whether a refusal for that reason is for something that the record has.
    fn is_in_the_way(&self, record: &Record, refusal: Reason, spec: &AttachSpec) -> bool {
        let is_of_host = record.key.host == spec.key.host;
        match refusal {
            Reason::VfsExhausted => is_of_host && self.is_in_pool_for(record.vf, spec),
            Reason::VfNotFree => is_of_host && spec.device.as_ref() == Some(&record.device),
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
            Reason::MacInUse => spec.mac == Some(record.mac),
            _ => false,
        }
    }

    /// Whether a VF is of the pool that an attach draws from.
    fn is_in_pool_for(&self, vf: FunctionId, spec: &AttachSpec) -> bool {
        let network = self.networks.find(spec.network.as_deref());
        let mut pools = self.vfs.open_pools_of(vf);
        network.is_ok_and(|network| pools.any(|pool| pool.name == network.network().pool))
    }

    /// Whether who asks may have a record's addresses once they are given back: they rest then for everybody else.
    fn frees_addresses_for(&self, record: &Record, spec: &AttachSpec) -> bool {
        !self.networks.lets_addresses_rest() || FormerOwner::of(record).asks(spec)
    }

    /// Whether an attach wants an address of a network.
    fn asks_for(&self, spec: &AttachSpec, network: &str) -> bool {
        let own = self.networks.find(spec.network.as_deref());
        own.is_ok_and(|own| own.network().name == network)
            || spec.further_leases.iter().any(|lease| lease.network == network)
    }
}
