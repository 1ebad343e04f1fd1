//! Moves a VF from the host's namespace into a pod's and back.
//!
//! The kernel's move is the one expensive part: some 16 ms, one at a time for the whole machine. So there is exactly
//! one in either direction, and all the rest happens before and after it, in few requests. It needs to know nothing but
//! which VF it is, and may begin before the rest is known. Nothing of a pod's namespace is kept open afterwards, but
//! until carrier and port are there and its addresses announced: an open socket would keep the namespace alive, and with
//! it the VF away from the host.

mod ahead;
mod announcer;
mod arrival;
mod beside;
mod configure;
mod inspect;
mod inward;
mod original;
mod outward;
mod plan;
mod port;
mod priorities;

use std::{collections::HashSet, path::Path, sync::Arc, time::Duration};

use netlink::{CarrierWatch, Link, Netns, NetnsError, Rtnl};
use nix::errno::Errno;
use offload_proto::{Failure, Reason, v1::Attachment};
use saga::Steps;

pub use ahead::STEPS as AHEAD_STEPS;
pub use announcer::Announcer;
pub use arrival::{Arrival, STEPS as ARRIVAL_STEPS};
pub use beside::{Beside, take_off};
use configure::Extent;
pub(crate) use inspect::cut_off;
pub use inspect::{PodState, inspect, state_in_pod};
pub use inward::STEPS as INWARD_STEPS;
pub use original::Original;
pub use outward::{STEPS as OUTWARD_STEPS, make_clean, take_out};
pub(crate) use plan::{MAIN_TABLE, default_destination, is_default_route};
pub use plan::{Plan, PlanError, Routing, Shared, Sysctl};
pub use priorities::meets_others;
use vf_alloc::Device;

use crate::vf_source::{self, PfPort, VfSource};

/// Why a VF could not be moved.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MoveError {
    /// The pod has another interface of that name.
    #[error("the pod already has an interface {0}")]
    InterfaceExists(String),
    /// The VF is neither in the host's namespace nor in the pod's.
    #[error("VF {0} is neither in the host's network namespace nor in the pod's")]
    Missing(Device),
    /// The link of the VF's PF is gone.
    #[error("PF {0} has no link in the host's network namespace")]
    NoPf(Device),
    /// The VF's PF has fewer VFs now.
    #[error("PF {} has no VF {}", .0.pf, .0.vf)]
    NoPort(PfPort),
    /// The link of the VF's PF is switched off, and with it all of its VFs.
    #[error("the link {0} of the VF's PF is down, and so its VFs have no carrier: switch it on")]
    PfDown(String),
    /// A PF limits what a VF sends, and no more.
    #[error(
        "a limit of what the pod receives is wanted, and a card without a DPU can't keep it: leave \
         out the network's ingress_rate, or the pod's ingressRate"
    )]
    IngressLimit,
    /// The DPU leaves it to the host, and the host to the DPU.
    #[error(
        "nobody keeps the pod to {0}: the DPU has eswitch.driver = \"none\", and this host's \
         vf_source.mode is not \"legacy\""
    )]
    NobodyKeeps(String),
    /// A PF puts a VF into one VLAN or into none.
    #[error(
        "a trunk of VLANs {} is wanted, and a card without a DPU can't keep the pod to them: leave \
         out the network's trunk",
        listed(.0)
    )]
    Trunk(Vec<u32>),
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] netlink::Error),
    /// Sysfs does not show which driver the VF has.
    #[error("the driver of the VF can't be read: {}", bootstrap::Chain(.0))]
    Driver(sriov::Error),
}

impl MoveError {
    /// The stable code it is told by.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::InterfaceExists(_) => Reason::InterfaceExists,
            Self::Missing(_) | Self::NoPort(_) => Reason::VfMissing,
            Self::IngressLimit | Self::NobodyKeeps(_) | Self::Trunk(_) => Reason::Unsupported,
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
    /// Preparing and configuring.
    pub configure: Duration,
    /// Waiting for the carrier.
    pub carrier: Duration,
    /// The carrier did not come in time.
    pub without_carrier: bool,
}

