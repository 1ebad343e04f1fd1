//! The programming steps in their order.
//!
//! - The representor comes up last and goes down first, so that no frame passes a partly programmed port.
//! - It joins the fabric early and leaves it late, so that the reconciler finds what a crash left among the
//!   fabric's ports, with or without a record. The undo of the join also removes the guard.
//! - Only its MTU is set before the join and reset after it: a bridge can take the smallest MTU of its ports, and a
//!   port with the idle MTU would narrow it for all.
//! - The card limits what the VF sends. Where it does not, the fabric does.

use std::sync::Arc;

use bootstrap::Chain;
use saga::{Step, Steps};

use crate::{
    driver::{Reading, Refused},
    eswitch::{Eswitch, Representor},
    fabric::{EgressLimit, Fabric, Membership},
};
use model::{Label, PortSettings};

/// The MTU of an idle representor, in bytes.
pub(super) const IDLE_MTU: u32 = 1500;

/// All steps in order.
const ALL: [PortStep; 8] = [
    PortStep::Mtu,
    PortStep::Join,
    PortStep::Label,
    PortStep::Mac,
    PortStep::Rate,
    PortStep::Guard,
    PortStep::Limit,
    PortStep::Up,
];

/// All steps in order, as a saga.
pub const STEPS: &Steps<Port, Refused> = &{
    let [a, b, c, d, e, f, g, h] = &ALL;
    [a, b, c, d, e, f, g, h]
};

/// One programming step.
#[derive(Clone, Copy, Debug)]
enum PortStep {
    Mtu,
    Join,
    Label,
    Mac,
    Rate,
    Guard,
    Limit,
    Up,
}

/// A programming step and its state in the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepStatus {
    /// The step's name.
    pub name: &'static str,
    /// Whether the state is as wanted.
    pub in_place: bool,
    /// For people: the state, or why it is unknown.
    pub detail: String,
    /// Whether the state could be read. Unknown state does not count as in place.
    pub is_known: bool,
}

impl StepStatus {
    pub(super) fn of((name, found): (&'static str, Result<Reading, Refused>)) -> Self {
        match found {
            Ok(Reading { in_place, detail }) => Self { name, in_place, detail, is_known: true },
            Err(refused) => {
                let detail = Chain(&refused).to_string();
                Self { name, in_place: false, detail, is_known: false }
            }
        }
    }
}

/// A representor, its settings, and the drivers that program it.
#[derive(Debug)]
pub struct Port {
    eswitch: Arc<dyn Eswitch>,
    fabric: Arc<dyn Fabric>,
    representor: Representor,
    settings: PortSettings,
    /// Whether only the steps run that an inspection found missing.
    is_inspected: bool,
}

impl Port {
    pub(super) fn new(
        eswitch: Arc<dyn Eswitch>,
        fabric: Arc<dyn Fabric>,
        representor: Representor,
        settings: PortSettings,
    ) -> Self {
        Self { eswitch, fabric, representor, settings, is_inspected: false }
    }

    /// The limit that the fabric has to enforce.
    fn egress_limit(&self) -> Option<EgressLimit> {
        fabric_limit(&*self.eswitch, &self.settings)
    }

    /// The representor's index.
    pub(super) fn index(&self) -> u32 {
        self.representor.index
    }

    pub(super) fn into_representor(self) -> Representor {
        self.representor
    }

    /// Each step's name and state. Steps that run after this are those that are not in place.
    pub(super) fn inspect(&mut self) -> Vec<(&'static str, Result<Reading, Refused>)> {
        self.is_inspected = true;
        ALL.iter().map(|step| (step.name(), step.find(self))).collect()
    }
}

impl Step<Port> for PortStep {
    type Error = Refused;

    fn name(&self) -> &'static str {
        match self {
            Self::Mtu => "representor-mtu",
            Self::Join => "fabric-join",
            Self::Label => "representor-label",
            Self::Mac => "port-mac",
            Self::Rate => "port-rate",
            Self::Guard => "guard",
            Self::Limit => "egress-limit",
            Self::Up => "representor-up",
        }
    }

