//! A real kubelet in a complete Kubernetes cluster. `hack/test kubernetes` runs the tests one after the other.
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
