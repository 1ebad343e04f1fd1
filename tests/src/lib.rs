//! Tests across crates: real programs in network namespaces, and invariants checked with external tools.
//!
//! Parts: a [`Host`] executes all calls and runs the agent; a [`Card`]; a [`Dpu`] runs the service. A [`Lab`] has one
//! of each, a [`Fleet`] several. The DPU of an [`ArmLab`] is a machine of its own.
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    reason = "all of this is test code: a failure is a panic at its place"
)]

mod arm;
mod card;
pub mod card_check;
pub mod cluster;
mod cni;
mod command;
mod crowd;
mod dpu;
mod fabric;
mod fault_target;
mod faults;
mod fleet;
mod host;
mod invariants;
mod kubelet;
mod lab;
mod machines;
mod netns;
#[path = "../../crates/ovsdb/tests/support/open_vswitch.rs"]
mod open_vswitch;
pub mod openmetrics;
mod operator;
mod outside;
mod pki;
mod process;
mod proxy;
mod rng;
pub mod runtime;
mod sample;
pub mod scenarios;
mod settings;
mod slow;
pub mod soak;
mod violation;
mod workloads;

pub use arm::{ArmDpu, ArmLab};
pub use card::{Card, HostEnd};
pub use cni::{Answer, Call, TIME_LIMIT};
pub use command::{run, run_with};
pub use crowd::{BURST, Crowd, CrowdBehaviour, CrowdSize, Tally};
pub use dpu::Dpu;
pub use faults::FaultAction;
pub use fleet::{Agent, DpuPlan, Fleet, UPLINK};
pub use host::Host;
pub use invariants::{Enforcement, Scene};
pub use kubelet::Kubelet;
pub use lab::Lab;
pub use netns::Netns;
pub use open_vswitch::OpenVswitch;
pub use operator::{Operator, has_answered};
pub use outside::{DPU_OUTSIDE, OUTSIDE, outside_of};
pub use pki::Pki;
pub use process::{Program, program};
pub use proxy::{Fault, Proxy};
pub use settings::{CardKind, CardSettings, FabricKind, METRICS, PROXY, Settings, Timeouts};
pub use slow::SlowService;
pub use test_clock::{Stopwatch, eventually, sleep_until_moment, wait_for, wait_until};
pub use workloads::{Attaching, Workloads, netns_of};
