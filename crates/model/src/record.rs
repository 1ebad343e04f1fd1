//! The journal's records of attachments.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use netlink::MacAddress;
use offload_proto::v1::Pod;
use serde::{Deserialize, Serialize};
use vf_alloc::{Device, FunctionId};

use super::{
    AttachmentId, AttachmentKey, Bandwidth, HostName, IpFamilies, Lease, Network, PolicyRule,
    PortMapping, PortSettings, Prefixes, Route, RuleSource, Source, anti_spoofing,
};

/// Addresses that an attachment holds for an interface that another plugin makes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FurtherLease {
    /// The interface's name.
    pub interface_name: Arc<str>,
    /// The network of the addresses, as it was at the attach.
    pub network: Arc<Network>,
    /// The addresses.
    pub leases: Vec<Lease>,
}

/// The durable part of an attachment's state. Whether the port is programmed and the VF is in the pod is not
/// stored: the kernel and the host's agent report it after a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Reserved, and to be programmed.
    Held,
    /// Being released. It holds its VF until the host reports the VF back and clean.
    Releasing,
}

/// The journal's record of an attachment. It has all that is needed to program and to free the attachment, even if
/// the network has changed since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The attachment's id.
    pub id: AttachmentId,
    /// The attachment's key.
    pub key: AttachmentKey,
    /// The durable state.
    pub phase: Phase,
    /// The pod. Labels, not an identity.
    pub pod: Pod,
    /// The VF it holds.
    pub vf: FunctionId,
    /// The VF's device on its host.
    pub device: Device,
    /// The VF's MAC address.
    pub mac: MacAddress,
    /// The addresses it holds.
    pub leases: Vec<Lease>,
    /// The addresses that it holds for interfaces which other plugins make.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub further_leases: Vec<FurtherLease>,
    /// The rate limits in force: the network's, or tighter ones that were requested.
    pub bandwidth: Bandwidth,
    /// The mapped ports that lead to it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_mappings: Vec<PortMapping>,
    /// Further sources that the pod has requested.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub asked_sources: BTreeSet<Source>,
    /// The IP families that the pod has requested. `None`: all that the network has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub families: Option<IpFamilies>,
    /// The network as it was at the attach.
    pub network: Arc<Network>,
    /// The prefixes of the networks in its rules, as they were at the attach.
    #[serde(default, skip_serializing_if = "Prefixes::is_empty")]
    pub named_networks: Prefixes,
    /// The interface name of the group key, if this attachment is a group member. `None`: it is a group key, or in
    /// no group.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_interface: Option<Arc<str>>,
    /// The host's boot id at the attach.
    pub boot_id: String,
    /// The time of the attach, in milliseconds since 1970, UTC.
    pub created_at: i64,
}

impl Record {
    /// The attachment's name in a refusal of `host`. Hides the attachments of other hosts.
    pub fn named_to(&self, host: &HostName) -> String {
        match self.key.host == *host {
            true => format!("attachment {} ({})", self.id, self.key),
            false => "an attachment of another host".to_owned(),
        }
    }

    /// The holder for people: the pod, if it has a name, and the key.
    pub fn holder(&self) -> String {
        let Pod { namespace, name, .. } = &self.pod;
        match name.is_empty() {
            true => self.key.to_string(),
            false => format!("pod {namespace}/{name} ({})", self.key),
        }
    }

    /// The settings of its representor.
    #[must_use]
    pub fn port_settings(&self) -> PortSettings {
        PortSettings {
            mac: self.mac,
            addresses: self.checked_addresses(),
            bandwidth: self.bandwidth,
            allowed_sources: self.checked_sources(),
            ..self.network.port_settings(self.vf, &self.named_networks)
        }
    }

    /// The addresses that the guard lets pass. A pod that requested none gets its link-local address, which passes
    /// anyway: without any address, the guard would check none.
    fn checked_addresses(&self) -> Vec<IpAddr> {
        if self.leases.is_empty() && self.families.is_some() {
            return vec![self.mac.link_local().into()];
        }
        self.leases.iter().map(|lease| lease.address.ip()).collect()
    }

