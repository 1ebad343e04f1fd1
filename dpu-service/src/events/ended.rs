//! Description of an attachment after its end.

use netlink::MacAddress;
use offload_proto::v1::Pod;
use serde::{Deserialize, Serialize};
use vf_alloc::{Device, FunctionId};

use model::{AttachmentKey, Lease, Record};

/// An ended attachment, for its last event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndedAttachment {
    pub key: AttachmentKey,
    pub pod: Pod,
    /// Name of its network at the end.
    pub network: String,
    pub vf: FunctionId,
    pub device: Device,
    pub mac: MacAddress,
    pub leases: Vec<Lease>,
    /// Creation time: milliseconds since 1970, UTC.
    pub created_at: i64,
}

impl From<&Record> for EndedAttachment {
    fn from(record: &Record) -> Self {
        Self {
            key: record.key.clone(),
            pod: record.pod.clone(),
            network: record.network.name.clone(),
            vf: record.vf,
            device: record.device.clone(),
            mac: record.mac,
            leases: record.leases.clone(),
            created_at: record.created_at,
        }
    }
}
