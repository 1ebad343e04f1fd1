//! No eswitch: on SR-IOV cards without a DPU the hosts' PFs keep the pods to their settings.

use vf_alloc::VfId;

use super::{Capability, Eswitch, Finding, Refused, Representor, Unsupported};
use crate::model::{Bandwidth, PortSettings};

const BY_PFS: &str = "by the hosts' PFs, as their drivers can";
const NO_INGRESS_RATE: &str =
    "a PF limits nothing that pods receive; limit egress only, or use a card with an eswitch";

/// The driver. VFs have no representors with it, so that nothing is ever programmed.
#[derive(Debug)]
pub struct NoEswitch;

impl Eswitch for NoEswitch {
    fn name(&self) -> &'static str {
        "none"
    }

    fn has_representors(&self) -> bool {
        false
    }

    fn capabilities(&self) -> Vec<Capability> {
        let by_pfs = |name| Capability { name, available: true, detail: BY_PFS.into() };
        vec![
            by_pfs("port-mac"),
            by_pfs("egress-rate"),
            Capability { name: "ingress-rate", available: false, detail: NO_INGRESS_RATE.into() },
        ]
    }

    fn check(&self, settings: &PortSettings) -> Result<(), Unsupported> {
        match settings.bandwidth.ingress_rate {
            0 => Ok(()),
            rate => Err(Unsupported {
                setting: format!("an ingress rate of {rate} bit/s"),
                why: NO_INGRESS_RATE.into(),
            }),
        }
    }

    fn representors(&self) -> Result<Vec<Representor>, Refused> {
        Ok(Vec::new())
    }

    fn representor(&self, _vf: VfId) -> Result<Option<Representor>, Refused> {
        Ok(None)
    }

    fn set_rate(&self, _port: &Representor, _bandwidth: &Bandwidth) -> Result<(), Refused> {
        Ok(())
    }

    fn clear_rate(&self, _port: &Representor) -> Result<(), Refused> {
        Ok(())
    }

    fn rate(&self, _port: &Representor, _bandwidth: &Bandwidth) -> Result<Finding, Refused> {
        Ok(Finding::in_place(BY_PFS))
    }

    fn set_mtu(&self, _port: &Representor, _mtu: u32) -> Result<(), Refused> {
        Ok(())
    }

    fn set_up(&self, _port: &Representor, _up: bool) -> Result<(), Refused> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use netlink::MacAddress;

    use super::*;

    fn settings(bandwidth: Bandwidth) -> PortSettings {
        PortSettings {
            vf: VfId::local(0, 1),
            mac: MacAddress([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            vlan: Some(100),
            trunk: [].into(),
            bandwidth,
            anti_spoofing: true,
        }
    }

    #[test]
    fn what_a_pf_can_do_is_left_to_it_and_the_rest_refused_by_name() {
        let egress = Bandwidth { egress_rate: 1_000_000, ..Bandwidth::default() };
        assert_eq!(NoEswitch.check(&settings(egress)), Ok(()));
        let ingress = Bandwidth { ingress_rate: 1_000_000, ..Bandwidth::default() };
        let refused = NoEswitch.check(&settings(ingress)).unwrap_err().to_string();
        assert!(refused.starts_with("an ingress rate of 1000000 bit/s can't be done"), "{refused}");
    }
}
