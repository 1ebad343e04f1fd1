//! Pods that still use older settings of their network.

use offload_proto::v1::{AttachmentName, NetworkStatus};

use crate::{rows::whom, text::short_id};

/// The number of such attachments and the first of them. `None`: there are none.
pub(crate) fn outdated(status: &NetworkStatus) -> Option<String> {
    let number = status.outdated_attachments;
    if number == 0 {
        return None;
    }
    let first: Vec<_> = status.outdated.iter().map(name).collect();
    let attachments = if number == 1 { "attachment" } else { "attachments" };
    let among = if number > first.len() as u64 { "among them " } else { "" };
    Some(format!("{number} {attachments}: {among}{}", first.join(", ")))
}

fn name(attachment: &AttachmentName) -> String {
    let id = short_id(&attachment.attachment_id);
    match whom(attachment.key.as_ref(), attachment.pod.as_ref()).as_str() {
        "-" => id.to_owned(),
        pod => format!("{pod} ({id})"),
    }
}

#[cfg(test)]
mod tests {
    use offload_proto::v1::Pod;

    use super::*;

    #[test]
    fn outdated_attachments_are_counted_and_named() {
        let named = |name: &str| AttachmentName {
            attachment_id: "0190".into(),
            pod: Some(Pod { namespace: "web".into(), name: name.into(), ..Pod::default() }),
            ..AttachmentName::default()
        };
        let status = |number, first| {
            outdated(&NetworkStatus {
                outdated_attachments: number,
                outdated: first,
                ..NetworkStatus::default()
            })
        };
        assert_eq!(status(0, Vec::new()), None);
        let one = status(1, vec![named("shop")]).unwrap();
        assert_eq!(one, "1 attachment: web/shop (0190)");
        let many = status(9, vec![named("shop"), AttachmentName::default()]).unwrap();
        assert!(many.starts_with("9 attachments: among them web/shop (0190), "), "{many}");
    }
}
