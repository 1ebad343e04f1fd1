//! The former owner of an address in cool-down.

use std::sync::Arc;

use netlink::MacAddress;
use serde::{Deserialize, Serialize};

use super::{AttachSpec, HostName, InterfaceRequest, Record};

/// The former owner of an address. During the cool-down only this owner can get the address again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormerOwner {
    host: HostName,
    container_id: Arc<str>,
    pod_namespace: String,
    pod_name: String,
    mac: MacAddress,
}

impl FormerOwner {
    /// The owner of the addresses in `record`.
    #[must_use]
    pub fn of(record: &Record) -> Self {
        let Record { key, pod, mac, .. } = record;
        Self {
            host: key.host.clone(),
            container_id: key.container_id.clone(),
            pod_namespace: pod.namespace.clone(),
            pod_name: pod.name.clone(),
            mac: *mac,
        }
    }

    /// Whether the request comes from this owner: the same container, a pod of the same name, or the same MAC
    /// address.
    #[must_use]
    pub fn asks(&self, spec: &AttachSpec) -> bool {
        let AttachSpec { key, pod, interface: InterfaceRequest { mac, .. }, .. } = spec;
        let is_container = (&self.host, &self.container_id) == (&key.host, &key.container_id);
        let is_pod = !self.pod_name.is_empty()
            && (&self.pod_namespace, &self.pod_name) == (&pod.namespace, &pod.name);
        is_container || is_pod || *mac == Some(self.mac)
    }
}
