//! How a VF is to be in its pod.

use std::{net::IpAddr, str::FromStr, time::Duration};

use ipnetwork::IpNetwork;
use netlink::{MacAddress, Route, Rule};
use offload_proto::{form::is_interface_name, v1};

/// How a VF is to be in its pod.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The interface's name.
    pub name: String,
    /// Its MAC address.
    pub mac: MacAddress,
    /// Its MTU in bytes.
    pub mtu: u32,
    /// The VLAN that it is in. 0: none. For a PF that has to keep it there.
    pub vlan: u16,
    /// The VLANs that it may use besides, tagged.
    pub trunk: Vec<u32>,
    /// Whether it may send from its own MAC address only. For a PF that has to keep it to that.
    pub spoof_check: bool,
    /// The most that it may send, in whole Mbit/s. 0: no limit. For a PF that has to keep it.
    pub egress_mbit: u32,
    /// Whether it is a PF that has to keep it to all this, for nobody else does.
    pub needs_pf: bool,
    /// Whether what it receives is limited.
    pub limits_ingress: bool,
    /// Its addresses.
    pub addresses: Vec<IpNetwork>,
    /// Its routes, without the link.
    pub routes: Vec<Route>,
    /// Its policy rules, which are the pod's: unlike addresses and routes they are of no interface.
    pub rules: Vec<Rule>,
    /// The rules that other interfaces of the pod bring. They stay when this one leaves.
    pub rules_of_others: Vec<Rule>,
    /// How long to wait for the carrier.
    pub carrier_limit: Duration,
}

/// The interface whose routes are the pod's. Runtimes call the first one so.
const FIRST_INTERFACE: &str = "eth0";
/// What the routes of other interfaces cost, plus the link's index: more than the kernel's own choice
/// in either family, so that they only serve where the first interface has none.
const LATER_METRIC: u32 = 2000;

/// An attachment that the host can't carry out: the DPU's answer is malformed.
#[derive(Debug, thiserror::Error)]
#[error("the DPU's attachment holds {value:?} as {what}")]
pub struct PlanError {
    what: &'static str,
    value: String,
}

impl Plan {
    /// The plan for an attachment.
    ///
    /// # Errors
    /// If the attachment holds what is no address or name.
    pub fn new(attachment: &v1::Attachment, carrier_limit: Duration) -> Result<Self, PlanError> {
        let name = attachment.key.as_ref().map_or("", |key| &key.interface_name);
        if !is_interface_name(name) {
            return Err(PlanError { what: "interface name", value: name.into() });
        }
        let addresses = attachment
            .addresses
            .iter()
            .map(|held| parse("address", &held.address))
            .collect::<Result<Vec<_>, _>>()?;
        let routes = attachment
            .routes
            .iter()
            .map(|wanted| route(wanted, &addresses))
            .collect::<Result<_, _>>()?;
        let bandwidth = attachment.bandwidth.unwrap_or_default();
        Ok(Self {
            name: name.into(),
            mac: parse("MAC address", &attachment.mac)?,
            mtu: attachment.mtu,
            vlan: u16::try_from(attachment.vlan)
                .map_err(|_| PlanError { what: "VLAN", value: attachment.vlan.to_string() })?,
            trunk: attachment.trunk.clone(),
            spoof_check: !attachment.allow_mac_spoofing,
            needs_pf: attachment.host_keeps_port,
            egress_mbit: in_mbit(bandwidth.egress_rate),
            limits_ingress: bandwidth.ingress_rate != 0,
            routes,
            rules: rules_of(attachment)?,
            rules_of_others: Vec::new(),
            addresses,
            carrier_limit,
        })
    }

    /// The routes by the link of this index.
    pub(super) fn routes_by(&self, index: u32) -> impl Iterator<Item = Route> {
        self.routes.iter().map(move |route| Route {
            output: index,
            priority: route.priority.or_else(|| self.metric(index)),
            ..route.clone()
        })
    }

    /// A pod may have several interfaces with the same route each, as of one network.
    fn metric(&self, index: u32) -> Option<u32> {
        (self.name != FIRST_INTERFACE).then(|| LATER_METRIC.saturating_add(index))
    }
}

/// The policy rules that an attachment brings to its pod.
///
/// # Errors
/// If one of them has what is no prefix.
pub fn rules_of(attachment: &v1::Attachment) -> Result<Vec<Rule>, PlanError> {
    attachment.rules.iter().map(rule).collect()
}

fn route(wanted: &v1::Route, addresses: &[IpNetwork]) -> Result<Route, PlanError> {
    let mut route = Route::new(parse("route destination", &wanted.destination)?, 0);
    if !wanted.gateway.is_empty() {
        let gateway: IpAddr = parse("route gateway", &wanted.gateway)?;
        route = route.via(gateway);
        route.on_link = !addresses.iter().any(|address| address.contains(gateway));
    }
    route.mtu = unless_zero(wanted.mtu);
    route.advertised_mss = unless_zero(wanted.advmss);
    route.priority = unless_zero(wanted.priority);
    route.table = unless_zero(wanted.table);
    Ok(route)
}

fn rule(wanted: &v1::PolicyRule) -> Result<Rule, PlanError> {
    Ok(Rule {
        source: parse("rule source", &wanted.source)?,
        table: wanted.table,
        priority: unless_zero(wanted.priority),
    })
}

/// A rate in bits per second as one that a PF can keep: never more, but 1 Mbit/s at least.
fn in_mbit(rate: u64) -> u32 {
    match rate {
        0 => 0,
        rate => u32::try_from(rate / 1_000_000).unwrap_or(u32::MAX).max(1),
    }
}

fn unless_zero(value: u32) -> Option<u32> {
    (value != 0).then_some(value)
}

fn parse<T: FromStr>(what: &'static str, value: &str) -> Result<T, PlanError> {
    value.parse().map_err(|_| PlanError { what, value: value.chars().take(80).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attachment() -> v1::Attachment {
        v1::Attachment {
            key: Some(v1::AttachmentKey {
                container_id: "c".into(),
                interface_name: "eth0".into(),
            }),
            mac: "02:00:00:00:00:01".into(),
            mtu: 1500,
            addresses: vec![v1::Address { address: "10.0.0.5/24".into(), ..Default::default() }],
            ..Default::default()
        }
    }

    fn with_route(gateway: &str) -> Result<Plan, PlanError> {
        let route = v1::Route {
            destination: "0.0.0.0/0".into(),
            gateway: gateway.into(),
            ..Default::default()
        };
        Plan::new(&v1::Attachment { routes: vec![route], ..attachment() }, Duration::ZERO)
    }

    #[test]
    fn a_gateway_outside_of_all_prefixes_is_on_the_link() {
        assert!(!with_route("10.0.0.1").unwrap().routes[0].on_link);
        assert!(with_route("169.254.1.1").unwrap().routes[0].on_link);
        assert_eq!(with_route("").unwrap().routes[0].gateway, None);
    }

    #[test]
    fn a_pf_keeps_a_rate_in_whole_megabits() {
        let rates = [0, 1, 999_999, 1_999_999, 100_000_000, u64::MAX].map(in_mbit);
        assert_eq!(rates, [0, 1, 1, 1, 100, u32::MAX]);
    }

    #[test]
    fn a_malformed_attachment_is_refused_by_name() {
        let error = with_route("nowhere").unwrap_err();
        assert_eq!(error.to_string(), r#"the DPU's attachment holds "nowhere" as route gateway"#);
        let nameless = v1::Attachment { key: None, ..attachment() };
        assert!(Plan::new(&nameless, Duration::ZERO).is_err());
    }
}
