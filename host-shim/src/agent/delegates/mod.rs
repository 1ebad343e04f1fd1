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
//! Callers of the module hold the interface's key, as for an own one. A plugin that an agent called may outlive it: the
//! plugin has its input file open, and with it the file's lock. Each later call waits for that lock within bounds, so
//! that no interface is deleted while it is being created.
//!
//! Plugins lock their own changes of a pod. Additional routes and rules may conflict with those of the pod's other
//! interfaces: setting them needs the pod's lock, as for an own interface.

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
