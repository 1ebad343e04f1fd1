//! Mapped ports of this DPU: which may be mapped, and where they lead.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use offload_proto::{Failure, Reason};

use super::{Entries, Entry, Registry};
use crate::gateway::Redirection;
use drivers::settings::FabricDriver;
use model::{
    AttachSpec, GatewayMode, HostName, IpFamilies, Network, PortMapping, Protocol, Record,
    share_an_address,
};

/// Maximum number of mapped ports of all attachments.
const MOST: usize = 4096;

/// Checks that the attachment can have the requested mapped ports.
pub(super) fn check_mapped_ports(
    spec: &AttachSpec,
    network: &Network,
    registry: &Registry,
) -> Result<(), Failure> {
    let Some(first) = spec.interface.port_mappings.first() else { return Ok(()) };
    check_network(first, network, registry.settings().fabric)?;
    check_count(spec.interface.port_mappings.len(), registry.entries())?;
    let own = &registry.settings().own_ports;
    for mapping in &spec.interface.port_mappings {
        check_family(mapping, spec.interface.families.unwrap_or(IpFamilies::ALL), network)?;
        check_own(mapping, own)?;
        check_free(mapping, &spec.key.host, registry.entries())?;
    }
    Ok(())
}

fn check_count(asked: usize, entries: &Entries) -> Result<(), Failure> {
    let held = held(entries).map(|entry| entry.record().port_mappings.len());
    if held.sum::<usize>() + asked <= MOST {
        return Ok(());
    }
    let why = format!("this DPU has {MOST} mapped ports at most, and too few of them are left");
    Err(Failure::new(Reason::Overloaded, why))
}

fn check_network(
    mapping: &PortMapping,
    network: &Network,
    fabric: FabricDriver,
) -> Result<(), Failure> {
    if network.gateway_mode == GatewayMode::Dpu {
        return Ok(());
    }
    let way_out = match fabric.has_gateways() {
        true => "set gateway_mode = \"dpu\" in the network, or leave the port out",
        false => {
            "and can't be, as this DPU's fabric has no gateways: leave the port out, or use a DPU with \
             fabric.driver = \"bridge\""
        }
    };
    Err(Failure::new(
        Reason::Unsupported,
        format!(
            "mapped port {mapping} is requested in network {}, whose gateway is not this DPU: {way_out}",
            network.name
        ),
    ))
}

fn check_family(
    mapping: &PortMapping,
    families: IpFamilies,
    network: &Network,
) -> Result<(), Failure> {
    let mut addresses = network.subnets.iter().map(|subnet| subnet.cidr.ip());
    if addresses.any(|address| families.include(address) && mapping.is_of_family_of(address)) {
        return Ok(());
    }
    let why = format!("mapped port {mapping} has no address of its family in {}", network.name);
    Err(Failure::new(Reason::Unsupported, why))
}

/// Refuses the service's own ports on the addresses that it listens on.
fn check_own(mapping: &PortMapping, own: &[SocketAddr]) -> Result<(), Failure> {
    let is_taken = |own: &&SocketAddr| {
        (own.port(), Protocol::Tcp) == (mapping.host_port, mapping.protocol)
            // Packets from elsewhere never reach a loopback address, so the port can be mapped.
            && !own.ip().is_loopback()
            && share_an_address(mapping.host_ip, listens_on(own.ip()))
    };
    match own.iter().find(is_taken) {
        None => Ok(()),
        Some(own) => {
            let why =
                format!("mapped port {mapping} is this DPU's own: its service listens on {own}");
            Err(Failure::new(Reason::PortInUse, why))
        }
    }
}

/// The address for the comparison. A listener on `::` usually receives IPv4, too.
fn listens_on(address: IpAddr) -> Option<IpAddr> {
    (address != IpAddr::from([0_u16; 8])).then_some(address)
}

fn check_free(mapping: &PortMapping, host: &HostName, entries: &Entries) -> Result<(), Failure> {
    let holder = held(entries).find(|entry| {
        entry.record().port_mappings.iter().any(|taken| taken.collides_with(mapping))
    });
    match holder {
        None => Ok(()),
        Some(holder) => {
            let holder = holder.record().named_to(host);
            let why = format!("mapped port {mapping} is taken by {holder}");
            Err(Failure::new(Reason::PortInUse, why))
        }
    }
}

/// The redirections of all held attachments.
pub(crate) fn redirections(registry: &Registry) -> Vec<Redirection> {
    reachable(registry).flat_map(redirections_of).collect()
}

