//! Description of an ended attachment, from its events.

use offload_proto::v1::{
    Attachment, AttachmentKey, Event, EventFilter, ListEventsRequest,
    operator_client::OperatorClient,
};

use crate::{
    client::Client,
    description::Description,
    error::CallError,
    events::event_lines,
    rows::{addresses, pod_name},
    text::vf_name,
};

/// Describes an attachment that the DPU no longer has, by its recorded events. Fails with `unknown` if it has none.
pub(super) async fn ended(
    client: &mut Client,
    id: &str,
    unknown: CallError,
) -> Result<String, CallError> {
    let filter =
        Some(EventFilter { object: id.into(), within_s: u64::MAX, ..EventFilter::default() });
    let listed = client.call(OperatorClient::list_events, ListEventsRequest { filter }).await?;
    let end = listed.events.iter().rfind(|event| event.attachment.is_some());
    let Some(Event { subject, attachment: Some(attachment), .. }) = end else {
        return Err(unknown);
    };
    // A short id may match several attachments.
    let events: Vec<_> = listed.events.iter().filter(|event| event.subject == *subject).collect();
    Ok(ended_text(attachment, &events))
}

fn ended_text(attachment: &Attachment, events: &[&Event]) -> String {
    let AttachmentKey { container_id, interface_name } = attachment.key.clone().unwrap_or_default();
    let last_of = |kind: &str| events.iter().rfind(|event| event.kind == kind);
    // The first event of a release has the cause of the end. A failed attachment has no release.
    let how = last_of("AttachmentReleasing").or(last_of("AttachmentFailed"));
    let end = events.iter().rfind(|event| event.attachment.is_some());
    let mut text = Description::default();
    text.field("Id", &attachment.id);
    text.field("State", "Ended");
    text.field("Created", &attachment.created_at);
    text.field("Ended", end.map_or("", |event| &event.time));
    text.field("Ended by", how.map_or("", |event| &event.author));
    text.field("Reason", how.map_or("", |event| &event.message));
    text.field("Host", &attachment.host);
    text.field("Container", &container_id);
    text.field("Interface", &interface_name);
    text.field("Pod", &pod_name(attachment));
    text.field("Network", &attachment.network);
    text.field("VF", &vf_name(attachment.vf.as_ref()));
    text.field("MAC", &attachment.mac);
    text.field("Addresses", &addresses(attachment));
    text.block("Events", &event_lines(events.iter().copied()));
    text.finish()
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::{Address, Pod, Vf};

    use super::*;

    #[test]
    fn ended_attachment_has_its_end_and_author() {
        let attachment = Attachment {
            id: "0190aaaa-bbbb-7000-8000-000000000001".into(),
            host: "node-1".into(),
            key: Some(AttachmentKey { container_id: "c1".into(), interface_name: "eth0".into() }),
            pod: Some(Pod { namespace: "web".into(), name: "shop".into(), uid: "u1".into() }),
            network: "blue".into(),
            vf: Some(Vf { pf: 0, vf: 3, ..Vf::default() }),
            mac: "02:00:00:00:00:01".into(),
            addresses: vec![Address { address: "10.1.0.5/16".into(), gateway: String::new() }],
            created_at: "2026-03-01T12:00:00Z".into(),
            ..Attachment::default()
        };
        let releasing = Event {
            kind: "AttachmentReleasing".into(),
            time: "2026-03-01T13:00:00Z".into(),
            author: "operator/alice".into(),
            message: "maintenance".into(),
            ..Event::default()
        };
        let released = Event {
            kind: "AttachmentReleased".into(),
            time: "2026-03-01T13:00:01Z".into(),
            author: "dpu-service".into(),
            message: "pf0vf3 and its addresses are free".into(),
            attachment: Some(attachment.clone()),
            ..Event::default()
        };
        let text = ended_text(&attachment, &[&releasing, &released]);
        for line in [
            "State:         Ended",
            "Ended:         2026-03-01T13:00:01Z",
            "Ended by:      operator/alice",
            "Reason:        maintenance",
            "Pod:           web/shop",
            "VF:            pf0vf3",
            "Addresses:     10.1.0.5/16",
        ] {
            assert!(text.lines().any(|shown| shown == line), "{line}: {text}");
        }
    }
}
