//! The DPU's program: API, attach and detach, journal, eswitch, fabric, reconciler.
#![forbid(unsafe_code)]

mod api;
pub mod arguments;
pub mod attachments;
pub mod audit;
pub mod author;
mod certificates;
mod condition_sources;
pub mod conditions;
pub mod config;
mod error;
pub mod events;
pub mod gateway;
pub mod host;
mod kernel_state;
pub mod kill_points;
mod links;
pub mod reconcile;
pub mod records;
mod refused_peers;
mod reload;
mod rules;
mod scrape;
mod server;
pub mod service;
pub mod sessions;
mod shared;
mod tasks;
mod transport;
mod without_journal;
