//! Whether the service took all of a network over: one of the release before passes over fields that it
//! does not know.

use offload_proto::v1::Network;
use serde_json::Value;

use crate::rows::anti_spoofing;

/// The fields of what was sent that are not in what the service says that it has, by their paths.
pub(super) fn passed_over(sent: &Network, taken: &Network) -> Vec<String> {
    let level = anti_spoofing(&taken.anti_spoofing, taken.allow_mac_spoofing);
    let has_other_level = !sent.anti_spoofing.is_empty() && sent.anti_spoofing != level;
    let mut fields = Vec::from_iter(has_other_level.then(|| "anti_spoofing".to_owned()));
    let without_level = |network: &Network| {
        let network = Network { anti_spoofing: String::new(), ..network.clone() };
        // Nothing in a message can't be JSON.
        serde_json::to_value(network).unwrap_or_default()
    };
    collect_missing("", &without_level(sent), &without_level(taken), &mut fields);
    fields
}

/// Looks for values that were said and are not there: the service may spell one in another way.
fn collect_missing(path: &str, sent: &Value, taken: &Value, fields: &mut Vec<String>) {
    match (sent, taken) {
        (Value::Object(sent), _) => {
            for (key, sent) in sent {
                let dot = if path.is_empty() { "" } else { "." };
                let taken = taken.get(key).unwrap_or(&Value::Null);
                collect_missing(&format!("{path}{dot}{}", snake(key)), sent, taken, fields);
            }
        }
        (Value::Array(sent), Value::Array(taken)) if !taken.is_empty() => {
            for (index, (sent, taken)) in sent.iter().zip(taken).enumerate() {
                collect_missing(&format!("{path}[{index}]"), sent, taken, fields);
            }
        }
        _ if says_something(sent) && !says_something(taken) => fields.push(path.to_owned()),
        _ => {}
    }
}

/// Numbers of 64 bits are texts in protobuf's JSON.
fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(is_set) => *is_set,
        Value::Number(number) => number.as_u64() != Some(0),
        Value::String(text) => !matches!(text.as_str(), "" | "0"),
        Value::Array(items) => !items.is_empty(),
        Value::Object(_) => true,
    }
}

/// A key of JSON as the configuration file spells it.
fn snake(key: &str) -> String {
    let spell = |c: char| {
        let underscore = c.is_ascii_uppercase().then_some('_');
        underscore.into_iter().chain([c.to_ascii_lowercase()])
    };
    key.chars().flat_map(spell).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use offload_proto::v1::{Bandwidth, Dns, Subnet};

    use super::*;

    fn sent() -> Network {
        let subnet = Subnet { cidr: "FD00::/64".into(), ..Subnet::default() };
        Network {
            name: "blue".into(),
            subnets: vec![subnet.clone(), Subnet { gateway: "fd01::1".into(), ..subnet }],
            bandwidth: Some(Bandwidth::default()),
            dns: Some(Dns::default()),
            anti_spoofing: "mac".into(),
            allowed_sources: vec!["10.0.0.7".into()],
            ..Network::default()
        }
    }

    #[test]
    fn what_is_spelled_in_another_way_or_added_is_taken() {
        let mut taken = Network { mtu: 1500, ..sent() };
        taken.subnets[0].cidr = "fd00::/64".into();
        taken.allowed_sources = vec!["10.0.0.7/32".into()];
        assert_eq!(passed_over(&sent(), &taken), [""; 0]);
    }

    #[test]
    fn fields_that_a_service_of_before_does_not_know_are_named() {
        let mut taken = Network { allowed_sources: Vec::new(), ..sent() };
        taken.anti_spoofing = String::new();
        taken.subnets[1].gateway = String::new();
        let bandwidth = Some(Bandwidth { egress_rate: 8000, ..Bandwidth::default() });
        let sent = Network { bandwidth, vlan: 7, ..sent() };
        let fields: BTreeSet<_> = passed_over(&sent, &taken).into_iter().collect();
        let expected = ["allowed_sources", "bandwidth.egress_rate", "subnets[1].gateway", "vlan"];
        assert!(fields.iter().eq(&expected), "{fields:?}");
    }

    #[test]
    fn a_service_of_before_has_a_level_of_its_own() {
        let level = |text: &str| Network { anti_spoofing: text.into(), ..Network::default() };
        let before = |allow_mac_spoofing| Network { allow_mac_spoofing, ..Network::default() };
        assert_eq!(passed_over(&level("full"), &before(false)), ["anti_spoofing"]);
        assert_eq!(passed_over(&level("off"), &before(false)), ["anti_spoofing"]);
        assert_eq!(passed_over(&level("off"), &before(true)), [""; 0]);
        assert_eq!(passed_over(&level("mac"), &before(false)), [""; 0]);
    }
}
