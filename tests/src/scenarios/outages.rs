//! Programs that are down, killed and restarted, and a card that is reset.

use std::time::Duration;

use serde_json::Value;

use super::pods::addresses;
use crate::{Call, Lab, Netns, Settings, Stopwatch, Timeouts, eventually, wait_for};

/// Timeout for background work.
const LIMIT: Duration = Duration::from_secs(120);

/// Limit for failing fast: far below the timeouts of runtimes.
const FAST: Duration = Duration::from_secs(5);

/// Two pods on `blue` that reach each other.
#[derive(Debug)]
pub struct Pair {
    /// The pod that sends requests.
    pub a: Netns,
    /// The pod that answers.
    pub b: Netns,
    address_of_b: Vec<String>,
}

impl Pair {
    /// Attaches both pods.
    ///
    /// # Panics
    /// If they do not reach each other, or an invariant is violated.
    #[must_use]
    pub fn attach(lab: &Lab) -> Self {
        let (a, b) = (Netns::new("a"), Netns::new("b"));
        let _ = lab.add("blue", &a, "eth0").result();
        let address_of_b = addresses(&lab.add("blue", &b, "eth0").result());
        let pair = Self { a, b, address_of_b };
        pair.assert_reach();
        lab.assert_invariants();
        pair
    }

    /// Whether one pod reaches all addresses of the other.
    #[must_use]
    pub fn reach(&self) -> bool {
        self.address_of_b.iter().all(|address| self.a.pings(address))
    }

    /// Asserts that one pod reaches the other.
    ///
    /// # Panics
    /// If it does not.
    pub fn assert_reach(&self) {
        assert!(self.reach(), "{} does not reach {}", self.a.name(), self.b.name());
    }

    /// Detaches both pods.
    ///
    /// # Panics
    /// If anything remains.
    pub fn detach(&self, lab: &Lab) {
        lab.del("blue", &self.a, "eth0").nothing();
        lab.del("blue", &self.b, "eth0").nothing();
        lab.assert_clean_slate();
    }
}

/// IDs of all attachments, sorted.
#[must_use]
pub fn ids(lab: &Lab) -> Vec<Value> {
    let mut ids: Vec<_> =
        lab.operator().get("attachments").iter().map(|a| a["id"].clone()).collect();
    ids.sort_by_key(Value::to_string);
    ids
}

/// While the DPU is down, ADD fails fast and DEL is delivered later.
///
/// # Panics
/// If an expectation is not met.
pub fn dpu_outage_fails_adds_and_defers_dels(settings: &Settings) {
    let timeouts = Timeouts { grace: 1, ..settings.timeouts.clone() };
    let mut lab = Lab::start(&Settings { timeouts, ..settings.clone() });
    let pair = Pair::attach(&lab);
    lab.service.crash();

    let start = Stopwatch::start();
    lab.add("blue", &Netns::new("other"), "eth0").fails(11, &[]);
    assert!(start.unstalled() < FAST, "{:?}", start.unstalled());
    pair.assert_reach();
    lab.del("blue", &pair.a, "eth0").nothing();
    assert!(start.unstalled() < 2 * FAST, "{:?}", start.unstalled());
    wait_for("a STATUS of 50", LIMIT, || (!lab.status().status.success()).then_some(()));
    lab.status().fails(50, &[]);

    lab.start_service();
    lab.wait_until_good();
    wait_for("the release to be delivered", LIMIT, || (ids(&lab).len() == 1).then_some(()));
    lab.assert_invariants();
    lab.del("blue", &pair.b, "eth0").nothing();
    lab.assert_clean_slate();
}

/// A service that is killed and restarted keeps attachments, and running pods keep their network.
///
/// # Panics
/// If an expectation is not met.
pub fn killed_service_keeps_attachments_and_traffic(settings: &Settings) {
    let mut lab = Lab::start(settings);
    let pair = Pair::attach(&lab);
    let before = ids(&lab);
    lab.service.crash();
    pair.assert_reach();
    lab.start_service();
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    pair.assert_reach();
    pair.detach(&lab);
}

/// An agent that is killed and restarted keeps attachments.
///
/// # Panics
/// If an expectation is not met.
pub fn killed_agent_keeps_attachments(settings: &Settings) {
    let mut lab = Lab::start(settings);
    let pair = Pair::attach(&lab);
    let before = ids(&lab);
    lab.agent.crash();
    pair.assert_reach();
    lab.start_agent();
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    pair.detach(&lab);
}

/// A pod whose namespace died before DEL leaves nothing behind.
///
/// # Panics
/// If an expectation is not met.
pub fn dead_netns_releases_everything(settings: &Settings) {
    let lab = Lab::start(settings);
    let pod = Netns::new("pod");
    let name = pod.name().to_owned();
    let _ = lab.add("blue", &pod, "eth0").result();
    let path = pod.path();
    drop(pod);
    let del = Call::new("DEL", &lab.configuration("blue")).of(&name, Some(&path), "eth0");
    lab.execute(&del).nothing();
    lab.assert_clean_slate();
    let _ = lab.add("blue", &Netns::new("next"), "eth0").result();
}

/// After a card reset, pods get their VFs back.
///
/// # Panics
/// If an expectation is not met.
pub fn pods_get_vfs_back_after_card_reset(settings: &Settings) {
    let mut lab = Lab::start(settings);
    let pair = Pair::attach(&lab);
    let before = ids(&lab);
    lab.reset_card();
    let back = eventually(LIMIT, || pair.reach().then_some(()));
    assert!(back.is_some(), "{} lost {}", pair.a.name(), pair.b.name());
    lab.wait_until_good();
    lab.assert_invariants();
    assert_eq!(ids(&lab), before);
    pair.detach(&lab);
}
