//! The drivers of eswitches and fabrics, and the programmer, which uses one of each for the ports of VFs.
//!
//! An eswitch driver finds the representors of VFs. A fabric driver joins them to a bridge, with VLAN, guard, rules
//! and limits. [`settings`] has the configuration of both, and is the only place that creates drivers.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod counters;
pub mod driver;
pub mod eswitch;
pub mod fabric;
pub mod probe;
pub mod programmer;
pub mod settings;
