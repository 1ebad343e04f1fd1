//! Names of hosts and attachments.

use std::{fmt, sync::Arc};

use offload_proto::form::HOST_PORT_CONTAINER;
use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// A host, by the name in its certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct HostName(pub Arc<str>);

impl fmt::Display for HostName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// An attachment's id: unique over all time, ordered by creation (UUID version 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct AttachmentId(pub Uuid);

impl fmt::Display for AttachmentId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, out)
    }
}

/// The name of an attachment: the host from its certificate, the rest from the runtime.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttachmentKey {
    /// The attachment's host.
    pub host: HostName,
    /// `CNI_CONTAINERID`.
    pub container_id: Arc<str>,
    /// `CNI_IFNAME`.
    pub interface_name: Arc<str>,
}

impl AttachmentKey {
    /// Whether it names a host port: an attachment in the host's own namespace.
    pub fn is_host_port(&self) -> bool {
        &*self.container_id == HOST_PORT_CONTAINER
    }
}

impl fmt::Display for AttachmentKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}/{}/{}", self.host, self.container_id, self.interface_name)
    }
}
