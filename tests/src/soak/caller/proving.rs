//! Verification of grants by traffic.

use std::{sync::atomic::Ordering::Relaxed, time::Duration};

use super::World;
use crate::{
    breach::Breach,
    eventually,
    soak::{
        ledger::{Ledger, Port, Sandbox, State},
        proof::{Ports, Station},
    },
};

/// Timeout for the network of a pod whose VF was moved back.
const REPAIRED: Duration = Duration::from_secs(5);

/// Verifies the pods of one caller.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prover<'a> {
    world: World<'a>,
    ledger: &'a Ledger,
}

impl<'a> Prover<'a> {
    pub(super) fn new(world: World<'a>, ledger: &'a Ledger) -> Self {
        Self { world, ledger }
    }

    /// Each granted interface has its network, and no other VF receives its traffic.
    pub(super) fn prove_all(&self, ports: &Ports) {
        for pod in 0..self.ledger.pods.len() {
            for interface in 0..self.ledger.pods[pod].ports.len() {
                let mut proven = Ok(0);
                eventually(REPAIRED, || {
                    proven = self.proven_alone(pod, interface, ports);
                    proven.is_ok().then_some(())
                });
                self.note_proven(proven);
            }
        }
    }

    fn proven_alone(&self, pod: usize, interface: usize, ports: &Ports) -> Result<u64, Breach> {
        let Some((own, other)) = self.stations(pod, interface) else { return Ok(0) };
        let before = ports.delivered();
        let pings = self.proven(pod, interface, &own, &other)?;
        let now = ports.delivered();
        let mut receivers = now.receivers_since(&before).into_iter();
        match receivers.find(|receiver| !ports.is_of(receiver, [&own, &other])) {
            None => Ok(pings),
            Some(stranger) => {
                let what = format!("what is between {own} and {other} comes to {stranger} too");
                Err(Breach::doubled(what))
            }
        }
    }

    /// An attached pod has its network at once, unless its VF was removed meanwhile.
    pub(super) fn prove(&self, pod: usize, interface: usize) {
        let Some((own, other)) = self.stations(pod, interface) else { return };
        let proven = self.proven(pod, interface, &own, &other);
        if proven.is_ok() || !self.world.common.card_was_reset.load(Relaxed) {
            self.note_proven(proven);
        }
    }

    fn proven(
        &self,
        pod: usize,
        interface: usize,
        own: &Station,
        other: &Station,
    ) -> Result<u64, Breach> {
        let there = own.reaches(other).map_err(Breach::without_network)?;
        let ports = &self.ledger.pods[pod].ports;
        if !is_alone_in_its_network(&ports[interface], ports) {
            return Ok(there);
        }
        other.reaches(own).map(|back| there + back).map_err(Breach::without_network)
    }

    fn note_proven(&self, proven: Result<u64, Breach>) {
        match proven {
            Ok(pings) => drop(self.world.common.tally.pings.fetch_add(pings, Relaxed)),
            Err(breach) => self.world.common.complain(breach),
        }
    }

    /// An interface, and another one of its network.
    fn stations(&self, pod: usize, interface: usize) -> Option<(Station, Station)> {
        let references = self.world.references?;
        let sandbox = &self.ledger.pods[pod];
        if !is_honest(sandbox) {
            return None;
        }
        let port = &sandbox.ports[interface];
        let own = Station::new(&sandbox.container, port.interface, port.promise()?);
        let reference = references.of(&port.network).cloned();
        let other = reference.or_else(|| self.peer(pod, &port.network))?;
        Some((own, other))
    }

    /// An interface of another pod of this caller in the network, to answer.
    fn peer(&self, pod: usize, network: &str) -> Option<Station> {
        let others = self.ledger.pods.iter().enumerate().filter(|(number, _)| *number != pod);
        let others = others.map(|(_, sandbox)| sandbox);
        others.filter(|sandbox| is_honest(sandbox)).find_map(|sandbox| {
            let port = sandbox.ports.iter().find(|port| port.network == network)?;
            if !is_alone_in_its_network(port, &sandbox.ports) {
                return None;
            }
            Some(Station::new(&sandbox.container, port.interface, port.promise()?))
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
fn is_honest(sandbox: &Sandbox) -> bool {
    sandbox.ports.iter().all(|port| matches!(port.state, State::Absent | State::Promised(_)))
}
