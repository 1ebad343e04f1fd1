//! Settings that attachments and networks have in common.

use offload_proto::v1::{Bandwidth, PolicyRule, Route, Sysctls};

use crate::{
    description::Description,
    text::{or_dash, rate},
};

pub(super) fn bandwidth(text: &mut Description, bandwidth: Option<&Bandwidth>) {
    let bandwidth = bandwidth.copied().unwrap_or_default();
    text.field("To the pod", &rate(bandwidth.ingress_rate));
    text.field("From the pod", &rate(bandwidth.egress_rate));
    if bandwidth.egress_share != 0 {
        text.field("Its share", &rate(bandwidth.egress_share));
    }
}

/// Routes, rules and settings of a pod's interface, or of a network's.
pub(super) fn routing(
    text: &mut Description,
    routes: &[Route],
    rules: &[PolicyRule],
    sysctls: &Sysctls,
) {
    text.list("Routes", routes.iter().map(route));
    text.list_if_any("Rules", rules.iter().map(rule));
    text.list_if_any("Sysctls", sysctl_lines(sysctls));
}

/// Formats a route like `ip route`.
fn route(route: &Route) -> String {
    let way = if route.kind.is_empty() {
        format!("{} via {}", route.destination, or_dash(&route.gateway))
    } else {
        format!("{} {}", route.kind, route.destination)
    };
    let numbers = [
        ("table", route.table),
        ("metric", route.priority),
        ("mtu", route.mtu),
        ("advmss", route.advmss),
    ];
    let numbers = numbers.into_iter().filter(|(_, number)| *number != 0);
    let mut words = vec![way];
    words.extend(route.onlink.then(|| "onlink".into()));
    words.extend((!route.scope.is_empty()).then(|| format!("scope {}", route.scope)));
    words.extend(numbers.map(|(word, number)| format!("{word} {number}")));
    words.join(" ")
}

/// Formats a rule like `ip rule`.
fn rule(rule: &PolicyRule) -> String {
    let PolicyRule { source, table, priority } = rule;
    match priority {
        0 => format!("from {source} lookup {table}"),
        priority => format!("from {source} lookup {table} priority {priority}"),
    }
}

fn sysctl_lines(sysctls: &Sysctls) -> impl Iterator<Item = String> {
    let families = [("ipv4", &sysctls.ipv4), ("ipv6", &sysctls.ipv6)];
    families.into_iter().flat_map(|(family, settings)| {
        settings.iter().map(move |(key, value)| format!("{family}.{key} = {value}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routing_text_matches_ip_and_sysctl() {
        let routes = [
            Route {
                destination: "0.0.0.0/0".into(),
                gateway: "169.254.1.1".into(),
                onlink: true,
                table: 100,
                priority: 7,
                mtu: 1400,
                advmss: 1300,
                ..Route::default()
            },
            Route { destination: "10.9.0.0/16".into(), scope: "host".into(), ..Route::default() },
            Route { destination: "::/0".into(), kind: "unreachable".into(), ..Route::default() },
        ];
        let rules = [
            PolicyRule { source: "own".into(), table: 100, priority: 0 },
            PolicyRule { source: "fd00::/64".into(), table: 7, priority: 9 },
        ];
        let sysctls = Sysctls {
            ipv4: [("rp_filter".into(), 2)].into(),
            ipv6: [("accept_ra".into(), 1)].into(),
        };
        let shown = |routes: &[Route], rules: &[PolicyRule], sysctls: &Sysctls| {
            let mut text = Description::default();
            routing(&mut text, routes, rules, sysctls);
            text.finish()
        };
        assert_eq!(
            shown(&routes, &rules, &sysctls),
            "\
Routes:
  0.0.0.0/0 via 169.254.1.1 onlink table 100 metric 7 mtu 1400 advmss 1300
  10.9.0.0/16 via - scope host
  unreachable ::/0
Rules:
  from own lookup 100
  from fd00::/64 lookup 7 priority 9
Sysctls:
  ipv4.rp_filter = 2
  ipv6.accept_ra = 1
"
        );
        assert_eq!(shown(&[], &[], &Sysctls::default()), "Routes:        none\n");
    }
}
