//! Real programs, kernel and mutual TLS, in private namespaces. Run by `hack/test netns`.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "helpers of tests too: a failure is a panic at its place, and figures are printed"
)]

mod admission;
mod allow;
mod breakages;
mod bridges;
mod callers;
mod capabilities;
mod chained;
mod clean;
mod conditions;
mod configuration;
mod conflicts;
mod contract;
mod crowd;
mod cuts;
mod delegates;
mod device_plugin;
mod disks;
mod doctor;
mod documents;
mod embedded;
mod events;
mod faults;
mod findings;
mod first_packet;
mod floods;
mod gateway;
mod go_cni;
mod greed;
mod host_port;
mod hosts;
mod identity;
mod installer;
mod ip_families;
mod ipv6_only;
mod kills;
mod kubelet;
mod labels;
mod limits;
mod load;
mod manifests;
mod metrics;
mod monitoring;
mod neighbours;
mod netavark;
mod operators;
mod outages;
mod packages;
mod pfs;
mod pods;
mod port_mappings;
mod readers;
mod renewals;
mod reports;
mod restarts;
mod rights;
mod routing;
mod runtimes;
mod scripts;
mod secrets;
mod several;
mod soak;
mod speculative_moves;
mod spoofing;
mod tenants;
mod traces;
mod traffic;
mod two_dpus;
mod upgrade;
mod versions;
mod wire;
mod workloads;
