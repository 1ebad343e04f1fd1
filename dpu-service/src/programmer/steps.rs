//! The programming steps, in order: the representor comes up last and goes down first, so that no
//! frame passes a port that is half programmed.

use std::sync::Arc;

use saga::{Step, Steps};

use super::StepStatus;
use crate::{
    eswitch::{Eswitch, Finding, Refused, Representor},
    fabric::{Fabric, Membership},
    model::PortSettings,
};

/// The MTU of a representor that serves nobody, in bytes.
const IDLE_MTU: u32 = 1500;

/// All steps, in order.
const ALL: [PortStep; 6] = [
    PortStep::Mac,
    PortStep::Rate,
    PortStep::Mtu,
    PortStep::Join,
    PortStep::AntiSpoofing,
    PortStep::Up,
];

/// All steps, in order, as a saga.
pub const STEPS: &Steps<Port, Refused> = &{
    let [a, b, c, d, e, f] = &ALL;
    [a, b, c, d, e, f]
};

/// One programming step.
#[derive(Clone, Copy, Debug)]
enum PortStep {
    Mac,
    Rate,
    Mtu,
    Join,
    AntiSpoofing,
    Up,
}

/// A representor, what it shall become, and the drivers that make it so.
#[derive(Debug)]
pub struct Port {
    eswitch: Arc<dyn Eswitch>,
    fabric: Arc<dyn Fabric>,
    representor: Representor,
    settings: PortSettings,
}

impl Port {
    pub(super) fn new(
        eswitch: Arc<dyn Eswitch>,
        fabric: Arc<dyn Fabric>,
        representor: Representor,
        settings: PortSettings,
    ) -> Self {
        Self { eswitch, fabric, representor, settings }
    }

    /// The representor's index.
    pub(super) fn index(&self) -> u32 {
        self.representor.index
    }

    pub(super) fn into_representor(self) -> Representor {
        self.representor
    }

    /// Each step and what the kernel has of it.
    pub(super) fn inspect(&self) -> Result<Vec<StepStatus>, Refused> {
        let inspect = |step: &PortStep| {
            let Finding { in_place, detail } = step.find(self)?;
            Ok(StepStatus { name: step.name(), in_place, detail })
        };
        ALL.iter().map(inspect).collect()
    }
}

impl Step<Port> for PortStep {
    type Error = Refused;

    fn name(&self) -> &'static str {
        match self {
            Self::Mac => "port-mac",
            Self::Rate => "port-rate",
            Self::Mtu => "representor-mtu",
            Self::Join => "fabric-join",
            Self::AntiSpoofing => "anti-spoofing",
            Self::Up => "representor-up",
        }
    }

    fn run(&self, port: &mut Port) -> Result<(), Refused> {
        let Port { eswitch, fabric, representor, settings } = port;
        match self {
            Self::Mac => eswitch.set_port_mac(representor, settings.mac),
            Self::Rate => eswitch.set_rate(representor, &settings.bandwidth),
            Self::Mtu => eswitch.set_mtu(representor, settings.mtu),
            Self::Join => fabric.join(representor, settings),
            Self::AntiSpoofing if settings.anti_spoofing => {
                fabric.set_anti_spoofing(representor, settings.mac)
            }
            Self::AntiSpoofing => fabric.clear_anti_spoofing(representor),
            Self::Up => eswitch.set_up(representor, true),
        }
    }

    fn undo(&self, port: &mut Port) -> Result<(), Refused> {
        let Port { eswitch, fabric, representor, .. } = port;
        match self {
            Self::Mac => eswitch.clear_port_mac(representor),
            Self::Rate => eswitch.clear_rate(representor),
            Self::Mtu => eswitch.set_mtu(representor, IDLE_MTU),
            Self::Join => fabric.leave(representor),
            Self::AntiSpoofing => fabric.clear_anti_spoofing(representor),
            Self::Up => eswitch.set_up(representor, false),
        }
    }
}

impl PortStep {
    fn find(self, port: &Port) -> Result<Finding, Refused> {
        let Port { eswitch, fabric, representor, settings } = port;
        match self {
            Self::Mac => eswitch.port_mac(representor, settings.mac),
            Self::Rate => eswitch.rate(representor, &settings.bandwidth),
            Self::Mtu => Ok(Finding {
                in_place: representor.mtu == settings.mtu,
                detail: format!("{} bytes", representor.mtu),
            }),
            Self::Join => Ok(find_membership(fabric.member(representor)?, settings)),
            Self::AntiSpoofing => {
                fabric.anti_spoofing(representor, settings.anti_spoofing.then_some(settings.mac))
            }
            Self::Up => Ok(Finding {
                in_place: representor.up,
                detail: if representor.up { "up" } else { "down" }.into(),
            }),
        }
    }
}

fn find_membership(found: Option<Membership>, settings: &PortSettings) -> Finding {
    let detail = match found {
        None => "not joined".into(),
        Some(Membership { vlan: None }) => "joined, untagged".into(),
        Some(Membership { vlan: Some(vlan) }) => format!("joined in VLAN {vlan}"),
    };
    Finding { in_place: found == Some(Membership { vlan: settings.vlan }), detail }
}
