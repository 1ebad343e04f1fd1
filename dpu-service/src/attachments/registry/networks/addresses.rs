//! Leases and cool-downs of networks. An address in cool-down is reserved for its former owner.

use std::{collections::HashSet, net::IpAddr, sync::Arc};

use ipam::{AllocateError, Pool, RequestError, Reservation};
use ipnetwork::IpNetwork;
use offload_proto::{Failure, Reason};

use super::PooledNetworks;
use crate::records::Cooling;
use model::{
    AttachSpec, AttachmentId, CooledAddress, DomainAddress, FormerOwner, IpFamilies, Lease,
    Network, Record, WantedAddress,
};

impl PooledNetworks {
    /// Leases one address of each family of the network: the requested ones, else one of the family's first subnet with
    /// a free address. Further subnets of a family extend the first.
    ///
    /// # Errors
    /// An address is not available; then none is leased.
    pub(crate) fn reserve(
        &mut self,
        spec: &AttachSpec,
        asked: &[IpAddr],
        network: &Network,
        id: AttachmentId,
        now: u64,
    ) -> Result<Vec<Lease>, Failure> {
        let reserved = self.reserve_each(spec, asked, network, id, now);
        if reserved.is_err() {
            self.forget_unfinished(network, id, now);
        }
        reserved
    }

    fn reserve_each(
        &mut self,
        spec: &AttachSpec,
        asked: &[IpAddr],
        network: &Network,
        id: AttachmentId,
        now: u64,
    ) -> Result<Vec<Lease>, Failure> {
        let mut leases = Vec::new();
        for &address in asked {
            let at = DomainAddress { domain: self.domains.of(network), address };
            if cool_down_of(&self.cool_downs, &at, now)
                .is_some_and(|cool_down| cool_down.owner.asks(spec))
                && let Some(pool) = self.pool_with(&at)
            {
                // The former owner need not wait. If the attach fails, the cool-down continues.
                pool.end_cool_down(address);
            }
            leases.push(self.request(network, id, address, now)?);
        }
        let families = spec.interface.families.unwrap_or(IpFamilies::ALL);
        for is_ipv6 in [false, true] {
            let of_family =
                |cidr: &IpNetwork| cidr.is_ipv6() == is_ipv6 && families.include(cidr.ip());
            let is_served = leases.iter().any(|lease| of_family(&lease.address));
            let is_wanted = network.subnets.iter().any(|subnet| of_family(&subnet.cidr));
            if is_wanted && !is_served {
                leases.push(self.allocate(network, id, of_family, now)?);
            }
        }
        Ok(leases)
    }

    fn request(
        &mut self,
        network: &Network,
        id: AttachmentId,
        address: IpAddr,
        now: u64,
    ) -> Result<Lease, Failure> {
        let mut pools =
            self.by_name.get_mut(&network.name).into_iter().flat_map(|entry| &mut entry.pools);
        let pool = pools.find(|pool| pool.spec().cidr.contains(address));
        let pool = pool.ok_or_else(|| gone(network))?;
        let address =
            pool.request(id, address, now).map_err(|error| address_failure(network, &error))?;
        Ok(lease(network, pool.spec().cidr, address))
    }

    fn allocate(
        &mut self,
        network: &Network,
        id: AttachmentId,
        of_family: impl Fn(&IpNetwork) -> bool,
        now: u64,
    ) -> Result<Lease, Failure> {
        let entry = self.by_name.get_mut(&network.name).ok_or_else(|| gone(network))?;
        let pools = entry.pools.iter_mut().filter(|pool| of_family(&pool.spec().cidr));
        let mut pools: Vec<_> = pools.collect();
        // First any address that is not in cool-down, of all subnets.
        for pool in &mut pools {
            if let Some(address) = pool.allocate_free(id, now) {
                return Ok(lease(network, pool.spec().cidr, address));
            }
        }
        // No address is free: lease the one whose cool-down ends first.
        pools.sort_by_key(|pool| pool.first_end().unwrap_or(u64::MAX));
        let mut refusals = Vec::new();
        for pool in pools {
            match pool.allocate(id, now) {
                Ok(address) => return Ok(lease(network, pool.spec().cidr, address)),
                Err(error @ AllocateError::Exhausted { .. }) => refusals.push(error.to_string()),
            }
        }
        let refusals = refusals.join("; ");
        Err(Failure::new(
            Reason::AddressesExhausted,
            format!("network {}: {refusals}", network.name),
        ))
    }

