//! The parts of the kubelet's APIs that the agent uses. Not part of `offload.v1`.
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

/// Device plugin API v1beta1, generated from `kubelet/deviceplugin.proto`.
pub mod deviceplugin {
    tonic::include_proto!("v1beta1");
}

/// PodResources API v1, generated from `kubelet/podresources.proto`.
pub mod podresources {
    tonic::include_proto!("v1");
}