    fn run(&self, port: &mut Port) -> Result<(), Refused> {
        let limit = port.egress_limit();
        let Port { eswitch, fabric, representor, settings, is_inspected } = port;
        match self {
            Self::Mtu => set_mtu(&**eswitch, representor, settings.mtu),
            Self::Join => fabric.join(representor, settings),
            Self::Label => set_label(&**eswitch, representor, &settings.label),
            Self::Mac => eswitch.set_port_mac(representor, settings.mac),
            Self::Rate => set_rate(&**eswitch, representor, settings),
            Self::Guard => fabric.set_guard(representor, settings),
            Self::Limit => match limit {
                Some(limit) => fabric.set_egress_limit(representor, &limit),
                None if *is_inspected => fabric.clear_egress_limit(representor),
                // A port that has just joined has no limit.
                None => Ok(()),
            },
            Self::Up => set_up(&**eswitch, representor, true),
        }
    }

    fn undo(&self, port: &mut Port) -> Result<(), Refused> {
        let Port { eswitch, fabric, representor, .. } = port;
        match self {
            Self::Mtu => set_mtu(&**eswitch, representor, IDLE_MTU),
            Self::Join => fabric.leave(representor),
            Self::Label => set_label(&**eswitch, representor, &Label::default()),
            Self::Mac => eswitch.clear_port_mac(representor),
            Self::Rate if representor.is_limited => eswitch.clear_rate(representor),
            // The undo of the join removes the guard. Without a limit there is no rate to clear.
            Self::Guard | Self::Rate => Ok(()),
            Self::Limit => fabric.clear_egress_limit(representor),
            Self::Up => set_up(&**eswitch, representor, false),
        }
    }
}

/// The egress limit that the card leaves to the fabric.
pub(super) fn fabric_limit(eswitch: &dyn Eswitch, settings: &PortSettings) -> Option<EgressLimit> {
    EgressLimit::of(&settings.bandwidth).filter(|_| !eswitch.limits_egress(settings.vf))
}

// These functions skip what the representor already has. They note the new value before the attempt, so that an
// undo reverts it even if the attempt failed half-way.

fn set_rate(
    eswitch: &dyn Eswitch,
    representor: &mut Representor,
    settings: &PortSettings,
) -> Result<(), Refused> {
    if !settings.has_rates() && !representor.is_limited {
        return Ok(());
    }
    representor.is_limited = true;
    eswitch.set_rate(representor, settings)
}

fn set_mtu(eswitch: &dyn Eswitch, representor: &mut Representor, mtu: u32) -> Result<(), Refused> {
    if representor.mtu == mtu {
        return Ok(());
    }
    representor.mtu = mtu;
    eswitch.set_mtu(representor, mtu)
}

fn set_label(
    eswitch: &dyn Eswitch,
    representor: &mut Representor,
    label: &Label,
) -> Result<(), Refused> {
    if representor.label == *label {
        return Ok(());
    }
    representor.label.clone_from(label);
    eswitch.set_label(representor, label)
}

fn set_up(eswitch: &dyn Eswitch, representor: &mut Representor, up: bool) -> Result<(), Refused> {
    if representor.up == up {
        return Ok(());
    }
    representor.up = up;
    eswitch.set_up(representor, up)
}

impl PortStep {
    fn find(self, port: &Port) -> Result<Reading, Refused> {
        let Port { eswitch, fabric, representor, settings, .. } = port;
        match self {
            Self::Mtu => Ok(Reading {
                in_place: representor.mtu == settings.mtu,
                detail: format!("{} bytes", representor.mtu),
            }),
            Self::Join => {
                let wanted = fabric.membership(settings);
                Ok(find_membership(fabric.member(representor)?.as_ref(), &wanted))
            }
            Self::Label => Ok(Reading {
                in_place: representor.label == settings.label,
                detail: representor.label.to_string(),
            }),
            Self::Mac => eswitch.port_mac(representor, settings.mac),
            Self::Rate => eswitch.rate(representor, settings),
            Self::Guard => fabric.guard(representor, settings),
            Self::Limit => fabric.egress_limit(representor, port.egress_limit().as_ref()),
            Self::Up => Ok(Reading {
                in_place: representor.up,
                detail: if representor.up { "up" } else { "down" }.into(),
            }),
        }
    }
}

fn find_membership(found: Option<&Membership>, wanted: &Membership) -> Reading {
    let detail = found.map_or_else(|| "not joined".to_owned(), Membership::to_string);
    Reading { in_place: found == Some(wanted), detail }
}
