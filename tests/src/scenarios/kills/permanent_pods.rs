//! Pods that stay attached while programs die.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    Answer, Call, Lab, Netns, eventually,
    scenarios::{
        delegates::{OtherPlugins, kept},
        pods::addresses,
    },
};

/// Timeout.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// Two pods that are attached all the time.
#[derive(Debug)]
pub(super) struct PermanentPods {
    a: Netns,
    pub(super) b: Netns,
    answers: [Value; 2],
    /// Representor of the VF of `b`, whose rate is limited.
    pub(super) representor: String,
    /// Networks of other plugins, kept as long as the lab needs them.
    _others: OtherPlugins,
}

impl PermanentPods {
    pub(super) fn attach(lab: &Lab, others: OtherPlugins) -> Self {
        let (a, b) = (Netns::new("resident"), Netns::new("resident"));
        let answers = [Self::add(lab, &a, 0), Self::add(lab, &b, 1)].map(|added| added.result());
        let is_limited = |link: &Value| link["qdisc"] == "tbf";
        let limited = lab.card.representors().into_iter().find(is_limited).expect("a limit");
        let representor = limited["ifname"].as_str().unwrap().to_owned();
        let permanent_pods = Self { a, b, answers, representor, _others: others };
        lab.assert_invariants();
        permanent_pods.assert_reach();
        permanent_pods
    }

    fn add(lab: &Lab, pod: &Netns, limited: u64) -> Answer {
        let mut configuration = lab.configuration("blue");
        configuration["runtimeConfig"] = json!({ "bandwidth": {
            "ingressRate": limited * 1_000_000_000, "ingressBurst": limited * 10_000_000,
        }});
        let call = Call::new("ADD", &configuration);
        lab.execute(&call.of(pod.name(), Some(&pod.path()), "eth0"))
    }

    fn reach(&self) -> bool {
        addresses(&self.answers[1]).iter().all(|address| self.a.pings(address))
    }

    pub(super) fn assert_reach(&self) {
        let reached = eventually(LIMIT, || self.reach().then_some(()));
        assert!(reached.is_some(), "{} does not reach {}", self.a.name(), self.b.name());
    }

    /// The pods have their attachments, reach each other, and a repeated ADD gives the same answer.
    pub(super) fn assert_kept(&self, lab: &Lab) {
        self.assert_reach();
        for (limited, (pod, first)) in [&self.a, &self.b].into_iter().zip(&self.answers).enumerate()
        {
            assert_eq!(Self::add(lab, pod, limited as u64).result(), *first, "{}", pod.name());
        }
    }

    /// After a card reset, the pods have their attachments again.
    pub(super) fn assert_back(&self, lab: &Lab) {
        lab.wait_until_good();
        self.assert_kept(lab);
        self.assert_alone(lab);
    }

    pub(super) fn assert_alone(&self, lab: &Lab) {
        lab.assert_invariants();
        assert_eq!(lab.operator().get("attachments").len(), 2);
        let taken_back = eventually(LIMIT, || (kept(lab) == 0).then_some(()));
        assert!(taken_back.is_some(), "an interface of other plugins is left");
    }

    pub(super) fn detach(&self, lab: &Lab) {
        for pod in [&self.a, &self.b] {
            lab.del("blue", pod, "eth0").nothing();
        }
        lab.assert_clean_slate();
    }
}
