//! What stays known of an attachment that has ended.

use netlink::MacAddress;
use offload_proto::v1::Pod;
use serde::{Deserialize, Serialize};
use vf_alloc::{Device, FunctionId};

use crate::model::{AttachmentKey, Lease, Record};

/// An attachment that has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EndedAttachment {
    /// Its key.
    pub key: AttachmentKey,
    /// The pod that it served.
    pub pod: Pod,
    /// Its network's name at the end.
    pub network: String,
    /// The VF that it held.
    pub vf: FunctionId,
    /// The name of the VF on its host.
    pub device: Device,
    /// The VF's MAC address.
    pub mac: MacAddress,
    /// The addresses that it held.
    pub leases: Vec<Lease>,
    /// When it was created: milliseconds since 1970, UTC.
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