/// The redirections of attachments that share a port or a pod address with one of `these`.
pub(crate) fn redirections_beside(registry: &Registry, these: &[Redirection]) -> Vec<Redirection> {
    beside(reachable(registry), these)
}

/// Attachments that a gateway leads to: their network is still in the domain of the attach (see
/// [`mod@super::pod_addresses`]).
fn reachable(registry: &Registry) -> impl Iterator<Item = &Record> {
    let records = held(registry.entries()).map(|entry| &**entry.record());
    records.filter(|record| registry.networks().has_stayed(&record.network))
}

fn beside<'a>(
    records: impl Iterator<Item = &'a Record>,
    these: &[Redirection],
) -> Vec<Redirection> {
    let is_beside = |record: &Record| {
        let has_port = |port| record.port_mappings.iter().any(|own| own.host_port == port);
        let has_address = |ip| record.leases.iter().any(|lease| lease.address.ip() == ip);
        let mut these = these.iter();
        these.any(|one| has_port(one.mapping.host_port) || has_address(one.target.ip()))
    };
    records.filter(|record| is_beside(record)).flat_map(redirections_of).collect()
}

/// An attachment being released has lost its ports, wherever its VF is.
fn held(entries: &Entries) -> impl Iterator<Item = &Entry> {
    entries.iter().filter(|entry| entry.is_held())
}

/// Each port leads to the pod's first address of its family.
pub(crate) fn redirections_of(record: &Record) -> Vec<Redirection> {
    let first = |is_v4| {
        let addresses = record.leases.iter().map(|lease| lease.address.ip());
        addresses.into_iter().find(|address: &IpAddr| address.is_ipv4() == is_v4)
    };
    let targets = [first(true), first(false)];
    let of_mapping = |mapping: &PortMapping| {
        let mapping = *mapping;
        targets.into_iter().flatten().filter(move |target| mapping.is_of_family_of(*target)).map(
            move |target| Redirection {
                network: Arc::clone(&record.network),
                mapping,
                target: SocketAddr::new(target, mapping.container_port),
            },
        )
    };
    record.port_mappings.iter().flat_map(of_mapping).collect()
}

#[cfg(test)]
mod tests {
    use super::{super::examples::record, *};

    #[test]
    fn mapped_ports_are_bounded() {
        let mut entries = Entries::default();
        let mut most = record(1);
        most.port_mappings = vec![most.port_mappings[0]; MOST - 1];
        entries.insert(Entry::restored(most.clone()));
        assert!(check_count(1, &entries).is_ok());
        let refused = check_count(2, &entries).unwrap_err();
        assert_eq!(refused.reason, Reason::Overloaded);
        entries.remove(most.id).unwrap();
        assert!(check_count(MOST, &entries).is_ok());
    }

    #[test]
    fn redirections_beside_share_a_port_or_an_address() {
        let records = [1, 2, 3].map(record);
        let [first, second] = [1, 2].map(|number| redirections_of(&record(number)).remove(0));
        let wanted = Redirection { target: second.target, ..first.clone() };
        let found = beside(records.iter(), &[wanted]);
        let ports = found.iter().map(|one| one.mapping.host_port);
        assert_eq!(ports.collect::<std::collections::BTreeSet<_>>(), [8001, 8002].into());
        assert!(beside(records.iter(), &[]).is_empty());
    }

    #[test]
    fn own_ports_are_taken_on_their_addresses() {
        let own = ["192.0.2.1:7443", "[::]:7444", "127.0.0.1:9090", "0.0.0.0:7445"];
        let own = own.map(|address| address.parse().unwrap());
        let is_taken = |host_ip: &str, host_port, protocol| {
            let host_ip = host_ip.parse().ok();
            let mapping = PortMapping { host_port, protocol, host_ip, container_port: 80 };
            check_own(&mapping, &own).is_err_and(|refused| refused.reason == Reason::PortInUse)
        };
        for (host_ip, host_port, taken) in [
            ("", 7443, true),
            ("192.0.2.1", 7443, true),
            ("0.0.0.0", 7443, true),
            ("192.0.2.2", 7443, false),
            ("192.0.2.2", 7444, true),
            ("2001:db8::1", 7444, true),
            ("2001:db8::1", 7445, false),
            ("", 9090, false),
            ("", 80, false),
        ] {
            assert_eq!(is_taken(host_ip, host_port, Protocol::Tcp), taken, "{host_ip} {host_port}");
            assert!(!is_taken(host_ip, host_port, Protocol::Udp), "{host_ip} {host_port}");
        }
    }
}
