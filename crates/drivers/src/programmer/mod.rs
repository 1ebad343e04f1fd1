//! Programs a VF's representor for its attachment in named steps, and undoes them.
//!
//! The programmer owns the drivers of eswitch and fabric. It locks nothing: callers hold the lock of the VF.

use std::{collections::BTreeMap, fmt, sync::Arc};

use bootstrap::Chain;
use netlink::{LinkEvent, MacAddress};
use tokio::sync::watch;
use vf_alloc::FunctionId;

use crate::{
    driver::{Capability, Fault, Reading, Refused, Unsupported},
    eswitch::{Card, Eswitch, Representor},
    fabric::{Fabric, GatewayLinks, GatewayPort, Membership},
};
use model::{AntiSpoofing, Label, PortSettings};

/// The index that stands for a representor where VFs have none.
const NO_INDEX: u32 = 0;

mod by_hosts;
mod steps;
mod traffic;
mod uplinks;

use steps::{IDLE_MTU, Port, fabric_limit};
pub use steps::{STEPS, StepStatus};
pub use uplinks::Uplink;

/// A representor, and the state of each step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The representor. `None`: VFs have none.
    pub representor: Option<Representor>,
    /// Each step, in order.
    pub steps: Vec<StepStatus>,
}

/// The result of a repair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repaired {
    /// The representor's index.
    pub index: u32,
    /// The names of the steps that were not in place and now are.
    pub steps: Vec<&'static str>,
}

/// Why a representor could not be programmed.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// The card has not created a representor for the VF.
    #[error("VF {0} has no representor on this DPU")]
    NoRepresentor(FunctionId),
    /// The kernel can't be asked.
    #[error("VF {vf} can't be programmed")]
    Unreadable {
        /// The VF.
        vf: FunctionId,
        /// Why not.
        source: Refused,
    },
    /// A step failed. All steps of a first programming were undone, except those in `source.left`.
    #[error("VF {vf} can't be programmed")]
    Step {
        /// The VF.
        vf: FunctionId,
        /// The step, its failure, and the undos that failed.
        source: saga::Failed<Refused>,
    },
}

impl ProgramError {
    /// What the failure is blamed on. A VF without a representor is not handed out until it has one. A step that a
    /// test made fail counts as the VF's fault.
    #[must_use]
    pub fn fault(&self) -> Fault {
        match self {
            Self::Unreadable { source, .. } if source.fault() == Fault::FabricAway => {
                Fault::FabricAway
            }
            Self::NoRepresentor(_) | Self::Unreadable { .. } => Fault::Elsewhere,
            Self::Step { source, .. } => source.source.as_ref().map_or(Fault::Port, Refused::fault),
        }
    }
}

/// A failed undo: part of a representor's programming is left.
#[derive(Debug, thiserror::Error)]
#[error("the representor of VF {vf} keeps some of its programming: {what}")]
pub struct Leftover {
    /// The VF.
    pub vf: FunctionId,
    /// The steps, and the kernel's messages.
    pub what: String,
    /// Whether the port itself is at fault for at least one of them.
    pub is_ports_fault: bool,
}

/// Programs representors. All methods block on the kernel unless they say otherwise. A clone shares the drivers.
#[derive(Clone)]
pub struct Programmer {
    /// `None`: VFs have no representors. Attachments count as programmed at once, and hosts enforce the network's
    /// settings.
    drivers: Option<Drivers>,
}

#[derive(Clone)]
struct Drivers {
    eswitch: Arc<dyn Eswitch>,
    fabric: Arc<dyn Fabric>,
}

impl fmt::Debug for Programmer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Programmer({}, {})", self.eswitch_name(), self.fabric_name())
    }
}

impl Programmer {
    /// A programmer that uses these drivers.
    #[must_use]
    pub fn new(eswitch: Arc<dyn Eswitch>, fabric: Arc<dyn Fabric>) -> Self {
        Self { drivers: Some(Drivers { eswitch, fabric }) }
    }

    /// A programmer without representors: hosts enforce everything.
    #[must_use]
    pub const fn without_representors() -> Self {
        Self { drivers: None }
    }

    /// Whether VFs have representors. Does not ask the kernel.
    #[must_use]
    pub const fn has_representors(&self) -> bool {
        self.drivers.is_some()
    }

