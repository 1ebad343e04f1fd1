//! Attachments: which pod interface holds which VF and addresses.
//!
//! [`Engine`] is the only entry point. Other folders see three of its fields: `gateways`, `phases` and `refusals`.
//!
//! | files | contents |
//! | --- | --- |
//! | `engine` | shared state and locks |
//! | `attach`, `detach`, `check`, `collect`, `forwarding`, `hello`, `reconcile` | flows: functions over the modules below |
//! | `hosts`, `networks`, `operators` | the engine's methods by caller: [`Hosts`], [`Networks`] with the flows that change networks, [`Operators`] |
//! | `examine`, `listing`, `pooled`, `views`, `warnings` | views for callers; they change nothing |
//! | `offers` | VFs offered to a host, so that it can move one before the DPU has answered |
//! | `requirements` | networks' requirements that a card does not meet |
//! | `conflicts` | probes for other machines that use the pods' addresses |
//! | `refusals` | statistics of refused and successful ADDs |
//! | `gateways` | what networks and attachments require of the gateways |
//! | `settings`, `tombstones`, `reconciler_state`, `phases` | settings, tombstones, state of the reconciler, timings |
//! | `registry` | all state in memory, under one lock |
//! | `ports` | programming of representors, one flow at a time each |
//!
//! `records` owns the journal and `sessions` the hosts' sessions.
//!
//! Who runs concurrently, and what orders them:
//! - Two flows of one attachment, such as an old DEL and a new ADD: the lock of its key, from beginning to end.
//! - Two attachments that want the same VF, MAC or address: the registry's lock, held for each reservation and never
//!   across an await. A reservation holds whether its record is durable or not.
//! - Two flows that program one representor, such as an attach and the reconciler: the lock of the VF. Its holder asks
//!   the registry again which attachment has the VF.
//! - A flow of an old session and the hello of a new one: an attach checks the session under the same lock of the
//!   registry that reserves. A hello opens its session before it searches for attachments that the host does not know.
//!   So it sees everything that earlier sessions have made.
//! - An inventory and a later Detach: the inventory counts for a VF only if it is newer than the latest Detach of that
//!   VF, by the host's clock.
//! - An Attach and a later Detach that was served first: `tombstones` keeps a tombstone, read and written under the
//!   key's lock.
//! - Two changes of networks, or one and a reload of the configuration file: a lock of their own.
//!
//! Lock order: networks; a key; a VF; a host's turn (`ports`), the neighbours' turn and the gateways' work; the
//! registry; `sessions` and `tombstones`; events and audit. Locks before the registry are held across an await. A flow
//! that holds a key waits for no other key, and one that holds a VF for no other VF: a flow that ends many attachments
//! locks each key by itself. Commits wait for the disk without the registry's lock, so that concurrent flows share a
//! transaction.
//!
//! After a crash no flow is resumed: the journal says what is held, and the reconciler makes the kernel agree.

mod attach;
mod check;
mod collect;
mod conflicts;
mod detach;
mod engine;
mod examine;
mod former_gateways;
mod forwarding;
#[cfg(test)]
mod fuzz;
mod gateways;
mod hello;
mod hosts;
mod listing;
mod networks;
mod offers;
mod operators;
mod outdated;
mod phases;
mod pooled;
mod ports;
mod reconcile;
mod reconciler_state;
mod refusals;
mod registry;
mod requirements;
mod settings;
mod subnets;
mod tombstones;
mod views;
mod warnings;

use std::fmt;

use offload_proto::{Failure, Reason};

pub(crate) use conflicts::watch_for_conflicts;
pub use detach::Detach;
pub use engine::Engine;
pub use examine::{DpuHalf, VfHalf};
pub(crate) use gateways::keep_pods_known;
pub use hosts::Hosts;
pub use networks::{Networks, ShownNetworks};
pub use operators::Operators;
pub use outdated::Outdated;
pub(crate) use phases::EnginePhases;
pub use pooled::{HostPool, PooledVf};
pub use reconcile::Depth;
pub use settings::{Configuration, Settings};
pub use subnets::SubnetChange;
pub use views::{
    Applied, AttachmentDetail, AttachmentFilter, AttachmentTraffic, NetworkView, OfferedVf,
    OpenPool, Origin, PoolView, SubnetUsage, Traffic, VfView,
};

use crate::host::SessionId;
use model::Record;

/// Refuses a request for the first of its problems, if it has any.
fn refuse_first(problems: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    match problems.into_iter().next() {
        Some(problem) => Err(Failure::new(Reason::InvalidRequest, problem)),
        None => Ok(()),
    }
}

fn unknown(what: &dyn fmt::Display) -> Failure {
    Failure::new(Reason::AttachmentUnknown, format!("there is no attachment {what}"))
}

fn stale(session: SessionId) -> Failure {
    Failure::new(Reason::StaleSession, format!("session {session} is not the host's session"))
}

fn releasing(record: &Record) -> Failure {
    Failure::new(
        Reason::Releasing,
        format!("{} is attachment {}, which is being released", record.key, record.id),
    )
}
