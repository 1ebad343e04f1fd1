//! What callers see of attachments, VFs, pools and networks.

use std::sync::Arc;

use ipnetwork::IpNetwork;
use vf_alloc::{Device, FunctionId};

use crate::{
    counters::PortTraffic,
    events::Event,
    gateway::GatewayView,
    model::{AttachmentId, AttachmentView, HostName, Network},
};

/// Which attachments to list. `None`: all.
#[derive(Clone, Debug, Default)]
pub struct AttachmentFilter {
    /// Only those of this network.
    pub network: Option<String>,
    /// Only those of this host.
    pub host: Option<HostName>,
}

/// One attachment, with what the kernel has of it.
#[derive(Clone, Debug)]
pub struct AttachmentDetail {
    /// The attachment.
    pub view: AttachmentView,
    /// Its representor's name. Empty: the card has made none.
    pub representor: String,
    /// Each programming step, in order.
    pub steps: Vec<crate::programmer::StepStatus>,
    /// Its latest events, oldest first.
    pub events: Vec<Event>,
    /// Its port's. `None`: it has none, or that is not known.
    pub traffic: Option<PortTraffic>,
    /// What is not known of its port, and why, one sentence each.
    pub unknown: Vec<String>,
}

/// Attachments, and what their ports have carried and dropped.
#[derive(Clone, Debug)]
pub struct Traffic {
    /// Oldest first.
    pub attachments: Vec<AttachmentTraffic>,
    /// Why that of no port is known. `None`: it is.
    pub unknown: Option<String>,
}

/// An attachment, and what its port has carried and dropped.
#[derive(Clone, Debug)]
pub struct AttachmentTraffic {
    /// The attachment.
    pub view: AttachmentView,
    /// Its port's. `None`: it has none, or that is not known.
    pub traffic: Option<PortTraffic>,
}

/// A VF as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfView {
    /// The VF.
    pub vf: FunctionId,
    /// What its host knows it by. Empty: the host has not told.
    pub device: Device,
    /// Its PCI vendor and device. `None`: the host has not told.
    pub device_ids: Option<(u16, u16)>,
    /// Its host. `None`: its PF belongs to no host of the configuration.
    pub host: Option<HostName>,
    /// The pools it is in.
    pub pools: Vec<String>,
    /// Where it is in its life.
    pub state: vf_alloc::VfState,
    /// Its representor's name. Empty: the card has made none.
    pub representor: String,
    /// Whom it serves.
    pub attachment: Option<AttachmentId>,
}

/// Where a network comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The configuration file.
    Configuration,
    /// The API.
    Api,
}

/// A network as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkView {
    /// The network.
    pub network: Arc<Network>,
    /// Where it comes from.
    pub origin: Origin,
    /// How many attachments use it.
    pub attachments: usize,
    /// Its subnets, in order.
    pub subnets: Vec<SubnetUsage>,
    /// This DPU as its gateway. `None`: it is not, or not yet.
    pub gateway: Option<GatewayView>,
}

/// How a subnet's addresses are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetUsage {
    /// The subnet.
    pub cidr: IpNetwork,
    /// Addresses that may be handed out. Saturates.
    pub capacity: u64,
    /// Held by attachments.
    pub held: u64,
    /// Resting.
    pub cooling: u64,
}

/// A pool of VFs as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    /// Its name, what it draws from and in which order.
    pub spec: vf_alloc::PoolSpec,
    /// How its VFs are used.
    pub usage: vf_alloc::Usage,
}

/// What applying a network did, or with a dry run would do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// There was none of its name.
    Created,
    /// It differs from the one before.
    Changed,
    /// It is as it was.
    Unchanged,
}
