//! The gRPC API: implementations of the services, authorisation, limits and conversion of messages.

mod answer;
mod authorise;
mod call_limits;
mod calls;
mod convert;
mod count;
mod debug_info;
mod doctor;
mod finish;
#[cfg(test)]
mod fuzz;
mod operator;
mod session;
mod watch;
mod workload;

pub(crate) use authorise::Authorise;
pub(crate) use count::{Count, calls};
pub(crate) use finish::Finish;
pub(crate) use operator::OperatorApi;
pub(crate) use workload::WorkloadApi;
