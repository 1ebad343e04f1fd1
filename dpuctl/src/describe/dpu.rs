//! Descriptions of the DPU and of one host.

use jiff::Timestamp;
use offload_proto::v1::{Capability, Card, Dpu, Finding, HostStatus, RefusedPeer};

use crate::{
    description::Description,
    status::{condition_table, host_table},
    text::{age, host_state, or, or_dash, short_id},
};

/// Description of the DPU, as of its clock `now`.
pub(super) fn dpu_text(dpu: &Dpu, now: Timestamp) -> String {
    let mut text = Description::default();
    text.field("Name", &dpu.name);
    text.field("Version", &dpu.version);
    text.field("Started", &dpu.started_at);
    text.field("Eswitch", &dpu.eswitch_driver);
    text.field("Fabric", &dpu.fabric_driver);
    text.field("Attachments", &dpu.attachments.to_string());
    text.block("Conditions", &condition_table(&dpu.conditions, now));
    let columns = ["DEVICE", "ESWITCH MODE", "REPRESENTORS"];
    text.table("Cards", &columns, dpu.cards.iter().map(card_row));
    let columns = ["ADDRESS", "NAME", "AGO", "TIMES", "REASON"];
    let refused = dpu.refused_peers.iter().map(|peer| refused_row(peer, now));
    text.table("Refused peers", &columns, refused);
    text.block("Hosts", &host_table(&dpu.hosts, true, now));
    text.table("Capabilities", &["DEVICE", "NAME", "DONE", "DETAIL"], capability_rows(dpu));
    text.finish()
}

pub(super) fn host_text(host: &HostStatus) -> String {
    let mut text = Description::default();
    text.field("Name", &host.name);
    text.field("State", &host_state(host));
    text.field("Since", &host.since);
    text.field_if_any("Why", &host.absence);
    text.field("Address", &host.address);
    if !host.refusal.is_empty() {
        text.field("Refused", &format!("at {}: {}", host.refused_at, host.refusal));
    }
    text.field("Agent", &host.agent_version);
    text.field("Boot id", &host.boot_id);
    text.field("Networks", or(&host.networks.join(", "), "all"));
    text.field("MACs", if host.own_macs_only { "with the DPU's prefix" } else { "any" });
    let found = |found: &Finding| format!("{}: {}", short_id(&found.subject), found.message);
    let mut found: Vec<_> = host.pod_findings.iter().map(found).collect();
    if host.pod_findings_left_out > 0 {
        found.push(format!("and {} more", host.pod_findings_left_out));
    }
    text.list("Pod problems", found);
    text.finish()
}

/// A peer that the DPU could not identify as one of its hosts.
fn refused_row(peer: &RefusedPeer, now: Timestamp) -> Vec<String> {
    let RefusedPeer { address, name, reason, time, count } = peer;
    let ago = age(time, now);
    vec![address.clone(), or_dash(name).into(), ago, count.to_string(), reason.clone()]
}

fn card_row(card: &Card) -> Vec<String> {
    let Card { device, eswitch_mode, representors, .. } = card;
    vec![device.clone(), eswitch_mode.clone(), representors.to_string()]
}

/// The abilities of each card, then those of the DPU that no card has.
fn capability_rows(dpu: &Dpu) -> Vec<Vec<String>> {
    let of_cards = dpu
        .cards
        .iter()
        .flat_map(|card| card.capabilities.iter().map(move |can| (&*card.device, can)));
    let is_cards = |name: &str| of_cards.clone().any(|(_, can)| can.name == name);
    let of_dpu = dpu.capabilities.iter().filter(|can| !is_cards(&can.name)).map(|can| ("-", can));
    let row = |(device, capability): (&str, &Capability)| {
        let Capability { name, detail, .. } = capability;
        vec![device.into(), name.clone(), done_by(capability).into(), or_dash(detail).into()]
    };
    of_cards.clone().chain(of_dpu).map(row).collect()
}

