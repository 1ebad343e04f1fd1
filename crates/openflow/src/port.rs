//! Ports on the wire, and the settings that keep frames from passing them.
//!
//! Only OpenFlow 1.0 reports all of these settings. Later versions lack `no-flood` (`OFPPC_NO_FLOOD`), which Open
//! vSwitch obeys in bridges of every version (`bundle_update` in ofproto/ofproto-dpif.c).

use netlink::MacAddress;

use crate::message::{Version, message_of, part};

/// The statistics type of port descriptions.
const DESCRIPTIONS: u16 = 13;

/// Settings that keep frames from passing, with their names in `ovs-ofctl mod-port`.
const HOLDING_BACK: [(u32, &str); 3] =
    [(1 << 2, "no-receive"), (1 << 4, "no-flood"), (1 << 5, "no-forward")];

/// A port of a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchPort {
    /// Port number, as flows use it.
    pub number: u32,
    mac: MacAddress,
    config: u32,
}

impl SwitchPort {
    /// Settings that keep frames from passing this port, by their names in `ovs-ofctl mod-port`.
    pub fn held_back_by(&self) -> impl Iterator<Item = &'static str> {
        let is_set = |(setting, _): &(u32, _)| self.config & setting != 0;
        HOLDING_BACK.into_iter().filter(is_set).map(|(_, name)| name)
    }
}

/// Requests the descriptions of all ports.
pub(crate) fn ports_request(version: Version, number: u32) -> Vec<u8> {
    let head = [DESCRIPTIONS, 0].map(u16::to_be_bytes).concat();
    let body = match version {
        Version::V10 => head,
        Version::V13 => [head, vec![0; 4]].concat(),
    };
    message_of(version, version.statistics_request(), number, &body)
}

/// The ports in a part of the reply, and whether more parts follow. `None`: the reply is malformed.
pub(crate) fn ports(version: Version, body: &[u8]) -> Option<(Vec<SwitchPort>, bool)> {
    let (rest, has_more) = part(version, DESCRIPTIONS, body)?;
    let length = match version {
        Version::V10 => 48,
        Version::V13 => 64,
    };
    let ports = rest.chunks(length);
    let ports = ports.map(|port| described(version, port).filter(|_| port.len() == length));
    Some((ports.collect::<Option<_>>()?, has_more))
}

fn described(version: Version, port: &[u8]) -> Option<SwitchPort> {
    let word = |at: usize| Some(u32::from_be_bytes(*port.get(at..)?.first_chunk()?));
    let mac = |at: usize| Some(MacAddress(*port.get(at..)?.first_chunk()?));
    Some(match version {
        Version::V10 => {
            let number = u16::from_be_bytes(*port.first_chunk()?);
            SwitchPort { number: number.into(), mac: mac(2)?, config: word(24)? }
        }
        Version::V13 => SwitchPort { number: word(0)?, mac: mac(8)?, config: word(32)? },
    })
}

/// Clears the settings that keep frames from passing a port.
pub(crate) fn open_port(version: Version, number: u32, port: &SwitchPort) -> Vec<u8> {
    let settings = HOLDING_BACK.iter().fold(0, |all, (setting, _)| all | setting);
    // Name only settings that are set: not every version knows all of them.
    let config = [0, port.config & settings, 0, 0].map(u32::to_be_bytes).concat();
    let MacAddress(mac) = port.mac;
    let body = match version {
        Version::V10 => {
            let number = u16::try_from(port.number).unwrap_or(u16::MAX).to_be_bytes();
            [&number[..], &mac, &config].concat()
        }
        Version::V13 => [&port.number.to_be_bytes()[..], &[0; 4], &mac, &[0; 2], &config].concat(),
    };
    message_of(version, version.port_mod(), number, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A reply with one port.
    fn reply(version: Version, config: u32) -> Vec<u8> {
        let mac = [2, 0, 0, 0, 0, 7];
        let config = config.to_be_bytes();
        match version {
            Version::V10 => {
                [&[0, 13, 0, 0, 3, 0xe8][..], &mac, &[0; 16], &config, &[0; 20]].concat()
            }
            Version::V13 => [
                &[0, 13, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0xe8, 0, 0, 0, 0][..],
                &mac,
                &[0; 18],
                &config,
                &[0; 28],
            ]
            .concat(),
        }
    }

    #[test]
    fn switch_ports_are_read_in_both_versions() {
        for version in [Version::V10, Version::V13] {
            let body = reply(version, 0b11_0101);
            let (ports, has_more) = ports(version, &body).unwrap();
            assert_eq!((ports.len(), has_more), (1, false));
            assert_eq!((ports[0].number, ports[0].mac.0[5]), (1000, 7));
            let held_back_by: Vec<_> = ports[0].held_back_by().collect();
            assert_eq!(held_back_by, ["no-receive", "no-flood", "no-forward"]);
            for length in 9..body.len() {
                assert_eq!(super::ports(version, &body[..length]), None, "{length}");
            }
        }
    }

    #[test]
    fn port_message_lengths_follow_protocol() {
        for (version, request, change) in [(Version::V10, 12, 32), (Version::V13, 16, 40)] {
            let (ports, _) = ports(version, &reply(version, 4)).unwrap();
            assert_eq!(ports_request(version, 7).len(), request);
            assert_eq!(open_port(version, 7, &ports[0]).len(), change);
        }
    }
}
