//! Attachments for the unit tests of this folder.

use std::sync::Arc;

use netlink::MacAddress;
use uuid::Uuid;
use vf_alloc::FunctionId;

use crate::host::examination::tests;
use model::{AttachmentId, AttachmentKey, Lease, PortMapping, Protocol, Record};

/// Attachment `number`: container `c<number>`, 10.1.0.<number>, and port 8000 + number of the DPU.
pub(super) fn record(number: u8) -> Record {
    let network = "name = 'red'\nsubnets = [{ cidr = '10.1.0.0/24', gateway = '10.1.0.254' }]";
    let mapping = PortMapping {
        host_port: 8000 + u16::from(number),
        protocol: Protocol::Tcp,
        host_ip: None,
        container_port: 80,
    };
    let address = format!("10.1.0.{number}/24").parse().unwrap();
    let other = tests::record();
    Record {
        id: AttachmentId(Uuid::from_u128(number.into())),
        key: AttachmentKey { container_id: format!("c{number}").into(), ..other.key },
        network: Arc::new(toml::from_str(network).unwrap()),
        vf: FunctionId::local(0, number.into()),
        device: format!("d000:00:00.{number}").into(),
        mac: MacAddress([2, 0, 0, 0, 0, number]),
        leases: vec![Lease { address, gateway: None }],
        port_mappings: vec![mapping],
        ..other
    }
}
