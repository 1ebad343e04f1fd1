//! Moves a VF from the host's namespace into a pod's and back.
//!
//! The kernel's move is the expensive part: about 16 ms, serialised for the whole machine. Each direction therefore has
//! one move, and few requests before and after it. A move needs only the VF and the namespace, so it may start
//! speculatively, before the DPU has answered.
//!
//! The module owns no state. Its caller holds the attachment's lock; see `agent/vfs/mod.rs`. An open socket or
//! descriptor keeps a namespace alive, and with it the VF away from the host. Nothing of a pod's namespace stays open
//! after the carrier, the port and the announcement.

mod action;
mod announcer;
mod arrival;
mod baseline;
mod configure;
mod foreign;
mod inspect;
mod inward;
mod outward;
mod plan;
mod port;
mod priorities;
mod speculative;

use std::{collections::HashSet, path::Path, sync::Arc, time::Duration};

use netlink::{CarrierWatch, Link, Netns, NetnsError, Rtnl};
use nix::errno::Errno;
use offload_proto::{Failure, Reason, v1::Attachment};
use saga::Steps;

pub use announcer::Announcer;
pub use arrival::{Arrival, STEPS as ARRIVAL_STEPS};
pub use baseline::Baseline;
use configure::Extent;
pub use foreign::{ForeignInterface, remove_routing};
pub(crate) use inspect::cut_off;
pub use inspect::{PodState, inspect, state_in_pod};
pub use inward::STEPS as INWARD_STEPS;
pub(crate) use model::MAIN_TABLE;
pub use outward::{STEPS as OUTWARD_STEPS, make_clean, take_out};
pub use plan::{Plan, PlanError, Routing, Shared, Sysctl};
pub(crate) use plan::{default_destination, is_default_route};
pub use priorities::meets_others;
pub use speculative::STEPS as SPECULATIVE_STEPS;
use vf_alloc::Device;

use crate::vf_source::{self, PfPort, VfSource};

/// Why a VF could not be moved or configured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The pod has another interface of the wanted name.
    #[error("the pod already has an interface {0}")]
    InterfaceExists(String),
    /// The VF is neither in the host's namespace nor in the pod's.
    #[error("VF {0} is neither in the host's network namespace nor in the pod's")]
    Missing(Device),
    /// The VF's PF has no link in the host's namespace.
    #[error("PF {0} has no link in the host's network namespace")]
    NoPf(Device),
    /// The VF's PF has fewer VFs than before.
    #[error("PF {} has no VF {}", .0.pf, .0.vf)]
    NoPort(PfPort),
    /// The PF's link is down, so its VFs have no carrier.
    #[error("the link {0} of the VF's PF is down, and so its VFs have no carrier: switch it on")]
    PfDown(String),
    /// The network limits ingress; a PF only limits what a VF sends.
    #[error(
        "a card without a DPU cannot limit what the pod receives: leave \
         out the network's ingress_rate, or the pod's ingressRate"
    )]
    IngressLimit,
    /// Neither the DPU nor a PF enforces a setting: `eswitch.driver` is `none` there and `vf_source.mode` is not
    /// `legacy` here.
    #[error(
        "nothing can keep the pod to {0}: the DPU has eswitch.driver = \"none\", and this host's \
         vf_source.mode is not \"legacy\"; set one of them"
    )]
    NotEnforced(String),
    /// The network has a trunk; a PF puts a VF into one VLAN or none.
    #[error(
        "a trunk of VLANs {} is wanted, but a card without a DPU cannot enforce it: leave \
         out the network's trunk",
        listed(.0)
    )]
    Trunk(Vec<u32>),
    /// The kernel refused a request.
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
    /// Sysfs does not show the VF's driver.
    #[error("cannot read the VF's driver: {}", bootstrap::Chain(.0))]
    Driver(sriov::Error),
}

