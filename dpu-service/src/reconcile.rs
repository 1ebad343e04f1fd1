//! When the reconciler runs. Requests carry no data: each pass derives its work from records and kernel.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::{
    attachments::{Depth, Engine},
    tasks::ticks,
};

/// Interval of unconditional passes.
const ROUTINE: Duration = Duration::from_secs(60);

/// Quiet time before a pass after reports of the kernel: every attach causes some, and a survey of all links delays the
/// next attach.
const CALM: Duration = Duration::from_millis(200);

/// Maximum time to collect reports, so that a busy DPU is reconciled, too.
const GATHER: Duration = Duration::from_secs(1);

/// Reconciles at once, on reports of kernel or hosts, and on a timer, until `stop`.
pub async fn run(engine: Arc<Engine>, stop: CancellationToken) {
    let mut routine = ticks(ROUTINE);
    let mut reports = engine.kernel_reports();
    loop {
        let depth = tokio::select! {
            () = stop.cancelled() => return,
            _ = routine.tick() => Depth::Thorough,
            () = engine.thorough_requested() => Depth::Thorough,
            _ = reports.changed() => Depth::Quick,
        };
        if depth == Depth::Quick {
            let calm = async { while timeout(CALM, reports.changed()).await.is_ok() {} };
            let _ = timeout(GATHER, calm).await;
        }
        // Before the pass: a report during it must cause another pass.
        reports.mark_unchanged();
        engine.reconcile(depth).await;
    }
}
