//! Reserving a VF, a MAC address and addresses as one unit: all of them or nothing.

use std::{net::IpAddr, sync::Arc};

use ipam::{AllocateError, RequestError};
use ipnetwork::IpNetwork;
use jiff::Timestamp;
use netlink::MacAddress;
use offload_proto::{Failure, Reason};
use uuid::Uuid;
use vf_alloc::{Request, ReserveError, VfFacts, VfId};

use super::registry::{Entry, Registry};
use crate::{
    host::SessionId,
    model::{AttachSpec, AttachmentId, Bandwidth, Lease, Network, Phase, Record, WantedAddress},
};

impl Registry {
    /// Reserves for `spec` all that it needs. Only in memory: journal and kernel come next.
    pub(super) fn reserve(
        &mut self,
        spec: &AttachSpec,
        session: SessionId,
        boot_id: String,
        now: u64,
    ) -> Result<Arc<Record>, Failure> {
        self.check_room()?;
        let network = Arc::clone(&self.networks.find(spec.network.as_deref())?.network);
        let addresses = distinct_addresses(spec, &network)?;
        let mac = self.choose_mac(spec.mac)?;
        let id = AttachmentId(Uuid::now_v7());
        let (vf, facts) = self.reserve_vf(spec, &network, id)?;
        let leases = match self.reserve_addresses(spec, &addresses, &network, id, now) {
            Ok(leases) => leases,
            Err(failure) => {
                self.forget_reservation(&network, id, now);
                return Err(failure);
            }
        };
        let record = Arc::new(Record {
            id,
            key: spec.key.clone(),
            phase: Phase::Held,
            pod: spec.pod.clone(),
            vf,
            pci_address: facts.map(|facts| facts.pci_address).unwrap_or_default(),
            mac,
            leases,
            bandwidth: tighter(&network.bandwidth, &spec.bandwidth),
            network,
            boot_id,
            created_at: Timestamp::now().as_millisecond(),
        });
        self.insert(Entry::new(Arc::clone(&record), Some(session), false));
        Ok(record)
    }

    fn check_room(&self) -> Result<(), Failure> {
        let limit = self.settings.attachments;
        if self.len() < limit {
            return Ok(());
        }
        Err(Failure::new(
            Reason::Overloaded,
            format!("this DPU serves as many attachments as limits.attachments allows: {limit}"),
        ))
    }

    fn choose_mac(&self, wanted: Option<MacAddress>) -> Result<MacAddress, Failure> {
        let Some(mac) = wanted else { return self.new_mac() };
        if !mac.is_unicast() {
            return Err(Failure::new(
                Reason::InvalidRequest,
                format!("{mac} is not the address of one interface: it is multicast or zero"),
            ));
        }
        match self.by_mac(mac) {
            Some(holder) => Err(Failure::new(
                Reason::MacInUse,
                format!("MAC address {mac} is held by attachment {}", holder.record.id),
            )),
            None => Ok(mac),
        }
    }

    /// The first free one from a random one on.
    fn new_mac(&self) -> Result<MacAddress, Failure> {
        let prefix = &self.settings.mac_prefix;
        let start: u64 = rand::random();
        let mac = |number: u64| {
            let [_, _, bytes @ ..] = number.to_be_bytes();
            let mut bytes: [u8; 6] = bytes;
            let length = prefix.len().min(bytes.len());
            bytes[..length].copy_from_slice(&prefix[..length]);
            MacAddress(bytes)
        };
        // Among one more than are held there is a free one, unless the prefix leaves fewer.
        (0..=self.len() as u64)
            .map(|offset| mac(start.wrapping_add(offset)))
            .find(|mac| self.by_mac(*mac).is_none())
            .ok_or_else(|| {
                Failure::new(Reason::Overloaded, "all MAC addresses of the prefix are held")
            })
    }

    fn reserve_vf(
        &mut self,
        spec: &AttachSpec,
        network: &Network,
        id: AttachmentId,
    ) -> Result<(VfId, Option<VfFacts>), Failure> {
        let host = self.host_id(&spec.key.host)?;
        let request = Request { host, pool: &network.pool, pinned: spec.pci_address.as_deref() };
        let vf = self.vfs.reserve(&request, id).map_err(|error| vf_failure(&error))?;
        Ok((vf, self.vfs.facts(vf).cloned()))
    }

    /// One address of each family that the network has: those asked for or, where none is, one of
    /// the family's first subnet that has a free one. Several subnets of a family extend each other.
    fn reserve_addresses(
        &mut self,
        spec: &AttachSpec,
        asked: &[IpAddr],
        network: &Network,
        id: AttachmentId,
        now: u64,
    ) -> Result<Vec<Lease>, Failure> {
        let mut leases = Vec::new();
        for &address in asked {
            if self.rest_of(address, now).is_some_and(|rest| rest.is_of(spec)) {
                self.networks.pools_with(address).for_each(|pool| pool.end_rest(address));
            }
            leases.push(self.request_address(network, id, address, now)?);
        }
        for is_ipv6 in [false, true] {
            let of_family = |cidr: &IpNetwork| cidr.is_ipv6() == is_ipv6;
            let is_served = leases.iter().any(|lease| of_family(&lease.address));
            let is_wanted = network.subnets.iter().any(|subnet| of_family(&subnet.cidr));
            if is_wanted && !is_served {
                leases.push(self.allocate_address(network, id, of_family, now)?);
            }
        }
        Ok(leases)
    }

