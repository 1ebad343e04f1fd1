//! Netlink: links, addresses, routes, traffic control, cards (devlink), nftables and network namespaces.
//!
//! - Changes are [`Request`]s, sent alone ([`Rtnl::change`]) or several in one datagram ([`Rtnl::batch`]).
//! - [`Rtnl`] also reads the current state. Limits, redirections and filters of a link are behind [`TrafficControl`].
//! - All calls are synchronous: they return when the kernel has answered. Only monitors are asynchronous
//!   ([`LinkMonitor`], [`DevlinkMonitor`]).
//!
//! Messages are built with `rtnetlink` and `netlink-packet-route`, but sent by a transport of this crate. `rtnetlink`'s
//! own transport drops the extended acknowledgement, the kernel's sentence that says why it refused a request. It also
//! cannot send several requests in one datagram. [`Devlink`] and [`nftables`] use the same transport. Types of those
//! crates are not in this crate's API, because they change with each of their releases.
//!
//! A socket stays in the network namespace in which it was opened, so a program works in several namespaces without
//! entering them. There are two exceptions. [`Netns::run`] enters a namespace while the closure runs. The child of
//! [`Netns::command`] enters one before exec.
//!
//! The crate holds no locks. Each socket has one exchange at a time, which `&mut self` enforces; the kernel serialises
//! changes of links under RTNL.
#![deny(missing_docs)]

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
mod link_state;
mod mac;
mod monitor;
mod neighbour;
mod netns;
pub mod nftables;
mod probe;
mod request;
mod route;
mod route_kind;
mod rtnl;
mod rule;
mod socket;
mod statistics;
mod sysctl;
mod text;
mod traffic_control;
mod undecoded;
mod veth;
mod vf;
mod watch;
mod xdp;

pub use announce::announce;
pub use bridge::{Bridge, BridgePort};
pub use bridge_vlan::BridgeVlan;
pub use carrier::CarrierWatch;
pub use devlink::{
    Devlink, DevlinkDevice, DevlinkEvent, DevlinkMonitor, DevlinkPort, EswitchMode,
    ParseDevlinkError, PortVf, Rate, RateChange, RateSubject,
};
pub use error::{Error, NetnsError, gone_is_done};
pub use fdb::FdbEntry;
pub use ipnetwork::IpNetwork;
pub use link::Link;
pub use link_change::LinkChange;
pub use link_state::{LinkState, LinkStateReader, NetSysfs};
pub use mac::{MacAddress, ParseMacError};
pub use monitor::{LinkChanges, LinkEvent, LinkMonitor};
pub use neighbour::{Neighbour, NeighbourEntry};
pub use netns::{Netns, NetnsId};
pub use probe::{Probe, who_else_has, who_has_beyond};
pub use request::Request;
pub use route::Route;
pub use route_kind::{RouteKind, RouteScope, UnknownName};
pub use rtnl::Rtnl;
pub use rule::Rule;
pub use statistics::{LinkStatistics, Traffic};
pub use sysctl::{Family, raise_neighbour_threshold, set_sysctl, sysctl};
pub use traffic_control::{
    CardGuardState, Drops, Guard, GuardState, GuardStates, Hook, Limit, LimitInForce, Offload,
    Police, PoliceInForce, Redirect, Senders, TrafficControl,
};
pub use veth::VethEnd;
pub use vf::{VfLinkState, VfSetting, VfSettings};
pub use xdp::XdpMode;
