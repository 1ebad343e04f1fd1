//! Watches the kernel for what happens to the links and ports that attachments live on.

use std::{sync::Arc, time::Duration};

use bootstrap::Chain;
use netlink::{DevlinkEvent, DevlinkMonitor, LinkMonitor, Netns};
use tokio::{sync::watch, time::sleep};

use crate::{attachments::Engine, driver::Refused};

/// How long to wait before watching again after the watch failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Tells the engine whenever a link that concerns a driver changes, comes or goes. Ends never.
pub(crate) async fn follow(engine: Arc<Engine>) {
    loop {
        if let Err(error) = watch(&engine).await {
            tracing::error!(reason = %Chain(&error), "trying again");
        }
        sleep(PAUSE).await;
    }
}

async fn watch(engine: &Engine) -> Result<(), Refused> {
    let mut monitor = LinkMonitor::open(&own_netns()?).map_err(unwatchable)?;
    // Whatever changed while nobody watched.
    engine.kernel_changed();
    loop {
        let event = monitor.next().await.map_err(unwatchable)?;
        if engine.programmer().concerns(&event) || engine.gateways().concerns(&event) {
            engine.kernel_changed();
        }
    }
}

/// Tells the engine whenever a card or one of its ports changes, comes or goes. Ends never.
pub(crate) async fn follow_cards(engine: Arc<Engine>) {
    loop {
        if let Err(error) = watch_cards(&engine).await {
            tracing::error!(reason = %Chain(&error), "trying again");
        }
        sleep(PAUSE).await;
    }
}

async fn watch_cards(engine: &Engine) -> Result<(), Refused> {
    let mut monitor = DevlinkMonitor::open(&own_netns()?).map_err(unwatchable)?;
    engine.kernel_changed();
    loop {
        match monitor.next().await.map_err(unwatchable)? {
            // Cards tell of their own changes with each setting of theirs, be it ever so small.
            DevlinkEvent::DeviceChanged(_) => {}
            DevlinkEvent::DeviceGone(_)
            | DevlinkEvent::PortChanged(_)
            | DevlinkEvent::PortGone { .. }
            | DevlinkEvent::Missed => engine.kernel_changed(),
        }
    }
}

/// Tells the engine whenever something happens to the fabric that the kernel tells nothing of. Ends with the fabric.
pub(crate) async fn follow_fabric(engine: Arc<Engine>, mut changes: watch::Receiver<u64>) {
    while changes.changed().await.is_ok() {
        engine.fabric_changed();
    }
}

fn own_netns() -> Result<Netns, Refused> {
    Netns::current().map_err(|error| Refused::new("find the own network namespace", error))
}

fn unwatchable(error: netlink::Error) -> Refused {
    Refused::new("watch the kernel", error)
}
