//! The rights of hosts and pods to networks, MAC addresses and sources.

use std::collections::BTreeSet;

use netlink::MacAddress;
use offload_proto::{Failure, Reason};

use super::{AttachSpec, HostName, Network, Source};

/// A host's rights from the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRights {
    /// The names of the networks that it may use. Empty: all.
    pub networks: BTreeSet<String>,
    /// Whether it may request MAC addresses outside the DPU's prefix.
    pub any_mac: bool,
}

impl Default for HostRights {
    fn default() -> Self {
        Self { networks: BTreeSet::new(), any_mac: true }
    }
}

impl HostRights {
    /// Checks a request for this network. `prefix` is the DPU's prefix of MAC addresses.
    ///
    /// # Errors
    /// [`Reason::NetworkNotAllowed`], [`Reason::MacNotAllowed`] or [`Reason::SourceNotAllowed`].
    pub fn check(
        &self,
        spec: &AttachSpec,
        network: &Network,
        prefix: &[u8],
    ) -> Result<(), Failure> {
        self.check_found(&spec.key.host, spec.interface.named_network(), network)?;
        check_namespace(spec, network)?;
        check_sources(spec, network)?;
        spec.interface.mac.map_or(Ok(()), |mac| self.check_mac(spec, mac, prefix))
    }

    /// Whether the host may use the network of that name.
    pub fn allows(&self, network: &str) -> bool {
        self.networks.is_empty() || self.networks.contains(network)
    }

    /// Refuses a name that the host may not use, whether or not there is such a network.
    ///
    /// # Errors
    /// [`Reason::NetworkNotAllowed`].
    pub fn check_name(&self, host: &HostName, name: Option<&str>) -> Result<(), Failure> {
        match name.filter(|name| !self.allows(name)) {
            None => Ok(()),
            Some(name) => {
                let message = format!("host {host} may not use network {name}");
                Err(Failure::new(Reason::NetworkNotAllowed, message))
            }
        }
    }

    /// Checks the network that was found: the named one, or the default one.
    ///
    /// # Errors
    /// [`Reason::NetworkNotAllowed`].
    pub fn check_found(
        &self,
        host: &HostName,
        name: Option<&str>,
        network: &Network,
    ) -> Result<(), Failure> {
        self.check_name(host, name)?;
        if self.allows(&network.name) {
            return Ok(());
        }
        let message =
            format!("the request names no network, and host {host} may not use the default one");
        Err(Failure::new(Reason::NetworkNotAllowed, message))
    }

    fn check_mac(&self, spec: &AttachSpec, mac: MacAddress, prefix: &[u8]) -> Result<(), Failure> {
        if self.any_mac || mac.0.starts_with(prefix) {
            return Ok(());
        }
        let (host, bytes) = (&spec.key.host, prefix.iter().map(|byte| format!("{byte:02x}")));
        let prefix = bytes.collect::<Vec<_>>().join(":");
        let message = format!(
            "MAC address {mac} does not begin with {prefix}, and host {host} may not choose another"
        );
        Err(Failure::new(Reason::MacNotAllowed, message))
    }
}

/// Checks the requested sources. A source that the guard does not check needs no permission.
fn check_sources(spec: &AttachSpec, network: &Network) -> Result<(), Failure> {
    let is_allowed = |source: &&Source| {
        let mut sources = network.allowed_sources.iter().chain(&network.optional_sources);
        !network.anti_spoofing.looks_at(**source)
            || sources.any(|allowed| source.is_within(*allowed))
    };
    match spec.interface.allowed_sources.iter().find(|source| !is_allowed(source)) {
        Some(source) => {
            let message = format!("pods of network {} may not send from {source}", network.name);
            Err(Failure::new(Reason::SourceNotAllowed, message))
        }
        None => Ok(()),
    }
}

/// Checks the pod's namespace. A host port serves no pod and has no namespace.
fn check_namespace(spec: &AttachSpec, network: &Network) -> Result<(), Failure> {
    let namespace = spec.pod.namespace.as_str();
    if network.namespaces.is_empty()
        || network.namespaces.contains(namespace)
        || spec.key.is_host_port()
    {
        return Ok(());
    }
    let name = &network.name;
    let message = match namespace {
        "" => format!(
            "network {name} is for pods of certain namespaces, and the request names no namespace"
        ),
        namespace => format!("pods of namespace {namespace:?} may not use network {name}"),
    };
    Err(Failure::new(Reason::NetworkNotAllowed, message))
}
