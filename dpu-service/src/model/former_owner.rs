//! Who had an address before it rests.

use std::sync::Arc;

use netlink::MacAddress;
use serde::{Deserialize, Serialize};

use super::{AttachSpec, HostName, Record};

/// Who gave an address back. While it rests, that owner may have it again, and nobody else.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct FormerOwner {
    host: HostName,
    container_id: Arc<str>,
    pod_namespace: String,
    pod_name: String,
    mac: MacAddress,
}

impl FormerOwner {
    /// The owner of what `record` holds.
    #[must_use]
    pub(crate) fn of(record: &Record) -> Self {
        let Record { key, pod, mac, .. } = record;
        Self {
            host: key.host.clone(),
            container_id: key.container_id.clone(),
            pod_namespace: pod.namespace.clone(),
            pod_name: pod.name.clone(),
            mac: *mac,
        }
    }

    /// Whether it is the one who asks: the same container, the pod of the same name, or whoever has
    /// the same MAC address.
    #[must_use]
    pub(crate) fn asks(&self, spec: &AttachSpec) -> bool {
        let AttachSpec { key, pod, mac, .. } = spec;
        let is_container = (&self.host, &self.container_id) == (&key.host, &key.container_id);
        let is_pod = !self.pod_name.is_empty()
            && (&self.pod_namespace, &self.pod_name) == (&pod.namespace, &pod.name);
        is_container || is_pod || *mac == Some(self.mac)
    }
}