/// A move of a VF, and what its steps have found and done so far. It keeps the pod's namespace alive, and so
/// lasts no longer than the move.
#[derive(Debug)]
pub struct VfMove {
    source: Arc<dyn VfSource>,
    device: Device,
    original: Original,
    plan: Plan,
    announcer: Announcer,
    host: Namespace,
    /// `None`: the pod's namespace has ended.
    pod: Option<Namespace>,
    /// The VF as it is about to leave the host's namespace. `None`: it is not there.
    departing: Option<Link>,
    /// The VF as it came into the pod. `None`: it has not come yet.
    arrived: Option<Link>,
    /// The VF was moved just now or ahead, so nothing of it is configured yet.
    is_fresh: bool,
    /// `None`: the VF has a carrier, or was not looked at yet.
    carrier: Option<CarrierWatch>,
    /// The names that interfaces of the pod are about to get: its own, and those of all that come with it.
    names_to_come: Arc<[String]>,
    durations: Durations,
}

/// A network namespace and the kernel's interface to it.
#[derive(Debug)]
pub struct Namespace {
    /// The namespace.
    pub netns: Arc<Netns>,
    /// The kernel's interface to it.
    pub rtnl: Rtnl,
}

impl Namespace {
    /// Opens the interface, which keeps the namespace alive.
    ///
    /// # Errors
    /// When the namespace can't be entered.
    pub fn open(netns: Arc<Netns>) -> Result<Self, netlink::Error> {
        let rtnl = Rtnl::open_in(&netns)?;
        Ok(Self { netns, rtnl })
    }

    /// The names that its links have.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn names(&mut self) -> Result<HashSet<String>, netlink::Error> {
        Ok(inward::names(&self.rtnl.links()?).cloned().collect())
    }

    /// Has the routes of attachments give way to those that the pod has by other interfaces, and each one's to those
    /// of the ones before it: the same ones cost more. Their VFs are not in the pod yet, and nobody else brings routes
    /// with a priority.
    ///
    /// # Errors
    /// The kernel's refusal.
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

/// What a move needs open. It keeps the pod's namespace alive, so it is open no longer than a call.
#[derive(Debug)]
pub struct Namespaces {
    /// The host's.
    pub host: Namespace,
    /// The pod's. `None`: it has ended.
    pub pod: Option<Namespace>,
}

impl Namespaces {
    /// Opens both. `pod` is `None` where the pod's has ended.
    ///
    /// # Errors
    /// When one of them can't be entered.
    pub fn open(host: &Arc<Netns>, pod: Option<Arc<Netns>>) -> Result<Self, netlink::Error> {
        Ok(Self {
            host: Namespace::open(Arc::clone(host))?,
            pod: pod.map(Namespace::open).transpose()?,
        })
    }
}

/// Which VF is moved, and how it is to be on either side.
#[derive(Clone, Debug)]
pub struct MoveSpec {
    /// What knows the VF.
    pub source: Arc<dyn VfSource>,
    /// The VF.
    pub device: Device,
    /// How it is to be in the host's namespace.
    pub original: Original,
    /// How it is to be in the pod.
    pub plan: Plan,
    /// Who announces its addresses.
    pub announcer: Announcer,
}

/// A move that failed, after all of it was undone as far as possible.
pub type Failed = saga::Failed<MoveError>;

impl VfMove {
    /// The move of that VF, of which nothing is done yet.
    #[must_use]
    pub fn new(spec: MoveSpec, namespaces: Namespaces) -> Self {
        Self {
            names_to_come: [spec.plan.routing.name.clone()].into(),
            source: spec.source,
            device: spec.device,
            original: spec.original,
            plan: spec.plan,
            announcer: spec.announcer,
            host: namespaces.host,
            pod: namespaces.pod,
            departing: None,
            arrived: None,
            is_fresh: false,
            carrier: None,
            durations: Durations::default(),
        }
    }

    /// Likewise of a VF that was moved ahead.
    #[must_use]
    pub fn of_moved(self) -> Self {
        Self { is_fresh: true, ..self }
    }

    /// Moves VFs into a pod whose interfaces get these names, switched off and under their own. To configure them is
    /// another [move](Self::of_moved).
    ///
    /// # Errors
    /// The first step that failed. Nothing is undone: whoever asked for it moves them [out](Self::move_out).
    pub fn move_ahead_together(mut moves: Vec<Self>, names: &[String]) -> Result<(), Failed> {
        let names: Arc<[_]> = names.into();
        moves.iter_mut().for_each(|one| one.names_to_come = Arc::clone(&names));
        let mut sagas: Vec<_> = moves.iter_mut().map(|one| (AHEAD_STEPS, one)).collect();
        saga::run_together(&mut sagas)
    }

