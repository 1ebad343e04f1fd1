//! Probes: does another machine use an address?
//!
//! A probe claims no address, and only this machine receives the answer, so no neighbour cache changes. ARP probes have
//! no sender address (RFC 5227). IPv6 solicitations come from the link-local address of the link's MAC address. From
//! the unspecified address the answer would go to all nodes (RFC 4862, section 5.4.3), which would then send to the
//! answering machine.

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

use crate::{error::Error, mac::MacAddress};

/// Number of probes for each address, because a frame may be lost.
const TIMES: u32 = 3;

/// Limit of recorded machines for each address: a hostile machine may answer from many MAC addresses.
const MOST: usize = 4;

/// A question for an address on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Index of the link.
    pub link: u32,
    /// MAC address of the link.
    pub mac: MacAddress,
    /// VLAN of the question and its answers. `None`: untagged.
    pub vlan: Option<u16>,
    /// The IP address.
    pub address: IpAddr,
}

/// A machine's claim to have an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Claim {
    link: u32,
    vlan: Option<u16>,
    address: IpAddr,
    mac: MacAddress,
}

/// Sends probes by links of the calling thread's namespace. Returns those that another machine answers, with the MAC
/// address of that machine. The call takes the whole `timeout`.
///
/// # Errors
/// If the process may not open packet sockets.
pub fn who_else_has(
    probes: &[Probe],
    timeout: Duration,
) -> Result<Vec<(Probe, MacAddress)>, Error> {
    ask_all(sockets::of_all_links(), probes, timeout)
}

/// Probes like [`who_else_has`], by links that are ports of a bridge or of Open vSwitch. It sends by these ports only,
/// and receives there before the bridge takes the frames.
///
/// # Errors
/// If the process may not open packet sockets.
pub fn who_has_beyond(
    probes: &[Probe],
    timeout: Duration,
) -> Result<Vec<(Probe, MacAddress)>, Error> {
    ask_all(sockets::of_ports(probes.iter().map(|probe| probe.link)), probes, timeout)
}

fn ask_all(
    sockets: Result<Vec<OwnedFd>, Errno>,
    probes: &[Probe],
    timeout: Duration,
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
        let until = Instant::now() + timeout / TIMES;
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
    fn claims_match_link_and_vlan() {
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
    fn recorded_answers_are_bounded() {
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
