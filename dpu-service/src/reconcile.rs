//! When the kernel is made to agree with the journal. It takes no input but the wish to look: what
//! to do follows from what there is.

use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use crate::attachments::{Attachments, Depth};

/// How often everything is looked at, whatever happens.
const ROUTINE: Duration = Duration::from_secs(60);

/// How long reports of the kernel are gathered before they are looked into.
const GATHER: Duration = Duration::from_millis(200);

/// Reconciles at once, whenever the kernel or a host says that something changed, and on a timer,
/// until `stop`.
pub async fn run(attachments: Attachments, stop: CancellationToken) {
    let mut routine = interval(ROUTINE);
    routine.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reports = attachments.kernel_reports();
    loop {
        let depth = tokio::select! {
            () = stop.cancelled() => return,
            _ = routine.tick() => Depth::Thorough,
            () = attachments.host_spoke() => Depth::Thorough,
            _ = reports.changed() => Depth::Quick,
        };
        if depth == Depth::Quick {
            sleep(GATHER).await;
        }
        reports.mark_unchanged();
        attachments.reconcile(depth).await;
    }
}