    /// Removes the leases of an unfinished reservation.
    pub(crate) fn forget_unfinished(&mut self, network: &Network, id: AttachmentId, now: u64) {
        let pools =
            self.by_name.get_mut(&network.name).into_iter().flat_map(|entry| &mut entry.pools);
        let forgotten: Vec<_> = pools.filter_map(|pool| pool.forget(&id)).collect();
        let domain = self.domains.of(network);
        let at = |address| DomainAddress { domain: domain.clone(), address };
        forgotten.into_iter().map(at).for_each(|at| self.continue_cool_down(&at, now));
    }

    /// Removes the leases of a record that was never used. Addresses that were in cool-down before stay so.
    pub(crate) fn forget(&mut self, record: &Record, now: u64) {
        self.return_addresses(record, |pool| {
            pool.forget(&record.id);
        });
        let held: Vec<_> = self.domains.held_by(record).collect();
        held.iter().for_each(|at| self.continue_cool_down(at, now));
    }

    /// Releases the addresses of a record. `cooling` are their cool-downs, as recorded in the journal.
    pub(crate) fn release(&mut self, record: &Record, cooling: Vec<Cooling>, now: u64) {
        self.return_addresses(record, |pool| {
            pool.release(&record.id, now);
        });
        self.cool_downs.extend(cooling);
    }

    /// Applies `free` to the pools that contain the record's addresses now: the record's network may be gone.
    fn return_addresses(&mut self, record: &Record, free: impl Fn(&mut Pool<AttachmentId>)) {
        let held: Vec<_> = self.domains.held_by(record).collect();
        held.iter().for_each(|at| self.pool_with(at).into_iter().for_each(&free));
    }

    /// The addresses that an attach requests, with the domains of their networks.
    pub(crate) fn wanted_at(&self, spec: &AttachSpec) -> Vec<DomainAddress> {
        let further = spec.further_leases.iter();
        let further = further.map(|lease| (Some(lease.network.as_str()), &lease.addresses));
        let mut wanted = Vec::new();
        for (name, addresses) in
            [(spec.interface.named_network(), &spec.interface.addresses)].into_iter().chain(further)
        {
            let Ok(entry) = self.find(name) else { continue };
            let domain = self.domains.of(entry.network());
            let at = |wanted: &WantedAddress| DomainAddress {
                domain: domain.clone(),
                address: wanted.ip,
            };
            wanted.extend(addresses.iter().map(at));
        }
        wanted
    }

    /// The cool-downs that start when `record` is freed.
    pub(crate) fn cooling_after(&self, record: &Record, now: u64) -> Vec<Cooling> {
        let until = now.saturating_add(self.cool_down);
        let cool_down = |(network, lease): (&Arc<Network>, &Lease)| Cooling {
            of: self.domains.cooled(network, lease),
            until,
            owner: FormerOwner::of(record),
        };
        if until == now { Vec::new() } else { record.held().map(cool_down).collect() }
    }

    /// Continues the cool-down of an address that is no longer held.
    fn continue_cool_down(&mut self, at: &DomainAddress, now: u64) {
        let Some(until) = cool_down_of(&self.cool_downs, at, now).map(|cool_down| cool_down.until)
        else {
            return;
        };
        if let Some(pool) = self.pool_with(at) {
            pool.rest(at.address, until);
        }
    }

