//! The DPU's program: API, attach and detach, journal, eswitch, fabric, reconciler.
#![forbid(unsafe_code)]

mod api;
pub mod arguments;
pub mod attachments;
pub mod audit;
pub mod author;
mod certificates;
pub mod conditions;
pub mod config;
pub mod counters;
pub mod driver;
mod drivers;
mod error;
pub mod eswitch;
pub mod events;
pub mod fabric;
pub mod gateway;
pub mod host;
mod kernel_state;
mod links;
pub mod milestones;
pub mod model;
pub mod probe;
pub mod programmer;
pub mod reconcile;
pub mod records;
mod refused_peers;
mod reload;
mod rules;
mod scrape;
mod server;
pub mod service;
pub mod sessions;
mod transport;
mod twice;
mod without_journal;