impl MoveError {
    /// The reason code for the CNI error or gRPC status.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::InterfaceExists(_) => Reason::InterfaceExists,
            Self::Missing(_) | Self::NoPort(_) => Reason::VfMissing,
            Self::IngressLimit | Self::NotEnforced(_) | Self::Trunk(_) => Reason::Unsupported,
            Self::Kernel(error) if error.is_exhausted() => Reason::Overloaded,
            Self::NoPf(_) | Self::PfDown(_) | Self::Kernel(_) | Self::Driver(_) => {
                Reason::MoveFailed
            }
        }
    }
}

fn listed(vlans: &[u32]) -> String {
    let vlans: Vec<_> = vlans.iter().map(u32::to_string).collect();
    vlans.join(", ")
}

/// How long the parts of a move took.
#[derive(Clone, Copy, Debug, Default)]
pub struct Durations {
    /// The kernel's move.
    pub relocate: Duration,
    /// Preparing and configuring the link.
    pub configure: Duration,
    /// Waiting for the carrier.
    pub carrier: Duration,
    /// Whether the carrier did not come up in time.
    pub without_carrier: bool,
}

/// A move of a VF with what its steps found and did. It keeps the pod's namespace alive, so keep it only for one move.
#[derive(Debug)]
pub struct VfMove {
    spec: MoveSpec,
    host: Namespace,
    /// `None`: the pod's namespace has ended.
    pod: Option<Namespace>,
    /// The VF's link in the host's namespace before the move. `None`: it is not there.
    departing: Option<Link>,
    /// The VF's link in the pod. `None`: it has not arrived.
    arrived: Option<Link>,
    /// The VF was moved in this call or speculatively, so that its link has no configuration yet.
    is_fresh: bool,
    /// `None`: the carrier is up, or was not checked yet.
    carrier: Option<CarrierWatch>,
    /// The names that interfaces of the pod are about to get: this VF's, and those of VFs that are moved together with
    /// it.
    names_to_come: Arc<[String]>,
    durations: Durations,
}

/// A network namespace and a netlink socket in it.
#[derive(Debug)]
pub struct Namespace {
    /// The namespace.
    pub netns: Arc<Netns>,
    /// A route netlink socket in the namespace.
    pub rtnl: Rtnl,
}

impl Namespace {
    /// Opens a netlink socket in the namespace, which keeps the namespace alive.
    ///
    /// # Errors
    /// The namespace cannot be entered.
    pub fn open(netns: Arc<Netns>) -> Result<Self, netlink::Error> {
        let rtnl = Rtnl::open_in(&netns)?;
        Ok(Self { netns, rtnl })
    }

    /// Returns the names and alternative names of all links.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn names(&mut self) -> Result<HashSet<String>, netlink::Error> {
        Ok(inward::names(&self.rtnl.links()?).cloned().collect())
    }

    /// Raises the priorities of attachments' routes that the pod has already by other interfaces, or that an earlier
    /// attachment of the list brings. Call it before the VFs are in the pod, and for all attachments whose routes have
    /// a priority.
    ///
    /// # Errors
    /// The kernel refuses the request.
    pub fn give_way<'a>(
        &mut self,
        attachments: impl IntoIterator<Item = &'a mut Attachment>,
    ) -> Result<(), netlink::Error> {
        let attachments: Vec<_> = attachments.into_iter().collect();
        if attachments.iter().any(|one| priorities::has_priorities(one)) {
            priorities::give_way(attachments, self.rtnl.routes()?);
        }
        Ok(())
    }
}

/// The namespaces of a move. They keep the pod's namespace alive, so keep them only for one call.
#[derive(Debug)]
pub struct Namespaces {
    /// The host's namespace.
    pub host: Namespace,
    /// The pod's namespace. `None`: it has ended.
    pub pod: Option<Namespace>,
}