    /// The name of the eswitch's driver in the configuration.
    #[must_use]
    pub fn eswitch_name(&self) -> &'static str {
        self.drivers.as_ref().map_or(by_hosts::NAME, |drivers| drivers.eswitch.name())
    }

    /// The name of the fabric's driver in the configuration.
    #[must_use]
    pub fn fabric_name(&self) -> &'static str {
        self.drivers.as_ref().map_or(by_hosts::NAME, |drivers| drivers.fabric.name())
    }

    /// The cards: see [`Eswitch::cards`].
    #[must_use]
    pub fn cards(&self) -> Vec<Card> {
        self.drivers.as_ref().map(|drivers| drivers.eswitch.cards()).unwrap_or_default()
    }

    /// The card of the VF: see [`Eswitch::card_of`].
    #[must_use]
    pub fn card_of(&self, vf: FunctionId) -> Option<String> {
        self.drivers.as_ref().and_then(|drivers| drivers.eswitch.card_of(vf))
    }

    /// Sentences about VFs that can't be served and about the fabric: see [`Eswitch::problems`] and
    /// [`Fabric::problems`].
    #[must_use]
    pub fn problems(&self) -> Vec<String> {
        let Some(Drivers { eswitch, fabric }) = &self.drivers else { return Vec::new() };
        [eswitch.problems(), fabric.problems()].concat()
    }

    /// Whether an event concerns a representor or the fabric: see [`Eswitch::concerns`] and
    /// [`Fabric::concerns`].
    #[must_use]
    pub fn concerns(&self, event: &LinkEvent) -> bool {
        self.drivers.as_ref().is_some_and(|Drivers { eswitch, fabric }| {
            eswitch.concerns(event) || fabric.concerns(event)
        })
    }

    /// Whether devlink events should be watched: see [`Eswitch::has_devlink_cards`].
    #[must_use]
    pub fn has_devlink_cards(&self) -> bool {
        self.drivers.as_ref().is_some_and(|drivers| drivers.eswitch.has_devlink_cards())
    }

    /// Changes of the fabric that the kernel does not report: see [`Fabric::changes`].
    #[must_use]
    pub fn fabric_changes(&self) -> Vec<watch::Receiver<u64>> {
        self.drivers.as_ref().map(|drivers| drivers.fabric.changes()).unwrap_or_default()
    }

    /// Whether guards have lost nftables rules: see [`Fabric::lost_rules`].
    pub fn lost_rules(&self) -> bool {
        self.drivers.as_ref().is_some_and(|drivers| drivers.fabric.lost_rules())
    }

    /// What kernel and card support, as probed at start.
    #[must_use]
    pub fn capabilities(&self) -> Vec<Capability> {
        let Some(Drivers { eswitch, fabric }) = &self.drivers else {
            return by_hosts::capabilities();
        };
        let mut all = eswitch.capabilities();
        all.extend(fabric.capabilities());
        all
    }

    /// Checks whether the VF's port can have these settings. Does not ask the kernel. Callers are the application
    /// of networks, attaches, and the search for unmet settings. For an unknown VF the answer covers what all VFs
    /// have in common.
    ///
    /// The eswitch checks what the VF's card carries out, the fabric what all ports of the network's bridge get.
    /// The fabric checks an egress limit only where the card leaves it to the fabric.
    ///
    /// # Errors
    /// The first setting that is not supported.
    pub fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        let Some(Drivers { eswitch, fabric }) = &self.drivers else {
            return by_hosts::check(settings);
        };
        eswitch.check(settings)?;
        fabric.check(settings)?;
        fabric_limit(&**eswitch, settings).map_or(Ok(()), |limit| fabric.check_egress_limit(&limit))
    }

    /// The links of gateways: see [`Fabric::set_gateways`].
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn set_gateways(&self, ports: &[GatewayPort]) -> Result<GatewayLinks, Refused> {
        match &self.drivers {
            Some(Drivers { fabric, .. }) => fabric.set_gateways(ports),
            None => Ok(Vec::new()),
        }
    }

    /// The name of the link of a network's gateway: see [`Fabric::gateway_name`]. `None`: there is no fabric.
    #[must_use]
    pub fn gateway_name(&self, network: &str) -> Option<String> {
        self.drivers.as_ref().map(|drivers| drivers.fabric.gateway_name(network))
    }

    /// The name of another program's bridge or bond that has the representor: see [`Fabric::occupant`].
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn occupant(&self, port: &Representor) -> Result<Option<String>, Refused> {
        self.drivers.as_ref().map_or(Ok(None), |drivers| drivers.fabric.occupant(port))
    }

    /// How many representors to program at a time: see [`Fabric::together`].
    #[must_use]
    pub fn together(&self) -> usize {
        self.drivers.as_ref().map_or(1, |drivers| drivers.fabric.together())
    }

    /// The largest packet that leaves this DPU by a network's bridge: see [`Fabric::uplink_mtu`].
    #[must_use]
    pub fn uplink_mtu(&self, bridge: Option<&str>) -> Option<u32> {
        self.drivers.as_ref().and_then(|drivers| drivers.fabric.uplink_mtu(bridge))
    }

    /// The uplinks of a network's bridge: see [`Fabric::uplinks`].
    #[must_use]
    pub fn uplinks(&self, bridge: Option<&str>) -> &[String] {
        self.drivers.as_ref().map_or(&[], |drivers| drivers.fabric.uplinks(bridge))
    }

    /// Whether a MAC address is one of the fabric's: see [`Fabric::own_macs`].
    #[must_use]
    pub fn has_mac(&self, mac: MacAddress) -> bool {
        self.drivers.as_ref().is_some_and(|drivers| drivers.fabric.own_macs().contains(&mac))
    }

    /// The links that the packet filter reports for packets between ports: see [`Fabric::ports_seen_as`].
    #[must_use]
    pub fn ports_seen_as(&self) -> Vec<String> {
        self.drivers.as_ref().map(|drivers| drivers.fabric.ports_seen_as()).unwrap_or_default()
    }

    /// Prepares the eswitch, then the fabric, even if the eswitch failed. Returns the first failure.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn prepare(&self) -> Result<(), Refused> {
        let Some(Drivers { eswitch, fabric }) = &self.drivers else { return Ok(()) };
        let prepared = eswitch.prepare();
        // `and` evaluates its argument also after an error: the fabric is prepared in any case.
        prepared.and(fabric.prepare())
    }

    /// The repairs of what all ports share: see [`Fabric::take_repairs`].
    #[must_use]
    pub fn take_repairs(&self) -> Vec<String> {
        self.drivers.as_ref().map(|drivers| drivers.fabric.take_repairs()).unwrap_or_default()
    }

    /// Runs all steps and returns the representor's index. A step leaves correct state unchanged.
    ///
    /// # Errors
    /// See [`ProgramError`]; all steps were undone.
    pub fn program(&self, settings: &PortSettings) -> Result<u32, ProgramError> {
        let Some(drivers) = &self.drivers else { return Ok(NO_INDEX) };
        let vf = settings.vf;
        let mut port = drivers.port(settings)?;
        let Err(mut source) = saga::run(STEPS, &mut port) else { return Ok(port.index()) };
        // If the link has vanished, so has all state on it: the card creates the VF's next link without any. A
        // failed undo on the old link therefore leaves nothing.
        if !source.left.is_empty() && drivers.is_gone(vf, port.index()) {
            source.left.clear();
        }
        Err(ProgramError::Step { vf, source })
    }

    /// Runs the steps that are not in place. Undoes none, even after a failure, because the pod runs on the others.
    ///
    /// # Errors
    /// See [`ProgramError`].
    pub fn repair(&self, settings: &PortSettings) -> Result<Repaired, ProgramError> {
        let Some(drivers) = &self.drivers else {
            return Ok(Repaired { index: NO_INDEX, steps: Vec::new() });
        };
        let vf = settings.vf;
        let mut port = drivers.port(settings)?;
        let missing = |(name, found): (&'static str, Result<Reading, Refused>)| match found {
            Ok(reading) => (!reading.in_place).then_some(Ok(name)),
            Err(source) => Some(Err(ProgramError::Unreadable { vf, source })),
        };
        let steps: Vec<_> =
            port.inspect().into_iter().filter_map(missing).collect::<Result<_, _>>()?;
        saga::repair(STEPS, |step| steps.contains(&step), &mut port)
            .map_err(|source| ProgramError::Step { vf, source })?;
        Ok(Repaired { index: port.index(), steps })
    }

    /// Undoes all steps and continues after failures. A VF without a representor has nothing to undo.
    ///
    /// # Errors
    /// What is left.
    pub fn unprogram(&self, vf: FunctionId) -> Result<(), Leftover> {
        let Some(drivers) = &self.drivers else { return Ok(()) };
        let mut port = match drivers.port(&idle(vf)) {
            Ok(port) => port,
            Err(ProgramError::NoRepresentor(_)) => return Ok(()),
            Err(error) => {
                let (what, is_ports_fault) =
                    (Chain(&error).to_string(), error.fault() == Fault::Port);
                return Err(Leftover { vf, what, is_ports_fault });
            }
        };
        let left = saga::undo(STEPS, &mut port);
        if left.is_empty() || drivers.is_gone(vf, port.index()) {
            return Ok(());
        }
        leftover(vf, &left)
    }

    /// Each step and its state in the kernel, as far as the kernel can be read.
    ///
    /// # Errors
    /// [`ProgramError::NoRepresentor`], or the kernel can't be asked for the representor.
    pub fn inspect(&self, settings: &PortSettings) -> Result<Inspection, ProgramError> {
        let Some(drivers) = &self.drivers else {
            return Ok(Inspection { representor: None, steps: Vec::new() });
        };
        let mut port = drivers.port(settings)?;
        let steps = port.inspect().into_iter().map(StepStatus::of).collect();
        Ok(Inspection { representor: Some(port.into_representor()), steps })
    }

    /// Whether the VF's representor has state that an idle one has not: see [`Surveyed::is_programmed`].
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn is_programmed(&self, vf: FunctionId) -> Result<bool, Refused> {
        Ok(self.look(vf)?.is_some_and(|found| found.is_programmed()))
    }

    /// Whether the VF's representor has joined the fabric.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn is_joined(&self, vf: FunctionId) -> Result<bool, Refused> {
        Ok(self.look(vf)?.is_some_and(|found| found.membership.is_some()))
    }

    fn look(&self, vf: FunctionId) -> Result<Option<Surveyed>, Refused> {
        let Some(Drivers { eswitch, fabric }) = &self.drivers else { return Ok(None) };
        let Some(representor) = eswitch.representor(vf)? else { return Ok(None) };
        let membership = fabric.member(&representor)?;
        Ok(Some(Surveyed { representor, membership }))
    }

    /// Whether frames pass the programmed port of the representor with that index.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn forwards(&self, index: u32) -> Result<bool, Refused> {
        self.drivers.as_ref().map_or(Ok(true), |drivers| drivers.fabric.forwards(index))
    }

    /// All representors.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn representors(&self) -> Result<Vec<Representor>, Refused> {
        self.drivers.as_ref().map_or(Ok(Vec::new()), |drivers| drivers.eswitch.representors())
    }

    /// All representors, and the memberships of those that have joined, read in two passes.
    ///
    /// # Errors
    /// When the kernel can't be asked.
    pub fn survey(&self) -> Result<BTreeMap<FunctionId, Surveyed>, Refused> {
        let Some(Drivers { eswitch, fabric }) = &self.drivers else { return Ok(BTreeMap::new()) };
        let members = fabric.members()?;
        let survey = |representor: Representor| {
            let membership = members.get(&representor.index).cloned();
            (representor.vf, Surveyed { representor, membership })
        };
        Ok(eswitch.representors()?.into_iter().map(survey).collect())
    }

    /// Whether the surveyed state of a representor matches `settings`. Does not ask the kernel.
    #[must_use]
    pub fn agrees(&self, found: &Surveyed, settings: &PortSettings) -> bool {
        let wanted = self.drivers.as_ref().map(|drivers| drivers.fabric.membership(settings));
        let Surveyed { representor, membership } = found;
        *membership == wanted
            && representor.up
            && representor.mtu == settings.mtu
            && representor.label == settings.label
    }
}

