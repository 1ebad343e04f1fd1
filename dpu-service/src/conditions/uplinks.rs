//! Whether the uplinks have a carrier.

use std::{collections::BTreeSet, sync::Arc};

use bootstrap::Chain;
use netlink::{Error, Link, Rtnl};
use offload_proto::ConditionReason;
use tokio::task::spawn_blocking;

use super::fault::Fault;
use crate::attachments::Engine;

/// What is wrong with uplinks of all bridges. Looks at the links that have these names now.
pub(super) async fn faults(engine: &Arc<Engine>) -> Vec<Fault> {
    let names = engine.operators().uplinks();
    if names.is_empty() {
        return Vec::new();
    }
    let looked = spawn_blocking(move || look(&names)).await;
    let looked = looked.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()));
    looked.unwrap_or_else(|error| {
        let message = format!("the kernel does not tell how the uplinks are: {}", Chain(&error));
        vec![Fault::of_dpu(ConditionReason::UplinksUnreadable, message)]
    })
}

fn look(names: &BTreeSet<String>) -> Result<Vec<Fault>, Error> {
    let mut rtnl = Rtnl::open()?;
    let mut faults = Vec::new();
    for name in names {
        let link = rtnl.link_by_name(name)?;
        faults.extend(problem(name, link.as_ref()).map(|(reason, message)| Fault {
            reason,
            object: format!("uplink/{name}"),
            message,
        }));
    }
    Ok(faults)
}

fn problem(name: &str, link: Option<&Link>) -> Option<(ConditionReason, String)> {
    match link {
        None => Some((
            ConditionReason::UplinkMissing,
            format!(
                "there is no link {name}, so that pods reach nothing by it: plug it in, or change `uplinks`"
            ),
        )),
        Some(link) if !link.is_up => Some((
            ConditionReason::UplinkDown,
            format!("uplink {name} is switched off: run `ip link set {name} up` on the DPU"),
        )),
        Some(link) if !link.is_running => Some((
            ConditionReason::UplinkDown,
            format!("uplink {name} has no carrier: look at its cable and at the switch's port"),
        )),
        Some(_) => None,
    }
}
