//! The result of an ADD, and the previous result of a chain.

use offload_proto::v1;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    error::{CniError, code},
    version::Version,
};

/// A result of any version since 0.3.0. Unknown fields of a previous result are passed on unchanged.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CniResult {
    /// The version of the specification that the result follows.
    pub cni_version: String,
    /// All created interfaces, on the host and in the container.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// All addresses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<Address>,
    /// All routes.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub routes: Vec<Route>,
    /// Resolver settings.
    #[serde(skip_serializing_if = "Dns::is_empty")]
    pub dns: Dns,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Interface {
    /// The interface's name.
    pub name: String,
    /// The MAC address.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub mac: String,
    /// The MTU in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The path of the interface's namespace. Empty: the host's.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub sandbox: String,
    /// The PCI address.
    #[serde(rename = "pciID", skip_serializing_if = "String::is_empty")]
    pub pci_id: String,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// An address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Address {
    /// The family, `4` or `6`, up to version 0.4.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The index of the interface in the result's list, from 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
    /// The address in CIDR notation, with host bits.
    pub address: String,
    /// The gateway of the address's subnet.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gateway: String,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// A route.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    /// The destination in CIDR notation.
    pub dst: String,
    /// The next hop.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub gw: String,
    /// The path MTU in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// The advertised TCP maximum segment size in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advmss: Option<u32>,
    /// The metric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
    /// The routing table.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The scope, as a number of the kernel (`RT_SCOPE_…`).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<u32>,
    /// Unknown fields.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// Resolver settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// The addresses of name servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Search domains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
    /// Resolver options.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
}

impl Dns {
    /// Whether there are no settings.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Adds missing settings from another one.
    fn add(&mut self, other: Self) {
        add_missing(&mut self.nameservers, other.nameservers);
        add_missing(&mut self.search, other.search);
        add_missing(&mut self.options, other.options);
        if self.domain.is_empty() {
            self.domain = other.domain;
        }
    }
}

fn add_missing(list: &mut Vec<String>, more: Vec<String>) {
    for item in more {
        if !list.contains(&item) {
            list.push(item);
        }
    }
}

impl CniResult {
    /// Reads a previous result.
    ///
    /// # Errors
    /// [`code::UNDECODABLE`]: the value is no result.
    pub fn read(previous: &Value) -> Result<Self, CniError> {
        Self::deserialize(previous).map_err(|error| {
            CniError::new(code::UNDECODABLE, format!("prevResult can't be decoded: {error}"))
        })
    }

    /// Adds an attachment with an interface in the namespace at `sandbox`. `dns` replaces the network's resolver
    /// settings.
    #[must_use]
    pub fn with_attachment(
        mut self,
        attachment: &v1::Attachment,
        sandbox: &str,
        dns: Option<Dns>,
    ) -> Self {
        let position = self.interfaces.len();
        self.interfaces.push(interface(attachment, sandbox));
        self.ips.extend(attachment.addresses.iter().map(|held| Address {
            interface: Some(position),
            address: held.address.clone(),
            gateway: held.gateway.clone(),
            ..Address::default()
        }));
        // A result cannot express that a route drops packets; readers would take it for a forwarding route.
        let forwarding = attachment.routes.iter().filter(|route| route.kind.is_empty());
        self.routes.extend(forwarding.map(Route::from));
        let dns_of_network = || attachment.dns.clone().unwrap_or_default().into();
        self.dns.add(dns.unwrap_or_else(dns_of_network));
        self
    }

    /// Adds an attachment's interface without its addresses and routes.
    #[must_use]
    pub fn with_interface(mut self, attachment: &v1::Attachment, sandbox: &str) -> Self {
        self.interfaces.push(interface(attachment, sandbox));
        self
    }

