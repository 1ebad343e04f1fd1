//! A real kubelet with all of Kubernetes around it. `hack/test kubernetes` runs them, one after the other, in
//! one cluster.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests too: a failure is a panic at its place"
)]

mod crowds;
mod device_plugin;
mod installation;
mod outages;
mod probes;
mod restarts;
mod services;
mod workloads;
