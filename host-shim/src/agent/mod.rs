//! The agent: keeps the session with the DPU, moves VFs, and remembers what it moved.
//!
//! Five rooms, each of which knows those below it and no other; of `delegates` and `vfs` neither knows the other, but for
//! the words of records:
//!
//! | room | does | doors |
//! | --- | --- | --- |
//! | `upkeep` | keeps records and kernel in agreement, unasked; what the DPU and operators ask for | `Upkeep` |
//! | `verbs` | what the plugin asks for: ADD, DEL, CHECK, GC, STATUS | a function each, over `Doors` |
//! | `dpu` | speaks with the DPU: the session, calls, what it is still to be told | `Dpu`, one for each DPU |
//! | `vfs` | who has which VF: records, moves, cleanliness; all locks and their order | `Vfs` |
//! | `delegates` | which interfaces other plugins have made, and has them made and taken back | `Delegates` |
//!
//! Above them `rooms` builds and runs the rooms, for `run`, which is the program, once `standby` has the records, and for
//! `embedded`, which is the agent in another program. `server` takes the plugin's calls on its `socket` and has them
//! answered at the `desk`, as `workloads` has those of callers without CNI, who come by the same socket with gRPC (whose
//! odd names for it `authority` mends); `scrape` answers who asks for metrics, and `device_plugin` has the kubelet hand
//! out VFs, if it is to: it hears what the DPU says of pools, and completes what the plugin asks for. `report` tells a
//! person on the host how all is. Why the agent can't go on is in `error`.
//!
//! Below them lie the words that all use: `config`, with `host_port` and `out_of_range`; `caller`, who waits for the
//! answer to a call (the plugin, or a task of the agent's such as `upkeep` for a host port); `pending`, `clock`, `defect`, `failures`,
//! `milestones`, `repairs`, and `signals`, by which a room wakes one above it without knowing it.

mod authority;
mod caller;
mod clock;
mod config;
mod defect;
mod delegates;
mod desk;
mod device_plugin;
mod dpu;
pub mod embedded;
mod error;
mod failures;
#[cfg(test)]
mod fuzz;
mod host_port;
#[cfg(test)]
mod logged;
mod metrics_settings;
mod milestones;
mod out_of_range;
mod pending;
mod repairs;
mod report;
mod rooms;
mod run;
mod scrape;
mod server;
mod signals;
mod socket;
mod standby;
mod upkeep;
mod verbs;
mod vfs;
mod workloads;

pub use config::Config;
pub use delegates::DelegateSettings;
pub use device_plugin::DevicePluginSettings;
pub use error::AgentError;
pub use run::{Arguments, OtherTask, run};
pub use socket::ListenError;
pub use vfs::{OriginalsError, RecordsError};
pub use workloads::WorkloadSettings;