    /// Moves the VF into the pod and configures it there. Repeating it changes nothing. What is left
    /// then takes as long as the card does.
    ///
    /// # Errors
    /// The step that failed; it and those before it are undone.
    pub fn move_in(mut self) -> Result<Arrival, Failed> {
        saga::run(self.steps_in(), &mut self)?;
        Ok(Arrival::of(self))
    }

    /// Likewise several VFs of one pod, all or none. The moves come one right after the other: the kernel does one at
    /// a time, and whatever else were done in between would come on top of them.
    ///
    /// # Errors
    /// The first step that failed; all that was done is undone, of every VF.
    pub fn move_in_together(mut moves: Vec<Self>) -> Result<Vec<Arrival>, Failed> {
        let names: Arc<[_]> = moves.iter().map(|one| one.plan.routing.name.clone()).collect();
        moves.iter_mut().for_each(|one| one.names_to_come = Arc::clone(&names));
        let mut sagas: Vec<_> = moves.iter_mut().map(|one| (one.steps_in(), one)).collect();
        saga::run_together(&mut sagas)?;
        Ok(moves.into_iter().map(Arrival::of).collect())
    }

    fn steps_in(&self) -> &'static Steps<Self, MoveError> {
        if self.original.is_handed_over { inward::DEVICE_STEPS } else { INWARD_STEPS }
    }

    /// Takes the VF out of the pod, if it is there, and restores it. Repeating it changes nothing.
    ///
    /// # Errors
    /// The step that failed. Nothing is undone: the way back is to repeat the call.
    pub fn move_out(mut self) -> Result<(), Failed> {
        let steps =
            if self.original.is_handed_over { outward::DEVICE_STEPS } else { OUTWARD_STEPS };
        saga::run(steps, &mut self)
    }

    /// The VF as its PF knows it, if it is the PF that keeps the pod to its settings.
    fn port(&self) -> Option<PfPort> {
        self.source.pf_port(&self.device)
    }

    /// Whether the VF stays in the host's namespace, as a host port: then nothing of it begins anew.
    fn is_within_host(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.netns.id() == self.host.netns.id())
    }

    /// How much of the VF's link in the pod is to be set.
    fn extent(&self, link: &Link) -> Extent {
        match self.is_fresh {
            true => Extent::Fresh,
            false if !link.is_up || self.is_within_host() => Extent::Whole,
            false => Extent::Lost,
        }
    }

    /// The VF in the pod. `None`: it is not there.
    fn in_pod(&mut self) -> Result<Option<Link>, MoveError> {
        let Some(pod) = &mut self.pod else { return Ok(None) };
        let links = pod.rtnl.links()?;
        Ok(vf_source::link_of(&*self.source, &links, &self.device).cloned())
    }

    /// Whether the VF is in the pod without having been moved there just now.
    fn was_in_pod(&mut self) -> Result<bool, MoveError> {
        Ok(!self.is_fresh && self.in_pod()?.is_some())
    }

    /// The VF in the host's namespace, under whatever name. `None`: it is not there.
    fn in_host(&mut self) -> Result<Option<Link>, MoveError> {
        let name = &self.original.name;
        let rtnl = &mut self.host.rtnl;
        Ok(vf_source::find(&*self.source, rtnl, &self.device, Some(name))?)
    }

    /// The VF in the pod, where a step needs it there.
    fn arrived(&self) -> Result<Link, MoveError> {
        self.arrived.clone().ok_or_else(|| self.missing())
    }

    /// The pod's namespace, where a step needs it.
    fn pod(&mut self) -> Result<&mut Namespace, MoveError> {
        match &mut self.pod {
            Some(pod) => Ok(pod),
            None => Err(MoveError::Missing(self.device.clone())),
        }
    }

    fn missing(&self) -> MoveError {
        MoveError::Missing(self.device.clone())
    }
}

/// Opens a pod's namespace.
///
/// # Errors
/// [`Reason::NetnsInvalid`] if there is none at the path; [`Reason::Overloaded`] if files or memory are used up;
/// [`Reason::MoveFailed`] if it can't be opened for another reason.
pub fn open_netns(path: &str) -> Result<Netns, Failure> {
    Netns::open(Path::new(path))
        .map_err(|error| Failure::new(reason_of_netns(&error), error.to_string()))
}

fn reason_of_netns(error: &NetnsError) -> Reason {
    use Errno::{ELOOP, ENAMETOOLONG, ENOTDIR};
    match error {
        error if error.is_exhausted() => Reason::Overloaded,
        // The path itself is at fault.
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
    fn missing_descriptors_are_no_invalid_netns() {
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
