//! Attachments: who holds which VF and which addresses, from the first request to the last trace.
//!
//! [`Engine`] is the one door. `attachments/` as a whole is the room: its files share the fields of
//! `Engine`, and nobody else can.
//!
//! | files | what they are |
//! | --- | --- |
//! | `engine` | the state and the locks that all share |
//! | `attach`, `detach`, `check`, `collect`, `forwarding`, `welcome`, `mend` | flows: functions over the rooms below, each read from the top down |
//! | `hosts`, `networks`, `operators` | doors for what these ask of the engine: [`Hosts`], [`Networks`] with the flows that change networks, [`Operators`] |
//! | `examine`, `listing`, `pooled`, `views`, `warnings` | what callers see; nothing is changed |
//! | `promises` | which VFs a host may begin to move before it has asked for one |
//! | `requirements` | what networks require that cards can't do |
//! | `conflicts` | asks other machines whether they use the pods' addresses |
//! | `refusals` | what is noted of ADDs that were refused, and of those that succeed |
//! | `gateways` | has the gateways do what networks and attachments want of them |
//! | `settings`, `overtaken`, `reconciler_state`, `phases` | what flows are told, what they keep in mind for one another, and how long they take |
//! | `registry`, `ports` | rooms with walls: the one holds all that is known in memory and alone changes it, the other has the representors programmed, by one flow at a time each |
//!
//! Beside them, `records` has the journal and `sessions` the hosts' sessions.
//!
//! Who may race, and what orders them:
//! - Two flows of one attachment, such as an old DEL and a new ADD: the lock of its key, held from
//!   beginning to end.
//! - Two attachments that want the same VF, MAC or address: the registry, held for each reservation,
//!   never across an await. What is reserved is taken, whatever becomes of its record.
//! - Two flows that program one representor, such as an attach and the reconciler: the lock of the
//!   VF. Whoever has it looks into the registry again for who holds the VF now.
//! - A flow of an old session and the hello of a new one: an attach looks at the session in force
//!   within the same hold of the registry that reserves. A hello opens its session before it looks for
//!   attachments that the host does not know, so that it sees all that earlier sessions have made.
//! - An inventory and the Detach that overtook it: what it says of a VF counts only from after the
//!   latest Detach of that VF, by the host's clock.
//! - An Attach and the Detach that overtook it: `overtaken` remembers the Detach, and is looked at and
//!   written under the key's lock.
//! - Two changes of networks, or one and the configuration file read again: a lock of their own.
//!
//! Locked in this order, and never the other way: networks; a key; a VF; one of a host's turn (`ports`),
//! the neighbours' turn and the gateways' work; the registry; what may be asked under it, `sessions` and
//! `overtaken`; last, the events' and the audit's. Those before the registry are held across an await. A flow that
//! holds a key waits for no other key, and one that holds a VF for no other VF: a flow that ends many
//! attachments takes each key for itself. Commits wait for the disk without the registry, so that concurrent flows share
//! a transaction.
//!
//! Where kernel and disk disagree after a crash, nobody has to know how far a flow had come: the
//! journal says what is held, and the reconciler makes the kernel agree.

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
mod hosts;
mod keys;
mod listing;
mod mend;
mod networks;
mod operators;
mod outdated;
mod overtaken;
mod phases;
mod pooled;
mod ports;
mod promises;
mod reconciler_state;
mod refusals;
mod registry;
mod requirements;
mod settings;
mod subnets;
mod views;
mod warnings;
mod welcome;

use std::fmt;

use offload_proto::{Failure, Reason};

pub(crate) use conflicts::watch_for_conflicts;
pub use detach::Detach;
pub use engine::Engine;
pub use examine::{DpuHalf, VfHalf};
pub(crate) use gateways::keep_pods_known;
pub use hosts::Hosts;
pub use mend::Depth;
pub use networks::{Networks, ShownNetworks};
pub use operators::Operators;
pub use outdated::Outdated;
pub(crate) use phases::EnginePhases;
pub use pooled::{HostPool, PooledVf};
pub use promises::{OpenPool, PromisedVf};
pub use settings::{Configuration, Settings};
pub use subnets::SubnetChange;
pub use views::{
    Applied, AttachmentDetail, AttachmentFilter, AttachmentTraffic, NetworkView, Origin, PoolView,
    SubnetUsage, Traffic, VfView,
};

use crate::{host::SessionId, model::Record};

fn unknown(what: &dyn fmt::Display) -> Failure {
    Failure::new(Reason::AttachmentUnknown, format!("there is no attachment {what}"))
}

fn stale(session: SessionId) -> Failure {
    Failure::new(Reason::StaleSession, format!("session {session} is not the host's session"))
}

fn releasing(record: &Record) -> Failure {
    Failure::new(
        Reason::Releasing,
        format!("{} is attachment {}, which is being given back", record.key, record.id),
    )
}
