//! Real programs, the real kernel, real mutual TLS, in private namespaces. `hack/test netns` runs
//! them.

mod configuration;
mod contract;
mod documents;
mod faults;
mod identity;
mod load;
mod operators;
mod outages;
mod pods;
mod scripts;
