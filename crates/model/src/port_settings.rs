//! The settings of representors.

use std::{collections::BTreeSet, net::IpAddr};

use netlink::MacAddress;
use vf_alloc::FunctionId;

use super::{AntiSpoofing, Bandwidth, IngressRule, Label, Source, TotalRate};

/// The settings of an attachment's representor, enough for all programming steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PortSettings {
    /// The VF behind the representor.
    pub vf: FunctionId,
    /// The pod's MAC address.
    pub mac: MacAddress,
    /// The pod's addresses of both families.
    pub addresses: Vec<IpAddr>,
    /// MTU in bytes.
    pub mtu: u32,
    /// The bridge's name. `None`: the first or only bridge.
    pub bridge: Option<String>,
    /// Access VLAN. `None`: untagged.
    pub vlan: Option<u16>,
    /// The VLANs that pass tagged.
    pub trunk: BTreeSet<u16>,
    /// The representor's group and alias, for other programs' rules.
    pub label: Label,
    /// Rate limits.
    pub bandwidth: Bandwidth,
    /// The limit that the pod shares with its network. `None`: none.
    pub total_egress: Option<TotalRate>,
    /// What the guard checks.
    pub anti_spoofing: AntiSpoofing,
    /// Further sources that the pod may send from, as far as the guard checks sources.
    pub allowed_sources: BTreeSet<Source>,
    /// The rules for connections to the pod. `None`: all connections are allowed.
    pub ingress_rules: Option<Vec<IngressRule>>,
}

impl PortSettings {
    /// Whether there is any rate limit or share.
    #[must_use]
    pub fn has_rates(&self) -> bool {
        self.bandwidth != Bandwidth::default() || self.total_egress.is_some()
    }
}
