//! Views of attachments, VFs, pools and networks for callers.

use std::sync::Arc;

use ipnetwork::IpNetwork;
use vf_alloc::{Device, FunctionId, PfId, Policy, VfOffer};

use crate::{events::Event, gateway::GatewayView};
use drivers::counters::PortTraffic;
use model::{AttachmentId, AttachmentView, HostName, Network};

/// A filter for attachments. `None` matches all.
#[derive(Clone, Debug, Default)]
pub struct AttachmentFilter {
    pub network: Option<String>,
    pub host: Option<HostName>,
}

/// An attachment with the state of its port in the kernel.
#[derive(Clone, Debug)]
pub struct AttachmentDetail {
    pub view: AttachmentView,
    /// Name of its representor. Empty: the card has created none.
    pub representor: String,
    /// The programming steps in order, with their status.
    pub steps: Vec<drivers::programmer::StepStatus>,
    pub events: Vec<Event>,
    /// Traffic of its port. `None`: it has no port, or the counters cannot be read.
    pub traffic: Option<PortTraffic>,
    /// What could not be read of its port, one sentence each.
    pub unknown: Vec<String>,
}

/// Attachments with the traffic of their ports.
#[derive(Clone, Debug)]
pub struct Traffic {
    pub attachments: Vec<AttachmentTraffic>,
    /// Why no traffic could be read. `None`: it could.
    pub unknown: Option<String>,
}

/// An attachment with the traffic of its port.
#[derive(Clone, Debug)]
pub struct AttachmentTraffic {
    pub view: AttachmentView,
    /// `None`: it has no port, or the counters cannot be read.
    pub traffic: Option<PortTraffic>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfView {
    pub vf: FunctionId,
    /// Its device on the host. Empty: not reported.
    pub device: Device,
    /// PCI vendor and device id. `None`: not reported.
    pub device_ids: Option<(u16, u16)>,
    /// Its host. `None`: its PF is configured for no host.
    pub host: Option<HostName>,
    pub pools: Vec<String>,
    pub state: vf_alloc::VfState,
    /// Name of its representor. Empty: the card has created none.
    pub representor: String,
    pub attachment: Option<AttachmentId>,
}

/// Where a network comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Configuration,
    Api,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkView {
    pub network: Arc<Network>,
    pub origin: Origin,
    /// Number of attachments that use the network.
    pub attachments: usize,
    pub subnets: Vec<SubnetUsage>,
    /// State of this DPU as its gateway. `None`: it is not the gateway, or not yet.
    pub gateway: Option<GatewayView>,
}

impl NetworkView {
    /// A network of the API that has no attachments and is not in force.
    pub(crate) fn unused(network: Network) -> Self {
        let (network, origin) = (network.into(), Origin::Api);
        Self { network, origin, attachments: 0, subnets: Vec::new(), gateway: None }
    }
}

/// How a subnet's addresses are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubnetUsage {
    pub cidr: IpNetwork,
    /// Addresses that can be leased. Saturates.
    pub capacity: u64,
    pub held: u64,
    /// In cool-down.
    pub cooling: u64,
}

/// A pool of VFs as operators see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolView {
    pub spec: vf_alloc::PoolSpec,
    pub usage: vf_alloc::Usage,
}

/// Outcome of applying a network, or of a dry run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// There was no network of that name.
    Created,
    /// The network differed.
    Changed,
    /// The network was equal.
    Unchanged,
}

/// A VF offered to its host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedVf {
    /// The VF's device on its host and the number of the offer.
    pub offer: VfOffer,
    /// The pools from which an attach without a chosen VF may get it.
    pub pools: Vec<OpenPool>,
    pub pf: PfId,
}

/// A pool that serves attaches without a chosen VF.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenPool {
    pub name: String,
    /// The policy that selects the PF.
    pub policy: Policy,
}
