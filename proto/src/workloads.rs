//! The workload network service of Metropolis, by which runtimes attach workloads without CNI: generated from
//! `metropolis/workloads.proto`. No part of `offload.v1`.
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