impl Namespaces {
    /// Opens both namespaces. `pod` is `None` where the pod's namespace has ended.
    ///
    /// # Errors
    /// One of them cannot be entered.
    pub fn open(host: &Arc<Netns>, pod: Option<Arc<Netns>>) -> Result<Self, netlink::Error> {
        Ok(Self {
            host: Namespace::open(Arc::clone(host))?,
            pod: pod.map(Namespace::open).transpose()?,
        })
    }
}

/// Which VF is moved, and its state on either side.
#[derive(Clone, Debug)]
pub struct MoveSpec {
    /// The source that knows the VF.
    pub source: Arc<dyn VfSource>,
    /// The VF.
    pub device: Device,
    /// The VF's state in the host's namespace, restored by a move out.
    pub original: Baseline,
    /// The VF's state in the pod.
    pub plan: Plan,
    /// Announces the VF's addresses.
    pub announcer: Announcer,
}

/// A move that failed; its steps were undone as far as possible.
pub type Failed = saga::Failed<MoveError>;

impl VfMove {
    /// Prepares a move; nothing is changed yet.
    #[must_use]
    pub fn new(spec: MoveSpec, namespaces: Namespaces) -> Self {
        Self {
            names_to_come: [spec.plan.routing.name.clone()].into(),
            spec,
            host: namespaces.host,
            pod: namespaces.pod,
            departing: None,
            arrived: None,
            is_fresh: false,
            carrier: None,
            durations: Durations::default(),
        }
    }

    /// Marks the VF as moved by a [speculative move](Self::move_speculatively): its link is in the pod without
    /// configuration.
    #[must_use]
    pub fn moved_speculatively(self) -> Self {
        Self { is_fresh: true, ..self }
    }

    /// Moves VFs into a pod, down and under their own names. `names` are those that their interfaces will get. A later
    /// [move](Self::moved_speculatively) configures them.
    ///
    /// # Errors
    /// The first step that failed. Nothing is undone: the caller moves the VFs [out](Self::move_out).
    pub fn move_speculatively(mut moves: Vec<Self>, names: &[String]) -> Result<(), Failed> {
        let names: Arc<[_]> = names.into();
        moves.iter_mut().for_each(|one| one.names_to_come = Arc::clone(&names));
        let mut sagas: Vec<_> = moves.iter_mut().map(|one| (SPECULATIVE_STEPS, one)).collect();
        saga::run_together(&mut sagas)
    }

    /// Moves the VF into the pod and configures it there. Idempotent. The rest of the [`Arrival`] waits for the card.
    ///
    /// # Errors
    /// The step that failed; that step and those before it are undone.
    pub fn move_in(mut self) -> Result<Arrival, Failed> {
        saga::run(self.steps_in(), &mut self)?;
        Ok(Arrival::of(self))
    }

    /// Moves several VFs of one pod in, all or none. The moves follow each other directly: the kernel does one at a
    /// time, and other work between them would add to their time.
    ///
    /// # Errors
    /// The first step that failed; every step of every VF is undone.
    pub fn move_in_together(mut moves: Vec<Self>) -> Result<Vec<Arrival>, Failed> {
        // Each VF needs the names of all: an alternative name of one may be the name of another.
        let names: Arc<[_]> = moves.iter().map(|one| one.spec.plan.routing.name.clone()).collect();
        moves.iter_mut().for_each(|one| one.names_to_come = Arc::clone(&names));
        let mut sagas: Vec<_> = moves.iter_mut().map(|one| (one.steps_in(), one)).collect();
        saga::run_together(&mut sagas)?;
        Ok(moves.into_iter().map(Arrival::of).collect())
    }

