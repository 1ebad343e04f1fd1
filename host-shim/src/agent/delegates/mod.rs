//! Interfaces that other CNI plugins make: a further network of a pod may be theirs.
//!
//! | part | does |
//! | --- | --- |
//! | [`additions`] | what a network's file has us set beside what its plugins make |
//! | [`default_routes`] | by which interface of a pod its default routes go |
//! | [`definitions`] | reads the files of the host that define networks |
//! | [`catalogue`] | finds what a name stands for in the files of the host |
//! | [`folders`] | reads the folders of these files, of which one may hang |
//! | [`lease`] | addresses of the DPU for their interfaces |
//! | [`wishes`] | says what is asked of the plugins, or that it can't be |
//! | [`versions`] | finds the version of the specification that a chain of plugins is spoken to in |
//! | [`plugin`] | calls a plugin, within bounds |
//! | [`plugins`] | calls those of a chain |
//! | [`interface`] | looks at what they have made, and sets on it what is to be set beside |
//! | [`record`] | keeps what is made, in files |
//! | [`settings`] | what the configuration says of them |
//! | [`outcome`] | reads what plugins answer |
//! | [`Delegates`](room) | has interfaces made, looked at and taken back |
//!
//! # Locks and who races
//!
//! Whoever comes in by the room's doors holds the key of the interface, as for one of ours. A program that an agent
//! had called may outlive it: it has the file open that it reads, and with it the file's lock, which each call
//! waits for within bounds. So nothing is taken back that is still being made.
//!
//! What the plugins make of a pod is theirs to lock. What is set beside that may meet what the pod has by other
//! interfaces: whoever sets it holds the pod's lock, as for one of ours.

mod additions;
mod catalogue;
mod default_routes;
mod definitions;
mod folders;
mod interface;
mod lease;
mod outcome;
mod plugin;
mod plugins;
mod record;
mod room;
mod settings;
mod versions;
mod wishes;

pub use settings::DelegateSettings;

pub(super) use folders::FOLDER_READERS;
pub(super) use record::Delegated;
pub(super) use room::{Again, Delegates};
pub(super) use settings::problems;
pub(super) use wishes::Delegation;

use catalogue::Chain;
use offload_proto::{Failure, Reason};

/// That plugins have not made, or not taken back, what they should.
fn failed(chain: &Chain, why: &str) -> Failure {
    let (network, file) = (&chain.network, chain.file.display());
    let message = format!("network {network}, which {file} defines: {why}");
    Failure::new(Reason::DelegateFailed, message)
}
