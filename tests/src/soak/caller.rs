//! A container runtime or an operator that carries out the plan.

mod adding;
mod asking;
mod common;
mod deleting;
mod operating;
mod verifying;
mod world;

use self::verifying::TrafficCheck;
pub(crate) use self::{
    common::{Common, Tally},
    world::World,
};
use super::{
    ledger::{Ledger, State},
    plan::{Action, AddOption, Network, Operation},
    verification::Ports,
};

/// A caller.
#[derive(Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) world: World<'a>,
}

impl Caller<'_> {
    pub(crate) fn perform(&mut self, mut operation: Operation) {
        let last = self.ledger.pods[operation.pod].called().end - 1;
        operation.interface = operation.interface.min(last);
        let common = self.world.common;
        if matches!(operation.action, Action::Collect) {
            let _alone = common.collecting.write().unwrap();
            self.collect(operation.pod, operation.interface);
            return self.ledger.pods[operation.pod].follow();
        }
        let _together = common.collecting.read().unwrap();
        self.perform_beside_others(operation);
    }

    fn perform_beside_others(&mut self, Operation { pod, interface, action }: Operation) {
        self.act(pod, interface, action);
        self.ledger.pods[pod].follow();
    }

    fn act(&mut self, pod: usize, interface: usize, action: Action) {
        match action {
            Action::Add(network, option) => self.add(pod, interface, network, option),
            Action::AddTwice(network) => self.add_twice(pod, interface, network),
            Action::AddCutShort(network) => self.add_cut_short(pod, interface, network),
            Action::AddDying(network, death) => self.add_dying(pod, interface, network, death),
            Action::AddTwiceDying(network, death) => {
                self.add_twice_dying(pod, interface, network, death);
            }
            Action::DelDying(death) => self.del_dying(pod, interface, death),
            Action::AddSuspended(network, pause) => {
                self.add_suspended(pod, interface, network, pause);
            }
            Action::DelSuspended(pause) => self.del_suspended(pod, interface, pause),
            Action::Misuse(network, hostile_changes, then) => {
                self.misuse(pod, interface, network, hostile_changes, then);
            }
            Action::Del => self.del(pod, interface, true),
            Action::DelTwice => {
                self.del(pod, interface, true);
                self.del(pod, interface, false);
            }
            Action::DelUnknown => self.world.del_unknown(),
            Action::Check => self.check(pod, interface),
            Action::Status => self.world.status(),
            Action::EndNetns { late } => self.end_netns(pod, late),
            Action::Replace => self.ledger.replace(pod),
            Action::Release => operating::release(self.world, self.ledger, pod, interface),
            Action::Apply => operating::apply(self.world, self.ledger),
            Action::Delete => operating::delete(self.world, self.ledger),
            Action::Collect => unreachable!("is done alone"),
        }
    }

    /// Ends everything without a grant, everything misused, and everything late.
    pub(crate) fn settle(&mut self) {
        for pod in 0..self.ledger.pods.len() {
            for interface in self.ledger.pods[pod].called() {
                match self.ledger.pods[pod].ports[interface].state {
                    State::Unknown => self.settle_unknown(pod, interface),
                    State::Misused => self.del(pod, interface, true),
                    _ => {}
                }
            }
            self.ledger.pods[pod].follow();
        }
        self.del_late();
    }

    /// Attaches each pod's first interface to the network with the same index.
    pub(crate) fn attach_first_interfaces(&mut self, networks: &[&'static str]) {
        for (pod, network) in networks.iter().enumerate() {
            self.add(pod, 0, Network::Configured(network), AddOption::Nothing);
        }
    }

    /// Detaches everything.
    pub(crate) fn leave(&mut self) {
        for pod in 0..self.ledger.pods.len() {
            for interface in self.ledger.pods[pod].called() {
                self.del(pod, interface, true);
            }
            self.ledger.pods[pod].follow();
        }
        self.del_late();
    }

    /// Some runtimes repeat a failed ADD, others send DEL.
    fn settle_unknown(&mut self, pod: usize, interface: usize) {
        if pod == 0 {
            self.add(pod, interface, Network::Configured("blue"), AddOption::Nothing);
        }
        if matches!(self.ledger.pods[pod].ports[interface].state, State::Unknown) {
            self.del(pod, interface, true);
        }
    }

    /// Each granted interface has its network, and no other VF receives its traffic.
    pub(crate) fn verify_all(&self, ports: &Ports) {
        self.traffic_check().verify_all(ports);
    }

    fn traffic_check(&self) -> TrafficCheck<'_> {
        TrafficCheck::new(self.world, self.ledger)
    }
}
