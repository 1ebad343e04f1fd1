//! Routes, rules and sysctls that a network's file sets on the interfaces of its plugins: the same keys, values and checks
//! as in a network of the DPU.

use ipnetwork::IpNetwork;
use model::{PolicyRule, Route, Sysctls, check::check_routing};
use offload_proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The key of a configuration that holds them.
pub(super) const KEY: &str = "dpu-offload";

/// What is set on an interface in addition to what its plugins have made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
pub(super) struct Additions {
    routes: Vec<Route>,
    rules: Vec<PolicyRule>,
    sysctls: Sysctls,
}

impl Additions {
    /// Reads and checks a configuration's additions.
    ///
    /// # Errors
    /// The first problem: one sentence with the key and its value.
    pub(super) fn read(told: &Value) -> Result<Self, String> {
        let additions: Self = serde_path_to_error::deserialize(told).map_err(|error| {
            let path = error.path().to_string();
            let pointer = path.replace(['.', '['], "/").replace(']', "");
            match told.pointer(&format!("/{pointer}")) {
                Some(value) => format!("{path} = {value}: {}", error.inner()),
                None => error.inner().to_string(),
            }
        })?;
        let Self { routes, rules, sysctls } = &additions;
        match check_routing(routes, rules, sysctls).into_iter().next() {
            None => Ok(additions),
            Some(problem) => Err(problem),
        }
    }

    /// The additions for an interface with these addresses.
    pub(super) fn of(&self, addresses: &[v1::Address]) -> v1::Attachment {
        v1::Attachment {
            addresses: addresses.to_vec(),
            routes: self.routes.iter().map(Into::into).collect(),
            rules: self.rules.iter().flat_map(|rule| rules_of(rule, addresses)).collect(),
            sysctls: Some((&self.sysctls).into()),
            ..v1::Attachment::default()
        }
    }
}

/// The rule, or one for each of the interface's own addresses that it is about.
fn rules_of(rule: &PolicyRule, addresses: &[v1::Address]) -> Vec<v1::PolicyRule> {
    let own = addresses.iter().filter_map(|held| held.address.parse::<IpNetwork>().ok());
    let prefixes = rule.source.prefixes(own.map(|own| own.ip())).into_iter();
    let of_prefix =
        |source: IpNetwork| v1::PolicyRule { source: source.to_string(), ..rule.into() };
    prefixes.map(of_prefix).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    pub(in crate::agent::delegates) fn additions(told: &Value) -> Additions {
        Additions::read(told).unwrap()
    }

    #[test]
    fn invalid_additions_are_refused() {
        let route = |more: Value| {
            let mut route = json!({"destination": "10.9.0.0/16"});
            route.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            json!({"routes": [route]})
        };
        for (told, problem) in [
            (route(json!({"destination": "nowhere"})), "\"nowhere\""),
            (route(json!({"gateway": "nobody"})), "\"nobody\""),
            (route(json!({"scope": "far"})), "\"far\""),
            (route(json!({"table": 255})), "table 255"),
            (route(json!({"onlink": true})), "onlink"),
            (route(json!({"kind": "blackhole", "gateway": "10.0.0.1"})), "leave out gateway"),
            (json!({"rules": [{"source": "me", "table": 7}]}), "\"me\""),
            (json!({"rules": [{"source": "own", "table": 0}]}), "table 0"),
            (json!({"sysctls": {"ipv4": {"tcp_wmem": 1}}}), "\"tcp_wmem\""),
            (json!({"sysctls": {"ipv6": {"accept_ra": 3}}}), "accept_ra 3"),
        ] {
            let found = Additions::read(&told).unwrap_err();
            assert!(found.contains(problem), "{told}: {found}");
        }
        assert!(Additions::read(&route(json!({"via": "10.0.0.1"}))).unwrap_err().contains("via"));
        assert_eq!(additions(&json!({})), Additions::default());
    }

    #[test]
    fn source_rules_use_the_plugins_addresses() {
        let told = json!({"rules": [
            {"source": "own", "table": 7}, {"source": "own-ipv4", "table": 8},
            {"source": "own-ipv6", "table": 9}, {"source": "10.1.0.0/16", "table": 10},
        ]});
        let addresses = ["10.7.0.5/24", "fd00::5/64"]
            .map(|it| v1::Address { address: it.into(), gateway: String::new() });
        let of = additions(&told).of(&addresses);
        let rules: Vec<_> = of.rules.iter().map(|it| (it.source.as_str(), it.table)).collect();
        let expected = [
            ("10.7.0.5/32", 7),
            ("fd00::5/128", 7),
            ("10.7.0.5/32", 8),
            ("fd00::5/128", 9),
            ("10.1.0.0/16", 10),
        ];
        assert_eq!(rules, expected);
    }
}
