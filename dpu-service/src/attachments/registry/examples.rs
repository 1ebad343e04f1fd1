//! Attachments for the unit tests of this folder.

use netlink::MacAddress;
use uuid::Uuid;

use super::Entry;
use model::{AttachmentId, Bandwidth, Lease, Network, PortMapping, Protocol, Record};

/// Attachment `number`: container `c<number>`, 10.1.0.<number>, and port 8000 + number of the DPU.
pub(super) fn record(number: u8) -> Record {
    let network = "name = 'red'\nsubnets = [{ cidr = '10.1.0.0/24', gateway = '10.1.0.254' }]";
    let network: Network = toml::from_str(network).unwrap();
    let key = serde_json::json!({
        "host": "node-1", "container_id": format!("c{number}"), "interface_name": "eth0"
    });
    let row = serde_json::json!({
        "id": AttachmentId(Uuid::from_u128(number.into())), "key": key, "phase": "held",
        "network": network, "pod": { "namespace": "", "name": "", "uid": "" },
        "vf": vf_alloc::FunctionId::local(0, number.into()), "device": format!("d000:00:00.{number}"),
        "mac": MacAddress([2, 0, 0, 0, 0, number]).to_string(), "leases": [],
        "bandwidth": Bandwidth::default(), "boot_id": "b", "created_at": 1
    });
    let record: Record = serde_json::from_value(row).unwrap();
    let address = format!("10.1.0.{number}/24").parse().unwrap();
    let mapping = PortMapping {
        host_port: 8000 + u16::from(number),
        protocol: Protocol::Tcp,
        host_ip: None,
        container_port: 80,
    };
    Record {
        leases: vec![Lease { address, gateway: None }],
        port_mappings: vec![mapping],
        ..record
    }
}

pub(super) fn entry(record: Record) -> Entry {
    Entry::restored(record)
}
