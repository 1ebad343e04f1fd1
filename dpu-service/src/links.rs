//! Watches the kernel for changes of the links and ports that attachments use.
//!
//! Owns: one task for links, one for cards, and one for each fabric that reports changes. They wake the reconciler, and
//! attaches that wait for a representor.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use netlink::{DevlinkEvent, DevlinkMonitor, LinkMonitor, Netns};
use tokio::{sync::watch, time::sleep};

use crate::attachments::Engine;
use drivers::driver::Refused;

/// Time until a failed watch is opened again.
const DELAY: Duration = Duration::from_secs(1);

/// Reports changes of links that concern a driver to the engine. Never returns.
pub(crate) async fn follow(engine: Arc<Engine>) {
    loop {
        if let Err(error) = watch(&engine).await {
            tracing::error!(reason = %Chain(&error), "cannot watch the kernel's links; retrying");
        }
        sleep(DELAY).await;
    }
}

async fn watch(engine: &Engine) -> Result<(), Refused> {
    let mut monitor = LinkMonitor::open(&own_netns()?).map_err(unwatchable)?;
    // Reports once after opening: changes since the last watch were missed.
    engine.kernel_changed();
    loop {
        let event = monitor.next().await.map_err(unwatchable)?;
        if engine.programmer().concerns(&event) || engine.gateways.concerns(&event) {
            engine.kernel_changed();
        }
    }
}

/// Reports changes of cards and their ports to the engine. Never returns.
pub(crate) async fn follow_cards(engine: Arc<Engine>) {
    loop {
        if let Err(error) = watch_cards(&engine).await {
            tracing::error!(reason = %Chain(&error), "cannot watch the cards; retrying");
        }
        sleep(DELAY).await;
    }
}

async fn watch_cards(engine: &Engine) -> Result<(), Refused> {
    let mut monitor = DevlinkMonitor::open(&own_netns()?).map_err(unwatchable)?;
    // Reports once after opening: changes since the last watch were missed.
    engine.kernel_changed();
    loop {
        match monitor.next().await.map_err(unwatchable)? {
            // Ignored: cards send this for every setting, including the driver's own.
            DevlinkEvent::DeviceChanged(_) => {}
            DevlinkEvent::DeviceGone(_)
            | DevlinkEvent::PortChanged(_)
            | DevlinkEvent::PortGone { .. }
            | DevlinkEvent::Missed => engine.kernel_changed(),
        }
    }
}

/// Reports changes of the fabric that the kernel does not report. Returns when the fabric is closed.
pub(crate) async fn follow_fabric(engine: Arc<Engine>, mut changes: watch::Receiver<u64>) {
    while changes.changed().await.is_ok() {
        engine.fabric_changed();
    }
}

pub(crate) fn own_netns() -> Result<Netns, Refused> {
    Netns::current().map_err(|error| Refused::new("find the own network namespace", error))
}

fn unwatchable(error: netlink::Error) -> Refused {
    Refused::new("watch the kernel", error)
}
