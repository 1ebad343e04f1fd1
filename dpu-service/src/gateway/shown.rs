//! The state of the gateways for operators.

use std::collections::BTreeMap;

use ipnetwork::IpNetwork;
use netlink::Probe;
use offload_proto::ConditionReason;

use crate::conditions::Fault;

use super::{asked::Asked, links::PassReport};

/// The gateway of one network, for operators.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayView {
    /// The name of its link. Empty: the link could not be made.
    pub link: String,
    pub addresses: Vec<IpNetwork>,
    /// Problems: one sentence each.
    pub problems: Vec<String>,
}

/// Repairs of what another program has changed: one sentence each.
pub(crate) type Repairs = Vec<String>;

/// The state after the latest pass.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub(super) gateways: BTreeMap<String, GatewayView>,
    /// Sentences about all gateways.
    pub(super) problems: Vec<String>,
    /// Whether the rules could not be set, so that there is no gateway.
    pub(super) is_closed: bool,
    /// The indices of the gateways' links, by network.
    pub(super) links: BTreeMap<String, u32>,
    /// The addresses that they answer, each with its network.
    pub(super) answered: Vec<(String, Probe)>,
    pub(super) asked: Asked,
}

impl Shown {
    pub(super) fn due(&mut self, is_about_all: bool) -> Vec<Probe> {
        self.asked.due(&self.answered, is_about_all)
    }

    /// Takes the result of a pass over the links. Returns the repairs.
    pub(super) fn include(&mut self, report: PassReport) -> Repairs {
        self.problems.extend(report.problems);
        for (network, problem) in report.problems_of {
            self.gateways.entry(network).or_default().problems.push(problem);
        }
        report.repairs
    }

    pub(super) fn all_problems(&self) -> Vec<String> {
        self.faults().into_iter().map(|fault| fault.message).collect()
    }

    pub(super) fn faults(&self) -> Vec<Fault> {
        let of_network = |network: &str, problem: String| {
            Fault::of_network(ConditionReason::GatewayBroken, network, problem)
        };
        let of_all = self.problems.iter().cloned();
        let of_all = of_all.map(|problem| Fault::of_dpu(ConditionReason::GatewayBroken, problem));
        let of_gateways = self.gateways.iter().flat_map(|(network, gateway)| {
            let problems = gateway.problems.iter().cloned();
            problems.map(move |problem| of_network(network, problem))
        });
        let others = self.answered.iter().filter_map(|(network, probe)| {
            Some(of_network(network, self.asked.problem_of(network, probe)?))
        });
        of_all.chain(of_gateways).chain(others).collect()
    }
}
