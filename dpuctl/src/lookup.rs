//! The names that select an attachment.

use std::net::IpAddr;

use offload_proto::v1::Attachment;

use crate::text::vf_name;

/// Shortest accepted beginning of an id, as in the service.
const SHORTEST_BEGINNING: usize = 4;

/// Whether `name` is one of the attachment's: its id, address, MAC address, VF, pod or container. Ids of attachments
/// and containers may be shortened.
pub(crate) fn is_called(attachment: &Attachment, name: &str) -> bool {
    is_id(&attachment.id, name)
        || is_id(attachment.key.as_ref().map_or("", |key| &key.container_id), name)
        || is_pod(attachment, name)
        || is_vf(attachment, name)
        || attachment.mac.eq_ignore_ascii_case(name)
        || has_address(attachment, name)
}

fn is_id(id: &str, name: &str) -> bool {
    id == name || name.len() >= SHORTEST_BEGINNING && id.starts_with(name)
}

fn is_pod(attachment: &Attachment, name: &str) -> bool {
    let Some(pod) = &attachment.pod else { return false };
    pod.name == name || pod.uid == name || format!("{}/{}", pod.namespace, pod.name) == name
}

fn is_vf(attachment: &Attachment, name: &str) -> bool {
    let Some(vf) = &attachment.vf else { return false };
    vf.device == name || vf_name(Some(vf)) == name
}

/// Compares with or without prefix length, in any form of IPv6.
fn has_address(attachment: &Attachment, name: &str) -> bool {
    let further = attachment.further_leases.iter().flat_map(|lease| &lease.addresses);
    let mut addresses = attachment.addresses.iter().chain(further);
    let wanted = name.parse::<IpAddr>();
    let is_wanted = |address: &str| {
        let alone = address.split('/').next().unwrap_or(address);
        address == name || wanted.is_ok() && alone.parse() == wanted
    };
    addresses.any(|held| is_wanted(&held.address))
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::{Address, AttachmentKey, FurtherLease, Pod, Vf};

    use super::*;

    fn attachment() -> Attachment {
        let address = |address: &str| Address { address: address.into(), gateway: String::new() };
        Attachment {
            id: "0190aaaa-bbbb-7000-8000-000000000001".into(),
            key: Some(AttachmentKey {
                container_id: "3f0c5a9e77d1".into(),
                interface_name: "eth0".into(),
            }),
            pod: Some(Pod { namespace: "web".into(), name: "shop".into(), uid: "u-1".into() }),
            vf: Some(Vf { pf: 0, vf: 3, controller: 0, device: "0000:03:00.4".into() }),
            mac: "02:00:00:00:00:0a".into(),
            addresses: vec![address("10.1.0.5/16"), address("fd00::5/64")],
            further_leases: vec![FurtherLease {
                addresses: vec![address("10.9.0.5/16")],
                ..FurtherLease::default()
            }],
            ..Attachment::default()
        }
    }

    #[test]
    fn attachments_have_many_names() {
        for name in [
            "0190aaaa",
            "10.1.0.5",
            "10.1.0.5/16",
            "fd00:0::5",
            "10.9.0.5",
            "02:00:00:00:00:0A",
            "shop",
            "web/shop",
            "u-1",
            "3f0c5a9e77d1",
            "3f0c",
            "pf0vf3",
            "0000:03:00.4",
        ] {
            assert!(is_called(&attachment(), name), "{name}");
        }
    }

    #[test]
    fn other_names_match_nothing() {
        for name in ["019", "3f0", "10.1.0.50", "10.1.0.5/24", "sho", "web", "pf0vf33", "-", "eth0"]
        {
            assert!(!is_called(&attachment(), name), "{name}");
            assert!(!is_called(&Attachment::default(), name), "{name}");
        }
    }
}
