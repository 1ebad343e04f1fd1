//! Finds other devices that answer a gateway's address: pods would reach one or the other. The DPU reports the
//! conflict, since it can't know which device is right.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc, time::Duration};

use bootstrap::Chain;
use netlink::{MacAddress, Probe, who_else_has};
use tokio::{
    task::spawn_blocking,
    time::{Interval, MissedTickBehavior, interval},
};

use super::Gateways;

/// How long to wait for answers.
const ANSWER_TIME: Duration = Duration::from_millis(600);

/// The interval for addresses that another device has answered.
const RETRY: Duration = Duration::from_secs(10);

/// The interval for all addresses: a device can join the network later.
const RETRY_ALL: Duration = Duration::from_secs(600);

/// Probes the addresses of each new gateway, answered addresses every 10 s, and all addresses every 10 minutes.
/// Never returns.
pub(crate) async fn watch_for_others(gateways: Arc<Gateways>) {
    let (mut again, mut all_again) = (every(RETRY), every(RETRY_ALL));
    loop {
        let is_about_all = tokio::select! {
            _ = all_again.tick() => true,
            _ = again.tick() => false,
            () = gateways.are_new() => false,
        };
        gateways.look_for_others(is_about_all).await;
    }
}

fn every(period: Duration) -> Interval {
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

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

impl Gateways {
    async fn look_for_others(&self, is_about_all: bool) {
        let due = self.shown().due(is_about_all);
        if due.is_empty() {
            return;
        }
        let asked = due.clone();
        let found = spawn_blocking(move || who_else_has(&asked, ANSWER_TIME)).await;
        match found.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic())) {
            Ok(found) => self.note_others(&due, &found),
            Err(error) => {
                tracing::warn!(reason = %Chain(&error), "cannot probe gateways' addresses");
            }
        }
    }
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