fn done_by(capability: &Capability) -> &'static str {
    match (capability.available, capability.offloaded) {
        (false, _) => "no",
        (true, false) => "in software",
        (true, true) => "in hardware",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dpu_text_has_cards_and_capabilities() {
        let dpu = Dpu {
            name: "dpu-1".into(),
            version: "0.1.0".into(),
            eswitch_driver: "devlink".into(),
            fabric_driver: "bridge".into(),
            capabilities: vec![
                Capability { name: "egress-rate".into(), available: true, ..Capability::default() },
                Capability {
                    name: "vlan-filtering".into(),
                    detail: "no kernel support".into(),
                    ..Capability::default()
                },
            ],
            cards: vec![Card {
                device: "pci/0000:03:00.0".into(),
                eswitch_mode: "switchdev".into(),
                representors: 16,
                capabilities: vec![
                    Capability {
                        name: "filters".into(),
                        available: true,
                        offloaded: true,
                        ..Capability::default()
                    },
                    Capability {
                        name: "ingress-rate".into(),
                        available: true,
                        detail: "by the queue".into(),
                        ..Capability::default()
                    },
                    Capability { name: "egress-rate".into(), ..Capability::default() },
                ],
            }],
            started_at: "2026-03-01T10:58:00Z".into(),
            ..Dpu::default()
        };
        assert_eq!(
            dpu_text(&dpu, Timestamp::UNIX_EPOCH),
            "\
Name:          dpu-1
Version:       0.1.0
Started:       2026-03-01T10:58:00Z
Eswitch:       devlink
Fabric:        bridge
Attachments:   0

Conditions:
All 0 conditions are true.

Cards:
DEVICE             ESWITCH MODE   REPRESENTORS
pci/0000:03:00.0   switchdev      16

Capabilities:
DEVICE             NAME             DONE          DETAIL
pci/0000:03:00.0   filters          in hardware   -
pci/0000:03:00.0   ingress-rate     in software   by the queue
pci/0000:03:00.0   egress-rate      no            -
-                  vlan-filtering   no            no kernel support
"
        );
        let virtual_card = Dpu { cards: Vec::new(), ..dpu };
        let shown = dpu_text(&virtual_card, Timestamp::UNIX_EPOCH);
        assert!(!shown.contains("Cards") && shown.contains("\n-        egress-rate "), "{shown}");
    }

    #[test]
    fn refused_peers_are_shown_with_their_reasons() {
        let peer = RefusedPeer {
            address: "192.0.2.9".into(),
            reason: "no certificate was presented".into(),
            time: "2026-03-01T11:00:00Z".into(),
            count: 3,
            ..RefusedPeer::default()
        };
        let row = refused_row(&peer, "2026-03-01T11:05:00Z".parse().unwrap());
        assert_eq!(row, ["192.0.2.9", "-", "5m0s", "3", "no certificate was presented"]);
    }

    #[test]
    fn host_text_has_its_permissions() {
        let host = HostStatus {
            name: "node-1".into(),
            connected: true,
            agent_version: "0.1.0".into(),
            boot_id: "b007".into(),
            since: "2026-03-01T11:00:00Z".into(),
            networks: vec!["blue".into(), "green".into()],
            own_macs_only: true,
            address: "192.0.2.7".into(),
            ..HostStatus::default()
        };
        assert_eq!(
            host_text(&host),
            "\
Name:          node-1
State:         Connected
Since:         2026-03-01T11:00:00Z
Address:       192.0.2.7
Agent:         0.1.0
Boot id:       b007
Networks:      blue, green
MACs:          with the DPU's prefix
Pod problems:  none
"
        );
        let refused = HostStatus {
            refusal: "it expired".into(),
            refused_at: "2026-03-01T11:05:00Z".into(),
            pod_findings: vec![Finding {
                subject: "0190".into(),
                message: "no route".into(),
                ..Finding::default()
            }],
            pod_findings_left_out: 3,
            ..host.clone()
        };
        let shown = host_text(&refused);
        let lines = [
            "Refused:       at 2026-03-01T11:05:00Z: it expired\n",
            "  0190: no route\n  and 3 more\n",
        ];
        for line in lines {
            assert!(shown.contains(line), "{shown}");
        }
        let free = host_text(&HostStatus { networks: Vec::new(), own_macs_only: false, ..host });
        assert!(free.contains("Networks:      all\nMACs:          any\n"), "{free}");
    }
}