    /// Converts the result to a document of `version`.
    #[must_use]
    pub fn render(mut self, version: Version) -> Value {
        self.cni_version = version.as_str().into();
        for Address { version: family, address, .. } in &mut self.ips {
            let number = if address.contains(':') { "6" } else { "4" };
            *family = (!version.has_details()).then(|| number.to_owned());
        }
        if !version.has_details() {
            self.drop_details();
        }
        // A result consists of strings, numbers and lists of them, which always serialise.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Removes what versions before 1.0.0 cannot express. A route of another table would be taken for one of the main
    /// table.
    fn drop_details(&mut self) {
        self.routes.retain(|route| route.table.is_none());
        for interface in &mut self.interfaces {
            interface.mtu = None;
            interface.pci_id.clear();
            interface.other.remove("socketPath");
        }
        for route in &mut self.routes {
            (route.mtu, route.advmss) = (None, None);
            (route.priority, route.scope) = (None, None);
        }
    }
}

fn interface(attachment: &v1::Attachment, sandbox: &str) -> Interface {
    let name = attachment.key.as_ref().map(|key| key.interface_name.clone());
    let pci_id = attachment.vf.as_ref().map(|vf| vf.device.clone());
    Interface {
        name: name.unwrap_or_default(),
        mac: attachment.mac.clone(),
        mtu: unless_zero(attachment.mtu),
        sandbox: sandbox.into(),
        pci_id: pci_id.unwrap_or_default(),
        other: Map::new(),
    }
}

impl From<&v1::Route> for Route {
    fn from(route: &v1::Route) -> Self {
        Self {
            dst: route.destination.clone(),
            gw: route.gateway.clone(),
            mtu: unless_zero(route.mtu),
            advmss: unless_zero(route.advmss),
            priority: unless_zero(route.priority),
            table: unless_zero(route.table),
            scope: scope(&route.scope),
            other: Map::new(),
        }
    }
}

/// The kernel's number of a scope: `RT_SCOPE_UNIVERSE`, `RT_SCOPE_LINK` or `RT_SCOPE_HOST`.
fn scope(name: &str) -> Option<u32> {
    match name {
        "global" => Some(0),
        "link" => Some(253),
        "host" => Some(254),
        _ => None,
    }
}

impl From<v1::Dns> for Dns {
    fn from(v1::Dns { nameservers, domain, search, options }: v1::Dns) -> Self {
        Self { nameservers, domain, search, options }
    }
}

fn unless_zero(value: u32) -> Option<u32> {
    (value != 0).then_some(value)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn attachment() -> v1::Attachment {
        v1::Attachment {
            key: Some(v1::AttachmentKey {
                container_id: "c1".into(),
                interface_name: "eth0".into(),
            }),
            vf: Some(v1::Vf { device: "0000:03:00.2".into(), ..Default::default() }),
            mac: "02:00:00:00:00:01".into(),
            mtu: 9000,
            addresses: vec![
                v1::Address { address: "10.1.0.5/16".into(), gateway: "10.1.0.1".into() },
                v1::Address { address: "fd00::5/64".into(), gateway: String::new() },
            ],
            routes: vec![
                v1::Route {
                    destination: "0.0.0.0/0".into(),
                    gateway: "10.1.0.1".into(),
                    priority: 10,
                    ..Default::default()
                },
                v1::Route { destination: "10.9.0.0/16".into(), table: 7, ..Default::default() },
                v1::Route {
                    destination: "10.7.0.0/16".into(),
                    scope: "host".into(),
                    ..Default::default()
                },
                v1::Route {
                    destination: "10.8.0.0/16".into(),
                    kind: "blackhole".into(),
                    ..Default::default()
                },
            ],
            dns: Some(v1::Dns { nameservers: vec!["10.1.0.2".into()], ..Default::default() }),
            ..Default::default()
        }
    }

    fn rendered(version: Version) -> Value {
        CniResult::default().with_attachment(&attachment(), "/run/netns/a", None).render(version)
    }

    #[test]
    fn newest_result_has_all_fields() {
        assert_eq!(
            rendered(Version::V1_1_0),
            json!({
                "cniVersion": "1.1.0",
                "interfaces": [{
                    "name": "eth0", "mac": "02:00:00:00:00:01", "mtu": 9000,
                    "sandbox": "/run/netns/a", "pciID": "0000:03:00.2",
                }],
                "ips": [
                    {"interface": 0, "address": "10.1.0.5/16", "gateway": "10.1.0.1"},
                    {"interface": 0, "address": "fd00::5/64"},
                ],
                "routes": [
                    {"dst": "0.0.0.0/0", "gw": "10.1.0.1", "priority": 10},
                    {"dst": "10.9.0.0/16", "table": 7},
                    {"dst": "10.7.0.0/16", "scope": 254},
                ],
                "dns": {"nameservers": ["10.1.0.2"]},
            })
        );
    }

    #[test]
    fn old_results_have_families_and_no_details() {
        for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
            assert_eq!(
                rendered(version),
                json!({
                    "cniVersion": version.as_str(),
                    "interfaces": [{
                        "name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/a",
                    }],
                    "ips": [
                        {"version": "4", "interface": 0, "address": "10.1.0.5/16", "gateway": "10.1.0.1"},
                        {"version": "6", "interface": 0, "address": "fd00::5/64"},
                    ],
                    "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "10.7.0.0/16"}],
                    "dns": {"nameservers": ["10.1.0.2"]},
                })
            );
        }
    }

    #[test]
    fn previous_result_is_extended() {
        let previous = json!({
            "cniVersion": "1.1.0",
            "interfaces": [
                {"name": "veth1", "mac": "02:00:00:00:00:09"},
                {"name": "net1", "sandbox": "/run/netns/a", "socketPath": "/run/s"},
            ],
            "ips": [{"interface": 1, "address": "192.0.2.2/24", "note": 1}],
            "routes": [{"dst": "192.0.2.0/24", "scope": 253}],
            "dns": {"nameservers": ["192.0.2.1"], "domain": "a.example"},
            "extra": {"kept": true},
        });
        let result = CniResult::read(&previous)
            .unwrap()
            .with_attachment(&attachment(), "/run/netns/a", None)
            .render(Version::V1_1_0);
        assert_eq!(result["interfaces"][0], previous["interfaces"][0]);
        assert_eq!(result["interfaces"][1], previous["interfaces"][1]);
        assert_eq!(result["interfaces"][2]["name"], "eth0");
        assert_eq!(result["ips"][0], previous["ips"][0]);
        assert_eq!(result["ips"][1]["interface"], 2);
        assert_eq!(result["routes"][0], previous["routes"][0]);
        assert_eq!(result["dns"]["nameservers"], json!(["192.0.2.1", "10.1.0.2"]));
        assert_eq!(result["dns"]["domain"], "a.example");
        assert_eq!(result["extra"], previous["extra"]);
    }

    #[test]
    fn rendered_result_reads_back() {
        for version in Version::ALL {
            let document = rendered(version);
            assert_eq!(CniResult::read(&document).unwrap().render(version), document);
        }
    }

    #[test]
    fn pod_resolver_settings_replace_the_networks() {
        let dns = Dns { nameservers: vec!["1.1.1.1".into()], ..Dns::default() };
        let result = CniResult::default().with_attachment(&attachment(), "/n", Some(dns));
        assert_eq!(result.dns.nameservers, ["1.1.1.1"]);
    }

    #[test]
    fn malformed_prev_result_is_undecodable() {
        for previous in [json!([]), json!("x"), json!({"ips": 5}), json!({"interfaces": [1]})] {
            assert_eq!(CniResult::read(&previous).unwrap_err().code, code::UNDECODABLE);
        }
    }
}
