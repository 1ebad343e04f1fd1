//! An OpenFlow 1.3 client for bridges of Open vSwitch: sets, reads and counts flows over the bridge's management
//! socket.
//!
//! [`Match`] and [`Action`] cover what the guard of a port needs. Other conditions and actions are read as `Other`, so
//! such a flow never equals a wanted one. Changes are made in bundles, all or nothing, which Open vSwitch supports in
//! OpenFlow 1.3 as an extension (ONF EXT-230). Bundles cannot contain meters, so meters change one by one.
//!
//! [`PortSwitch`] uses OpenFlow 1.0, if the bridge allows it, for settings that keep frames from passing a port.
//!
//! A [`Switch`] is one blocking connection. `&mut self` serialises calls; there are no locks and no threads.
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
