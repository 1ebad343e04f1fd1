//! Asking whether another machine uses an address.
//!
//! A question claims nothing, and only this machine receives its answer, so that no neighbour's cache changes.
//! ARP is asked from no address (RFC 5227). Neighbour discovery is asked from the link-local address that follows from
//! the link's MAC address: an answer to a question from no address (RFC 4862, section 5.4.3) goes to all nodes, and has
//! them send to the machine that answers.

#[cfg(test)]
mod fuzz;
mod packets;
mod sockets;

use std::{
    net::IpAddr,
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use nix::errno::Errno;

use crate::{Error, MacAddress};

/// How often an address is asked for: a question may be lost.
const TIMES: u32 = 3;

/// The most machines that are noted for one address: a hostile machine may answer from many Ethernet addresses.
const MOST: usize = 4;

/// An address that is asked for by a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The link's index.
    pub link: u32,
    /// The link's Ethernet address.
    pub mac: MacAddress,
    /// The VLAN of the question, and of its answers. `None`: untagged.
    pub vlan: Option<u16>,
    /// The address.
    pub address: IpAddr,
}

/// An address that a machine says it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    link: u32,
    vlan: Option<u16>,
    address: IpAddr,
    mac: MacAddress,
}

/// Asks for addresses in the calling thread's namespace, by links of its own, and returns those that another machine
/// answers within `patience`, with its Ethernet address. All of it takes as long.
///
/// # Errors
/// When the process may not open such sockets.
pub fn who_else_has(
    probes: &[Probe],
    patience: Duration,
) -> Result<Vec<(Probe, MacAddress)>, Error> {
    ask_all(sockets::of_all_links(), probes, patience)
}

/// Asks as [`who_else_has`] does, by links that are ports of a bridge or of Open vSwitch, and returns what comes in there.
/// The questions leave by these ports alone.
///
/// # Errors
/// When the process may not open such sockets.
pub fn who_has_beyond(
    probes: &[Probe],
    patience: Duration,
) -> Result<Vec<(Probe, MacAddress)>, Error> {
    ask_all(sockets::of_ports(probes.iter().map(|probe| probe.link)), probes, patience)
}

fn ask_all(
    sockets: Result<Vec<OwnedFd>, Errno>,
    probes: &[Probe],
    patience: Duration,
) -> Result<Vec<(Probe, MacAddress)>, Error> {
    let refused = |errno| Error::errno_of("ask whether another machine has an address", errno);
    let sockets = sockets.map_err(refused)?;
    let mut found = Vec::new();
    let Some(first) = sockets.first() else { return Ok(found) };
    for _ in 0..TIMES {
        for probe in probes {
            // A question that cannot be sent has no answer: the link is down or gone.
            let _ = sockets::send(first, probe.link, &packets::question(probe));
        }
        let until = Instant::now() + patience / TIMES;
        while let Some(left) = until.checked_duration_since(Instant::now()) {
            for claim in sockets::wait_for_claims(&sockets, left) {
                note(&mut found, probes, &claim);
            }
        }
    }
    found.sort_by_key(|(probe, mac): &(Probe, MacAddress)| {
        (probe.link, probe.vlan, probe.address, *mac)
    });
    Ok(found)
}

fn note(found: &mut Vec<(Probe, MacAddress)>, probes: &[Probe], claim: &Claim) {
    let Claim { link, vlan, address, mac } = *claim;
    let is_answered = |probe: &&Probe| {
        (probe.link, probe.vlan, probe.address) == (link, vlan, address) && probe.mac != mac
    };
    let Some(probe) = probes.iter().find(is_answered) else { return };
    let answers = found.iter().filter(|(of, _)| of == probe).count();
    if answers < MOST && !found.contains(&(*probe, mac)) {
        found.push((*probe, mac));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(vlan: Option<u16>) -> Probe {
        Probe { link: 7, mac: MacAddress([2; 6]), vlan, address: [10, 0, 0, 1].into() }
    }

    #[test]
    fn claims_count_for_their_link_and_vlan() {
        let probes = [probe(None), probe(Some(100))];
        let Probe { link, vlan, address, .. } = probes[1];
        let claim = Claim { link, vlan, address, mac: MacAddress([4; 6]) };
        let mut found = Vec::new();
        note(&mut found, &probes, &claim);
        note(&mut found, &probes, &claim);
        note(&mut found, &probes, &Claim { link: 8, ..claim });
        note(&mut found, &probes, &Claim { vlan: Some(101), ..claim });
        note(&mut found, &probes, &Claim { mac: probes[1].mac, ..claim });
        note(&mut found, &probes, &Claim { address: [10, 0, 0, 2].into(), ..claim });
        assert_eq!(found, [(probes[1], claim.mac)]);
    }

    #[test]
    fn answers_of_few_machines_are_noted() {
        let probes = [probe(None)];
        let Probe { link, vlan, address, .. } = probes[0];
        let mut found = Vec::new();
        for number in 0..=u8::MAX {
            let mac = MacAddress([4, 0, 0, 0, 0, number]);
            note(&mut found, &probes, &Claim { link, vlan, address, mac });
        }
        assert_eq!(found.len(), MOST);
    }
}
