//! What a network's file has us set on the interfaces that its plugins make: routes, rules and settings, spelled as in
//! a network of the DPU's.

use std::{collections::BTreeMap, ops::RangeInclusive};

use ipnetwork::IpNetwork;
use offload_proto::{sysctls, v1};
use serde::{Deserialize, Serialize};

use crate::mover::Routing;

/// The key of a configuration that holds it.
pub(super) const KEY: &str = "dpu-offload";
/// The kernel's table of the pod's own addresses.
const LOCAL_TABLE: u32 = 255;

/// What is set on an interface beside what its plugins have made.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
pub(super) struct Additions {
    routes: Vec<Route>,
    rules: Vec<Rule>,
    sysctls: Sysctls,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Route {
    destination: String,
    #[serde(default)]
    gateway: String,
    #[serde(default)]
    onlink: bool,
    #[serde(default)]
    scope: String,
    #[serde(default)]
    kind: Kind,
    #[serde(default)]
    mtu: u32,
    #[serde(default)]
    advmss: u32,
    #[serde(default)]
    priority: u32,
    #[serde(default)]
    table: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    #[default]
    Unicast,
    Blackhole,
    Unreachable,
    Prohibit,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Rule {
    source: String,
    table: u32,
    #[serde(default)]
    priority: u32,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Sysctls {
    ipv4: BTreeMap<String, i32>,
    ipv6: BTreeMap<String, i32>,
}

impl Additions {
    /// What makes no sense in it. `None`: it does.
    pub(super) fn problem(&self) -> Option<String> {
        // Of a pod that has none of its own addresses, which only the plugins give.
        let key = v1::AttachmentKey { interface_name: "net1".into(), ..Default::default() };
        let sample = v1::Attachment { key: Some(key), ..self.of(&[]) };
        let unread = || Routing::new(&sample).err().map(|error| error.held());
        let routes = || self.routes.iter().find_map(Route::problem);
        let rules = || self.rules.iter().find_map(Rule::problem);
        let settings = || {
            let ipv4 = out_of_range("ipv4", &self.sysctls.ipv4, sysctls::IPV4);
            ipv4.or_else(|| out_of_range("ipv6", &self.sysctls.ipv6, sysctls::IPV6))
        };
        unread().or_else(routes).or_else(rules).or_else(settings)
    }

    /// Of an interface with these addresses.
    pub(super) fn of(&self, addresses: &[v1::Address]) -> v1::Attachment {
        v1::Attachment {
            addresses: addresses.to_vec(),
            routes: self.routes.iter().map(Route::to_message).collect(),
            rules: self.rules.iter().flat_map(|rule| rule.of(addresses)).collect(),
            sysctls: Some(v1::Sysctls {
                ipv4: self.sysctls.ipv4.clone(),
                ipv6: self.sysctls.ipv6.clone(),
            }),
            ..v1::Attachment::default()
        }
    }
}

impl Route {
    fn to_message(&self) -> v1::Route {
        let kind = match self.kind {
            Kind::Unicast => "",
            Kind::Blackhole => "blackhole",
            Kind::Unreachable => "unreachable",
            Kind::Prohibit => "prohibit",
        };
        v1::Route {
            destination: self.destination.clone(),
            gateway: self.gateway.clone(),
            mtu: self.mtu,
            advmss: self.advmss,
            priority: self.priority,
            table: self.table,
            scope: self.scope.clone(),
            kind: kind.into(),
            onlink: self.onlink,
        }
    }

    fn problem(&self) -> Option<String> {
        let says_a_way = !self.gateway.is_empty()
            || !self.scope.is_empty()
            || self.onlink
            || self.mtu != 0
            || self.advmss != 0;
        let why = if self.table == LOCAL_TABLE {
            "table 255 is the kernel's own: name another, or 0 for the main one"
        } else if self.kind != Kind::Unicast && says_a_way {
            "it drops packets, so that it has neither gateway, onlink, scope, mtu nor advmss"
        } else if self.onlink && self.gateway.is_empty() {
            "onlink = true is of a gateway: name one, or leave it out"
        } else {
            return None;
        };
        Some(format!("route {}: {why}", self.destination))
    }
}

impl Rule {
    /// The rule, or one for each of the own addresses that it is of.
    fn of(&self, addresses: &[v1::Address]) -> Vec<v1::PolicyRule> {
        let rule = |source| v1::PolicyRule { source, table: self.table, priority: self.priority };
        let is_of: fn(&IpNetwork) -> bool = match self.source.as_str() {
            "own" => |_| true,
            "own-ipv4" => IpNetwork::is_ipv4,
            "own-ipv6" => IpNetwork::is_ipv6,
            prefix => return vec![rule(prefix.to_owned())],
        };
        let own = addresses.iter().filter_map(|held| held.address.parse::<IpNetwork>().ok());
        own.filter(is_of).map(|own| rule(IpNetwork::from(own.ip()).to_string())).collect()
    }

    fn problem(&self) -> Option<String> {
        let Self { source, table, .. } = self;
        [0, LOCAL_TABLE]
            .contains(table)
            .then(|| format!("rule {source}: table {table} can't be looked up: name another"))
    }
}

fn out_of_range(
    family: &str,
    chosen: &BTreeMap<String, i32>,
    known: &[(&'static str, RangeInclusive<i32>)],
) -> Option<String> {
    let range = |name: &str| known.iter().find(|(known, _)| *known == name).map(|(_, it)| it);
    let wrong =
        chosen.iter().find(|(name, value)| range(name).is_some_and(|it| !it.contains(value)));
    wrong.map(|(name, value)| {
        format!("sysctls.{family} sets {name} to {value}, which is out of range")
    })
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::{Value, json};

    use super::*;

    pub(in crate::agent::delegates) fn additions(told: Value) -> Additions {
        serde_json::from_value(told).unwrap()
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
            (route(json!({"kind": "blackhole", "gateway": "10.0.0.1"})), "drops packets"),
            (json!({"rules": [{"source": "me", "table": 7}]}), "\"me\""),
            (json!({"rules": [{"source": "own", "table": 0}]}), "table 0"),
            (json!({"sysctls": {"ipv4": {"tcp_wmem": 1}}}), "\"tcp_wmem\" as setting"),
            (json!({"sysctls": {"ipv6": {"accept_ra": 3}}}), "accept_ra to 3"),
        ] {
            let found = additions(told.clone()).problem().unwrap_or_default();
            assert!(found.contains(problem), "{told}: {found}");
        }
        let unknown = serde_json::from_value::<Additions>(route(json!({"via": "10.0.0.1"})));
        assert!(unknown.unwrap_err().to_string().contains("via"));
        assert_eq!(additions(json!({})).problem(), None);
    }

    #[test]
    fn source_rules_use_the_plugins_addresses() {
        let told = json!({"rules": [
            {"source": "own", "table": 7}, {"source": "own-ipv4", "table": 8},
            {"source": "own-ipv6", "table": 9}, {"source": "10.1.0.0/16", "table": 10},
        ]});
        let addresses = ["10.7.0.5/24", "fd00::5/64"]
            .map(|it| v1::Address { address: it.into(), gateway: String::new() });
        let of = additions(told).of(&addresses);
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
