//! The workload network API of Metropolis, generated from `metropolis/workloads.proto`. Runtimes attach workloads
//! without CNI by it. Not part of `offload.v1`.
#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    missing_debug_implementations,
    clippy::all,
    clippy::pedantic,
    clippy::restriction,
    reason = "generated code"
)]

tonic::include_proto!("metropolis.node.core.network.workloads");
