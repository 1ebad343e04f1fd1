//! Description of one attachment.

use offload_proto::v1::{
    Address, AttachmentDetail, FurtherLease, PortCounters, PortMapping, StepStatus,
};

use super::settings::{bandwidth, routing};
use crate::{
    description::Description,
    events::event_lines,
    rows::{attachment_state, in_hardware, pod_name, vlan},
    text::{bytes, or_dash, vf_name, yes_or_no},
};

pub(super) fn attachment_text(detail: &AttachmentDetail) -> String {
    let attachment = detail.attachment.clone().unwrap_or_default();
    let (key, pod) =
        (attachment.key.clone().unwrap_or_default(), attachment.pod.clone().unwrap_or_default());
    let mut text = Description::default();
    text.field("Id", &attachment.id);
    text.field("State", &attachment_state(&attachment));
    text.field("Created", &attachment.created_at);
    text.field("Host", &attachment.host);
    text.field("Container", &key.container_id);
    text.field("Interface", &key.interface_name);
    text.field_if_any("Comes with", &attachment.group_interface);
    text.field("Pod", &pod_name(&attachment));
    text.field("Pod uid", &pod.uid);
    text.field("Network", &attachment.network);
    text.field("VF", &vf_name(attachment.vf.as_ref()));
    text.field("PCI address", attachment.vf.as_ref().map_or("", |vf| &vf.device));
    text.field("Representor", &detail.representor);
    text.field("MAC", &attachment.mac);
    text.field("VLAN", &vlan(attachment.vlan));
    text.field("MTU", &attachment.mtu.to_string());
    text.field("Anti-spoofing", &attachment.anti_spoofing);
    text.field_if_any("Sources", &attachment.allowed_sources.join(", "));
    bandwidth(&mut text, attachment.bandwidth.as_ref());
    let address = |a: &Address| format!("{} via {}", a.address, or_dash(&a.gateway));
    text.list("Addresses", attachment.addresses.iter().map(address));
    text.list_if_any("Leases", attachment.further_leases.iter().map(further_lease));
    let sysctls = attachment.sysctls.unwrap_or_default();
    routing(&mut text, &attachment.routes, &attachment.rules, &sysctls);
    text.list_if_any("Mapped ports", attachment.port_mappings.iter().map(port_mapping));
    if let Some(counters) = &detail.counters {
        traffic(&mut text, counters);
    }
    text.list_if_any("Unknown", detail.unknown.iter().cloned());
    text.table("Steps", &["STEP", "IN PLACE", "DETAIL"], detail.steps.iter().map(step_row));
    text.block("Events", &event_lines(&detail.events));
    text.finish()
}

/// Addresses for an interface of another plugin.
fn further_lease(lease: &FurtherLease) -> String {
    let FurtherLease { interface_name, network, addresses, .. } = lease;
    let addresses: Vec<_> = addresses.iter().map(|held| held.address.as_str()).collect();
    format!("{} of {network} for {interface_name}", addresses.join(", "))
}

fn traffic(text: &mut Description, counters: &PortCounters) {
    let carried = |count: u64, packets: u64| format!("{} in {packets} packets", bytes(count));
    text.field("Sent", &carried(counters.sent_bytes, counters.sent_packets));
    text.field("Received", &carried(counters.received_bytes, counters.received_packets));
    text.field("Guard drops", &counters.guard_drops.to_string());
    text.field("Allow drops", &counters.allow_drops.to_string());
    let PortCounters { ingress_limit_drops, egress_limit_drops, .. } = counters;
    let limits = format!("{ingress_limit_drops} to the pod, {egress_limit_drops} from the pod");
    text.field("Limit drops", &limits);
    text.field("In hardware", &in_hardware(counters));
}

fn port_mapping(mapping: &PortMapping) -> String {
    let PortMapping { host_port, container_port, protocol, host_ip } = mapping;
    let address = if host_ip.is_empty() { "all addresses" } else { host_ip };
    format!("{host_port}/{protocol} of {address} to {container_port}")
}

fn step_row(step: &StepStatus) -> Vec<String> {
    let in_place = if step.unknown { "unknown" } else { yes_or_no(step.in_place) };
    vec![step.name.clone(), in_place.into(), or_dash(&step.detail).into()]
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::{
        Attachment, AttachmentKey, AttachmentState, Event, EventSeverity, Pod, Vf,
    };

    use super::*;

    #[test]
    fn attachment_text_has_steps_and_events() {
        let detail = AttachmentDetail {
            attachment: Some(Attachment {
                id: "0190aaaa-bbbb-7000-8000-000000000001".into(),
                host: "node-1".into(),
                key: Some(AttachmentKey {
                    container_id: "c1".into(),
                    interface_name: "eth0".into(),
                }),
                network: "blue".into(),
                pod: Some(Pod {
                    namespace: "web".into(),
                    name: "shop\u{1b}[2J".into(),
                    uid: "u1".into(),
                }),
                vf: Some(Vf { pf: 0, vf: 3, controller: 0, device: "d000:00:00.4".into() }),
                mac: "02:00:00:00:00:01".into(),
                vlan: 100,
                addresses: vec![Address {
                    address: "10.1.0.5/16".into(),
                    gateway: "10.1.0.1".into(),
                }],
                mtu: 1500,
                anti_spoofing: "full".into(),
                allowed_sources: vec!["10.1.0.7/32".into(), "fd07::/64".into()],
                state: AttachmentState::Attached.into(),
                created_at: "2026-03-01T12:00:00Z".into(),
                ..Attachment::default()
            }),
            representor: "pf0vf3".into(),
            steps: vec![StepStatus {
                name: "vlan".into(),
                in_place: false,
                detail: "missing".into(),
                unknown: false,
            }],
            events: vec![Event {
                sequence: 1,
                time: "2026-03-01T12:00:00Z".into(),
                kind: "AttachmentReserved".into(),
                subject: "0190".into(),
                message: "for web/shop".into(),
                author: "dpu-service".into(),
                severity: EventSeverity::Normal.into(),
                ..Event::default()
            }],
            counters: Some(PortCounters {
                sent_bytes: 1_250_000,
                sent_packets: 1000,
                received_bytes: 98,
                received_packets: 1,
                guard_drops: 7,
                ingress_limit_drops: 3,
                egress_limit_drops: 2,
                allow_drops: 1,
                rules: 4,
                rules_in_hardware: 1,
            }),
            unknown: Vec::new(),
        };
        assert_eq!(
            attachment_text(&detail),
            "\
Id:            0190aaaa-bbbb-7000-8000-000000000001
State:         Attached
Created:       2026-03-01T12:00:00Z
Host:          node-1
Container:     c1
Interface:     eth0
Pod:           web/shop\u{fffd}[2J
Pod uid:       u1
Network:       blue
VF:            pf0vf3
PCI address:   d000:00:00.4
Representor:   pf0vf3
MAC:           02:00:00:00:00:01
VLAN:          100
MTU:           1500
Anti-spoofing: full
Sources:       10.1.0.7/32, fd07::/64
To the pod:    unlimited
From the pod:  unlimited
Addresses:
  10.1.0.5/16 via 10.1.0.1
Routes:        none
Sent:          1.25 MB in 1000 packets
Received:      98 B in 1 packets
Guard drops:   7
Allow drops:   1
Limit drops:   3 to the pod, 2 from the pod
In hardware:   1 of 4

Steps:
STEP   IN PLACE   DETAIL
vlan   no         missing

Events:
2026-03-01T12:00:00Z  Normal   AttachmentReserved  dpu-service  for web/shop
"
        );
    }
}