    fn request_address(
        &mut self,
        network: &Network,
        id: AttachmentId,
        address: IpAddr,
        now: u64,
    ) -> Result<Lease, Failure> {
        let mut pools = self.networks.get_mut(&network.name).into_iter().flat_map(|e| &mut e.pools);
        let pool = pools.find(|pool| pool.spec().cidr.contains(address));
        let pool = pool.ok_or_else(|| gone(network))?;
        let address =
            pool.request(id, address, now).map_err(|error| address_failure(network, &error))?;
        Ok(lease(pool.spec(), address))
    }

    fn allocate_address(
        &mut self,
        network: &Network,
        id: AttachmentId,
        of_family: impl Fn(&IpNetwork) -> bool,
        now: u64,
    ) -> Result<Lease, Failure> {
        let entry = self.networks.get_mut(&network.name).ok_or_else(|| gone(network))?;
        let mut refusals = Vec::new();
        for pool in entry.pools.iter_mut().filter(|pool| of_family(&pool.spec().cidr)) {
            match pool.allocate(id, now) {
                Ok(address) => return Ok(lease(pool.spec(), address)),
                Err(error @ AllocateError::Exhausted { .. }) => refusals.push(error.to_string()),
            }
        }
        let refusals = refusals.join("; ");
        Err(Failure::new(
            Reason::AddressesExhausted,
            format!("network {}: {refusals}", network.name),
        ))
    }

    /// Takes back what was reserved before its record was made.
    fn forget_reservation(&mut self, network: &Network, id: AttachmentId, now: u64) {
        let pools = self.networks.get_mut(&network.name).map(|entry| &mut entry.pools);
        let pools = pools.into_iter().flatten();
        let forgotten: Vec<_> = pools.filter_map(|pool| pool.forget(&id)).collect();
        forgotten.into_iter().for_each(|address| self.let_rest_on(address, now));
        self.vfs.release(&id);
    }
}

/// The addresses asked for, each once: podman asks for one twice when it reloads a container's network.
/// Each must lie in one of the network's subnets, and in one of its own.
fn distinct_addresses(spec: &AttachSpec, network: &Network) -> Result<Vec<IpAddr>, Failure> {
    let mut taken: Vec<(IpNetwork, IpAddr)> = Vec::new();
    for address in &spec.addresses {
        let subnet = subnet_of(address, network)?;
        match taken.iter().find(|(cidr, _)| *cidr == subnet) {
            None => taken.push((subnet, address.ip)),
            Some((_, ip)) if *ip == address.ip => {}
            Some((_, ip)) => {
                let message = format!(
                    "{address} is the second address asked for in subnet {subnet}, after {ip}: ask \
                     for one of them"
                );
                return Err(Failure::new(Reason::InvalidRequest, message));
            }
        }
    }
    Ok(taken.into_iter().map(|(_, ip)| ip).collect())
}

/// The subnet of the network that an address asked for lies in, as that has its prefix length.
fn subnet_of(address: &WantedAddress, network: &Network) -> Result<IpNetwork, Failure> {
    let refused = |why: String| {
        let message = format!("{address} {why}");
        Failure::new(Reason::AddressNotAllowed, message)
    };
    let WantedAddress { ip, prefix_length } = address;
    let subnet = network.subnets.iter().map(|subnet| subnet.cidr).find(|cidr| cidr.contains(*ip));
    let subnet =
        subnet.ok_or_else(|| refused(format!("is in no subnet of network {}", network.name)))?;
    if prefix_length.is_none_or(|length| length == subnet.prefix()) {
        return Ok(subnet);
    }
    Err(refused(format!(
        "has another prefix length than subnet {subnet} of network {}: ask for {ip}/{} or leave the \
         length out",
        network.name,
        subnet.prefix()
    )))
}

fn lease(subnet: &ipam::SubnetSpec, address: IpAddr) -> Lease {
    let prefix = subnet.cidr.prefix();
    // A prefix length that the subnet has is one that its addresses can have.
    let address = IpNetwork::new(address, prefix).unwrap_or_else(|_| address.into());
    Lease { address, gateway: subnet.gateway }
}

/// The network's limits, or tighter ones that were asked for.
pub(super) fn tighter(network: &Bandwidth, asked: &Bandwidth) -> Bandwidth {
    let (ingress_rate, ingress_burst) = tighter_rate(
        (network.ingress_rate, network.ingress_burst),
        (asked.ingress_rate, asked.ingress_burst),
    );
    let (egress_rate, egress_burst) = tighter_rate(
        (network.egress_rate, network.egress_burst),
        (asked.egress_rate, asked.egress_burst),
    );
    Bandwidth { ingress_rate, ingress_burst, egress_rate, egress_burst }
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

fn address_failure(network: &Network, error: &RequestError<AttachmentId>) -> Failure {
    let reason = match error {
        RequestError::InUse { .. } | RequestError::Cooling { .. } => Reason::AddressInUse,
        RequestError::OutsideSubnet { .. } | RequestError::Reserved { .. } => {
            Reason::AddressNotAllowed
        }
        RequestError::KeyHoldsAnother { .. } => Reason::Internal,
    };
    let way_out = match error {
        RequestError::Cooling { .. } => {
            "; wait that long, or ask as the container, as the pod (namespace and name) or with the MAC \
             address that had it last"
        }
        _ => "",
    };
    Failure::new(reason, format!("network {}: {error}{way_out}", network.name))
}

fn gone(network: &Network) -> Failure {
    Failure::new(Reason::NetworkUnknown, format!("network {} was just deleted", network.name))
}
