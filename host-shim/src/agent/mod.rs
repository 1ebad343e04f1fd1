//! The agent: keeps the session with the DPU, moves VFs and records what it moved.
//!
//! Five modules. Each uses those below it; `delegates` and `vfs` share only the record types:
//!
//! | module | purpose | interface |
//! | --- | --- | --- |
//! | `upkeep` | keeps records and kernel in agreement; serves the DPU's and operators' requests | `Upkeep` |
//! | `verbs` | the plugin's calls: ADD, DEL, CHECK, GC, STATUS | one function each, with `Doors` |
//! | `dpu` | the session with the DPU, calls and reports to it | `Dpu`, one for each DPU |
//! | `vfs` | which attachment has which VF: records, moves, verification; all locks and their order | `Vfs` |
//! | `delegates` | interfaces that other CNI plugins create | `Delegates` |
//!
//! Above the modules, `rooms` builds and runs them: for the program `run`, after `standby` has opened the records, and
//! for `embedded`, the agent in another program. `server` accepts calls on the `socket`, and the `dispatcher` has them
//! answered. `workloads` serves callers without CNI by gRPC on the same socket; `authority` corrects a header of old
//! gRPC clients. `scrape` answers requests for metrics. `device_plugin` has the kubelet hand out VFs, and `report`
//! shows a person the host's state. `error` has the reasons why the agent cannot start or go on.
//!
//! Below the modules are shared types: `config` with `host_port` and `out_of_range`; `caller`, which waits for a call's
//! answer; `pending`, `clock`, `defect`, `failures`, `kill_points` and `repairs`. A module wakes one above it by
//! `signals`.

mod authority;
mod caller;
mod clock;
mod config;
mod defect;
mod delegates;
mod device_plugin;
mod dispatcher;
mod dpu;
pub mod embedded;
mod error;
mod failures;
#[cfg(test)]
mod fuzz;
mod host_port;
mod kill_points;
#[cfg(test)]
mod logged;
mod metrics_settings;
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