    pub(crate) fn has_cooled(&self, now: u64) -> bool {
        self.cool_downs.iter().any(|cool_down| cool_down.until <= now)
    }

    /// Forgets ended cool-downs and returns those whose rows can be deleted. Rows of addresses that are `held` again
    /// stay: a release may be about to write the same rows, and the delete would come after it.
    pub(crate) fn forget_cooled(
        &mut self,
        held: &HashSet<CooledAddress>,
        now: u64,
    ) -> Vec<Cooling> {
        let stays = |cool_down: &Cooling| cool_down.until > now || held.contains(&cool_down.of);
        let (kept, mut over): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.cool_downs).into_iter().partition(stays);
        // Cool-downs of one address share a row, which stays until the last one has ended.
        let again: HashSet<_> = kept.iter().map(|cool_down| &cool_down.of).collect();
        over.retain(|cool_down| !again.contains(&cool_down.of));
        self.cool_downs = kept;
        over
    }
}

/// The cool-down of an address that ends last, unless it is over.
fn cool_down_of<'a>(
    cool_downs: &'a [Cooling],
    at: &DomainAddress,
    now: u64,
) -> Option<&'a Cooling> {
    let cool_downs =
        cool_downs.iter().filter(|cool_down| cool_down.of.at == *at && cool_down.until > now);
    cool_downs.max_by_key(|cool_down| cool_down.until)
}

