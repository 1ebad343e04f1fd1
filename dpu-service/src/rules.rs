//! Watches nftables: a flush removes the gateways' table and the guards' rules.
//!
//! Concurrently: the service's own flows change nftables for pods that come and go, so most reports are its own.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use netlink::nftables::NftablesMonitor;
use tokio::time::{sleep, timeout};

use crate::{attachments::Engine, links::own_netns};
use drivers::driver::Refused;

/// Time until a failed watch is opened again.
const DELAY: Duration = Duration::from_secs(5);

/// Quiet time before changes are examined, or at the latest after [`GATHER`]: other programs change dozens of rules at
/// a time.
const CALM: Duration = Duration::from_millis(50);
const GATHER: Duration = Duration::from_millis(500);

/// How often to retry while the rules cannot be set. Polled: the kernel sends no event when a table that a process owns
/// is removed with the process.
const RETRY: Duration = Duration::from_secs(2);

/// Checks the gateways whenever nftables has changed. Never returns.
pub(crate) async fn follow(engine: Arc<Engine>) {
    let mut logged = None;
    loop {
        if let Err(error) = watch(&engine).await {
            let reason = Chain(&error).to_string();
            if engine.gateways.are_any() && logged.as_ref() != Some(&reason) {
                tracing::warn!(
                    reason,
                    "cannot watch nftables; the gateways are only checked every minute"
                );
                logged = Some(reason);
            }
        }
        sleep(DELAY).await;
    }
}

async fn watch(engine: &Arc<Engine>) -> Result<(), Refused> {
    let unwatchable = |error| Refused::new("watch nftables", error);
    let mut monitor = NftablesMonitor::open(&own_netns()?).map_err(unwatchable)?;
    // Changes before the watch was opened were missed.
    engine.networks().look_after_gateways(false).await;
    loop {
        next_change(&mut monitor, engine.gateways.are_closed()).await.map_err(unwatchable)?;
        let calm =
            async { while timeout(CALM, monitor.next()).await.is_ok_and(|event| event.is_ok()) {} };
        let _ = timeout(GATHER, calm).await;
        engine.rules_changed().await;
        // Most changes are this service's own, for pods that come and go: compare only if the rules differ.
        if !engine.gateways.has_rules().await {
            engine.networks().look_after_gateways(false).await;
        }
    }
}

/// Waits for a change or, if `tries_again`, for the time to retry.
async fn next_change(
    monitor: &mut NftablesMonitor,
    tries_again: bool,
) -> Result<(), netlink::Error> {
    let limit = if tries_again { RETRY } else { Duration::MAX };
    timeout(limit, monitor.next()).await.map_or(Ok(()), |event| event.map(drop))
}
