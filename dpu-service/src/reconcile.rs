//! When the kernel is made to agree with the journal. It takes no input but the wish to look: what
//! to do follows from what there is.

use std::{sync::Arc, time::Duration};

use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use crate::attachments::{Depth, Engine};

/// How often everything is looked at, whatever happens.
const ROUTINE: Duration = Duration::from_secs(60);

/// Reports of the kernel are looked into when there were none for so long: every attach causes some,
/// and a look at all links is in the way of the next.
const CALM: Duration = Duration::from_millis(200);

/// How long reports are gathered at most.
const GATHER: Duration = Duration::from_secs(1);

/// Reconciles at once, whenever the kernel or a host says that something changed, and on a timer,
/// until `stop`.
pub async fn run(engine: Arc<Engine>, stop: CancellationToken) {
    let mut routine = interval(ROUTINE);
    routine.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reports = engine.kernel_reports();
    loop {
        let depth = tokio::select! {
            () = stop.cancelled() => return,
            _ = routine.tick() => Depth::Thorough,
            () = engine.close_look_wanted() => Depth::Thorough,
            _ = reports.changed() => Depth::Quick,
        };
        if depth == Depth::Quick {
            let calm = async { while timeout(CALM, reports.changed()).await.is_ok() {} };
            let _ = timeout(GATHER, calm).await;
        }
        reports.mark_unchanged();
        engine.reconcile(depth).await;
    }
}
