//! All that is said to the kernel about links, addresses, routes, queues, cards and namespaces.
//!
//! A change is a [`Request`], carried out alone or with others in one send ([`Rtnl::change`],
//! [`Rtnl::batch`]). What is there is asked of [`Rtnl`], too; what a link limits, redirects and
//! filters has an interface of its own ([`TrafficControl`]). All of them are synchronous: each is a
//! function call that returns when the kernel has answered. Only watching is asynchronous
//! ([`LinkMonitor`], [`DevlinkMonitor`]).
//!
//! Messages are built with `rtnetlink` and `netlink-packet-route`, but carried by a transport of
//! our own, because `rtnetlink`'s drops the kernel's extended acknowledgement: the sentence that
//! says *why* a request was refused, without which an operator is left with "Invalid argument".
//! It is also what lets several requests travel in one send. None of these crates' types is in this
//! crate's API, for they break with every release. The same transport carries what is said to cards
//! about themselves ([`Devlink`]), and to the packet filter ([`nftables`]).
//!
//! A socket stays in the network namespace in which it was opened, so a program works in several
//! namespaces without ever entering one, with two exceptions: [`Netns::run`], which enters it for as
//! long as the work takes, and [`Netns::command`], whose child process enters it.
#![deny(missing_docs)]
#![deny(unsafe_code)]

mod address;
mod announce;
mod bridge;
mod bridge_vlan;
mod carrier;
mod datagram;
mod devlink;
mod error;
mod fdb;
mod generic;
mod link;
mod link_change;
mod mac;
mod monitor;
mod neighbour;
mod netns;
pub mod nftables;
mod portrait;
mod probe;
mod request;
mod route;
mod rtnl;
mod rule;
mod socket;
mod statistics;
mod sysctl;
mod told;
mod traffic_control;
mod veth;
mod vf;
mod watch;
mod xdp;

pub use address::AddAddress;
pub use announce::announce;
pub use bridge::{Bridge, BridgePort};
pub use bridge_vlan::BridgeVlan;
pub use carrier::CarrierWatch;
pub use devlink::{
    Devlink, DevlinkDevice, DevlinkEvent, DevlinkMonitor, DevlinkPort, EswitchMode, Flavour,
    ParseDevlinkError, PortFunction, PortNetdev, PortState, Rate, RateChange, RateSubject,
};
pub use error::{Error, NetnsError};
pub use fdb::FdbEntry;
pub use ipnetwork::IpNetwork;
pub use link::Link;
pub use link_change::LinkChange;
pub use mac::{MacAddress, ParseMacError};
pub use monitor::{LinkChanges, LinkEvent, LinkMonitor};
pub use neighbour::{Neighbour, NeighbourEntry};
pub use netns::{Netns, NetnsId};
pub use portrait::{NetSysfs, Painter, Portrait};
pub use probe::{Probe, who_else_has, who_has_beyond};
pub use request::Request;
pub use route::{Route, RouteKind, Scope};
pub use rtnl::Rtnl;
pub use rule::Rule;
pub use statistics::{LinkStatistics, Traffic};
pub use sysctl::{Family, raise_neighbour_threshold, set_sysctl, sysctl};
pub use traffic_control::{
    CardGuarding, Drops, Guard, Guarded, Guarding, Hook, Limit, LimitInForce, Offload, Police,
    PoliceInForce, Redirect, Senders, TrafficControl,
};
pub use veth::VethEnd;
pub use vf::{VfLinkState, VfSetting, VfSettings};
pub use xdp::XdpMode;