/// The requested addresses without duplicates: podman requests an address twice when it reloads a container's network.
/// Each must be in a subnet of the network, and no two in the same one.
pub(crate) fn distinct_addresses(
    spec: &AttachSpec,
    network: &Network,
) -> Result<Vec<IpAddr>, Failure> {
    let mut taken: Vec<(IpNetwork, IpAddr)> = Vec::new();
    for address in &spec.interface.addresses {
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

/// Checks that the network has a subnet of each requested family, and that no address of another family is requested.
///
/// # Errors
/// [`Reason::AddressNotAllowed`] or [`Reason::InvalidRequest`], naming the family.
pub(crate) fn check_families(spec: &AttachSpec, network: &Network) -> Result<(), Failure> {
    let Some(families) = spec.interface.families else { return Ok(()) };
    for (name, is_asked, is_ipv4) in [("IPv4", families.ipv4, true), ("IPv6", families.ipv6, false)]
    {
        let has_subnet = || network.subnets.iter().any(|subnet| subnet.cidr.is_ipv4() == is_ipv4);
        if is_asked && !has_subnet() {
            let message = format!(
                "an address of {name} is requested, and network {} has no subnet of {name}: leave {name} out of the \
                 IP families, or name another network",
                network.name
            );
            return Err(Failure::new(Reason::AddressNotAllowed, message));
        }
    }
    match spec.interface.addresses.iter().find(|address| !families.include(address.ip)) {
        None => Ok(()),
        Some(address) => {
            let message = format!(
                "{address} is requested, and its family is not among the requested IP families: leave one of the \
                 two out"
            );
            Err(Failure::new(Reason::InvalidRequest, message))
        }
    }
}

/// The subnet that contains a requested address, if the address has the prefix length of addresses there.
fn subnet_of(address: &WantedAddress, network: &Network) -> Result<IpNetwork, Failure> {
    let refused = |why: String| {
        let message = format!("{address} {why}");
        Failure::new(Reason::AddressNotAllowed, message)
    };
    let WantedAddress { ip, prefix_length } = address;
    let subnet = network.subnets.iter().map(|subnet| subnet.cidr).find(|cidr| cidr.contains(*ip));
    let subnet =
        subnet.ok_or_else(|| refused(format!("is in no subnet of network {}", network.name)))?;
    let length = network.length_in_pods(subnet);
    if prefix_length.is_none_or(|asked| asked == length) {
        return Ok(subnet);
    }
    Err(refused(format!(
        "has another prefix length than addresses of subnet {subnet} of network {}: ask for {ip}/{length} or leave \
         the length out",
        network.name,
    )))
}

fn lease(network: &Network, subnet: IpNetwork, address: IpAddr) -> Lease {
    let length = network.length_in_pods(subnet);
    // Cannot fail: the length is one of the address's family.
    let address = IpNetwork::new(address, length).unwrap_or_else(|_| address.into());
    let subnet = network.subnets.iter().find(|own| own.cidr == subnet);
    Lease { address, gateway: subnet.and_then(|subnet| subnet.gateway) }
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
        RequestError::Reserved { address, why: Reservation::Excluded }
            if !excludes(network, *address) =>
        {
            ": running attachments use it as their gateway, next hop or broadcast address; request another one, or \
             detach them first"
        }
        _ => "",
    };
    let what = match error {
        // Without its holder: other hosts must not learn it.
        RequestError::InUse { address, .. } => format!("{address} is held by another attachment"),
        _ => format!("{error}{way_out}"),
    };
    Failure::new(reason, format!("network {}: {what}", network.name))
}

/// Whether the network's own configuration excludes the address.
fn excludes(network: &Network, address: IpAddr) -> bool {
    let mut subnets = network.subnets.iter();
    let subnet = subnets.find(|subnet| subnet.cidr.contains(address));
    let excluded = subnet.map(|subnet| network.pool_of(subnet).exclude);
    excluded.into_iter().flatten().any(|excluded| excluded.contains(address))
}

fn gone(network: &Network) -> Failure {
    Failure::new(Reason::NetworkUnknown, format!("network {} was just deleted", network.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Layer2Domains;

    fn in_vlan(address: &str, vlan: u16) -> DomainAddress {
        let network: Network = toml::from_str(&format!("name = 'red'\nvlan = {vlan}")).unwrap();
        let domain = Layer2Domains::default().of(&network);
        DomainAddress { domain, address: address.parse().unwrap() }
    }

    fn cool_down(address: &str, until: u64) -> Cooling {
        let owner = serde_json::json!({
            "host": "node-1", "container_id": "c1", "pod_namespace": "", "pod_name": "", "mac": "02:00:00:00:00:01"
        });
        let of = CooledAddress { network: "red".into(), at: in_vlan(address, 1) };
        Cooling { of, until, owner: serde_json::from_value(owner).unwrap() }
    }

    #[test]
    fn rows_of_ended_cool_downs_are_deleted() {
        let cool_downs = [
            cool_down("10.1.0.1", 10),
            cool_down("10.1.0.2", 11),
            cool_down("10.1.0.3", 12),
            cool_down("10.1.0.2", 9),
        ];
        let mut networks = PooledNetworks::new(60, Layer2Domains::default());
        networks.cool_downs = cool_downs.to_vec();
        assert!(!networks.has_cooled(8) && networks.has_cooled(9));
        assert_eq!(
            networks.forget_cooled(&HashSet::new(), 9),
            [],
            "another cool-down of 10.1.0.2 has the same row"
        );
        let held = HashSet::from([cool_down("10.1.0.1", 0).of]);
        assert_eq!(networks.forget_cooled(&held, 11), [cool_down("10.1.0.2", 11)]);
        assert_eq!(networks.cool_downs, [cool_down("10.1.0.1", 10), cool_down("10.1.0.3", 12)]);
    }

    #[test]
    fn cool_down_lasts_until_its_last_second() {
        let cool_downs =
            [cool_down("10.1.0.1", 10), cool_down("10.1.0.1", 12), cool_down("10.1.0.2", 20)];
        let until = |at, now| cool_down_of(&cool_downs, &at, now).map(|it| it.until);
        let here = |now| until(in_vlan("10.1.0.1", 1), now);
        assert_eq!([here(9), here(11), here(12)], [Some(12), Some(12), None]);
        assert_eq!(until(in_vlan("10.1.0.1", 2), 9), None, "it is another domain");
    }
}
