//! Watches nftables: a flush removes the gateways' table and the guards' rules.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use netlink::{Netns, nftables::NftablesMonitor};
use tokio::time::{sleep, timeout};

use crate::{attachments::Engine, driver::Refused};

/// How long to wait before watching again after the watch failed.
const PAUSE: Duration = Duration::from_secs(5);

/// Changes are looked into when there were none for so long, or after [`GATHER`]: others may make them
/// by the dozen.
const CALM: Duration = Duration::from_millis(50);
const GATHER: Duration = Duration::from_millis(500);

/// While the rules can't be set, that is tried so often: of a table that a process owned the kernel does
/// not tell when it goes with its process.
const RETRY: Duration = Duration::from_secs(2);

/// Has the gateways looked at whenever nftables has changed. Ends never.
pub(crate) async fn follow(engine: Arc<Engine>) {
    let mut told = None;
    loop {
        if let Err(error) = watch(&engine).await {
            let reason = Chain(&error).to_string();
            if engine.gateways().are_any() && told.as_ref() != Some(&reason) {
                tracing::warn!(reason, "nftables is looked at every minute only");
                told = Some(reason);
            }
        }
        sleep(PAUSE).await;
    }
}

async fn watch(engine: &Arc<Engine>) -> Result<(), Refused> {
    let netns = Netns::current();
    let netns = netns.map_err(|error| Refused::new("find the own network namespace", error))?;
    let unwatchable = |error| Refused::new("watch nftables", error);
    let mut monitor = NftablesMonitor::open(&netns).map_err(unwatchable)?;
    // Whatever was changed before is told by nobody.
    engine.networks().look_after_gateways(false).await;
    loop {
        next_change(&mut monitor, engine.gateways().are_closed()).await.map_err(unwatchable)?;
        let calm =
            async { while timeout(CALM, monitor.next()).await.is_ok_and(|told| told.is_ok()) {} };
        let _ = timeout(GATHER, calm).await;
        engine.rules_changed().await;
        // Most changes are this service's own, for pods that come and go.
        if !engine.gateways().has_rules().await {
            engine.networks().look_after_gateways(false).await;
        }
    }
}

/// Waits for a change, or for the time to try again.
async fn next_change(
    monitor: &mut NftablesMonitor,
    tries_again: bool,
) -> Result<(), netlink::Error> {
    let patience = if tries_again { RETRY } else { Duration::MAX };
    timeout(patience, monitor.next()).await.map_or(Ok(()), |told| told.map(drop))
}