    /// The further sources that the guard checks. Without known addresses of the pod, the guard checks MAC
    /// addresses only.
    fn checked_sources(&self) -> BTreeSet<Source> {
        let mut sources = self.allowed_sources();
        sources.retain(|source| self.network.anti_spoofing.looks_at(*source));
        let network = &self.network.allowed_sources;
        let are_unknown = self.leases.is_empty() && self.families.is_none();
        if are_unknown && anti_spoofing::addresses(network).next().is_none() {
            sources.retain(|source| matches!(source, Source::Mac(_)));
        }
        sources
    }

    /// All addresses that it holds, each with its network.
    pub fn held(&self) -> impl Iterator<Item = (&Arc<Network>, &Lease)> {
        let own = self.leases.iter().map(|lease| (&self.network, lease));
        let further = self.further_leases.iter();
        own.chain(further.flat_map(|its| its.leases.iter().map(|lease| (&its.network, lease))))
    }

    /// The addresses that the pod uses without holding them, each with its network as it was at the attach:
    /// gateways, next hops, and IPv4 network and broadcast addresses of its subnets.
    pub fn used_addresses(&self) -> impl Iterator<Item = (&Arc<Network>, IpAddr)> {
        self.networks()
            .flat_map(|network| network.used_addresses().map(move |address| (network, address)))
    }

    /// A copy in which the network `from` is called `to`. `None`: the record does not use that network.
    #[must_use]
    pub fn with_network_renamed(&self, from: &str, to: &str) -> Option<Self> {
        if !self.networks().any(|network| network.name == from) {
            return None;
        }
        let mut renamed = self.clone();
        let further = renamed.further_leases.iter_mut().map(|lease| &mut lease.network);
        for network in further.chain([&mut renamed.network]).filter(|network| network.name == from)
        {
            *network = Arc::new(network.renamed(to));
        }
        if let Some(prefixes) = renamed.named_networks.remove(from) {
            renamed.named_networks.insert(to.to_owned(), prefixes);
        }
        Some(renamed)
    }

    /// The networks of its addresses, its own first. No two are equal.
    pub fn networks(&self) -> impl Iterator<Item = &Arc<Network>> {
        [&self.network].into_iter().chain(self.further_leases.iter().map(|its| &its.network))
    }

    /// The key of its group. `None`: the attachment is no group member.
    #[must_use]
    pub fn group_key(&self) -> Option<AttachmentKey> {
        let interface = self.group_interface.as_ref()?;
        Some(AttachmentKey { interface_name: Arc::clone(interface), ..self.key.clone() })
    }

    /// All further sources that the pod may send from.
    #[must_use]
    pub fn allowed_sources(&self) -> BTreeSet<Source> {
        self.network.allowed_sources.union(&self.asked_sources).copied().collect()
    }

    /// The pod's routes, except unicast routes of a family that the pod did not request.
    #[must_use]
    pub fn routes(&self) -> Vec<Route> {
        let mut routes = self.network.routes_with(&self.leases);
        let families = self.families.unwrap_or(IpFamilies::ALL);
        let is_usable = |route: &Route| families.include(route.destination.ip());
        routes.retain(|route| !route.kind.is_unicast() || is_usable(route));
        routes
    }

    /// The pod's policy rules, each with a prefix as its source.
    #[must_use]
    pub fn rules(&self) -> Vec<PolicyRule> {
        let own = || self.leases.iter().map(|lease| lease.address.ip());
        let resolved = |rule: &PolicyRule| {
            let prefixes = rule.source.prefixes(own()).into_iter();
            let PolicyRule { table, priority, .. } = *rule;
            let rule =
                move |prefix| PolicyRule { source: RuleSource::Prefix(prefix), table, priority };
            prefixes.map(rule)
        };
        self.network.rules.iter().flat_map(resolved).collect()
    }
}
