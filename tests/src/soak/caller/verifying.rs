//! Verification of grants by traffic.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use super::World;
use crate::{
    eventually,
    soak::{
        ledger::{Ledger, Port, Sandbox, State},
        verification::{Endpoint, Ports},
    },
    violation::Violation,
};

/// Timeout for the network of a pod whose VF was moved back.
const REPAIRED: Duration = Duration::from_secs(5);

/// Verifies the pods of one caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrafficCheck<'a> {
    world: World<'a>,
    ledger: &'a Ledger,
}

impl<'a> TrafficCheck<'a> {
    pub(super) fn new(world: World<'a>, ledger: &'a Ledger) -> Self {
        Self { world, ledger }
    }

    /// Each granted interface has its network, and no other VF receives its traffic.
    pub(super) fn verify_all(&self, ports: &Ports) {
        for pod in 0..self.ledger.pods.len() {
            for interface in 0..self.ledger.pods[pod].ports.len() {
                let mut verified = Ok(0);
                eventually(REPAIRED, || {
                    verified = self.verified_alone(pod, interface, ports);
                    verified.is_ok().then_some(())
                });
                self.note_verified(verified);
            }
        }
    }

    fn verified_alone(
        &self,
        pod: usize,
        interface: usize,
        ports: &Ports,
    ) -> Result<u64, Violation> {
        let Some((own, other)) = self.endpoints(pod, interface) else { return Ok(0) };
        let before = ports.delivered();
        let pings = self.verified(pod, interface, &own, &other)?;
        let now = ports.delivered();
        let mut receivers = now.receivers_since(&before).into_iter();
        match receivers.find(|receiver| !ports.is_of(receiver, [&own, &other])) {
            None => Ok(pings),
            Some(stranger) => {
                let what = format!("what is between {own} and {other} comes to {stranger} too");
                Err(Violation::doubled(what))
            }
        }
    }

    /// An attached pod has its network at once, unless its VF has been removed.
    pub(super) fn verify(&self, pod: usize, interface: usize) {
        let Some((own, other)) = self.endpoints(pod, interface) else { return };
        let verified = self.verified(pod, interface, &own, &other);
        if verified.is_ok() || !self.world.common.card_was_reset.load(Relaxed) {
            self.note_verified(verified);
        }
    }

    fn verified(
        &self,
        pod: usize,
        interface: usize,
        own: &Endpoint,
        other: &Endpoint,
    ) -> Result<u64, Violation> {
        let there = own.reaches(other).map_err(Violation::without_network)?;
        let ports = &self.ledger.pods[pod].ports;
        if !is_alone_in_its_network(&ports[interface], ports) {
            return Ok(there);
        }
        other.reaches(own).map(|back| there + back).map_err(Violation::without_network)
    }

    fn note_verified(&self, verified: Result<u64, Violation>) {
        match verified {
            Ok(pings) => drop(self.world.common.tally.pings.fetch_add(pings, Relaxed)),
            Err(violation) => self.world.common.complain(violation),
        }
    }

    /// An interface, and another one of its network.
    fn endpoints(&self, pod: usize, interface: usize) -> Option<(Endpoint, Endpoint)> {
        let references = self.world.references?;
        let sandbox = &self.ledger.pods[pod];
        if !is_unmodified(sandbox) {
            return None;
        }
        let port = &sandbox.ports[interface];
        let own = Endpoint::new(&sandbox.container, port.interface, port.grant()?);
        let reference = references.of(&port.network).cloned();
        let other = reference.or_else(|| self.peer(pod, &port.network))?;
        Some((own, other))
    }

    /// An interface of another pod of this caller in the network, to answer.
    fn peer(&self, pod: usize, network: &str) -> Option<Endpoint> {
        let others = self.ledger.pods.iter().enumerate().filter(|(number, _)| *number != pod);
        let others = others.map(|(_, sandbox)| sandbox);
        others.filter(|sandbox| is_unmodified(sandbox)).find_map(|sandbox| {
            let port = sandbox.ports.iter().find(|port| port.network == network)?;
            if !is_alone_in_its_network(port, &sandbox.ports) {
                return None;
            }
            Some(Endpoint::new(&sandbox.container, port.interface, port.grant()?))
        })
    }
}

/// A pod with two interfaces in one network answers by either of them. After a failed call an interface's network is
/// unknown.
fn is_alone_in_its_network(port: &Port, ports: &[Port]) -> bool {
    let may_be_there = |other: &&Port| match other.state {
        State::Absent => false,
        State::Unknown => true,
        _ => other.network == port.network,
    };
    ports.iter().filter(may_be_there).count() == 1
}

/// Whether no interface was changed such that it answers for others. One that is being detached may have been misused
/// before.
fn is_unmodified(sandbox: &Sandbox) -> bool {
    sandbox.ports.iter().all(|port| matches!(port.state, State::Absent | State::Granted(_)))
}