    fn steps_in(&self) -> &'static Steps<Self, MoveError> {
        if self.spec.original.is_handed_over { inward::DEVICE_STEPS } else { INWARD_STEPS }
    }

    /// Moves the VF out of the pod, if it is there, and restores its state. Idempotent.
    ///
    /// # Errors
    /// The step that failed. Nothing is undone: repeat the call.
    pub fn move_out(mut self) -> Result<(), Failed> {
        let steps =
            if self.spec.original.is_handed_over { outward::DEVICE_STEPS } else { OUTWARD_STEPS };
        saga::run(steps, &mut self)
    }

    /// The VF's port on its PF, if the PF enforces the pod's settings.
    fn port(&self) -> Option<PfPort> {
        self.spec.source.pf_port(&self.spec.device)
    }

    /// Whether the VF stays in the host's namespace, as a host port does: no namespace change resets its link.
    fn is_within_host(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.netns.id() == self.host.netns.id())
    }

    fn extent(&self, link: &Link) -> Extent {
        match self.is_fresh {
            true => Extent::Fresh,
            false if !link.is_up || self.is_within_host() => Extent::Whole,
            false => Extent::Lost,
        }
    }

    /// The VF's link in the pod. `None`: it is not there.
    fn in_pod(&mut self) -> Result<Option<Link>, MoveError> {
        let Some(pod) = &mut self.pod else { return Ok(None) };
        let links = pod.rtnl.links()?;
        Ok(vf_source::link_of(&*self.spec.source, &links, &self.spec.device).cloned())
    }

    /// Whether the VF was in the pod before this move.
    fn was_in_pod(&mut self) -> Result<bool, MoveError> {
        Ok(!self.is_fresh && self.in_pod()?.is_some())
    }

    /// The VF's link in the host's namespace, under any name. `None`: it is not there.
    fn in_host(&mut self) -> Result<Option<Link>, MoveError> {
        let name = &self.spec.original.name;
        let rtnl = &mut self.host.rtnl;
        Ok(vf_source::find(&*self.spec.source, rtnl, &self.spec.device, Some(name))?)
    }

    /// The VF's link in the pod, for steps that need it there.
    fn arrived(&self) -> Result<Link, MoveError> {
        self.arrived.clone().ok_or_else(|| self.missing())
    }

    /// The pod's namespace, for steps that need it.
    fn pod(&mut self) -> Result<&mut Namespace, MoveError> {
        self.pod.as_mut().ok_or_else(|| MoveError::Missing(self.spec.device.clone()))
    }

    fn missing(&self) -> MoveError {
        MoveError::Missing(self.spec.device.clone())
    }
}

/// Opens a pod's namespace by its path.
///
/// # Errors
/// [`Reason::NetnsInvalid`]: the path is no namespace. [`Reason::Overloaded`]: files or memory are exhausted.
/// [`Reason::MoveFailed`]: it cannot be opened for another reason.
pub fn open_netns(path: &str) -> Result<Netns, Failure> {
    Netns::open(Path::new(path))
        .map_err(|error| Failure::new(reason_of_netns(&error), error.to_string()))
}

fn reason_of_netns(error: &NetnsError) -> Reason {
    use Errno::{ELOOP, ENAMETOOLONG, ENOTDIR};
    match error {
        error if error.is_exhausted() => Reason::Overloaded,
        // The path itself is wrong, so that a retry would not help.
        NetnsError::Unreadable { errno: ELOOP | ENAMETOOLONG | ENOTDIR, .. } => {
            Reason::NetnsInvalid
        }
        NetnsError::Unreadable { .. } => Reason::MoveFailed,
        _ => Reason::NetnsInvalid,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptor_exhaustion_is_no_invalid_netns() {
        let path = Path::new("/run/netns/pod");
        let unreadable = |errno| NetnsError::Unreadable { path: path.into(), errno };
        for (error, reason) in [
            (NetnsError::Missing { path: path.into() }, Reason::NetnsInvalid),
            (unreadable(Errno::EMFILE), Reason::Overloaded),
            (unreadable(Errno::ENFILE), Reason::Overloaded),
            (unreadable(Errno::EACCES), Reason::MoveFailed),
            (unreadable(Errno::ENAMETOOLONG), Reason::NetnsInvalid),
        ] {
            assert_eq!(reason_of_netns(&error), reason, "{error}");
        }
    }
}
