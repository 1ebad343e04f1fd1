//! The programming steps, in order. The representor comes up last and goes down first, so that no
//! frame passes a port that is half programmed. It joins the fabric first and leaves it last, so that
//! what a crash leaves half done is found among the fabric's ports, be there a record of it or not. Its
//! guard goes after that, with the undo of the join. What it sends is limited by its card or, where that does not, by
//! the fabric, which is asked for nothing where nothing is to be limited. Only its MTU is set before and reset after that: a fabric may take over the smallest MTU of its ports, and
//! a port with the idle one would narrow it for all.

use std::sync::Arc;

use bootstrap::Chain;
use saga::{Step, Steps};

use crate::{
    driver::{Reading, Refused},
    eswitch::{Eswitch, Representor},
    fabric::{EgressLimit, Fabric, Membership},
    model::{Label, PortSettings},
};

/// The MTU of a representor that serves nobody, in bytes.
pub(super) const IDLE_MTU: u32 = 1500;

/// All steps, in order.
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

/// All steps, in order, as a saga.
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

/// A programming step and what the kernel has of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepStatus {
    /// Its name.
    pub name: &'static str,
    /// Whether it is as it should be.
    pub in_place: bool,
    /// What is there, or why that is not known, for people.
    pub detail: String,
    /// Whether it could be looked at. What could not be does not count as in place.
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

/// A representor, what it shall become, and the drivers that make it so.
#[derive(Debug)]
pub struct Port {
    eswitch: Arc<dyn Eswitch>,
    fabric: Arc<dyn Fabric>,
    representor: Representor,
    settings: PortSettings,
    /// Whether the steps that are run are those that were found missing.
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

    /// What the fabric is to limit.
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

    /// Each step by name, and what the kernel has of it. Whoever runs steps after that runs those that are not in
    /// place.
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
                // A port that joins has none.
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
            // A guard goes once the port has left, and a limit that was never set is none.
            Self::Guard | Self::Rate => Ok(()),
            Self::Limit => fabric.clear_egress_limit(representor),
            Self::Up => set_up(&**eswitch, representor, false),
        }
    }
}

/// What the fabric is to limit of what a port sends: what its card does not.
pub(super) fn fabric_limit(eswitch: &dyn Eswitch, settings: &PortSettings) -> Option<EgressLimit> {
    EgressLimit::of(&settings.bandwidth).filter(|_| !eswitch.limits_egress(settings.vf))
}

// What the look at the representor found as wanted is left alone. Whatever is tried from then on
// counts as done, so that an undo takes it back.

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
