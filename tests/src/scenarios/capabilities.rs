//! Arguments that a runtime passes by the capabilities of the conflist, as libcni builds them.

use std::time::Duration;

use serde_json::{Value, json};

use super::life;
use crate::{Answer, Call, Lab, Netns, Settings, run, wait_for};

const LIMIT: Duration = Duration::from_secs(60);

/// The shipped conflist.
const CONFLIST: &str = include_str!("../../../configs/10-dpu-offload.conflist");

/// A network with a limit and with resolvers.
const NETWORK: &str = r#"
[[network]]
name = "limited"
bandwidth = { ingress_rate = 50000000 }
[network.dns]
nameservers = ["10.9.0.53"]
domain = "limited.example"
search = ["limited.example"]
[[network.subnets]]
cidr = "10.9.0.0/24"
"#;

/// The settings with the network `limited`.
#[must_use]
pub fn settings_with_limits(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.networks.push_str(NETWORK);
    settings
}

/// The plugin's configuration for a network with these capability arguments.
///
/// # Panics
/// If the conflist does not declare one of them as a capability.
#[must_use]
pub fn by_conflist(lab: &Lab, network: &str, arguments: &Value) -> Value {
    let list: Value = serde_json::from_str(CONFLIST).unwrap();
    let mut plugin = list["plugins"][0].clone();
    for (capability, _) in arguments.as_object().unwrap() {
        assert_eq!(plugin["capabilities"][capability], true, "{capability}");
    }
    plugin["cniVersion"] = json!("1.1.0");
    plugin["name"] = list["name"].clone();
    plugin["network"] = json!(network);
    plugin["agentSocket"] = json!(lab.socket());
    plugin["runtimeConfig"] = arguments.clone();
    plugin
}

/// ADD of a pod's `eth0` with the conflist.
#[must_use]
pub fn add(lab: &Lab, network: &str, pod: &Netns, arguments: &Value) -> Answer {
    let add = Call::new("ADD", &by_conflist(lab, network, arguments));
    lab.execute(&add.of(pod.name(), Some(&pod.path()), "eth0"))
}

/// Limits of representors: rate in byte/s and burst in bytes, as in `tc`.
#[must_use]
pub fn limits(lab: &Lab) -> Vec<(String, u64, u64)> {
    let queues = lab.card.dpu.json("tc", &["qdisc", "show"]);
    let limited = queues.iter().filter(|queue| queue["kind"] == "tbf");
    let number = |value: &Value| value.as_u64().unwrap();
    let reported = limited.map(|queue| {
        let options = &queue["options"];
        let dev = queue["dev"].as_str().unwrap().to_owned();
        (dev, number(&options["rate"]), number(&options["burst"]))
    });
    reported.collect()
}

/// Representor of the only attached VF.
fn representor(lab: &Lab) -> String {
    let vfs = lab.operator().get("vfs");
    let attached = vfs.iter().find(|vf| vf["state"] != "VF_STATE_FREE").unwrap();
    attached["representor"].as_str().unwrap().to_owned()
}

/// A representor has the lower of the pod's and the network's limit while the pod is attached, also after restarts.
///
/// # Panics
/// If an expectation is not met.
pub fn lower_ingress_limit_applies(settings: &Settings) {
    let mut lab = Lab::start(&settings_with_limits(settings));
    let pod = Netns::new("pod");
    // A burst is reduced to what the rate allows in 100 ms.
    for (asked, rate, burst) in [
        (json!({}), 6_250_000, 1..=625_000),
        (json!({ "ingressRate": 100_000_000, "ingressBurst": 8_000_000 }), 6_250_000, 1..=625_000),
        (json!({ "ingressRate": 8_000_000, "ingressBurst": 80_000 }), 1_000_000, 9_900..=10_100),
        (
            json!({ "ingressRate": 8_000_000, "ingressBurst": 4_294_967_295_u64 }),
            1_000_000,
            50_000..=100_100,
        ),
    ] {
        let _ = add(&lab, "limited", &pod, &json!({ "bandwidth": asked })).result();
        let found = limits(&lab);
        assert_eq!(found.len(), 1, "{asked}: {found:?}");
        let (port, in_force, at_once) = &found[0];
        assert_eq!((port, *in_force), (&representor(&lab), rate), "{asked}");
        assert!(burst.contains(at_once), "{asked}: {found:?}");
        lab.assert_invariants();
        lab.del("limited", &pod, "eth0").nothing();
        assert_eq!(limits(&lab), []);
    }
    let asked = json!({ "bandwidth": { "ingressRate": 8_000_000 } });
    let result = add(&lab, "limited", &pod, &asked).result();
    let before = limits(&lab);
    lab.service.crash();
    let queue = ["qdisc", "del", "dev", &before[0].0, "root"];
    assert!(run(lab.card.dpu.command("tc").args(queue)).status.success());
    lab.start_service();
    lab.wait_until_good();
    assert_eq!(limits(&lab), before);
    lab.reset_card();
    wait_for("the limit after a reset", LIMIT, || (limits(&lab) == before).then_some(()));
    lab.wait_until_good();
    lab.assert_invariants();
    life::check(&lab, "limited", &pod, &result).nothing();
    lab.del("limited", &pod, "eth0").nothing();
    assert_eq!(limits(&lab), []);
    lab.assert_clean_slate();
}
