//! No fabric: SR-IOV cards without a DPU switch between their VFs by themselves.

use std::collections::BTreeMap;

use netlink::MacAddress;

use super::{Fabric, Membership};
use crate::{
    eswitch::{Capability, Finding, Refused, Representor, Unsupported},
    model::PortSettings,
};

const BY_CARD: &str = "by the card, as its PF was told";
const NO_TRUNK: &str =
    "a PF puts a VF into one VLAN or into none; leave the trunk out, or use a card with an eswitch";

/// The driver. It goes with [`NoEswitch`](crate::eswitch::none::NoEswitch): there are no
/// representors to join.
#[derive(Debug)]
pub struct NoFabric;

impl Fabric for NoFabric {
    fn name(&self) -> &'static str {
        "none"
    }

    fn capabilities(&self) -> Vec<Capability> {
        let by_card = |name| Capability { name, available: true, detail: BY_CARD.into() };
        vec![
            by_card("access-vlan"),
            Capability { name: "trunk", available: false, detail: NO_TRUNK.into() },
            by_card("anti-spoofing"),
        ]
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        if settings.trunk.is_empty() {
            return Ok(());
        }
        let vlans: Vec<_> = settings.trunk.iter().map(u16::to_string).collect();
        let setting = format!("a trunk of VLANs {}", vlans.join(", "));
        Err(Unsupported { setting, why: NO_TRUNK.into() })
    }

    fn prepare(&self) -> Result<(), Refused> {
        Ok(())
    }

    fn join(&self, _port: &Representor, _settings: &PortSettings) -> Result<(), Refused> {
        Ok(())
    }

    fn leave(&self, _port: &Representor) -> Result<(), Refused> {
        Ok(())
    }

    fn member(&self, _port: &Representor) -> Result<Option<Membership>, Refused> {
        Ok(None)
    }

    fn members(&self) -> Result<BTreeMap<u32, Membership>, Refused> {
        Ok(BTreeMap::new())
    }

    fn set_anti_spoofing(
        &self,
        _port: &Representor,
        _settings: &PortSettings,
    ) -> Result<(), Refused> {
        Ok(())
    }

    fn clear_anti_spoofing(&self, _port: &Representor) -> Result<(), Refused> {
        Ok(())
    }

    fn anti_spoofing(
        &self,
        _port: &Representor,
        _mac: Option<MacAddress>,
    ) -> Result<Finding, Refused> {
        Ok(Finding::in_place(BY_CARD))
    }
}
