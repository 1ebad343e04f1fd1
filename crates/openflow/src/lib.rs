//! Flows of a bridge of Open vSwitch: set, read and counted, by OpenFlow 1.3 over the bridge's management socket.
//!
//! It speaks of what a port may send and be sent, and no more: [`Match`] and [`Action`] are what that takes. A flow that
//! has something else in it, as others may set, reads as such and is like none that is wanted. What is changed together
//! is changed at once, or not at all: by a bundle, which Open vSwitch takes in 1.3 as an extension (ONF EXT-230).
//! Meters it does not take in one, so that each is changed by itself.
//!
//! What keeps frames from passing ports is said in OpenFlow 1.0, as far as the bridge speaks it: see [`PortSwitch`].
#![forbid(unsafe_code)]
#![deny(missing_docs)]

mod error;
mod flow;
mod message;
mod oxm;
mod port;
mod switch;

pub use error::Error;
pub use flow::{
    Action, Change, Connection, Cookies, CountedFlow, Flow, Match, Meter, Ports, VlanMatch,
};
pub use port::SwitchPort;
pub use switch::{LOCAL, PortSwitch, Switch};