impl Drivers {
    /// Whether the representor has vanished with all that was programmed on it.
    fn is_gone(&self, vf: FunctionId, index: u32) -> bool {
        let found = self.eswitch.representor(vf);
        found.is_ok_and(|found| found.is_none_or(|found| found.index != index))
    }

    fn port(&self, settings: &PortSettings) -> Result<Port, ProgramError> {
        let vf = settings.vf;
        let found = self
            .eswitch
            .representor(vf)
            .map_err(|source| ProgramError::Unreadable { vf, source })?;
        let representor = found.ok_or(ProgramError::NoRepresentor(vf))?;
        let (eswitch, fabric) = (Arc::clone(&self.eswitch), Arc::clone(&self.fabric));
        Ok(Port::new(eswitch, fabric, representor, settings.clone()))
    }
}

/// A representor as one pass over the kernel found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surveyed {
    /// The representor.
    pub representor: Representor,
    /// Its membership in the fabric. `None`: it has not joined.
    pub membership: Option<Membership>,
}

impl Surveyed {
    /// Whether it has state that an idle one has not: a membership, or what a service that was killed during an
    /// undo has left.
    pub fn is_programmed(&self) -> bool {
        let Representor { mtu, label, .. } = &self.representor;
        self.membership.is_some() || *mtu != IDLE_MTU || *label != Label::default()
    }
}

/// The settings of an idle VF's representor, enough to undo all steps.
pub(crate) fn idle(vf: FunctionId) -> PortSettings {
    PortSettings { vf, anti_spoofing: AntiSpoofing::Off, ..PortSettings::default() }
}

/// What a failed programming left behind, if anything.
#[must_use]
pub fn leftover_of(error: &ProgramError) -> Option<Leftover> {
    match error {
        ProgramError::Step { vf, source } => leftover(*vf, &source.left).err(),
        ProgramError::NoRepresentor(_) | ProgramError::Unreadable { .. } => None,
    }
}

/// `Err` if any undo failed.
fn leftover(vf: FunctionId, left: &[saga::Left<Refused>]) -> Result<(), Leftover> {
    let one = |left: &saga::Left<Refused>| format!("{}: {}", left.step, Chain(&left.source));
    let what: Vec<_> = left.iter().map(one).collect();
    if what.is_empty() {
        return Ok(());
    }
    let is_ports_fault = left.iter().any(|left| left.source.fault() == Fault::Port);
    Err(Leftover { vf, what: what.join("; "), is_ports_fault })
}
