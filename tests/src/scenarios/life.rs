//! The life of two pods with all events, one after the other.

use std::time::Duration;

use serde_json::{Value, json};

use super::outages::{Pair, ids};
use crate::{Answer, Call, Lab, Netns, Settings, wait_for};

/// Timeout of a reset.
const LIMIT: Duration = Duration::from_secs(120);

/// Two pods are attached and checked. They keep their network while each program is killed and the card is reset. Then
/// one is detached by GC, the other by DEL.
///
/// # Panics
/// If an expectation is not met.
pub fn pods_survive_restarts_and_reset(settings: &Settings) {
    let mut lab = Lab::start(settings);
    let pair = Pair::attach(&lab);
    let before = ids(&lab);
    outlive_restarts(&mut lab, &pair);
    lab.reset_card();
    wait_for("the pods' network after a reset", LIMIT, || pair.reach().then_some(()));
    lab.wait_until_good();
    assert_in_order(&lab, &pair);

    assert_eq!(ids(&lab), before);
    collect_and_detach(&lab, &pair);
}

/// Both pods work after each program is killed and restarted.
fn outlive_restarts(lab: &mut Lab, pair: &Pair) {
    assert_in_order(lab, pair);
    lab.agent.crash();
    lab.start_agent();
    lab.wait_until_good();
    assert_in_order(lab, pair);
    lab.service.crash();
    lab.start_service();
    lab.wait_until_good();
    assert_in_order(lab, pair);
}

/// Both pods reach each other, CHECK succeeds, repeated ADDs are answered, and no difference is reported.
fn assert_in_order(lab: &Lab, pair: &Pair) {
    pair.assert_reach();
    lab.assert_invariants();
    for pod in [&pair.a, &pair.b] {
        let result = lab.add("blue", pod, "eth0").result();
        check(lab, "blue", pod, &result).nothing();
    }
    let found = lab.operator().output(&["doctor", "-o", "json"]);
    let found: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(found["findings"], json!([]), "{found:#}");
}

/// CHECK of a pod's `eth0` with the result of its ADD.
#[must_use]
pub fn check(lab: &Lab, network: &str, pod: &Netns, result: &Value) -> Answer {
    let mut configuration = lab.configuration(network);
    configuration["prevResult"] = result.clone();
    let check = Call::new("CHECK", &configuration);
    lab.execute(&check.of(pod.name(), Some(&pod.path()), "eth0"))
}

/// GC with one pod in its list detaches the other. DEL detaches the rest.
fn collect_and_detach(lab: &Lab, pair: &Pair) {
    let mut configuration = lab.configuration("blue");
    configuration["cni.dev/valid-attachments"] =
        json!([{ "containerID": pair.b.name(), "ifname": "eth0" }]);
    lab.execute(&Call::new("GC", &configuration)).nothing();
    lab.assert_invariants();
    let left = lab.operator().get("attachments");
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["key"]["containerId"], pair.b.name());
    lab.del("blue", &pair.b, "eth0").nothing();
    lab.assert_clean_slate();
}
