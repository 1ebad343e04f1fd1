//! The gateways' addresses that were probed, and who answered them.

use std::{collections::BTreeMap, net::IpAddr};

use netlink::{MacAddress, Probe};

/// The probed addresses, each with the MAC addresses that answered.
#[derive(Debug, Default)]
pub(super) struct Asked(BTreeMap<(u32, IpAddr), Vec<MacAddress>>);

impl Asked {
    /// Returns the probes that are due. Drops the results of addresses that are not in `all`.
    pub(super) fn due(&mut self, all: &[(String, Probe)], is_about_all: bool) -> Vec<Probe> {
        let probes: Vec<_> = all.iter().map(|(_, probe)| *probe).collect();
        self.0.retain(|key, _| probes.iter().any(|probe| key_of(probe) == *key));
        let is_due = |probe: &Probe| self.0.get(&key_of(probe)).is_none_or(|who| !who.is_empty());
        probes.into_iter().filter(|probe| is_about_all || is_due(probe)).collect()
    }

    pub(super) fn note(&mut self, asked: &[Probe], found: &[(Probe, MacAddress)]) {
        for probe in asked {
            let who = found.iter().filter(|(of, _)| of == probe).map(|(_, mac)| *mac);
            self.0.insert(key_of(probe), who.collect());
        }
    }

    /// A sentence if another device answers the address.
    pub(super) fn problem_of(&self, network: &str, probe: &Probe) -> Option<String> {
        let who = self.0.get(&key_of(probe)).filter(|who| !who.is_empty())?;
        let who: Vec<_> = who.iter().map(ToString::to_string).collect();
        Some(format!(
            "network {network}: {} answers its gateway's address {}, and so does this DPU: remove the \
             address from the other device, or set gateway_mode = \"router\"",
            who.join(", "),
            probe.address
        ))
    }
}

fn key_of(probe: &Probe) -> (u32, IpAddr) {
    (probe.link, probe.address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe(link: u32) -> Probe {
        Probe { link, mac: MacAddress([2; 6]), vlan: None, address: [10, 0, 0, 1].into() }
    }

    #[test]
    fn only_answered_addresses_are_probed_again() {
        let all = [("blue".to_owned(), probe(1)), ("green".to_owned(), probe(2))];
        let mut asked = Asked::default();
        assert_eq!(asked.due(&all, false), [probe(1), probe(2)]);
        asked.note(&[probe(1), probe(2)], &[(probe(2), MacAddress([4; 6]))]);
        assert_eq!(asked.due(&all, false), [probe(2)]);
        assert_eq!(asked.problem_of("blue", &probe(1)), None);
        let reported = asked.problem_of("green", &probe(2)).unwrap();
        assert!(
            reported.contains("04:04:04:04:04:04") && reported.contains("10.0.0.1"),
            "{reported}"
        );
        asked.note(&[probe(2)], &[]);
        assert!(asked.due(&all, false).is_empty());
        assert_eq!(asked.due(&all, true), [probe(1), probe(2)]);
        assert!(asked.due(&all[..1], false).is_empty());
        assert_eq!(asked.due(&all, false), [probe(2)], "it was away, and so is new");
    }
}
