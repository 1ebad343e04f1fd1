//! Address pools of a network: their specification, and how the pools of an earlier version become them.

use std::{collections::BTreeSet, net::IpAddr};

use ipam::{Pool, ResizeError, SubnetSpec};
use ipnetwork::IpNetwork;
use offload_proto::{Failure, Reason};

use super::super::Entries;
use model::{AttachmentId, DomainAddress, Layer2Domain, Layer2Domains, Network, Subnet};

/// Pairs each subnet of `network` with the pool that it takes over: one that contains it or is contained in it. Also
/// returns the pools that no subnet takes over.
pub(super) fn pair<'a>(
    network: &'a Network,
    pools: &[Pool<AttachmentId>],
) -> (Vec<(&'a Subnet, Option<usize>)>, Vec<usize>) {
    let mut left: Vec<usize> = (0..pools.len()).collect();
    let mut take = |subnet: &'a Subnet| {
        let overlaps = |&old: &usize| {
            let old = pools[old].spec().cidr;
            old.contains(subnet.cidr.ip()) || subnet.cidr.contains(old.ip())
        };
        let found = left.iter().position(overlaps).map(|position| left.remove(position));
        (subnet, found)
    };
    let paired = network.subnets.iter().map(&mut take).collect();
    (paired, left)
}

pub(super) struct Shape<'a> {
    network: &'a Network,
    attachments: &'a Entries,
    pub(super) reached: Vec<Layer2Domain>,
}

impl<'a> Shape<'a> {
    pub(super) fn new(
        network: &'a Network,
        attachments: &'a Entries,
        domains: &Layer2Domains,
    ) -> Self {
        Self { network, attachments, reached: domains.reached_from(network).collect() }
    }

    /// The pool's specification: that of the network without addresses that running attachments use by an earlier
    /// version of it or by another network. A pod with such an address would receive their packets.
    fn spec_of(&self, subnet: &Subnet) -> SubnetSpec {
        let mut spec = self.network.pool_of(subnet);
        let is_reserved = |address: &IpAddr| {
            subnet.used_addresses().any(|used| used == *address)
                || spec.exclude.iter().any(|excluded| excluded.contains(*address))
        };
        let is_held = |address: IpAddr| {
            let mut domains = self.reached.iter().cloned();
            domains
                .any(|domain| self.attachments.holder(&DomainAddress { domain, address }).is_some())
        };
        // The network nearly always reserves all of them itself.
        let domains = self.reached.iter();
        let used = domains.flat_map(|domain| self.attachments.used_in(domain, subnet.cidr));
        let used = used.filter(|address| !is_reserved(address) && !is_held(*address));
        let used: BTreeSet<_> = used.collect();
        spec.exclude.extend(used.into_iter().map(IpNetwork::from));
        spec
    }

    pub(super) fn change_pools(
        &self,
        old: Vec<Pool<AttachmentId>>,
        cool_down: u64,
    ) -> Result<Vec<Pool<AttachmentId>>, Failure> {
        let (paired, _) = pair(self.network, &old);
        let mut old: Vec<_> = old.into_iter().map(Some).collect();
        let mut change = |(subnet, position): (&Subnet, Option<usize>)| match position
            .and_then(|position| old[position].take())
        {
            Some(mut pool) => {
                self.resize(&mut pool, subnet)?;
                Ok(pool)
            }
            None => self.make_pool(subnet, cool_down),
        };
        paired.into_iter().map(&mut change).collect()
    }

    /// Tries a resize on a copy of the pool.
    pub(super) fn check_resize(
        &self,
        pool: &Pool<AttachmentId>,
        subnet: &Subnet,
        cool_down: u64,
    ) -> Result<(), Failure> {
        let defect =
            |error: &dyn std::error::Error| Failure::new(Reason::Internal, error.to_string());
        let mut copy = Pool::new(pool.spec().clone(), cool_down).map_err(|error| defect(&error))?;
        for (key, address) in pool.leases() {
            copy.restore(*key, address).map_err(|error| defect(&error))?;
        }
        self.resize(&mut copy, subnet)
    }

    fn resize(&self, pool: &mut Pool<AttachmentId>, subnet: &Subnet) -> Result<(), Failure> {
        let resized = pool.resize(self.spec_of(subnet));
        resized.map_err(|error| resize_failure(self.network, &error))
    }

    pub(super) fn make_pools(&self, cool_down: u64) -> Result<Vec<Pool<AttachmentId>>, Failure> {
        self.network.subnets.iter().map(|subnet| self.make_pool(subnet, cool_down)).collect()
    }

    pub(super) fn make_pool(
        &self,
        subnet: &Subnet,
        cool_down: u64,
    ) -> Result<Pool<AttachmentId>, Failure> {
        Pool::new(self.spec_of(subnet), cool_down).map_err(|error| {
            let network = &self.network.name;
            Failure::new(Reason::InvalidRequest, format!("network {network:?}: {error}"))
        })
    }

    /// Excludes from a pool exactly what attachments use now.
    pub(super) fn reshape(&self, pool: &mut Pool<AttachmentId>) {
        let cidr = pool.spec().cidr;
        let mut subnets = self.network.subnets.iter();
        let Some(subnet) = subnets.find(|subnet| subnet.cidr == cidr) else { return };
        let spec = self.spec_of(subnet);
        if *pool.spec() == spec {
            return;
        }
        if let Err(error) = pool.resize(spec) {
            let network = &self.network.name;
            tracing::error!(network, %cidr, %error, "cannot exclude addresses that attachments use");
        }
    }
}

fn resize_failure(network: &Network, error: &ResizeError<AttachmentId>) -> Failure {
    match error {
        ResizeError::LeaseInTheWay { key, address } => in_the_way(network, *address, key),
        ResizeError::Spec(error) => {
            Failure::new(Reason::InvalidRequest, format!("network {:?}: {error}", network.name))
        }
    }
}

pub(super) fn in_the_way(network: &Network, address: IpAddr, holder: &AttachmentId) -> Failure {
    Failure::new(
        Reason::LeaseInTheWay,
        format!(
            "network {}: address {address} is held by attachment {holder} and has no place in the \
             changed subnets",
            network.name
        ),
    )
}
