//! Watches the kernel for what happens to the links that attachments live on.

use std::time::Duration;

use bootstrap::Chain;
use netlink::{LinkEvent, LinkMonitor, Netns};
use tokio::time::sleep;

use crate::{
    attachments::Attachments,
    config::Fabric,
    eswitch::{Refused, veth::represented_vf},
};

/// How long to wait before watching again after the watch failed.
const PAUSE: Duration = Duration::from_secs(1);

/// Tells the engine whenever a representor, the bridge or an uplink changes, comes or goes. Ends
/// never.
pub(crate) async fn follow(engine: Attachments, fabric: Fabric) {
    loop {
        if let Err(error) = watch(&engine, &fabric).await {
            tracing::error!(reason = %Chain(&error), "trying again");
        }
        sleep(PAUSE).await;
    }
}

async fn watch(engine: &Attachments, fabric: &Fabric) -> Result<(), Refused> {
    let netns = Netns::current();
    let netns = netns.map_err(|error| Refused::new("find the own network namespace", error))?;
    let mut monitor = LinkMonitor::open(&netns).map_err(unwatchable)?;
    // Whatever changed while nobody watched.
    engine.kernel_changed();
    loop {
        if concerns(&monitor.next().await.map_err(unwatchable)?, fabric) {
            engine.kernel_changed();
        }
    }
}

fn unwatchable(error: netlink::Error) -> Refused {
    Refused::new("watch the links", error)
}

fn concerns(event: &LinkEvent, fabric: &Fabric) -> bool {
    let (name, alias) = match event {
        LinkEvent::Missed => return true,
        LinkEvent::Changed(link) => (&link.name, link.alias.as_deref()),
        LinkEvent::Gone { name, alias, .. } => (name, alias.as_deref()),
    };
    represented_vf(alias).is_some() || *name == fabric.bridge || fabric.uplinks.contains(name)
}
