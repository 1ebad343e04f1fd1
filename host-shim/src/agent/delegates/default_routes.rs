//! By which interface of a pod its default routes go.

use std::net::IpAddr;

use offload_proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    mover::{MAIN_TABLE, default_destination},
    protocol::FurtherInterface,
};

/// What an ADD asks for of default routes, as one of its interfaces sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct DefaultRoutes {
    /// The gateways that are reached by this interface.
    by_it: Vec<IpAddr>,
    /// Whether the default route of each family, IPv4 and IPv6, was requested for an interface.
    asked_for: [bool; 2],
}

impl DefaultRoutes {
    /// Those of `interface` among all of an ADD.
    pub(super) fn of(interface: &FurtherInterface, all: &[FurtherInterface]) -> Self {
        let named: Vec<_> = all.iter().flat_map(|one| &one.default_gateways).collect();
        let asked_for = [false, true].map(|of_ipv6| named.iter().any(|it| it.is_ipv6() == of_ipv6));
        Self { by_it: interface.default_gateways.clone(), asked_for }
    }

    /// The gateways that are reached by this interface.
    pub(super) fn gateways(&self) -> &[IpAddr] {
        &self.by_it
    }

    /// The families, each as whether it is IPv6.
    pub(super) fn families_asked_for(&self) -> Vec<bool> {
        [false, true].into_iter().filter(|of_ipv6| self.asked_for[usize::from(*of_ipv6)]).collect()
    }

    /// The default routes by this interface.
    pub(super) fn routes(&self) -> impl Iterator<Item = v1::Route> {
        self.by_it.iter().map(|gateway| v1::Route {
            destination: default_destination(gateway.is_ipv6()).into(),
            gateway: gateway.to_string(),
            ..v1::Route::default()
        })
    }

    /// Takes out of a result those in whose place others were asked for.
    pub(super) fn replace_in(&self, result: &mut Value) {
        let Some(routes) = result.get_mut("routes").and_then(Value::as_array_mut) else { return };
        let replaced: Vec<_> =
            self.families_asked_for().into_iter().map(default_destination).collect();
        let is_of_main_table = |route: &Value| {
            let table = route.get("table").and_then(Value::as_u64).unwrap_or_default();
            [0, u64::from(MAIN_TABLE)].contains(&table)
        };
        routes.retain(|route| {
            let to = route["dst"].as_str().unwrap_or_default();
            !replaced.contains(&to) || !is_of_main_table(route)
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn requested_default_route_replaces_the_plugins() {
        let interface = |gateways: &[&str]| FurtherInterface {
            default_gateways: gateways.iter().map(|it| it.parse().unwrap()).collect(),
            ..FurtherInterface::default()
        };
        let all = [interface(&["10.0.0.1"]), interface(&[])];
        let other = DefaultRoutes::of(&all[1], &all);
        let mut result = json!({"routes": [
            {"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "0.0.0.0/0", "table": 7}, {"dst": "10.0.0.0/8"},
        ]});
        other.replace_in(&mut result);
        let left: Vec<_> =
            result["routes"].as_array().unwrap().iter().map(|it| &it["dst"]).collect();
        assert_eq!(left, ["::/0", "0.0.0.0/0", "10.0.0.0/8"]);
        assert_eq!(other.routes().count(), 0);
        let its: Vec<_> = DefaultRoutes::of(&all[0], &all).routes().collect();
        assert_eq!(
            (its[0].destination.as_str(), its[0].gateway.as_str()),
            ("0.0.0.0/0", "10.0.0.1")
        );
    }
}
